"""The parts of a run folder that a report reads, each of which may be missing; untrusted text made visible."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from strop.base.files import distinct_names
from strop.base.metrics_file import by_step
from strop.base.text import counted, duration
from strop.base.types import InputError
from strop.base.view import benchmark_rates
from strop.config.edits import differing
from strop.config.parse import parse
from strop.config.schema import RunConfig
from strop.model.location import asked_with
from strop.model.settings import ModelSettings
from strop.recipes import build
from strop.run.folder import RunFolder

Row = dict[str, float | None]
Series = tuple[list[int], list[float]]
ABSENT = "-"


COMBINED = "evaluation/combined"  # one score for all benchmarks


@dataclass(frozen=True, eq=False)
class RunData:
    """The data of a run that a report shows.

    Attributes:
        name: short, unique in the report.
        folder: where it is.
        rows: the lines of metrics.jsonl.
        raw: config.json as it is, empty where there is none.
        config: the same, validated; None if it is not readable or a fine-tuning run.
        unread: why `config` is None; else empty.
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
        """The name, short enough for a picture."""
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

    def _combined(self) -> dict[int, float]:
        """The mean over benchmarks of their pass rates, at each step at which all of several were measured."""
        rates = [self.by_step(f"evaluation/{name}/pass_rate") for name in self.benchmarks]
        steps = set(rates[0]).intersection(*rates) if len(rates) > 1 else ()
        return {step: sum(rate[step] for rate in rates) / len(rates) for step in sorted(steps)}

    @property
    def seconds(self) -> float | None:
        """Seconds of all steps together, evaluations included: also that before the first, which is in no step."""
        spent = self.series("seconds/step")[1]
        return sum(spent) + self.by_step("seconds/evaluation").get(0, 0.0) if spent else None

    def by_step(self, metric: str) -> dict[int, float]:
        """The metric's finite values by step, in order; computed once. `COMBINED` is no metric of the file."""
        if metric not in self._values:
            self._values[metric] = self._combined() if metric == COMBINED else by_step(self.rows, metric)
        return self._values[metric]

    @cached_property
    def _values(self) -> dict[str, dict[int, float]]:
        return {}

    def series(self, metric: str) -> Series:
        """The metric's steps and its finite values at them."""
        found = self.by_step(metric)
        return list(found), list(found.values())

    def last(self, metric: str) -> float | None:
        """The metric's last value."""
        values = self.series(metric)[1]
        return values[-1] if values else None

    def interval(self, step: int, prefix: str = "evaluation") -> str:
        """The 95 % interval of an evaluation's pass rate in percent, `87.8 to 92.5`; empty if there is none."""
        low, high = (self.by_step(f"{prefix}/interval_{end}").get(step) for end in ("low", "high"))
        return "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"

    def gain(self, step: int) -> tuple[str, str] | None:
        """The points that the held-out pass rate gained up to `step`, and their 95 % interval if it is known.

        None if the step was measured differently from the untrained model, so that the two are not comparable.
        """
        gained = self.by_step("evaluation/gain").get(step)
        if gained is None:
            if any(row["step"] == step and "evaluation/gain" in row for row in self.rows):
                return None
            rates = self.by_step("evaluation/pass_rate")
            gained = rates[step] - next(iter(rates.values()))
        low, high = (self.by_step(f"evaluation/gain_{end}").get(step) for end in ("low", "high"))
        interval = "" if low is None or high is None else f"{100 * low:+.1f} to {100 * high:+.1f}"
        return f"{100 * gained:+.1f}", interval

    def outcome(self) -> str:
        """Whether and after how many steps it ended."""
        wanted = self.raw.get("steps")
        if self.summary:
            return f"finished after {counted(self.last_step, 'steps')}"
        if not self.rows:
            return "has not made a step yet"
        made = f"{self.last_step} of {wanted} steps" if wanted else counted(self.last_step, "steps")
        return f"not finished: {made}"

    def took(self) -> str:
        """The time of its steps and evaluations."""
        return ABSENT if self.seconds is None else duration(self.seconds)


def interval_suffix(interval: str) -> str:
    """`, 95 % interval 87.8 to 92.5`; empty without an interval."""
    return f", 95 % interval {interval}" if interval else ""


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """The runs, each with a unique name.

    Raises:
        InputError: a folder is not a run or is named twice, or a file in it is broken.
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


def changes(run: RunData) -> tuple[str, list[tuple[str, ...]]]:
    """The name that the run's configuration is compared with, and (setting, there, here) for each that differs.

    It is compared with the recipe it names, or with that recipe's tiny form where that is nearer.

    Raises:
        InputError: there is no such recipe.
    """
    from strop.config.tiny import tiny

    recipe = build(str(run.raw.get("recipe")))
    found = _differing(recipe, run)
    small = _differing(tiny(recipe), run)
    if len(small) < len(found):
        return f"the tiny form of the recipe {recipe.recipe}", small
    return f"the recipe {recipe.recipe}", found


def _differing(recipe: RunConfig, run: RunData) -> list[tuple[str, ...]]:
    """The settings that differ, without the prompt template of strop's models, which follows from the model."""
    model = recipe.model if run.config is None else run.config.model
    there, here = _asked(recipe, model).model_dump(mode="json"), dict(run.raw)
    if run.config is not None:
        template = _asked(run.config, model).data.template.model_dump(mode="json")
        here["data"] = here.get("data", {}) | {"template": template}
    return differing(there, here)


def _asked(config: RunConfig, model: ModelSettings) -> RunConfig:
    template = asked_with(config.data.template, model)
    return config.model_copy(update={"data": config.data.model_copy(update={"template": template})})




def visible(text: str) -> str:
    """The text, with its invisible characters and direction marks written as numbers."""
    return "".join(map(_visible, text))


def plain(text: str, length: int) -> str:
    """A text on one line of at most `length` characters, for a figure."""
    return clip(" ".join(visible(text).split()), length)


def _visible(letter: str) -> str:
    if letter in "\n\t" or letter.isprintable():
        return letter
    code = ord(letter)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    # Spaces of other widths are harmless; directions, joiners, surrogates and unassigned characters are not.
    return " " if unicodedata.category(letter) == "Zs" else f"⟨U+{code:04X}⟩"


def ends(text: str, length: int) -> str:
    """Its beginning and its end, of at most `length` characters each."""
    return text if len(text) <= 2 * length else f"{text[:length]}\n…\n{text[-length:]}"


def clip(text: str, length: int) -> str:
    """At most `length` characters of it."""
    return text if len(text) <= length else text[: length - 1] + "…"
