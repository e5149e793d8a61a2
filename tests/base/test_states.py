"""States of pieces: found by path, updated after each step, the same after a resume."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.run.test_run import StopsAfter
from tests.runs import assert_same_run, metrics, small_config

from strop.algorithms.rewards import BinaryReward, Reward
from strop.base.imports import allow_module
from strop.base.pieces import State, StatefulPiece, States, stateful_pieces
from strop.base.types import Completion, InputError, Verdict
from strop.config.parse import edit
from strop.recipes.resolve import resolve
from strop.run.run import Interrupted, resume, train


class Counting(Reward, StatefulPiece):
    """A reward that counts steps and adds up lengths, and leaves the reward alone."""

    start: int = 5

    def __call__(self, completion: Completion, verdict: Verdict) -> float:
        return verdict.score

    def initial(self) -> State:
        return {"steps": self.start, "length": 0.0, "names": []}

    def update(self, state: State, statistics: Mapping[str, float | None]) -> State:
        return {**state, "steps": state["steps"] + 1, "length": state["length"] + (statistics["length/mean"] or 0.0)}


allow_module(__name__)
COUNTING = f"algorithm.reward={Counting.piece_name()}"


def test_pieces_are_found_by_path() -> None:
    config = edit(resolve("grpo"), [COUNTING, "algorithm.reward.start=7"])
    assert dict(stateful_pieces(config)) == {"algorithm.reward": Counting(start=7)}
    assert not dict(stateful_pieces(resolve("grpo")))


def test_a_state_grows_with_the_run_and_survives_it(tmp_path: Path) -> None:
    config = small_config(COUNTING, "checkpoint.every=10")
    train(config, tmp_path / "whole", StopsAfter(99, signal.SIGINT))
    rows = metrics(tmp_path / "whole")[1:]
    assert [row["state/algorithm.reward.steps"] for row in rows] == [6, 7, 8, 9]
    assert rows[-1]["state/algorithm.reward.length"] == pytest.approx(sum(row["length/mean"] for row in rows))
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", StopsAfter(2, signal.SIGINT))
    resume(tmp_path / "parts", StopsAfter(99, signal.SIGINT))
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_piece_that_stays_in_the_next_stage_keeps_its_state() -> None:
    states = States(small_config(COUNTING))
    states.update({"length/mean": 3.0})
    states.enter(small_config(COUNTING, "sampling.temperature=0.5"))
    assert states.numbers() == {"state/algorithm.reward.steps": 6.0, "state/algorithm.reward.length": 3.0}
    states.enter(small_config(COUNTING, "algorithm.reward.start=9"))  # another piece at its place begins
    assert states.numbers() == {"state/algorithm.reward.steps": 9.0, "state/algorithm.reward.length": 0.0}
    states.enter(small_config())
    assert states.numbers() == {}


def test_states_of_other_pieces_are_refused() -> None:
    states = States(small_config(COUNTING))
    with pytest.raises(InputError, match=r"algorithm\.reward"):
        states.load({})
    assert isinstance(small_config().algorithm.reward, BinaryReward)
