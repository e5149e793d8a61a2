"""What a report reads of a run folder: configuration, metrics, summary; each may be missing, and the reason is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from strop.base.files import distinct_names
from strop.base.types import InputError
from strop.base.view import benchmark_rates, duration
from strop.config.parse import parse
from strop.config.schema import RunConfig
from strop.recipes import build
from strop.report.texts import plain
from strop.run.folder import RunFolder

Row = dict[str, float | None]
Series = tuple[list[float], list[float]]
ABSENT = "-"


@dataclass(frozen=True, eq=False)
class RunData:
    """A run as the report sees it.

    Attributes:
        name: short, unique in the report.
        folder: where it is.
        rows: the lines of metrics.jsonl.
        raw: config.json as it is, empty where there is none.
        config: the same validated; None where this strop cannot read it, or it is a fine-tuning run.
        unread: why `config` is None, empty where it is not.
        summary: summary.json, empty where the run has not ended.
    """

    name: str
    folder: RunFolder
    rows: Sequence[Row]
    raw: Mapping[str, Any]
    config: RunConfig | None
    unread: str
    summary: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    @property
    def short(self) -> str:
        """The name as it fits into a picture."""
        return plain(self.name, 24)

    @property
    def recipe(self) -> str:
        """The recipe's name; `fine-tuning` where the run is one."""
        return "fine-tuning" if "demonstrations" in self.raw else str(self.raw.get("recipe", "unknown"))

    @cached_property
    def last_step(self) -> int:
        """The last step with a metric line; 0 where there is none."""
        return max((int(row["step"] or 0) for row in self.rows), default=0)

    @cached_property
    def benchmarks(self) -> list[str]:
        """The names of the benchmarks that were measured in training."""
        return sorted({name for row in self.rows for name in benchmark_rates(row)})

    @property
    def seconds(self) -> float | None:
        """Seconds of all steps together, evaluations included."""
        spent = self.series("seconds/step")[1]
        return sum(spent) if spent else None

    def by_step(self, metric: str) -> dict[float, float]:
        """The metric's finite values by step, in order; of several lines of one step the last counts."""
        found: dict[float, float] = {}
        for row in self.rows:
            step, value = row.get("step"), row.get(metric)
            if step is not None and value is not None and math.isfinite(value):
                found[step] = value
        return dict(sorted(found.items()))

    def series(self, metric: str) -> Series:
        """The metric's steps and its finite values at them."""
        found = self.by_step(metric)
        return list(found), list(found.values())

    def last(self, metric: str) -> float | None:
        """The metric's last value."""
        values = self.series(metric)[1]
        return values[-1] if values else None

    def outcome(self) -> str:
        """How it ended, in a few words."""
        wanted = self.raw.get("steps")
        if self.summary:
            return f"finished after {self.last_step} steps"
        if not self.rows:
            return "has not made a step yet"
        return (
            f"not finished: {self.last_step} of {wanted} steps" if wanted else f"not finished: {self.last_step} steps"
        )

    def took(self) -> str:
        """The time of its steps."""
        return ABSENT if self.seconds is None else duration(self.seconds)


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """The runs, each with a name of its own.

    Raises:
        InputError: a folder is no run, is named twice, or a file in it is broken.
    """
    found = [path.resolve() for path in paths]
    for path in found:
        if found.count(path) > 1:
            raise InputError(f"{path} is named twice; name each run once")
    return [_read(path, name) for path, name in zip(paths, distinct_names(found), strict=True)]


def _read(path: Path, name: str) -> RunData:
    folder = RunFolder.open(path)
    raw = folder.read_json("config.json") if folder.config_path.is_file() else {}
    config, unread = _config(raw, folder.config_path)
    return RunData(name, folder, folder.read_metrics(), raw, config, unread, folder.read_summary())


def _config(raw: Mapping[str, Any], path: Path) -> tuple[RunConfig | None, str]:
    if not raw:
        return None, "it has no config.json"
    if "demonstrations" in raw:
        return None, "it is a fine-tuning run"
    try:
        return parse(dict(raw), str(path), to_run=False), ""
    except InputError as error:
        return None, f"its configuration cannot be read ({error})"


# ---------------------------------------------------------------------- against the recipe


def changes(run: RunData) -> tuple[str, list[tuple[str, str, str]]]:
    """What the run's configuration is compared with, and (setting, there, here) for each setting that differs.

    It is compared with the recipe it names, or with that recipe's tiny form where that is nearer.

    Raises:
        InputError: there is no such recipe.
    """
    from strop.config.tiny import tiny

    recipe = build(str(run.raw.get("recipe")))
    found = _differences(recipe.model_dump(mode="json"), run.raw)
    small = _differences(tiny(recipe).model_dump(mode="json"), run.raw)
    if len(small) < len(found):
        return f"the tiny form of the recipe {recipe.recipe}", small
    return f"the recipe {recipe.recipe}", found


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    left, right = dict(settings(first)), dict(settings(second))
    keys = dict.fromkeys([*left, *right])
    rows = [(key, left.get(key, ABSENT), right.get(key, ABSENT)) for key in keys]
    return [row for row in rows if row[1] != row[2]]


def settings(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting by its dotted name: `("optim.lr", "2e-06")`."""
    for key, entry in value.items():
        if isinstance(entry, Mapping) and entry:
            yield from settings(entry, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False)
