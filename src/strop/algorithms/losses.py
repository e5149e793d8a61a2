"""Policy losses: pure functions from trained tokens and the policy's log-probs to a loss per token.

Shapes: M trained tokens of a micro-batch. ρ is the importance ratio exp(log π − log π_anchor), anchored on the
log-probs the generator recorded, or on the trainer's own from before the batch (see `anchors`). The update's loss is
Σ_m weight[m] · correction[m] · loss[m]; see `aggregation` for the weights. Further losses:
`entropy_losses`, `proximal_losses`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from strop.algorithms.tokens import Tokens, scalar, sequence_mean, sequence_sum
from strop.base.lazy import torch
from strop.base.metrics import Maximum, Mean, Metrics, Minimum
from strop.base.pieces import Piece

if TYPE_CHECKING:
    from torch import Tensor


Ratio = Annotated[float, Field(gt=0)]
LOG_RATIO_LIMIT = 20.0
ClipLow = Annotated[float, Field(gt=0, le=1)]
DualClip = Annotated[float, Field(gt=1)]


@dataclass(frozen=True, eq=False)
class Clipped:
    """Which of M tokens have lost their gradient, or have it capped, and why; bool [M] each, disjoint.

    Attributes:
        low: at the lower bound of the ratio.
        high: at its upper bound.
        other: for any other reason (dual clip, covariance).
    """

    low: Tensor
    high: Tensor
    other: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Clipped:
        """No token is clipped, for as many tokens as `like` [M] has."""
        nothing = torch.zeros_like(like, dtype=torch.bool)
        return cls(nothing, nothing, nothing)

    @property
    def any(self) -> Tensor:
        """bool [M]."""
        return self.low | self.high | self.other


class PolicyLoss(Piece):
    """A loss for each trained token."""

    modules: ClassVar[tuple[str, ...]] = (
        "strop.algorithms.losses", "strop.algorithms.entropy_losses", "strop.algorithms.proximal_losses",
    )  # fmt: skip
    zero_without_advantage: ClassVar[bool] = False  # whether a token of advantage 0 has neither loss nor gradient

    @property
    def needs_scores(self) -> bool:
        """Whether the policy must be scored over the whole update before the first backward pass."""
        return False

    @property
    def needs_collision(self) -> bool:
        """Whether `tokens.scored_collision` is read, in addition to the other scores."""
        return False

    @property
    def needs_token_types(self) -> bool:
        """Whether `tokens.reasoning` is read (computed by `algorithm.token_types`)."""
        return False

    @property
    def strictly_on_policy(self) -> bool:
        """Whether the loss is valid only when the sampling policy is the updated policy."""
        return False

    def prepare(self, tokens: Tokens, seed: int) -> Tokens:
        """Fill in `plan`, what depends on all tokens of the update (called once, before any backward; after scoring).

        `seed` is the update's own: a random choice hashes it with `tokens.sample` and `tokens.position`, so that no
        split into micro-batches or ranks changes it.
        """
        return tokens

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """The tokens whose gradient the loss cuts or caps at this `logprob` [M]; for the run's diagnostics."""
        return Clipped.none(logprob)

    @abstractmethod
    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        """The loss of each token, [M], and metrics.

        Args:
            tokens: the M trained tokens with their aligned fields.
            logprob: float32 [M], the current policy's, with gradient.
        """


def importance_ratio(tokens: Tokens, logprob: Tensor) -> Tensor:
    """ρ = π(token) / π_anchor(token), [M]; its logarithm held within ±20, so that no ratio overflows."""
    return torch.exp((logprob - tokens.anchor_logprob).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def ratio_metrics(ratio: Tensor, clipped: Clipped) -> Metrics:
    """The raw ratio, before any cap, and the shares of tokens whose gradient was cut or capped, and at which bound."""
    raw = ratio.detach()
    if not len(raw):
        return {}
    return {
        "ratio/mean": Mean(raw.double().sum(), len(raw)),
        "ratio/min": Minimum(raw.min()),
        "ratio/max": Maximum(raw.max()),
        "ratio/clipped_share": Mean(clipped.any.sum(), len(raw)),
        "ratio/clipped_low_share": Mean(clipped.low.sum(), len(raw)),
        "ratio/clipped_high_share": Mean(clipped.high.sum(), len(raw)),
    }


class Reinforce(PolicyLoss):
    """The plain policy gradient: loss = −A · log π."""

    zero_without_advantage = True

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        ratio = importance_ratio(tokens, logprob)
        return -tokens.advantage * logprob, ratio_metrics(ratio, Clipped.none(ratio))


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, low: float | Tensor, high: float | Tensor, dual_clip: float | None
) -> Tensor:
    """−min(ρ A, clip(ρ, 1 − low, 1 + high) A), [M]; with `dual_clip` c, at most c·|A| where A < 0.

    `low` and `high` are one bound for all tokens, or [M].
    """
    bounded = torch.clamp(ratio, scalar(1 - low, ratio), scalar(1 + high, ratio))
    loss = torch.maximum(-advantage * ratio, -advantage * bounded)
    if dual_clip is None:
        return loss
    return torch.where((advantage < 0) & (ratio > dual_clip), -advantage * dual_clip, loss)


