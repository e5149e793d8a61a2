"""How far generators run ahead: as far as the trainer's waiting asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.config.parse import edit
from strop.lab.planning import ConstantLength, Costs, Lengths, Setup, Simulation, Straggling
from strop.lab.planning.simulate import _Run
from strop.orchestration.lag_gate import LagGate, Window
from strop.orchestration.settings import WindowMode
from strop.recipes.resolve import resolve


class Trainer:
    """Of a window: takes 10 seconds a batch."""

    def __init__(self, window: Window, scale: float = 1.0) -> None:
        self.window, self.scale, self.now = window, scale, 0.0
        window.begins(0.0, 0.0)

    def step(self, waited: float, surplus: float = 0.0, other: float = 0.0) -> float:
        """Train, wait for resolved groups, and then for stragglers that would become too old; the window then."""
        self.now += 10 * self.scale
        self.window.done(self.now)
        self.window.looks(self.now, lacking=waited > 0)
        self.now += waited * self.scale
        self.window.looks(self.now, lacking=False)
        self.now += other * self.scale
        self.window.begins(self.now, surplus)
        return self.window.batches


def test_it_opens_by_a_batch_whenever_the_trainer_waited_for_groups() -> None:
    trainer = Trainer(Window(4, adaptive=True))
    assert [trainer.step(waited=1) for _ in range(5)] == [3, 4, 5, 5, 5]


def test_a_short_wait_or_one_for_stragglers_opens_nothing() -> None:
    trainer = Trainer(Window(4, adaptive=True))
    assert [trainer.step(waited=0.4, other=100) for _ in range(5)] == [2] * 5


def test_a_wait_is_long_or_short_beside_the_trainers_own_time() -> None:
    trainer = Trainer(Window(4, adaptive=True))
    assert trainer.step(waited=0.6, other=100) == 3 and trainer.step(waited=0.4) == 3
    at_once = Window(4, adaptive=True)
    for _ in range(5):  # by a clock that stands still
        at_once.begins(0.0, 0.0)
        at_once.done(0.0)
    assert at_once.batches == 2


def test_a_batch_that_taught_nothing_says_nothing() -> None:
    window = Window(4, adaptive=True)
    window.begins(0.0, 0.0)
    window.done(10.0)
    window.looks(10.0, lacking=True)
    window.begins(15.0, 0.0)
    assert window.batches == 3
    window.looks(16.0, lacking=True)  # and the next one is looked for, before anything was done
    window.begins(25.0, 0.0)
    assert window.batches == 3


def test_a_batch_that_was_there_at_the_first_look_was_not_waited_for() -> None:
    window = Window(4, adaptive=True)
    for step in range(5):
        window.begins(20.0 * step, 0.0)
        window.done(20.0 * step + 10)  # and 10 seconds for other things
    assert window.batches == 2


def test_it_closes_by_half_of_what_none_of_its_steps_needed() -> None:
    trainer = Trainer(Window(2, adaptive=True))
    assert trainer.step(waited=1) == 3
    assert [trainer.step(0, surplus) for surplus in (1.5, 0.5, 2.0)] == [3, 3, 2.75]
    assert [trainer.step(0, surplus) for surplus in (9, 9, 9)] == [2.75, 2.75, 2]


def test_a_wait_begins_the_count_of_steps_again() -> None:
    trainer = Trainer(Window(2, adaptive=True))
    waits = [(1, 0), (0, 1), (0, 1), (1, 1), (0, 1), (0, 1), (0, 1)]
    assert [trainer.step(*wait) for wait in waits] == [3, 3, 3, 3, 3, 3, 2.5]


@pytest.mark.parametrize(("lag", "adaptive", "batches"), [(0, True, 1), (1, True, 2), (8, False, 9)])
def test_where_there_is_nothing_to_choose_it_stays(lag: int, adaptive: bool, batches: float) -> None:
    trainer = Trainer(Window(lag, adaptive))
    assert {trainer.step(*wait) for wait in [(5, 0), (0, 9), (0, 9)] * 9} == {batches}


@given(
    steps=st.lists(st.tuples(st.sampled_from([0, 1]), st.floats(0, 4))),
    scale=st.sampled_from([2.0**-10, 1.0, 2.0**10]),
    lag=st.integers(0, 8),
)
def test_it_is_within_its_ends_and_the_clocks_unit_is_none_of_its_business(
    steps: list[tuple[int, float]], scale: float, lag: int
) -> None:
    ours, other = Trainer(Window(lag, adaptive=True), scale), Trainer(Window(lag, adaptive=True))
    found = [ours.step(*step) for step in steps]
    assert found == [other.step(*step) for step in steps]
    assert all(min(2, lag + 1) <= batches <= lag + 1 for batches in found)


def test_the_first_step_of_a_process_says_nothing() -> None:
    trainer = Trainer(Window(4, adaptive=True))
    assert trainer.step(waited=1) == 3
    again = Window(4, adaptive=True)
    again.load(trainer.window.state())
    again.done(1000)
    again.looks(1000, lacking=True)
    again.begins(2000, 0)
    assert again.batches == 3
    fewer = Window(1, adaptive=True)  # resumed with a smaller k
    fewer.load({"batches": 9.0})
    assert fewer.batches == 2
    in_turn = Window(4, adaptive=False)  # resumed where generation and training take turns
    in_turn.load({"batches": 2.5})
    assert in_turn.batches == 5



def test_a_batch_of_which_nothing_is_kept_is_a_part_of_the_wait_for_the_next() -> None:
    gate = LagGate(1, 4, refill=False, adaptive=True)

    def takes(now: float, keep: bool) -> None:
        gate.resolve(gate.admit(), keep)
        batch = gate.batch()
        assert batch is not None
        gate.trains(batch, now)
        gate.close(batch, trained=keep)

    takes(0, keep=True)
    gate.trained(10)
    takes(10, keep=False)  # there at once, but it teaches nothing
    gate.waits(10)
    takes(15, keep=True)
    assert gate.window.batches == 3
    gate.trained(25)
    takes(25, keep=False)
    takes(25, keep=True)
    assert gate.window.batches == 3


# ---------------------------------------------------------------------- what it does to a run

SLOTS, TOKEN = 96, 0.004


def simulated(lengths: Lengths, train_token: float, adaptive: bool) -> Simulation:
    """Two generators, 8 prompts of 8 samples, 150 steps of PipelineRL-8."""
    setup = Setup(8, 8, max_lag=8, generators=2, slots=SLOTS)
    run = _Run(setup, Costs(decode_step=TOKEN, train_token=train_token), lengths, steps=150, seed=0)
    run.gate = LagGate(8, 8, refill=False, adaptive=adaptive)
    return run.go()


def test_a_trainer_slower_than_its_generators_trains_on_tokens_one_version_old() -> None:
    slow = TOKEN / SLOTS * 3
    full, ours = (simulated(ConstantLength(6), slow, adaptive) for adaptive in (False, True))
    assert full.mean_lag > 7 and ours.mean_lag <= 1
    assert ours.total == pytest.approx(full.total, rel=0.001) and ours.trainer_idle < 0.02


def test_only_a_full_window_tells_values_of_k_apart() -> None:
    costs = Costs(decode_step=TOKEN, train_token=TOKEN / SLOTS * 3)
    lags: dict[WindowMode, list[float]] = {"adaptive": [], "full": []}
    for window, found in lags.items():
        for k in (1, 4, 8):
            setup = Setup(8, 8, max_lag=k, generators=2, slots=SLOTS, window=window)
            found.append(_Run(setup, costs, ConstantLength(6), steps=150, seed=0).go().mean_lag)
    assert max(lags["adaptive"]) <= 1 and min(lags["adaptive"]) > 0.95
    assert lags["full"] == pytest.approx([1, 4, 8], rel=0.1)


def test_the_setting_chooses_the_window_and_in_process_it_is_full() -> None:
    for sets, adapts in (
        (["orchestration.max_lag=8"], True),
        (["orchestration.max_lag=8", "orchestration.window=full"], False),
        (["orchestration.max_lag=8", "orchestration.executor=in_process"], False),
    ):
        config = edit(resolve("grpo"), sets)
        assert config.orchestration.adapts_window is adapts
        gate = LagGate(1, 8, False, adaptive=config.orchestration.adapts_window)
        assert gate.window.batches == (2 if adapts else 9)


def test_stragglers_open_it_and_cost_no_time() -> None:
    lengths = Straggling(ConstantLength(6), 0.05, 30)
    full, ours = (simulated(lengths, TOKEN / (2 * SLOTS), adaptive) for adaptive in (False, True))
    assert ours.total < 1.02 * full.total and ours.max_lag <= 8
    assert ours.mean_lag < 0.8 * full.mean_lag
