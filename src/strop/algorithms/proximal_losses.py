"""Policy losses that keep the policy near the one that sampled by other means than PPO's clip of each token's ratio.

`Sapo` fades the gradient, `Dppo` goes by the distance of probabilities, `Gmpo` and `Vespo` by whole sequences, and
`OffPolicySequenceMask` leaves out sequences. Shapes: M trained tokens of a micro-batch; μ is the anchor, ρ = π/μ.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from strop.algorithms.losses import (
    LOG_RATIO_LIMIT,
    Clipped,
    MaskedLoss,
    PolicyLoss,
    Positive,
    Ratio,
    importance_ratio,
    ratio_metrics,
)
from strop.algorithms.tokens import Tokens, scalar, sequence_mean, sequence_sum
from strop.base.lazy import torch
from strop.base.metrics import Metrics

if TYPE_CHECKING:
    from torch import Tensor


def _by_sign(advantage: Tensor, positive: Tensor, raised: float, lowered: float) -> Tensor:
    """`raised` where `positive` (bool [M]), `lowered` elsewhere, [M] in the type of `advantage`."""
    return torch.where(positive, scalar(raised, advantage), scalar(lowered, advantage))


class Sapo(PolicyLoss):
    r"""Soft adaptive policy optimisation (arXiv 2511.20347): a sigmoid gate in place of the clip.

        loss = −(4 / τ) · σ(τ (ρ − 1)) · A,   τ = temperature_positive where A > 0, temperature_negative elsewhere

    At ρ = 1 the gradient is that of −ρ A; it fades as ρ leaves 1, faster where A ≤ 0. Defaults are TRL's.
    """

    zero_without_advantage = True

    temperature_positive: Positive = 1.0
    temperature_negative: Positive = 1.05

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        ratio, advantage = importance_ratio(tokens, logprob), tokens.advantage
        temperature = _by_sign(advantage, advantage > 0, self.temperature_positive, self.temperature_negative)
        gate = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature
        return -gate * advantage, ratio_metrics(ratio, Clipped.none(ratio))


def _pair_kl(one: Tensor, other: Tensor) -> Tensor:
    """KL(p ‖ q) of the pair (token, all others), [M]; `one` and `other` are log p and log q of the token."""
    rest = -torch.expm1(one)
    return one.exp() * (one - other) + torch.special.xlogy(rest, rest / (-torch.expm1(other)).clamp(min=1e-8))


class Dppo(PolicyLoss):
    r"""Divergence proximal policy optimisation (arXiv 2602.04879): a trust region of probabilities, not of ratios.

        loss = −sg(min(ρ, max_ratio)) · A · log π   where the divergence is within its bound, 0 elsewhere

    Fields:
        divergence: `tv`, |π − μ| of the sampled token; `kl`, KL(μ ‖ π) of the pair (sampled token, all others);
            `two_way_kl`, the larger of that and KL(π ‖ μ) (KPop, a note of Ant Group of May 2026).
        low, high: the bounds where π has fallen below μ and where it has risen above.
        sides: `advantage`: only a token that has moved the way its advantage rewards is dropped; `both`: any token
            beyond a bound, whatever its advantage (prime-rl's IPO form with bounds 0.3, KPop with 0.1, both without
            `max_ratio`).
        max_ratio: the largest weight of a token; None: no bound.

    Defaults of the bounds are verl's.
    """

    zero_without_advantage = True

    divergence: Literal["tv", "kl", "two_way_kl"] = "tv"
    low: Positive = 0.2
    high: Positive = 0.2
    sides: Literal["advantage", "both"] = "advantage"
    max_ratio: Ratio | None = 20.0

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """The dropped tokens."""
        logprob = logprob.detach()
        anchored = tokens.anchor_logprob
        current, anchor = logprob.exp(), anchored.exp()
        distance = (current - anchor).abs() if self.divergence == "tv" else _pair_kl(anchored, logprob)
        if self.divergence == "two_way_kl":
            distance = torch.maximum(distance, _pair_kl(logprob, anchored))
        low = (current < anchor) & (distance > self.low)
        high = (current > anchor) & (distance > self.high)
        if self.sides == "advantage":
            low, high = low & (tokens.advantage < 0), high & (tokens.advantage > 0)
        return Clipped(low, high, torch.zeros_like(low))

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        ratio = importance_ratio(tokens, logprob)
        dropped = self.clipped(tokens, logprob)
        loss = -ratio.detach().clamp(max=self.max_ratio or math.inf) * tokens.advantage * logprob
        return torch.where(dropped.any, torch.zeros_like(loss), loss), ratio_metrics(ratio, dropped)


class Gmpo(PolicyLoss):
    r"""Geometric-mean policy optimisation (arXiv 2507.20673): the geometric mean of clipped token ratios.

        s = exp( (1/|o|) Σ_t c_t ),   c_t = min(log ρ_t, high) where A > 0,  max(log ρ_t, −low) where A < 0
        loss_t = −A_t · sg(s) · exp(c_t − sg(c_t))

    Every token has the value of its sequence's loss −s A, and clipped tokens no gradient. Averaged over the tokens of
    a sequence (`SampleMean`) the gradient is that of −s A. The defaults are the paper's: ratios in (e^−0.4, e^0.4).
    """

    zero_without_advantage = True

    low: Positive = 0.4
    high: Positive = 0.4

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """Tokens beyond the bounds in the direction that their advantage rewards."""
        gap = logprob.detach() - tokens.anchor_logprob
        low, high = (tokens.advantage < 0) & (gap < -self.low), (tokens.advantage > 0) & (gap > self.high)
        return Clipped(low, high, torch.zeros_like(low))

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        gap, cut = logprob - tokens.anchor_logprob, self.clipped(tokens, logprob)
        held = torch.where(cut.low, scalar(-self.low, gap), torch.where(cut.high, scalar(self.high, gap), gap))
        whole = torch.exp(sequence_mean(held.detach(), tokens.sequence))
        loss = -tokens.advantage * whole * torch.exp(held - held.detach())
        return loss, ratio_metrics(importance_ratio(tokens, logprob), cut)


class Vespo(PolicyLoss):
    r"""Variational sequence-level soft policy optimisation (arXiv 2602.10693): REINFORCE under a soft weight.

        loss_t = −sg(φ(W)) · A_t · log π_t,   φ(W) = W^k · exp(λ (1 − W)),   W = Π_t ρ_t over the sequence

    φ(1) = 1; it vanishes towards W = 0 and W = ∞. k and λ are those of A ≥ 0 or of A < 0 (Eq. 20, c₁ and c₂; the
    defaults are those of Section 4.1). log W is held within [log 1e-8, 20], as published code does; it is not
    normalised by length.
    """

    zero_without_advantage = True

    power_positive: Positive = 2.0
    decay_positive: Positive = 3.0
    power_negative: Positive = 3.0
    decay_negative: Positive = 2.0

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        advantage = tokens.advantage
        gap = (logprob.detach() - tokens.anchor_logprob).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        whole = sequence_sum(gap, tokens.sequence).clamp(math.log(1e-8), LOG_RATIO_LIMIT)
        power = _by_sign(advantage, advantage >= 0, self.power_positive, self.power_negative)
        decay = _by_sign(advantage, advantage >= 0, self.decay_positive, self.decay_negative)
        weight = torch.exp(power * whole - decay * torch.expm1(whole))
        return -weight * advantage * logprob, ratio_metrics(whole.exp(), Clipped.none(whole))


class OffPolicySequenceMask(MaskedLoss):
    r"""Another loss, 0 on what the policy has already left behind (DeepSeek-V3.2, arXiv 2512.02556).

        A token of negative advantage is dropped where (1/|o|) Σ_t (log π_gen,t − log π_t) > threshold.

    The mean is over the trained tokens of the token's sequence, against the generator's log-probs: it counts the lag
    of the weights and the mismatch of the engines.
    """

    threshold: Annotated[float, Field(ge=0)]

    def kept(self, tokens: Tokens, logprob: Tensor) -> Tensor:
        """Tokens of sequences that are near enough, and all whose advantage is not negative."""
        drift = sequence_mean(tokens.generator_logprob - logprob, tokens.sequence)
        return (tokens.advantage >= 0) | (drift <= self.threshold)
