"""The simulated verdict against the real one and the t test; what studies planned by it decide; the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import nct, t
from tests.lab.ablation.cases import small_plan, write_base, write_run
from typer.testing import CliRunner, Result

from bench import power as bench
from strop.base.types import InputError
from strop.base.view import SilentView
from strop.cli import app
from strop.lab.ablation.collect import collect, paired, pairs_by_step, until_decided, verdict
from strop.lab.ablation.manifest import Manifest, merged, read_manifest, write_manifest
from strop.lab.ablation.power import MOST, first_looks, look_level, needed, power, running, verdicts
from strop.lab.ablation.scheduler import execute
from strop.lab.ablation.table import notes

CODES = {1: "better", -1: "worse", 2: "same", 0: "undecided"}


def strop(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def test_one_verdict_has_the_power_of_the_paired_t_test() -> None:
    found = power(0.04, 0.05, margin=0.0).once
    for n in (3, 10, 30):
        exact = nct.sf(t.ppf(0.975, n - 1), n - 1, 0.04 / 0.05 * n**0.5)
        assert found[n - 1] == pytest.approx(exact, abs=0.01)


def test_simulated_verdicts_are_those_of_an_ablation() -> None:
    values = np.random.default_rng(1).normal([[0.0], [0.01], [0.03], [-0.05]] * 20, 0.02, (80, 12))
    codes = verdicts(running(values), 0.9, 0.02)
    first, at = first_looks(verdicts(running(values), look_level(0.9), 0.02))
    assert {*CODES} == {*codes[:, -1].tolist()}
    for row, differences in enumerate(values.tolist()):
        assert CODES[codes[row, 6]] == verdict(paired(differences[:7], 0.9), 0.02)
        found = until_decided(differences, 0.9, 0.02)
        assert found is not None and CODES[first[row]] == verdict(found, 0.02) and found.n == at[row]
    assert until_decided([0.3, 0.3001], 0.9) == (0.30005, None, 2, look_level(0.9)) and until_decided([], 0.9) is None


def test_looks_hold_the_difference_together() -> None:
    """Of 20,000 studies without a difference, other draws than the level was found by, with a look at every seed."""
    found = running(np.random.default_rng(2).standard_normal((20_000, MOST)))
    assert 0.045 < (first_looks(verdicts(found, look_level(0.95), 0.0))[0] != 0).mean() < 0.054
    assert (first_looks(verdicts(found, 0.95, 0.0))[0] != 0).mean() > 0.2


@pytest.mark.parametrize("until", [False, True])
@pytest.mark.parametrize("pilot", [None, 5])
def test_500_studies_decide_as_often_as_promised(
    monkeypatch: pytest.MonkeyPatch, pilot: int | None, until: bool
) -> None:
    monkeypatch.setattr(bench, "GRID", np.geomspace(0.015, 0.1, 20) if pilot else np.array([0.05]))
    bench.plans.cache_clear()
    found = bench.studies(0.05, pilot, until, 500)
    assert 0.77 <= found.decided <= 0.83 and found.false <= 0.05 and found.unplanned < 0.12


def test_an_estimated_deviation_needs_more_seeds_than_a_known_one() -> None:
    known, five, three = (needed(0.04, 0.03, pairs) for pairs in (None, 5, 3))
    assert known.once == 7 and known.until_decided is not None and known.mean is not None
    assert known.once < known.until_decided and known.mean < known.until_decided
    assert five.once is not None and three.once is not None and known.once < five.once < three.once
    assert needed(0.04, 0.3) == (0.3, None, None, None, None)
    assert needed(0.04, 0.0, 3).once == 2


def write_pairs(tmp_path: Path, pairs: list[float]) -> Path:
    """An ablation whose variant is better by half of these differences after step 1, by all of each after step 2."""
    out = tmp_path / "out"
    manifest = small_plan(tmp_path, range(len(pairs)), ["hot:sampling.temperature=1.5"], "steps=2")
    write_manifest(out, manifest)
    for run in manifest.runs:
        gain = pairs[run.seed] * (run.variant == "hot")
        write_run(out, manifest, run, [0.2, 0.3 + gain / 2, 0.4 + gain])
    return out


def test_the_power_of_an_ablation_step_by_step(tmp_path: Path) -> None:
    out = write_pairs(tmp_path, [0.02, 0.06, 0.1])
    assert pairs_by_step(out)["hot"][1] == pytest.approx([0.01, 0.03, 0.05])
    rows = json.loads(strop("plan", "power", out, "--difference", 0.1, "--json").stdout)
    assert [(row["variant"], row["step"], row["pairs"]) for row in rows] == [("hot", 1, 3), ("hot", 2, 3)]
    assert [row["deviation"] for row in rows] == pytest.approx([0.02, 0.04])
    assert rows[1]["once"] == needed(0.1, 0.04, 3).once
    said = strop("plan", "power", out, "--difference", 0.1).stdout
    assert f"{2 * 2 * rows[1]['once']}" in said and "a difference of 10 points" in said
    note = next(line for line in notes(collect(out)) if "underpowered" in line)
    assert note.startswith("hot is underpowered: 3 seeds decide a difference of 4 points with a probability of ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "one of them"), (("runs/a", "--deviation", 0.1), "one of them"), (("nowhere",), "nowhere"),
        (("--deviation", 0.1, "--difference", 0.02), "--difference 0.02"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused(arguments: tuple[object, ...], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        strop("plan", "power", *arguments)


def test_seeds_are_added_to_the_undecided(tmp_path: Path) -> None:
    out, named = tmp_path / "out", ["hot:sampling.temperature=1.5", "slow:optim.lr=1e-4"]
    first = small_plan(tmp_path, (4, 2), named, "steps=2").model_copy(update={"until_decided": True})
    more = first.extended(["hot"], 3)
    assert more.seeds == (4, 2, 5) and [(run.variant, run.seed) for run in more.runs[6:]] == [("base", 5), ("hot", 5)]
    assert more.extended(["hot"], 3) == more and first.extended([], 9) == first
    both = more.extended(["hot", "slow"], 4)  # slow takes the seed that the base has already
    assert [(run.variant, run.seed) for run in both.runs[6:]] == [
        ("base", 5), ("hot", 5), ("slow", 5), ("base", 6), ("hot", 6),
    ]  # fmt: skip
    write_manifest(out, more)
    assert merged(out, first) == more  # the command that is given again
    with pytest.raises(InputError, match="seed 5"):
        merged(out, first.model_copy(update={"until_decided": False}))


def test_until_decided_runs_what_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of training the runs are written: one variant is clearly worse, one alike, one always fails."""
    rounds: list[tuple[int, bool]] = []

    def written(folder: Path, wanted: Manifest, view: object, jobs: int, imports: object, again: bool = True) -> None:
        manifest = merged(folder, wanted)
        rounds.append((len(manifest.runs), again))
        for run in manifest.runs:
            if run.variant == "bad":
                manifest = manifest.marked(run, "failed", "not finite")
            elif run.state != "finished":
                rng = np.random.default_rng([run.seed, ord(run.variant[0])])
                rate = 0.6 - 0.3 * (run.variant == "hot") + rng.normal(0, 0.03)
                write_run(folder, manifest, run, [0.2, 0.3, rate])
                manifest = manifest.marked(run, "finished")
        write_manifest(folder, manifest)

    monkeypatch.setattr("strop.lab.ablation.scheduler.execute", written)
    named = ("--variant", "hot:sampling.temperature=1.5", "--variant", "like:optim.lr=2e-3", "--variant")
    command = ("ablate", write_base(tmp_path, "steps=2"), *named, "bad:optim.lr=1e30", "--out", tmp_path / "out")
    done = strop(*command, "--seeds", "0,1,2", "--until-decided", 6)
    runs = {name: [run.seed for run in read_manifest(tmp_path / "out").runs if run.variant == name]
            for name in ("base", "hot", "like", "bad")}  # fmt: skip
    assert rounds[0] == (12, True) and all(not again for _, again in rounds[1:])
    assert runs["bad"] == [0, 1, 2] and runs["base"] == runs["like"] == [0, 1, 2, 3, 4, 5]
    assert runs["hot"] in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4])
    told = json.loads((tmp_path / "out" / "results.json").read_text())["variants"]
    assert [each["verdict"] for each in told] == [None, "worse", "undecided", "undecided"] and done.exit_code == 1
    assert told[1]["difference"]["pairs"] == len(runs["hot"]) and "99.5 % at each" in done.stdout
    rounds.clear()
    strop(*command, "--seeds", "0,1,2", "--until-decided", 7)  # goes on with what is there
    assert read_manifest(tmp_path / "out").seeds == (0, 1, 2, 3, 4, 5, 6) and len(rounds) == 2


def test_failed_runs_are_left_while_seeds_are_added(tmp_path: Path) -> None:
    manifest = small_plan(tmp_path, (0,), ["hot:sampling.temperature=1.5"])
    failed = manifest.marked(manifest.runs[1], "failed", "not finite")
    write_run(tmp_path / "out", manifest, manifest.runs[0], [0.2, 0.3])
    write_manifest(tmp_path / "out", failed)
    done = execute(tmp_path / "out", manifest, SilentView(), again=False)
    assert [run.state for run in done.runs] == ["finished", "failed"]
