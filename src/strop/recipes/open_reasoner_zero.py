"""Open-Reasoner-Zero, Section 2 and Appendix B: plain PPO from a base model.

    J = E [ 1 / Σ_i |o_i| · Σ_i Σ_t min(ρ A_t, clip(ρ, 1 ± 0.2) A_t) ],   A_t = R − V(s_t), normalised over all tokens
    L_V = mean (V − R)²;   released: ½ · mean max( (V − R)², (clip(V, V_old ± 0.2) − R)² )

128 prompts × 64 samples, one policy update and 12 critic updates an iteration, γ = λ = 1, no KL, no entropy bonus. A
reward is 1 where generation ended by itself and the answer is right, else 0.
"""

from __future__ import annotations

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import PpoClip
from strop.algorithms.rewards import BinaryReward
from strop.algorithms.settings import AlgorithmSettings, Selection
from strop.algorithms.value import Gae, ValueLoss
from strop.config.schema import RunConfig, Stage
from strop.data.history import HardOnly
from strop.data.settings import DataSettings, HeldOutSettings
from strop.data.templates import OpenReasonerZero
from strop.engines.protocol import Sampling
from strop.evaluation import EvaluationSettings
from strop.model.settings import ModelSettings
from strop.recipes import Variants, named
from strop.recipes._data import benchmarks, orz_13k_hard, orz_57k
from strop.training.settings import AdamW, BatchSettings, CheckpointSettings, Constant, CriticSettings, LinearDecay
from strop.verifiers.math_verifier import MathVerifier


def _adamw(lr: float) -> AdamW:
    return AdamW(
        lr=lr, betas=(0.9, 0.95), weight_decay=0.0, max_grad_norm=1.0, warmup_steps=50, schedule=Constant()
    )


@named("open_reasoner_zero.7b")
def _7b() -> RunConfig:
    """Open-Reasoner-Zero-7B: PPO with a critic from a base model, GAE(1, 1), no KL, rewards only for the answer."""
    return RunConfig(
        recipe="open_reasoner_zero",
        steps=1000,
        model=ModelSettings(path="Qwen/Qwen2.5-7B", dtype="bfloat16", gradient_checkpointing=True),
        data=DataSettings(
            source=orz_57k(), template=OpenReasonerZero(), max_prompt_tokens=2048, held_out=HeldOutSettings(count=256)
        ),
        verifier=MathVerifier(extract="answer_tag", require_stop=True),  # a truncated response is worth 0
        batch=BatchSettings(prompts_per_step=128, samples_per_prompt=64, updates_per_step=1),
        sampling=Sampling(temperature=1.0, max_new_tokens=8_000, stop=OpenReasonerZero.STOP),
        algorithm=AlgorithmSettings(
            reward=BinaryReward(correct=1.0, wrong=0.0),
            selection=Selection(zero_variance="keep"),
            advantage=Gae(gamma=1.0, lam=1.0, normalization="tokens"),
            truncation_mask="none",
            anchor="recomputed",
            loss=PpoClip(clip_low=0.2, clip_high=0.2),
            aggregation=TokenMean(),
        ),
        optim=_adamw(1e-6),
        critic=CriticSettings(updates_per_step=12, loss=ValueLoss(clip=None, scale=1.0), optim=_adamw(5e-6)),
        evaluation=EvaluationSettings(
            every=10, samples_per_problem=4, temperature=1.0,
            benchmarks=benchmarks(aime24=16, aime25=16, math500=16, gpqa_diamond=16),
        ),  # fmt: skip
        checkpoint=CheckpointSettings(every=50),
    )


def r1_distill_14b() -> RunConfig:
    """ORZ-R1-Distill-Qwen-14B: 300 iterations on the 13k mined hard problems, from a distilled model."""
    config = _7b()
    model = config.model.model_copy(update={"path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"})
    data = config.data.model_copy(update={"source": orz_13k_hard()})
    return config.model_copy(update={"steps": 300, "model": model, "data": data})


@named("open_reasoner_zero.32b")
def _32b() -> RunConfig:
    """Open-Reasoner-Zero-32B: 1,100 steps, then 100 on problems passed less than 4 times in 64, decaying to 3e-7."""
    config = _7b()
    decay = LinearDecay(final_fraction=0.3, steps=100).model_dump(mode="json")
    annealing = Stage(problems=HardOnly(below=4 / 64), set={"optim.schedule": decay, "optim.warmup_steps": 0})
    model = config.model.model_copy(update={"path": "Qwen/Qwen2.5-32B"})
    return config.model_copy(update={"model": model, "steps": 1200, "stages": (Stage(steps=1100), annealing)})


@named("open_reasoner_zero.7b_grpo")
def _7b_grpo() -> RunConfig:
    """Open-Reasoner-Zero-7B with GRPO in place of the critic (Appendix C.1): the run that collapses.

    The group's mean is the baseline, and its standard deviation divides. The released code means to do so, but divides
    by 1, and normalises over all tokens as with the critic.
    """
    config = _7b()
    algorithm = config.algorithm.model_copy(update={"advantage": GroupRelative(normalization="prompt_std")})
    return config.model_copy(update={"algorithm": algorithm, "critic": None})


# The code's prompt; an answer tag without a box in it is wrong.
PROMPT = ("data.template.wording=code", "verifier.box_required=true")
RELEASED = (*PROMPT, "critic.loss.clip=0.2", "critic.loss.scale=0.5")

VARIANTS: Variants = {
    **{
        f"open_reasoner_zero.{size}": (
            f"Open-Reasoner-Zero-{size.upper()}: the same from Qwen2.5-{size.upper()}.",
            "open_reasoner_zero.7b", f"model.path=Qwen/Qwen2.5-{size.upper()}",
        )
        for size in ("0.5b", "1.5b")
    },
    **{
        f"open_reasoner_zero.{name}.released": (
            f"Open-Reasoner-Zero, {name}, as the released code trains it: its prompt, its box, its clipped value loss.",
            f"open_reasoner_zero.{name}", *RELEASED,
        )
        for name in ("0.5b", "1.5b", "7b", "32b", "r1_distill_14b")
    },
    "open_reasoner_zero.7b_grpo.released": (
        "Open-Reasoner-Zero-7B with GRPO as the released code divides: by 1, then over all tokens.",
        "open_reasoner_zero.7b_grpo", *PROMPT, "algorithm.advantage.normalization=token_std",
        "algorithm.advantage.eps=1e-8",
    ),
    "open_reasoner_zero.7b.exact_match": (
        "Open-Reasoner-Zero-7B with a reward of 1 only for the reference character by character (Section 2.3).",
        "open_reasoner_zero.7b", 'verifier={piece="ExactMatch", extract="answer_tag", require_stop=true}',
    ),
}  # fmt: skip
