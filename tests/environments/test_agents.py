"""Black-box agents: what the policy learns from is what it said to them, token for token."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from tests.environments.players import LLAMA_LIKE, QWEN_LIKE
from tests.environments.runs import STOPS, injected, record, speak
from tests.run.test_run import StopsAfter
from tests.runs import assert_same_run, metrics, small_config

from strop.base.imports import allow_module
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.recipes import build
from strop.run.folder import RunFolder
from strop.run.measuring import evaluate_model
from strop.run.models import ModelSetup
from strop.run.run import Interrupted, resume, train

pytest.importorskip("openai", reason="needs the package openai (extra dev)")
AGENTS = "tests.environments.agents"


def agent(function: str, *sets: str) -> RunConfig:
    allow_module(AGENTS)
    return small_config(
        "environment=Agent", f"environment.function={AGENTS}:{function}", "environment.processes=1", STOPS,
        "sampling.max_new_tokens=140", "model.fresh.max_positions=1024", "data.max_prompt_tokens=200",
        "data.template=Auto", "algorithm.selection.zero_variance=keep", "steps=3", "evaluation.every=none",
        "batch.prompts_per_step=4", "batch.samples_per_prompt=3", *sets,
    )  # fmt: skip


def rows_of(run: Path) -> list[dict[str, object]]:
    folder = RunFolder.open(run)
    return [row for step in folder.rollout_steps() for row in folder.read_rollouts(step)]


@pytest.mark.parametrize("template", [QWEN_LIKE, LLAMA_LIKE, None])
def test_what_is_trained_is_what_was_said(
    template: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(monkeypatch, template)
    turns_of_run = record(monkeypatch, tmp_path)
    train(agent("chatty", "steps=2"), tmp_path / "run", SilentView())
    turns = turns_of_run()
    rows = rows_of(tmp_path / "run")
    assert len(rows) == 24 and max(map(len, turns.values())) >= 3
    assert {row["status"] for row in rows} <= {"correct", "wrong"}, [row["detail"] for row in rows]
    for row in rows:
        played = turns[row["ticket"], row["sample"]]  # type: ignore[index]
        ids, forced = np.array(row["token_ids"]), injected(row)
        assert np.array_equal(ids[~forced], np.concatenate([turn.token_ids for turn in played]))
        logprobs = np.concatenate([turn.logprobs for turn in played])
        assert np.array_equal(np.array(row["logprobs"], np.float32)[~forced], logprobs)
        whole = np.array([*row["prompt_ids"], *ids])  # type: ignore[misc]
        for turn in played:
            read = np.concatenate([turn.prompt_ids, turn.token_ids])
            assert np.array_equal(read, whole[: len(read)])


def test_the_same_again_after_an_interruption(tmp_path: Path) -> None:
    config = agent(
        "chatty", "steps=2", "batch.prompts_per_step=2", "checkpoint.every=1", "evaluation.every=2",
        "data.held_out.count=4",
    )  # fmt: skip
    train(config, tmp_path / "one", SilentView())
    with pytest.raises(Interrupted):
        train(config, tmp_path / "cut", StopsAfter(1, signal.SIGINT))
    resume(tmp_path / "cut", SilentView())
    assert_same_run(tmp_path / "cut", tmp_path / "one")


def test_asynchronous_ones_and_those_that_the_verifier_judges(tmp_path: Path) -> None:
    train(agent("asynchronous", "steps=1"), tmp_path / "one", SilentView())
    assert {row["status"] for row in rows_of(tmp_path / "one")} == {"correct", "wrong"}
    train(agent("unjudged", "steps=1"), tmp_path / "other", SilentView())
    assert {row["status"] for row in rows_of(tmp_path / "other")} <= {"correct", "wrong", "unparsed"}


def test_an_agent_hears_that_its_tokens_or_turns_are_spent(tmp_path: Path) -> None:
    train(agent("spendthrift", "steps=2", "environment.max_turns=3"), tmp_path / "run", SilentView())
    rows = rows_of(tmp_path / "run")
    assert {row["status"] for row in rows} == {"correct", "wrong"}
    for row in rows:
        even = int(str(row["reference"])) % 2 == 0 and int(str(row["reference"])) > 0
        assert (row["status"] == "wrong") == even and ("were spent" in str(row["detail"])) == even


@pytest.mark.parametrize("how", ["silent", "raise", "much", "rewrite", "exit", "hang"])
def test_a_failing_agent_costs_its_own_sample(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_TEST_FAULT", how)
    # Each death, and each wait for an agent that hangs, costs seconds.
    few = ("steps=1", "batch.samples_per_prompt=2", f"batch.prompts_per_step={2 if how == 'exit' else 4}")
    size = few if how in ("exit", "hang") else ("steps=2",)
    patience = f"environment.step_seconds={5 if how == 'hang' else 60}"
    train(agent("faulty", *size, patience), tmp_path / "run", SilentView())
    rows = rows_of(tmp_path / "run")
    said = {
        "silent": "asked nothing", "raise": "no such move", "much": "lie in [0, 1]", "rewrite": "message 2 is not",
        "exit": "status 3", "hang": "longer than 5 s",
    }  # fmt: skip
    third = [row for row in rows if int(str(row["reference"])) % 3 == 0]
    assert len(rows) in (4, 8, 24) and third
    assert all(row["status"] == "error" and row["reward"] is None for row in third)
    assert all(said[how] in str(row["detail"]) for row in third)
    others = {row["status"] for row in rows if row not in third}
    assert others and others <= {"correct", "wrong"}


def test_generators_of_their_own_come_to_the_same(tmp_path: Path, forked: None) -> None:
    few = ("steps=2", "batch.prompts_per_step=2")
    train(agent("chatty", *few), tmp_path / "one", SilentView())
    sets = (*few, "orchestration.executor=embedded", "orchestration.generators=2")
    train(agent("chatty", *sets), tmp_path / "other", SilentView())
    assert metrics(tmp_path / "one") == metrics(tmp_path / "other")


def test_an_evaluation_opens_few_more_agents_than_the_engine_has_slots() -> None:
    """A few hundred that begin at once wait for each other until their steps have taken too long."""
    config = agent("crowded", "engine.slots=16", "data.held_out.count=32")
    found = evaluate_model(ModelSetup(config, limit=32), 2, SilentView())
    assert found["problems"] == 32 and found["pass_rate"] == 1.0 and found["verifier_failures"] == 0, found


@pytest.mark.slow
def test_an_agent_of_the_quickstarts_size_learns(tmp_path: Path) -> None:
    """A base of 0.8 million parameters learns through OpenAI's client to use the agent's calculator."""
    allow_module(str(Path(__file__).parents[2] / "examples" / "calculator_agent.py"))
    sets = ("environment=Agent", "environment.function=calculator_agent:solve", "environment.max_turns=4")
    small = ("steps=12", "data.held_out.count=128", "evaluation.samples_per_problem=2", "evaluation.every=12")
    outcome = train(edit(build("quickstart.calculator"), [*sets, *small]), tmp_path / "run", SilentView())
    before, after = outcome.evaluations[0], outcome.evaluations[12]
    assert after.pass_rate > before.pass_rate + 0.1
