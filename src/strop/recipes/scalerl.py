"""ScaleRL (The Art of Scaling Reinforcement Learning Compute for LLMs), Sections 2 to 4 and Appendix A.3.

    J = E [ 1 / Σ_g |y_g| · Σ_i Σ_t sg(min(ρ_it, ε)) · Â_i^norm · log π(y_it) ]        over surviving prompts

with Â^norm = (r − mean_group) / std of all advantages of the batch, groups of pass rate 0 or 1 dropped.

Still lacking here, in the order the paper lists them: PipelineRL-8 (this one is synchronous, `max_lag = 0`), forced
interruptions at 10k to 12k thinking tokens with separate budgets for prompt, thinking and answer, and
No-Positive-Resampling. Truncated completions are left out of the loss but count in the group's mean.
"""

from __future__ import annotations

from strop.algorithms import BinaryReward, Cispo, GroupRelative, PromptMean, Selection
from strop.config import AlgorithmSettings, BatchSettings, EvaluationSettings, RunConfig
from strop.data import ChainSum, DataSettings, HeldOutSettings
from strop.engines.base import Sampling
from strop.model_settings import FreshModel, ModelSettings
from strop.trainer.optimizer import AdamW, Constant
from strop.verifiers import Answer


def recipe() -> RunConfig:
    """ScaleRL: CISPO, prompt-level loss, batch-level advantages, zero-variance groups dropped, fp32 head, 48 × 16."""
    return RunConfig(
        recipe="scalerl",
        steps=1000,
        model=ModelSettings(
            fresh=FreshModel(max_positions=16_384), trainer_fp32_head=True, generator_fp32_head=True
        ),
        data=DataSettings(source=ChainSum(), max_prompt_tokens=2048, held_out=HeldOutSettings(count=1000)),
        verifier=Answer(extract="boxed"),
        batch=BatchSettings(prompts_per_step=48, samples_per_prompt=16, updates_per_step=1),
        sampling=Sampling(temperature=1.0, max_new_tokens=14_336),
        algorithm=AlgorithmSettings(
            reward=BinaryReward(correct=1.0, wrong=-1.0),
            selection=Selection(zero_variance="drop", of="score", refill=False),
            advantage=GroupRelative(normalization="batch_std", ddof=0, batch="survivors"),
            truncation_mask="after",
            loss=Cispo(max_ratio=5.0),
            aggregation=PromptMean(),
        ),
        optim=AdamW(lr=5e-7, eps=1e-15, weight_decay=0.01, warmup_steps=100, schedule=Constant()),
        evaluation=EvaluationSettings(every=100, samples_per_problem=16),
    )
