"""Settings of the algorithm: the pieces that turn judged completions into a gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from string import Formatter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from strop.algorithms.advantages import Advantage, GroupRelative
from strop.algorithms.aggregation import Aggregation
from strop.algorithms.allocation import Allocation, Vip
from strop.algorithms.losses import Correction, PolicyLoss
from strop.algorithms.regularizers import KlInReward, Regularizer
from strop.algorithms.rewards import LengthShaping, Reward
from strop.algorithms.token_types import TokenTypes
from strop.base.pieces import Settings
from strop.base.types import Completion, InputError, Rollout, Verdict


class Selection(Settings):
    """Which groups enter the loss.

    Fields:
        zero_variance: `keep` trains on every group; `drop` leaves out those whose rollouts all have the same outcome
            (effective batch, ScaleRL; rejection, Skywork-OR1).
        of: what must be equal: the verifier's score (or the value of the user's reward functions), or the shaped
            reward; scores of single turns must be equal too.
        refill: a dropped group is replaced by a new prompt within the step (DAPO's dynamic sampling); otherwise
            the step trains on what is left.
        no_positive_resampling: a prompt whose group came to this pass rate or more is never asked again (ScaleRL: .9).
    """

    zero_variance: Literal["keep", "drop"] = "drop"
    of: Literal["score", "reward"] = "score"
    refill: bool = False
    no_positive_resampling: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _refill_what_is_dropped(self) -> Selection:
        if self.refill and self.zero_variance == "keep":
            raise ValueError("refill=true replaces dropped groups, and zero_variance='keep' drops none; set 'drop'")
        return self

    def keeps(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether a group with these countable rollouts is trained on; False if there are none."""
        if not rollouts:
            return False
        return self.zero_variance == "keep" or not self.is_uniform(rollouts)

    def is_uniform(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether all rollouts have the same outcome."""
        outcomes = {(r.verdict.value if self.of == "score" else r.reward, r.verdict.turn_scores) for r in rollouts}
        return len(outcomes) <= 1


Count = Annotated[int, Field(ge=1)]
TruncationMask = Literal["none", "zero", "zero_before", "drop", "drop_before"]


PROMPT_PARTS = ("question", "answer", "solution", "feedback", "success")


class ReferenceSettings(Settings):
    """The reference policy of KL terms: the policy as it was, or a teacher.

    Fields:
        path: a teacher, which has the policy's tokenizer: a folder or a hub name. None: the starting policy.
        domains: teachers of the problems of single domains, as {math = "…", code = "…"}; `path` is that of the others.
        url: where vLLM serves the teachers under these names, up to and with `/v1`; None: they are loaded here.
        api_key_env: the environment variable that holds the server's key; None sends none.
        reset_every: the present policy takes its place after so many steps; none keeps it throughout.
        prompt: self-distillation: what it reads in the place of each question, a text with {question}, {answer} (the
            verifier's), {solution} (the problem's own, else the answer), {feedback} (what the verifier said) or
            {success} (another right completion of the group). A completion that lacks one of them has no KL.
    """

    alternatives: ClassVar[tuple[str, ...]] = ("path", "reset_every")

    path: str | None = None
    domains: dict[str, str] = {}
    url: str | None = None
    api_key_env: str | None = None
    reset_every: Count | None = None
    prompt: str | None = None

    @model_validator(mode="after")
    def _known_parts(self) -> ReferenceSettings:
        for _, part, form, conversion in Formatter().parse(self.prompt or ""):
            if part is not None and (part not in PROMPT_PARTS or form or conversion):
                known = ", ".join(f"{{{name}}}" for name in PROMPT_PARTS)
                raise ValueError(f"prompt has {{{part}}}; it may have {known}, and {{{{ and }}}} for braces")
        return self

    @property
    def teachers(self) -> dict[str | None, str]:
        """The name of each teacher by its domain; under None that of all other problems."""
        found: dict[str | None, str] = {} if self.path is None else {None: self.path}
        found.update((domain, path) for domain, path in self.domains.items())
        return found

    @model_validator(mode="after")
    def _a_teacher_stays(self) -> ReferenceSettings:
        if self.path is not None and self.reset_every is not None:
            raise ValueError(f"a teacher (path={self.path}) is never reset; set path=none or reset_every=none")
        if self.url is not None and not self.teachers:
            raise ValueError(f"url={self.url} serves a teacher; name it with path, as the server does")
        return self


class AlgorithmSettings(Settings):
    """The pieces that turn judged completions into a gradient, in the order of the loop.

    Fields:
        reward: from a verdict to a number.
        shaping: what a completion's length adds to its reward.
        allocation: how the completions of a step are divided between its prompts; none: all have equally many.
        selection: which groups are trained on.
        kl_in_reward: a penalty on every token for leaving the reference policy, taken off the reward.
        advantage: from rewards (and the critic's values) to an advantage per token.
        truncation_mask: the treatment of truncated completions. `none` trains them as any other. `zero` sets their
            advantage to 0 and keeps their tokens in the loss's denominator and in its regularizers (Skywork-OR1,
            Ablation 3, Adv-Mask-After); `drop` leaves their tokens out of the loss altogether (ScaleRL). With both the
            completions count in their group's mean and standard deviation; `zero_before` (Adv-Mask-Before) and
            `drop_before` leave them out of these too.
        anchor: what importance ratios are taken against: the log-probs the `generator` recorded, or those the trainer
            finds for the same tokens before the batch's first update (`recomputed`, as verl and Open-Reasoner-Zero do).
        correction: with a recomputed anchor, the factor on each token's loss for π_anchor / π_generator.
        token_types: which tokens reason and which recall, for the pieces that distinguish them.
        loss: the policy loss.
        regularizers: terms that are added to it.
        reference: the reference policy of KL terms, or the teacher of a distillation.
        aggregation: from a loss per token to one number.
    """

    reward: SerializeAsAny[Reward]
    shaping: tuple[SerializeAsAny[LengthShaping], ...] = ()
    allocation: SerializeAsAny[Allocation] | None = None
    selection: Selection = Selection()
    kl_in_reward: KlInReward | None = None
    advantage: SerializeAsAny[Advantage]
    truncation_mask: TruncationMask = "none"
    anchor: Literal["generator", "recomputed"] = "generator"
    correction: SerializeAsAny[Correction] | None = None
    token_types: SerializeAsAny[TokenTypes] | None = None
    loss: SerializeAsAny[PolicyLoss]
    regularizers: tuple[SerializeAsAny[Regularizer], ...] = ()
    reference: ReferenceSettings = ReferenceSettings()
    aggregation: SerializeAsAny[Aggregation]

    @model_validator(mode="after")
    def _one_baseline(self) -> AlgorithmSettings:
        if isinstance(self.allocation, Vip) and isinstance(self.advantage, GroupRelative):
            baseline = self.advantage.baseline
            if self.allocation.baseline != baseline:
                raise ValueError(f"the advantage's baseline is {baseline!r}: set algorithm.allocation.baseline to it")
        return self

    def reward_of(self, completion: Completion, verdict: Verdict) -> float:
        """The shaped reward of a completion with a usable verdict.

        Raises:
            InputError: a piece, perhaps the user's own, gives no finite number.
        """
        pieces: tuple[Reward | LengthShaping, ...] = (self.reward, *self.shaping)
        total = 0.0
        for piece in pieces:
            value: Any = piece(completion, verdict)
            if not (isinstance(value, Real) and math.isfinite(value)):
                raise InputError(f"{piece.piece_name()} gave {value!r} for a completion: a reward is a finite number")
            total += float(value)
        return total

    @property
    def needs_reference(self) -> bool:
        """Whether a copy of the starting policy is kept."""
        return self.kl_in_reward is not None or any(term.needs_reference for term in self.regularizers)

    @property
    def reference_top(self) -> int:
        """How many of the reference policy's most probable tokens are asked for; 0 for none."""
        return max((term.reference_top for term in self.regularizers), default=0)

    @property
    def needs_old_scores(self) -> bool:
        """Whether the batch is scored by the policy once, before its first update."""
        types = self.token_types is not None and self.token_types.needs_old_entropy
        return (types and self.needs_token_types) or self.anchor == "recomputed"

    @property
    def needs_token_types(self) -> bool:
        """Whether a piece distinguishes reasoning from knowledge tokens."""
        return self.loss.needs_token_types or any(term.needs_token_types for term in self.regularizers)
