"""Stored completions under another verifier, reward or shaping: counts by value, and the section of the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.runs import small_config
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.base.view import SilentView
from strop.cli import app
from strop.report.build import Folded, Table, audits
from strop.report.rejudging import REJUDGED, example_rows, rejudged
from strop.report.runs import read_runs
from strop.run.folder import RunFolder
from strop.run.run import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sums of two digits, which a random model guesses now and then."""
    out = tmp_path_factory.mktemp("runs") / "judged"
    sets = ("steps=3", "batch.samples_per_prompt=8", "engine.slots=48", "algorithm.selection.zero_variance=drop")
    train(small_config("evaluation.every=none", *sets), out, SilentView())
    return out


def rows(run: Path) -> list[dict[str, object]]:
    folder = RunFolder.open(run)
    return [row for step in folder.rollout_steps() for row in folder.read_rollouts(step)]


def test_a_verifier_that_refuses_more_takes_groups_away(run: Path) -> None:
    """Completions that were cut off count as unparsed: what turns follows from the table."""
    found = rejudged(RunFolder.open(run), ["verifier.require_stop=true"])
    stored = rows(run)
    right = [row for row in stored if row["status"] == "correct"]
    cut = [row for row in right if row["finish_reason"] == "length"]
    assert cut and found["flips"] == {"to_right": 0, "to_wrong": len(cut)} and found["rollouts"] == len(stored)
    assert found["pass_rate"]["was"] == pytest.approx(len(right) / len(stored))
    assert found["pass_rate"]["now"] == pytest.approx((len(right) - len(cut)) / len(stored))

    def trained(correct: list[dict[str, object]]) -> set[object]:
        of = {row["ticket"]: sum(one["ticket"] == row["ticket"] for one in correct) for row in stored}
        return {ticket for ticket, count in of.items() if 0 < count < 8}

    was, now = trained(right), trained([row for row in right if row["finish_reason"] != "length"])
    assert found["groups"] == {"trained": len(was), "gained": len(now - was), "lost": len(was - now)}
    assert found["examples"][0]["was"]["status"] == "correct" and found["examples"][0]["now"]["detail"] == "truncated"


def test_a_shaping_turns_signs(run: Path) -> None:
    """Of every group the sign of reward less mean, before and after."""
    shaping = "algorithm.shaping=[{piece='OverlongShaping', max_tokens=12, buffer_tokens=11, factor=4.0}]"
    found = rejudged(RunFolder.open(run), [shaping])
    turned = compared = 0
    groups: dict[object, list[dict[str, object]]] = {}
    for row in rows(run):
        groups.setdefault(row["ticket"], []).append(row)
    for own in groups.values():
        was = np.array([float(str(row["reward"])) for row in own])
        lengths = np.array([len(row["token_ids"]) for row in own])  # type: ignore[arg-type]
        now = was + np.minimum(-(lengths - 1) / 11 * 4.0, 0)
        if len({*was}) > 1:  # selection goes by the score, which stays
            compared += len(own)
            turned += int((np.sign(was - was.mean()) * np.sign(now - now.mean()) < 0).sum())
    assert turned and found["advantages"] == {"completions": compared, "turned": turned}
    assert found["flips"] == {"to_right": 0, "to_wrong": 0} and found["groups"]["gained"] == 0
    assert all(one["was"]["sign"] * one["now"]["sign"] == -1 for one in found["examples"])
    assert all("advantage > 0" in f"{row[-2:]}" and "advantage < 0" in f"{row[-2:]}" for row in example_rows(found))


def test_the_report_shows_it(run: Path) -> None:
    done = CliRunner().invoke(app, ["rejudge", str(run), "--set", "verifier.require_stop=true", "--to", "2", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads((run / REJUDGED).read_text())
    assert found == json.loads(done.stdout) and [row["step"] for row in found["steps"]] == [1, 2]
    counts, examples = audits(read_runs([run])[0], named=False)
    assert isinstance(counts, Table) and isinstance(examples, Folded)
    assert counts.columns[0] == "under verifier.require_stop=true"
    assert f"{found['flips']['to_wrong']} right to wrong" in counts.rows[2]
    assert isinstance(examples.block, Table) and len(examples.block.rows) == len(found["examples"])


@pytest.mark.parametrize(
    ("sets", "message"),
    [("algorithm.loss=Cispo", "strop replay RUN"), ("verifier.require_stop=false", "name others")],
)
def test_what_completions_cannot_answer_is_refused(run: Path, sets: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rejudged(RunFolder.open(run), [sets])
