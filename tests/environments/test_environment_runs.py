"""Whole runs in environments: token for token, the same again, and one turn as it was without an environment."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.environments.players import FORGETFUL, LLAMA_LIKE
from tests.environments.runs import (
    PLAYERS,
    STOPS,
    chatty,
    dies_in_a_later_turn,
    injected,
    record,
    record_samples,
    speak,
)
from tests.run.test_run import StopsAfter
from tests.runs import assert_same_run, metrics, small_config
from tests.watching import Notes

from strop.algorithms.advantages import Outcomes, TurnLevel
from strop.base.imports import allow_module
from strop.base.sample import sample_id
from strop.base.view import SilentView
from strop.run.folder import RunFolder
from strop.run.run import Interrupted, resume, train


def test_one_turn_is_the_run_without_an_environment(tmp_path: Path) -> None:
    train(small_config(), tmp_path / "verifier", SilentView())
    allow_module(PLAYERS)
    train(small_config(f"environment={PLAYERS}:OneTurn"), tmp_path / "environment", SilentView())
    assert_same_run(tmp_path / "verifier", tmp_path / "environment")


@pytest.mark.parametrize(("budget", "told"), [(20, True), (140, False)])
def test_a_budget_without_room_for_a_second_try_is_told(
    budget: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(monkeypatch, LLAMA_LIKE)
    sets = ("environment.turn_tokens=8", "environment.max_turns=2", "steps=1", "evaluation.every=none")
    notes = Notes()
    train(chatty(*sets, f"sampling.max_new_tokens={budget}"), tmp_path / "run", notes)
    lines = [line for line in notes.lines if "no token was left for another turn" in line]
    assert bool(lines) == told and all("environment.turn_tokens" in line for line in lines)
    share = metrics(tmp_path / "run")[-1].get("environment/no_room_share")
    assert share is not None and (share > 0.25) == told


def test_turns_behind_a_rewritten_chat_are_trained_behind_what_they_were_sampled_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(monkeypatch, FORGETFUL)
    found, trained = record(monkeypatch, tmp_path), record_samples(monkeypatch)
    interrupted = ("sampling.interruption.after=[3,9]", "sampling.interruption.phrase=stop")
    config = chatty("steps=3", "environment.history=separate", "evaluation.every=none", *interrupted)
    train(config, tmp_path / "run", SilentView())
    turns = found()
    assert len(turns) == 3 * 24 == len({sample.completion for sample in trained})
    assert max(len(played) for played in turns.values()) >= 3 and len(trained) > 1.5 * len(turns)
    for (ticket, index), played in turns.items():
        own = [sample for sample in trained if sample.completion == sample_id(ticket, index)]
        for column in ("token_ids", "logprobs"):
            sampled = np.concatenate([vars(turn)[column][~turn.injected] for turn in played])
            assert np.array_equal(np.concatenate([vars(sample)[column][sample.trained] for sample in own]), sampled)
        assert len({float(value) for sample in own for value in sample.advantages[sample.trained]}) == 1
        for turn in played:
            read = np.concatenate([turn.prompt_ids, turn.token_ids])
            assert any(np.array_equal(read, sample.token_ids[: len(read)]) for sample in own)


def test_a_chat_that_the_template_leaves_alone_is_one_sequence_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(monkeypatch, LLAMA_LIKE)
    for history in ("keep", "separate"):
        train(chatty("steps=2", f"environment.history={history}"), tmp_path / history, SilentView())
    assert metrics(tmp_path / "keep") == metrics(tmp_path / "separate")


@pytest.mark.parametrize("history", ["keep", "separate"])
def test_a_run_with_turns_is_the_same_again_and_after_an_interruption(
    history: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(monkeypatch, FORGETFUL)
    config = chatty(f"environment.history={history}", "steps=3")
    train(config, tmp_path / "one", SilentView())
    with pytest.raises(Interrupted):
        train(config, tmp_path / "cut", StopsAfter(2, signal.SIGINT))
    resume(tmp_path / "cut", SilentView())
    assert_same_run(tmp_path / "one", tmp_path / "cut")


@pytest.mark.parametrize("how", ["reset", "raise", "flood", "nonsense", "later"])
def test_a_failing_session_costs_its_own_sample(how: str, tmp_path: Path) -> None:
    allow_module(PLAYERS)
    config = small_config(
        f"environment.piece={PLAYERS}:Faulty", f"environment.how={how}", "steps=2", "evaluation.every=none", STOPS,
        "algorithm.selection.zero_variance=keep", "sampling.max_new_tokens=70",
    )  # fmt: skip
    train(config, tmp_path / "run", SilentView())
    rows = [row for step in (1, 2) for row in RunFolder.open(tmp_path / "run").read_rollouts(step)]
    by_status = {status: [row for row in rows if row["status"] == status] for status in ("correct", "error")}
    assert len(by_status["correct"]) + len(by_status["error"]) == len(rows) == 48
    assert 12 <= len(by_status["error"]) <= 36 and all(row["reward"] is None for row in by_status["error"])
    assert (max(len(row["turns"]) for row in by_status["error"]) == 1) == (how == "later")
    said = {
        "reset": "cannot begin", "raise": "no such move", "flood": "100000 characters", "nonsense": "gave str",
        "later": "no such move",
    }  # fmt: skip
    uncut = [row for row in by_status["error"] if row["finish_reason"] == "stop"]
    assert len(uncut) > 5 and all(said[how] in row["detail"] for row in uncut)


def test_generators_of_their_own_come_to_the_same(tmp_path: Path, forked: None) -> None:
    train(chatty("steps=2"), tmp_path / "one", SilentView())
    sets = ("steps=2", "orchestration.executor=embedded", "orchestration.generators=2")
    train(chatty(*sets), tmp_path / "other", SilentView())
    assert metrics(tmp_path / "one") == metrics(tmp_path / "other")


def test_a_generator_that_dies_in_a_later_turn_changes_nothing(
    tmp_path: Path, forked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = tmp_path / "died"
    dies_in_a_later_turn(monkeypatch, died)
    train(chatty("steps=2"), tmp_path / "one", SilentView())
    train(chatty("steps=2", "orchestration.executor=embedded"), tmp_path / "other", SilentView())
    assert died.exists()
    assert metrics(tmp_path / "one") == metrics(tmp_path / "other")


def test_turns_go_on_while_weights_change(tmp_path: Path, forked: None) -> None:
    train(chatty("orchestration.max_lag=2", "steps=3", "evaluation.every=none"), tmp_path / "run", SilentView())
    rows = metrics(tmp_path / "run")
    assert 0 < max(row["lag/max"] for row in rows[1:]) <= 2


def test_a_turn_is_no_longer_than_its_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that its own limit ends goes to the environment; one that the budget ends, ends the trajectory."""
    turns = record(monkeypatch, tmp_path)
    train(chatty("steps=2", "environment.turn_tokens=7", "evaluation.every=none"), tmp_path / "run", SilentView())
    assert max(len(one.token_ids) for played in turns().values() for one in played) == 7
    cut = [[one.truncated and len(one.token_ids) == 7 for one in played] for played in turns().values()]
    assert any(first and rest for first, *rest in cut)
    folder = RunFolder.open(tmp_path / "run")
    rows = [row for step in (1, 2) for row in folder.read_rollouts(step)]
    assert all(len(row["token_ids"]) <= 140 for row in rows) and max(len(row["injected"]) for row in rows) >= 2
    assert {row["finish_reason"] for row in rows if len(row["token_ids"]) < 100} == {"stop"}  # the budget had room


