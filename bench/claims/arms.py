"""The arms of the experiments: a recipe in its tiny form, and what an arm changes of it.

Most arms change one thing of `base`: GRPO as Skywork-OR1 runs it (groups without variance left out, every token alike),
strictly on-policy, without KL or entropy term, from the embedded base. 16 steps of 16 prompts × 8 completions take it
from a held-out pass rate of about a quarter to about three quarters. Claims share arms: `base` serves most of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.claims import loops
from strop.config.schema import RunConfig
from strop.recipes.resolve import resolve

STEPS, EVERY, UPDATES = 16, 4, 8
LEARNING_RATE = 3e-4
# OPEFO, footnote 2: the learning rate of one update of a whole batch against those of eight of its parts.
SPLIT_RATE = LEARNING_RATE / math.sqrt(UPDATES)

COMMON = (
    f"steps={STEPS}", "model.dtype=float32", "checkpoint.every=1000", "checkpoint.keep_best=false",
    f"evaluation.every={EVERY}", "evaluation.samples_per_problem=2", "evaluation.temperature=1.0",
    "evaluation.top_p=1.0", "data.held_out.source.count=128",
)  # fmt: skip
BASE = ("algorithm.aggregation=TokenMean", "algorithm.selection.zero_variance=drop")


@dataclass(frozen=True)
class Arm:
    """`recipe` in its tiny form with the settings of `COMMON` and then `sets`; `about` says what is different.

    `weight` is about how many times the seconds of `base` a run takes; `loops`: it starts from the base that falls into
    loops (`bench.claims.loops`), not from the embedded base itself.
    """

    about: str
    sets: tuple[str, ...] = ()
    recipe: str = "grpo"
    weight: float = 1.0
    loops: bool = False

    def config(self, seed: int) -> RunConfig:
        """What is run."""
        own = BASE if self.recipe == "grpo" else ()
        start = (f"model.path={loops.folder(seed)}",) if self.loops else ()
        return resolve(self.recipe, [*COMMON, *own, *start, *self.sets, f"seed={seed}"], small=True)

    def prepare(self, seed: int) -> None:
        """Make what a run starts from, where that is not done by the run itself."""
        if self.loops:
            loops.make(seed)


def _updates(count: int, *sets: str) -> tuple[str, ...]:
    return (f"batch.updates_per_step={count}", *sets)


def _split(*sets: str) -> tuple[str, ...]:
    """Eight updates a step at OPEFO's learning rate for them."""
    return _updates(UPDATES, f"optim.lr={SPLIT_RATE:.4g}", *sets)


def _loss(text: str) -> str:
    return f"algorithm.loss={{{text}}}"


def _term(text: str) -> str:
    return f"algorithm.regularizers=[{{{text}}}]"


def _archer_kl(beta: float) -> str:
    return _term(f'piece="KlPenalty", estimator="k3", beta={beta}, beta_reasoning=0.0, clamp=10.0')


def _heads(whole: bool) -> tuple[str, str]:
    """Whether both sides compute logits in float32."""
    text = str(whole).lower()
    return f"model.trainer_fp32_head={text}", f"model.generator_fp32_head={text}"


BF16 = ("model.dtype=bfloat16", "steps=6", "evaluation.every=6")
SHORT = 30  # tokens: too few for about half of the sums worked out in full, which take 26 to 36
PIPELINE = ("algorithm.loss.clip_high=0.28", "evaluation.asynchronous=false")
ARCHER = ("steps=8", "evaluation.every=2")
LONG = ("steps=32", "evaluation.every=2")
LARGE = ("steps=2", "evaluation.every=1", "batch.prompts_per_step=128", *_updates(8))

