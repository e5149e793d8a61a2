"""The claims' figures: small effects beside large ones can be read, and so can entropies beside one that explodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.claims.analysis import judge
from bench.claims.catalogue import CLAIMS
from bench.claims.execute import Curve
from bench.claims.figure import SHOWN, draw_metric, panel
from bench.claims.record import completed

from strop.report.drawing import canvas

DOCS = Path(__file__).parents[3] / "docs"


def test_most_differences_of_pass_rates_have_most_of_the_width() -> None:
    """Of the claims of the docs most are within ten points, and some beyond fifty."""
    claims = [claim for claim in CLAIMS.values() if claim.unit in ("pass rate", "share")]
    results = completed({claim.name: judge({}, claim.says, claim.margin) for claim in claims}, claims, DOCS)
    claims = [claim for claim in claims if results[claim.name].effect is not None]
    effects = [found.effect.value for found in results.values() if found.effect is not None]
    assert max(map(abs, effects)) > 0.5 and sorted(map(abs, effects))[len(effects) * 3 // 4] < 0.1
    axes = canvas(8, 8).add_subplot()
    panel(axes, "", claims, results, 100.0)
    to_pixels, frame = axes.transData, axes.bbox
    left, right = (to_pixels.transform((points, 0))[0] for points in (-10, 10))
    assert right - left > 0.5 * frame.width
    assert frame.x0 < to_pixels.transform((100 * min(effects), 0))[0]
    assert to_pixels.transform((100 * max(effects), 0))[0] < frame.x1


@pytest.mark.parametrize("metric", ["evaluation/pass_rate", "evaluation/entropy"])
def test_curves_are_apart_and_the_legend_hides_none(metric: str) -> None:
    """Arms that end at 0.03, 0.05 and 1: half as much again is a fifth of the height of a factor of ten."""
    ends = dict(zip((name for name, _ in SHOWN), (0.03, 0.05, 0.04, 0.1, 1.0, 0.5), strict=True))
    curves = {}
    for name, end in ends.items():
        rows: tuple[dict[str, float | None], ...] = ({"step": 0.0, metric: 0.27}, {"step": 16.0, metric: end})
        curves[name] = [Curve(name, 0, None, 1.0, rows)]
    axes = canvas(4, 3).add_subplot()
    draw_metric(axes, curves, metric, "Held out")
    low, high = (axes.transData.transform((0, value))[1] for value in (0.03, 0.05))
    assert (high - low > 0.1 * axes.bbox.height) == (metric == "evaluation/entropy")
    assert (axes.get_ylim()[0] == 0) == (metric == "evaluation/pass_rate")
    legend = axes.get_legend()
    assert legend is not None and legend.get_window_extent().y0 >= axes.bbox.y1