@pytest.mark.parametrize("here", ["true", "false"])
def test_scores_of_turns_reach_the_advantages(here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Outcomes] = []
    advantages = TurnLevel.__call__

    def noted(piece: TurnLevel, outcomes: Outcomes) -> Any:
        seen.append(outcomes)
        return advantages(piece, outcomes)

    monkeypatch.setattr(TurnLevel, "__call__", noted)
    sets = ("environment.scores=true", f"environment.here={here}", "environment.processes=1")
    config = chatty(*sets, "algorithm.advantage=TurnLevel", "steps=2", "evaluation.every=none")
    train(config, tmp_path / "run", SilentView())
    assert len(seen) == 2
    rows = [row for step in (1, 2) for row in RunFolder.open(tmp_path / "run").read_rollouts(step)]
    starts = [turns for data in seen for turns in data.turns or ()]
    scores = [given for data in seen for given in data.turn_rewards or ()]
    assert [list(one) for one in starts] == [row["turns"] for row in rows]
    assert [list(one) for one in scores] == [row["turn_scores"] for row in rows]
    assert max(map(len, starts)) >= 2 and any(map(any, scores))
    for turns, given, row in zip(starts, scores, rows, strict=True):
        assert len(turns) <= len(given) <= len(turns) + 1
        mask = injected(row)
        assert all(not mask[start] and mask[start - 1] for start in turns if start < len(mask))
