"""Numbers of the papers that are no single key: stages, schedules, batches; and those of DAPO and GRPO.

Every other number stands in the tables of docs/papers/numbers, which `test_docs` holds against the recipes.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from strop.config.edits import flatten
from strop.recipes.resolve import resolve

EXPECTED: dict[str, dict[str, Any]] = {
    "grpo": {
        "algorithm.loss.clip_low": "0.2", "algorithm.loss.clip_high": "0.2",
        "algorithm.aggregation.piece": "SampleMean", "algorithm.advantage.ddof": "1",
        "algorithm.advantage.eps": "1e-06",
    },
    "dapo": {
        "algorithm.loss.clip_low": "0.2", "algorithm.loss.clip_high": "0.28",
        "algorithm.aggregation.piece": "TokenMean", "algorithm.selection.zero_variance": "drop",
        "algorithm.selection.refill": "true", "batch.prompts_per_step": "512", "batch.samples_per_prompt": "16",
        "batch.updates_per_step": "16", "optim.lr": "1e-06", "optim.warmup_steps": "320",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_numbers_without_a_page(name: str) -> None:
    found = dict(flatten(resolve(name).model_dump(mode="json")))
    assert {key: found[key] for key in EXPECTED[name]} == EXPECTED[name]


# Skywork-OR1, Tables 10 to 12: the step a stage ends at, context, batch and mini-batch in prompts, group size.
TABLES = {
    "math_7b": [(740, 8, 256, 128, 16), (1740, 16, 256, 128, 16), (2080, 32, 256, 128, 16), (2160, 32, 128, 64, 64)],
    "7b": [(660, 16, 256, 256, 16), (1320, 32, 160, 160, 32)],
    "32b": [(760, 16, 256, 256, 16), (1130, 24, 160, 160, 32)],
}


@pytest.mark.parametrize("name", TABLES)
def test_the_stages_of_skywork(name: str) -> None:
    config = resolve(f"skywork_or1.{name}")
    ends, rows = 0, []
    for stage, during in zip(config.stages, config.stage_configs(), strict=True):
        ends += stage.steps or 0
        batch = during.batch
        mini = batch.prompts_per_step // batch.updates_per_step
        context = during.sampling.max_new_tokens // 1024
        rows.append((ends, context, batch.prompts_per_step, mini, batch.samples_per_prompt))
        assert batch.passes_per_batch == 1 and during.optim == config.optim
    assert rows == TABLES[name] and ends == config.steps


def test_the_annealing_of_open_reasoner_zero() -> None:
    config = resolve("open_reasoner_zero.32b")
    first, annealing = config.stage_configs()
    assert config.stages[0].steps == 1100 and config.steps - 1100 == 100
    assert first.optim.learning_rate(1000, 1100) == 1e-6
    assert annealing.optim.learning_rate(0, 100) == 1e-6
    assert annealing.optim.learning_rate(50, 100) == pytest.approx(6.5e-7)
    assert annealing.optim.learning_rate(100, 100) == pytest.approx(3e-7)
    hard = config.stages[1].problems
    assert hard is not None
    from strop.data.history import Visit

    assert hard([Visit(1, 0, 64, 3.0)], 1) and not hard([Visit(1, 0, 64, 4.0)], 1) and not hard([], 1)


def test_opefo_scales_its_learning_rate_by_the_root_of_the_updates() -> None:
    ratio = resolve("grpo_on_policy").optim.lr / resolve("opefo.grpo").optim.lr
    assert ratio == pytest.approx(math.sqrt(8), abs=0.01)


@pytest.mark.parametrize(
    ("name", "completions"),
    [("scalerl", 768), ("scalerl.bs512", 512), ("scalerl.bs2048", 2048), ("scalerl.8gen", 768), ("scalerl.24gen", 768),
     ("scalerl.32gen", 768), ("scalerl_base", 8 * 768), ("qwen_dapo", 8 * 1280), ("magistral", 1280),
     ("minimax", 8 * 1280), ("opefo.qwen3_4b", 256)],
)  # fmt: skip
def test_completions_of_a_step(name: str, completions: int) -> None:
    batch = resolve(name).batch
    assert batch.prompts_per_step * batch.samples_per_prompt == completions
