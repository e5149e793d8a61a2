"""A plateau ends a stage with groups in flight: they are cancelled, wherever they are generated."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.simulated import Simulation
from tests.orchestration.simulation import PROMPTS, made
from tests.runs import metrics, small_config

from strop.base.view import SilentView
from strop.run.folder import RunFolder
from strop.run.run import train

# `version` rises by 1 a step, which is not enough: the first stage ends after its second step.
STAGES = (
    'stages=[{plateau={window=1, metric="version", min_rise=2.0}}, {set={"batch.samples_per_prompt"=2}}]',
    "orchestration.max_lag=3", "steps=6",
)  # fmt: skip


@pytest.mark.usefixtures("forked")
def test_generators_are_told_to_stop(tmp_path: Path) -> None:
    simulation = Simulation(slots=4, token_seconds=0.002, tokens=20)
    run = made(tmp_path, *STAGES, simulation=simulation).run()
    assert run.column("stage") == [0, 0, 1, 1, 1, 1]
    trained = run.learner.trained
    assert len(trained) == len(set(trained)) == 6 * PROMPTS
    given_up = set(range(max(trained) + 1)) - set(trained)
    assert given_up, "with so few slots there are groups in flight when the stage ends"
    for record in run.records:
        sizes = {len(group.rollouts) for group in record.groups}
        assert sizes == ({4} if record.step <= 2 else {2})
    assert run.largest_lag <= 3


def test_the_engine_beside_the_trainer_too(tmp_path: Path) -> None:
    out = tmp_path / "run"
    sets = ("orchestration.executor=in_process", "algorithm.selection.zero_variance=keep", "evaluation.every=none")
    train(small_config(*STAGES, *sets), out, SilentView())
    rows = [row for step in range(1, 7) for row in RunFolder.open(out).read_rollouts(step)]
    tickets = {row["ticket"] for row in rows}
    assert len(tickets) == 6 * PROMPTS and max(tickets) > len(tickets)
    assert len(rows) == 2 * PROMPTS * 4 + 4 * PROMPTS * 2
    assert max(row["lag/max"] for row in metrics(out)) <= 3
