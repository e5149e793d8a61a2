"""The gate's promises by simulation: lag never above k, no step waits for ever, each group counts once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.orchestration.lag_gate import BatchTickets, LagGate


class Simulation:
    """Groups take a random time, some of them 30 times as long; the trainer trains whenever the gate lets it."""

    def __init__(
        self, seed: int, prompts: int, lag: int, refill: bool, drop: float, straggle: float, update: float | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.gate = LagGate(prompts, lag, refill, adaptive=update is not None)
        self.update = update or 0.0
        self.drop, self.straggle = drop, straggle
        self.finish: dict[int, float] = {}
        self.trained: list[int] = []
        self.lags: list[int] = []
        self.clock = 0.0
        self.most_open = 0
        self.admitted: list[int] = []

    def duration(self) -> float:
        return self.random.expovariate(1.0) * (30 if self.random.random() < self.straggle else 1)

    def run(self, steps: int) -> None:
        done = 0
        while done < steps:
            while self.gate.admits(steps - done):
                ticket = self.gate.admit()
                self.admitted.append(ticket)
                self.finish[ticket] = self.clock + self.duration()
            self.most_open = max(self.most_open, self.gate.open)
            batch = self.gate.batch()
            if batch is not None:
                self.lags += [self.gate.version - self.gate.start(t) for t in batch.kept]
                self.trained += batch.kept
                self._take(batch)
                done += bool(batch.kept)
                continue
            self.gate.waits(self.clock)
            assert self.finish, "the gate waits although every group is resolved: it would wait for ever"
            self._hear(max(self.clock, min(self.finish.values())))

    def _take(self, batch: BatchTickets) -> None:
        self.gate.trains(batch, self.clock)
        self._hear(self.clock + self.update)
        self.gate.close(batch, trained=bool(batch.kept))
        self.gate.trained(self.clock)

    def _hear(self, until: float) -> None:
        self.clock = until
        for ticket in sorted((t for t, end in self.finish.items() if end <= until), key=lambda t: self.finish[t]):
            del self.finish[ticket]
            self.gate.resolve(ticket, keep=self.random.random() >= self.drop)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    prompts=st.integers(1, 6),
    lag=st.integers(0, 8),
    refill=st.booleans(),
    drop=st.sampled_from([0.0, 0.3, 0.8]),
    straggle=st.sampled_from([0.0, 0.05, 0.5]),
    update=st.sampled_from([None, 0.1, 1.0, 10.0]),
)
def test_lag_is_bounded_and_training_never_stalls(
    seed: int, prompts: int, lag: int, refill: bool, drop: float, straggle: float, update: float | None
) -> None:
    simulation = Simulation(seed, prompts, lag, refill, drop, straggle, update=update)
    simulation.run(steps=40)
    assert max(simulation.lags) <= lag
    assert simulation.most_open <= (lag + 1) * prompts
    assert len(simulation.trained) == len(set(simulation.trained))
    if refill:
        assert len(simulation.trained) == 40 * prompts


@pytest.mark.parametrize("lag", [1, 2, 4, 8])
def test_the_permitted_lag_is_used(lag: int) -> None:
    simulation = Simulation(seed=1, prompts=2, lag=lag, refill=True, drop=0.2, straggle=0.2)
    simulation.run(steps=100)
    assert max(simulation.lags) == lag


def test_two_stragglers_of_one_version_never_become_due_at_once() -> None:
    # k = 2, one prompt a step: a and b start at version 0 and straggle while newer groups are trained.
    gate = LagGate(prompts_per_step=1, max_lag=2, refill=True)
    a, b, c = gate.admit(), gate.admit(), gate.admit()
    gate.resolve(c, keep=True)
    assert (batch := gate.batch()) is not None and batch.kept == (c,)
    gate.close(batch, trained=True)
    d = gate.admit()
    gate.resolve(d, keep=True)
    # Training d would make version 2; a could follow with lag 2, but b only at version 3, with lag 3.
    assert gate.batch() is None
    gate.resolve(a, keep=True)
    gate.resolve(b, keep=True)
    for expected in (a, b, d):
        assert (batch := gate.batch()) is not None and batch.kept == (expected,)
        gate.close(batch, trained=True)


def test_synchronous_training_takes_the_whole_step() -> None:
    gate = LagGate(prompts_per_step=3, max_lag=0, refill=False)
    tickets = [gate.admit() for _ in range(3)]
    assert not gate.admits(steps_left=5)
    gate.resolve(tickets[2], keep=True)
    gate.resolve(tickets[0], keep=False)
    assert gate.batch() is None
    gate.resolve(tickets[1], keep=True)
    batch = gate.batch()
    assert batch is not None and batch.kept == (1, 2) and batch.dropped == (0,)


def test_without_refill_a_dropped_group_keeps_its_place() -> None:
    keeps, frees = LagGate(2, 0, refill=False), LagGate(2, 0, refill=True)
    for gate in (keeps, frees):
        first, _ = gate.admit(), gate.admit()
        gate.resolve(first, keep=False)
    assert not keeps.admits(steps_left=1)
    assert frees.admits(steps_left=1)


def test_a_step_without_survivor_makes_no_version() -> None:
    gate = LagGate(1, 0, refill=False)
    gate.resolve(gate.admit(), keep=False)
    batch = gate.batch()
    assert batch is not None and batch.kept == ()
    gate.close(batch, trained=False)
    assert gate.version == 0 and gate.open == 0 and gate.admits(steps_left=1)


def test_a_lost_group_starts_under_the_current_version() -> None:
    gate = LagGate(1, 1, refill=False)
    slow, quick = gate.admit(), gate.admit()
    gate.resolve(quick, keep=True)
    batch = gate.batch()
    assert batch is not None
    gate.close(batch, trained=True)
    gate.restart(slow)
    assert gate.start(slow) == 1


def test_the_oldest_groups_are_trained_first_by_when_they_started() -> None:
    gate = LagGate(1, 2, refill=False)
    lost, other, first = gate.admit(), gate.admit(), gate.admit()
    gate.resolve(first, keep=True)
    gate.close(BatchTickets((first,), ()), trained=True)
    gate.restart(lost)
    for ticket in (lost, other):
        gate.resolve(ticket, keep=True)
    assert (batch := gate.batch()) is not None and batch.kept == (other,)


@pytest.mark.parametrize("keep", [True, False])
def test_a_group_is_resolved_once(keep: bool) -> None:
    gate = LagGate(1, 0, refill=False)
    ticket = gate.admit()
    gate.resolve(ticket, keep=keep)
    with pytest.raises(ValueError):
        gate.resolve(ticket, keep=True)


def test_groups_are_admitted_up_to_the_window_and_for_the_steps_that_are_left() -> None:
    gate = LagGate(3, 4, refill=True, adaptive=True)
    gate.window.batches = 2.5
    assert [gate.admit() for _ in range(9) if gate.admits(steps_left=9)] == list(range(8))  # 7.5, rounded up
    gate.resolve(4, keep=False)
    assert gate.open == 7 and gate.admits(steps_left=9) and not gate.admits(steps_left=2)


def test_what_lies_ready_beside_the_batch_closes_the_window() -> None:
    gate = LagGate(2, 2, refill=False, adaptive=True)
    gate.window.batches = 3.0
    running: list[int] = []
    for step, more in enumerate((5, 0, 2, 2)):
        while gate.admits(steps_left=9):
            running.append(gate.admit())
        for _ in range(more):
            gate.resolve(running.pop(0), keep=True)
        batch = gate.batch()
        assert batch is not None and gate.resolved == (5 if step == 0 else 3)
        gate.trains(batch, 20.0 * step)
        gate.close(batch, trained=True)
        gate.trained(20.0 * step + 10)
    assert gate.window.batches == 2.75  # half a batch lay ready at each step but the first, which says nothing


def test_state_goes_on() -> None:
    gate = LagGate(1, 0, refill=False)
    gate.admit()
    other = LagGate(1, 0, refill=False)
    other.admit()
    gate.window.batches = 0.75
    other.window.least = 0.5
    other.load(gate.state())
    assert other.open == 0 and other.window.batches == 0.75
    other.restart(0)
    assert other.admit() == 1 and other.open == 2