def surrogate_clips(
    ratio: Tensor, advantage: Tensor, low: float | Tensor, high: float | Tensor, dual_clip: float | None
) -> Clipped:
    """The tokens without gradient in `clipped_surrogate`; those of the dual clip are `other`."""
    ratio = ratio.detach()
    beyond = torch.zeros_like(ratio, dtype=torch.bool)
    if dual_clip is not None:
        beyond = (advantage < 0) & (ratio > dual_clip)
    return Clipped(
        low=(advantage < 0) & (ratio < scalar(1 - low, ratio)),
        high=(advantage > 0) & (ratio > scalar(1 + high, ratio)),
        other=beyond,
    )


def refuse_narrow_dual_clip(dual_clip: float | None, clip_high: float) -> None:
    """Refuse a dual clip that would cut into the range of the ordinary one.

    Raises:
        ValueError: it does.
    """
    if dual_clip is not None and dual_clip <= 1 + clip_high:
        raise ValueError(f"dual_clip={dual_clip} must exceed 1 + clip_high = {1 + clip_high}")


class PpoClip(PolicyLoss):
    """loss = −min(ρ A, clip(ρ, 1 − clip_low, 1 + clip_high) A); with `dual_clip` c, at most c·|A| where A < 0.

    GRPO clips symmetrically at 0.2; DAPO's clip-higher has clip_high = 0.28.
    """

    zero_without_advantage = True

    clip_low: ClipLow = 0.2
    clip_high: Ratio = 0.2
    dual_clip: DualClip | None = None

    @model_validator(mode="after")
    def _dual_clip_lies_beyond(self) -> PpoClip:
        refuse_narrow_dual_clip(self.dual_clip, self.clip_high)
        return self

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """Tokens beyond the bounds in the direction that their advantage rewards."""
        ratio = importance_ratio(tokens, logprob)
        return surrogate_clips(ratio, tokens.advantage, self.clip_low, self.clip_high, self.dual_clip)

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        ratio = importance_ratio(tokens, logprob)
        loss = clipped_surrogate(ratio, tokens.advantage, self.clip_low, self.clip_high, self.dual_clip)
        return loss, ratio_metrics(ratio, self.clipped(tokens, logprob))


class MaskedLoss(PolicyLoss):
    """Another loss on some of its tokens, 0 on the others, which stay in the denominator."""

    loss: SerializeAsAny[PolicyLoss] = PpoClip()

    @abstractmethod
    def kept(self, tokens: Tokens, logprob: Tensor) -> Tensor:
        """bool [M]: the tokens that keep the inner loss; `logprob` has no gradient."""

    @property
    def needs_scores(self) -> bool:
        """The needs of the inner loss."""
        return self.loss.needs_scores

    @property
    def needs_collision(self) -> bool:
        """The needs of the inner loss."""
        return self.loss.needs_collision

    @property
    def needs_token_types(self) -> bool:
        """The needs of the inner loss."""
        return self.loss.needs_token_types

    @property
    def strictly_on_policy(self) -> bool:
        """As the inner loss is."""
        return self.loss.strictly_on_policy

    def prepare(self, tokens: Tokens, seed: int) -> Tokens:
        """The inner loss's own preparation."""
        return self.loss.prepare(tokens, seed)

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """The clipping of the inner loss among the tokens that are kept; all others are `other`."""
        kept = self.kept(tokens, logprob.detach())
        inner = self.loss.clipped(tokens, logprob)
        return Clipped(inner.low & kept, inner.high & kept, inner.other | ~kept)

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        loss, metrics = self.loss(tokens, logprob)
        return torch.where(self.kept(tokens, logprob.detach()), loss, torch.zeros_like(loss)), metrics


class Cispo(PolicyLoss):
    """Truncated importance-sampling REINFORCE: loss = −sg(min(ρ, max_ratio)) · A · log π (ScaleRL, Eq. 4).

    No token loses its gradient; only the weight of a token the policy has come to like far more is capped.
    """

    zero_without_advantage = True

    max_ratio: Ratio = 5.0

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """Tokens with a capped weight, whatever the sign of their advantage."""
        nothing = Clipped.none(logprob)
        return Clipped(nothing.low, importance_ratio(tokens, logprob.detach()) > self.max_ratio, nothing.other)

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        ratio = importance_ratio(tokens, logprob)
        weight = ratio.clamp(max=self.max_ratio).detach()
        return -weight * tokens.advantage * logprob, ratio_metrics(ratio, self.clipped(tokens, logprob))


