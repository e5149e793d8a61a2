"""Scores of samples by a module, without gradient: the policy's log-probs and entropies, a critic's values.

    logprobs, entropies = score_samples(policy, samples, temperature=1.0, tokens_per_microbatch=16_384)

L tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from strop.algorithms.aggregation import TokenMean
from strop.base.sample import Sample
from strop.base.types import FloatArray
from strop.training.packing import Update, pack
from strop.training.ranks import ALONE, Ranks
from strop.training.step import score


def score_samples(
    module: nn.Module,
    samples: Sequence[Sample],
    temperature: float,
    tokens_per_microbatch: int,
    ranks: Ranks = ALONE,
) -> tuple[list[FloatArray], list[FloatArray]]:
    """The module's two outputs for every trained token of every sample, float32 [L] each, 0 elsewhere.

    Each of `ranks` computes its share and has everything.

    Raises:
        NothingToTrain: no sample has a trained token.
    """
    update = pack(samples, TokenMean(), tokens_per_microbatch, ranks.teams)
    first, second = zip(*score(module, update, temperature, ranks=ranks), strict=True)
    return by_sample(update, first, samples), by_sample(update, second, samples)


def by_sample(update: Update, values: Sequence[Tensor], samples: Sequence[Sample]) -> list[FloatArray]:
    """Values [M] of each micro-batch of an update of these samples, laid out by sample: float32 [L], 0 elsewhere."""
    found: list[FloatArray] = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
    for batch, column in zip(update.micro_batches, values, strict=True):
        given = column.float().cpu().numpy()
        sequence, position = batch.tokens.sequence.numpy(), batch.tokens.position.numpy()
        for index in np.unique(sequence):
            rows = np.flatnonzero(sequence == index)
            found[index][position[rows]] = given[rows]
    return found
