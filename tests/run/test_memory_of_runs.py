"""The memory that a run is said to need, and what is suggested where it does not fit."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from strop.base.machine import GIB
from strop.base.types import InputError
from strop.cli import app
from strop.recipes.resolve import resolve
from strop.run.memory import fitting, need_of

LARGE = "{hidden_size=2048, layers=10, heads=16, kv_heads=8, head_dim=128, intermediate_size=6144, max_positions=32768}"


def test_a_run_that_does_not_fit_is_refused_with_what_would() -> None:
    config = resolve("grpo", [f"model.fresh={LARGE}", "model.dtype=bfloat16"])
    need = need_of(config, "cuda", 80 * GIB)
    assert need["optimizer"] == 2 * need["gradients"] and sum(need.values()) > 8 * GIB
    assert "needs about" in fitting(config, "cuda", 80 * GIB)
    with pytest.raises(InputError, match="model.gradient_checkpointing=true and batch.tokens_per_microbatch=") as error:
        fitting(config, "cuda", 8 * GIB)
    ways = str(error.value).partition("; with ")[2].partition(" it would")[0].split(" and ")
    smaller = resolve("grpo", [f"model.fresh={LARGE}", "model.dtype=bfloat16", *ways])
    assert sum(need_of(smaller, "cuda", 8 * GIB).values()) <= 8 * GIB
    with pytest.raises(InputError, match="take a smaller model"):
        fitting(config, "cpu", GIB)


def test_a_server_of_vllm_on_the_same_gpu_has_its_share() -> None:
    config = resolve("grpo", ["model.fresh={}", "engine=Vllm", "engine.memory_fraction=0.5"])
    assert need_of(config, "cuda", 80 * GIB)["vLLM's server"] == 40 * GIB
    elsewhere = resolve("grpo", ["model.fresh={}", "engine=Vllm", 'engine.urls="http://there:8000"'])
    assert "vLLM's server" not in need_of(elsewhere, "cuda", 80 * GIB)


def test_plan_says_it_of_a_gpu_that_is_not_here() -> None:
    result = CliRunner().invoke(app, ["plan", "grpo", "--memory", "80", "--set", "model.fresh={}"])
    assert result.exit_code == 0 and result.stdout.startswith("memory: needs about ") and "of 80 GiB" in result.stdout
