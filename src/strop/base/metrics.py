"""Metrics that are exact for any split of a batch: each carries the sums needed to merge it with another.

`Mean(sum=3.0, count=4)` merged with `Mean(sum=1.0, count=1)` is `Mean(4.0, 5)`, value 0.8: never a mean of means.
Fields may be zero-dimensional tensors while a step runs, so that nothing waits for the device; `values` reads them.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO, TypeAlias

from strop.base.files import write_text, writing
from strop.base.lazy import torch
from strop.base.types import InputError

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


class MetricsFile:
    """The metrics of one run; opened for appending at the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def append(self, step: int, metrics: Mapping[str, float | None], durable: bool = False) -> None:
        """Append one line; flushed at once, and also forced to disk when `durable`.

        Raises:
            StropError: the disk is full or cannot be written.
        """
        values = {name: value if value is None else _writable(value) for name, value in metrics.items()}
        line = json.dumps({"step": step, "time": round(time.time(), 3), **values}, allow_nan=False)
        with writing(self.path):
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8")
            self._file.write(line + "\n")
            self._file.flush()
            if durable:
                os.fsync(self._file.fileno())

    def truncate(self, step: int) -> None:
        """Drop the lines of later steps, and a torn last line."""
        self.close()
        if self.path.exists():
            kept = [row for row in _parse_lines(self.path) if row["step"] <= step]
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            with writing(self.path):
                file.close()


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """One row per step, ordered by step; empty if there is no file yet.

    Of several lines of a step the last that has a metric counts; `time` is that of the first.

    Raises:
        InputError: a line before the last is broken; it is named by its number.
    """
    if not path.exists():
        return []
    rows: dict[int, dict[str, float | None]] = {}
    for line in _parse_lines(path):
        found = {name: float(value) if isinstance(value, str) else value for name, value in line.items()}
        begun = rows.setdefault(line["step"], {})
        begun |= found | {name: begun[name] for name in ("time",) if name in begun}
    return [rows[step] for step in sorted(rows)]


def by_step(rows: Iterable[Mapping[str, float | None]], name: str) -> dict[int, float]:
    """The finite values of a metric by step, in order."""
    found: dict[int, float] = {}
    for row in rows:
        step, value = row.get("step"), row.get(name)
        if step is not None and value is not None and math.isfinite(value):
            found[int(step)] = value
    return dict(sorted(found.items()))


def _parse_lines(path: Path) -> list[dict[str, Any]]:
    # Every whole line ends in a newline: what follows the last one is torn, even where it happens to be JSON.
    *lines, _ = path.read_bytes().split(b"\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise InputError(f"{path}, line {number}: no metric line (it has no whole number `step`)")
        rows.append(row)
    return rows


def _writable(value: float) -> float | str:
    number = float(value)
    return number if math.isfinite(number) else str(number)
