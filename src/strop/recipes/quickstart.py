"""The quickstart: ScaleRL's recipe with k = 0, on chain sums, from the embedded base. Minutes on two cores."""

from __future__ import annotations

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import PromptMean
from strop.algorithms.losses import Cispo
from strop.algorithms.rewards import BinaryReward
from strop.algorithms.settings import AlgorithmSettings, Selection
from strop.config.schema import RunConfig
from strop.data.generators import ChainSum
from strop.data.settings import DataSettings, HeldOutSettings
from strop.engines.protocol import Sampling
from strop.engines.settings import EngineSettings
from strop.evaluation import EvaluationSettings
from strop.model.settings import EMBEDDED_CALLER, ModelSettings
from strop.recipes import Variants
from strop.training.settings import AdamW, BatchSettings, CheckpointSettings
from strop.verifiers.answer import Answer

STEPS = 24


def recipe() -> RunConfig:
    """Quickstart: ScaleRL in miniature, from the embedded base model, on sums of five digits; minutes on two cores."""
    return RunConfig(
        recipe="quickstart",
        steps=STEPS,
        model=ModelSettings(path="embedded", trainer_fp32_head=True, generator_fp32_head=True),
        data=DataSettings(
            source=ChainSum(part="train", count=4096, seed=1),
            held_out=HeldOutSettings(source=ChainSum(part="held_out", count=256, seed=2)),
        ),
        verifier=Answer(extract="boxed"),
        batch=BatchSettings(prompts_per_step=32, samples_per_prompt=8, tokens_per_microbatch=8192),
        sampling=Sampling(temperature=1.0, max_new_tokens=96),
        algorithm=AlgorithmSettings(
            reward=BinaryReward(correct=1.0, wrong=-1.0),
            selection=Selection(zero_variance="drop"),
            advantage=GroupRelative(normalization="batch_std", ddof=0, batch="survivors"),
            truncation_mask="drop",
            loss=Cispo(max_ratio=5.0),
            aggregation=PromptMean(),
        ),
        optim=AdamW(lr=3e-4, eps=1e-15, weight_decay=0.01, warmup_steps=2),
        engine=EngineSettings(slots=512),  # without a compiler, a step costs little more for more sequences
        evaluation=EvaluationSettings(every=8, samples_per_problem=8),
        checkpoint=CheckpointSettings(every=12),
    )


VARIANTS: Variants = {
    "quickstart.calculator": (
        "Quickstart with a tool: a base that guesses at sums of four long numbers learns to call a calculator.",
        "quickstart", f"model.path={EMBEDDED_CALLER}", 'environment={piece="Calculator", max_turns=4}',
        "data.source.terms=4", "data.source.digits=3", "data.held_out.source.terms=4", "data.held_out.source.digits=3",
    ),
}  # fmt: skip
