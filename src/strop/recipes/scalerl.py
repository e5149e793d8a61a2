"""ScaleRL (The Art of Scaling Reinforcement Learning Compute for LLMs), Sections 4 and 5, Appendices A.3 and A.11.

    J = E [ 1 / Σ_g |y_g| · Σ_i Σ_t sg(min(ρ_it, ε)) · Â_i^norm · log π(y_it) ]        over surviving prompts

with Â^norm = (r − mean_group) / std of all advantages of the batch. PipelineRL-8, forced interruptions at 10k to 12k
thinking tokens, groups of pass rate 0 or 1 dropped, prompts of pass rate ≥ 0.9 never asked again, fp32 logits on both
sides. Truncated completions are left out of the loss but count in the group's mean. The axes of Section 5 and the
leave-one-out variants of Figure 12 follow.
"""

from __future__ import annotations

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import PromptMean
from strop.algorithms.losses import Cispo
from strop.algorithms.rewards import BinaryReward
from strop.algorithms.settings import AlgorithmSettings, Selection
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.data.settings import DataSettings, HeldOutSettings
from strop.engines.protocol import Interruption, Sampling
from strop.evaluation import EvaluationSettings
from strop.model.settings import ModelSettings
from strop.orchestration.settings import OrchestrationSettings
from strop.recipes import named
from strop.recipes._data import (
    AS_WRITTEN,
    BOXED,
    math_and_code_verifier,
    math_verifier,
    polaris_53k,
    polaris_and_deepcoder,
)
from strop.training.settings import AdamW, BatchSettings, Constant

THINKING, SOLUTION, PROMPT = 12_288, 2_048, 2_048
# A step of PPO-off-policy-8 is eight gradient updates, which the paper counts as eight steps.
OFF_POLICY_8 = (
    "orchestration.max_lag=0", "batch.prompts_per_step=384", "batch.updates_per_step=8", "evaluation.every=12",
)  # fmt: skip


def recipe() -> RunConfig:
    """ScaleRL: CISPO on PipelineRL-8, interruptions, prompt-level loss, batch-level advantages, fp32 head, 48 × 16."""
    return RunConfig(
        recipe="scalerl",
        steps=10_700,
        model=ModelSettings(
            path="deepseek-ai/DeepSeek-R1-Distill-Llama-8B", dtype="bfloat16", gradient_checkpointing=True,
            trainer_fp32_head=True, generator_fp32_head=True,
        ),  # fmt: skip
        data=DataSettings(
            source=polaris_53k(), template=BOXED, max_prompt_tokens=PROMPT, held_out=HeldOutSettings(count=1000)
        ),
        verifier=math_verifier(),
        batch=BatchSettings(prompts_per_step=48, samples_per_prompt=16, updates_per_step=1),
        sampling=Sampling(
            temperature=1.0, max_new_tokens=THINKING + SOLUTION, thinking_tokens=THINKING, answer_tokens=SOLUTION,
            interruption=Interruption(after=(10_000, 12_000)),
        ),  # fmt: skip
        algorithm=AlgorithmSettings(
            reward=BinaryReward(correct=1.0, wrong=-1.0),
            selection=Selection(zero_variance="drop", of="score", refill=False, no_positive_resampling=0.9),
            advantage=GroupRelative(normalization="batch_std", ddof=0, batch="survivors"),
            truncation_mask="drop",
            anchor="generator",
            loss=Cispo(max_ratio=5.0),
            aggregation=PromptMean(),
        ),
        optim=AdamW(lr=5e-7, eps=1e-15, weight_decay=0.01, warmup_steps=100, schedule=Constant()),
        orchestration=OrchestrationSettings(max_lag=8),
        evaluation=EvaluationSettings(every=100, samples_per_problem=16),
    )


# ---------------------------------------------------------------------- Section 5: axes


@named("scalerl.32k")
def _32k() -> RunConfig:
    """ScaleRL with 32,768 tokens of thinking."""
    return edit(
        recipe(),
        [
            "sampling.max_new_tokens=34816",
            "sampling.thinking_tokens=32768",
            "sampling.interruption.after=[30000, 32000]",
        ],
    )


def bs512() -> RunConfig:
    """ScaleRL with batches of 512 completions."""
    return _batch(32, 16)


def bs2048() -> RunConfig:
    """ScaleRL with batches of 2,048 completions: the run of 100,000 GPU-hours (Figure 1)."""
    return edit(_batch(128, 16), ["steps=7400"])


@named("scalerl.8gen")
def _8gen() -> RunConfig:
    """ScaleRL with 8 generations a prompt, the batch as large."""
    return _batch(96, 8)


@named("scalerl.24gen")
def _24gen() -> RunConfig:
    """ScaleRL with 24 generations a prompt, the batch as large."""
    return _batch(32, 24)


@named("scalerl.32gen")
def _32gen() -> RunConfig:
    """ScaleRL with 32 generations a prompt, the batch as large."""
    return _batch(24, 32)


def _batch(prompts: int, samples: int) -> RunConfig:
    return edit(recipe(), [f"batch.prompts_per_step={prompts}", f"batch.samples_per_prompt={samples}"])


def math_code() -> RunConfig:
    """ScaleRL on mathematics and code together, each domain with a separate curve."""
    config = recipe()
    data = config.data.model_copy(
        update={"source": polaris_and_deepcoder(), "template": AS_WRITTEN, "weights": {"math": 1.0, "code": 1.0}}
    )
    return config.model_copy(update={"data": data, "verifier": math_and_code_verifier()})


def scout() -> RunConfig:
    """ScaleRL on Llama-4 Scout (17B × 16), a mixture of experts."""
    model = "model.path=meta-llama/Llama-4-Scout-17B-16E-Instruct"
    return edit(recipe(), [model, "model.mixture_of_experts=true", "steps=7100"])


# ---------------------------------------------------------------------- Figure 12: one choice reverted


def loo_plan() -> RunConfig:
    """ScaleRL with advantages normalised by the prompt's standard deviation."""
    return edit(recipe(), ["algorithm.advantage.normalization=prompt_std", "algorithm.advantage.ddof=1"])


def loo_lp() -> RunConfig:
    """ScaleRL with a length penalty in place of interruptions."""
    penalty = 'algorithm.shaping=[{piece="LengthPenalty", max_tokens=14336, cache_tokens=2048}]'
    free = ["sampling.interruption=none", "sampling.thinking_tokens=none", "sampling.answer_tokens=none"]
    return edit(recipe(), [penalty, *free])


def loo_batch() -> RunConfig:
    """ScaleRL with the whole batch, groups of zero variance too."""
    return edit(recipe(), ["algorithm.selection.zero_variance=keep"])


def loo_8op() -> RunConfig:
    """ScaleRL on PPO-off-policy-8: 8 × 48 prompts generated at once, 8 updates."""
    return edit(recipe(), [*OFF_POLICY_8, "steps=1338"])


def loo_fp32() -> RunConfig:
    """ScaleRL without fp32 logits, on either side."""
    return edit(recipe(), ["model.trainer_fp32_head=false", "model.generator_fp32_head=false"])


def loo_savg() -> RunConfig:
    """ScaleRL with the loss averaged by sample."""
    return edit(recipe(), ["algorithm.aggregation=SampleMean"])


def loo_dapo() -> RunConfig:
    """ScaleRL with DAPO's loss, clipped at 0.2 and 0.26."""
    return edit(recipe(), ['algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.26}'])


def loo_uniform() -> RunConfig:
    """ScaleRL with prompts drawn uniformly throughout."""
    return edit(recipe(), ["algorithm.selection.no_positive_resampling=none"])
