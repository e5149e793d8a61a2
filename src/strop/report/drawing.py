"""The figure writer: canvas, colours, axes, legends, and the files that figures are written to.

A `Draw` draws one panel on matplotlib's axes, with labels; the writer of the figure adds grid and legend. The same
panel serves a PNG, an SVG file, and an SVG within a page, whose colours are CSS variables so that it follows the page's
light, dark or printed theme. matplotlib is imported only when a figure is drawn.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from strop.base.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#2864a8", "#d9822b", "#3a8f5c", "#c0392b", "#7d5ba6", "#8a8f98"
# Blue and orange first: the pair that every colour vision tells apart.
SERIES = (BLUE, ORANGE, GREEN, PURPLE, RED, "#2a9d9d", "#8c6d31", "#c2568e", GREY, "#4c5a99")
Dash = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
DOTTED: Dash = (0, (4, 2))  # lines that show no data
INK, MUTED, GRID = "#30343b", "#69707b", "#e3e6eb"
ON_COLOR = "#ffffff"  # text on a coloured area
THEMED = {color: f"var(--s{place})" for place, color in enumerate(SERIES)} | {
    INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", ON_COLOR: "var(--card)",
}  # fmt: skip
PAGE_PANEL = (4.3, 2.8)  # inches
LEGEND_LINE = 0.17  # inches
LETTERS_PER_INCH, LEGEND_SIGN = 20, 6  # of a legend; the line before a label takes the room of so many letters

_PAINT = re.compile(r"(fill|stroke): (#[0-9a-f]{6})")
_GROUP_ID = re.compile(r'<g id="[^"]{0,200}"')
_HEAD = re.compile(r"<svg [^>]{0,600}>")
_VIEW = re.compile(r'viewBox="([0-9. ]{1,80})"')

Draw = Callable[["Axes"], None]


# ---------------------------------------------------------------------- files


def write_figure(
    target: Path, size: tuple[float, float], fill: Callable[[Figure], None], *, svg: bool = False, dpi: int = 150
) -> list[Path]:
    """Write the figure that `fill` draws on an empty canvas of `size` inches.

    Returns:
        `target` as a PNG, and with `svg` the same drawing as an SVG next to it. The same drawing gives the same files.
    """
    with _settings():
        figure = canvas(*size, dpi=dpi)
        fill(figure)
        return [_save(figure, target.with_suffix(suffix)) for suffix in ((".png", ".svg") if svg else (".png",))]


def write_panels(target: Path, title: str, panels: Sequence[tuple[str, Draw]], columns: int = 3) -> Path:
    """Write a PNG of panels in a grid of at most `columns`, each with its own title."""
    across = min(columns, len(panels))
    down = math.ceil(len(panels) / across)
    rows: list[list[int]] = [[] for _ in range(down)]  # lines of legends

    def fill(figure: Figure) -> None:
        figure.suptitle(title, fontsize=13, fontweight="bold")
        for place, (name, draw) in enumerate(panels, start=1):
            axes = figure.add_subplot(down, across, place)
            draw(axes)
            style_axes(axes)
            rows[(place - 1) // across].append(add_legend(axes, name, 10.5))
        figure.set_figheight(3.3 * down + 0.4 + LEGEND_LINE * sum(map(max, rows)))

    write_figure(target, (4.6 * across, 3.3 * down + 0.4), fill)
    return target


def canvas(width: float, height: float, dpi: int = 150) -> Figure:
    """An empty figure of so many inches, without pyplot, which would keep global state and might look for a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def _settings(salt: str = "strop") -> Iterator[None]:
    """matplotlib's settings for drawing and saving; `salt` keeps the names within several SVGs of one page apart."""
    from matplotlib import rc_context

    # Names of runs and domains are texts, not formulas.
    plain: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": salt, "text.parse_math": False, "text.color": INK,
    }  # fmt: skip
    with rc_context(plain), warnings.catch_warnings():
        # A name in letters that the PNG's font lacks is drawn as boxes; the page has its text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _save(figure: Figure, target: Path) -> Path:
    kind = target.suffix[1:]
    with replacing(target) as temporary:
        figure.savefig(temporary, format=kind, facecolor="white", metadata={"Date": None} if kind == "svg" else None)
    return target


