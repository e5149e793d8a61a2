"""GRPO: group-relative policy optimization, the recipe the others are measured against (DeepSeekMath; ScaleRL, Eq. 7).

The defaults are small enough for a laptop. The model is the user's to name, with `--set model.path=…`: for reasoning to
be sharpened there must be some.
"""

from __future__ import annotations

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import SampleMean
from strop.algorithms.losses import PpoClip
from strop.algorithms.rewards import BinaryReward
from strop.algorithms.settings import AlgorithmSettings, Selection
from strop.config.schema import RunConfig
from strop.data.generators import ChainSum
from strop.data.settings import DataSettings, HeldOutSettings
from strop.engines.protocol import Sampling
from strop.model.settings import ModelSettings
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
