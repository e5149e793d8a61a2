"""Where a run reports its progress: the `View` that the loop, SFT and the quickstart call.

`LiveView` (in `report.console`, drawn by rich) serves a terminal, `PlainView` a log file or a pipe, `SilentView` tests
and callers from Python. All of them share the pace of a stage and the list of metrics worth showing.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from strop.base import progress
from strop.base.text import counted, duration, number, percent

Values = Mapping[str, float | None]


class View(Protocol):
    """Where a run reports to. Calls come from one thread, in order; none of them may raise for a missing metric."""

    def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
        """Begin a stage (`sft`, `evaluate`, `rl` …) of `total` steps, None where unknown; ends the one before.

        Other units than steps (`completions`) are made many at a time, and arrive in bursts.
        """
        ...

    def advance(self, step: int, metrics: Values) -> None:
        """Step `step` of the stage is done (1-based; a resumed stage starts at a later one)."""
        ...

    def evaluated(self, step: int, metrics: Values) -> None:
        """Show an evaluation after `step`: an earlier step, or 0, where it ran while training went on."""
        ...

    def beat(self, text: str) -> None:
        """There was no output for a while; `text` is what is being done. Called by the thread of the heartbeat."""
        ...

    def note(self, text: str) -> None:
        """One line worth reading: a checkpoint written, problems left out, a warning."""
        ...

    def close(self) -> None:
        """The run is over, well or not; may be called twice."""
        ...


class SilentView:
    """Shows nothing."""

    def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
        pass

    def advance(self, step: int, metrics: Values) -> None:
        pass

    def evaluated(self, step: int, metrics: Values) -> None:
        pass

    def beat(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


Clock = Callable[[], float]

BURSTS = 0.1  # the share of a stage after which the pace of results that arrive in bursts is known


class Pace:
    """How long a stage has run and how much longer it will, from the pace of its latest `window` steps.

    `left` is None before the share `known_from` of the stage.
    """

    def __init__(
        self, total: int | None, clock: Clock = time.monotonic, window: int = 20, known_from: float = 0.0
    ) -> None:
        self.total = total
        self.step = 0
        self._known_from = known_from
        self._clock = clock
        self._started = clock()
        self._ends: deque[tuple[int, float]] = deque(maxlen=window + 1)

    @classmethod
    def of(cls, total: int | None, unit: str, clock: Clock = time.monotonic) -> Pace:
        """The pace of a stage; results that arrive in bursts are averaged over the whole stage, after a tenth of it."""
        return cls(total, clock) if unit == "steps" else cls(total, clock, window=total or 1, known_from=BURSTS)

    def advance(self, step: int) -> None:
        """Note that `step` has just ended."""
        if not self._ends:
            # A resumed stage starts late: the time since the stage began was spent on this one step.
            self._ends.append((0 if self._known_from else step - 1, self._started))
        self._ends.append((step, self._clock()))
        self.step = step

    @property
    def elapsed(self) -> float:
        """Seconds since the stage began."""
        return self._clock() - self._started

    @property
    def left(self) -> float | None:
        """Seconds left at the pace of the latest steps; None before the first step or without a total."""
        if self.total is None or not self._ends or self.step < self._known_from * self.total:
            return None
        (first, begun), (last, ended) = self._ends[0], self._ends[-1]
        if last <= first:
            return None
        remaining = (self.total - last) * (ended - begun) / (last - first)
        return max(0.0, remaining - (self._clock() - ended))


def known(metrics: Values, name: str) -> float | None:
    """The metric, or None if it is missing or not finite."""
    value = metrics.get(name)
    return value if value is not None and math.isfinite(value) else None


def benchmark_rates(metrics: Values) -> dict[str, float]:
    """The pass rate of each benchmark that is measured during training, by its name."""
    found = {name: known(metrics, name) for name in metrics if BENCHMARK_RATE.fullmatch(name)}
    return {name.split("/", 1)[1].rpartition("/")[0]: value for name, value in found.items() if value is not None}


# `evaluation/NAME/pass_rate`, where `evaluation/pass_rate/NAME` is a domain of the held-out problems.
BENCHMARK_RATE = re.compile(r"evaluation/(?!pass_rate/).+/pass_rate")

# The metrics that a view shows, in order: label, metric, format.
SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("held-out", "evaluation/pass_rate", percent),
    ("pass", "pass_rate", percent),
    ("reward", "reward/mean", number),
    ("loss", "loss", number),
    ("entropy", "entropy", number),
    ("length", "length/mean", lambda value: f"{value:.1f}"),
    ("truncated", "truncation_rate", percent),
    ("ratio max", "ratio/max", number),
    ("mismatch", "mismatch/mean", number),
    ("lag max", "lag/max", number),
    ("lr", "lr", lambda value: f"{value:.1e}"),
    ("tok/s", "tokens_per_second", lambda value: f"{value:,.0f}"),
)
SECONDS: tuple[tuple[str, str], ...] = (
    ("rollout", "seconds/rollout"),
    ("verify", "seconds/verify"),
    ("update", "seconds/update"),
    ("evaluation", "seconds/evaluation"),
    ("other", "seconds/other"),
)


def describe_step(name: str, step: int, total: int | None, metrics: Values, left: float | None) -> str:
    """One step as one line: `rl 12/40 · pass 41.2% · … · 9.8 s (rollout 6.1, update 3.3) · left 4 min 34 s`."""
    parts = [f"{name} {step}" if total is None else f"{name} {step}/{total}"]
    for label, metric, write in SHOWN:
        value = known(metrics, metric)
        if value is not None:
            parts.append(f"{label} {write(value)}")
    parts += [f"{label} {percent(value)}" for label, value in benchmark_rates(metrics).items()]
    whole = known(metrics, "seconds/step")
    if whole is not None:
        spent = [(label, known(metrics, metric)) for label, metric in SECONDS]
        detail = ", ".join(f"{label} {value:.1f}" for label, value in spent if value is not None and value >= 0.05)
        parts.append(f"{whole:.1f} s ({detail})" if detail else f"{whole:.1f} s")
    if left is not None:
        parts.append(f"left {duration(left)}")
    return " · ".join(parts)


class PlainView:
    """One line a step, flushed; steps that carry no reward (SFT, evaluation) at most one line every `interval` seconds.

    The first and the last step of a stage are always written.
    """

    def __init__(self, stream: TextIO | None = None, clock: Clock = time.monotonic, interval: float = 2.0) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._clock = clock
        self._interval = interval
        self._name = ""
        self._pace: Pace | None = None
        self._written: float | None = None

    def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
        self._name, self._pace, self._written = name, Pace.of(total, unit, self._clock), None
        progress.made(f"the start of {name}")
        self._print(f"{name}: {counted(total, unit)}" if total is not None else name)

    def advance(self, step: int, metrics: Values) -> None:
        """A line for the step, unless it is one of many quick ones."""
        if self._pace is None:
            self.stage("steps", None)
        assert self._pace is not None
        progress.made(f"{self._name} {step}")
        self._pace.advance(step)
        now, total = self._clock(), self._pace.total
        steady = "reward/mean" in metrics or "evaluation/pass_rate" in metrics or step == total
        if steady or self._written is None or now - self._written >= self._interval:
            self._written = now
            self._print(describe_step(self._name, step, total, metrics, self._pace.left))

    def evaluated(self, step: int, metrics: Values) -> None:
        """A line."""
        self._print(describe_step("evaluation of step", step, None, metrics, None))

    def beat(self, text: str) -> None:
        """A line with the stage, its step and what is being done."""
        pace = self._pace
        stage = [] if pace is None else [describe_step(self._name, pace.step, pace.total, {}, pace.left)]
        self._print(" · ".join([*stage, text]))

    def note(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        self._print("")

    def _print(self, line: str) -> None:
        """Write a line; a closed pipe or terminal does not end the run."""
        progress.CURRENT.shown()
        with contextlib.suppress(BrokenPipeError, OSError):
            if line:
                print(line, file=self._stream)
            self._stream.flush()
