"""The loss of a critic. M trained tokens of a micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from strop.algorithms.objective import UpdateContext
from strop.algorithms.tokens import Tokens, demanded
from strop.base.lazy import torch
from strop.base.metrics import ExplainedVariance, Mean, Metrics, Variance
from strop.base.pieces import Piece

if TYPE_CHECKING:
    from torch import Tensor


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
