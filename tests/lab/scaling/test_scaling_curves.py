"""Curves from CSV files and run folders, and what is wrong with those that cannot be read."""

import re
from pathlib import Path

import numpy as np
import pytest
from tests.lab.scaling.cases import write_csv, write_run

from strop.base.types import InputError
from strop.lab.scaling import Curve, read_curve


def test_a_csv_is_sorted_and_its_row_at_zero_is_r0(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "a.csv",
        {"note": "xyz", "Pass_Rate": [0.5, 0.2, 0.4], "compute": [20, 0, 10], "stderr": [0.01, 0.02, 0.03]},
    )
    curve = read_curve(path)
    assert curve.name == "a" and curve.r0 == 0.2 and curve.r0_stderr == 0.02
    assert curve.compute.tolist() == [10, 20] and curve.pass_rate.tolist() == [0.4, 0.5]
    assert curve.stderr is not None and curve.stderr.tolist() == [0.03, 0.01]


def test_the_problems_of_a_csv_are_not_known(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", {"compute": [0, 1], "pass_rate": [0.2, 0.9], "stderr": [0.1, 0.01]})
    assert not read_curve(path).same_problems


def test_r0_is_given_where_no_row_has_compute_zero(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", {"compute": [10, 20], "pass_rate": [0.4, 0.5]})
    curve = read_curve(path, r0=0.1)
    assert curve.r0 == 0.1 and curve.r0_stderr == 0.0 and curve.stderr is None
    with pytest.raises(InputError, match="--r0"):
        read_curve(path)


def test_a_given_r0_takes_the_place_of_the_measured_one_and_that_is_said(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", {"compute": [0, 20], "pass_rate": [0.25, 0.5]})
    curve = read_curve(path, r0=0.1)
    assert curve.r0 == 0.1 and curve.r0_stderr == 0.0
    (note,) = curve.notes
    assert "0.1" in note and "0.25" in note


def test_another_axis_is_another_column(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", {"compute": [0, 7], "steps": [0, 100], "pass_rate": [0.2, 0.5]})
    assert read_curve(path, "steps").compute.tolist() == [100] and read_curve(path).compute.tolist() == [7]
    assert read_curve(path, "device_seconds").compute.tolist() == [7 * 3600]
    seconds = write_csv(tmp_path / "b.csv", {"device_seconds": [0, 7200], "pass_rate": [0.2, 0.5]})
    assert read_curve(seconds).compute.tolist() == [2]
    with pytest.raises(InputError, match="'tokens'"):
        read_curve(path, "tokens")


def test_a_stderr_of_zero_does_not_take_all_the_weight(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", {"compute": [0, 1, 2], "pass_rate": [0.2, 0.9, 1], "stderr": [0, 0.01, 0]})
    curve = read_curve(path)
    assert curve.stderr is not None and curve.stderr.tolist() == [0.01, 0.01] and "smallest positive" in curve.notes[0]
    exact = write_csv(tmp_path / "b.csv", {"compute": [0, 1, 2], "pass_rate": [0.2, 0.9, 1], "stderr": [0, 0, 0]})
    assert read_curve(exact).stderr is None


def test_a_stderr_that_some_points_lack_is_not_used(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", {"compute": [0, 1, 2], "pass_rate": [0.2, 0.9, 1], "stderr": ["", 0.01, ""]})
    assert read_curve(path).stderr is None and "1 of 2" in read_curve(path).notes[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("compute,pass_rate\n0,0.2\nx,0.3\n", "line 3: compute"),
        ("compute,pass_rate\n0,0.2\n5,30\n", "line 3: pass_rate"),
        ("compute,pass_rate\n0,0.2\n5,nan\n", "line 3: pass_rate"),
        ("compute,pass_rate\n0,0.2\n-5,0.3\n", "line 3: compute"),
        ("compute,pass_rate\n0,0.2\n5\n", "line 3: pass_rate"),
        ("compute,rate\n0,0.2\n", "'pass_rate'"),
        ("", "'compute'"),
        ("compute,pass_rate\n0,0.2\n", ""),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"{re.escape(str(path))}.*{expected}"):
        read_curve(path)


def test_what_is_not_there_or_not_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        read_curve(tmp_path / "nowhere.csv")
    (tmp_path / "binary.csv").write_bytes(b"compute\xff\xfe")
    with pytest.raises(InputError, match=r"binary\.csv"):
        read_curve(tmp_path / "binary.csv")


def test_a_run_is_read_in_device_hours(tmp_path: Path) -> None:
    rows = [
        (0, {"evaluation/pass_rate": 0.3, "evaluation/stderr": 0.02}),
        (1, {"compute/device_seconds": 8.0, "seconds/rollout": 1.0}),
        (2, {"compute/device_seconds": 7200.0, "compute/flops": 5e9, "evaluation/pass_rate": 0.5,
             "evaluation/stderr": 0.01}),
    ]  # fmt: skip
    curve = read_curve(write_run(tmp_path / "run", rows))
    assert curve.name == "run" and curve.unit == "device_hours" and curve.notes == ()
    assert curve.r0 == 0.3 and curve.r0_stderr == 0.02 and curve.same_problems
    assert curve.compute.tolist() == [2.0] and curve.pass_rate.tolist() == [0.5]
    assert read_curve(tmp_path / "run", "device_seconds").compute.tolist() == [7200.0]
    assert read_curve(tmp_path / "run", "flops").compute.tolist() == [5e9]


def test_a_run_is_read_by_its_steps_and_tokens(tmp_path: Path) -> None:
    rows = [
        (0, {"evaluation/pass_rate": 0.3}),
        (1, {"tokens/generated": 100.0}),
        (2, {"tokens/generated": 120.0, "evaluation/pass_rate": 0.5}),
    ]
    path = write_run(tmp_path / "run", rows)
    assert read_curve(path, "tokens").compute.tolist() == [220.0]
    assert read_curve(path, "steps").compute.tolist() == [2.0]


def test_a_run_without_evaluation_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"evaluation\.every"):
        read_curve(write_run(tmp_path / "run", [(1, {"loss": 1.0})]))


def test_a_run_without_its_metrics_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        read_curve(write_run(tmp_path / "run", []))


def test_another_evaluation_metric_has_its_own_stderr(tmp_path: Path) -> None:
    rows = [
        (0, {"evaluation/code/pass_rate": 0.1, "evaluation/code/stderr": 0.05}),
        (1, {"evaluation/code/pass_rate": 0.2, "evaluation/code/stderr": 0.04, "compute/device_seconds": 1.0}),
    ]
    curve = read_curve(write_run(tmp_path / "run", rows), metric="evaluation/code/pass_rate")
    assert curve.stderr is not None and curve.stderr.tolist() == [0.04] and curve.r0_stderr == 0.05


def test_a_domain_has_its_own_stderr(tmp_path: Path) -> None:
    rows = [
        (step, {"evaluation/stderr": 0.9, "evaluation/pass_rate/code": 0.1, "evaluation/stderr/code": 0.05,
                "compute/device_seconds": step})
        for step in (0, 1)
    ]  # fmt: skip
    curve = read_curve(write_run(tmp_path / "run", rows), metric="evaluation/pass_rate/code")
    assert curve.stderr is not None and curve.stderr.tolist() == [0.05] and curve.r0_stderr == 0.05


def test_a_curve_made_by_hand_is_checked() -> None:
    ones = np.ones(2)
    for compute, rate, r0, stderr in (
        (np.array([0.0, 1.0]), ones, 0.1, None),
        (ones, ones * 2, 0.1, None),
        (ones, ones, 1.5, None),
        (ones, ones, 0.1, np.array([0.0, 1.0])),
        (ones, np.ones(3), 0.1, None),
    ):
        with pytest.raises(ValueError, match="bad: "):
            Curve("bad", compute, rate, r0, stderr)


def test_cuts_include_their_ends_once() -> None:
    curve = Curve("c", np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3]), 0.0)
    assert curve.within(2, 3).compute.tolist() == [2, 3]
    assert curve.within(high=2).compute.tolist() == [1, 2] and curve.beyond(2).compute.tolist() == [3]
