"""Archer (Stabilizing Knowledge, Promoting Reasoning: Dual-Token Constraints for RLVR), Section 4.1.

    J = E [ 1 / Σ_i |o_i| · Σ_i Σ_t ( min(ρ A, clip(ρ, 1 ± ε(e_t)) A) − β(e_t) · KL(π ‖ π_ref) ) ]
    ε = 0.5, β = 0 where e_t ≥ the 0.8-quantile of its response's entropies (reasoning);  ε = 0.2, β = 0.001 elsewhere

64 prompts × 16, mini-batches of 32 prompts, groups without variance replaced, responses up to 32k. DAPO, which it is
compared with, clips at 0.2 and 0.28, without KL, and shapes the reward of overlong responses (Section 2.2). The
released script (`.released`) makes three passes over a batch, bounds ratio and KL, and replaces nothing.
"""

from __future__ import annotations

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import TokenMean
from strop.algorithms.entropy_losses import ArcherClip
from strop.algorithms.regularizers import KlPenalty
from strop.algorithms.rewards import BinaryReward
from strop.algorithms.settings import AlgorithmSettings, Selection
from strop.algorithms.token_types import EntropyQuantile
from strop.config.schema import RunConfig
from strop.data.settings import DataSettings, HeldOutSettings
from strop.engines.protocol import Sampling
from strop.evaluation import EvaluationSettings
from strop.model.settings import ModelSettings
from strop.recipes import Variants
from strop.recipes._data import (
    AS_WRITTEN,
    BOXED,
    archer_code,
    archer_math,
    benchmarks,
)
from strop.training.settings import AdamW, BatchSettings, CheckpointSettings
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.combined import AnyOf

MINI_BATCHES, WARMUP = 2, 10  # the warm-up in rollout steps


def math() -> RunConfig:
    """Archer on mathematics: different clip ranges and KL weights for reasoning and for knowledge tokens."""
    return RunConfig(
        recipe="archer",
        steps=520,
        model=ModelSettings(
            path="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", dtype="bfloat16", gradient_checkpointing=True
        ),
        data=DataSettings(
            source=archer_math(), template=BOXED, max_prompt_tokens=2048, held_out=HeldOutSettings(count=256)
        ),
        verifier=AnyOf(),  # DeepScaleR's rules, then math-verify
        batch=BatchSettings(
            prompts_per_step=64, samples_per_prompt=16, updates_per_step=MINI_BATCHES
        ),
        sampling=Sampling(temperature=1.0, max_new_tokens=32_768),
        algorithm=AlgorithmSettings(
            reward=BinaryReward(correct=1.0, wrong=0.0),
            selection=Selection(zero_variance="drop", of="score", refill=True),
            advantage=GroupRelative(normalization="prompt_std", ddof=1, eps=1e-6),
            anchor="recomputed",
            token_types=EntropyQuantile(quantile=0.8, scope="response", boundary="inclusive", when="batch"),
            loss=ArcherClip(clip_knowledge=0.2, clip_reasoning=0.5, dual_clip=None, log_ratio_limit=None),
            regularizers=(KlPenalty(estimator="k3", beta=0.001, beta_reasoning=0.0, clamp=None, normalization="all"),),
            aggregation=TokenMean(),
        ),
        optim=AdamW(lr=1e-6, weight_decay=0.1, max_grad_norm=1.0, warmup_steps=WARMUP * MINI_BATCHES),
        evaluation=EvaluationSettings(
            every=20, samples_per_problem=4, temperature=0.8, benchmarks=benchmarks(aime24=64, aime25=64)
        ),
        checkpoint=CheckpointSettings(every=10),
    )


def code() -> RunConfig:
    """Archer on programming problems, judged by their tests."""
    config = math()
    data = config.data.model_copy(update={"source": archer_code(), "template": AS_WRITTEN})
    evaluation = config.evaluation.model_copy(update={"benchmarks": benchmarks(lcb_v5=8)})
    changes = {"steps": 320, "data": data, "verifier": CodeVerifier(), "evaluation": evaluation}
    return config.model_copy(update=changes)


DAPO = (
    'algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.28}',
    'algorithm.shaping=[{piece="OverlongShaping", max_tokens=32768, buffer_tokens=4096}]',
    "algorithm.regularizers=[]", "algorithm.token_types=none",
)  # fmt: skip

# Three passes, the ratio bounded, nothing refilled, no benchmark in training.
SCRIPT = (
    "batch.passes_per_batch=3", f"optim.warmup_steps={WARMUP * MINI_BATCHES * 3}", "algorithm.loss.dual_clip=10.0",
    "algorithm.selection.refill=false", "evaluation.benchmarks=[]",
)  # fmt: skip
RELEASED = (
    *SCRIPT, "algorithm.loss.log_ratio_limit=20.0",
    'algorithm.regularizers=[{piece="KlPenalty", beta_reasoning=0.0, clamp=10.0, normalization="type"}]',
    "algorithm.token_types.boundary=exclusive", "algorithm.token_types.when=update",
)  # fmt: skip

TESTS = ("verifier.test_seconds=30",)

VARIANTS: Variants = {
    # The baseline of Tables 1 and 2
    "archer.dapo_math": (
        "DAPO as Archer compares with it, on mathematics: clipped at 0.2 and 0.28, no KL, no token types.",
        "archer.math", *DAPO,
    ),
    "archer.dapo_code": ("DAPO as Archer compares with it, on programming problems.", "archer.code", *DAPO),
    # The readings of the released code
    "archer.math.released": ("Archer on mathematics, as its released script trains.", "archer.math", *RELEASED),
    "archer.code.released": ("Archer on programs, as its released script trains.", "archer.code", *RELEASED, *TESTS),
    "archer.dapo_math.released": (
        "DAPO in the setup of Archer's script, on mathematics: three passes, no refill, no shaping.",
        "archer.dapo_math", *SCRIPT, "algorithm.shaping=[]",
    ),
    "archer.dapo_code.released": (
        "DAPO in the setup of Archer's script, on programming problems.",
        "archer.dapo_code", *SCRIPT, "algorithm.shaping=[]", *TESTS,
    ),
}  # fmt: skip
