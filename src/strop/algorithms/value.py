"""Generalised advantage estimation: advantages and returns from a critic's values.

T tokens of a completion that were sampled (injected ones are no actions and are skipped).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strop.algorithms.advantages import Advantage, Outcomes, gae, normalize_tokens
from strop.algorithms.objective import UpdateContext
from strop.algorithms.tokens import Tokens, demanded
from strop.base.lazy import torch
from strop.base.metrics import ExplainedVariance, Mean, Metrics, Variance
from strop.base.pieces import Piece
from strop.base.types import FloatArray, StropError

if TYPE_CHECKING:
    from torch import Tensor


Rate = Annotated[float, Field(ge=0, le=1)]


class ValueAdvantage(Advantage):
    """An advantage that reads a critic's values and computes the critic's targets."""

    @property
    def needs_values(self) -> bool:
        """A critic's values are read."""
        return True

    @abstractmethod
    def returns(self, outcomes: Outcomes) -> list[FloatArray]:
        """The critic's targets: S arrays, float32 [T_s], aligned with the completion's tokens; never normalised."""


class Gae(ValueAdvantage):
    r"""Generalised advantage estimation, the reward at the last token (Open-Reasoner-Zero, Eq. 1 and 2).

        δ_t = r_t + γ V(s_{t+1}) − V(s_t),    A_t = Σ_l (γλ)^l δ_{t+l},    return_t = A_t + V(s_t)

    with V = 0 after the last token; r_t is the token's own reward (KL in the reward), the completion's at the last.
    At γ = λ = 1 and without rewards of tokens A_t = R − V(s_t) and every return is R.

    Fields:
        gamma: the discount.
        lam: λ; 1 trusts only rewards, less trusts the critic for distant tokens.
        normalization: `tokens` subtracts the mean and divides by the root of (biased variance + eps) over all sampled
            tokens of the groups that are trained on; `none` leaves the advantages as they are.
        eps: added to that variance.

    Example: values [.2, .5], reward 1, γ = λ = 1, no normalization → advantages [.8, .5], returns [1, 1].
    """

    gamma: Rate = 1.0
    lam: Rate = 1.0
    normalization: Literal["tokens", "none"] = "tokens"
    eps: Annotated[float, Field(ge=0)] = 1e-8

    def __call__(self, outcomes: Outcomes) -> list[FloatArray]:
        raw = [advantages for advantages, _ in self._estimates(outcomes)]
        if self.normalization == "tokens":
            survives = np.repeat(outcomes.survives, [len(part) for part in raw])
            normal = normalize_tokens(np.concatenate(raw), survives.astype(np.int64), self.eps)
            raw = np.split(normal, np.cumsum([len(part) for part in raw])[:-1])
        return [_spread(part, mask) for part, mask in zip(raw, _masks(outcomes), strict=True)]

    def returns(self, outcomes: Outcomes) -> list[FloatArray]:
        """return_t = A_t + V(s_t), A before normalization."""
        found = zip(self._estimates(outcomes), _masks(outcomes), strict=True)
        return [_spread(targets, mask) for (_, targets), mask in found]

    def _estimates(self, outcomes: Outcomes) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Advantages and returns of the sampled tokens of each completion, before normalization."""
        found: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        for index, (values, mask) in enumerate(zip(_values(outcomes), _masks(outcomes), strict=True)):
            rewards = np.zeros(int(mask.sum()))
            if outcomes.token_rewards is not None:
                rewards += outcomes.token_rewards[index][mask]
            if len(rewards):
                rewards[-1] += outcomes.rewards[index]
            found.append(gae(rewards, values[mask], self.gamma, self.lam))
        return found


def _values(outcomes: Outcomes) -> tuple[FloatArray, ...]:
    if outcomes.values is None:
        raise StropError("GAE reads a critic's values, and there are none")
    return outcomes.values


def _masks(outcomes: Outcomes) -> list[NDArray[np.bool_]]:
    if outcomes.trained is None:
        return [np.ones(length, dtype=np.bool_) for length in outcomes.lengths]
    return list(outcomes.trained)


def _spread(values: NDArray[np.float64], mask: NDArray[np.bool_]) -> FloatArray:
    """Values of the sampled tokens at their places among all, 0 where a token was injected."""
    column = np.zeros(len(mask), dtype=np.float32)
    column[mask] = values
    return column


class ValueLoss(Piece):
    """The loss of a critic: Σ_m weight[m] · scale · max((V − R)², (clip(V, V_old ± clip) − R)²).

    The defaults are Open-Reasoner-Zero's code; its paper's Eq. 3 is `clip = None`. V_old is `tokens.value`, the
    critic's before the batch's first update (not read where nothing is clipped), R is `tokens.value_target`.

    Metrics: `value/mean` of V, `value/target`, `value/error` the mean of (V − R)², `value/explained_variance`
    1 − Var(R − V) / Var(R), and `value/clipped_share`, of tokens whose gradient the clip took away.
    """

    clip: Annotated[float, Field(gt=0)] | None = 0.2
    scale: Annotated[float, Field(gt=0)] = 0.5

    @property
    def needs_scores(self) -> bool:
        """Nothing depends on the whole update."""
        return False

    def prepare(self, tokens: Tokens, context: UpdateContext) -> Tokens:
        """Nothing to fill in."""
        return tokens

    def __call__(self, tokens: Tokens, value: Tensor, zeros: Tensor, context: UpdateContext) -> tuple[Tensor, Metrics]:
        """The micro-batch's share of the loss (a scalar) and its metrics; `value` [M] with gradient."""
        target = demanded(tokens.value_target, "value_target")
        error = (value - target).square()
        loss, cut = error, torch.zeros_like(error, dtype=torch.bool)
        if self.clip is not None:
            old = demanded(tokens.value, "value")
            bounded = (old + (value - old).clamp(-self.clip, self.clip) - target).square()
            loss, cut = torch.maximum(error, bounded), bounded > error
        return (tokens.weight * self.scale * loss).sum(), _metrics(value.detach(), target, cut)


def _metrics(value: Tensor, target: Tensor, cut: Tensor) -> Metrics:
    count = len(value)
    if not count:
        return {}
    v, r = value.double(), target.double()
    return {
        "value/mean": Mean(v.sum(), count),
        "value/target": Mean(r.sum(), count),
        "value/error": Mean((v - r).square().sum(), count),
        "value/explained_variance": ExplainedVariance(_variance(r - v), _variance(r)),
        "value/clipped_share": Mean(cut.sum(), count),
    }


def _variance(x: Tensor) -> Variance:
    return Variance(len(x), x.sum(), x.square().sum())
