"""Numbers of the papers that are no single key: stages, schedules, batches; and those of recipes without a page.

Every other number stands in the tables of docs/papers/numbers, which `test_docs` holds against the recipes.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from strop.algorithms.regularizers import KlPenalty
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
    "just_rl": {  # arXiv 2512.16649, Table 2, and run_scaling_ssh_distill.sh
        "steps": "4380", "batch.prompts_per_step": "256", "batch.samples_per_prompt": "8",
        "batch.updates_per_step": "4", "data.max_prompt_tokens": "1024", "sampling.max_new_tokens": "15360",
        "sampling.temperature": "1.0", "algorithm.loss.clip_low": "0.2", "algorithm.loss.clip_high": "0.28",
        "algorithm.loss.dual_clip": "10.0", "algorithm.advantage.normalization": "prompt_std",
        "algorithm.aggregation.piece": "TokenMean", "algorithm.selection.zero_variance": "keep",
        "algorithm.shaping": "[]", "algorithm.regularizers": "[]", "algorithm.kl_in_reward": "none",
        "algorithm.reward.correct": "1.0", "algorithm.reward.wrong": "-1.0", "algorithm.truncation_mask": '"none"',
        "optim.lr": "1e-06", "optim.schedule.piece": "Constant", "optim.warmup_steps": "10",
        "optim.weight_decay": "0.1", "optim.max_grad_norm": "1.0", "evaluation.every": "50",
        "evaluation.temperature": "0.7", "evaluation.top_p": "0.9",
    },
    "prorl_v2": {  # OpenRLHF's train_prorlv2_math_hybrid_engine.sh
        "batch.prompts_per_step": "512", "batch.samples_per_prompt": "16", "batch.updates_per_step": "8",
        "data.max_prompt_tokens": "1024", "sampling.max_new_tokens": "8192", "sampling.temperature": "1.0",
        "algorithm.loss.clip_low": "0.2", "algorithm.loss.clip_high": "0.27",
        "algorithm.correction.piece": "IcePop", "algorithm.correction.low": "0.5", "algorithm.correction.high": "5.0",
        "algorithm.advantage.normalization": "token_std", "algorithm.selection.zero_variance": "drop",
        "algorithm.selection.refill": "true", "algorithm.reward.correct": "1.0", "algorithm.reward.wrong": "0.0",
        "algorithm.aggregation.piece": "TokenMean", "verifier.require_stop": "true", "optim.lr": "1e-06",
        "optim.betas": "[0.9, 0.95]", "optim.weight_decay": "0.0", "optim.schedule.final_fraction": "0.1",
        "evaluation.every": "5", "checkpoint.every": "5",
    },
    "olmo3_zero": {  # open-instruct's 7b_rlzero_math.sh
        "batch.prompts_per_step": "32", "batch.samples_per_prompt": "8", "batch.updates_per_step": "1",
        "data.max_prompt_tokens": "2048", "sampling.max_new_tokens": "16384", "sampling.temperature": "1.0",
        "algorithm.loss.clip_low": "0.2", "algorithm.loss.clip_high": "0.272", "algorithm.correction.piece": "TokenTis",
        "algorithm.correction.cap": "2.0", "algorithm.advantage.normalization": '"none"',
        "algorithm.selection.zero_variance": "drop", "algorithm.selection.refill": "true",
        "algorithm.selection.no_positive_resampling": "0.875", "algorithm.truncation_mask": '"none"',
        "algorithm.regularizers": "[]", "algorithm.reward.correct": "10.0", "algorithm.reward.wrong": "0.0",
        "algorithm.aggregation.piece": "TokenMean", "orchestration.max_lag": "8", "orchestration.kv": "keep",
        "optim.lr": "1e-06", "optim.schedule.piece": "Constant", "optim.warmup_steps": "0",
        "optim.weight_decay": "0.0", "evaluation.every": "25", "checkpoint.every": "100",
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


def test_the_course_of_prorl() -> None:
    config = resolve("prorl_v2")
    updates = config.steps * config.batch.updates_per_step
    assert config.optim.warmup_steps == math.ceil(0.03 * updates)
    assert config.optim.learning_rate(updates, updates) == pytest.approx(1e-7)
    assert config.steps == 3000 and 200 <= (config.algorithm.reference.reset_every or 0) <= 500
    (penalty,) = config.algorithm.regularizers
    assert penalty == KlPenalty(estimator="k2", beta=1e-4)


def test_olmos_episodes() -> None:
    config = resolve("olmo3_zero")
    assert config.steps * config.batch.prompts_per_step * config.batch.samples_per_prompt == 768_000


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
