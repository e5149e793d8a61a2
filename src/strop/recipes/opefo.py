"""OPEFO (On-Policy Entropy Flow Optimization), Section 6.1, and the methods it is compared with.

    J = E [ 1 / Σ_i |o_i| · Σ_i Σ_t w_it A_i log π(o_it) ],   w = 1 + λ* on S+, 1 − λ* on S−        strictly on-policy

32 prompts × 8 of DAPO-17K, responses of 3,000 tokens (Qwen2.5-Math-7B) or 8,000 (Qwen3-4B-Base), warm-up over 10
rollout steps. Strict methods: one update a step at 2.83e-6 = √8 · 1e-6. The others: 8 updates a step at 1e-6.
"""

from __future__ import annotations

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import TokenMean
from strop.algorithms.entropy_losses import Opefo
from strop.algorithms.rewards import BinaryReward
from strop.algorithms.settings import AlgorithmSettings, Selection
from strop.config.schema import RunConfig
from strop.data.settings import DataSettings, HeldOutSettings
from strop.engines.protocol import Sampling
from strop.evaluation import EvaluationSettings
from strop.model.settings import ModelSettings
from strop.recipes import Variants
from strop.recipes._data import AS_WRITTEN, benchmarks, dapo_17k, math_verifier
from strop.training.settings import AdamW, BatchSettings, CheckpointSettings

WARMUP = 10  # rollout steps


def qwen25_math_7b() -> RunConfig:
    """OPEFO on Qwen2.5-Math-7B: tokens reweighted so that entropy gained and lost balance, strictly on-policy."""
    return RunConfig(
        recipe="opefo",
        steps=1000,
        model=ModelSettings(path="Qwen/Qwen2.5-Math-7B", dtype="bfloat16", gradient_checkpointing=True),
        data=DataSettings(
            source=dapo_17k(), template=AS_WRITTEN, max_prompt_tokens=1024, held_out=HeldOutSettings(count=256)
        ),
        verifier=math_verifier(),
        batch=BatchSettings(prompts_per_step=32, samples_per_prompt=8, updates_per_step=1),
        sampling=Sampling(temperature=1.0, max_new_tokens=3_000),
        algorithm=AlgorithmSettings(
            reward=BinaryReward(correct=1.0, wrong=0.0),
            selection=Selection(zero_variance="keep"),
            advantage=GroupRelative(normalization="prompt_std", ddof=1, eps=1e-6),
            loss=Opefo(balance=None, sides="both", power=2, exact=False),
            aggregation=TokenMean(),
        ),
        optim=AdamW(lr=2.83e-6, weight_decay=0.01, max_grad_norm=1.0, warmup_steps=WARMUP),
        evaluation=EvaluationSettings(
            every=10, samples_per_problem=1, temperature=1.0, top_p=0.7,
            benchmarks=benchmarks(aime24=32, aime25=32, amc23=32, math500=1, minerva=1, olympiadbench=1),
        ),  # fmt: skip
        checkpoint=CheckpointSettings(every=10, keep=100),  # the best is chosen among all of them
    )


QWEN3_4B = ("model.path=Qwen/Qwen3-4B-Base", "sampling.max_new_tokens=8000")
# Eight updates a step at 1e-6: the methods that are not strictly on-policy.
OFF_POLICY = (
    'algorithm.loss={piece="PpoClip", clip_low=0.2, clip_high=0.2}', "algorithm.anchor=recomputed",
    "batch.updates_per_step=8", "optim.lr=1e-6", f"optim.warmup_steps={WARMUP * 8}",
)  # fmt: skip
ENTROPY_BONUS = 'algorithm.regularizers=[{piece="EntropyBonus", coefficient=0.01}]'
CLIP_COV = 'algorithm.loss={piece="ClipCov", share=2e-4, low=1.0, high=5.0, clip_low=1.0, clip_high=1.0}'
KL_COV = 'algorithm.loss={piece="KlCov", share=0.002, coefficient=1.0}'
OURS = "opefo.qwen25_math_7b"

VARIANTS: Variants = {
    "opefo.qwen3_4b": ("OPEFO on Qwen3-4B-Base, with responses of 8,000 tokens.", OURS, *QWEN3_4B),
    # Table 2: other λ
    "opefo.static_scaling": ("OPEFO's ablation with a constant λ = 0.001.", OURS, "algorithm.loss.balance=0.001"),
    "opefo.one_side_increasing": (
        "OPEFO's ablation that reweights only the tokens that raise entropy (S+).",
        OURS, "algorithm.loss.sides=increasing",
    ),
    "opefo.one_side_decreasing": (
        "OPEFO's ablation that reweights only the tokens that lower entropy (S−).",
        OURS, "algorithm.loss.sides=decreasing",
    ),
    # Table 1: baselines
    "grpo_on_policy": (
        "GRPO strictly on-policy, OPEFO's baseline: λ = 0, one update a step, no ratio to clip.",
        OURS, "algorithm.loss=Reinforce",
    ),
    "opefo.grpo": (
        "GRPO as OPEFO compares with it: 32 × 8, 8 updates a step at 1e-6, clipped at 0.2.", OURS, *OFF_POLICY,
    ),
    "entropy_reg": ("GRPO with an entropy bonus of coefficient 0.01.", "opefo.grpo", ENTROPY_BONUS),
    "clip_higher": ("GRPO clipped at 0.2 below and 0.28 above.", "opefo.grpo", "algorithm.loss.clip_high=0.28"),
    "clip_cov": (
        "GRPO with the gradient of a few tokens of high covariance removed, otherwise clipped at 1 (Cui et al.).",
        "opefo.grpo", CLIP_COV,
    ),
    "kl_cov": (
        "GRPO with a KL penalty on the few tokens of highest covariance, and no clipping (Cui et al.).",
        "opefo.grpo", KL_COV,
    ),
    # Table 1, Qwen3-4B-Base
    "opefo.grpo_qwen3_4b": ("GRPO as OPEFO compares with it, on Qwen3-4B-Base.", "opefo.grpo", *QWEN3_4B),
    "opefo.grpo_on_policy_qwen3_4b": ("GRPO strictly on-policy, on Qwen3-4B-Base.", "grpo_on_policy", *QWEN3_4B),
    "opefo.entropy_reg_qwen3_4b": (
        "GRPO with an entropy bonus of coefficient 0.01, on Qwen3-4B-Base.", "entropy_reg", *QWEN3_4B,
    ),
    "opefo.clip_higher_qwen3_4b": (
        "GRPO clipped at 0.2 below and 0.28 above, on Qwen3-4B-Base.", "clip_higher", *QWEN3_4B,
    ),
    "opefo.clip_cov_qwen3_4b": ("Clip-Cov on Qwen3-4B-Base.", "clip_cov", *QWEN3_4B),
    "opefo.kl_cov_qwen3_4b": ("KL-Cov on Qwen3-4B-Base.", "kl_cov", *QWEN3_4B),
}  # fmt: skip
