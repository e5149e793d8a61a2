"""From run folders to the one table and the one figure."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.ablation.cases import sigmoid_rates, small_plan, write_ablation, write_run
from typer.testing import CliRunner, Result

from strop.base.types import InputError
from strop.cli import app
from strop.lab.ablation.collect import Ablation, collect
from strop.lab.ablation.manifest import write_manifest
from strop.lab.ablation.table import COLUMNS, cells
from strop.lab.scaling.fitting import FitSettings
from strop.report.lab_figures import averaged, plot_ablation, write_ablation_report


@pytest.fixture(scope="module", autouse=True)
def _few_samples() -> Iterator[None]:
    """Fewer bootstrap samples than 200: verdicts here are clear with them too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strop.lab.ablation.collect.BOOTSTRAP", 50)
        yield


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Asymptotes that lie at the base's, a little lower, and far below it."""
    folder = tmp_path_factory.mktemp("ablation")
    write_ablation(folder / "out", folder, {"base": 0.6, "like": 0.6, "low": 0.5})
    return folder / "out"


@pytest.fixture(scope="module")
def found(known: Path) -> Ablation:
    return collect(known)


def cell(found: Ablation, variant: str, column: str) -> str:
    return next(row for row in cells(found) if row[0] == variant)[COLUMNS.index(column)]


def test_fits_recover_the_curves_and_decide(found: Ablation) -> None:
    base, like, low = found.variants
    for variant, asymptote in ((base, 0.6), (like, 0.6), (low, 0.5)):
        assert len(variant.fits) == 3
        values = [fit.sigmoid.A for fit in variant.fits if fit.sigmoid is not None]
        assert sum(values) / 3 == pytest.approx(asymptote, abs=0.02)
    assert (low.verdict, low.by) == ("worse", "A") and base.verdict is None
    assert like.verdict in ("same", "undecided")
    assert low.difference is not None and low.difference.interval is not None
    # At compute 200 the sigmoids have risen by 1 / (1 + (40/200)^1.6) of A - R_0.
    assert low.difference.value == pytest.approx(-0.1 / (1 + 0.2**1.6), abs=0.01)
    assert low.difference.interval[0] < low.difference.value < low.difference.interval[1] < -0.05


def test_slopes_are_compared_with_one_asymptote_for_all(known: Path, found: Ablation) -> None:
    fits = [fit for variant in found.variants for fit in variant.fits]
    common = sum(fit.sigmoid.A for fit in fits if fit.sigmoid is not None) / 9
    assert found.asymptote == pytest.approx(common, abs=1e-12) and 0.55 < common < 0.58
    assert all(found.asymptote == each.sigmoid.A for variant in found.variants for each in variant.refits)
    assert all([each.fit for each in variant.refits] == list(variant.fits) for variant in found.variants)
    base, _, low = found.variants
    # With a lower A than its own the base seems steeper, what lies lower seems flatter.
    slopes = {variant.name: sum(each.sigmoid.B for each in variant.refits) / 3 for variant in (base, low)}
    assert slopes["low"] < 1.6 < slopes["base"]
    assert cell(found, "low", "B, A fixed").startswith(f"{slopes['low']:.2f} ± ")
    write_ablation_report(found)
    kept = json.loads((known / "results.json").read_text())
    assert kept["asymptote"] == found.asymptote
    assert kept["variants"][2]["B_at_common_A"]["mean"] == pytest.approx(slopes["low"])
    assert "(figure-linear.png)" in (known / "table.md").read_text()
    drawn = (known / "figure-linear.svg").read_text()
    assert f"A fixed to {common:.3f}" in drawn and f"base: B = {slopes['base']:.2f} ± " in drawn


