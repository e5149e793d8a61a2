"""The objective of a policy update: the policy loss, weighted and summed, with the diagnostics every run records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.algorithms.losses import PolicyLoss
from strop.algorithms.tokens import Tokens
from strop.metrics import Maximum, Mean, Metrics


@dataclass(frozen=True)
class Objective:
    """What a `Trainer` minimises: Σ_m weight[m] · loss[m]."""

    loss: PolicyLoss

    @property
    def needs_scores(self) -> bool:
        """Whether a no-gradient pass over the whole update must come first."""
        return self.loss.needs_scores

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy's log-probs are read."""
        return False

    def prepare(self, tokens: Tokens) -> Tokens:
        """Fill in what depends on all tokens of the update."""
        return self.loss.prepare(tokens)

    def __call__(self, tokens: Tokens, logprob: Tensor, entropy: Tensor) -> tuple[Tensor, Metrics]:
        """The micro-batch's share of the loss (a scalar) and its metrics."""
        per_token, metrics = self.loss(tokens, logprob)
        return (tokens.weight * per_token).sum(), metrics | mismatch_metrics(tokens, logprob)


def mismatch_metrics(tokens: Tokens, logprob: Tensor) -> Metrics:
    """How far the trainer's log-probs lie from the generator's, in nats.

    `mismatch/k3` is Schulman's estimator of KL(gen ‖ train): exp(d) − 1 − d with d = log π − log π_gen.
    Where nothing was updated in between (strict on-policy) it is numerical noise; otherwise it holds the lag too.
    """
    if not len(logprob):
        return {}
    gap = (logprob.detach() - tokens.generator_logprob).double()
    return {
        "mismatch/mean": Mean(gap.abs().sum(), len(gap)),
        "mismatch/max": Maximum(gap.abs().max()),
        "mismatch/k3": Mean((torch.expm1(gap) - gap).sum(), len(gap)),
        "entropy/sampled": Mean(-tokens.generator_logprob.double().sum(), len(gap)),
    }
