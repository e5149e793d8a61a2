"""The objective of a policy update: policy loss and regularizers, weighted and summed, with every run's diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from strop.algorithms.losses import PolicyLoss
from strop.algorithms.regularizers import Regularizer
from strop.algorithms.statistics import token_statistics
from strop.algorithms.token_types import TokenTypes
from strop.algorithms.tokens import Tokens
from strop.base.lazy import torch
from strop.base.metrics import Maximum, Mean, Metrics
from strop.base.types import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class UpdateContext:
    """The inputs of an update other than its tokens.

    Attributes:
        seed: of the update's random choices.
        states: the present state of every stateful piece, by its path in the configuration.
        sampled_entropy: mean −log π_gen over the trained tokens of the whole step; None where nothing reads it.
    """

    seed: int = 0
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sampled_entropy: float | None = None


@dataclass(frozen=True)
class Objective:
    """The objective of a `Trainer`: Σ_m weight[m] · correction[m] · loss[m] + Σ_r share_r[m] · term_r[m].

    Attributes:
        loss: the policy loss.
        regularizers: by path, under which their states are found (`algorithm.regularizers.0`).
        token_types: sorts tokens, where a piece reads `tokens.reasoning`.
    """

    loss: PolicyLoss
    regularizers: Mapping[str, Regularizer] = field(default_factory=dict)
    token_types: TokenTypes | None = None

    @property
    def needs_scores(self) -> bool:
        """Whether a no-gradient pass over the whole update must come first."""
        return self.loss.needs_scores or (self.token_types is not None and self.token_types.needs_scores)

    @property
    def needs_collision(self) -> bool:
        """Whether that pass must also fill `scored_collision`."""
        return self.loss.needs_collision

    def vanishes(self, tokens: Tokens) -> bool:
        """Whether these tokens have neither loss nor gradient, whatever the policy: all advantages (or corrections)
        are 0, and no regularizer acts on them."""
        if self.regularizers or not self.loss.zero_without_advantage:
            return False
        factor = tokens.advantage if tokens.correction is None else tokens.advantage * tokens.correction
        return not factor.any()

    def prepare(self, tokens: Tokens, context: UpdateContext) -> Tokens:
        """Fill in what depends on all tokens of the update."""
        if self.token_types is not None:
            tokens = replace(tokens, reasoning=self.token_types(tokens))
        if context.sampled_entropy is not None:
            tokens = replace(tokens, sampled_entropy=torch.full_like(tokens.weight, context.sampled_entropy))
        for regularizer in self.regularizers.values():
            tokens = regularizer.prepare(tokens)
        return self.loss.prepare(tokens, context.seed)

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, context: UpdateContext
    ) -> tuple[Tensor, Metrics]:
        """The micro-batch's share of the loss (a scalar) and its metrics."""
        found = self.loss(tokens, logprob)
        if not (isinstance(found, tuple) and len(found) == 2 and found[0].shape == logprob.shape):
            raise InputError(
                f"algorithm.loss={self.loss.piece_name()} must return the loss of each of {len(logprob)} tokens and a "
                "dictionary of metrics"
            )
        per_token, metrics = found
        if tokens.correction is not None:
            per_token = tokens.correction * per_token
        total = (tokens.weight * per_token).sum()
        for path, regularizer in self.regularizers.items():
            term, more = regularizer(tokens, logprob, entropy, context.states.get(path, {}))
            total = total + (regularizer.shares(tokens) * term).sum()
            metrics = metrics | more
        clipped = self.loss.clipped(tokens, logprob.detach())
        return total, metrics | mismatch_metrics(tokens, logprob) | token_statistics(tokens, logprob, entropy, clipped)


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
