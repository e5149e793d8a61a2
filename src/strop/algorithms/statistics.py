r"""Statistics of trained tokens: entropy flow, covariances, advantages, KL to the reference. Shapes: M trained tokens.

Entropy flow is how much a step of the policy gradient on one token changes the entropy of the distribution that the
token was drawn from, to first order, the learning rate left out (it cancels wherever flows are compared).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from strop.algorithms.losses import Clipped
from strop.algorithms.regularizers import estimate
from strop.algorithms.tokens import Tokens
from strop.base.lazy import torch
from strop.base.metrics import Covariance, Deviation, Maximum, Mean, Metrics, Minimum, Ratio, Total

if TYPE_CHECKING:
    from torch import Tensor


def entropy_flow(advantage: Tensor, logprob: Tensor, entropy: Tensor, power: Literal[1, 2] = 2) -> Tensor:
    """ΔH_t = −A_t (1 − p_t)^power (log p_t + H_t), float64 [M]: the sampled token's term of OPEFO's Eq. 6.

    The paper's power is 2; the code of STEER, which it builds on, has 1. Without gradient.
    """
    logprob, entropy = logprob.detach().double(), entropy.detach().double()
    others = -torch.expm1(logprob.clamp(max=0.0))
    return -advantage.double() * others**power * (logprob + entropy)


def exact_entropy_flow(advantage: Tensor, logprob: Tensor, entropy: Tensor, collision: Tensor) -> Tensor:
    """ΔH_t = −A_t (p_t (log p_t + H_t) − C_t), C_t = Σ_j p_j² (log p_j + H_t), float64 [M].

    Under the tabular softmax (Assumption 1) the update on token a moves the logits by A (1[j = a] − p_j), and
    ∂H/∂z_j = −p_j (log p_j + H); ΔH is the product. Eq. 6 drops the movement of all logits but the sampled one, and
    weighs a token by (1 − p)² in place of p: its expectation over samples is not this one's.
    """
    logprob, entropy = logprob.detach().double(), entropy.detach().double()
    return -advantage.double() * (logprob.exp() * (logprob + entropy) - collision.detach().double())


def flow_sums(flow: Tensor) -> tuple[Tensor, Tensor]:
    """(Σ_{S+} ΔH, Σ_{S−} ΔH) of a flow [M], the second one not positive."""
    return flow.clamp(min=0).sum(), flow.clamp(max=0).sum()


def balance(positive: Tensor, negative: Tensor) -> Tensor:
    """λ* = (Σ_{S−} |ΔH| − Σ_{S+} ΔH) / (Σ_{S−} |ΔH| + Σ_{S+} ΔH) (OPEFO, Eq. 9); 0 where nothing flows."""
    total = positive - negative
    return torch.where(total > 0, -(positive + negative) / torch.where(total > 0, total, 1.0), 0.0)


def token_covariance(advantage: Tensor, logprob: Tensor) -> Tensor:
    """(A_t − mean A)(log p_t − mean log p), float64 [M], the means over these M tokens; without gradient."""
    advantage, logprob = advantage.double(), logprob.detach().double()
    return (advantage - advantage.mean()) * (logprob - logprob.mean())


def token_statistics(tokens: Tokens, logprob: Tensor, entropy: Tensor, clipped: Clipped) -> Metrics:
    """Statistics of the trained tokens that every run reports, as sums that merge over micro-batches.

      - `entropy_flow/positive`, `/negative`: sums of ΔH (Eq. 6, current policy, power 2) over S+ and S−;
        `entropy_flow/net`: their sum (OPEFO, Figure 2b);
        `entropy_flow/lambda`: the λ* they come to, also where the loss does not use it.
      - `entropy_flow/clipped_high`, `/clipped_low`: sums of ΔH over the tokens that the loss clips at the upper and at
        the lower bound of the ratio (OPEFO, Figure 2c).
      - `advantage/mean`, `/std`, `/min`, `/max`, `/positive_share`; `covariance`: of A and log π.
      - `kl/reference`, `kl/reference_k1`: mean k3 and k1 to the reference policy, where there is one.
    """
    if not len(logprob):
        return {}
    count = len(logprob)
    flow = entropy_flow(tokens.advantage, logprob, entropy)
    positive, negative = flow_sums(flow)
    advantage, current = tokens.advantage.double(), logprob.detach().double()
    total, zero = advantage.sum(), torch.zeros_like(flow)
    metrics: Metrics = {
        "entropy_flow/positive": Total(positive),
        "entropy_flow/negative": Total(negative),
        "entropy_flow/net": Total(positive + negative),
        "entropy_flow/lambda": Ratio(-(positive + negative), positive - negative, otherwise=0.0),
        "entropy_flow/clipped_high": Total(torch.where(clipped.high, flow, zero).sum()),
        "entropy_flow/clipped_low": Total(torch.where(clipped.low, flow, zero).sum()),
        "advantage/mean": Mean(total, count),
        "advantage/std": Deviation(total, advantage.square().sum(), count),
        "advantage/min": Minimum(advantage.min()),
        "advantage/max": Maximum(advantage.max()),
        "advantage/positive_share": Mean((advantage > 0).sum(), count),
        "covariance": Covariance(total, current.sum(), (advantage * current).sum(), count),
    }
    if tokens.reference_logprob is not None:
        gap = current - tokens.reference_logprob.double()
        metrics["kl/reference"] = Mean(estimate(gap, "k3").sum(), count)
        metrics["kl/reference_k1"] = Mean(gap.sum(), count)
    return metrics
