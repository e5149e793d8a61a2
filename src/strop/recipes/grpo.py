"""GRPO: group-relative policy optimization, the recipe the others are measured against (DeepSeekMath; ScaleRL, Eq. 7).

The defaults are small enough for a laptop. The model is the user's to name, with `--set model.path=…`: for reasoning to
be sharpened there must be some.

DAPO (Yu et al., 2025) adds decoupled clipping, dynamic sampling, a token-level loss and overlong reward shaping:

    J = E [ 1 / Σ_i |o_i| · Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 1 − 0.2, 1 + 0.28) A_i) ]    s.t. 0 < correct in group < G

Its numbers are those of the report: 512 prompts × 16, mini-batches of 512 completions (16 updates), Qwen2.5-32B.
"""

from __future__ import annotations

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import SampleMean, TokenMean
from strop.algorithms.losses import PpoClip
from strop.algorithms.rewards import BinaryReward, OverlongShaping
from strop.algorithms.settings import AlgorithmSettings, Selection
from strop.config.schema import RunConfig
from strop.data.generators import ChainSum
from strop.data.settings import DataSettings, HeldOutSettings
from strop.engines.protocol import Sampling
from strop.evaluation import EvaluationSettings
from strop.model.settings import ModelSettings
from strop.recipes import named
from strop.recipes._data import BOXED, dapo_17k, math_verifier
from strop.training.settings import AdamW, BatchSettings
from strop.verifiers.answer import Answer


def recipe() -> RunConfig:
    """GRPO: prompt-level std, symmetric clipping at 0.2, sample-level loss, every group trained on."""
    return RunConfig(
        recipe="grpo",
        steps=100,
        model=ModelSettings(),
        data=DataSettings(source=ChainSum(), held_out=HeldOutSettings(count=64)),
        verifier=Answer(extract="boxed"),
        batch=BatchSettings(prompts_per_step=16, samples_per_prompt=8),
        sampling=Sampling(temperature=1.0, max_new_tokens=256),
        algorithm=AlgorithmSettings(
            reward=BinaryReward(correct=1.0, wrong=0.0),
            selection=Selection(zero_variance="keep"),
            advantage=GroupRelative(normalization="prompt_std", ddof=1, eps=1e-6),
            truncation_mask="none",
            loss=PpoClip(clip_low=0.2, clip_high=0.2),
            aggregation=SampleMean(),
        ),
        optim=AdamW(lr=1e-6, weight_decay=0.01, max_grad_norm=1.0),
    )


@named("dapo")
def dapo() -> RunConfig:
    """DAPO: clip-higher 0.2 / 0.28, groups without variance replaced, token-level loss, overlong shaping."""
    return RunConfig(
        recipe="dapo",
        steps=5000,
        model=ModelSettings(path="Qwen/Qwen2.5-32B", dtype="bfloat16", gradient_checkpointing=True),
        data=DataSettings(
            source=dapo_17k(), template=BOXED, max_prompt_tokens=2048, held_out=HeldOutSettings(count=256)
        ),
        verifier=math_verifier(),
        batch=BatchSettings(prompts_per_step=512, samples_per_prompt=16, updates_per_step=16),
        sampling=Sampling(temperature=1.0, max_new_tokens=20_480),
        algorithm=AlgorithmSettings(
            reward=BinaryReward(correct=1.0, wrong=-1.0),
            shaping=(OverlongShaping(max_tokens=20_480, buffer_tokens=4_096),),
            selection=Selection(zero_variance="drop", of="score", refill=True),
            advantage=GroupRelative(normalization="prompt_std", ddof=1, eps=1e-6),
            truncation_mask="none",
            anchor="recomputed",
            loss=PpoClip(clip_low=0.2, clip_high=0.28),
            aggregation=TokenMean(),
        ),
        # 20 rollout steps of 16 updates
        optim=AdamW(lr=1e-6, weight_decay=0.1, max_grad_norm=1.0, warmup_steps=320),
        evaluation=EvaluationSettings(every=50, samples_per_problem=4),
    )
