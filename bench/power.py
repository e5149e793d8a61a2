"""Simulated studies that are planned by `strop plan power`: how often they decide, and decide wrongly.

    python bench/power.py --plot docs/measured/power.png         # about two minutes of one core

Every study has a pilot of five seeds, or knows the deviation. From it the seeds are planned that call a difference of 4
points better with a probability of 80 % (margin 2). The study is new, and ends with one verdict, or with the first look
that decides. False: better or worse where the difference is 0. One JSON object a line; by default 500 studies each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from strop.lab.ablation.power import LEVEL, MOST, Array, first_looks, look_level, needed, running, verdicts
from strop.lab.scaling.compare import MARGIN
from strop.report.drawing import MUTED, SERIES, percent_axis, style_axes, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIFFERENCE = 2 * MARGIN
PILOTS = (None, 5)
DEVIATIONS = (0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05)
GRID = np.geomspace(0.004, 0.16, 100)  # deviations for which studies are planned; a pilot's is taken for the nearest


class Outcome(NamedTuple):
    """Of studies: the share that decides the difference, and one of 0 falsely; seeds in the mean, and without a plan.

    `unplanned`: the share whose pilot asks for more than `MOST` seeds; the other shares are of the rest.
    """

    decided: float
    false: float
    seeds: float
    unplanned: float


@lru_cache
def plans(pilot: int | None) -> Array:
    """Seeds for one verdict and the most until decided, [2, GRID]; 0 where `MOST` do not suffice."""
    found = [needed(DIFFERENCE, float(deviation), pilot) for deviation in GRID]
    return np.array([[each.once or 0 for each in found], [each.until_decided or 0 for each in found]], np.float64)


def studies(deviation: float, pilot: int | None, until: bool, count: int, seed: int = 0) -> Outcome:
    """The outcome of `count` studies of a difference, and as many of none, whose differences deviate so."""
    rng = np.random.default_rng(seed)
    seen = deviation * (np.ones(count) if pilot is None else rng.standard_normal((count, pilot)).std(axis=1, ddof=1))
    nearest = np.searchsorted(np.sqrt(GRID[1:] * GRID[:-1]), seen)
    most = plans(pilot)[int(until), nearest].astype(int)
    planned = most > 0

    def share(difference: float, asked: Sequence[int]) -> tuple[float, float]:
        """The planned studies of such a difference that come to one of these verdicts, and their mean seeds."""
        values = running(difference + deviation * rng.standard_normal((count, MOST)))
        codes = verdicts(values, look_level(LEVEL) if until else LEVEL, MARGIN)
        code, at = first_looks(codes) if until else (codes[np.arange(count), most - 1], most)
        found = np.isin(code, asked) & (at <= most)
        return float(found[planned].mean()), float(np.minimum(at, most)[planned].mean())

    decided, seeds = share(DIFFERENCE, (1,))
    return Outcome(decided, share(0.0, (1, -1))[0], seeds, float(1.0 - planned.mean()))


def outcomes(count: int) -> Iterator[tuple[int | None, bool, float, Outcome]]:
    """Of every pilot, way to end and deviation."""
    for pilot in PILOTS:
        for until in (False, True):
            for place, deviation in enumerate(DEVIATIONS):
                yield pilot, until, deviation, studies(deviation, pilot, until, count, place)


def draw(found: Sequence[tuple[int | None, bool, float, Outcome]], target: Path) -> None:
    """Shares that decide and decide falsely, over the deviation."""

    def panel(axes: Axes, place: int, title: str, band: tuple[float, float]) -> None:
        style_axes(axes)
        axes.axhspan(*band, color=MUTED, alpha=0.2, linewidth=0)
        for number, (pilot, until) in enumerate((pilot, until) for pilot in PILOTS for until in (False, True)):
            rows = [(deviation, outcome) for one, other, deviation, outcome in found if (one, other) == (pilot, until)]
            name = f"{'known' if pilot is None else f'pilot of {pilot}'}, {'until decided' if until else 'one verdict'}"
            axes.plot(
                [100 * deviation for deviation, _ in rows], [outcome[place] for _, outcome in rows], "o-",
                color=SERIES[number], label=name, markersize=4,
            )  # fmt: skip
        percent_axis(axes)
        axes.set_xlabel("deviation of the difference over seeds (points)")
        axes.set_title(title, fontsize=10, loc="left")

    def fill(figure: object) -> None:
        left, right = figure.subplots(1, 2)  # type: ignore[attr-defined]
        panel(left, 0, f"A difference of {100 * DIFFERENCE:g} points is called better", (0.77, 0.83))
        panel(right, 1, "No difference, and one is called", (0.0, 1.0 - LEVEL))
        left.set_ylim(0.6, 1.0)
        right.set_ylim(0.0, 0.1)
        left.legend(fontsize=8, frameon=False)

    write_figure(target, (9.0, 3.6), fill)


def main() -> None:
    """Simulate, tell, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    found = []
    for pilot, until, deviation, outcome in outcomes(asked.studies):
        found.append((pilot, until, deviation, outcome))
        about = {"bench": "power", "pilot": pilot, "until_decided": until, "deviation": deviation}
        print(json.dumps(about | {name: round(value, 3) for name, value in outcome._asdict().items()}), flush=True)
    if asked.plot is not None:
        draw(found, asked.plot)


if __name__ == "__main__":
    main()
