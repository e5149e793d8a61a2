"""The ledger: each group counts once, completions of an attempt given up are nobody's."""

from __future__ import annotations

from tests.made import PROBLEM, completion

from strop.base.types import Verdict
from strop.orchestration.lag_gate import Ledger
from strop_verify.verdict import Status

RIGHT = Verdict(1.0, Status.CORRECT)


def test_a_group_is_whole_with_its_last_verdict() -> None:
    ledger = Ledger()
    entry = ledger.admit(3, 11, PROBLEM, samples=2)
    for index in (1, 0):
        entry.completions[index] = completion(index=index)
    assert ledger.judge(entry, 1, RIGHT, 1.0) is None
    group = ledger.judge(entry, 0, RIGHT, 1.0)
    assert group is not None and group.ticket == 3
    assert [r.completion.index for r in group.rollouts] == [0, 1]


def test_an_attempt_given_up_is_forgotten() -> None:
    ledger = Ledger()
    entry = ledger.admit(0, 4, PROBLEM, 1)
    entry.completions[0] = completion()
    again = ledger.retry(entry.request_id)
    assert ledger.find("0.0") is None
    assert ledger.find("0.1") is again and again.attempt == 1 and not again.completions


def test_open_groups_are_written_down() -> None:
    ledger = Ledger()
    ledger.admit(0, 4, PROBLEM, 1)
    ledger.admit(1, 9, PROBLEM, 1, attempt=2)
    ledger.forget(0)
    assert ledger.state() == [{"ticket": 1, "index": 9, "samples": 1, "attempt": 2}]
    assert ledger.find("0.0") is None
