"""Regularizers: per-token terms added to the policy loss; they may read entropies, the reference policy and a state.

Shapes: M trained tokens of a micro-batch. The update's loss gains Σ_m share[m] · term[m], where the share is the
token's weight in the policy loss unless the regularizer says otherwise. The pieces: KL terms and entropy bonuses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from strop.algorithms.losses import importance_ratio
from strop.algorithms.tokens import Tokens, by_type, demanded
from strop.base.lazy import torch
from strop.base.metrics import Mean, Metrics
from strop.base.pieces import Piece, State, StatefulPiece
from strop.base.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor


class Regularizer(Piece):
    """A term of the loss; a stateful one is also a `StatefulPiece`, and is called with its present state."""

    modules: ClassVar[tuple[str, ...]] = ("strop.algorithms.regularizers",)

    @property
    def needs_reference(self) -> bool:
        """Whether `tokens.reference_logprob` is read."""
        return False

    @property
    def reference_top(self) -> int:
        """How many of the reference policy's most probable tokens `tokens.reference_top` and `top_logprob` hold."""
        return 0

    @property
    def needs_token_types(self) -> bool:
        """Whether `tokens.reasoning` is read."""
        return False

    def prepare(self, tokens: Tokens) -> Tokens:
        """Fill in what depends on all tokens of the update (called once, before any backward; after token types)."""
        return tokens

    def shares(self, tokens: Tokens) -> Tensor:
        """The factor of each token's term in the update's loss, [M]."""
        return tokens.weight

    @abstractmethod
    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, state: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        """The term of each token, [M], to be minimised, and metrics.

        Args:
            tokens: the M trained tokens with their aligned fields.
            logprob: float32 [M], the current policy's, with gradient.
            entropy: float32 [M], of the whole vocabulary, nats, with gradient.
            state: the piece's state at this step; empty for a piece without.
        """


class EntropyBonus(Regularizer):
    """−coefficient · H_t in the loss, H the entropy over the whole vocabulary (OPEFO's Entropy-Reg: 0.01)."""

    coefficient: float = 0.01

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, state: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        return -self.coefficient * entropy, {}


class AdaptiveEntropy(Regularizer, StatefulPiece):
    r"""Adaptive entropy control (Skywork-OR1, Section 3.2.5): a bonus switched on below a target entropy.

        loss term −α H_t,   α = c · 1[gate open]
        c ← c + delta where e < target, c − delta elsewhere, then clipped to [minimum, maximum]

    e is the mean of −log π over the sampled tokens of a step (metric `entropy/sampled`), H the entropy over the whole
    vocabulary. The defaults are the released code's: step k+1 uses the c and the gate that e_k left behind, the gate
    is open at e < target and at the start, and c stays in [0, 0.005]. The paper's Eq. 3.2 is `gate="own"` (α_k goes by
    e_k), `at_target="hold"` (open at e ≤ target, c unchanged at e = target), `delta` 0.005, without cap and floor
    (`minimum` and `maximum` None).

    State: `coefficient` (c), `active` (the gate), `entropy` (the last e).
    """

    start: float = 0.0
    target: Annotated[float, Field(ge=0)] = 0.2
    delta: Annotated[float, Field(gt=0)] = 1e-4
    minimum: float | None = 0.0
    maximum: float | None = 5e-3
    gate: Literal["previous", "own"] = "previous"
    at_target: Literal["shrink", "hold"] = "shrink"

    @model_validator(mode="after")
    def _start_within_bounds(self) -> AdaptiveEntropy:
        if self.start != self._bounded(self.start):
            raise ValueError(f"start={self.start} is outside minimum={self.minimum} … maximum={self.maximum}")
        return self

    def _bounded(self, coefficient: float) -> float:
        if self.minimum is not None:
            coefficient = max(coefficient, self.minimum)
        return coefficient if self.maximum is None else min(coefficient, self.maximum)

    def initial(self) -> State:
        """c at the start, gate open."""
        return {"coefficient": self.start, "active": True, "entropy": None}

    def update(self, state: State, statistics: Mapping[str, float | None]) -> State:
        """The state after a step with this `entropy/sampled`; unchanged after one without (the critic's warm-up)."""
        entropy = statistics.get("entropy/sampled")
        if entropy is None:
            return state
        if entropy == self.target and self.at_target == "hold":
            return {**state, "active": True, "entropy": entropy}
        below = entropy < self.target
        moved = state["coefficient"] + (self.delta if below else -self.delta)
        return {"coefficient": self._bounded(moved), "active": below, "entropy": entropy}

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, state: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        if self.gate == "previous":
            return -(state["coefficient"] if state["active"] else 0.0) * entropy, {}
        sampled = demanded(tokens.sampled_entropy, "sampled_entropy")
        below = sampled <= self.target if self.at_target == "hold" else sampled < self.target
        return -state["coefficient"] * below * entropy, {}


Estimator = Literal["k1", "k2", "k3"]
# exp(−d) overflows far beyond any sensible policy; infinity times a clamped gradient of 0 would be no number.
_LARGEST_EXPONENT = 20.0


def estimate(gap: Tensor, estimator: Estimator) -> Tensor:
    """The estimator of each token, [M], of gap = log π − log π_ref [M]; differentiable.

    k3 takes gaps below −20 for −20, without gradient: its value there, beyond 4e8, is nothing to learn from.
    """
    if estimator == "k1":
        return gap
    if estimator == "k2":
        return gap.square() / 2
    gap = gap.clamp(min=-_LARGEST_EXPONENT)
    return torch.expm1(-gap) + gap


