"""Generators are killed and stopped, for real; every group is trained once, and nothing else changes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from bench.simulated import Simulation
from tests.orchestration.invariants import assert_sound
from tests.orchestration.simulation import PROMPTS, Made, beside, made
from tests.watching import until

from strop.base import progress
from strop.base.imports import allow_module
from strop.base.types import FloatArray, StropError
from strop.engines.protocol import Request, Sampling
from strop.orchestration.executor import Probe, WeightMismatch
from strop.orchestration.workers import Supervision
from strop.verifiers.base import Isolation
from strop.verifiers.judges import ProcessJudge
from strop.verifiers.reward_function import PythonFunction
from strop_verify.verdict import Status

STEPS = 6
ALL = list(range(STEPS * PROMPTS))
LAGS = (1, 2, 4, 8)
DYING = ("generating", "sending", "loading", "swapping")
SLOWLY = [0, *(pytest.param(lag, marks=pytest.mark.slow) for lag in LAGS)]
pytestmark = pytest.mark.usefixtures("forked")  # how processes start is the matter of test_spawned_workers
STRAGGLING = Simulation(slots=64, token_seconds=0.001, straggler_share=0.05)  # of 30 times the length


@pytest.fixture(scope="module")
def told() -> dict[int, set[int]]:
    """The generators of the undisturbed run that said, by version, that they compute what the trainer computes."""
    return {}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, told: dict[int, set[int]]) -> Made:
    run = made(tmp_path_factory.mktemp("undisturbed"))

    def check(generator: int, version: int, probe: Probe, found: FloatArray) -> None:
        assert found.tolist() == probe.expected.tolist() and (probe.sampled > 0) == (version > 0)
        told.setdefault(version, set()).add(generator)

    run.fleet._check = check  # type: ignore[assignment]
    return run.run()


def test_an_undisturbed_run_trains_every_group_once_in_order(undisturbed: Made) -> None:
    assert undisturbed.learner.trained == ALL
    assert undisturbed.largest_lag == 0
    assert len(set(undisturbed.learner.curve)) == STEPS
    assert_sound(undisturbed)  # and so the curve is what the tests of faults hold theirs against


@pytest.mark.parametrize("point", DYING)
def test_a_generator_killed_anywhere_changes_nothing(tmp_path: Path, point: str) -> None:
    run = made(tmp_path, fault=point, simulation=STRAGGLING if point == "generating" else None).run()
    assert (tmp_path / "struck").exists()
    assert sum(run.replaced) == 1
    assert_sound(run)


@pytest.mark.parametrize("lag", SLOWLY)
@pytest.mark.parametrize("point", ["hanging", "stopping"])
def test_a_generator_that_does_not_answer_is_replaced(tmp_path: Path, point: str, lag: int) -> None:
    bound = {"hanging": Supervision(stall=4.0), "stopping": Supervision(silence=4.0)}[point]
    run = made(tmp_path, *beside(lag), fault=point, supervision=bound).run()
    assert sum(run.replaced) == 1
    assert_sound(run)


def test_an_idle_generator_that_is_killed_is_replaced(tmp_path: Path) -> None:
    run = made(tmp_path)

    def kill(step: int) -> None:  # at k = 0 generators have nothing to do while the trainer learns
        if step == 3:
            assert run.fleet.unfinished == 0
            pid = run.fleet.generators[1].worker.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    run.learner.before = kill
    run.run()
    assert run.replaced == [0, 1]
    assert_sound(run)


@pytest.mark.parametrize("lag", SLOWLY)
def test_weights_reach_somebody_even_if_all_generators_die_at_once(tmp_path: Path, lag: int) -> None:
    run = made(tmp_path, *beside(lag))
    run.kill_all_before(2)
    run.run()
    assert sum(run.replaced) == 2
    assert_sound(run)


QUICK = {(1, "sending"), (2, "loading"), (4, "swapping"), (8, "generating")}


@pytest.mark.parametrize(
    ("lag", "point"),
    [
        pytest.param(lag, point, marks=() if (lag, point) in QUICK else pytest.mark.slow)
        for lag in (0, *LAGS)
        for point in DYING
    ],
)
def test_the_lag_stays_within_bounds_whatever_dies(tmp_path: Path, lag: int, point: str) -> None:
    after = 20 if point == "generating" else 2
    run = made(tmp_path, *beside(lag), simulation=STRAGGLING, fault=point, after=after)

    def kill(step: int) -> None:
        if step == 5:
            while not any(run.replaced):  # by now the fault has struck, or it does before anything else is trained
                run.fleet._wait(1.0)
            # The one that has died before: what it had then is with the other one, and nothing meets two deaths.
            pid = max(run.fleet.generators, key=lambda generator: generator.life).worker.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    run.learner.before = kill
    run.run()
    assert (tmp_path / "struck").exists()
    assert sum(run.replaced) == 2
    assert_sound(run)
    assert run.largest_lag > 0 or lag == 0  # else the bound was never put to the test
    lengths = [len(r.completion.token_ids) for record in run.records for g in record.groups for r in g.rollouts]
    assert max(lengths) == 30 * min(lengths)
    shares = [record.metrics.get("idle/generators") for record in run.records]  # a step too quick to hear of has none
    assert all(share is None or 0.0 <= share <= 1.0 for share in shares) and any(share is not None for share in shares)


def test_every_generator_says_after_every_update_what_it_computes(undisturbed: Made, told: dict[int, set[int]]) -> None:
    assert undisturbed.records[-1].step == STEPS
    assert told == {version: {0, 1} for version in range(STEPS)}  # of the last version nothing is drawn


def test_generators_that_compute_something_else_end_the_run_at_once(tmp_path: Path) -> None:
    run = made(tmp_path / "lying", fault="lying", after=3)
    with pytest.raises(WeightMismatch, match=r"generator \d differs .* version 3"):
        run.run()
    assert run.learner.trained == list(range(3 * PROMPTS)) and len(run.records) == 3  # nothing drawn with version 3
    other = made(tmp_path / "changed", fault="changed")
    with pytest.raises(WeightMismatch, match=r"generator \d differs"):
        other.run()
    assert sum(other.replaced) == 1


def test_deaths_beyond_the_budget_end_the_run_with_one_line(tmp_path: Path) -> None:
    run = made(tmp_path, supervision=Supervision(restarts=0), fault="generating")
    with pytest.raises(StropError, match=r"orchestration\.restarts=0 .*--resume"):
        run.run()


def test_what_a_generator_refuses_ends_the_run(tmp_path: Path) -> None:
    run = made(tmp_path, source=lambda file, version: file.write(version, run.learner.weights()[:99]))
    with pytest.raises(StropError, match="version 0"):
        run.run()


@pytest.mark.parametrize("lag", SLOWLY)
def test_a_verifier_that_hangs_or_dies_costs_single_samples(tmp_path: Path, lag: int) -> None:
    allow_module("tests.orchestration.harmful")
    isolation = Isolation(workers=2, seconds=0.6, retry_seconds=0.3)
    judge = ProcessJudge(PythonFunction(function="tests.orchestration.harmful:judge", isolation=isolation))
    run = made(tmp_path, f"orchestration.max_lag={lag}", judge=judge)

    def kill(step: int) -> None:  # and all of them at once, between two steps
        if step in (3, 5):
            os.kill(judge._pool.pid, signal.SIGKILL)

    run.learner.before = kill
    try:
        run.run()
    finally:
        judge.close()
    assert_sound(run)
    rollouts = [rollout for record in run.records for group in record.groups for rollout in group.rollouts]
    for number, status in ((0, Status.TIMEOUT), (1, Status.ERROR)):
        harmful = [r.verdict for r in rollouts if int(r.completion.text.split()[0]) % 40 == number]
        assert harmful and status in {verdict.status for verdict in harmful}
        assert not any(verdict.usable for verdict in harmful)
    assert sum(rollout.verdict.usable for rollout in rollouts) > 0.8 * len(rollouts)


def test_a_long_generation_is_progress_and_a_stopped_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path, simulation=Simulation(tokens=10_000, token_seconds=0.02), generators=1)
    try:
        run.fleet.start(tmp_path)
        run.loop.reopen()
        sampling = Sampling(max_new_tokens=10_000)
        run.fleet.submit(Request("long", np.arange(3, dtype=np.int32), sampling, seed=1), 0)
        progress.made("the start")
        assert run.fleet.poll(1.5) == []
        assert progress.CURRENT.what == "work of generator-0" and progress.CURRENT.age < 1.5
        monkeypatch.setattr("strop.orchestration.workers._LIVELY_SECONDS", 0.2)
        pid = run.fleet.generators[0].worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)
        progress.made("nothing since")
        assert run.fleet.poll(1.5) == [] and progress.CURRENT.what == "nothing since"
    finally:
        run.fleet.generators[0].worker.kill("it is stopped")
        run.fleet.close()


def test_ended_workers_leave_no_weights_behind(undisturbed: Made) -> None:
    assert undisturbed.fleet.store._descriptors == {} and not undisturbed.fleet.store.root.exists()
    workers = [Path(f"/proc/{generator.worker.pid}") for generator in undisturbed.fleet.generators]
    assert until(lambda: not any(place.exists() for place in workers), 5)
