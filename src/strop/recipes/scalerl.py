"""ScaleRL (The Art of Scaling Reinforcement Learning Compute for LLMs), Sections 4 and 5, Appendices A.3 and A.11.

    J = E [ 1 / Σ_g |y_g| · Σ_i Σ_t sg(min(ρ_it, ε)) · Â_i^norm · log π(y_it) ]        over surviving prompts

with Â^norm = (r − mean_group) / std of all advantages of the batch. PipelineRL-8, forced interruptions at 10k to 12k
thinking tokens, groups of pass rate 0 or 1 dropped, prompts of pass rate ≥ 0.9 never asked again, fp32 logits on both
sides. Truncated completions are left out of the loss but count in the group's mean. The axes of Section 5 and the
leave-one-out variants of Figure 12 follow.

`scalerl_base` is its starting point (Section 2), with the forward ablations of Section 3 and Appendices A.9, A.12 and
A.18:

    J = E [ 1 / G · Σ_i 1 / |y_i| · Σ_t min(ρ Â^G, clip(ρ, 1 − ε⁻, 1 + ε⁺) Â^G) ],   Â^G = (r − mean) / (std + ε)

GRPO without KL, DAPO's asymmetric clip, PPO-off-policy-8 (8 × 48 prompts, 8 updates), interruptions, every prompt
trained on and asked again, logits in the model's own precision. The recipes that ScaleRL is compared with in Figure 2
come last, as Appendix A.17 describes them.
"""

from __future__ import annotations

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import PromptMean
from strop.algorithms.losses import Cispo
from strop.algorithms.rewards import BinaryReward
from strop.algorithms.settings import AlgorithmSettings, Selection
from strop.config.schema import RunConfig
from strop.data.settings import DataSettings, HeldOutSettings
from strop.engines.protocol import Interruption, Sampling
from strop.evaluation import EvaluationSettings
from strop.model.settings import ModelSettings
from strop.orchestration.settings import OrchestrationSettings
from strop.recipes import Variants
from strop.recipes._data import (
    AS_WRITTEN,
    BOXED,
    benchmarks,
    math_and_code_verifier,
    math_verifier,
    polaris_53k,
    polaris_and_deepcoder,
)
from strop.training.settings import AdamW, BatchSettings, Constant

THINKING, SOLUTION, PROMPT = 12_288, 2_048, 2_048


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
            advantage=GroupRelative(normalization="batch_std", ddof=0, batch="all"),
            truncation_mask="drop",
            anchor="generator",
            loss=Cispo(max_ratio=5.0),
            aggregation=PromptMean(),
        ),
        optim=AdamW(lr=5e-7, eps=1e-15, weight_decay=0.01, warmup_steps=100, schedule=Constant()),
        orchestration=OrchestrationSettings(max_lag=8, window="full"),
        evaluation=EvaluationSettings(
            every=100, samples_per_problem=16, benchmarks=benchmarks(aime24=16, aime25=16, math500=16)
        ),
    )


def math_code() -> RunConfig:
    """ScaleRL on mathematics and code together, each domain with a separate curve."""
    config = recipe()
    data = config.data.model_copy(
        update={"source": polaris_and_deepcoder(), "template": AS_WRITTEN, "weights": {"math": 1.0, "code": 1.0}}
    )
    evaluation = config.evaluation.model_copy(update={"benchmarks": benchmarks(aime24=16, lcb_2025=16)})
    changes = {"data": data, "verifier": math_and_code_verifier(), "evaluation": evaluation}
    return config.model_copy(update=changes)


