"""Runs that train a mixture of experts through the experts that generated."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runs import metrics, small_config

from strop.base.view import SilentView
from strop.run.run import train

EXPERTS = ("model.fresh.experts=8", "model.fresh.hidden_size=32", "model.fresh.intermediate_size=64", "steps=2",
           "evaluation.every=none", "model.dtype=bfloat16")  # fmt: skip


def gap(run: Path) -> float:
    """Mean |log-prob of trainer − of generator| over both steps."""
    return sum(row["mismatch/mean"] for row in metrics(run)) / 2


@pytest.mark.parametrize("lag", [0, 1])
def test_replay_lessens_the_mismatch_of_a_run(lag: int, tmp_path: Path, forked: None) -> None:
    """With lag the completions come from a worker, and their experts with them."""
    for name, replays in (("replayed", "true"), ("chosen", "false")):
        changes = f"model.replay_routing={replays}", f"orchestration.max_lag={lag}", "optim.lr=1e-9"
        config = small_config(*EXPERTS, *changes)
        train(config, tmp_path / name, SilentView())
    assert gap(tmp_path / "replayed") < gap(tmp_path / "chosen")