class KlPenalty(Regularizer):
    """β · k(log π − log π_ref) in the loss, with a weight for each token type (Archer, Eq. 6 and 7).

    Fields:
        estimator: see the module; k3 is what GRPO and Archer use. k1 has a gradient of mean 0.
        beta: of every token, or of knowledge tokens where `beta_reasoning` is given. Archer: 0.001.
        beta_reasoning: of reasoning tokens; None: the same, and token types are not needed. Archer: 0.
        unbiased: the estimator of a token is multiplied by its ratio ρ, through which the gradient flows too: with k3
            the gradient is then that of the KL of the current policy, whichever policy sampled (DeepSeek-V3.2).
        clamp: the estimator is held within ±clamp, without gradient beyond; None: not.
        normalization: `all` divides by the same denominator as the policy loss (the paper's Eq. 7; the default);
            `type` by the number of tokens of each type in the update (Archer's code).
    """

    estimator: Estimator = "k3"
    beta: Annotated[float, Field(ge=0)] = 0.001
    beta_reasoning: Annotated[float, Field(ge=0)] | None = None
    unbiased: bool = False
    clamp: Annotated[float, Field(gt=0)] | None = 10.0
    normalization: Literal["all", "type"] = "all"

    @property
    def needs_reference(self) -> bool:
        """Always."""
        return True

    @property
    def needs_token_types(self) -> bool:
        """Where the types differ in weight or in denominator."""
        return self.beta_reasoning is not None or self.normalization == "type"

    def prepare(self, tokens: Tokens) -> Tokens:
        """`regularizer_weight`: one over the tokens of the type in the update, with `normalization="type"`."""
        if self.normalization == "all":
            return tokens
        reasoning = demanded(tokens.reasoning, "reasoning")
        counts = (mask.sum().double() for mask in (reasoning, ~reasoning))
        return replace(tokens, regularizer_weight=by_type(tokens, *(1 / count for count in counts)))

    def shares(self, tokens: Tokens) -> Tensor:
        """The token's share of the policy loss, or one over its type's tokens."""
        if self.normalization == "all":
            return tokens.weight
        return demanded(tokens.regularizer_weight, "regularizer_weight")

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, state: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        kl = estimate(logprob - demanded(tokens.reference_logprob, "reference_logprob"), self.estimator)
        if self.clamp is not None:
            kl = kl.clamp(-self.clamp, self.clamp)
        if self.unbiased:
            kl = importance_ratio(tokens, logprob) * kl
        if self.beta_reasoning is None:
            return self.beta * kl, _mean("kl/penalised", kl, torch.ones_like(kl, dtype=torch.bool))
        reasoning = demanded(tokens.reasoning, "reasoning")
        metrics = _mean("kl/reasoning", kl, reasoning) | _mean("kl/knowledge", kl, ~reasoning)
        return by_type(tokens, self.beta_reasoning, self.beta) * kl, metrics


def _mean(name: str, kl: Tensor, mask: Tensor) -> Metrics:
    return {name: Mean(torch.where(mask, kl.detach(), torch.zeros_like(kl)).double().sum(), mask.sum())}


class TopKl(Regularizer):
    r"""β · KL(π ‖ π_ref) over the reference's `top_k` most probable tokens and, as one event, all others.

        D = Σ_j p_j log(p_j / q_j) + p̄ log(p̄ / q̄),    p̄ = 1 − Σ_j p_j,   q̄ = 1 − Σ_j q_j

    With the whole vocabulary it is the full reverse KL at each state (GKD, OPSD); with less a lower bound of it (SDPO's
    K = 100 with a tail). Its gradient is exact, not that of a sampled token. It keeps [tokens, top_k] numbers.
    """

    beta: Annotated[float, Field(ge=0)] = 1.0
    top_k: Annotated[int, Field(ge=1)] = 64

    @property
    def needs_reference(self) -> bool:
        """Always."""
        return True

    @property
    def reference_top(self) -> int:
        """`top_k`."""
        return self.top_k

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, state: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        reference, own = demanded(tokens.reference_top, "reference_top"), demanded(tokens.top_logprob, "top_logprob")
        known = reference.isfinite()  # not of a token that the policy lacks, nor where the reference was not asked
        q, p = (torch.where(known, column.exp(), torch.zeros_like(column)) for column in (reference, own))
        gap = torch.where(known, own - reference, torch.zeros_like(own))
        rest, other = ((1 - column.sum(-1)).clamp(min=torch.finfo(column.dtype).eps) for column in (p, q))
        kl = (p * gap).sum(-1) + rest * (rest.log() - other.log())
        return self.beta * kl, _mean("kl/top", kl, torch.ones_like(kl, dtype=torch.bool))


class KlInReward(Piece):
    """−β · k(log π − log π_ref) added to the reward of each token (Open-Reasoner-Zero's ablation; PPO's classical way).

    It reaches the policy through the advantage, so that k1, whose mean is the KL, is right here, and the default.
    """

    beta: Annotated[float, Field(ge=0)] = 0.001
    estimator: Estimator = "k1"

    def __call__(self, logprob: FloatArray, reference: FloatArray) -> FloatArray:
        """float32 [T], to be added to the rewards of the T tokens; `logprob` is the sampling policy's, float32 [T]."""
        gap = torch.from_numpy(logprob).double() - torch.from_numpy(reference).double()
        penalty: FloatArray = (-self.beta * estimate(gap, self.estimator)).float().numpy()
        return penalty
