"""How long completions are, in tokens. G samples a group."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from strop.base.types import InputError

IntLengths = NDArray[np.int64]


class Lengths(Protocol):
    """Draws the lengths of a group's completions."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, samples: int) -> IntLengths:
        """Tokens of each completion of one group, int [G], each at least 1."""
        ...


@dataclass(frozen=True)
class ConstantLength:
    """Every completion has `tokens` tokens."""

    tokens: int

    def draw(self, rng: np.random.Generator, samples: int) -> IntLengths:
        """int [G], all the same."""
        return np.full(samples, self.tokens, np.int64)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal around `median`, exp(N(ln median, sigma²)), cut at `limit` tokens.

    `within` is the share of the variance of ln length that samples of one prompt do not have in common: 1 draws every
    completion for itself, 0 gives a group one length.
    """

    median: float
    sigma: float
    limit: int
    within: float = 1.0

    def __post_init__(self) -> None:
        if self.median < 1 or self.sigma < 0 or self.limit < 1 or not 0 <= self.within <= 1:
            raise InputError(f"lengths {self}: median and limit are at least 1, sigma at least 0, within from 0 to 1")

    def draw(self, rng: np.random.Generator, samples: int) -> IntLengths:
        """int [G]."""
        own, common = rng.normal(size=samples), rng.normal()
        z = np.sqrt(self.within) * own + np.sqrt(1 - self.within) * common
        return np.clip(np.rint(self.median * np.exp(self.sigma * z)), 1, self.limit).astype(np.int64)


@dataclass(frozen=True)
class Straggling:
    """Lengths of `of`, a share of which (completions, not groups) is `factor` times as long: a long tail."""

    of: Lengths
    share: float
    factor: float

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.factor >= 1):
            raise InputError(f"stragglers: a share from 0 to 1 and a factor of at least 1, not {self}")

    def draw(self, rng: np.random.Generator, samples: int) -> IntLengths:
        """int [G]."""
        lengths = self.of.draw(rng, samples)
        slow = rng.random(samples) < self.share
        return np.where(slow, np.rint(lengths * self.factor), lengths).astype(np.int64)


def parse_lengths(text: str, limit: int) -> Lengths:
    """Lengths from `--lengths`: `constant:8000`, `lognormal:MEDIAN,SIGMA[,WITHIN]`; `+SHARExFACTOR` adds stragglers.

    Raises:
        InputError: it is none of these.
    """
    body, plus, tail = text.partition("+")
    name, _, numbers = body.partition(":")
    try:
        found = _named(name, [float(number) for number in numbers.split(",")], limit)
        if plus:
            share, _, factor = tail.partition("x")
            found = Straggling(found, float(share), float(factor))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"--lengths {text}: write constant:TOKENS or lognormal:MEDIAN,SIGMA, and +0.05x30 behind it for 5 % of "
            "completions 30 times as long"
        ) from error
    return found


def _named(name: str, numbers: Sequence[float], limit: int) -> Lengths:
    if name == "constant" and len(numbers) == 1 and numbers[0] >= 1:
        return ConstantLength(min(int(numbers[0]), limit))
    if name == "lognormal" and 2 <= len(numbers) <= 3:
        return LogNormal(numbers[0], numbers[1], limit, *numbers[2:])
    raise ValueError(name)
