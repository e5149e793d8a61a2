"""Drawing: one function draws on axes of matplotlib; out come a PNG and an SVG whose colours follow the page's theme.

The SVG names colours by CSS variables in place of the fixed ones that the PNG has, so that one drawing serves light,
dark and print.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from strop.base.files import replacing
from strop.report.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue and orange first: the pair that every colour vision tells apart.
SERIES = (BLUE, ORANGE, GREEN, PURPLE, RED, "#2a9d9d", "#8c6d31", "#c2568e", GREY, "#4c5a99")
Dash = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
INK, MUTED, GRID = "#30343b", "#69707b", "#e3e6eb"
ON_COLOR = "#ffffff"  # text on a coloured area
THEMED = {color: f"var(--s{place})" for place, color in enumerate(SERIES)} | {
    INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", ON_COLOR: "var(--card)",
}  # fmt: skip
SIZE = (4.3, 2.8)
LEGEND_LINE, TITLE_LINE = 0.17, 0.28  # inches

_PAINT = re.compile(r"(fill|stroke): (#[0-9a-f]{6})")
_GROUP_ID = re.compile(r'<g id="[^"]{0,200}"')
_HEAD = re.compile(r"<svg [^>]{0,600}>")
_VIEW = re.compile(r'viewBox="([0-9. ]{1,80})"')

Draw = Callable[["Axes"], None]


@dataclass(frozen=True)
class Picture:
    """A drawn picture: an SVG for each of its panels, and where from the page the PNG is that has all of them."""

    key: str
    title: str
    caption: str
    svgs: tuple[str, ...]
    png: str


@dataclass
class Studio:
    """Draws pictures for a page.

    Attributes:
        folder: where the page goes.
        below: the folder in it for the PNG files; empty where they lie beside the page.
        label: whose pictures they are, in front of the titles in the files.
        written: the files so far, in order.
    """

    folder: Path
    below: str = ""
    label: str = ""
    written: list[Path] = field(default_factory=list)

    def picture(self, key: str, title: str, caption: str, *draws: Draw) -> Picture:
        """Draw one picture of one or several panels; `key` names its file."""
        from matplotlib import rc_context

        name = f"{self.below}/{key}.png" if self.below else f"{key}.png"
        target = self.folder / name
        # Names of runs and domains are texts, not formulas; a fixed salt gives the same file for the same figures.
        plain: dict[Any, Any] = {"svg.fonttype": "none", "text.parse_math": False, "text.color": INK}
        svgs = []
        with rc_context(plain), warnings.catch_warnings():
            # A name in letters that the PNG's font lacks is drawn as boxes; the page has its text.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            for place, draw in enumerate(draws):
                with rc_context({"svg.hashsalt": f"{key} {place}"}):
                    part = _figure([draw])
                    text = io.StringIO()
                    part.savefig(text, format="svg", facecolor="none", metadata={"Date": None})
                    svgs.append(themed(text.getvalue(), title))
            whole = part if len(draws) == 1 else _figure(draws)
            # The page has the title above the picture; the file stands alone.
            whole.suptitle(" · ".join(filter(None, (self.label, title))), x=0.02, ha="left", fontsize=10, weight="bold")
            whole.set_figheight(whole.get_figheight() + TITLE_LINE)
            with replacing(target) as temporary:
                whole.savefig(temporary, format="png", facecolor="white")
        self.written.append(target)
        return Picture(key, title, caption, tuple(svgs), name)


def _figure(draws: Sequence[Draw]) -> Figure:
    # The canvas is made directly: pyplot would keep global state and might look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE[0] * len(draws), SIZE[1]), dpi=180, layout="constrained")
    FigureCanvasAgg(figure)
    for place, draw in enumerate(draws, start=1):
        axes = figure.add_subplot(1, len(draws), place)
        axes.set_facecolor("none")
        draw(axes)
        tidy(axes)
    return figure


def tidy(axes: Axes) -> None:
    """Quiet frame and grid."""
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=MUTED, labelcolor=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for side, spine in axes.spines.items():
        spine.set_color(MUTED)
        spine.set_visible(side in ("left", "bottom"))


def themed(svg: str, title: str) -> str:
    """The SVG of matplotlib as a part of a page: colours by variable, no size, no identifiers of its own groups."""
    svg = svg[svg.index("<svg ") :]
    start, end = svg.find("<metadata>"), svg.find("</metadata>")
    if 0 <= start < end:
        svg = svg[:start] + svg[end + len("</metadata>") :]
    # A rule for `*` would hold for the whole page it is put into.
    start, end = svg.find("<style"), svg.find("</style>")
    if 0 <= start < end:
        svg = svg[:start] + svg[end + len("</style>") :]
    svg = _GROUP_ID.sub("<g", svg)
    svg = _PAINT.sub(lambda found: f"{found[1]}: {THEMED.get(found[2], found[2])}", svg)
    view = _VIEW.search(svg[:800])
    box = view[1] if view else "0 0 346 223"
    return _HEAD.sub(f'<svg viewBox="{box}" role="img" aria-label="{html.escape(title)}">', svg, count=1)


def as_percent(axes: Axes) -> None:
    """Percentages on the y-axis."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0 if high - low > 0.04 else 1))


def by_step(axes: Axes) -> None:
    """Whole steps on the x-axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    axes.set_xlabel("step", fontsize=9)


def logarithmic(axes: Axes) -> None:
    """A logarithmic y-axis that reads 0.5, 1, 2 where it is short, powers of ten where it is long."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axes.get_ylim()
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    short_axis = low > 0 and high / low < 500
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short_axis else (1.0,), numticks=8))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(short))


def plainly(axes: Axes) -> None:
    """Numbers on the y-axis without a factor written elsewhere."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(short))


def short(value: float, _: object = None) -> str:
    """`0.25`, `500`, `2k`, `1.5M`, `3e-07`."""
    for limit, sign in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{sign}".replace("-", "−")
    return f"{value:.6g}".replace("e-0", "e-").replace("-", "−")


def legend(axes: Axes, handles: Sequence[Artist] | None = None) -> None:
    """A legend above the picture where there is more than one thing to tell apart; of `handles` always."""
    shown = list(axes.get_legend_handles_labels()[0]) if handles is None else list(handles)
    if len(shown) < (2 if handles is None else 1):
        return
    labels = [str(handle.get_label()) for handle in shown]
    columns = 3 if max(map(len, labels)) <= 14 else 2
    axes.legend(
        handles=shown, fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns,
        borderaxespad=0.2, handlelength=1.5, columnspacing=1.2,
    )  # fmt: skip
    figure = axes.get_figure(root=True)
    if figure is not None:
        rows = math.ceil(len(shown) / columns)
        figure.set_figheight(max(figure.get_figheight(), SIZE[1] + LEGEND_LINE * (rows - 1)))
