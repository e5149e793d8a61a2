"""`strop fit` from its arguments to its files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.ablation.cases import small_plan, write_ablation
from tests.lab.scaling.cases import COMPUTE, R_0, drawn, truth, write_csv, write_curve, write_run
from typer.testing import CliRunner, Result

from strop.base.types import InputError
from strop.cli import app
from strop.lab.ablation.collect import collect
from strop.lab.ablation.manifest import write_manifest
from strop.lab.scaling import Curve, Sigmoid

KEYS = [
    "name", "A", "B", "C_mid", "R_0", "A_interval", "B_interval", "C_mid_interval", "level", "sse", "predictions",
    "refused",
]  # fmt: skip


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["fit", "--bootstrap", "40", *map(str, arguments)], catch_exceptions=False)


def as_json(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    value: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (1 if all(each["refused"] for each in value["fits"]) else 0)
    return value


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_curve(tmp_path / "good.csv", drawn(truth().value(COMPUTE)))


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    return write_curve(tmp_path / "flat.csv", drawn(np.full(len(COMPUTE), 0.3), known=False))


def test_the_json_holds_exactly_what_it_promises(good: Path, flat: Path) -> None:
    fits = as_json(good, flat, "--predict", "60000,100000", "--level", "0.8")["fits"]
    assert all(list(each)[: len(KEYS)] == KEYS for each in fits)
    first, second = fits
    assert first["name"] == "good" and first["refused"] is None and first["level"] == 0.8
    assert abs(first["A"] - 0.61) < 0.003 and first["R_0"] == R_0 and first["sse"] > 0
    for name in ("A", "B", "C_mid"):
        assert first[f"{name}_interval"][0] < first[name] < first[f"{name}_interval"][1]
    assert [each["compute"] for each in first["predictions"]] == [60000, 100000]
    assert first["predictions"][1]["pass_rate"] == pytest.approx(float(truth().value(1e5)), abs=0.005)
    assert second["refused"].startswith("flat")
    assert all(second[key] is None for key in KEYS[1:8]) and second["sse"] is None
    nothing = {"pass_rate": None, "interval": None, "measured": None}
    assert second["predictions"] == [{"compute": compute, **nothing} for compute in (60000, 100000)]


def test_the_exit_code_says_whether_anything_was_fitted(good: Path, flat: Path) -> None:
    alone = run(flat)
    assert alone.exit_code == 1 and "flat: refused" in alone.stdout and "every curve is refused" in alone.stderr
    assert "R_0" not in alone.stdout.splitlines()[0] and "points" not in alone.stdout.split("flat: ")[0]  # no tables
    as_json_too = run(flat, "--json")
    assert as_json_too.exit_code == 1 and json.loads(as_json_too.stdout)["fits"][0]["A"] is None
    assert run(flat, good).exit_code == 0


def test_a_csv_without_stderr_and_r0_takes_it_from_the_flag(tmp_path: Path) -> None:
    rates = truth().value(COMPUTE)
    path = write_csv(tmp_path / "bare.csv", {"compute": COMPUTE.tolist(), "pass_rate": rates.tolist()})
    (found,) = as_json(path, "--r0", R_0)["fits"]
    assert found["A"] == pytest.approx(0.61, abs=1e-6) and found["R_0"] == R_0
    with pytest.raises(InputError, match="--r0"):
        run(path)


def test_held_back_points_and_the_papers_method(good: Path) -> None:
    value = as_json(good, "--fit-until", 20000, "--skip-until", 2000)
    (details,) = value["fits"]
    assert details["fitted_from"] == COMPUTE[1] and details["fitted_to"] <= 20000
    assert details["held_back"]["points"] == int((COMPUTE > 20000).sum())
    assert details["held_back"]["mean_absolute_error"] < 0.01
    (grid,) = as_json(good, "--method", "paper")["fits"]
    assert grid["A"] in (pytest.approx(0.605), pytest.approx(0.61), pytest.approx(0.615))


def test_recipes_are_compared_and_their_seeds_grouped(tmp_path: Path) -> None:
    paths = [write_curve(tmp_path / f"s{k}.csv", drawn(truth().value(COMPUTE), seed=k)) for k in range(3)]
    other = write_curve(tmp_path / "scout.csv", drawn(truth("scout").value(COMPUTE)))
    value = as_json(*(f"ours={path}" for path in paths), other)
    assert [each["name"] for each in value["fits"]] == ["ours #1", "ours #2", "ours #3", "scout"]
    assert value["seeds"][0]["recipe"] == "ours" and value["seeds"][0]["enough"]
    (comparison,) = value["comparisons"]
    assert (comparison["first"], comparison["second"]) == ("ours", "scout")
    assert (comparison["verdict"], comparison["by"], comparison["better"]) == ("differ", "A", "scout")
    assert len(value["joint"]["fits"]) == 4


def test_runs_of_one_name_are_its_seeds(tmp_path: Path) -> None:
    for seed in range(2):
        curve = drawn(Sigmoid(0.8, 1.6, 30.0, 0.3).value(np.arange(4.0, 200.0, 8.0)), seed, np.arange(4.0, 200.0, 8.0))
        assert curve.stderr is not None
        rows: list[tuple[int, dict[str, float | None]]] = [
            (0, {"evaluation/pass_rate": 0.3, "evaluation/stderr": 0.01})
        ]
        for k, (at, rate, error) in enumerate(zip(curve.compute, curve.pass_rate, curve.stderr, strict=True)):
            metrics = {"evaluation/pass_rate": rate, "evaluation/stderr": error, "compute/device_seconds": 3600 * at}
            rows.append((k + 1, metrics))
        write_run(tmp_path / f"run-{seed}", rows, seed)
    value = as_json(f"ours={tmp_path / 'run-0'}", f"ours={tmp_path / 'run-1'}")
    assert value["seeds"][0]["recipe"] == "ours" and len(value["seeds"][0]["asymptotes"]) == 2
    assert value["fits"][0]["unit"] == "device_hours" and "comparisons" not in value
    assert as_json(tmp_path / "run-0", "--x", "steps")["fits"][0]["unit"] == "steps"


def test_curves_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    curve = drawn(truth().value(COMPUTE))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_curve(tmp_path / folder / "curve.csv", curve)
    value = as_json(tmp_path / "a" / "curve.csv", tmp_path / "b" / "curve.csv")
    assert [each["name"] for each in value["fits"]] == ["a/curve", "b/curve"]
    assert value["comparisons"][0]["verdict"] == "no difference"


def test_pictures_are_written_as_png_and_svg(tmp_path: Path, good: Path, flat: Path) -> None:
    other = write_curve(tmp_path / "scout.csv", drawn(truth("scout").value(COMPUTE)))
    result = run(good, flat, other, "--fit-until", 30000, "--predict", 100000, "--plot", tmp_path / "p.png")
    for name in ("p.png", "p-linear.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG") and str(tmp_path / name) in result.stdout
    text = (tmp_path / "p.svg").read_text()
    assert "good: A = 0.6" in text and "flat: refused, flat" in text and "held-out pass rate" in text
    assert "the slope is B" in (tmp_path / "p-linear.svg").read_text()
    before = (tmp_path / "p.svg").read_bytes()
    run(good, flat, other, "--fit-until", 30000, "--predict", 100000, "--plot", tmp_path / "p.png")
    assert (tmp_path / "p.svg").read_bytes() == before


def test_the_table_says_what_was_found_and_why_not(good: Path, flat: Path) -> None:
    text = run(good, flat, "--predict", 100000, "--fit-until", 30000).stdout
    for expected in ("90 %", "intervals", "power law", "held back", "flat: refused, flat: the pass rate", "100,000"):
        assert expected in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--predict", "1,x"), "--predict 1,x"),
        (("--predict", "-1"), "--predict -1"),
        (("--method", "other"), "--method other"),
        (("--level", "90"), "--level 90"),
        (("--bootstrap", "3"), "--bootstrap 3"),
        (("--skip-until", "-4"), "--skip-until -4"),
        (("--fit-until", "5", "--skip-until", "9"), "--fit-until 5"),
        (("--plot", "p.pdf"), "--plot p.pdf"),
        (("--r0", "20"), "--r0 20"),
    ],
)
def test_a_bad_flag_is_named(good: Path, arguments: tuple[str, ...], named: str) -> None:
    with pytest.raises(InputError) as raised:
        run(good, *arguments)
    assert named in str(raised.value) and "\n" not in str(raised.value)


def test_a_curve_with_nothing_to_fit_after_the_cut_is_refused(tmp_path: Path, good: Path) -> None:
    value = as_json(good, "--skip-until", 1e9, "--plot", tmp_path / "p.png")
    assert value["fits"][0]["refused"].startswith("too few points: 0") and value["fits"][0]["fitted_from"] is None


@pytest.mark.parametrize("name", ["", "ours="])
def test_a_curve_given_twice_is_no_second_seed(good: Path, name: str) -> None:
    again = good.parent / "." / ".." / good.parent.name / good.name
    with pytest.raises(InputError, match=r"good\.csv"):
        run(f"{name}{good}", f"{name}{again}")
    assert run(f"ours={good}", f"theirs={good}").exit_code == 0


def test_r0_is_measured_on_no_fitted_point(tmp_path: Path) -> None:
    curve = drawn(truth().value(COMPUTE))
    with_row = as_json(write_curve(tmp_path / "row.csv", curve))
    assert with_row["fits"][0]["fitted_points"] == len(curve)
    exact = Curve("e", COMPUTE, truth().value(COMPUTE), R_0)
    (found,) = as_json(write_curve(tmp_path / "exact.csv", exact))["fits"]
    assert found["B"] == pytest.approx(1.92, rel=1e-4) and found["C_mid"] == pytest.approx(2542, rel=1e-4)


def test_the_folder_of_an_ablation_is_its_variants_with_their_seeds(
    tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.lab.ablation.collect.BOOTSTRAP", 40)
    write_ablation(tmp_path / "out", tmp_path, {"base": 0.6, "low": 0.5}, seeds=(0, 1, 2))
    value = as_json(tmp_path / "out", "--plot", tmp_path / "all.png", "--fit-until", "150", "--x", "device_seconds")
    assert [each["name"] for each in value["fits"]] == [f"{v} #{n}" for v in ("base", "low") for n in (1, 2, 3)]
    assert [each["recipe"] for each in value["seeds"]] == ["base", "low"]
    (pair,) = value["comparisons"]
    assert (pair["first"], pair["second"], pair["better"], pair["by"]) == ("base", "low", "base", "A")
    assert value["joint"]["A"] == pytest.approx(sum(each["A"] for each in value["fits"]) / 6)
    assert value["fits"][0]["held_back"]["points"] == 5
    assert (tmp_path / "all-linear.png").exists()
    # Fitted to the end these are the fits of `strop ablate show`.
    shown = [fit.sigmoid.A for variant in collect(tmp_path / "out").variants for fit in variant.fits if fit.sigmoid]
    whole = as_json(tmp_path / "out")["fits"]
    assert [each["A"] for each in whole] == pytest.approx(shown, abs=1e-9)
    names = [each["name"] for each in as_json(tmp_path / "out", good)["fits"]]
    assert names[0] == "out/base #1" and names[-1] == "good"


def test_an_ablation_that_has_not_begun_and_one_that_is_given_a_name(tmp_path: Path) -> None:
    write_manifest(tmp_path / "out", small_plan(tmp_path, (0,), ["slow:optim.lr=1e-4"]))
    with pytest.raises(InputError, match="evaluation/pass_rate"):
        run(tmp_path / "out")
    with pytest.raises(InputError, match="mine="):
        run(f"mine={tmp_path / 'out'}")
