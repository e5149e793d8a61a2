"""Pass rates of prompts before they are asked, predicted by a Gaussian process from what was asked before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.base.types import IntArray

WINDOW = 512  # problems whose last groups are read
FEATURES = 1024  # token ids count by their remainder, which keeps distances cheap


class Seen(NamedTuple):
    """A problem asked before: its prompt, int32 [K], and the judged and right completions of its last group."""

    prompt_ids: IntArray
    samples: int
    passed: float


def predicted_rates(prompts: Sequence[IntArray], seen: Iterable[Seen]) -> NDArray[np.float64]:
    """The pass rates of Q prompts, float64 [Q]; `Vip` says how they are predicted.

    Args:
        prompts: their token ids, int32 [K] each.
        seen: problems with finished groups, most telling first; those beyond `WINDOW` are not read.
    """
    known = list(islice(seen, WINDOW))
    if not known:
        return np.full(len(prompts), 0.5)
    samples, passed = np.array([one.samples for one in known]), np.array([one.passed for one in known])
    logits, rate = _logits(passed, samples), (passed.sum() + 0.5) / (samples.sum() + 1)
    of_size = {size: _noise(size, rate) for size in set(samples.tolist())}
    noise = np.array([of_size[size] for size in samples.tolist()])
    mean, prior = logits.mean(), max(logits.var() - noise.mean(), 0.0)
    features = _features([one.prompt_ids for one in known])
    distances = _distances(features, features)
    apart = distances[np.triu_indices(len(known), 1)]
    width = float(np.median(apart[apart > 0])) if apart.any() else 1.0
    among, across = (
        prior * np.exp(-0.5 * (each / width) ** 2) for each in (distances, _distances(_features(prompts), features))
    )
    latent = mean + across @ np.linalg.solve(among + np.diag(noise), logits - mean)
    rates: NDArray[np.float64] = 1 / (1 + np.exp(-latent))
    return rates


def _logits(passed: NDArray[np.float64], samples: NDArray[np.float64] | int) -> NDArray[np.float64]:
    """Of shares that are never 0 or 1."""
    return np.log((passed + 0.5) / (samples - passed + 0.5))


def _noise(size: int, rate: float) -> float:
    """The variance of a group's logit, were its prompt's pass rate that of all."""
    passed = np.arange(size + 1.0)
    ways = math.lgamma(size + 1) - np.array([math.lgamma(each + 1) + math.lgamma(size - each + 1) for each in passed])
    chances, logits = np.exp(ways + passed * np.log(rate) + (size - passed) * np.log(1 - rate)), _logits(passed, size)
    return float(chances @ logits**2 - (chances @ logits) ** 2)


def _features(prompts: Sequence[IntArray]) -> NDArray[np.float64]:
    return np.log1p([np.bincount(ids % FEATURES, minlength=FEATURES) for ids in prompts])


def _distances(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1) - 2 * one @ other.T
    return np.sqrt(np.maximum(squares.round(9), 0.0))  # 0 of equal prompts
