"""The recipes that ScaleRL is compared with in its Figure 2, as its Appendix A.17 describes them.

All start from ScaleRL's base (`scalerl_base`) and differ in what is written here.
"""

from __future__ import annotations

from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.recipes import named
from strop.recipes.scalerl_base import recipe as base

DAPO_LOSS = 'algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.26}'
DROPPED = "algorithm.selection.zero_variance=drop"
PROMPT_MEAN = "algorithm.aggregation=PromptMean"
LARGER = ("batch.prompts_per_step=640", "batch.samples_per_prompt=16", "batch.updates_per_step=8")  # 8 × (80 × 16)


@named("deepseek_grpo")
def deepseek_grpo() -> RunConfig:
    """DeepSeek (GRPO): clipped at 0.2 on both sides, sample-level loss, PPO-off-policy-8."""
    loss = 'algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.2}'
    return edit(base(), [loss, "algorithm.aggregation=SampleMean"])


@named("qwen_dapo")
def qwen_dapo() -> RunConfig:
    """Qwen2.5 (DAPO): clipped at 0.2 and 0.26, prompt-level loss, 80 × 16, zero variance dropped, PPO-off-policy-8."""
    return edit(base(), [DAPO_LOSS, PROMPT_MEAN, DROPPED, *LARGER])


@named("magistral")
def magistral() -> RunConfig:
    """Magistral: DAPO's loss on PipelineRL-8."""
    batch = ("batch.prompts_per_step=80", "batch.samples_per_prompt=16", "batch.updates_per_step=1")
    pipeline = ("orchestration.max_lag=8", "orchestration.window=adaptive", "steps=2500", "evaluation.every=100")
    return edit(base(), [DAPO_LOSS, PROMPT_MEAN, DROPPED, *batch, *pipeline])


@named("minimax")
def minimax() -> RunConfig:
    """MiniMax-M1: CISPO, fp32 head, prompt-level loss, 80 × 16 with zero variance dropped, PPO-off-policy-8."""
    head = ("model.trainer_fp32_head=true", "model.generator_fp32_head=true")
    return edit(base(), ['algorithm.loss={piece="Cispo", max_ratio=5.0}', PROMPT_MEAN, DROPPED, *LARGER, *head])
