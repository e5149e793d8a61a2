"""Every number of the papers' tables and of what is known of their code, against the resolved recipes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from strop.config.schema import RunConfig, stage_configs
from strop.engines.protocol import PHRASE
from strop.recipes.resolve import resolve


def values(name: str) -> dict[str, Any]:
    return of(resolve(name))


def of(config: RunConfig) -> dict[str, Any]:
    """Every setting by its dotted key; entries of a list by their place."""
    found: dict[str, Any] = {}

    def walk(value: Any, key: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, f"{key}.{name}" if key else name)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for place, inner in enumerate(value):
                walk(inner, f"{key}.{place}")
        else:
            found[key] = value

    walk(config.model_dump(mode="json"), "")
    return found


SKYWORK = {
    "algorithm.loss.piece": "PpoClip", "algorithm.loss.clip_low": 0.2, "algorithm.loss.clip_high": 0.2,
    "algorithm.loss.dual_clip": None, "algorithm.aggregation.piece": "TokenMean",
    "algorithm.advantage.piece": "GroupRelative", "algorithm.advantage.normalization": "prompt_std",
    "algorithm.advantage.ddof": 1, "algorithm.advantage.eps": 1e-6,
    "algorithm.selection.zero_variance": "drop", "algorithm.selection.refill": False,
    "algorithm.truncation_mask": "none", "algorithm.anchor": "recomputed", "algorithm.kl_in_reward": None,
    "algorithm.regularizers.0.piece": "AdaptiveEntropy", "algorithm.regularizers.0.start": 0.0,
    "algorithm.regularizers.0.target": 0.2, "algorithm.regularizers.0.delta": 1e-4,
    "algorithm.regularizers.0.minimum": 0.0, "algorithm.regularizers.0.maximum": 5e-3,
    "algorithm.regularizers.0.at_target": "shrink", "algorithm.regularizers.0.gate": "previous",
    "optim.lr": 1e-6, "optim.warmup_steps": 0, "optim.schedule.piece": "Constant", "optim.max_grad_norm": 1.0,
    "sampling.temperature": 1.0, "evaluation.temperature": 0.6, "stages.1.problems.piece": "DropSolved",
}  # fmt: skip
ORZ = {
    "batch.prompts_per_step": 128, "batch.samples_per_prompt": 64, "batch.updates_per_step": 1,
    "batch.passes_per_batch": 1, "sampling.temperature": 1.0, "sampling.top_p": 1.0,
    "sampling.stop": ["User:", "Human:", "Assistant:", "</answer>"],
    "optim.lr": 1e-6, "optim.betas": [0.9, 0.95], "optim.weight_decay": 0.0, "optim.max_grad_norm": 1.0,
    "optim.warmup_steps": 50, "optim.schedule.piece": "Constant",
    "critic.optim.lr": 5e-6, "critic.optim.betas": [0.9, 0.95], "critic.optim.weight_decay": 0.0,
    "critic.optim.max_grad_norm": 1.0, "critic.optim.warmup_steps": 50, "critic.optim.schedule.piece": "Constant",
    "critic.updates_per_step": 12, "critic.passes_per_batch": 1, "critic.loss.clip": 0.2, "critic.loss.scale": 0.5,
    "critic.warmup_steps": 0, "algorithm.advantage.piece": "Gae", "algorithm.advantage.gamma": 1.0,
    "algorithm.advantage.lam": 1.0, "algorithm.advantage.normalization": "tokens",
    "algorithm.loss.piece": "PpoClip", "algorithm.loss.clip_low": 0.2, "algorithm.loss.clip_high": 0.2,
    "algorithm.regularizers": [], "algorithm.kl_in_reward": None, "algorithm.reward.correct": 1.0,
    "algorithm.reward.wrong": 0.0, "algorithm.truncation_mask": "none", "algorithm.selection.zero_variance": "keep",
    "data.template.piece": "OpenReasonerZero", "verifier.extract": "answer_tag", "verifier.require_stop": True,
    "verifier.box_required": False,
}  # fmt: skip
ARCHER = {
    "batch.prompts_per_step": 64, "batch.samples_per_prompt": 16, "batch.updates_per_step": 2,
    "batch.passes_per_batch": 3, "sampling.max_new_tokens": 32_768, "sampling.temperature": 1.0,
    "algorithm.token_types.piece": "EntropyQuantile", "algorithm.token_types.quantile": 0.8,
    "algorithm.token_types.scope": "response", "algorithm.token_types.boundary": "inclusive",
    "algorithm.token_types.when": "batch", "algorithm.loss.piece": "ArcherClip",
    "algorithm.loss.clip_knowledge": 0.2, "algorithm.loss.clip_reasoning": 0.5, "algorithm.loss.dual_clip": 10.0,
    "algorithm.loss.log_ratio_limit": 20.0, "algorithm.regularizers.0.piece": "KlPenalty",
    "algorithm.regularizers.0.estimator": "k3", "algorithm.regularizers.0.beta": 0.001,
    "algorithm.regularizers.0.beta_reasoning": 0.0, "algorithm.regularizers.0.clamp": 10.0,
    "algorithm.regularizers.0.normalization": "all", "algorithm.selection.zero_variance": "drop",
    "algorithm.selection.refill": False, "algorithm.aggregation.piece": "TokenMean",
    "algorithm.shaping.0.piece": "OverlongShaping", "optim.lr": 1e-6, "optim.weight_decay": 0.1,
    "optim.warmup_steps": 60, "evaluation.temperature": 0.8, "evaluation.top_p": 1.0,
    "model.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
}  # fmt: skip
OPEFO = {
    "batch.prompts_per_step": 32, "batch.samples_per_prompt": 8, "batch.updates_per_step": 1,
    "batch.passes_per_batch": 1, "optim.lr": 2.83e-6, "optim.warmup_steps": 10, "sampling.temperature": 1.0,
    "algorithm.loss.piece": "Opefo", "algorithm.loss.balance": None, "algorithm.loss.sides": "both",
    "algorithm.loss.power": 2, "algorithm.loss.exact": False, "algorithm.aggregation.piece": "TokenMean",
    "algorithm.advantage.normalization": "prompt_std", "orchestration.max_lag": 0,
    "evaluation.temperature": 1.0, "evaluation.top_p": 0.7, "checkpoint.every": 10,
}  # fmt: skip
OFF_POLICY = {
    **{key: OPEFO[key] for key in ("batch.prompts_per_step", "batch.samples_per_prompt", "evaluation.top_p")},
    "batch.updates_per_step": 8, "optim.lr": 1e-6, "optim.warmup_steps": 80, "sampling.max_new_tokens": 3000,
}  # fmt: skip
SCALERL = {
    "batch.prompts_per_step": 48, "batch.samples_per_prompt": 16, "batch.updates_per_step": 1,
    "sampling.max_new_tokens": 14_336, "sampling.thinking_tokens": 12_288, "sampling.answer_tokens": 2_048,
    "sampling.interruption.after": [10_000, 12_000], "sampling.interruption.phrase": PHRASE,
    "data.max_prompt_tokens": 2_048, "data.held_out.count": 1000, "evaluation.every": 100,
    "evaluation.samples_per_problem": 16, "orchestration.max_lag": 8,
    "algorithm.reward.correct": 1.0, "algorithm.reward.wrong": -1.0, "algorithm.loss.piece": "Cispo",
    "algorithm.loss.max_ratio": 5.0, "algorithm.anchor": "generator", "algorithm.advantage.normalization": "batch_std",
    "algorithm.advantage.ddof": 0, "algorithm.advantage.batch": "survivors",
    "algorithm.aggregation.piece": "PromptMean", "algorithm.selection.zero_variance": "drop",
    "algorithm.selection.refill": False, "algorithm.selection.no_positive_resampling": 0.9,
    "algorithm.truncation_mask": "after",
    "optim.lr": 5e-7, "optim.eps": 1e-15, "optim.weight_decay": 0.01, "optim.warmup_steps": 100,
    "optim.schedule.piece": "Constant", "model.trainer_fp32_head": True, "model.generator_fp32_head": True,
    "data.source.dataset": "POLARIS-Project/Polaris-Dataset-53K", "steps": 7400,
}  # fmt: skip
BASE = {
    "algorithm.loss.piece": "PpoClip", "algorithm.loss.clip_low": 0.2, "algorithm.loss.clip_high": 0.28,
    "algorithm.aggregation.piece": "SampleMean", "algorithm.advantage.normalization": "prompt_std",
    "algorithm.selection.zero_variance": "keep", "algorithm.selection.no_positive_resampling": None,
    "model.trainer_fp32_head": False, "model.generator_fp32_head": False, "algorithm.regularizers": [],
    "sampling.interruption.after": [10_000, 12_000], "orchestration.max_lag": 0,
    "batch.prompts_per_step": 384, "batch.samples_per_prompt": 16, "batch.updates_per_step": 8,
}  # fmt: skip
LARGE = {"batch.prompts_per_step": 640, "batch.samples_per_prompt": 16, "batch.updates_per_step": 8,
         "algorithm.selection.zero_variance": "drop", "algorithm.aggregation.piece": "PromptMean"}  # fmt: skip
DAPO_LOSS = {"algorithm.loss.piece": "PpoClip", "algorithm.loss.clip_low": 0.2, "algorithm.loss.clip_high": 0.26}
FP32 = {"model.trainer_fp32_head": True, "model.generator_fp32_head": True}
CISPO = {"algorithm.loss.piece": "Cispo", "algorithm.loss.max_ratio": 5.0}

EXPECTED: dict[str, dict[str, Any]] = {
    "grpo": {
        "algorithm.loss.clip_low": 0.2, "algorithm.loss.clip_high": 0.2, "algorithm.aggregation.piece": "SampleMean",
        "algorithm.advantage.ddof": 1, "algorithm.advantage.eps": 1e-6,
    },
    "dapo": {
        "algorithm.loss.clip_low": 0.2, "algorithm.loss.clip_high": 0.28, "algorithm.aggregation.piece": "TokenMean",
        "algorithm.selection.zero_variance": "drop", "algorithm.selection.refill": True,
        "algorithm.shaping.0.max_tokens": 20_480, "algorithm.shaping.0.buffer_tokens": 4_096,
        "batch.prompts_per_step": 512, "batch.samples_per_prompt": 16, "batch.updates_per_step": 16, "optim.lr": 1e-6,
    },
    "skywork_or1.math_7b": {
        **SKYWORK, "model.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "steps": 2160,
        "data.source.split": "math", "stages.2.problems.piece": "DropSolved", "stages.3.problems.piece": "DropSolved",
    },
    "skywork_or1.7b": {**SKYWORK, "model.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "steps": 1320,
                       "data.source.domains": ["math", "code"]},
    "skywork_or1.32b": {**SKYWORK, "model.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "steps": 1130},
    "open_reasoner_zero.7b": {**ORZ, "model.path": "Qwen/Qwen2.5-7B",
                              "data.source.dataset": "Open-Reasoner-Zero/orz_math_57k_collection"},
    "open_reasoner_zero.32b": {**ORZ, "model.path": "Qwen/Qwen2.5-32B", "steps": 1200, "stages.0.steps": 1100,
                               "stages.1.problems.piece": "HardOnly", "stages.1.problems.below": 0.0625},
    "open_reasoner_zero.1.5b": {**ORZ, "model.path": "Qwen/Qwen2.5-1.5B"},
    "open_reasoner_zero.0.5b": {**ORZ, "model.path": "Qwen/Qwen2.5-0.5B"},
    "open_reasoner_zero.r1_distill_14b": {
        **ORZ, "model.path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "steps": 300,
        "data.source.dataset": "Open-Reasoner-Zero/orz_math_13k_collection_hard",
    },
    "archer.math": {**ARCHER, "data.source.piece": "Mixture"},
    "archer.code": {**ARCHER, "data.source.domain": "code"},
    "opefo.qwen25_math_7b": {**OPEFO, "model.path": "Qwen/Qwen2.5-Math-7B", "sampling.max_new_tokens": 3000},
    "opefo.qwen3_4b": {**OPEFO, "model.path": "Qwen/Qwen3-4B-Base", "sampling.max_new_tokens": 8000},
    "opefo.static_scaling": {**OPEFO, "algorithm.loss.balance": 0.001},
    "opefo.one_side_increasing": {**OPEFO, "algorithm.loss.sides": "increasing"},
    "opefo.one_side_decreasing": {**OPEFO, "algorithm.loss.sides": "decreasing"},
    "grpo_on_policy": {"algorithm.loss.piece": "Reinforce", "optim.lr": 2.83e-6, "batch.updates_per_step": 1},
    "opefo.grpo": {**OFF_POLICY, "algorithm.loss.clip_low": 0.2, "algorithm.loss.clip_high": 0.2},
    "entropy_reg": {**OFF_POLICY, "algorithm.regularizers.0.piece": "EntropyBonus",
                    "algorithm.regularizers.0.coefficient": 0.01},
    "clip_higher": {**OFF_POLICY, "algorithm.loss.clip_low": 0.2, "algorithm.loss.clip_high": 0.28},
    "clip_cov": {**OFF_POLICY, "algorithm.loss.piece": "ClipCov", "algorithm.loss.share": 2e-4,
                 "algorithm.loss.low": 1.0, "algorithm.loss.high": 5.0},
    "kl_cov": {**OFF_POLICY, "algorithm.loss.piece": "KlCov", "algorithm.loss.share": 0.002,
               "algorithm.loss.coefficient": 1.0},
    "scalerl": SCALERL,
    "scalerl.32k": {**SCALERL, "sampling.max_new_tokens": 34_816, "sampling.thinking_tokens": 32_768,
                    "sampling.interruption.after": [30_000, 32_000]},
    "scalerl.bs512": {**SCALERL, "batch.prompts_per_step": 32},
    "scalerl.bs2048": {**SCALERL, "batch.prompts_per_step": 128},
    "scalerl.8gen": {**SCALERL, "batch.prompts_per_step": 96, "batch.samples_per_prompt": 8},
    "scalerl.24gen": {**SCALERL, "batch.prompts_per_step": 32, "batch.samples_per_prompt": 24},
    "scalerl.32gen": {**SCALERL, "batch.prompts_per_step": 24, "batch.samples_per_prompt": 32},
    "scalerl.scout": {**SCALERL, "model.path": "meta-llama/Llama-4-Scout-17B-16E-Instruct", "steps": 7100,
                      "model.mixture_of_experts": True},
    "scalerl.math_code": {
        **{key: value for key, value in SCALERL.items() if not key.startswith("data.source")},
        "data.source.domains": ["math", "code"], "data.weights.math": 1.0, "data.weights.code": 1.0,
        "data.source.sources.1.dataset": "agentica-org/DeepCoder-Preview-Dataset",
    },
    "scalerl.loo_lp": {"algorithm.shaping.0.max_tokens": 14 * 1024, "algorithm.shaping.0.cache_tokens": 2 * 1024,
                       "sampling.interruption": None, "sampling.max_new_tokens": 14_336},
    "scalerl.loo_dapo": DAPO_LOSS,
    "scalerl.loo_8op": {"orchestration.max_lag": 0, "batch.prompts_per_step": 8 * 48, "batch.updates_per_step": 8},
    "scalerl_base": BASE,
    "scalerl_base.gspo": {"algorithm.loss.piece": "Gspo", "algorithm.loss.clip_low": 3e-3,
                          "algorithm.loss.clip_high": 5e-3},
    "scalerl_base.pipeline_4": {"orchestration.max_lag": 4, "batch.prompts_per_step": 48, "batch.updates_per_step": 1},
    "deepseek_grpo": {**BASE, "algorithm.loss.clip_high": 0.2},
    "qwen_dapo": {**BASE, **LARGE, **DAPO_LOSS},
    "magistral": {**BASE, **LARGE, **DAPO_LOSS, "orchestration.max_lag": 8, "batch.prompts_per_step": 80,
                  "batch.updates_per_step": 1},
    "minimax": {**{key: value for key, value in BASE.items() if "clip" not in key}, **LARGE, **CISPO, **FP32},
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_numbers_of_the_papers(name: str) -> None:
    found = values(name)
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
    for stage, during in zip(config.stages, stage_configs(config), strict=True):
        ends += stage.steps or 0
        batch = during.batch
        mini = batch.prompts_per_step // batch.updates_per_step
        context = during.sampling.max_new_tokens // 1024
        rows.append((ends, context, batch.prompts_per_step, mini, batch.samples_per_prompt))
        assert batch.passes_per_batch == 1 and during.optim == config.optim
    assert rows == TABLES[name] and ends == config.steps


def test_the_annealing_of_open_reasoner_zero() -> None:
    config = resolve("open_reasoner_zero.32b")
    first, annealing = stage_configs(config)
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
