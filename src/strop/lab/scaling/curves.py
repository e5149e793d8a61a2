"""Compute-performance curves, read from run folders and CSV files.

A curve is the pass rate on held-out problems against the compute spent. The pass rate before training, R_0, is kept
separate from its points. Shapes: n points.

Compute has one of five units, the x-axis (ScaleRL A.20). Without one it is device-hours, the paper's GPU-hours.

A CSV has a header with `pass_rate` and a column of the unit (`compute` is device-hours), optionally `stderr`; columns
of other names are ignored. A row at compute 0 is R_0. Of a run folder the rows of metrics.jsonl with an evaluation are
read; step 0 is R_0.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.base.files import distinct_names
from strop.base.metrics_file import read_metrics
from strop.base.text import counted
from strop.base.types import InputError
from strop.lab.ablation.manifest import FILE, read_manifest
from strop.run.folder import RunFolder, is_run

Array = NDArray[np.float64]
Unit = Literal["device_hours", "device_seconds", "flops", "tokens", "steps"]

PASS_RATE = "evaluation/pass_rate"


class Axis(NamedTuple):
    """A unit of compute: its name in words, its metric of a run, and the columns of a CSV with the units in one."""

    words: str
    metric: str
    columns: Mapping[str, float]


UNITS: Mapping[Unit, Axis] = {
    "device_hours": Axis(
        "device-hours", "compute/device_seconds", {"device_hours": 1.0, "compute": 1.0, "device_seconds": 1.0 / 3600.0}
    ),
    "device_seconds": Axis(
        "device-seconds", "compute/device_seconds", {"device_seconds": 1.0, "device_hours": 3600.0, "compute": 3600.0}
    ),
    "flops": Axis("FLOPs", "compute/flops", {"flops": 1.0}),
    "tokens": Axis("generated tokens", "tokens/generated", {"tokens": 1.0}),
    "steps": Axis("training steps", "step", {"steps": 1.0}),
}


@dataclass(frozen=True, eq=False)
class Curve:
    """Points of a compute-performance curve, sorted by compute, all of compute above 0.

    Attributes:
        name: its name in tables and figures.
        compute: float64 [n], the compute spent so far, in `unit`.
        pass_rate: float64 [n], fractions in [0, 1].
        r0: the pass rate before training, R_0.
        stderr: float64 [n], standard errors of `pass_rate`, all positive; None where unknown.
        r0_stderr: standard error of `r0`; 0 where it is given as exact, None where it was measured as the points were.
        unit: the unit of the compute.
        same_problems: whether every point measures the same problems, while `stderr` is that of problems drawn anew.
        notes: warnings about where the points come from.
    """

    name: str
    compute: Array
    pass_rate: Array
    r0: float
    stderr: Array | None = None
    r0_stderr: float | None = None
    unit: Unit = "device_hours"
    notes: tuple[str, ...] = ()
    same_problems: bool = False

    def __post_init__(self) -> None:
        """Sort the points.

        Raises:
            ValueError: lengths differ, a compute is not positive, a pass rate is no fraction, a number is not finite.
        """
        compute, rate = np.asarray(self.compute, np.float64), np.asarray(self.pass_rate, np.float64)
        errors = None if self.stderr is None else np.asarray(self.stderr, np.float64)
        if compute.ndim != 1 or compute.shape != rate.shape or (errors is not None and errors.shape != rate.shape):
            raise ValueError(f"{self.name}: compute, pass_rate and stderr are columns of one length")
        if not (np.all(np.isfinite(compute)) and np.all(compute > 0)):
            raise ValueError(f"{self.name}: the compute of a point is a positive number; compute 0 is R_0")
        if not np.all((rate >= 0) & (rate <= 1)) or not 0 <= self.r0 <= 1:
            raise ValueError(f"{self.name}: pass rates are fractions from 0 to 1")
        if errors is not None and not (np.all(np.isfinite(errors)) and np.all(errors > 0)):
            raise ValueError(f"{self.name}: standard errors are positive numbers")
        order = np.argsort(compute, kind="stable")
        object.__setattr__(self, "compute", compute[order])
        object.__setattr__(self, "pass_rate", rate[order])
        object.__setattr__(self, "stderr", None if errors is None else errors[order])

    def __len__(self) -> int:
        return len(self.compute)

    @property
    def words(self) -> str:
        """The unit in words."""
        return UNITS[self.unit].words

    def within(self, low: float = 0.0, high: float = math.inf) -> Curve:
        """The points with low <= compute <= high; R_0 stays."""
        kept = (self.compute >= low) & (self.compute <= high)
        stderr = None if self.stderr is None else self.stderr[kept]
        return replace(self, compute=self.compute[kept], pass_rate=self.pass_rate[kept], stderr=stderr)

    def beyond(self, low: float) -> Curve:
        """The points with compute > low; R_0 stays."""
        return self.within(math.nextafter(low, math.inf))


class _Row(NamedTuple):
    x: float
    pass_rate: float
    stderr: float | None


def read_curve(
    path: Path | str,
    unit: Unit = "device_hours",
    r0: float | None = None,
    name: str | None = None,
    metric: str = PASS_RATE,
) -> Curve:
    """The curve of a run folder or a CSV file.

    Args:
        path: a run folder of strop, or a .csv file.
        unit: of its compute.
        r0: R_0, exact. It replaces the rows at compute 0, and a note says so; None uses those rows.
        name: by default the name of the folder, or of the file without its ending.
        metric: of a run, the evaluation metric; its standard error has the same name with `stderr` for `pass_rate`.

    Raises:
        InputError: it cannot be read, a value is no number, or R_0 is neither measured nor given.
    """
    target = Path(path)
    if r0 is not None and not 0 <= r0 <= 1:
        raise InputError(f"--r0 {r0:g}: a pass rate is a fraction from 0 to 1")
    called = name or target.resolve().name.removesuffix(".csv")
    of_a_run = target.is_dir()
    rows = _run_rows(target, unit, metric) if of_a_run else _csv_rows(target, UNITS[unit].columns)
    return replace(_curve(rows, target, called, unit, r0), same_problems=of_a_run)


def _curve(rows: Sequence[_Row], path: Path, name: str, unit: Unit, given: float | None) -> Curve:
    before = [row for row in rows if row.x == 0]
    points = [row for row in rows if row.x > 0]
    if not before and given is None:
        raise InputError(f"{path}: no row has compute 0, so R_0 is unknown; give the pass rate before training by --r0")
    if not points:
        raise InputError(f"{path}: there is no evaluation after the start; nothing can be fitted yet")
    stderr, notes = _errors(points)
    measured = float(np.mean([row.pass_rate for row in before])) if before else None
    if given is None:
        assert measured is not None
        known = [row.stderr for row in before if row.stderr]
        r0, r0_stderr = measured, float(np.sqrt(np.mean(np.square(known)) / len(known))) if known else None
    else:
        r0, r0_stderr = given, 0.0
        if measured is not None and measured != given:
            notes += (f"R_0 is {given:g} by --r0; the {measured:g} measured at compute 0 is not used",)
    compute, rate = np.array([row.x for row in points]), np.array([row.pass_rate for row in points])
    return Curve(name, compute, rate, r0, stderr, r0_stderr, unit, notes)


def _errors(points: Sequence[_Row]) -> tuple[Array | None, tuple[str, ...]]:
    """Standard errors of the points, if all of them have one, with notes.

    A pass rate of exactly 0 or 1 has a standard error of 0, because the sample was too small to show the noise. Such a
    point would get all the weight, so the smallest positive standard error is used for it.
    """
    values = [row.stderr for row in points]
    positive = [value for value in values if value]
    if not positive:
        return None, ()
    if any(value is None for value in values):
        missing = sum(value is None for value in values)
        return None, (f"{missing} of {len(values)} points lack a stderr, so none is used",)
    filled = np.array([value if value else min(positive) for value in values], np.float64)
    zeros = len(values) - len(positive)
    stands_in = f"stderr is 0 of {counted(zeros, 'points')}; the smallest positive one stands in"
    return filled, ((stands_in,) if zeros else ())


# ---------------------------------------------------------------------- CSV files


def _csv_rows(path: Path, columns: Mapping[str, float]) -> list[_Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = header = [name.strip().lower() for name in reader.fieldnames or ()]
            for needed in (tuple(columns), ("pass_rate",)):
                if not set(needed) & set(header):
                    names = ", ".join(header) or "nothing"
                    raise InputError(
                        f"{path}: there is no column {' or '.join(map(repr, needed))}; the header has {names}"
                    )
            x = next(name for name in columns if name in header)
            return [_csv_row(cells, f"{path}, line {reader.line_num}", x, columns[x]) for cells in reader]
    except FileNotFoundError as error:
        raise InputError(f"there is no run folder or CSV file {path}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}") from error


def _csv_row(cells: Mapping[str, str | None], where: str, x: str, units: float) -> _Row:
    def value(column: str, most: float = math.inf) -> float | None:
        """The number of a cell, from 0 to `most`; None where it is empty."""
        text = (cells.get(column) or "").strip()
        if not text:
            return None
        try:
            number = float(text)
        except ValueError as error:
            raise InputError(f"{where}: {column} is {text!r}, not a number") from error
        if not (math.isfinite(number) and 0 <= number <= most):
            raise InputError(f"{where}: {column} is {text}; it must be a number from 0 to {most:g}")
        return number

    at, rate = value(x), value("pass_rate", most=1.0)
    if at is None or rate is None:
        raise InputError(f"{where}: {x if at is None else 'pass_rate'} is missing")
    return _Row(units * at, rate, value("stderr"))


# ---------------------------------------------------------------------- run folders


def _run_rows(path: Path, unit: Unit, metric: str) -> list[_Row]:
    file = RunFolder.open(path).metrics_path
    if not file.exists():
        raise InputError(f"{file} is missing: the run has made no step yet, or its curve was moved away")
    rows = read_metrics(file)
    stderr_name = "/".join("stderr" if part == "pass_rate" else part for part in metric.split("/"))
    found: list[_Row] = []
    for spent, row in zip(_spent(rows, unit), rows, strict=True):
        rate, stderr = row.get(metric), row.get(stderr_name)
        if rate is None or not math.isfinite(rate):
            continue
        usable = stderr is not None and math.isfinite(stderr)
        found.append(_Row(0.0 if row["step"] == 0 else spent, rate, stderr if usable else None))
    if not found:
        raise InputError(f"{path}: metrics.jsonl has no {metric}; set evaluation.every in the run's recipe")
    return found


def _spent(rows: Sequence[Mapping[str, float | None]], unit: Unit) -> Iterator[float]:
    """The compute spent up to and with each row; what is recorded is a total, but for tokens."""
    axis, total = UNITS[unit], 0.0
    recorded = axis.columns.get(axis.metric.removeprefix("compute/"), 1.0)
    for row in rows:
        found = row.get(axis.metric) or 0.0
        total = total + found if unit == "tokens" else recorded * found or total
        yield total


def read_sources(sources: Sequence[str], unit: Unit, r0: float | None, metric: str) -> dict[str, list[Curve]]:
    """Curves by recipe; every curve has a different name.

    `NAME=PATH` names a curve; several of one name are seeds of that recipe. Every other curve is a recipe by itself.
    The folder of an ablation stands for its runs so far, each under its variant's name; among other sources the name of
    the folder goes before it.

    Raises:
        InputError: as `read_curve`; a path is given twice under one name, which makes no two seeds; or
            an ablation is given a name or has no evaluated run.
    """
    labelled = [part for source in sources for part in _runs_of(*_split(source), len(sources) > 1, metric)]
    _refuse_doubles(labelled)
    resolved = [Path(path).resolve() for _, path in labelled]
    names = distinct_names([path.with_suffix("") if path.suffix == ".csv" else path for path in resolved])
    recipes: dict[str, list[Curve]] = {}
    for (label, path), name in zip(labelled, names, strict=True):
        curve = read_curve(path, unit, r0, label or name, metric)
        recipes.setdefault(label or name, []).append(curve)
    return {recipe: _number(recipe, curves) for recipe, curves in recipes.items()}


def _split(source: str) -> tuple[str | None, str]:
    label, equals, path = source.partition("=")
    return (label, path) if equals and label and path and not Path(source).exists() else (None, source)


def _runs_of(label: str | None, path: str, with_others: bool, metric: str) -> list[tuple[str | None, str]]:
    """A source as it is; in place of an ablation's folder its evaluated runs under the names of their variants."""
    folder = Path(path)
    if not (folder / FILE).is_file():
        return [(label, path)]
    if label is not None:
        raise InputError(f"{label}={path}: an ablation has a name for each variant; give {path}, or name its runs")
    manifest = read_manifest(folder)
    before = f"{folder.resolve().name}/" if with_others else ""
    found = [(before + run.variant, str(manifest.path(folder, run))) for run in manifest.runs]
    evaluated = [pair for pair in found if is_run(Path(pair[1])) and _measured(RunFolder.open(Path(pair[1])), metric)]
    if not evaluated:
        raise InputError(f"{folder}: no run has {metric} after its start yet; look with: strop ablate show {folder}")
    return [*evaluated]


def _measured(run: RunFolder, metric: str) -> bool:
    return any(row["step"] and row.get(metric) is not None for row in run.read_metrics())


def _refuse_doubles(labelled: Sequence[tuple[str | None, str]]) -> None:
    counted = Counter((label, Path(path).resolve()) for label, path in labelled)
    for label, path in labelled:
        if counted[label, Path(path).resolve()] > 1:
            under = f" for {label}" if label else ""
            raise InputError(f"{path} is given twice{under}: a curve is no second seed of itself; leave one out")


def _number(recipe: str, curves: Sequence[Curve]) -> list[Curve]:
    """Curves that share a name get a number."""
    counted = Counter(curve.name for curve in curves)
    seen: Counter[str] = Counter()
    found = []
    for curve in curves:
        seen[curve.name] += 1
        many = counted[curve.name] > 1
        found.append(replace(curve, name=f"{curve.name} #{seen[curve.name]}") if many else curve)
    return found
