"""The picture of a run: drawn from metrics.jsonl alone, panels only for what is there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D

from strop.base.types import InputError
from strop.report.plots import PANELS, benchmarks, canvas, percent_tick, plot_run, points, smooth
from strop.run.folder import RunFolder

PNG = b"\x89PNG\r\n"


@pytest.mark.parametrize(("draw", "names"), PANELS, ids=[draw.__name__.strip("_") for draw, _ in PANELS])
def test_a_panel_shows_what_there_is_of_its_metrics(draw: Any, names: tuple[str, ...]) -> None:
    axes = canvas(4, 3).add_subplot()
    gaps = (None, float("inf"), 0.75)
    draw(axes, [{"step": 1, names[0]: 0.5}, *({"step": step, names[0]: gaps[step % 3]} for step in range(2, 6))])
    (shown,) = [artist for artist in axes.get_children() if isinstance(artist, (Line2D, PolyCollection))]
    places = np.asarray(shown.get_xydata() if isinstance(shown, Line2D) else shown.get_paths()[0].vertices)
    assert axes.get_title("left")
    assert {(1.0, 0.5), (2.0, 0.75), (5.0, 0.75)} <= set(map(tuple, places.tolist()))


def test_a_run_becomes_one_png(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    run.append_metrics(0, {"evaluation/pass_rate": 0.2, "evaluation/stderr": 0.02, "evaluation/exam/pass_rate": 0.1})
    for step in range(1, 41):
        run.append_metrics(
            step,
            {
                "pass_rate": step / 50,
                "entropy": float("nan") if step == 3 else 0.1,
                "ratio/min": 0.1,
                "ratio/mean": 1.0,
                "ratio/max": 8.0,
                "seconds/rollout": 1.0,
                "seconds/update": 0.5 if step > 2 else None,
            },
        )
    target = plot_run(tmp_path)
    assert benchmarks(run.read_metrics()) == ["exam"]
    assert target == tmp_path / "plots" / "training.png" and target.read_bytes().startswith(PNG)


def test_a_fine_tuning_run_has_a_picture_too(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    run.append_metrics(1, {"loss": 2.0})
    assert plot_run(tmp_path, tmp_path / "loss.png").read_bytes().startswith(PNG)


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, {})
    with pytest.raises(InputError, match="nothing to draw yet"):
        plot_run(tmp_path)


def test_of_two_lines_of_a_step_the_last_counts() -> None:
    rows: list[dict[str, float | None]] = [{"step": 1, "a": 1.0}, {"step": 2, "a": None}, {"step": 1, "a": 3.0}]
    assert points(rows, "a") == ([1], [3.0])


def test_smoothing_keeps_length_and_constants() -> None:
    assert smooth([2.0] * 7, 5) == [2.0] * 7
    assert smooth([0.0, 3.0, 0.0], 3) == [1.5, 1.0, 1.5]


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.425, "42.5%"), (0.4, "40%"), (0.1 + 0.2, "30%"), (-1e-17, "0%"), (0.0025, "0.25%"), (1, "100%")],
)
def test_a_tick_says_where_it_lies(share: float, said: str) -> None:
    assert percent_tick(share) == said
