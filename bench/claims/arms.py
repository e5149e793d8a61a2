"""The arms of the experiments: a recipe in its tiny form, and what an arm changes of it.

Most arms change one thing of `base`: GRPO as Skywork-OR1 runs it (groups without variance left out, every token alike),
strictly on-policy, without KL or entropy term, from the embedded base. 16 steps of 16 prompts × 8 completions take it
from a held-out pass rate of about a quarter to about three quarters. Claims share arms: `base` serves most of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    """`recipe` in its tiny form with the settings of `COMMON` and then `sets`; `about` says what is different."""

    about: str
    sets: tuple[str, ...] = ()
    recipe: str = "grpo"

    def config(self, seed: int) -> RunConfig:
        """What is run."""
        own = BASE if self.recipe == "grpo" else ()
        return resolve(self.recipe, [*COMMON, *own, *self.sets, f"seed={seed}"], small=True)


def _updates(count: int, *sets: str) -> tuple[str, ...]:
    return (f"batch.updates_per_step={count}", *sets)


def _split(*sets: str) -> tuple[str, ...]:
    """Eight updates a step at OPEFO's learning rate for them."""
    return _updates(UPDATES, f"optim.lr={SPLIT_RATE:.4g}", *sets)


def _loss(text: str) -> str:
    return f"algorithm.loss={{{text}}}"


def _term(text: str) -> str:
    return f"algorithm.regularizers=[{{{text}}}]"


def _two_stages(beta: float) -> tuple[str, ...]:
    """A policy that has left its reference, and then a KL loss of weight `beta`: Ablation 5 of Skywork-OR1."""
    stages = f'stages=[{{steps={STAGE_ONE}}}, {{set={{"algorithm.regularizers"=[{{{_kl(beta)}}}]}}}}]'
    return "steps=32", _term(_kl(AWAY_BETA)), stages


def _plain_end(*sets: str) -> str:
    """A last step without length control: it is by this stage's sampling that every evaluation of the run goes."""
    return f"stages=[{{steps={STEPS - 1}}}, {{set={{{', '.join(sets)}}}}}]"


def _pipeline(k: int, *sets: str) -> tuple[str, ...]:
    """PipelineRL-k in one process, with room for all that may be begun."""
    return f"orchestration.max_lag={k}", "engine.slots=512", *IN_TURN, *sets


def _capped(cap: float) -> tuple[str, ...]:
    """Twice the learning rate, so that ratios come to the caps within the run."""
    return _pipeline(8, _loss(f'piece="Cispo", max_ratio={cap}'), f"optim.lr={2 * LEARNING_RATE:.0e}")


def _kl(beta: float) -> str:
    return f'piece="KlPenalty", beta={beta}'


def _adaptive(delta: float = 0.2) -> str:
    return _term(f'piece="AdaptiveEntropy", target={ADAPTIVE_TARGET}, delta={delta}, maximum=5.0')


def _archer_kl(beta: float) -> str:
    return _term(f'piece="KlPenalty", estimator="k3", beta={beta}, beta_reasoning=0.0, clamp=10.0')


def _heads(whole: bool) -> tuple[str, str]:
    """Whether both sides compute logits in float32."""
    text = str(whole).lower()
    return f"model.trainer_fp32_head={text}", f"model.generator_fp32_head={text}"


BF16 = ("model.dtype=bfloat16", "steps=6", "evaluation.every=6")
SHORT = 30  # tokens: too few for about half of the sums worked out in full, which take 26 to 36
HIGHER = ("algorithm.loss.clip_high=0.28",)
IN_PROCESS = "orchestration.executor=in_process"  # so that a run can be repeated bit for bit
IN_TURN = ("evaluation.asynchronous=false", "orchestration.window=full", IN_PROCESS)  # a window is the workers'
# Three passes over a batch, with the bounds of Archer's script: one pass over so few steps clips next to nothing.
ARCHER = (
    "steps=8", "evaluation.every=2", "batch.passes_per_batch=3", "algorithm.loss.dual_clip=10.0",
    "algorithm.loss.log_ratio_limit=20.0", "algorithm.selection.refill=false", _archer_kl(0.001),
)  # fmt: skip
LONG = ("steps=32", "evaluation.every=2")
DISTILLED = ("evaluation.every=2", "batch.samples_per_prompt=8")
LATER = ("steps=24", "evaluation.every=2")  # a bonus of 1 leaves nothing to learn from about step 30 on
STAGE_ONE, AWAY_BETA = 12, 0.1
ADAPTIVE_TARGET = 0.1
CAP = 4.0  # the smaller of CISPO's caps
ROOM = 44  # tokens: enough for every sum
CONTROLLED = (
    "orchestration.max_lag=0", IN_PROCESS, "engine.slots=64", f"sampling.max_new_tokens={ROOM}",
    "algorithm.advantage.batch=survivors",
)  # fmt: skip
LARGE = ("steps=2", "evaluation.every=1", "batch.prompts_per_step=128", *_updates(8))

