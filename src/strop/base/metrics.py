"""Metrics that are exact for any split of a batch: each carries the sums needed to merge it with another.

`Mean(sum=3.0, count=4)` merged with `Mean(sum=1.0, count=1)` is `Mean(4.0, 5)`, value 0.8: never a mean of means.
Fields may be zero-dimensional tensors while a step runs, so that nothing waits for the device; `values` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from strop.base.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


Number: TypeAlias = "float | Tensor"


class Stat(Protocol):
    """A mergeable statistic."""

    def merge(self, other: Any) -> Self: ...

    @property
    def value(self) -> float | None:
        """The statistic as a plain number; None where nothing was counted."""
        ...


@dataclass(frozen=True)
class _Sums:
    """A statistic whose fields are sums: two are merged by adding them up."""

    def merge(self, other: Self) -> Self:
        return replace(self, **{name: value + vars(other)[name] for name, value in vars(self).items()})


@dataclass(frozen=True)
class Mean(_Sums):
    """A mean as (sum, count)."""

    sum: Number
    count: Number

    @property
    def value(self) -> float | None:
        count = float(self.count)
        return float(self.sum) / count if count else None


@dataclass(frozen=True)
class Total(_Sums):
    """A sum."""

    sum: Number

    @property
    def value(self) -> float | None:
        return float(self.sum)


@dataclass(frozen=True)
class Variance(_Sums):
    """A population variance as (count, sum, sum of squares); give sums in float64."""

    count: Number
    sum: Number
    squares: Number

    @property
    def value(self) -> float | None:
        count = float(self.count)
        if not count:
            return None
        square = float(self.squares) / count
        spread = square - (float(self.sum) / count) ** 2
        # What is left of equal numbers is rounding.
        return spread if spread > 1e-12 * square else 0.0


@dataclass(frozen=True)
class ExplainedVariance:
    """1 − Var(target − prediction) / Var(target); None where the targets do not vary."""

    residual: Variance
    target: Variance

    def merge(self, other: ExplainedVariance) -> ExplainedVariance:
        return ExplainedVariance(self.residual.merge(other.residual), self.target.merge(other.target))

    @property
    def value(self) -> float | None:
        left, whole = self.residual.value, self.target.value
        return None if left is None or not whole else 1 - left / whole


def _extreme(
    one: Number | None,
    other: Number | None,
    of_numbers: Callable[[float, float], float],
    of_tensors: Callable[[Tensor, Tensor], Tensor],
) -> Number | None:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.device == other.device:
        return of_tensors(one, other)  # not read yet
    return of_numbers(float(one), float(other))


@dataclass(frozen=True)
class Maximum:
    """A largest value; None where there was none."""

    largest: Number | None

    def merge(self, other: Maximum) -> Maximum:
        return Maximum(_extreme(self.largest, other.largest, max, torch.maximum))

    @property
    def value(self) -> float | None:
        return None if self.largest is None else float(self.largest)


@dataclass(frozen=True)
class Minimum:
    """A smallest value; None where there was none."""

    smallest: Number | None

    def merge(self, other: Minimum) -> Minimum:
        return Minimum(_extreme(self.smallest, other.smallest, min, torch.minimum))

    @property
    def value(self) -> float | None:
        return None if self.smallest is None else float(self.smallest)


@dataclass(frozen=True)
class Ratio:
    """A quotient of two sums that are merged separately; `otherwise` where the denominator is 0."""

    numerator: Number
    denominator: Number
    otherwise: float | None = None

    def merge(self, other: Ratio) -> Ratio:
        return Ratio(self.numerator + other.numerator, self.denominator + other.denominator, self.otherwise)

    @property
    def value(self) -> float | None:
        denominator = float(self.denominator)
        return float(self.numerator) / denominator if denominator else self.otherwise


@dataclass(frozen=True)
class Covariance(_Sums):
    """The covariance of x and y, Σ(x − mean x)(y − mean y) / count, from plain sums."""

    sum_x: Number
    sum_y: Number
    sum_xy: Number
    count: Number

    @property
    def value(self) -> float | None:
        count = float(self.count)
        if not count:
            return None
        return float(self.sum_xy) / count - float(self.sum_x) / count * (float(self.sum_y) / count)


@dataclass(frozen=True)
class Deviation(_Sums):
    """A standard deviation (divided by the count) from a sum and a sum of squares."""

    sum: Number
    squares: Number
    count: Number

    @property
    def value(self) -> float | None:
        variance = Covariance(self.sum, self.sum, self.squares, self.count).value
        return None if variance is None else max(variance, 0.0) ** 0.5


Metrics = dict[str, Stat]


def merge(parts: Iterable[Mapping[str, Stat]]) -> Metrics:
    """Merge metrics by name; a name may be missing from some of the parts."""
    merged: Metrics = {}
    for part in parts:
        for name, stat in part.items():
            merged[name] = merged[name].merge(stat) if name in merged else stat
    return merged


def plain(metrics: Mapping[str, Stat]) -> Metrics:
    """The same statistics with plain numbers instead of tensors, for another process."""
    return {name: _plain(stat) for name, stat in metrics.items()}


def _plain(stat: Any) -> Any:
    if isinstance(stat, torch.Tensor):
        return stat.item()
    if not is_dataclass(stat) or isinstance(stat, type):
        return stat
    return replace(stat, **{field.name: _plain(vars(stat)[field.name]) for field in fields(stat)})


def values(metrics: Mapping[str, Stat]) -> dict[str, float | None]:
    """Plain numbers by name, for a log line."""
    return {name: stat.value for name, stat in metrics.items()}
