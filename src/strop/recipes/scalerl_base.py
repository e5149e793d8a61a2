"""ScaleRL's starting point (Section 2) and the forward ablations of Section 3 and Appendices A.9, A.12 and A.18.

    J = E [ 1 / G · Σ_i 1 / |y_i| · Σ_t min(ρ Â^G, clip(ρ, 1 − ε⁻, 1 + ε⁺) Â^G) ],   Â^G = (r − mean) / (std + ε)

GRPO without KL, DAPO's asymmetric clip, PPO-off-policy-8 (8 × 48 prompts, 8 updates), interruptions, every prompt
trained on and asked again, logits in the model's own precision. Section 3.2 ablates on top of PipelineRL-8. The
recipes that ScaleRL is compared with in Figure 2 follow, as Appendix A.17 describes them.
"""

from __future__ import annotations

from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.recipes import named
from strop.recipes.scalerl import OFF_POLICY_8
from strop.recipes.scalerl import recipe as scalerl

BASE = (
    "steps=2500",
    'algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.28}',
    'algorithm.advantage={piece="GroupRelative", normalization="prompt_std", ddof=1, eps=1e-6}',
    "algorithm.aggregation=SampleMean",
    "algorithm.selection.zero_variance=keep",
    "algorithm.selection.no_positive_resampling=none",
    "model.trainer_fp32_head=false",
    "model.generator_fp32_head=false",
    "orchestration.window=full",  # k itself is compared
)


def recipe() -> RunConfig:
    """ScaleRL's base: GRPO without KL, asymmetric clip, sample-level loss, PPO-off-policy-8."""
    return edit(scalerl(), [*BASE, *OFF_POLICY_8, "steps=312"])


# ---------------------------------------------------------------------- Section 3.1: how far off-policy, and how


def ppo_off_policy_1() -> RunConfig:
    """The base with one update a batch of 48 prompts."""
    return edit(scalerl(), [*BASE, "orchestration.max_lag=0"])


def pipeline_1() -> RunConfig:
    """The base on PipelineRL-1."""
    return _pipeline("orchestration.max_lag=1")


def pipeline_4() -> RunConfig:
    """The base on PipelineRL-4."""
    return _pipeline("orchestration.max_lag=4")


def pipeline_8() -> RunConfig:
    """The base on PipelineRL-8, on top of which Section 3.2 ablates."""
    return _pipeline()


def _pipeline(*sets: str) -> RunConfig:
    return edit(scalerl(), [*BASE, *sets])


# ---------------------------------------------------------------------- Section 3.2: on PipelineRL-8


def cispo() -> RunConfig:
    """The base on PipelineRL-8 with CISPO."""
    return _pipeline('algorithm.loss={piece="Cispo", max_ratio=5.0}')


def gspo() -> RunConfig:
    """The base on PipelineRL-8 with GSPO."""
    return _pipeline('algorithm.loss={piece="Gspo", clip_low=3e-3, clip_high=5e-3}')


def fp32() -> RunConfig:
    """The base on PipelineRL-8 with fp32 logits on both sides."""
    return _pipeline("model.trainer_fp32_head=true", "model.generator_fp32_head=true")


def prompt_average() -> RunConfig:
    """The base on PipelineRL-8 with the loss averaged by prompt."""
    return _pipeline("algorithm.aggregation=PromptMean")


def token_average() -> RunConfig:
    """The base on PipelineRL-8 with the loss averaged by token."""
    return _pipeline("algorithm.aggregation=TokenMean")


def batch_normalization() -> RunConfig:
    """The base on PipelineRL-8 with advantages divided by the batch's standard deviation."""
    return _pipeline("algorithm.advantage.normalization=batch_std", "algorithm.advantage.ddof=0")


def no_normalization() -> RunConfig:
    """The base on PipelineRL-8 with advantages not divided at all."""
    return _pipeline("algorithm.advantage.normalization=none")


def effective_batch() -> RunConfig:
    """The base on PipelineRL-8 with groups of zero variance left out."""
    return _pipeline("algorithm.selection.zero_variance=drop")


def no_positive_resampling() -> RunConfig:
    """The base on PipelineRL-8 with prompts of pass rate 0.9 or more never asked again."""
    return _pipeline("algorithm.selection.no_positive_resampling=0.9")


@named("scalerl_base.dapo_0.26")
def dapo_26() -> RunConfig:
    """The base on PipelineRL-8 with an upper clip of 0.26 (A.18.1)."""
    return _pipeline("algorithm.loss.clip_high=0.26")


def length_penalty() -> RunConfig:
    """The base on PipelineRL-8 with a length penalty in place of interruptions (A.11)."""
    penalty = 'algorithm.shaping=[{piece="LengthPenalty", max_tokens=14336, cache_tokens=2048}]'
    free = ("sampling.interruption=none", "sampling.thinking_tokens=none", "sampling.answer_tokens=none")
    return _pipeline(penalty, *free)


# ---------------------------------------------------------------------- Figure 2: recipes of others, on the base

DAPO_LOSS = 'algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.26}'
DROPPED = "algorithm.selection.zero_variance=drop"
PROMPT_MEAN = "algorithm.aggregation=PromptMean"
LARGER = ("batch.prompts_per_step=640", "batch.samples_per_prompt=16", "batch.updates_per_step=8")  # 8 × (80 × 16)


@named("deepseek_grpo")
def deepseek_grpo() -> RunConfig:
    """DeepSeek (GRPO): clipped at 0.2 on both sides, sample-level loss, PPO-off-policy-8."""
    loss = 'algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.2}'
    return edit(recipe(), [loss, "algorithm.aggregation=SampleMean"])


@named("qwen_dapo")
def qwen_dapo() -> RunConfig:
    """Qwen2.5 (DAPO): clipped at 0.2 and 0.26, prompt-level loss, 80 × 16, zero variance dropped, PPO-off-policy-8."""
    return edit(recipe(), [DAPO_LOSS, PROMPT_MEAN, DROPPED, *LARGER])


@named("magistral")
def magistral() -> RunConfig:
    """Magistral: DAPO's loss on PipelineRL-8."""
    batch = ("batch.prompts_per_step=80", "batch.samples_per_prompt=16", "batch.updates_per_step=1")
    pipeline = ("orchestration.max_lag=8", "orchestration.window=adaptive", "steps=2500", "evaluation.every=100")
    return edit(recipe(), [DAPO_LOSS, PROMPT_MEAN, DROPPED, *batch, *pipeline])


@named("minimax")
def minimax() -> RunConfig:
    """MiniMax-M1: CISPO, fp32 head, prompt-level loss, 80 × 16 with zero variance dropped, PPO-off-policy-8."""
    head = ("model.trainer_fp32_head=true", "model.generator_fp32_head=true")
    return edit(recipe(), ['algorithm.loss={piece="Cispo", max_ratio=5.0}', PROMPT_MEAN, DROPPED, *LARGER, *head])
