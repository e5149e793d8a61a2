"""A quantile that stays exact however a batch is split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Quantile:
    """The q-quantile of all values, linear between neighbours; it carries them all, so that it can be merged.

    For one number a completion, not a token.
    """

    values: tuple[float, ...]
    q: float

    def merge(self, other: Quantile) -> Quantile:
        if other.q != self.q:
            raise ValueError(f"the quantiles {self.q} and {other.q} are of different things")
        return Quantile(self.values + other.values, self.q)

    @property
    def value(self) -> float | None:
        return float(np.quantile(self.values, self.q)) if self.values else None