class Gspo(PolicyLoss):
    r"""Group sequence policy optimisation: PPO-clip on the geometric mean of a sequence's token ratios.

        s = exp( (1/|o|) Σ_t (log π_t − log π_anchor,t) )
        loss_t = −min(s_t A_t, clip(s_t, 1 − clip_low, 1 + clip_high) A_t),   s_t = sg(s) · π_t / sg(π_t)

    Every token has the value of its sequence's loss, and its gradient is that of log π_t times the sequence's ratio
    (the paper's token form, GSPO-token). Averaged over the tokens of a sequence (`SampleMean`) with one advantage a
    sequence, that is exactly the gradient of the sequence form; other aggregations weigh sequences otherwise.
    |o| counts trained tokens. Defaults are ScaleRL's (A.18.3: 3e-3 and 4e-3, or 5e-3; the 1e-4 scale of the original
    did not work for them).
    """

    zero_without_advantage = True

    clip_low: Annotated[float, Field(gt=0, le=1)] = 3e-3
    clip_high: Ratio = 4e-3

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """All tokens of sequences whose ratio is beyond the bound that their advantage rewards."""
        ratio = sequence_ratio(tokens, logprob.detach())
        return surrogate_clips(ratio, tokens.advantage, self.clip_low, self.clip_high, None)

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        whole = sequence_ratio(tokens, logprob.detach())
        ratio = whole * torch.exp(logprob - logprob.detach())
        loss = clipped_surrogate(ratio, tokens.advantage, self.clip_low, self.clip_high, None)
        return loss, ratio_metrics(whole, self.clipped(tokens, logprob))


def sequence_ratio(tokens: Tokens, logprob: Tensor) -> Tensor:
    """s of each token's own sequence, [M]: the exponential of the mean log-ratio of its trained tokens."""
    return torch.exp(sequence_mean(logprob - tokens.anchor_logprob, tokens.sequence))


Positive = Annotated[float, Field(gt=0)]


class Correction(Piece):
    """From the log-ratio of anchor and generator to a factor per token."""

    @abstractmethod
    def __call__(self, gap: Tensor, sequence: Tensor) -> Tensor:
        """The factor of each token, [M].

        Args:
            gap: floating point [M], log π_anchor − log π_gen of each trained token.
            sequence: int64 [M], the token's sequence; whole sequences only.
        """


class TokenTis(Correction):
    """Truncated importance sampling by token: min(w_t, cap)."""

    cap: Positive = 2.0

    def __call__(self, gap: Tensor, sequence: Tensor) -> Tensor:
        return torch.exp(gap).clamp(max=self.cap)


class SequenceMask(Correction):
    r"""Whole sequences leave the loss where their ratio is outside [low, high].

        geometric: s = exp((1/|o|) Σ_t gap_t)        product: s = exp(Σ_t gap_t), the probability ratio of the sequence

    Fields:
        low, high: the range of s in which a sequence is kept; None: no bound on that side.
        ratio: which s. The product needs a wide range: it grows with the length.
        factor: what kept tokens carry: `one` (only rejection), `token` (w_t) or `sequence` (s).

    The defaults only reject, by the geometric mean; `ratio="product", factor="sequence", low=None` is what trainers
    offer as a sequence-level importance mask.
    """

    low: Positive | None = 0.5
    high: Positive | None = 2.0
    ratio: Literal["geometric", "product"] = "geometric"
    factor: Literal["one", "token", "sequence"] = "one"

    @model_validator(mode="after")
    def _bounds_in_order(self) -> SequenceMask:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        return self

    def __call__(self, gap: Tensor, sequence: Tensor) -> Tensor:
        whole = torch.exp((sequence_mean if self.ratio == "geometric" else sequence_sum)(gap, sequence))
        kept = torch.ones_like(whole, dtype=torch.bool)
        if self.low is not None:
            kept &= whole >= self.low
        if self.high is not None:
            kept &= whole <= self.high
        carried = {"one": torch.ones_like(gap), "token": torch.exp(gap), "sequence": whole}[self.factor]
        return torch.where(kept, carried, torch.zeros_like(carried))


class IcePop(Correction):
    """Tokens whose ratio is outside [low, high] leave the loss, the others carry it: w_t · 1[low ≤ w_t ≤ high]."""

    low: Positive = 0.5
    high: Positive = 5.0

    @model_validator(mode="after")
    def _bounds_in_order(self) -> IcePop:
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        return self

    def __call__(self, gap: Tensor, sequence: Tensor) -> Tensor:
        ratio = torch.exp(gap)
        return torch.where((ratio >= self.low) & (ratio <= self.high), ratio, torch.zeros_like(ratio))