# ---------------------------------------------------------------------- axes


def style_axes(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Put a faint grid behind the curves, and keep only the left and the bottom line of the frame."""
    axes.grid(True, which="major", axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=MUTED, labelcolor=INK)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK)
        label.set_fontsize(9)
    for side, spine in axes.spines.items():
        spine.set_color(MUTED)
        spine.set_visible(side in ("left", "bottom"))


def add_legend(axes: Axes, title: str = "", size: float = 10.0) -> int:
    """Add a legend of all labels above the panel, where it hides nothing, and a title above both.

    Returns:
        The lines of the legend; 0 without a label.
    """
    labels = axes.get_legend_handles_labels()[1]
    lines = 0
    figure = axes.get_figure(root=True)
    if labels and figure is not None:
        width = axes.get_position().width * figure.get_figwidth()
        columns = max(1, min(len(labels), 4, int(width * LETTERS_PER_INCH / (max(map(len, labels)) + LEGEND_SIGN))))
        lines = math.ceil(len(labels) / columns)
        axes.legend(
            fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, borderaxespad=0.2,
            handlelength=1.5, columnspacing=1.2,
        )  # fmt: skip
    if title:
        axes.set_title(title, fontsize=size, loc="left", pad=6.0 + 72 * LEGEND_LINE * lines)
    return lines


def percent_axis(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """Write shares as percentages."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(percent_tick))


def percent_tick(share: float, _: object = None) -> str:
    """A share as its percentage, with its decimals: ticks may lie at 42.5 %."""
    return f"{round(100 * share, 6) + 0.0:g}%"


def step_axis(axes: Axes) -> None:
    """Whole steps on the x-axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    axes.set_xlabel("step")


def number_axis(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """Short numbers, without a common factor at the end of the axis."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(short_number))


def log_axis(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """A logarithmic axis; keeps the present limits if they are positive.

    Ticks lie at 0.5, 1, 2 on a short axis, and at powers of ten on a long one.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    limits = axes.get_xlim() if which == "x" else axes.get_ylim()
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    if limits[0] > 0:
        (axes.set_xlim if which == "x" else axes.set_ylim)(*limits)
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 500 else (1.0,), numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(short_number))


def short_number(value: float, _: object = None) -> str:
    """`0.25`, `500`, `2k`, `1.5M`, `3e−7`."""
    for limit, sign in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{sign}".replace("-", "−")
    return f"{value:.6g}".replace("e-0", "e-").replace("-", "−")


# ---------------------------------------------------------------------- figures within a page


class Chart(NamedTuple):
    """The content of a figure: a panel with its title and caption; `key` is unique in a page."""

    key: str
    title: str
    caption: str
    draw: Draw


def page_svg(chart: Chart) -> str:
    """The chart as an SVG for a page, which writes the title itself."""
    with _settings(chart.key):
        figure = canvas(*PAGE_PANEL)
        axes = figure.add_subplot()
        axes.set_facecolor("none")
        chart.draw(axes)
        style_axes(axes)
        figure.set_figheight(PAGE_PANEL[1] + LEGEND_LINE * max(add_legend(axes) - 1, 0))
        text = io.StringIO()
        figure.savefig(text, format="svg", facecolor="none", metadata={"Date": None})
    return themed(text.getvalue(), chart.title)


def themed(svg: str, title: str) -> str:
    """The SVG of matplotlib as a part of a page: colours by variable, no size, unique group identifiers."""
    svg = svg[svg.index("<svg ") :]
    # A rule for `*` within <style> would hold for the whole page it is put into.
    for tag in ("metadata", "style"):
        start, end = svg.find(f"<{tag}"), svg.find(f"</{tag}>")
        if 0 <= start < end:
            svg = svg[:start] + svg[end + len(f"</{tag}>") :]
    svg = _GROUP_ID.sub("<g", svg)
    svg = _PAINT.sub(lambda found: f"{found[1]}: {THEMED.get(found[2], found[2])}", svg)
    view = _VIEW.search(svg[:800])
    box = view[1] if view else "0 0 346 223"
    return _HEAD.sub(f'<svg viewBox="{box}" role="img" aria-label="{html.escape(title)}">', svg, count=1)
