"""Scores of samples by a module, without gradient: the policy's log-probs and entropies, a critic's values.

    logprobs, entropies = score_samples(policy, samples, temperature=1.0, tokens_per_microbatch=16_384)

L tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from strop.algorithms.aggregation import TokenMean
from strop.base.sample import Sample
from strop.base.types import FloatArray
from strop.training.packing import pack
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
    first: list[FloatArray] = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
    second: list[FloatArray] = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
    for batch, outputs in zip(update.micro_batches, score(module, update, temperature, ranks=ranks), strict=True):
        left, right = (output.float().cpu().numpy() for output in outputs)
        sequence, position = batch.tokens.sequence.numpy(), batch.tokens.position.numpy()
        for index in np.unique(sequence):
            rows = np.flatnonzero(sequence == index)
            first[index][position[rows]] = left[rows]
            second[index][position[rows]] = right[rows]
    return first, second