ARMS: dict[str, Arm] = {
    "base": Arm("GRPO, strictly on-policy"),
    # updates a step (Skywork-OR1 4.4, OPEFO 4 and 6)
    "nsgd2": Arm("2 updates a step", _updates(2)),
    "nsgd4": Arm("4 updates a step", _updates(4)),
    "grpo8": Arm("8 updates a step at 1/√8 of the rate (OPEFO's GRPO)", _split()),
    "opefo": Arm("OPEFO", (_loss('piece="Opefo"'),)),
    "entropy_reg": Arm("OPEFO's GRPO with an entropy bonus of 0.01", _split(_term('piece="EntropyBonus"'))),
    "clip_higher": Arm("OPEFO's GRPO clipped at 0.2 / 0.28", _split("algorithm.loss.clip_high=0.28")),
    # KL (Skywork-OR1 3.2.6, Open-Reasoner-Zero 3.2)
    "kl0": Arm("a KL term of weight 0, to measure KL", (_term('piece="KlPenalty", beta=0.0'),), weight=1.2),
    "kl": Arm("a KL loss of weight 0.1", (_term('piece="KlPenalty", beta=0.1'),), weight=1.2),
    "kl_strong": Arm("a KL loss of weight 1", (_term('piece="KlPenalty", beta=1.0'),), weight=1.2),
    "kl_reward": Arm("KL in the reward, weight 0.1", ("algorithm.kl_in_reward.beta=0.1",), weight=1.2),
    # entropy control (Skywork-OR1 3.2.5, 4.5)
    "adaptive": Arm(
        "4 updates a step with adaptive entropy control, target 0.2, Δ = 0.05",
        _updates(4, _term('piece="AdaptiveEntropy", target=0.2, delta=0.05, maximum=1.0')),
    ),
    "adaptive_slow": Arm(
        "the same with Δ = 0.005, as the paper's text has it",
        _updates(4, _term('piece="AdaptiveEntropy", target=0.2, delta=0.005, maximum=1.0')),
    ),
    "bonus_low": Arm("a fixed entropy bonus of 0.3", (_term('piece="EntropyBonus", coefficient=0.3'),)),
    "bonus_high": Arm("a fixed entropy bonus of 3", (_term('piece="EntropyBonus", coefficient=3.0'),)),
    # truncated responses (Skywork-OR1 3.2.3)
    "short": Arm(f"{SHORT} tokens", (f"sampling.max_new_tokens={SHORT}",)),
    "short_before": Arm(
        f"{SHORT} tokens, truncated responses masked before the group mean",
        (f"sampling.max_new_tokens={SHORT}", "algorithm.truncation_mask=before"),
    ),
    "short_after": Arm(
        f"{SHORT} tokens, truncated responses masked after the group mean",
        (f"sampling.max_new_tokens={SHORT}", "algorithm.truncation_mask=after"),
    ),
    # batches and groups (Skywork-OR1 4.3, 5.2; ScaleRL 3.2, A.9)
    "keep": Arm("groups without variance kept", ("algorithm.selection.zero_variance=keep",)),
    "group4": Arm("groups of 4", ("batch.samples_per_prompt=4",), weight=0.7),
    "batch8": Arm("8 prompts a step", ("batch.prompts_per_step=8",), weight=0.7),
    "temp06": Arm("sampled at 0.6, measured at 0.6", ("sampling.temperature=0.6", "evaluation.temperature=0.6")),
    "temp1": Arm("sampled at 1, measured at 0.6", ("evaluation.temperature=0.6",)),
    # the loss (ScaleRL 3.2, A.18; Skywork-OR1 4.5)
    "clip25": Arm("4 updates a step clipped at 0.2 / 0.25", _updates(4, "algorithm.loss.clip_high=0.25")),
    "clip265": Arm("4 updates a step clipped at 0.2 / 0.265", _updates(4, "algorithm.loss.clip_high=0.265")),
    "clip28": Arm("4 updates a step clipped at 0.2 / 0.28", _updates(4, "algorithm.loss.clip_high=0.28")),
    "cispo4": Arm("4 updates a step, CISPO capped at 4", _updates(4, _loss('piece="Cispo", max_ratio=4.0'))),
    "cispo8": Arm("4 updates a step, CISPO capped at 8", _updates(4, _loss('piece="Cispo", max_ratio=8.0'))),
    "sample_mean": Arm("every sample alike", ("algorithm.aggregation=SampleMean",)),
    "prompt_mean": Arm("every prompt alike", ("algorithm.aggregation=PromptMean",)),
    "batch_std": Arm(
        "advantages over the batch's deviation",
        ("algorithm.advantage.normalization=batch_std", "algorithm.advantage.ddof=0"),
    ),
    "no_std": Arm("advantages not divided", ("algorithm.advantage.normalization=none",)),
    # λ of OPEFO (6.5)
    "opefo_static": Arm("OPEFO with a constant λ of 0.001", (_loss('piece="Opefo", balance=0.001'),)),
    "opefo_up": Arm("OPEFO on S+ alone", (_loss('piece="Opefo", sides="increasing"'),)),
    "opefo_down": Arm("OPEFO on S− alone", (_loss('piece="Opefo", sides="decreasing"'),)),
    # precision (ScaleRL 3.2, A.19)
    "bf16": Arm("bfloat16, its heads too", (*BF16, *_heads(False)), weight=0.5),
    "bf16_head": Arm("bfloat16 with float32 heads", (*BF16, *_heads(True)), weight=0.5),
    # contexts (Skywork-OR1 3.2.2), few problems (ScaleRL 3.2)
    "staged": Arm(
        f"{SHORT} tokens for the first half",
        (
            f'stages=[{{steps={STEPS // 2}, set={{"sampling.max_new_tokens"={SHORT}}}}}, '
            '{set={"sampling.max_new_tokens"=38}}]',
        ),
    ),  # fmt: skip
    "few": Arm("64 problems, four times", ("data.source.count=64",)),
    "few_npr": Arm(
        "64 problems, those passed by 0.9 not asked again",
        ("data.source.count=64", "algorithm.selection.no_positive_resampling=0.9"),
    ),
    # a larger rollout batch for as many updates (Skywork-OR1 4.4, Figure 18)
    "nsgd4_wide": Arm("4 updates a step on 4 times the prompts", _updates(4, "batch.prompts_per_step=64"), weight=3.5),
    # how far off-policy (ScaleRL 3.1, A.12, A.20)
    "off8": Arm("PPO-off-policy-8, clipped at 0.2 / 0.28", (*LARGE, *PIPELINE)),
    "pipeline8": Arm("PipelineRL-8, clipped at 0.2 / 0.28", ("orchestration.max_lag=8", "engine.slots=512", *PIPELINE)),
    "pipeline4": Arm("PipelineRL-4, clipped at 0.2 / 0.28", ("orchestration.max_lag=4", "engine.slots=512", *PIPELINE)),
    # actor-critic (Open-Reasoner-Zero 3.2)
    "gae": Arm("PPO with a critic, λ = 1", (), "open_reasoner_zero.7b", 2.0),
    "gae95": Arm("PPO with a critic, λ = 0.95", ("algorithm.advantage.lam=0.95",), "open_reasoner_zero.7b", 2.0),
    "gae_loops": Arm(
        f"PPO with a critic, λ = 1, from a base that falls into loops, {loops.LIMIT} tokens",
        (f"sampling.max_new_tokens={loops.LIMIT}",),
        "open_reasoner_zero.7b",
        4.0,
        loops=True,
    ),
    # Archer 4.3
    "archer": Arm("Archer, KL weight 0.001", ARCHER, "archer.math", 1.8),
    "archer_kl0": Arm("Archer, KL weight 0", (*ARCHER, _archer_kl(0.0)), "archer.math", 1.8),
    "archer_kl5": Arm("Archer, KL weight 0.005", (*ARCHER, _archer_kl(0.005)), "archer.math", 1.8),
    "archer_clip0": Arm(
        "Archer, knowledge tokens clipped at 0", (*ARCHER, "algorithm.loss.clip_knowledge=0.0"), "archer.math", 1.8
    ),
    **{
        f"archer_{100 * k:02.0f}_{100 * r:02.0f}": Arm(
            f"Archer, knowledge tokens clipped at {k}, reasoning tokens at {r}",
            (*ARCHER, f"algorithm.loss.clip_knowledge={k}", f"algorithm.loss.clip_reasoning={r}"),
            "archer.math",
            1.8,
        )
        for k, r in ((0.1, 0.4), (0.2, 0.4), (0.3, 0.4), (0.2, 0.2), (0.2, 0.6))
    },
    "archer_mask": Arm(
        "Archer, knowledge tokens not trained",
        (*ARCHER, _loss('piece="LowEntropyMask", loss={piece="PpoClip", clip_low=0.5, clip_high=0.5}')),
        "archer.math",
        1.8,
    ),  # fmt: skip
    # equal mini-batches (Skywork-OR1, Ablation 7)
    "on_policy4": Arm(
        "4 prompts a step, one update, 64 steps",
        ("steps=64", "evaluation.every=16", "batch.prompts_per_step=4", "engine.slots=32"),
        weight=1.8,
    ),  # fmt: skip
    # length (ScaleRL A.11)
    "interruption": Arm("ScaleRL with k = 0", ("orchestration.max_lag=0", "engine.slots=64"), "scalerl"),
    "penalty": Arm(
        "ScaleRL with k = 0, a length penalty for interruptions",
        ("orchestration.max_lag=0", "engine.slots=64"),
        "scalerl.loo_lp",
    ),  # fmt: skip
    # long enough for a curve (ScaleRL 2.1, A.4), measured well
    "long": Arm("GRPO, strictly on-policy, 32 steps", LONG, weight=2.2),
    "long4": Arm("4 updates a step, 32 steps", _updates(4, *LONG), weight=2.2),
}