# A step of PPO-off-policy-8 is eight gradient updates, which the paper counts as eight steps.
OFF_POLICY_8 = (
    "orchestration.max_lag=0", "batch.prompts_per_step=384", "batch.updates_per_step=8", "evaluation.every=12",
)  # fmt: skip
LENGTH_PENALTY = (
    'algorithm.shaping=[{piece="LengthPenalty", max_tokens=14336, cache_tokens=2048}]',
    "sampling.interruption=none", "sampling.thinking_tokens=none", "sampling.answer_tokens=none",
)  # fmt: skip
FP32_HEADS = ("model.trainer_fp32_head=true", "model.generator_fp32_head=true")
NO_FP32_HEADS = ("model.trainer_fp32_head=false", "model.generator_fp32_head=false")
CISPO = 'algorithm.loss={piece="Cispo", max_ratio=5.0}'
DAPO = 'algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.26}'
BASE = (
    "steps=2500",
    'algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.28}',
    'algorithm.advantage={piece="GroupRelative", normalization="prompt_std", ddof=1, eps=1e-6}',
    "algorithm.aggregation=SampleMean",
    "algorithm.selection.zero_variance=keep",
    "algorithm.selection.no_positive_resampling=none",
    *NO_FP32_HEADS,
)
QWEN_DAPO = (DAPO, "algorithm.aggregation=PromptMean", "algorithm.selection.zero_variance=drop")
LARGER = ("batch.prompts_per_step=640", "batch.samples_per_prompt=16", "batch.updates_per_step=8")  # 8 × (80 × 16)
PIPELINE = "scalerl_base.pipeline_8"

