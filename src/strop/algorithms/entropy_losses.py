"""Policy losses that treat reasoning tokens (high entropy) and knowledge tokens (low entropy) apart.

Shapes: M trained tokens of a micro-batch. The types are `tokens.reasoning`, see `token_types`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, SerializeAsAny, model_validator

from strop.algorithms.losses import (
    Clipped,
    DualClip,
    PolicyLoss,
    PpoClip,
    clipped_surrogate,
    ratio_metrics,
    refuse_narrow_dual_clip,
    surrogate_clips,
)
from strop.algorithms.tokens import Tokens, by_type, demanded
from strop.base.lazy import torch
from strop.base.metrics import Mean, Metrics

if TYPE_CHECKING:
    from torch import Tensor


class ArcherClip(PolicyLoss):
    r"""Archer's dual-token clip (Eq. 5 and 7): PPO-clip whose range is wider on reasoning tokens.

        loss = −min(ρ A, clip(ρ, 1 − ε, 1 + ε) A),   ε = clip_reasoning where e ≥ τ, clip_knowledge elsewhere

    ρ = exp(clamp(log π − log π_anchor, ±log_ratio_limit)). The clip is the paper's. `dual_clip` (the loss of a negative
    advantage is at most dual_clip · |A|) and `log_ratio_limit` are in the released code alone and are on by default,
    as it ran; None takes either away. clip_knowledge = 0 is the ablation of Section 4.3.2.
    """

    clip_knowledge: Annotated[float, Field(ge=0, le=1)] = 0.2
    clip_reasoning: Annotated[float, Field(ge=0, le=1)] = 0.5
    dual_clip: DualClip | None = 10.0
    log_ratio_limit: Annotated[float, Field(gt=0)] | None = 20.0

    @model_validator(mode="after")
    def _dual_clip_lies_beyond(self) -> ArcherClip:
        refuse_narrow_dual_clip(self.dual_clip, max(self.clip_knowledge, self.clip_reasoning))
        return self

    @property
    def needs_token_types(self) -> bool:
        """Always: they choose the range."""
        return True

    def _ratio(self, tokens: Tokens, logprob: Tensor) -> Tensor:
        gap = logprob - tokens.anchor_logprob
        if self.log_ratio_limit is not None:
            gap = gap.clamp(-self.log_ratio_limit, self.log_ratio_limit)
        return torch.exp(gap)

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """Tokens beyond the bounds of their type in the direction that their advantage rewards."""
        ratio = self._ratio(tokens, logprob.detach())
        clip = by_type(tokens, self.clip_reasoning, self.clip_knowledge)
        return surrogate_clips(ratio, tokens.advantage, clip, clip, self.dual_clip)

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        ratio = self._ratio(tokens, logprob)
        clip = by_type(tokens, self.clip_reasoning, self.clip_knowledge)
        loss = clipped_surrogate(ratio, tokens.advantage, clip, clip, self.dual_clip)
        cut = self.clipped(tokens, logprob)
        return loss, ratio_metrics(ratio, cut) | _type_metrics(tokens, cut)


class LowEntropyMask(PolicyLoss):
    """Only reasoning tokens are trained: another loss, 0 on knowledge tokens. What Archer argues against.

    The knowledge tokens stay in the denominator, as in the objective of the paper that proposed it ("Beyond the 80/20
    rule"), which sorts tokens by a quantile over the batch: `EntropyQuantile(scope="batch")`.
    """

    loss: SerializeAsAny[PolicyLoss] = PpoClip()

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
        """Always: they choose what is trained."""
        return True

    @property
    def strictly_on_policy(self) -> bool:
        """The scores that the inner loss asks for."""
        return self.loss.strictly_on_policy

    def prepare(self, tokens: Tokens, seed: int) -> Tokens:
        """The inner loss's own preparation."""
        return self.loss.prepare(tokens, seed)

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """The clipping of the inner loss among reasoning tokens; every knowledge token is `other`."""
        reasoning = demanded(tokens.reasoning, "reasoning")
        inner = self.loss.clipped(tokens, logprob)
        return Clipped(inner.low & reasoning, inner.high & reasoning, inner.other | ~reasoning)

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        loss, metrics = self.loss(tokens, logprob)
        reasoning = demanded(tokens.reasoning, "reasoning")
        masked = torch.where(reasoning, loss, torch.zeros_like(loss))
        return masked, metrics | _type_metrics(tokens, self.clipped(tokens, logprob))


def _type_metrics(tokens: Tokens, clipped: Clipped) -> Metrics:
    """The share of reasoning tokens, and of each type the share without gradient."""
    reasoning = demanded(tokens.reasoning, "reasoning")
    if not len(reasoning):
        return {}
    return {
        "token_types/reasoning_share": Mean(reasoning.sum(), len(reasoning)),
        "token_types/clipped_reasoning": Mean((clipped.any & reasoning).sum(), reasoning.sum()),
        "token_types/clipped_knowledge": Mean((clipped.any & ~reasoning).sum(), (~reasoning).sum()),
    }
