"""Runs whose servers also evaluate: no second model, nothing lost with a server, and the versions that drew it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engines.fake_vllm import ServedModel, running
from tests.engines.served_runs import check_record
from tests.engines.test_vllm_faults import still_while_forking
from tests.runs import metrics, small_config
from tests.tiny import byte_tokenizer
from tests.watching import Notes

from strop.base.seeds import derive
from strop.base.view import SilentView
from strop.config.schema import RunConfig
from strop.model.policy import load_policy
from strop.orchestration.evaluator import PoolEvaluator
from strop.report.runs import read_runs
from strop.report.samples import recorded_answers
from strop.run import assembly
from strop.run.run import Interrupted, resume, train

STEPS, LAG = 4, 2
SETS = (
    "engine=Vllm", "engine.slots=16", "engine.reply_seconds=20", f"steps={STEPS}", "orchestration.generators=2",
    f"orchestration.max_lag={LAG}", "evaluation.every=2", "evaluation.samples_per_problem=2",
)  # fmt: skip

ASYNCHRONOUS = ("evaluation.asynchronous=true",)


@contextmanager
def served(*sets: str, faults: Sequence[str] = ()) -> Iterator[tuple[RunConfig, list[ServedModel]]]:
    """A configuration with two servers; the second has these faults within the 16 samples of the first evaluation."""
    policy = load_policy(small_config(*sets).model, byte_tokenizer(), derive(0, "model"))[0]
    with ExitStack() as stack:
        servers = [stack.enter_context(running(ServedModel(policy))) for _ in range(2)]
        servers[1].faults, servers[1].after = list(faults), 3
        still_while_forking(servers, stack.enter_context(pytest.MonkeyPatch.context()))
        urls = ", ".join(f'"{server.url}"' for server in servers)
        yield small_config(*sets, f"engine.urls=[{urls}]"), servers


def drawn(run: Path) -> dict[int, tuple[float, float]]:
    """The oldest and the newest version of each evaluation, by its step."""
    rows = [row for row in metrics(run) if "evaluation/version" in row]
    return {row["step"]: (row["evaluation/version"], row["evaluation/newest_version"]) for row in rows}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["between steps", "while training goes on"])
def test_findings_2_and_3_servers_evaluate_and_one_that_dies_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: None, asynchronous: bool
) -> None:
    def refused(*given: Any, **named: Any) -> None:
        raise AssertionError("an engine is built next to the servers")

    monkeypatch.setattr(assembly, "build_engine", refused)
    sets, view = (*SETS, *ASYNCHRONOUS) if asynchronous else SETS, Notes()
    with served(*sets, faults=["error"]) as (config, servers):
        found = train(config, tmp_path / "run", view)
    assert not servers[1].faults and any("generator-1 died" in line for line in view.lines)
    check_record(tmp_path / "run", LAG, STEPS)
    assert sorted(found.evaluations) == [0, 2, 4]
    assert all(result.usable.shape == (8, 2) and result.usable.all() for result in found.evaluations.values())
    versions = drawn(tmp_path / "run")
    assert all(step <= oldest <= newest for step, (oldest, newest) in versions.items())
    assert asynchronous or versions == {step: (step, step) for step in (0, 2, 4)}
    # The servers send no entropies: the trainer's are recorded, so that the report has its colours and ΔH.
    for answer in recorded_answers(read_runs([tmp_path / "run"])[0], byte_tokenizer(), 4):
        assert all(token.entropy is not None and token.flow is not None for token in answer.tokens)


class Interrupting(SilentView):
    """Interrupts the run after its first step."""

    def advance(self, step: int, metrics: object) -> None:
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_evaluation_that_was_under_way_is_done_on_resume_by_the_weights_of_its_step(
    tmp_path: Path, forked: None
) -> None:
    run = tmp_path / "run"
    with served(*SETS, *ASYNCHRONOUS) as (config, _):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PoolEvaluator, "_advance", lambda self: None)  # no answer is taken
            with pytest.raises(Interrupted, match="step 0 not yet evaluated"):
                train(config, run, Interrupting())
            assert drawn(run) == {}
        resume(run, SilentView())
    check_record(run, LAG, STEPS)
    assert drawn(run)[0] == (0, 0) and sorted(drawn(run)) == [0, 2, 4]
