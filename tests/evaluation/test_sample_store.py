"""Kept samples: what is read back is what was evaluated, and an interruption loses whole problems at most."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.evaluation.results import VERIFIER, digits, keep, says, settings
from tests.evaluation.scripted import evaluate

from strop.base import rollout_table
from strop.base.types import InputError, Problem, Rollout, Verdict
from strop.engines.protocol import Sampling
from strop.evaluation.sample_store import SampleStore, load_result
from strop.verifiers.answer import Answer
from strop.verifiers.base import Verifier
from strop_verify.verdict import Status

ANSWERS = {"1": ["1", "so 1", "9", "8"], "2": ["2", "3", "3", "2…"], "3": ["4", "none", "4", "4"]}


def test_what_is_read_back_is_what_was_evaluated(tmp_path: Path) -> None:
    keep(tmp_path, ANSWERS)
    found = load_result(tmp_path / "base" / "digits")
    expected = evaluate(says(ANSWERS), digits(ANSWERS), 4, Sampling(), VERIFIER)
    for name in ("scores", "correct", "usable", "unparsed", "truncated", "lengths"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert found.unparsed.sum() == 1 and found.answers == expected.answers and found.answers[2][1] is None
    assert (found.problem_ids, found.version, found.samples_per_problem) == (expected.problem_ids, 7, 4)


def test_every_sample_is_in_the_table_with_its_tokens_and_answer(tmp_path: Path) -> None:
    keep(tmp_path, ANSWERS)
    rows = pq.read_table(tmp_path / "base" / "digits" / "samples-000000.parquet").to_pylist()
    rows.sort(key=lambda row: (row["ticket"], row["sample"]))
    assert [(row["problem_id"], row["sample"]) for row in rows] == [(f"p{q}", i) for q in "123" for i in range(4)]
    assert {name for name in rows[0]} == {*rollout_table.SCHEMA.names, "answer"}
    assert rows[1]["completion"] == "so 1" and rows[1]["answer"] == "1" and rows[1]["status"] == "correct"
    assert rows[7]["finish_reason"] == "length" and len(rows[7]["token_ids"]) == 2


def interrupted_after(kept: SampleStore, most: int) -> None:
    """Evaluate until `most` samples are judged, then Ctrl-C."""
    dataset = digits(ANSWERS)

    def progress(done: int, total: int, rollout: Rollout) -> None:
        kept.add(rollout)
        if done == most:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(says(ANSWERS), dataset.subset(kept.missing), 4, Sampling(), VERIFIER, progress=progress)
    kept.flush()


def test_an_interrupted_evaluation_goes_on_where_it_was(tmp_path: Path) -> None:
    dataset = digits(ANSWERS)
    folder, facts = tmp_path / "base" / "digits", settings(dataset, 4)
    interrupted_after(SampleStore(folder, facts, VERIFIER), 6)  # p3 is whole, p2 half
    with pytest.raises(InputError):
        load_result(folder)
    again = SampleStore(folder, facts, VERIFIER)
    assert (again.done, again.missing) == ({"p3"}, (0, 1))
    interrupted_after(again, 4)
    last = SampleStore(folder, facts, VERIFIER)
    assert last.missing == (0,)
    evaluate(
        says(ANSWERS), dataset.subset(last.missing), 4, Sampling(), VERIFIER,
        progress=lambda done, total, rollout: last.add(rollout),
    )  # fmt: skip
    last.flush()
    assert SampleStore(folder, facts, VERIFIER).missing == ()
    keep(tmp_path, ANSWERS, model="whole")
    for name in ("scores", "lengths", "truncated"):
        whole = getattr(load_result(tmp_path / "whole" / "digits"), name)
        assert np.array_equal(getattr(load_result(folder), name), whole)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sampling": {"max_new_tokens": 9}}, "sampling"),
        ({"samples_per_problem": 8}, "samples_per_problem"),
        ({"problem_ids": ["p1"]}, "problem_ids"),
        ({"seed": 1}, "seed"),
    ],
)
def test_samples_of_other_settings_are_not_mixed(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    keep(tmp_path, ANSWERS)
    facts = {**settings(digits(ANSWERS), 4), **changes}
    with pytest.raises(InputError, match=told):
        SampleStore(tmp_path / "base" / "digits", facts, VERIFIER)


class Fails(Verifier):
    """Cannot judge an answer of 9."""

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        return Verdict(0.0, Status.ERROR, "cannot") if "9" in text else Answer(extract="any")(problem, text, truncated)


def test_what_the_verifier_could_not_judge_is_read_back_as_such(tmp_path: Path) -> None:
    dataset = digits({"1": ANSWERS["1"]})
    kept = SampleStore(tmp_path, settings(dataset, 4), Fails())
    evaluate(
        says(ANSWERS), dataset, 4, Sampling(), Fails(), progress=lambda done, total, rollout: kept.add(rollout)
    )  # fmt: skip
    kept.flush()
    found = load_result(tmp_path)
    assert found.usable.tolist() == [[True, True, False, True]] and found.pass_rate == pytest.approx(2 / 3)


def test_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"settings\.json"):
        load_result(tmp_path)
    keep(tmp_path, ANSWERS)
    folder = tmp_path / "base" / "digits"
    (folder / "samples-000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"samples-000000\.parquet"):
        load_result(folder)
    (folder / "settings.json").write_text(json.dumps([1]))
    with pytest.raises(InputError, match=r"\.json"):
        load_result(folder)
