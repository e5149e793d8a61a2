"""A rank group answers as one, and falls as one: killed, stopped, stuck, crashed; nothing waits for it for ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.forks import forking

from strop.base import progress
from strop.base.types import StropError
from strop.orchestration.processes import Processes
from strop.orchestration.rank_group import Disagreement, RankGroup, RankGroupLost
from strop.orchestration.workers import WorkerSpec

Make = Callable[..., RankGroup]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    gangs: list[RankGroup] = []

    def made(ranks: tuple[int, ...] = (0, 1, 2), silence: float = 60.0, stall: float = 60.0) -> RankGroup:
        entry = "tests.orchestration.rank_members:main"
        specs = [WorkerSpec(f"trainer-{place}", entry, rank) for place, rank in enumerate(ranks)]
        gangs.append(RankGroup(Processes(tmp_path), specs, silence, stall))
        return gangs[-1]

    with forking():
        yield made
    for group in gangs:
        group.close()
    for group in gangs:
        assert all(handle.death is not None for handle in group.handles)


def test_the_first_answers_for_all(make: Make) -> None:
    group = make()
    assert [group.call("add", 1, number) for number in range(5)] == [1, 2, 3, 4, 5]
    group.close()
    group.close()
    with pytest.raises(RankGroupLost):
        group.call("add", 1)


def test_finding_13_each_member_reads_its_share_of_a_calls_arrays(make: Make) -> None:
    group = make()
    array = np.ones(8 << 20, np.float32)
    array[0] = 0.0
    total, nothing, resident = group.call("share", array, np.zeros((0, 3)))
    assert (total, nothing, array[0]) == (len(array) // 4 - 1, 0, 0.0)
    assert resident < array.nbytes / 3  # it computes with a quarter
    assert group.call("add", 1) == 1


def test_a_refusal_is_an_error_and_the_gang_goes_on(make: Make) -> None:
    group = make()
    for method, said in (("refuse", "the loss is not finite"), ("refuse_alone", "the disk is full")):
        with pytest.raises(StropError, match=said) as caught:
            group.call(method)
        assert type(caught.value) is StropError
        assert group.call("add", 2, 3) == 5


def test_a_divergence_is_loud(make: Make) -> None:
    group = make()
    with pytest.raises(Disagreement, match="trainer-0 0, trainer-1 1, trainer-2 2"):
        group.call("differ")
    assert not group.alive


def test_work_that_goes_on_may_take_longer_than_one_that_stands_still(make: Make) -> None:
    group = make((0, 1), stall=3.0)
    group.call("add", 1)
    begin = time.monotonic()
    progress.CURRENT.made("the start")
    assert group.call("toil", 5.0) == "done"  # within nothing comes round but what is made
    assert time.monotonic() - begin >= 5
    # And so the driver's watchdog does not end the run.
    assert progress.CURRENT.what in ("work of trainer-0", "work of trainer-1") and progress.CURRENT.age < 4


@pytest.mark.parametrize(
    "fault, said",
    [
        ("killed", "trainer-1: .*SIGKILL"),
        ("stopped", r"trainer-1: .*\d+ s"),
        ("stuck", r"trainer-\d: .*\d+ s"),
        ("crashed", "trainer-1: ZeroDivisionError"),
    ],
)
def test_a_fault_of_one_ends_all_in_time(make: Make, fault: str, said: str) -> None:
    group = make(silence=5.0 if fault == "stopped" else 60.0, stall=5.0 if fault == "stuck" else 60.0)
    assert group.call("add", 1) == 1
    begin = time.monotonic()
    with pytest.raises(RankGroupLost, match=said):
        group.call("suffer", fault, 1)
    assert time.monotonic() - begin < 30
    assert all(handle.death is not None for handle in group.handles)


def test_what_another_gang_would_meet_too_is_no_loss(make: Make) -> None:
    group = make(ranks=(0, -1))
    with pytest.raises(StropError, match="there is no such model") as caught:
        group.call("suffer", "nothing", 9)
    assert not isinstance(caught.value, RankGroupLost)
