"""Models × benchmarks from kept samples: the papers' tables, paired comparisons, and the best checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from strop.base.files import read_json
from strop.base.near import nearest
from strop.base.text import counted
from strop.base.types import InputError
from strop.engines.protocol import Sampling
from strop.evaluation.intervals import Array, Interval, average_interval
from strop.evaluation.protocols import in_words, parse_metric
from strop.evaluation.result import EvaluationResult, on_common_problems, paired_differences, paired_test
from strop.evaluation.sample_store import SETTINGS, SUMMARY, TRAINED_ON, load_result

ORDER = "evaluation.json"  # of an evaluation folder: its models and benchmarks in the order of the table
AVERAGE = "Avg."


class Column(NamedTuple):
    """A benchmark as the grid names it."""

    name: str
    title: str
    domain: str


@dataclass(frozen=True, eq=False)
class Grid:
    """Evaluations of models on benchmarks; a model may lack some.

    Attributes:
        models: labels, in the order of the table.
        columns: the benchmarks.
        results: by (model, benchmark).
        sampling: how each was sampled, as `engines.protocol.Sampling` in JSON, by the same.
        left_out: how many problems a model had no room for, by the same; none where it is not in there.
        trained_on: how many of the problems the model was trained on, by the same.
    """

    models: tuple[str, ...]
    columns: tuple[Column, ...]
    results: Mapping[tuple[str, str], EvaluationResult]
    sampling: Mapping[tuple[str, str], Mapping[str, Any]]
    left_out: Mapping[tuple[str, str], int] = field(default_factory=dict)
    trained_on: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def shared(self, models: Sequence[str]) -> tuple[str, ...]:
        """The benchmarks that all of `models` have."""
        return tuple(c.name for c in self.columns if all((model, c.name) in self.results for model in models))

    def sampled(self) -> list[str]:
        """The samplings used, a line for each, with its benchmarks (and models, where they differ)."""
        found: dict[str, list[str]] = {}
        for column in self.columns:
            said: dict[str, list[str]] = {}
            for model in self.models:
                if (model, column.name) in self.sampling:
                    words = in_words(Sampling.model_validate(self.sampling[model, column.name]))
                    said.setdefault(words, []).append(model)
            for words, models in said.items():
                of = column.title if len(said) == 1 else f"{column.title} of {', '.join(models)}"
                found.setdefault(words, []).append(of)
        return [f"Sampled at {words}: {', '.join(of)}" for words, of in found.items()]

    def notes(self, metrics: Sequence[str] = ()) -> list[str]:
        """Warnings about numbers that are not comparable: other sampling, problems left out, not judged or trained on.

        `metrics` are those of the table, of which some may be over fewer problems.
        """
        lines = []
        for column in self.columns:
            asked = {
                model: self.sampling[model, column.name]
                for model in self.models
                if (model, column.name) in self.results
            }
            for key in sorted({key for values in asked.values() for key in values}):
                values = {model: found.get(key) for model, found in asked.items()}
                if len({str(value) for value in values.values()}) > 1:
                    listed = ", ".join(f"{model} {value}" for model, value in values.items())
                    lines.append(f"{column.title}: {key} is not the same for all models: {listed}")
        for (model, name), count in self.left_out.items():
            if count:
                lines.append(f"{name}: {counted(count, 'problems')} left out, {model} has no room for their prompts")
        counts = {metric: k for metric in metrics if (k := parse_metric(metric)[1]) is not None}
        for (model, name), result in self.results.items():
            failed = result.failed(model, counts)
            lines += [f"{name}: {failed}"] if failed else []
        for (model, name), count in self.trained_on.items():
            if count:
                asked_in_all = len(self.results[model, name].problem_ids)
                lines.append(f"{name}: {model} was trained on {count} of the {asked_in_all} problems")
        return lines


class Average(NamedTuple):
    """The mean over benchmarks of avg@N, with its interval (problems resampled within each benchmark)."""

    value: float
    interval: Interval


class ModelComparison(NamedTuple):
    """`after` against `before` on a benchmark, or on the average of those that both have (`AVERAGE`)."""

    before: str
    after: str
    benchmark: str
    gain: float
    interval: Interval
    p_value: float | None
    problems: int


def load_grid(folders: Sequence[Path]) -> Grid:
    """Every finished evaluation under the given folders of `strop eval --out`.

    Raises:
        InputError: there is none, or two of them are of the same model and benchmark.
    """
    models: dict[str, None] = {}
    columns: dict[str, Column] = {}
    results: dict[tuple[str, str], EvaluationResult] = {}
    sampling: dict[tuple[str, str], Mapping[str, Any]] = {}
    left_out: dict[tuple[str, str], int] = {}
    trained_on: dict[tuple[str, str], int] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; name one that strop eval --out wrote")
        for path in _in_order(folder):
            settings = read_json(path / SETTINGS)
            model, name = settings["model"], settings["benchmark"]
            if (model, name) in results:
                raise InputError(f"{path}: {model} on {name} is in another folder too; leave one of them out")
            models[model] = None
            columns[name] = Column(name, settings["title"], settings["domain"])
            results[model, name] = load_result(path)
            sampling[model, name] = settings["sampling"]
            left_out[model, name] = int(settings.get("left_out", 0))
            trained_on[model, name] = int(read_json(path / SUMMARY).get(TRAINED_ON, 0))
    if not results:
        raise InputError(f"{', '.join(map(str, folders))}: no finished evaluation in it")
    return Grid(tuple(models), tuple(columns.values()), results, sampling, left_out, trained_on)


def average(grid: Grid, model: str, benchmarks: Sequence[str]) -> Average:
    """The mean over `benchmarks`, which the model has, of its avg@N (each weighs alike, whatever its size)."""
    rates = [_judged(grid.results[model, name]) for name in benchmarks]
    return Average(float(np.mean([values.mean() for values in rates])), average_interval(rates))


def compare(grid: Grid, before: str, after: str) -> list[ModelComparison]:
    """A paired comparison on every benchmark that both models have, and on their average.

    It is of the problems that both were asked.

    Raises:
        InputError: an unknown model, no benchmark in common, or no problem in common.
    """
    for model in (before, after):
        if model not in grid.models:
            raise InputError(f"no model is called {model!r} here; {nearest(model, grid.models)}")
    names = grid.shared((before, after))
    if not names:
        raise InputError(f"{before} and {after} have no benchmark in common")
    rows: list[ModelComparison] = []
    differences: list[Array] = []
    for name in names:
        pair = on_common_problems(grid.results[before, name], grid.results[after, name])
        found = paired_test(*pair)
        differences.append(paired_differences(*pair))
        rows.append(ModelComparison(before, after, name, *found))
    if len(names) > 1:
        mean = float(np.mean([values.mean() for values in differences]))
        rows.append(
            ModelComparison(
                before, after, AVERAGE, mean, average_interval(differences, differences=True), None,
                sum(map(len, differences)),
            )  # fmt: skip
        )
    return rows


def values_of(result: EvaluationResult, metric: str) -> Array:
    """A metric such as `avg`, `pass@8` or `maj` of each problem that has one, float64.

    Raises:
        InputError: an unknown metric, or too few samples for it.
    """
    kind, count = parse_metric(metric)
    if kind == "avg":
        return _judged(result)
    if kind == "pass":
        return result.pass_values(count)
    return result.majority_values(count)


def value_of(result: EvaluationResult, metric: str) -> float | None:
    """The mean of `values_of` over problems; None where it has none (maj, where the verifier tells no answers).

    Raises:
        InputError: an unknown metric, or too few samples for it.
    """
    values = values_of(result, metric)
    return float(values.mean()) if len(values) else None


def metric_title(metric: str, samples: int) -> str:
    """`avg@32` for `avg` of 32 samples."""
    return metric if "@" in metric else f"{metric}@{samples}"


def _judged(result: EvaluationResult) -> Array:
    return result.pass_rates[result.judged]


def _in_order(folder: Path) -> list[Path]:
    """The folders of finished evaluations, in the order in which they were asked for, else by name."""
    order = read_json(folder / ORDER) if (folder / ORDER).exists() else {"models": [], "benchmarks": []}
    found: list[tuple[tuple[int, int, str], Path]] = []
    for file in folder.glob(f"*/*/{SETTINGS}"):
        if (file.parent / SUMMARY).exists():
            settings = read_json(file)
            place = (_place(settings["model"], order["models"]), _place(settings["benchmark"], order["benchmarks"]))
            found.append(((*place, str(file)), file.parent))
    return [path for _, path in sorted(found)]


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)
