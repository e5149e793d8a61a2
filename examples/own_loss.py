"""A policy loss of one's own: REINFORCE with a smooth bound on the importance ratio."""

import torch

import strop
from strop.algorithms.losses import PolicyLoss, importance_ratio
from strop.algorithms.tokens import Tokens
from strop.base.metrics import Mean, Metrics


class SmoothBound(PolicyLoss):
    """loss = −sg(ρ / (1 + ρ / bound)) · A · log π: the weight of a token approaches `bound` and never exceeds it."""

    bound: float = 4.0

    def __call__(self, tokens: Tokens, logprob: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        ratio = importance_ratio(tokens, logprob).detach()
        weight = ratio / (1 + ratio / self.bound)
        return -weight * tokens.advantage * logprob, {"weight/mean": Mean(weight.sum(), len(weight))}


run = strop.train("embedded", recipe="quickstart", loss=SmoothBound(bound=3.0))
print(run, run.metrics["weight/mean"].to_pylist()[-1])