VARIANTS: Variants = {
    # Other readings
    "scalerl.released": (
        "ScaleRL as public re-implementations read it: Â_std over surviving prompts. Its own code is not public.",
        "scalerl", "algorithm.advantage.batch=survivors",
    ),
    "scalerl.adaptive": (
        "ScaleRL with generators only as far ahead, up to 8 steps, as keeps the trainer from waiting.",
        "scalerl", "orchestration.window=adaptive",
    ),
    # Section 5: axes
    "scalerl.32k": (
        "ScaleRL with 32,768 tokens of thinking.",
        "scalerl", "sampling.max_new_tokens=34816", "sampling.thinking_tokens=32768",
        "sampling.interruption.after=[30000, 32000]",
    ),
    "scalerl.bs512": (
        "ScaleRL with batches of 512 completions.",
        "scalerl", "batch.prompts_per_step=32", "batch.samples_per_prompt=16",
    ),
    "scalerl.bs2048": (
        "ScaleRL with batches of 2,048 completions: the run of 100,000 GPU-hours (Figure 1).",
        "scalerl", "batch.prompts_per_step=128", "batch.samples_per_prompt=16", "steps=7400",
    ),
    "scalerl.8gen": (
        "ScaleRL with 8 generations a prompt, the batch as large.",
        "scalerl", "batch.prompts_per_step=96", "batch.samples_per_prompt=8",
    ),
    "scalerl.24gen": (
        "ScaleRL with 24 generations a prompt, the batch as large.",
        "scalerl", "batch.prompts_per_step=32", "batch.samples_per_prompt=24",
    ),
    "scalerl.32gen": (
        "ScaleRL with 32 generations a prompt, the batch as large.",
        "scalerl", "batch.prompts_per_step=24", "batch.samples_per_prompt=32",
    ),
    "scalerl.scout": (
        "ScaleRL on Llama-4 Scout (17B × 16), a mixture of experts.",
        "scalerl", "model.path=meta-llama/Llama-4-Scout-17B-16E-Instruct", "model.mixture_of_experts=true",
        "steps=7100",
    ),
    # Figure 12: one choice reverted
    "scalerl.loo_plan": (
        "ScaleRL with advantages normalised by the prompt's standard deviation.",
        "scalerl", "algorithm.advantage.normalization=prompt_std", "algorithm.advantage.ddof=1",
    ),
    "scalerl.loo_lp": ("ScaleRL with a length penalty in place of interruptions.", "scalerl", *LENGTH_PENALTY),
    "scalerl.loo_batch": (
        "ScaleRL with the whole batch, groups of zero variance too.",
        "scalerl", "algorithm.selection.zero_variance=keep",
    ),
    "scalerl.loo_8op": (
        "ScaleRL on PPO-off-policy-8: 8 × 48 prompts generated at once, 8 updates.",
        "scalerl", *OFF_POLICY_8, "steps=1338",
    ),
    "scalerl.loo_fp32": ("ScaleRL without fp32 logits, on either side.", "scalerl", *NO_FP32_HEADS),
    "scalerl.loo_savg": ("ScaleRL with the loss averaged by sample.", "scalerl", "algorithm.aggregation=SampleMean"),
    "scalerl.loo_dapo": ("ScaleRL with DAPO's loss, clipped at 0.2 and 0.26.", "scalerl", DAPO),
    "scalerl.loo_uniform": (
        "ScaleRL with prompts drawn uniformly throughout.",
        "scalerl", "algorithm.selection.no_positive_resampling=none",
    ),
    # Section 2, and 3.1: how far off-policy, and how
    "scalerl_base": (
        "ScaleRL's base: GRPO without KL, asymmetric clip, sample-level loss, PPO-off-policy-8.",
        "scalerl", *BASE, *OFF_POLICY_8, "steps=312",
    ),
    "scalerl_base.ppo_off_policy_1": (
        "The base with one update a batch of 48 prompts.", "scalerl", *BASE, "orchestration.max_lag=0",
    ),
    "scalerl_base.pipeline_1": ("The base on PipelineRL-1.", "scalerl", *BASE, "orchestration.max_lag=1"),
    "scalerl_base.pipeline_4": ("The base on PipelineRL-4.", "scalerl", *BASE, "orchestration.max_lag=4"),
    "scalerl_base.pipeline_8": ("The base on PipelineRL-8, on top of which Section 3.2 ablates.", "scalerl", *BASE),
    # Section 3.2, and A.11 and A.18.1: on PipelineRL-8
    "scalerl_base.cispo": ("The base on PipelineRL-8 with CISPO.", PIPELINE, CISPO),
    "scalerl_base.gspo": (
        "The base on PipelineRL-8 with GSPO.", PIPELINE, 'algorithm.loss={piece="Gspo", clip_low=3e-3, clip_high=5e-3}',
    ),
    "scalerl_base.fp32": ("The base on PipelineRL-8 with fp32 logits on both sides.", PIPELINE, *FP32_HEADS),
    "scalerl_base.prompt_average": (
        "The base on PipelineRL-8 with the loss averaged by prompt.", PIPELINE, "algorithm.aggregation=PromptMean",
    ),
    "scalerl_base.token_average": (
        "The base on PipelineRL-8 with the loss averaged by token.", PIPELINE, "algorithm.aggregation=TokenMean",
    ),
    "scalerl_base.batch_normalization": (
        "The base on PipelineRL-8 with advantages divided by the batch's standard deviation.",
        PIPELINE, "algorithm.advantage.normalization=batch_std", "algorithm.advantage.ddof=0",
    ),
    "scalerl_base.no_normalization": (
        "The base on PipelineRL-8 with advantages not divided at all.",
        PIPELINE, "algorithm.advantage.normalization=none",
    ),
    "scalerl_base.effective_batch": (
        "The base on PipelineRL-8 with groups of zero variance left out.",
        PIPELINE, "algorithm.selection.zero_variance=drop",
    ),
    "scalerl_base.no_positive_resampling": (
        "The base on PipelineRL-8 with prompts of pass rate 0.9 or more never asked again.",
        PIPELINE, "algorithm.selection.no_positive_resampling=0.9",
    ),
    "scalerl_base.dapo_0.26": (
        "The base on PipelineRL-8 with an upper clip of 0.26 (A.18.1).", PIPELINE, "algorithm.loss.clip_high=0.26",
    ),
    "scalerl_base.length_penalty": (
        "The base on PipelineRL-8 with a length penalty in place of interruptions (A.11).", PIPELINE, *LENGTH_PENALTY,
    ),
    # Figure 2: recipes of others, on the base
    "deepseek_grpo": (
        "DeepSeek (GRPO): clipped at 0.2 on both sides, sample-level loss, PPO-off-policy-8.",
        "scalerl_base", 'algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.2}',
        "algorithm.aggregation=SampleMean",
    ),
    "qwen_dapo": (
        "Qwen2.5 (DAPO): clipped at 0.2 and 0.26, prompt-level loss, 80 × 16, zero variance dropped, PPO-off-policy-8.",
        "scalerl_base", *QWEN_DAPO, *LARGER,
    ),
    "magistral": (
        "Magistral: DAPO's loss on PipelineRL-8.",
        "scalerl_base", *QWEN_DAPO, "batch.prompts_per_step=80", "batch.samples_per_prompt=16",
        "batch.updates_per_step=1", "orchestration.max_lag=8", "steps=2500", "evaluation.every=100",
    ),
    "minimax": (
        "MiniMax-M1: CISPO, fp32 head, prompt-level loss, 80 × 16 with zero variance dropped, PPO-off-policy-8.",
        "scalerl_base", CISPO, *QWEN_DAPO[1:], *LARGER, *FP32_HEADS,
    ),
}  # fmt: skip
