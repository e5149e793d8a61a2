"""Small real runs for tests: a random model of two layers, sums of two digits, a few steps a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from strop.base.metrics_file import read_metrics
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.engines.protocol import Request
from strop.engines.torch.engine import TorchEngine
from strop.model.files import byte_tokenizer
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder
from strop.run.run import train

SMALL = (
    "steps=4",
    "model.fresh.hidden_size=32", "model.fresh.layers=2", "model.fresh.head_dim=8", "model.fresh.intermediate_size=48",
    "model.fresh.max_positions=128",
    "model.fresh.initializer_range=0.2",
    "data.source.terms=2", "data.source.count=40", "data.held_out.count=8",
    "batch.prompts_per_step=6", "batch.samples_per_prompt=4", "batch.tokens_per_microbatch=256",
    "sampling.max_new_tokens=12", "engine.slots=24", "optim.lr=1e-3", "verifier.extract=last_number",
    "evaluation.every=2", "evaluation.samples_per_problem=2", "checkpoint.every=1", "checkpoint.keep=2",
)  # fmt: skip


def small_config(*sets: str) -> RunConfig:
    """GRPO on a tiny random model, changed by `sets`."""
    return edit(resolve("grpo"), [*SMALL, *sets])


def finished_run(places: pytest.TempPathFactory, *sets: str) -> Path:
    """A finished run of `small_config`, which the tests of a module share."""
    out = places.mktemp("runs") / "finished"
    train(small_config(*sets), out, SilentView())
    return out


def keep_prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts, as text, of what this process asks an engine from here on."""
    prompts: list[str] = []
    submit = TorchEngine.submit

    def seen(engine: TorchEngine, request: Request) -> None:
        prompts.append(byte_tokenizer().decode(request.prompt_ids.tolist()))
        submit(engine, request)

    monkeypatch.setattr(TorchEngine, "submit", seen)
    return prompts


def parameters(run: Path) -> dict[str, torch.Tensor]:
    """The exported model's parameters."""
    return load_file(run / "model" / "model.safetensors")


def metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics of each step without what depends on the clock."""
    rows = read_metrics(run / "metrics.jsonl")
    timed = ("time", "seconds", "tokens_per_second", "compute", "idle", "evaluation/seconds")
    return [{name: value for name, value in row.items() if not name.startswith(timed)} for row in rows]


def assert_same_run(one: Path, other: Path) -> None:
    """The two runs came to the same, bit for bit, from the same groups."""
    assert metrics(one) == metrics(other)
    left, right = RunFolder.open(one), RunFolder.open(other)
    assert left.rollout_steps() == right.rollout_steps()
    assert all(left.read_rollouts(step) == right.read_rollouts(step) for step in left.rollout_steps())
    assert json.loads((one / "summary.json").read_text()) == json.loads((other / "summary.json").read_text())
    mine, others = parameters(one), parameters(other)
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in mine)