ARMS: dict[str, Arm] = {
    "base": Arm("GRPO, strictly on-policy"),
    # updates a step (Skywork-OR1 4.4, OPEFO 4 and 6)
    "nsgd2": Arm("2 updates a step", _updates(2)),
    "nsgd4": Arm("4 updates a step", _updates(4)),
    "grpo8": Arm("8 updates a step at 1/√8 of the rate (OPEFO's GRPO)", _split()),
    "opefo": Arm("OPEFO", (_loss('piece="Opefo"'),)),
    "opefo_long": Arm("OPEFO, 24 steps", (_loss('piece="Opefo"'), *LATER)),
    "entropy_reg": Arm(
        "OPEFO's GRPO with an entropy bonus of 1, 24 steps",
        _split(_term('piece="EntropyBonus", coefficient=1.0'), *LATER),
    ),  # fmt: skip
    # KL in a second stage (Skywork-OR1 3.2.6): all arms come to it with the same policy, away from the reference
    "kl0": Arm(f"a KL loss of weight {AWAY_BETA} for {STAGE_ONE} steps, then none", _two_stages(0.0)),
    "kl": Arm("the same, then of weight 1", _two_stages(1.0)),
    "kl_strong": Arm("the same, then of weight 3", _two_stages(3.0)),
    # entropy control (Skywork-OR1 3.2.5, 4.5)
    "adaptive": Arm(
        "4 updates a step with adaptive entropy control, 32 steps", _updates(4, _adaptive(), *LONG)
    ),
    "adaptive_one": Arm("strictly on-policy with adaptive entropy control, 32 steps", (_adaptive(), *LONG)),
    "bonus_low": Arm("a fixed entropy bonus of 0.3", (_term('piece="EntropyBonus", coefficient=0.3'),)),
    "bonus_high": Arm("a fixed entropy bonus of 3", (_term('piece="EntropyBonus", coefficient=3.0'),)),
    # truncated responses (Skywork-OR1 3.2.3)
    "short": Arm(f"{SHORT} tokens", (f"sampling.max_new_tokens={SHORT}",)),
    "short_before": Arm(
        f"{SHORT} tokens, advantages of truncated responses 0, which leave the group's mean and deviation too",
        (f"sampling.max_new_tokens={SHORT}", "algorithm.truncation_mask=zero_before"),
    ),
    "short_after": Arm(
        f"{SHORT} tokens, advantages of truncated responses 0",
        (f"sampling.max_new_tokens={SHORT}", "algorithm.truncation_mask=zero"),
    ),
    # batches and groups (Skywork-OR1 4.3, 5.2; ScaleRL 3.2, A.9)
    "keep": Arm("groups without variance kept", ("algorithm.selection.zero_variance=keep",)),
    "group4": Arm("groups of 4", ("batch.samples_per_prompt=4",)),
    "batch8": Arm("8 prompts a step", ("batch.prompts_per_step=8",)),
    "temp06": Arm("sampled at 0.6, measured at 0.6", ("sampling.temperature=0.6", "evaluation.temperature=0.6")),
    "temp1": Arm("sampled at 1, measured at 0.6", ("evaluation.temperature=0.6",)),
    # the loss (ScaleRL 3.2, A.18; Skywork-OR1 4.5)
    "clip25": Arm("4 updates a step clipped at 0.2 / 0.25", _updates(4, "algorithm.loss.clip_high=0.25")),
    "clip265": Arm("4 updates a step clipped at 0.2 / 0.265", _updates(4, "algorithm.loss.clip_high=0.265")),
    "clip28": Arm("4 updates a step clipped at 0.2 / 0.28", _updates(4, "algorithm.loss.clip_high=0.28")),
    "cispo4": Arm("PipelineRL-8 at twice the learning rate, CISPO capped at 4", _capped(CAP)),
    "cispo8": Arm("the same, CISPO capped at 8", _capped(2 * CAP)),
    "sample_mean": Arm("every sample alike", ("algorithm.aggregation=SampleMean",)),
    "prompt_mean": Arm("every prompt alike", ("algorithm.aggregation=PromptMean",)),
    "batch_std": Arm(
        "advantages over the batch's deviation (ddof 1)", ("algorithm.advantage.normalization=batch_std",)
    ),
    "no_std": Arm("advantages not divided", ("algorithm.advantage.normalization=none",)),
    # λ of OPEFO (6.5)
    "opefo_static": Arm("OPEFO with a constant λ of 0.001", (_loss('piece="Opefo", balance=0.001'),)),
    "opefo_up": Arm("OPEFO on S+ only", (_loss('piece="Opefo", sides="increasing"'),)),
    "opefo_down": Arm("OPEFO on S− only", (_loss('piece="Opefo", sides="decreasing"'),)),
    # precision (ScaleRL 3.2, A.19)
    "bf16": Arm("bfloat16, its heads too", (*BF16, *_heads(False))),
    "bf16_head": Arm("bfloat16 with float32 heads", (*BF16, *_heads(True))),
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
    "nsgd4_wide": Arm("4 updates a step on 4 times the prompts", _updates(4, "batch.prompts_per_step=64")),
    # how far off-policy (ScaleRL 3.1, A.12, A.20)
    "off8": Arm("PPO-off-policy-8, clipped at 0.2 / 0.28", (*LARGE, *IN_TURN, *HIGHER)),
    "pipeline8": Arm("PipelineRL-8, clipped at 0.2 / 0.28", _pipeline(8, *HIGHER)),
    "pipeline4": Arm("PipelineRL-4, clipped at 0.2 / 0.28", _pipeline(4, *HIGHER)),
    # actor-critic (Open-Reasoner-Zero 3.2)
    "gae": Arm("PPO with a critic, λ = 1", (), "open_reasoner_zero.7b.released"),
    "gae95": Arm("PPO with a critic, λ = 0.95", ("algorithm.advantage.lam=0.95",), "open_reasoner_zero.7b.released"),
    "gae_kl_reward": Arm(
        "PPO with a critic, λ = 1, and KL in the reward, weight 0.1",
        ("algorithm.kl_in_reward.beta=0.1",),
        "open_reasoner_zero.7b.released",
    ),  # fmt: skip
    # Archer 4.3
    "archer": Arm("Archer, KL weight 0.001", ARCHER, "archer.math"),
    "archer_kl0": Arm("Archer, KL weight 0", (*ARCHER, _archer_kl(0.0)), "archer.math"),
    "archer_kl5": Arm("Archer, KL weight 0.005", (*ARCHER, _archer_kl(0.005)), "archer.math"),
    "archer_clip0": Arm(
        "Archer, knowledge tokens clipped at 0", (*ARCHER, "algorithm.loss.clip_knowledge=0.0"), "archer.math"
    ),
    **{
        f"archer_{100 * k:02.0f}_{100 * r:02.0f}": Arm(
            f"Archer, knowledge tokens clipped at {k}, reasoning tokens at {r}",
            (*ARCHER, f"algorithm.loss.clip_knowledge={k}", f"algorithm.loss.clip_reasoning={r}"),
            "archer.math",
        )
        for k, r in ((0.1, 0.4), (0.2, 0.4), (0.3, 0.4), (0.2, 0.2), (0.2, 0.6))
    },
    "archer_mask": Arm(
        "Archer, knowledge tokens not trained",
        (*ARCHER, _loss('piece="LowEntropyMask", loss={piece="PpoClip", clip_low=0.5, clip_high=0.5}')),
        "archer.math",
    ),  # fmt: skip
    # equal mini-batches (Skywork-OR1, Ablation 7)
    "on_policy4": Arm(
        "4 prompts a step, one update, 64 steps",
        ("steps=64", "evaluation.every=16", "batch.prompts_per_step=4", "engine.slots=32"),
    ),  # fmt: skip
    # length (ScaleRL A.11): a few completions in a hundred are interrupted, penalties begin at about the same length
    "interruption": Arm(
        f"ScaleRL with k = 0 and {ROOM} tokens, thinking interrupted after 30 to 38",
        (
            *CONTROLLED,
            f"sampling.thinking_tokens={ROOM - 5}",
            "sampling.interruption.after=[30, 38]",
            _plain_end(*(f'"sampling.{key}"="none"' for key in ("interruption", "thinking_tokens", "answer_tokens"))),
        ),
        "scalerl",
    ),
    "penalty": Arm(
        f"the same, a length penalty that grows from {ROOM - 12} to {ROOM} tokens for interruptions",
        (
            *CONTROLLED,
            f'algorithm.shaping=[{{piece="LengthPenalty", max_tokens={ROOM}, cache_tokens=12}}]',
            "sampling.end_of_thinking='\\boxed{'",
            _plain_end('"algorithm.shaping"=[]'),
        ),
        "scalerl.loo_lp",
    ),
    # distillation, on as many completions a step; the base that a solution helps is another one
    "distill": Arm("distillation from a teacher that hardly guesses", DISTILLED, "distill"),
    "distill_top": Arm("the same by the exact KL of the next token, as a loss", DISTILLED, "distill.top_k"),
    "self_distill": Arm("distillation from itself, the answer in its prompt", DISTILLED, "self_distill"),
    "rl_hinted": Arm("GRPO from the base of `self_distill`", ("model.path=embedded-hinted",)),
    # long enough for a curve (ScaleRL 2.1, A.4), measured well
    "long": Arm("GRPO, strictly on-policy, 32 steps", LONG),
    "long4": Arm("4 updates a step, 32 steps", _updates(4, *LONG)),
}
