r"""KL to the reference policy: Schulman's estimators, as a term of the loss and as a penalty in the reward.

With d = log π − log π_ref of a token drawn from π:

    k1 = d,   k2 = d²/2,   k3 = exp(−d) − 1 + d

As numbers, k1 and k3 have the mean KL(π ‖ π_ref). As terms of a loss, what matters is their gradient, the token held
fixed: ∇k1 = ∇log π, whose mean is 0, so that k1 in the loss regularises nothing; ∇k2 = d ∇log π, whose mean is
∇KL(π ‖ π_ref); ∇k3 = (1 − π_ref/π) ∇log π, whose mean is ∇KL(π_ref ‖ π), the other direction. Shapes: M trained tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from strop.algorithms.regularizers import Regularizer
from strop.algorithms.tokens import Tokens, by_type, demanded
from strop.base.lazy import torch
from strop.base.metrics import Mean, Metrics
from strop.base.pieces import Piece
from strop.base.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor

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
        clamp: the estimator is held within ±clamp, without gradient beyond; None: not.
        normalization: `all` divides by the same denominator as the policy loss (the paper's Eq. 7; the default);
            `type` by the number of tokens of each type in the update (Archer's code).
    """

    estimator: Estimator = "k3"
    beta: Annotated[float, Field(ge=0)] = 0.001
    beta_reasoning: Annotated[float, Field(ge=0)] | None = None
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
        if self.beta_reasoning is None:
            return self.beta * kl, _mean("kl/penalised", kl, torch.ones_like(kl, dtype=torch.bool))
        reasoning = demanded(tokens.reasoning, "reasoning")
        metrics = _mean("kl/reasoning", kl, reasoning) | _mean("kl/knowledge", kl, ~reasoning)
        return by_type(tokens, self.beta_reasoning, self.beta) * kl, metrics


def _mean(name: str, kl: Tensor, mask: Tensor) -> Metrics:
    return {name: Mean(torch.where(mask, kl.detach(), torch.zeros_like(kl)).double().sum(), mask.sum())}


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
