"""Deaths, stragglers, drops and resumed drivers in any order: what must hold of a run holds all the same."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench.simulated import Simulation
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.orchestration.invariants import assert_sound
from tests.orchestration.puppets import Clock, Fate, Puppets, Reader, SlowJudge
from tests.orchestration.simulation import Made, made

from strop.orchestration.workers import Supervision

HAPPENS = ("SIGKILL) and is started again", "has not answered", "is generated again")
# A world cannot be made much simpler: any change of it is another life.
QUICKLY = settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MANY = Supervision(restarts=10**6)
SIMULATION = Simulation(slots=4, tokens=3, straggler_share=0.15)


@dataclass(frozen=True)
class World:
    """What a run lives in: its settings, its workers, when its driver is killed, and the chance that rules the rest."""

    sets: tuple[str, ...]
    generators: int
    fate: Fate
    deaths: tuple[int, ...]
    seed: int

    def live(self, folder: Path) -> tuple[Made, list[str]]:
        """A run to its end, and what all its drivers had to note.

        The driver is killed while it works on each of the steps `deaths`. The next one goes on from the state at some
        boundary before, as a run does from a checkpoint.
        """
        chance, clock = random.Random(self.seed), Clock()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("strop.orchestration.fleet.time", clock)
            patch.setattr("strop.run.loop.time", clock)
            patch.setattr("strop.orchestration.fleet.ThreadPoolExecutor", lambda threads: Reader(chance))
            return self._live(folder, chance, clock)

    def _live(self, folder: Path, chance: random.Random, clock: Clock) -> tuple[Made, list[str]]:
        run = self._driver(folder, chance, clock)
        notes: list[str] = []
        boundaries = [json.dumps(run.loop.state())]
        for death in (*self.deaths, None):
            run.fleet.start(folder)
            try:
                run.loop.reopen()
                while run.loop.step < run.config.steps and run.loop.step + 1 != death:
                    record = run.loop.next_step()
                    assert record is not None
                    run.records.append(record)
                    boundaries.append(json.dumps(run.loop.state()))
                if death is not None:  # on the way to the next step
                    run.loop._admit()
                    run.loop._collect()
            finally:
                run.fleet.close()
            notes += run.notes.lines
            if death is not None:
                step = chance.randint(max(run.loop.step - 2, 0), run.loop.step)
                run = resumed(run, self._driver(folder, chance, clock), json.loads(boundaries[step]))
                del boundaries[step + 1 :]
        return run, notes

    def _driver(self, folder: Path, chance: random.Random, clock: Clock) -> Made:
        return made(
            folder, *self.sets, simulation=SIMULATION, supervision=MANY, generators=self.generators,
            launcher=Puppets(self.fate, chance, clock), judge=SlowJudge(chance),
        )  # fmt: skip


def resumed(before: Made, run: Made, state: dict[str, Any]) -> Made:
    """The next driver, with the learner as it was at that boundary."""
    step = state["step"]
    run.records = before.records[:step]
    run.learner.curve = before.learner.curve[:step]
    run.learner.value = run.learner.curve[-1] if step else 1.0
    run.learner.trained = [group.ticket for record in run.records for group in record.groups]
    run.loop.load(state)
    return run


def settings_of(lag: int, steps: int, prompts: int) -> tuple[str, ...]:
    return (
        f"orchestration.max_lag={lag}", f"steps={steps}",
        f"batch.prompts_per_step={prompts}", "batch.samples_per_prompt=2", "algorithm.advantage.normalization=none",
    )  # fmt: skip


@st.composite
def worlds(draw: st.DrawFn) -> World:
    lag = draw(st.sampled_from([0, 1, 2, 4, 8]), label="k")
    steps, prompts = draw(st.integers(2, 8), label="steps"), draw(st.integers(1, 4), label="prompts")
    dies = draw(st.sampled_from([0.0, 0.001, 0.004, 0.02]), label="dies")
    return World(
        settings_of(lag, steps, prompts),
        draw(st.integers(1, 3), label="generators"),
        Fate(dies, dies / 2),
        tuple(sorted(draw(st.lists(st.integers(1, steps), max_size=2), label="deaths of the driver"))),
        draw(st.integers(0, 10**6), label="seed"),
    )


def check(folder: Path, world: World) -> None:
    run, _ = world.live(folder)
    assert_sound(run)


@settings(QUICKLY, max_examples=20)
@given(world=worlds())
def test_whatever_happens_in_whatever_order_the_run_is_sound(tmp_path: Path, world: World) -> None:
    check(tmp_path, world)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(QUICKLY, max_examples=500)
@given(world=worlds())
def test_the_same_in_many_more_orders(tmp_path: Path, world: World) -> None:
    check(tmp_path, world)


def test_chance_brings_all_that_may_happen(tmp_path: Path) -> None:
    """What the others are worth: over a few lives everything happens, and the same again with the same seed."""
    seen: Counter[str] = Counter()
    for seed in range(3):
        world = World(settings_of(4, 12, 4), 3, Fate(0.002, 0.001), (4, 9), seed)
        run, notes = world.live(tmp_path)
        assert_sound(run)
        for line in notes:
            seen.update(what for what in HAPPENS if what in line)
        completions = [r.completion for record in run.records for group in record.groups for r in group.rollouts]
        seen["across versions"] += sum(len(completion.versions) > 1 for completion in completions)
        seen["largest lag"] = max(seen["largest lag"], int(run.largest_lag))
        seen["verifier failed"] += sum(group.usable != group.rollouts for r in run.records for group in r.groups)
    assert all(seen[what] for what in (*HAPPENS, "across versions", "verifier failed")), seen
    assert seen["largest lag"] >= 3
    again, same = world.live(tmp_path)
    assert again.learner.curve == run.learner.curve and same == notes
