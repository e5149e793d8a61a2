"""Clip-Cov and KL-Cov: entropy is kept by holding back the few tokens of high covariance of advantage and log-prob.

Both take cov_t = (A_t − mean A)(log p_t − mean log p) over the trained tokens of the whole update, with log-probs
scored just before it. Shapes: M trained tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from strop.algorithms.hashing import token_hash
from strop.algorithms.losses import (
    ClipLow,
    Clipped,
    PolicyLoss,
    Ratio,
    clipped_surrogate,
    importance_ratio,
    ratio_metrics,
    surrogate_clips,
)
from strop.algorithms.statistics import token_covariance
from strop.algorithms.tokens import Tokens, demanded
from strop.base.lazy import torch
from strop.base.metrics import Mean, Metrics

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDING = 1e-5  # nats, of a log-prob computed in another micro-batch
Share = Annotated[float, Field(gt=0, le=1)]


class ClipCov(PolicyLoss):
    """PPO-clip, with the gradient of a few tokens of high covariance removed at random (Cui et al., Clip-Cov).

    Among the tokens that the ratio does not clip already and with low < cov_t < high, max(int(share · M), 1) are chosen
    uniformly (all of them where there are fewer). They have loss 0 and stay in the denominator. The choice goes by the
    smallest hash of (seed, sample, position). Defaults are those of the published script, whose ratio is clipped at 2
    only (a lower bound of 0 clips nothing).
    """

    share: Share = 2e-4
    low: float = 1.0
    high: float = 5.0
    clip_low: ClipLow = 1.0
    clip_high: Ratio = 1.0

    @model_validator(mode="after")
    def _bounds_in_order(self) -> ClipCov:
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        return self

    @property
    def needs_scores(self) -> bool:
        """Always: the covariance is over the whole update."""
        return True

    def prepare(self, tokens: Tokens, seed: int) -> Tokens:
        """`plan`: 0 for the chosen tokens, 1 for all others."""
        logprob = demanded(tokens.scored_logprob, "scored_logprob")
        covariance = token_covariance(tokens.advantage, logprob)
        free = ~self._surrogate_clips(tokens, logprob).any
        candidates = torch.nonzero(free & (covariance > self.low) & (covariance < self.high)).flatten()
        chosen = candidates[_by_hash(tokens, candidates, seed)][: _count(self.share, len(tokens))]
        keep = torch.ones_like(tokens.weight)
        keep[chosen] = 0
        return replace(tokens, plan=keep)

    def _surrogate_clips(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        ratio = importance_ratio(tokens, logprob.detach())
        return surrogate_clips(ratio, tokens.advantage, self.clip_low, self.clip_high, None)

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """Tokens beyond the bounds of the ratio; those removed for their covariance are `other`."""
        inner = self._surrogate_clips(tokens, logprob)
        removed = demanded(tokens.plan, "plan") == 0
        return Clipped(inner.low & ~removed, inner.high & ~removed, removed)

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        ratio = importance_ratio(tokens, logprob)
        loss = clipped_surrogate(ratio, tokens.advantage, self.clip_low, self.clip_high, None)
        cut = self.clipped(tokens, logprob)
        kept = torch.where(cut.other, torch.zeros_like(loss), loss)
        return kept, ratio_metrics(ratio, cut) | _chosen(cut.other)


class KlCov(PolicyLoss):
    """A KL penalty on the few tokens of highest covariance, and no clipping on any (Cui et al., KL-Cov).

        loss_t = −A_t ρ_t + coefficient · |log π_t − log π_anchor,t|   for the top max(int(share · M), 1) tokens
        loss_t = −A_t ρ_t                                               for all others

    "Top" is by cov_t; equal covariances are put in order by the hash of (seed, sample, position). share is 0.002 for
    7B models, 0.0002 for 32B. The slope of |x| at 0 is 0, as torch has it, and |x| ≤ 1e-5 counts as 0: in a batch's
    first update all of it is rounding, and the sign of rounding depends on the split into micro-batches.
    """

    share: Share = 0.002
    coefficient: Annotated[float, Field(ge=0)] = 1.0

    @property
    def needs_scores(self) -> bool:
        """Always: the covariance is over the whole update."""
        return True

    def prepare(self, tokens: Tokens, seed: int) -> Tokens:
        """`plan`: 1 for the penalised tokens, 0 for all others."""
        covariance = token_covariance(tokens.advantage, demanded(tokens.scored_logprob, "scored_logprob"))
        order = _by_hash(tokens, torch.arange(len(tokens), device=covariance.device), seed)
        order = order[torch.argsort(covariance[order], descending=True, stable=True)]
        penalised = torch.zeros_like(tokens.weight)
        penalised[order[: _count(self.share, len(tokens))]] = 1
        return replace(tokens, plan=penalised)

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        ratio = importance_ratio(tokens, logprob)
        penalised = demanded(tokens.plan, "plan")
        gap = (logprob - tokens.anchor_logprob).abs()
        penalty = self.coefficient * torch.where(gap > _ROUNDING, gap, gap.detach())
        loss = -tokens.advantage * ratio + penalised * penalty
        return loss, ratio_metrics(ratio, Clipped.none(ratio)) | _chosen(penalised > 0)


def _count(share: float, tokens: int) -> int:
    return max(int(share * tokens), 1)


def _by_hash(tokens: Tokens, rows: Tensor, seed: int) -> Tensor:
    """The order of `rows` (indices into the tokens) by the hash of their tokens."""
    return torch.argsort(token_hash(seed, tokens.sample[rows], tokens.position[rows]), stable=True)


def _chosen(mask: Tensor) -> Metrics:
    return {"covariance/chosen_share": Mean(mask.sum(), len(mask))} if len(mask) else {}
