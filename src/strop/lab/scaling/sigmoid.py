"""The compute-performance curve of ScaleRL (Eq. 1) and its rearrangement (Figure 5).

    R_C = R_0 + (A − R_0) / (1 + (C_mid / C)^B)

A is the asymptotic pass rate, B > 0 the steepness in log compute, C_mid the compute at which half of the gain A − R_0
is reached, R_0 the measured pass rate before training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def share(log_compute: Array, b: ArrayLike, log_mid: ArrayLike) -> Array:
    """1 / (1 + (C_mid/C)^B), the share of the gain that is reached; arguments broadcast."""
    # tanh neither overflows nor warns, however steep the curve.
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(b) * (log_compute - np.asarray(log_mid))))


@dataclass(frozen=True)
class Sigmoid:
    """One curve: R_C = R_0 + (A − R_0) / (1 + (C_mid/C)^B). C_mid is in the unit of the compute it was fitted to."""

    A: float
    B: float
    C_mid: float
    R_0: float = 0.0

    def value(self, compute: ArrayLike) -> Array:
        """R_C at `compute` (0 or more), of the same shape; R_0 at 0."""
        with np.errstate(divide="ignore"):
            log_compute = np.log(np.asarray(compute, np.float64))
        return self.R_0 + (self.A - self.R_0) * share(log_compute, self.B, np.log(self.C_mid))

    def linearised(self, compute: ArrayLike, pass_rate: ArrayLike) -> Array:
        """log F(R_C), which is B · log C where the curve holds, so that the slope of the points is B (Figure 5).

        F(R_C) = C_mid^B / ((A − R_0) / (R_C − R_0) − 1). NaN where the pass rate is not strictly between R_0 and A:
        noise may put a point there, and no power of compute does.
        """
        rate = np.asarray(pass_rate, np.float64) + 0.0 * np.asarray(compute, np.float64)
        inside = (rate > self.R_0) & (rate < self.A)
        safe = np.where(inside, rate, 0.5 * (self.R_0 + self.A))
        ratio = (self.A - self.R_0) / (safe - self.R_0) - 1.0
        return np.where(inside, self.B * np.log(self.C_mid) - np.log(ratio), np.nan)
