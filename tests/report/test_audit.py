"""An audit of a run's verdicts: rates that are known, intervals that hold them, a drift that is found, and its page."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.runs import finished_run
from typer.testing import CliRunner

from strop.base import rollout_table
from strop.base.types import InputError, Problem
from strop.cli import app
from strop.lab.agreement import Sampled
from strop.report.audit import AUDIT, AuditItem, AuditSample, Stratum, audited, draw
from strop.report.build import write_report
from strop.run.folder import RunFolder

RIGHT, WRONG = Stratum("correct", "number"), Stratum("wrong", "number")


def drawn(steps: dict[Stratum, np.ndarray], sizes: dict[Stratum, int]) -> AuditSample:
    blank = Sampled(Problem("p", "q", "1"), "1", False)
    found = [
        AuditItem(f"{stratum.verdict}-{stratum.kind}-{place}", int(step), stratum, blank)
        for stratum, of in steps.items() for place, step in enumerate(of)
    ]  # fmt: skip
    return AuditSample(found, sizes)


def test_rates_weigh_strata_by_their_sizes() -> None:
    of = drawn({RIGHT: np.zeros(10), WRONG: np.zeros(10)}, {RIGHT: 100, WRONG: 900})
    refused = ("correct-number-0", "correct-number-1", *(f"wrong-number-{place}" for place in range(1, 10)))
    right = {one.id: one.id not in refused for one in of.completions}
    found = audited(of, right)  # of 100 accepted 20 wrong, of 900 refused 90 right
    assert found["false_positives"]["rate"] == pytest.approx(20 / (20 + 810))
    assert found["false_negatives"]["rate"] == pytest.approx(90 / (90 + 80))
    assert found["agreement"]["rate"] == pytest.approx((80 + 810) / 1000)
    low, high = found["false_negatives"]["interval"]
    assert low < 90 / 170 < high and found["rise"]["p"] is None
    whole = audited(drawn({RIGHT: np.zeros(10), WRONG: np.zeros(10)}, {RIGHT: 10, WRONG: 10}), right)
    assert whole["false_positives"]["interval"] == pytest.approx((2 / 11, 2 / 11))  # nothing is left to estimate


def test_kinds_that_were_judged_seldom_count_for_what_was_drawn_of_them() -> None:
    interval = Stratum("correct", "interval")
    of = drawn({RIGHT: np.zeros(8), interval: np.zeros(2), WRONG: np.zeros(10)}, {RIGHT: 80, interval: 20, WRONG: 100})
    right = {f"correct-number-{place}": True for place in range(4)}  # 80 of 80
    right |= {"correct-interval-0": True, "correct-interval-1": False}  # 10 of 20
    right |= {f"wrong-number-{place}": False for place in range(10)}
    found = audited(of, right)
    assert found["false_positives"]["rate"] == pytest.approx(10 / (10 + 100))
    assert found["agreement"]["rate"] == pytest.approx((80 + 10 + 100) / 200)


def test_rare_kinds_leave_estimate_and_interval_as_they_are() -> None:
    kinds = {Stratum("wrong", f"kind {number}"): np.zeros(1) for number in range(12)}
    one = drawn({RIGHT: np.zeros(20), WRONG: np.zeros(20)}, {RIGHT: 500, WRONG: 1000})
    sizes = {RIGHT: 500, WRONG: 400, **dict.fromkeys(kinds, 50)}
    many = drawn({RIGHT: np.zeros(20), WRONG: np.zeros(8), **kinds}, sizes)
    found = [audited(of, {each.id: each.stratum.accepted for each in of.completions}) for of in (one, many)]
    for name in ("false_positives", "false_negatives", "agreement"):
        assert found[0][name]["rate"] == pytest.approx(found[1][name]["rate"])
        assert found[0][name]["interval"] == pytest.approx(found[1][name]["interval"])


def test_intervals_hold_the_rate_as_often_as_they_say() -> None:
    rng, held = np.random.default_rng(0), 0
    sizes = {RIGHT: 2000, WRONG: 3000}
    for _ in range(150):
        truth = {RIGHT: rng.random(2000) > 0.05, WRONG: rng.random(3000) < 0.1}
        of = drawn({stratum: np.zeros(60) for stratum in sizes}, sizes)
        right = {
            f"{stratum.verdict}-{stratum.kind}-{place}": bool(value)
            for stratum in sizes for place, value in enumerate(rng.choice(truth[stratum], 60, replace=False))
        }  # fmt: skip
        low, high = audited(of, right)["false_negatives"]["interval"]
        held += low <= truth[WRONG].sum() / (truth[WRONG].sum() + truth[RIGHT].sum()) <= high
    assert 0.88 * 150 <= held <= 150


@pytest.mark.parametrize(("late", "most", "least"), [(0.05, 2, 0), (0.5, 50, 46)])
def test_alerts_come_with_a_drift_and_seldom_without(late: float, most: int, least: int) -> None:
    rng, steps = np.random.default_rng(1), np.repeat(np.arange(100), 2)
    alerts = 0
    for _ in range(50):
        of = drawn({RIGHT: steps}, {RIGHT: 5000})
        share = 0.05 + (late - 0.05) * steps / 99
        right = {one.id: bool(value) for one, value in zip(of.completions, rng.random(200) > share, strict=True)}
        alerts += audited(of, right)["rise"]["widens"]
    assert least <= alerts <= most


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory, "steps=3")


def test_each_kind_has_its_share_of_a_verdict(run: Path, tmp_path: Path) -> None:
    copy = RunFolder.open(shutil.copytree(run, tmp_path / "run"))
    references = np.repeat(["7", "8", "9", "(1, 2]", "[3, 4)", "x + 1"], 4).tolist()
    for step in copy.rollout_steps():
        table = rollout_table.read(copy.rollouts_path(step))
        place = table.column_names.index("reference")
        pq.write_table(table.set_column(place, "reference", [references]), copy.rollouts_path(step))
    found = draw(copy, 30, 0)
    stored, taken = Counter[str](), Counter(one.stratum.verdict for one in found.completions)
    for stratum, size in found.sizes.items():
        stored[stratum.verdict] += size
    assert {each.kind for each in found.sizes} == {"number", "interval", "expression"} and taken.total() == 30
    for stratum, size in found.sizes.items():
        share = size * taken[stratum.verdict] / stored[stratum.verdict]
        assert abs(sum(one.stratum == stratum for one in found.completions) - share) < 1


def test_a_run_is_audited_by_a_verifier_and_its_report_shows_it(run: Path) -> None:
    second = '{"piece": "Answer", "extract": "last_number"}'
    done = CliRunner().invoke(app, ["audit", str(run), "--count", "40", "--verifier", second, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads((run / AUDIT).read_text())
    assert found["judged"] == 40 and found["stored"] == 3 * 6 * 4
    assert sum(of["judged"] for of in found["strata"]) == 40 and len(found["strata"]) >= 2
    for of in found["strata"]:  # the second verifier is the run's own
        assert of["right"] == (of["judged"] if of["verdict"] == "correct" else 0)
    page = write_report([run], samples=0).page.read_text()
    assert "wrong answers accepted" in page and "40 of 72 completions were judged" in page
    assert "by verdict and kind" in page


def test_a_run_is_audited_by_hand(run: Path, tmp_path: Path) -> None:
    command = ["audit", str(run), "--count", "10"]
    assert "10 completions to judge" in CliRunner().invoke(app, command).output
    page = (run / "audit.html").read_text()
    ids = re.findall(r'data-id="([^"]+)"', page)
    assert sorted(ids) == sorted(one.id for one in draw(RunFolder.open(run), 10, 0).completions) and len(ids) == 10
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps(dict.fromkeys(ids, True)))
    assert CliRunner().invoke(app, [*command, "--labels", str(labels)]).exit_code == 0
    assert json.loads((run / AUDIT).read_text())["false_positives"]["rate"] is None  # no answer was wrong
    labels.write_text('{"3-1-1": "yes"}')
    refused = CliRunner().invoke(app, [*command, "--labels", str(labels)]).exception
    assert isinstance(refused, InputError) and "not a file that the page saved" in str(refused)
