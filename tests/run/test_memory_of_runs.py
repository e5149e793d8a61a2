"""The memory that a run is said to need, and what is suggested where it does not fit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.kit.bring import FAMILIES, TEMPLATES, bring
from tests.run.paper import PaperMachine

from strop.base.machine import GIB
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.recipes.resolve import resolve
from strop.run.memory import BLOCK, SERVER, planned

LARGE = "{hidden_size=2048, layers=10, heads=16, kv_heads=8, head_dim=128, intermediate_size=6144, max_positions=32768}"


def need(config: RunConfig) -> Counter[str]:
    """Bytes by purpose, on all devices together."""
    found: Counter[str] = Counter()
    for claim in planned(config).claims:
        found[claim.purpose] += claim.size
    return found


def test_a_run_that_does_not_fit_is_an_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve("grpo", [f"model.fresh={LARGE}", "model.dtype=bfloat16", "engine.slots=16", "optim.offload=false"])
    PaperMachine(monkeypatch, 1, gib=80)
    large = need(config)
    assert large["optimizer"] == 2 * large["gradients"] and planned(config).finding.level == "ok"
    PaperMachine(monkeypatch, 1, gib=int(large.total() / GIB / 1.1))
    assert planned(config).finding.level == "warning"
    PaperMachine(monkeypatch, 1, gib=int(large.total() / GIB / 1.2))
    found = planned(config).finding
    assert (found.code, found.level) == ("memory", "error")
    assert found.way_out == "set model.gradient_checkpointing=true, with which it fits"
    assert planned(edit(config, ["model.gradient_checkpointing=true"])).finding.level == "ok"
    PaperMachine(monkeypatch, 1, gib=2)
    assert "take a smaller model" in planned(config).finding.way_out


def test_completions_of_a_step_take_memory_of_the_host() -> None:
    config = resolve("grpo", ["model.fresh={}", "batch.prompts_per_step=1000000000", "device=cpu"])
    assert need(config)["completions"] > 10**12


def test_a_server_of_vllm_on_the_same_gpu_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    PaperMachine(monkeypatch, 1, gib=80)
    config = resolve("grpo", ["model.fresh={}", "engine=Vllm", "engine.memory_fraction=0.5"])
    assert need(config)[SERVER] == 40 * GIB
    elsewhere = resolve("grpo", ["model.fresh={}", "engine=Vllm", 'engine.urls="http://there:8000"'])
    assert SERVER not in need(elsewhere)


SHORT = ["data.max_prompt_tokens=16", "sampling.max_new_tokens=16", "engine.slots=16"]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_every_family_needs_is_known_beforehand(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bring(family, TEMPLATES[0], tmp_path / "model")
    config = resolve("grpo", [f"model.path={folder}", *SHORT])
    assert planned(config).finding.code == "memory"
    PaperMachine(monkeypatch, 1)
    halved = resolve("grpo", [f"model.path={folder}", "model.dtype=bfloat16", *SHORT])
    assert {"weights", "gradients", "optimizer", "activations", "engines"} <= set(+need(halved))


@pytest.mark.parametrize(
    ("family", "width"),
    [("gpt2", 2 * 4 * 8), ("qwen2", 2 * 2 * 8), ("deepseek_v3", 4 * (32 + 16))],
    ids=["a head of keys for every head", "grouped heads", "values of another size"],
)
def test_the_cache_of_an_engine_has_the_heads_of_the_model(
    family: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of keys and values together in a layer; two layers, four bytes, sixteen sequences of 32 tokens."""
    PaperMachine(monkeypatch, 1)
    config = resolve("grpo", [f"model.path={bring(family, TEMPLATES[0], tmp_path / 'model')}", *SHORT])
    assert need(config)["engines"] == 2 * width * 4 * 16 * BLOCK
