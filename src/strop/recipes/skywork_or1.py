"""Skywork-OR1 (MAGIC), Section 3.1 and Tables 10 to 12.

    L = −1 / T_k · Σ_i Σ_j Σ_t [ min(ρ A, clip(ρ, 1 ± 0.2) A) + α_k H_t ]     over groups whose advantages are not all 0

α_k is the adaptive entropy coefficient of Eq. 3.2 (target 0.2, Δ 0.005); in the released scripts (`.released`) Δ is
1e-4 and 0.005 the cap. No KL, no mask for truncated responses, a constant learning rate.
Problems are those that the model solves 1 to 15 times in 16 before training, programs listed twice (the released
scripts). Between stages problems that were solved in every attempt of the stage before are dropped.
"""

from __future__ import annotations

from typing import Any

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import PpoClip
from strop.algorithms.regularizers import AdaptiveEntropy
from strop.algorithms.rewards import BinaryReward
from strop.algorithms.settings import AlgorithmSettings, Selection
from strop.config.schema import RunConfig, Stage
from strop.data.history import DropSolved
from strop.data.settings import DataSettings, HeldOutSettings
from strop.data.source import ProblemSource
from strop.engines.protocol import Sampling
from strop.evaluation import EvaluationSettings
from strop.model.settings import ModelSettings
from strop.recipes import Variants, named
from strop.recipes._data import (
    AS_WRITTEN,
    benchmarks,
    math_and_code_verifier,
    math_verifier,
    skywork_math,
    skywork_math_and_code,
)
from strop.training.settings import AdamW, BatchSettings, CheckpointSettings
from strop.verifiers.base import Verifier
from strop.verifiers.code_verifier import CodeVerifier

K = 1024
SANDBOX = CodeVerifier(memory_mib=47_684)  # 50 GB for each program (Section 7.2)
ENTROPY = AdaptiveEntropy(
    start=0.0, target=0.2, delta=0.005, minimum=None, maximum=None, gate="own", at_target="hold"
)


def math_7b() -> RunConfig:
    """Skywork-OR1-Math-7B: adaptive entropy, rejection without refill, four stages from 8k to 32k (Table 10)."""
    stages = (
        _stage(740, 8, 256, 128, 16),
        _stage(1000, 16, 256, 128, 16),
        _stage(340, 32, 256, 128, 16),
        _stage(80, 32, 128, 64, 64),  # 3.5
    )
    return _recipe("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", skywork_math("7B"), math_verifier(), stages)


@named("skywork_or1.7b")
def _7b() -> RunConfig:
    """Skywork-OR1-7B: the same on mathematics and code, on-policy, two stages (Table 11)."""
    stages = (_stage(660, 16, 256, 256, 16), _stage(660, 32, 160, 160, 32))
    model = "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"
    return _recipe(model, skywork_math_and_code("7B"), math_and_code_verifier(SANDBOX), stages)


@named("skywork_or1.32b")
def _32b() -> RunConfig:
    """Skywork-OR1-32B: the same for 32B, two stages to 24k (Table 12)."""
    stages = (_stage(760, 16, 256, 256, 16), _stage(370, 24, 160, 160, 32))
    model = "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"
    return _recipe(model, skywork_math_and_code("32B"), math_and_code_verifier(SANDBOX), stages)


def _stage(steps: int, context: int, batch: int, mini_batch: int, group: int) -> Stage:
    """A row of the tables: context in units of 1,024 tokens, batch and mini-batch in prompts."""
    changes: dict[str, Any] = {
        "sampling.max_new_tokens": context * K,
        "batch.prompts_per_step": batch,
        "batch.samples_per_prompt": group,
        "batch.updates_per_step": batch // mini_batch,
    }
    return Stage(steps=steps, problems=DropSolved(), set=changes)


def _recipe(model: str, source: ProblemSource, verifier: Verifier, stages: tuple[Stage, ...]) -> RunConfig:
    first = stages[0].set
    return RunConfig(
        recipe="skywork_or1",
        steps=sum(stage.steps or 0 for stage in stages),
        model=ModelSettings(path=model, dtype="bfloat16", gradient_checkpointing=True),
        data=DataSettings(
            source=source, template=AS_WRITTEN, max_prompt_tokens=2048, held_out=HeldOutSettings(count=256)
        ),
        verifier=verifier,
        batch=BatchSettings(
            prompts_per_step=first["batch.prompts_per_step"],
            samples_per_prompt=first["batch.samples_per_prompt"],
            updates_per_step=first["batch.updates_per_step"],
        ),
        sampling=Sampling(temperature=1.0, max_new_tokens=first["sampling.max_new_tokens"]),
        algorithm=AlgorithmSettings(
            reward=BinaryReward(correct=1.0, wrong=0.0),
            selection=Selection(zero_variance="drop", of="score", refill=False),
            advantage=GroupRelative(normalization="prompt_std", ddof=1, eps=1e-6),
            truncation_mask="none",
            anchor="recomputed",
            loss=PpoClip(clip_low=0.2, clip_high=0.2, dual_clip=None),
            regularizers=(ENTROPY,),
            aggregation=TokenMean(),
        ),
        optim=AdamW(lr=1e-6, weight_decay=0.01, max_grad_norm=1.0, warmup_steps=0),
        # What was solved before is known from the second stage on.
        stages=(stages[0].model_copy(update={"problems": None}), *stages[1:]),
        evaluation=EvaluationSettings(
            every=20, samples_per_problem=8, temperature=1.0, benchmarks=benchmarks(aime24=8, aime25=8, lcb_v5=4)
        ),
        checkpoint=CheckpointSettings(every=20),
    )


# 7b_8k.sh and its like: the step and the bounds of the coefficient, the gate of the step before, val_temperature
RELEASED = (
    'algorithm.regularizers=[{piece="AdaptiveEntropy", target=0.2, delta=1e-4, minimum=0.0, maximum=5e-3}]',
    "evaluation.temperature=0.6",
)

VARIANTS: Variants = {
    f"skywork_or1.{name}.released": (
        f"Skywork-OR1, {name}, as the released scripts control entropy: Δ 1e-4, cap 0.005, a step late.",
        f"skywork_or1.{name}", *RELEASED,
    )
    for name in ("math_7b", "7b", "32b")
}  # fmt: skip
