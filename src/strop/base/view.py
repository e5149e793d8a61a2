"""Where a run reports its progress: the `View` that the loop, SFT and the quickstart call.

`LiveView` (in `report.console`, drawn by rich) serves a terminal, `PlainView` (in `base.plain_view`) a log file or a
pipe, `SilentView` tests and callers from Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

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

    def aside(self, name: str, done: int, total: int) -> None:
        """`done` of `total` of something between two steps, such as an evaluation; done == total ends it."""
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

    def aside(self, name: str, done: int, total: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass
