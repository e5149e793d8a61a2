"""The curves of runs: drawn from metrics.jsonl alone, a chart only for what is there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D

from strop.base.types import InputError
from strop.report.curves import GROUPS, Curves, Scale
from strop.report.drawing import canvas, page_svg
from strop.report.runs import COMBINED, RunData, read_runs
from strop.report.training_figures import curves_chart, plot_run, smooth, training_charts
from strop.run.folder import RunFolder

PNG = b"\x89PNG\r\n"
CURVES = [curves for group in GROUPS.values() for curves in group]


def run_of(path: Path, *rows: tuple[int, dict[str, Any]]) -> RunData:
    folder = RunFolder.create(path, {"recipe": "grpo"})
    for step, metrics in rows:
        folder.append_metrics(step, metrics)
    folder.close()
    return read_runs([path])[0]


@pytest.mark.parametrize("curves", CURVES, ids=[curves.key for curves in CURVES])
def test_a_chart_shows_what_there_is_of_its_metrics(curves: Curves, tmp_path: Path) -> None:
    name = next(iter(curves.lines))
    gaps = (None, float("inf"), 0.75)
    run = run_of(tmp_path, (1, {name: 0.5}), *((step, {name: gaps[step % 3]}) for step in range(2, 6)))
    axes = canvas(4, 3).add_subplot()
    curves_chart(curves, [run]).draw(axes)
    (shown,) = [artist for artist in axes.get_children() if isinstance(artist, (Line2D, PolyCollection))]
    places = np.asarray(shown.get_xydata() if isinstance(shown, Line2D) else shown.get_paths()[0].vertices)
    assert set(map(tuple, places.tolist())) == {(1.0, 0.5), (2.0, 0.75), (5.0, 0.75)}
    low, high = axes.get_ylim()
    assert low <= 0.5 < 0.75 <= high and axes.get_xlabel() == "step"


@pytest.mark.parametrize(("scale", "values"), [("percent", (0.0, 0.0)), ("percent", (0.0, 1.0)), ("zero", (0.0, 9.0))])
def test_a_curve_at_an_end_of_its_axis_keeps_clear_of_the_frame(
    scale: Scale, values: tuple[float, float], tmp_path: Path
) -> None:
    run = run_of(tmp_path, *((step, {"it": value}) for step, value in enumerate(values, 1)))
    axes = canvas(4, 3).add_subplot()
    curves_chart(Curves("it", "It", {"it": "it"}, scale), [run]).draw(axes)
    low, high = axes.get_ylim()
    assert min(values) - low > 0.02 * (high - low) < high - max(values)


def test_a_run_becomes_one_png(tmp_path: Path) -> None:
    rows: list[tuple[int, dict[str, Any]]] = [
        (0, {"evaluation/pass_rate": 0.2, "evaluation/stderr": 0.02, "evaluation/exam/pass_rate": 0.1})
    ]
    for step in range(1, 41):
        rows.append(
            (
                step,
                {
                    "pass_rate": step / 50, "entropy": float("nan") if step == 3 else 0.1, "ratio/min": 0.1,
                    "ratio/mean": 1.0, "ratio/max": 8.0, "seconds/rollout": 1.0,
                    "seconds/update": 0.5 if step > 2 else None,
                },
            )
        )  # fmt: skip
    run = run_of(tmp_path, *rows)
    assert run.benchmarks == ["exam"]
    keys = {chart.key for _, charts in training_charts([run]) for chart in charts}
    assert keys == {"held-out-pass-rate", "training-pass-rate", "benchmarks", "entropy", "ratio", "seconds"}
    target = plot_run(tmp_path)
    assert target == tmp_path / "plots" / "training.png" and target.read_bytes().startswith(PNG)


def test_a_fine_tuning_run_has_a_picture_too(tmp_path: Path) -> None:
    run_of(tmp_path, (1, {"loss": 2.0}))
    assert plot_run(tmp_path, tmp_path / "loss.png").read_bytes().startswith(PNG)


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, {})
    with pytest.raises(InputError, match="metrics.jsonl"):
        plot_run(tmp_path)


def test_of_several_metrics_the_only_one_that_is_known_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", *((step, {"length/correct": 3.0 + step}) for step in (1, 2)))
    curves = next(each for each in CURVES if each.key == "length-correct")
    svg = page_svg(curves_chart(curves, [run]))
    assert ">correct<" in svg and ">reflective<" not in svg


def test_several_runs_are_named_once_and_so_is_each_metric(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / name, (1, {"length/correct": 3.0, "length/reflective": 5.0})) for name in ("a", "b")]
    axes = canvas(4, 3).add_subplot()
    curves_chart(next(each for each in CURVES if each.key == "length-correct"), runs).draw(axes)
    assert axes.get_legend_handles_labels()[1] == ["a", "b", "correct", "reflective"]


def test_of_two_lines_of_a_step_the_last_counts(tmp_path: Path) -> None:
    run = run_of(tmp_path, (1, {"a": 1.0}), (2, {"a": None}), (1, {"a": 3.0}))
    assert run.series("a") == ([1], [3.0])


def test_smoothing_keeps_length_and_constants() -> None:
    assert smooth([2.0] * 7, 5) == [2.0] * 7
    assert smooth([0.0, 3.0, 0.0], 3) == [1.5, 1.0, 1.5]


def test_several_benchmarks_have_a_mean_where_all_were_measured(tmp_path: Path) -> None:
    rates = {"evaluation/aime/pass_rate": 0.25, "evaluation/code/pass_rate": 0.5}
    run = run_of(tmp_path, (0, rates), (1, {"evaluation/aime/pass_rate": 0.75}), (2, {name: 1.0 for name in rates}))
    assert run.by_step(COMBINED) == {0: 0.375, 2: 1.0}
    (chart,) = [chart for _, charts in training_charts([run]) for chart in charts]
    assert ">mean<" in page_svg(chart)
