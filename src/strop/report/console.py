"""The live view, drawn by rich: progress, metrics of the latest step with their trend, and the seconds of a step."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from strop.base import progress
from strop.base.text import counted, duration, percent
from strop.base.view import SECONDS, SHOWN, Pace, PlainView, Values, View, benchmark_rates, known

LIVE_MINIMUM_WIDTH = 60
HISTORY = 200
TREND_WIDTH = 24
BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = TREND_WIDTH) -> str:
    """`values` as one line of blocks from the smallest to the largest, averaged down to `width` of them."""
    if not values:
        return ""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:], strict=False)]
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        return BLOCKS[0] * len(values)
    return "".join(BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] for value in values)


class LiveView:
    """A panel that redraws itself a few times a second; notes stay above it.

    A metric that a step lacks keeps its last value, so that rare ones such as the held-out pass rate stay visible.
    """

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._console = console
        self._name, self._unit = "starting", "steps"
        self._pace = Pace(None)
        self._latest: dict[str, float] = {}
        self._history: dict[str, deque[float]] = {}
        self._lock = threading.Lock()  # rich draws from its own thread
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4.0, transient=False)
        self._live.start()

    def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
        if self._pace.step:
            done = f"{counted(self._pace.step, self._unit)} in {duration(self._pace.elapsed)}"
            self._console.print(Text(f"{self._name}: {done}"))
        with self._lock:
            self._latest, self._history = {}, {}
            self._name, self._unit, self._pace = name, unit, Pace.of(total, unit)

    def advance(self, step: int, metrics: Values) -> None:
        """Take over the step's metrics; the next refresh draws them."""
        with self._lock:
            self._pace.advance(step)
            self._take(metrics)

    def _take(self, metrics: Values) -> None:
        for name in metrics:
            value = known(metrics, name)
            if value is not None:
                self._latest[name] = value
                self._history.setdefault(name, deque(maxlen=HISTORY)).append(value)

    def evaluated(self, step: int, metrics: Values) -> None:
        """The next refresh draws it; the latest measurement is shown, of whatever step."""
        with self._lock:
            self._take(metrics)

    def beat(self, text: str) -> None:
        """Nothing: the panel is drawn anew all the time."""

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        with self._lock:
            return self._panel()

    def _panel(self) -> RenderableType:
        parts: list[RenderableType] = [self._progress()]
        if doing := progress.CURRENT.text:
            parts.append(Text(doing, style="bright_black", no_wrap=True, overflow="ellipsis"))
        if self._latest:
            parts += [Text(), self._metrics()]
            shares = self._seconds()
            if shares is not None:
                parts += [Text(), shares]
        return Panel(Group(*parts), title=self._title, title_align="left", width=min(self._console.width, 88))

    def _progress(self) -> RenderableType:
        pace = self._pace
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True, justify="right")
        counted = f"{pace.step}/{pace.total}" if pace.total is not None else f"{pace.step}" if pace.step else ""
        bar = ProgressBar(total=pace.total, completed=pace.step) if pace.total else ProgressBar(total=None, pulse=True)
        left = f", {duration(pace.left)} left" if pace.left is not None else ""
        line.add_row(Text(f"{self._name} {counted}", style="bold"), bar, f"{duration(pace.elapsed)}{left}")
        return line

    def _metrics(self) -> RenderableType:
        table = Table.grid(padding=(0, 3))
        table.add_column(no_wrap=True, style="bright_black")
        table.add_column(no_wrap=True, justify="right", min_width=14)
        table.add_column(no_wrap=True, style="cyan")
        benchmarks = [(name, f"evaluation/{name}/pass_rate", percent) for name in benchmark_rates(self._latest)]
        for label, metric, write in (*SHOWN, *benchmarks):
            if metric in self._latest:
                table.add_row(label, write(self._latest[metric]), sparkline(tuple(self._history[metric])))
        return table

    def _seconds(self) -> RenderableType | None:
        """The seconds of the last step, by part."""
        spent = [(label, self._latest[metric]) for label, metric in SECONDS if metric in self._latest]
        if not spent:
            return None
        whole = self._latest.get("seconds/step", sum(seconds for _, seconds in spent))
        parts = "  ".join(f"{label} {seconds:.1f}" for label, seconds in spent)
        return Text(f"seconds a step  {parts}  together {whole:.1f}", style="bright_black")


@contextmanager
def open_view(plain: bool = False, title: str = "strop", stream: TextIO | None = None) -> Iterator[View]:
    """The live view on a wide enough terminal with UTF-8, else plain lines; the heartbeat shows in it what goes on.

    On standard output unless `stream` is given.
    """
    target = stream if stream is not None else sys.stdout
    console = Console(file=target)
    live = not plain and target.isatty() and (target.encoding or "").lower().startswith("utf")
    if live and not console.is_dumb_terminal and console.width >= LIVE_MINIMUM_WIDTH:
        view: View = LiveView(title, console)
    else:
        view = PlainView(target)
    progress.CURRENT.show = view.beat
    try:
        yield view
    finally:
        progress.CURRENT.show = progress.to_stderr
        view.close()
