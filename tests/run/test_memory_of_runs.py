"""The memory that a run is said to need, and what is suggested where it does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.bring import FAMILIES, TEMPLATES, bring

from strop.base.machine import GIB
from strop.config.parse import edit
from strop.recipes.resolve import resolve
from strop.run.memory import BLOCK, WAYS_OUT, fitting, need_of, of_memory

LARGE = "{hidden_size=2048, layers=10, heads=16, kv_heads=8, head_dim=128, intermediate_size=6144, max_positions=32768}"


def test_a_run_that_does_not_fit_is_an_error_with_ways_out() -> None:
    config = resolve("grpo", [f"model.fresh={LARGE}", "model.dtype=bfloat16"])
    need = need_of(config, "cuda", 80 * GIB)
    assert need["optimizer"] == 2 * need["gradients"] and sum(need.values()) > 8 * GIB
    assert fitting(need, 80 * GIB, WAYS_OUT).level == "ok"
    found = fitting(need, 8 * GIB, WAYS_OUT)
    assert (found.code, found.level) == ("memory", "error") and "batch.tokens_per_microbatch" in found.way_out
    levels = [fitting({"a": size}, 100, WAYS_OUT).level for size in (100, 101, 114, 116)]
    assert levels == ["ok", "warning", "warning", "error"]
    smaller = edit(config, ["model.gradient_checkpointing=true", "batch.tokens_per_microbatch=1024"])
    assert sum(need_of(smaller, "cuda", 8 * GIB).values()) < sum(need.values())


def test_completions_of_a_step_take_memory_of_the_host() -> None:
    config = resolve("grpo", ["model.fresh={}", "batch.prompts_per_step=1000000000"])
    assert need_of(config, "cpu", GIB)["completions"] > 10**12


def test_a_server_of_vllm_on_the_same_gpu_has_its_share() -> None:
    config = resolve("grpo", ["model.fresh={}", "engine=Vllm", "engine.memory_fraction=0.5"])
    assert need_of(config, "cuda", 80 * GIB)["vLLM's server"] == 40 * GIB
    elsewhere = resolve("grpo", ["model.fresh={}", "engine=Vllm", 'engine.urls="http://there:8000"'])
    assert "vLLM's server" not in need_of(elsewhere, "cuda", 80 * GIB)


SHORT = ["data.max_prompt_tokens=16", "sampling.max_new_tokens=16", "engine.slots=16"]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_every_family_needs_is_known_beforehand(family: str, tmp_path: Path) -> None:
    folder = bring(family, TEMPLATES[0], tmp_path / "model")
    config = resolve("grpo", [f"model.path={folder}", *SHORT])
    assert of_memory(config).code == "memory"
    halved = resolve("grpo", [f"model.path={folder}", "model.dtype=bfloat16", *SHORT])
    assert min(need_of(halved, "cuda", 80 * GIB).values()) > 0


@pytest.mark.parametrize(
    ("family", "width"),
    [("gpt2", 2 * 4 * 8), ("qwen2", 2 * 2 * 8), ("deepseek_v3", 4 * (32 + 16))],
    ids=["a head of keys for every head", "grouped heads", "values of another size"],
)
def test_the_cache_of_an_engine_has_the_heads_of_the_model(family: str, width: int, tmp_path: Path) -> None:
    """Of keys and values together in a layer; two layers, four bytes, sixteen sequences of 32 tokens."""
    config = resolve("grpo", [f"model.path={bring(family, TEMPLATES[0], tmp_path / 'model')}", *SHORT])
    assert need_of(config, "cuda", 80 * GIB)["engines"] == 2 * width * 4 * 16 * BLOCK