def test_fits_of_an_ablation_may_leave_points_out(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.lab.ablation.collect.BOOTSTRAP", 20)
    chosen = FitSettings(method="paper", skip_until=20.0, fit_until=150.0)
    base = collect(known, "device_seconds", chosen).variants[0]
    assert {(run.fit.used.compute[0], run.fit.used.compute[-1]) for run in base.runs if run.fit} == {(20.0, 150.0)}


def test_one_variant_with_fits_has_nothing_to_share_an_asymptote_with(tmp_path: Path) -> None:
    manifest = small_plan(tmp_path, (0,), ["slow:optim.lr=1e-4"], "steps=20", "evaluation.every=1")
    write_manifest(tmp_path / "out", manifest)
    write_run(tmp_path / "out", manifest, manifest.runs[0], sigmoid_rates(0.6, 1))
    write_run(tmp_path / "out", manifest, manifest.runs[1], [0.2] * 21)
    found = collect(tmp_path / "out")
    assert found.asymptote is None and found.variants[0].fits and not found.variants[0].refits
    assert "figure-linear.png" not in {path.name for path in write_ablation_report(found)}


def test_stability_and_time_are_those_of_the_runs(found: Ablation) -> None:
    assert cell(found, "low", "trunc. max") == "1.0%"  # at step 3
    assert cell(found, "low", "entropy") == "0.0513"  # mean of 1/19 and 1/20
    assert cell(found, "low", "mism. max") == "2.0e-02"
    assert cell(found, "low", "spikes") == "1.0"
    assert (cell(found, "low", "device-s"), cell(found, "low", "wall s")) == ("200", "135")  # 15 + 20 × 6
    assert cell(found, "low", "runs") == "3/3" and cell(found, "base", "against base") == ""


def test_means_and_differences_by_value(tmp_path: Path) -> None:
    manifest = small_plan(tmp_path, (0, 1, 2), ["slow:optim.lr=1e-4"])
    out = tmp_path / "out"
    write_manifest(out, manifest)
    finals = {("base", 0): 0.5, ("base", 1): 0.6, ("base", 2): 0.7, ("slow", 0): 0.52, ("slow", 1): 0.61}
    for run in manifest.runs:
        if (run.variant, run.seed) in finals:
            write_run(out, manifest, run, [0.1, 0.65, finals[run.variant, run.seed]])
    write_run(out, manifest, manifest.runs[-1], [0.1, 0.2], finish=False)
    found = collect(out, "device_seconds")
    base, slow = found.variants
    assert base.mean(lambda run: run.final) == pytest.approx((0.6, 0.1 / 3**0.5, 3))
    assert slow.difference is not None and slow.difference.n == 2
    assert slow.difference.value == pytest.approx(0.015)
    assert cell(found, "slow", "runs") == "2/3" and cell(found, "slow", "A") == "refused"
    assert slow.verdict == "undecided" and not found.finished
    curve = averaged(slow)
    assert curve is not None and curve.seeds == 2
    assert curve.compute.tolist() == [0, 10, 20] and curve.rate[-1] == pytest.approx(0.565)
    assert curve.half[-1] == pytest.approx(0.09 / 2**0.5 / 2**0.5)


def test_the_report_is_written_beside_the_runs(known: Path, found: Ablation) -> None:
    names = {path.name for path in write_ablation_report(found)}
    pictures = {"figure.png", "figure.svg", "figure-linear.png", "figure-linear.svg"}
    assert names == {"table.md", "results.json", *pictures}
    rows = json.loads((known / "results.json").read_text())["variants"]
    assert [row["variant"] for row in rows] == ["base", "like", "low"]
    assert rows[2]["difference"]["mean"] == found.variants[2].difference.value  # type: ignore[union-attr]
    assert rows[0]["difference"]["mean"] is None and rows[2]["A"]["mean"] == pytest.approx(0.5, abs=0.02)
    text = (known / "table.md").read_text()
    assert "\n| low " in text and "(figure.png)" in text and "`optim.lr`" in text
    assert (known / "figure.png").stat().st_size > 20_000
    svg = (known / "figure.svg").read_text()
    assert "low" in svg and "held-out pass rate" in svg


def strop(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ablate", *map(str, arguments)], catch_exceptions=False)


def test_show_prints_what_it_writes(known: Path) -> None:
    said = strop("show", known, "--x", "steps").stdout
    assert "worse (A)" in said and str(known / "figure.png") in said
    value = json.loads((known / "results.json").read_text())
    assert value["unit"] == "steps" and value["finished"] is True
    low = value["variants"][2]
    assert low["verdict"] == "worse" and low["C_mid"]["mean"] == pytest.approx(4.0, abs=0.4)
    assert [run["state"] for run in low["runs"]] == ["finished"] * 3


def test_nothing_to_draw_yet(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_manifest(out, small_plan(tmp_path, (0,), ["slow:optim.lr=1e-4"]))
    said = strop("show", out).stdout
    assert "0/1" in said and "figure" not in said
    assert json.loads(strop("show", out, "--json").stdout) == json.loads((out / "results.json").read_text())
    with pytest.raises(InputError):
        plot_ablation(collect(out), out / "figure.png")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("show",), "FOLDER"),
        (("show", "x", "--grid", "a=1"), "FOLDER"),
        (("grpo", "x", "--leave-one-out"), "--out x"),
        (("grpo", "--grid", "optim.lr=1", "--seeds", "a"), "--seeds a"),
        (("grpo", "--grid", "optim.lr=1", "--level", "1"), "--level 1"),
        (("grpo", "--grid", "optim.lr=1", "--set", "evaluation.every=none"), r"evaluation\.every"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        strop(*arguments)


def test_a_dry_run_lists_and_makes_nothing(tmp_path: Path) -> None:
    arguments = ("grpo", "--tiny", "--grid", "optim.lr=1e-4,2e-4", "--seeds", "0,1", "--steps", 5, "--dry-run")
    out = tmp_path / "out"
    said = strop(*arguments, "--out", out).stdout
    assert "6 runs (3 variants, seeds 0, 1)" in said and "30 training steps" in said
    value = json.loads(strop(*arguments, "--out", out, "--json").stdout)
    assert len(value["runs"]) == 6 and value["variants"][1]["changes"] == {"optim.lr": ["0.0003", "0.0001"]}
    assert not out.exists()
