"""Policy losses that treat tokens by their entropy, or by what they do to it.

`ArcherClip` and `LowEntropyMask` go by the token's type (`tokens.reasoning`, see `token_types`), `ClipCov` and `KlCov`
by the covariance of advantage and log-prob, `Opefo` by the entropy flow. Shapes: M trained tokens of a micro-batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from strop.algorithms.losses import (
    ClipLow,
    Clipped,
    DualClip,
    MaskedLoss,
    PolicyLoss,
    clipped_surrogate,
    importance_ratio,
    ratio_metrics,
    refuse_narrow_dual_clip,
    surrogate_clips,
)
from strop.algorithms.statistics import balance, entropy_flow, exact_entropy_flow, flow_sums, token_covariance
from strop.algorithms.tokens import Tokens, by_type, demanded
from strop.base.lazy import torch
from strop.base.metrics import Mean, Metrics, Ratio, Total

if TYPE_CHECKING:
    from torch import Tensor


class ArcherClip(PolicyLoss):
    r"""Archer's dual-token clip (Eq. 5 and 7): PPO-clip whose range is wider on reasoning tokens.

        loss = −min(ρ A, clip(ρ, 1 − ε, 1 + ε) A),   ε = clip_reasoning where e ≥ τ, clip_knowledge elsewhere

    ρ = exp(clamp(log π − log π_anchor, ±log_ratio_limit)). The clip is the paper's. `dual_clip` (the loss of a negative
    advantage is at most dual_clip · |A|) and `log_ratio_limit` are only in the released code and are on by default,
    as it ran; None takes either away. clip_knowledge = 0 is the ablation of Section 4.3.2.
    """

    zero_without_advantage = True

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


class LowEntropyMask(MaskedLoss):
    """Only reasoning tokens are trained: another loss, 0 on knowledge tokens. Archer's baseline.

    The knowledge tokens stay in the denominator, as in the objective of the paper that proposed it ("Beyond the 80/20
    rule"), which sorts tokens by a quantile over the batch: `EntropyQuantile(scope="batch")`.
    """

    @property
    def needs_token_types(self) -> bool:
        """Always: they choose what is trained."""
        return True

    def kept(self, tokens: Tokens, logprob: Tensor) -> Tensor:
        """The reasoning tokens."""
        return demanded(tokens.reasoning, "reasoning")

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        masked, metrics = super().__call__(tokens, logprob)
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


_WRAP = 1 << 64


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value %= _WRAP
    return value - _WRAP if value >> 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def mix(values: Tensor) -> Tensor:
    """One step of splitmix64 from each state, int64 in and out, [M]; products wrap as unsigned ones do."""
    z = values + _GAMMA
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def _shift(values: Tensor, bits: int) -> Tensor:
    """A right shift that fills with zeros: torch's own copies the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def token_hash(seed: int, sample: Tensor, position: Tensor) -> Tensor:
    """int64 [M], not negative: the number of each token for this seed; `sample` and `position` are int64 [M]."""
    start = torch.full_like(sample, _signed(seed))
    return _shift(mix(mix(mix(start) ^ sample) ^ position), 1)


_ROUNDING = 1e-5  # nats, of a log-prob computed in another micro-batch
Share = Annotated[float, Field(gt=0, le=1)]


class ClipCov(PolicyLoss):
    """PPO-clip, with the gradient of a few tokens of high covariance removed at random (Cui et al., Clip-Cov).

    Among the tokens that the ratio does not clip already and with low < cov_t < high, max(int(share · M), 1) are chosen
    uniformly (all of them where there are fewer). They have loss 0 and stay in the denominator. The choice goes by the
    smallest hash of (seed, sample, position). Defaults are those of the published script, whose ratio is clipped at 2
    only (a lower bound of 0 clips nothing).
    """

    zero_without_advantage = True

    share: Share = 2e-4
    low: float = 1.0
    high: float = 5.0
    clip_low: ClipLow = 1.0
    clip_high: Annotated[float, Field(gt=0)] = 1.0

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


class Opefo(PolicyLoss):
    r"""On-policy entropy flow optimisation (OPEFO, Eq. 7 to 9).

        loss_t = −w_t A_t log π_t,   w_t = 1 + λ where ΔH_t > 0,  1 − λ where ΔH_t < 0,  1 where ΔH_t = 0
        ΔH_t = −A_t (1 − p_t)² (log p_t + H_t)
        λ = λ* = (Σ_{S−} |ΔH| − Σ_{S+} ΔH) / (Σ_{S−} |ΔH| + Σ_{S+} ΔH), or 0 where every ΔH is 0

    No ratio: it is right only where the policy that samples is the policy that is updated. λ* is of all trained tokens
    of the update, from one pass without gradient before the first backward. The defaults are the paper's.

    Fields:
        balance: None for λ*, or a constant λ in (−1, 1) ("static scaling" of Table 2: 0.001; 0 is the plain gradient).
        sides: the tokens that λ reweights: both, or one of S+ (`increasing`) and S− (`decreasing`) (Table 2).
        power: of (1 − p_t); 2 in the paper, 1 in the related code of STEER.
        exact: ΔH_t is the exact first-order change under the tabular softmax instead (`statistics.exact_entropy_flow`);
            `power` then has no part in it.
    """

    zero_without_advantage = True

    balance: Annotated[float, Field(gt=-1, lt=1)] | None = None
    sides: Literal["both", "increasing", "decreasing"] = "both"
    power: Literal[1, 2] = 2
    exact: bool = False

    @property
    def needs_scores(self) -> bool:
        """Always: the signs and sums of ΔH are of the policy before the update."""
        return True

    @property
    def needs_collision(self) -> bool:
        """In exact mode."""
        return self.exact

    @property
    def strictly_on_policy(self) -> bool:
        """Always."""
        return True

    def flow(self, tokens: Tokens) -> Tensor:
        """ΔH_t under the scored policy, float64 [M]."""
        logprob = demanded(tokens.scored_logprob, "scored_logprob")
        entropy = demanded(tokens.scored_entropy, "scored_entropy")
        if not self.exact:
            return entropy_flow(tokens.advantage, logprob, entropy, self.power)
        collision = demanded(tokens.scored_collision, "scored_collision")
        return exact_entropy_flow(tokens.advantage, logprob, entropy, collision)

    def prepare(self, tokens: Tokens, seed: int) -> Tokens:
        """`plan`: the weight w_t of each token."""
        flow = self.flow(tokens)
        strength = balance(*flow_sums(flow)) if self.balance is None else torch.full_like(flow[:1].sum(), self.balance)
        up = 1 + strength if self.sides != "decreasing" else torch.ones_like(strength)
        down = 1 - strength if self.sides != "increasing" else torch.ones_like(strength)
        weight = torch.where(flow > 0, up, torch.where(flow < 0, down, torch.ones_like(strength)))
        return replace(tokens, plan=weight.to(tokens.weight.dtype))

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        loss = -demanded(tokens.plan, "plan") * tokens.advantage * logprob
        ratio = importance_ratio(tokens, logprob)
        return loss, ratio_metrics(ratio, Clipped.none(ratio)) | self._metrics(tokens)

    def _metrics(self, tokens: Tokens) -> Metrics:
        """The sums of ΔH over S+ and S− as this piece computes it, and the λ that was applied."""
        if not len(tokens):
            return {}
        positive, negative = flow_sums(self.flow(tokens))
        applied = Ratio(-(positive + negative), positive - negative, otherwise=0.0)
        return {
            "opefo/positive": Total(positive),
            "opefo/negative": Total(negative),
            "opefo/lambda": applied if self.balance is None else Mean(self.balance * len(tokens), len(tokens)),
        }
