"""Runs whose servers also evaluate: no second model, nothing lost with a server, and the versions that drew it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.engines.fake_vllm import ServedModel, running
from tests.engines.served_runs import Listening, check_record
from tests.engines.test_vllm_faults import still_while_forking
from tests.runs import metrics, small_config
from tests.tiny import byte_tokenizer

from strop.base.seeds import derive
from strop.model.policy import load_policy
from strop.report.runs import read_runs
from strop.report.samples import recorded_answers
from strop.run import assembly
from strop.run.run import train

STEPS, LAG = 4, 2
SETS = (
    "engine=Vllm", "engine.slots=16", "engine.reply_seconds=20", f"steps={STEPS}", "orchestration.generators=2",
    f"orchestration.max_lag={LAG}", "evaluation.every=2", "evaluation.samples_per_problem=2",
)  # fmt: skip


@pytest.mark.parametrize("beside", [False, True], ids=["between steps", "beside training"])
def test_findings_2_and_3_servers_evaluate_and_one_that_dies_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: None, beside: bool
) -> None:
    def refused(*given: Any, **named: Any) -> None:
        raise AssertionError("an engine is built next to the servers")

    monkeypatch.setattr(assembly, "build_engine", refused)
    sets = (*SETS, "evaluation.asynchronous=true") if beside else SETS
    policy = load_policy(small_config(*sets).model, byte_tokenizer(), derive(0, "model"))[0]
    with ExitStack() as stack:
        servers = [stack.enter_context(running(ServedModel(policy))) for _ in range(2)]
        servers[1].faults, servers[1].after = ["error"], 3  # within the 16 samples of the evaluation of step 0
        still_while_forking(servers, stack.enter_context(pytest.MonkeyPatch.context()))
        view = Listening()
        urls = ", ".join(f'"{server.url}"' for server in servers)
        found = train(small_config(*sets, f"engine.urls=[{urls}]"), tmp_path / "run", view)
    assert not servers[1].faults and any("generator-1 died" in line for line in view.lines)
    check_record(tmp_path / "run", LAG, STEPS)
    assert sorted(found.evaluations) == [0, 2, 4]
    assert all(result.usable.shape == (8, 2) and result.usable.all() for result in found.evaluations.values())
    rows = {row["step"]: row for row in metrics(tmp_path / "run") if "evaluation/version" in row}
    drawn = {step: (row["evaluation/version"], row["evaluation/newest_version"]) for step, row in rows.items()}
    assert all(step <= oldest <= newest for step, (oldest, newest) in drawn.items())
    assert beside or drawn == {step: (step, step) for step in (0, 2, 4)}
    # The servers send no entropies: the trainer's are recorded, so that the report has its colours and ΔH.
    for answer in recorded_answers(read_runs([tmp_path / "run"])[0], byte_tokenizer(), 4):
        assert all(token.entropy is not None and token.flow is not None for token in answer.tokens)
