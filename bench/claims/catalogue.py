"""The claims: what a paper says, quoted briefly, and what of our runs would show it.

Of every claim the arms, what is measured, what the claim says of it, the smallest effect of interest and what the arms
must show were written down before the runs were made. Pass rates are fractions, ratios natural logarithms.
"""

from __future__ import annotations

from functools import partial

from bench.claims.analysis import LOG_MARGIN
from bench.claims.arms import ADAPTIVE_TARGET, ARMS, STAGE_ONE
from bench.claims.claim import LATE_ENTROPY, LATE_PASS, Choice, Claim, entropies, passes
from bench.claims.measures import ENTROPY, PASS
from bench.claims.mechanisms import exceeds, held, stays

from bench.claims import measures as m
from bench.claims import timing

# fmt: off

COURSE = m.course(PASS)


def _steadier(name: str, quote: str, other: str, opefo: str = "opefo") -> Claim:
    words = f"mean |log H_t / H_0|, `{other}` − `{opefo}`"
    effect = m.minus(m.unsteadiness, other, opefo)
    choice = None if other == "base" else METHOD
    return Claim(
        name, "OPEFO 6.3", quote, (opefo, other), words, effect, "above", LOG_MARGIN, "log ratio", choice=choice
    )


STEADY = "“OPEFO maintains a smooth and stable entropy trajectory”"
SLOWS = "“experiments with N_SGD ∈ {2, 4} exhibit faster policy convergence”"
BETTER = "“Ultimately, the on-policy update … achieves superior test performance”"
UPDATES, PROMPTS, RATE = "batch.updates_per_step", "batch.prompts_per_step", "optim.lr"
METHOD = Choice(
    "the method: OPEFO strictly on-policy, or a baseline with several updates a step (OPEFO, Table 1)",
    frozenset({"algorithm.loss", "algorithm.regularizers", UPDATES, RATE}),
)
SPLIT = Choice(
    "the split of a step: one update, or eight at 1/√8 of its learning rate (OPEFO, footnote 2)",
    frozenset({UPDATES, RATE}),
)
ROLLOUT_BATCH = Choice("the rollout batch, for updates on as many prompts", frozenset({UPDATES, PROMPTS}))
MINI_BATCHES = Choice(
    "the rollout batch, for as many updates on as many prompts", frozenset({UPDATES, PROMPTS, "steps"})
)
SCHEDULE = Choice(
    "the schedule of as many updates on as many prompts: generated eight updates ahead at most, or eight at once",
    frozenset({UPDATES, PROMPTS, "steps", "orchestration.max_lag"}),
)
LENGTH_CONTROL = Choice(
    "the length control: interruptions with what they need, or a penalty; neither in their last step",
    frozenset(
        stage + name
        for stage in ("", "stages.1.set.")
        for name in ("algorithm.shaping", *(f"sampling.{key}" for key in ("answer_tokens", "interruption",
                     "thinking_tokens")))
    ),
)
TEACHER = Choice(
    "the method: a token is credited with what a teacher thinks of it, or with whether the answer is right",
    frozenset({"algorithm.advantage", "algorithm.kl_in_reward", "algorithm.loss", "algorithm.reference.path",
               "algorithm.reference.prompt", "algorithm.regularizers", "algorithm.selection.zero_variance",
               "optim.weight_decay", "steps"}),
)  # fmt: skip
REACHED = 0.6  # a pass rate
HEADS = Choice("the heads of both sides", frozenset({"model.generator_fp32_head", "model.trainer_fp32_head"}))


def _updates() -> list[Claim]:
    return [
        entropies("on-policy-slows-collapse-2", "Skywork-OR1 4.4", SLOWS, "base", "nsgd2"),
        entropies("on-policy-slows-collapse-4", "Skywork-OR1 4.4", SLOWS, "base", "nsgd4"),
        entropies(
            "on-policy-collapses-alike", "OPEFO 4",
            "GRPO of 8 updates and strict on-policy: “Both curves exhibit highly similar dynamics”",
            "base", "grpo8", "same",
        )._replace(choice=SPLIT),
        passes("on-policy-passes-more", "Skywork-OR1 4.4", BETTER, "base", "nsgd4"),
        Claim(
            "on-policy-passes-more-later", "Skywork-OR1 4.4", BETTER + " “when … training steps is sufficiently large”",
            ("long", "long4"), "late pass rate of 32 steps, `long` − `long4`", m.minus(LATE_PASS, "long", "long4"),
        ),
        passes(
            "on-policy-beats-split", "OPEFO 6.2",
            "“a clear and consistent empirical advantage of the strict on-policy setting”", "base", "grpo8",
        )._replace(choice=SPLIT),
        entropies(
            "equal-mini-batch-entropy", "Skywork-OR1 4.4, Ablation 7",
            "on-policy with the smaller D_T: “premature entropy collapse does not occur”", "on_policy4", "nsgd4",
        )._replace(choice=MINI_BATCHES),
        passes(
            "equal-mini-batch-passes", "Skywork-OR1 4.4, Ablation 7",
            "“the on-policy update outperforms the off-policy update with the same D_T”", "on_policy4", "nsgd4",
        )._replace(choice=MINI_BATCHES),
        entropies(
            "larger-rollout-batch-collapses", "Skywork-OR1 4.4, Figure 18",
            "N_SGD = 4 with 4 times the D_R: “premature entropy collapse not only still occurs”", "base", "nsgd4_wide",
        )._replace(choice=ROLLOUT_BATCH),
        entropies(
            "larger-rollout-batch-is-no-slower", "Skywork-OR1 4.4, Figure 18",
            "against the smaller D_R it “may even do so more rapidly”", "nsgd4_wide", "nsgd4", "not above",
        ),
        passes(
            "rollout-batch-passes-more", "Skywork-OR1 5.2, Ablation 11",
            "a larger D_R “can lead to better test performance”", "base", "batch8",
        ),
    ]


def _opefo() -> list[Claim]:
    better = "“OPEFO further improves performance over strict on-policy GRPO”"
    best = "one-sided and static λ “consistently underperform” OPEFO"
    positive = "“Overall, λ* remains positive throughout training”"
    return [
        _steadier("opefo-steadier-than-grpo", f"{STEADY}; GRPO collapses", "grpo8"),
        _steadier("opefo-steadier-than-on-policy", f"{STEADY}; strict on-policy GRPO collapses", "base"),
        _steadier(
            "opefo-steadier-than-entropy-reg", f"{STEADY}; the bonus: “uncontrolled growth”", "entropy_reg",
            "opefo_long",
        ),
        _steadier("opefo-steadier-than-clip-higher", f"{STEADY}; clip-higher oscillates", "clip28"),
        passes("opefo-passes-more", "OPEFO 6.2", better, "opefo", "base"),
        Claim(
            "opefo-lambda-positive", "OPEFO 6.5", positive, ("opefo",), "smallest λ* of any step of `opefo`",
            m.of(m.smallest("opefo/lambda"), "opefo"), "above", 0.0, "λ",
        ),
        Claim(
            "grpo-flow-negative", "OPEFO 4",
            "“entropy-decreasing updates consistently outweigh entropy-increasing ones”", ("base",),
            "mean λ* that would balance the steps of `base`", m.of(m.mean("entropy_flow/lambda"), "base"),
            "above", 0.0, "λ",
        ),
        passes("opefo-beats-static", "OPEFO 6.5", best, "opefo", "opefo_static"),
        passes("opefo-beats-increasing", "OPEFO 6.5", best, "opefo", "opefo_up"),
        passes("opefo-beats-decreasing", "OPEFO 6.5", best, "opefo", "opefo_down"),
    ]


def _entropy_control() -> list[Claim]:
    sensitive = "“the entropy loss is highly sensitive” to the coefficient"
    return [
        Claim(
            "adaptive-keeps-target", "Skywork-OR1 3.2.5", "“the current entropy remains lower-bounded by the target”",
            ("adaptive_one", "long"),
            "log of the target over sampled entropy of the last quarter of `adaptive_one`, strictly on-policy",
            m.log_over(ADAPTIVE_TARGET, m.last_quarter("entropy/sampled"), "adaptive_one"),
            "not above", LOG_MARGIN, "log ratio", compared=(held("long"),),
        ),
        entropies(
            "adaptive-prevents-collapse", "Skywork-OR1 4.5, Ablation 9", "“successfully prevents entropy collapse”",
            "adaptive", "long4",
        )._replace(compared=(held("long4"),)),
        passes(
            "adaptive-passes-more", "Skywork-OR1 4.5, Ablation 9", "“and results in higher test performance”",
            "adaptive", "long4",
        )._replace(compared=(held("long4"),)),
        Claim(
            "coefficient-is-sensitive", "Skywork-OR1 4.5, Ablation 8", sensitive, ("bonus_low", "bonus_high"),
            "log of late held-out entropy, `bonus_high` / `bonus_low`",
            m.log_ratio(LATE_ENTROPY, "bonus_high", "bonus_low"), "above", 0.7, "log ratio",
        ),
        Claim(
            "coefficient-high-explodes", "Skywork-OR1 4.5, Ablation 8",
            "a high coefficient: “the entropy eventually rises sharply”",
            ("bonus_high",), "log of late over first held-out entropy of `bonus_high`",
            m.of(m.ratio_log(LATE_ENTROPY, m.first(ENTROPY)), "bonus_high"), "above", LOG_MARGIN, "log ratio",
        ),
        Claim(
            "coefficient-low-collapses", "Skywork-OR1 4.5, Ablation 8", "a low one: “it still collapses”",
            ("bonus_low", "base"), "log of first over late held-out entropy of `bonus_low`",
            m.of(m.ratio_log(m.first(ENTROPY), LATE_ENTROPY), "bonus_low"), "above", LOG_MARGIN, "log ratio",
            compared=(exceeds("bonus_low", "base"),),
        ),
    ]


def _sampling() -> list[Claim]:
    """Batches, groups, temperature."""
    return [
        Claim(
            "batch-size-same-entropy", "ScaleRL A.13",
            "two batch sizes: “nearly identical entropy trajectories per step”",
            ("base", "batch8"), "log of held-out entropy over the course, `base` / `batch8`",
            m.log_ratio(m.course(ENTROPY), "base", "batch8"), "same", LOG_MARGIN, "log ratio",
        ),
        Claim(
            "batch-size-passes-more", "ScaleRL A.13", "the larger one “achieving much stronger” performance per step",
            ("base", "batch8"), "pass rate over the course, `base` − `batch8`", m.minus(COURSE, "base", "batch8"),
        ),
        entropies(
            "group-size-same-entropy", "Skywork-OR1 4.3", "group size “has only a minor effect on entropy dynamics”",
            "base", "group4", "same",
        ),
        passes(
            "group-size-passes-more", "Skywork-OR1 5.2, Ablation 12",
            "a larger group “can lead to a better test performance”", "base", "group4",
        ),
        Claim(
            "temperature-low-entropy", "Skywork-OR1 3.2.4", "at 0.6 “the model … begins with extremely low entropy”",
            ("temp1", "temp06"), "log of sampled entropy of the first 4 steps, `temp1` / `temp06`",
            m.log_ratio(m.first("entropy/sampled", 4), "temp1", "temp06"), "above", LOG_MARGIN, "log ratio",
        ),
        passes(
            "temperature-passes-more", "Skywork-OR1 3.2.4",
            "at 0.6 it “learns more slowly than at a temperature of 1.0”", "temp1", "temp06",
        ),
    ]


def _kl() -> list[Claim]:
    harm = "“The KL penalty hinders further improvements”"

    def pulls(name: str, quote: str, arm: str) -> Claim:
        words = f"log of KL to the reference where the second stage begins over that of the last quarter, `{arm}`"
        fall = m.ratio_log(m.at("kl/penalised", STAGE_ONE + 1), m.last_quarter("kl/penalised"))
        return Claim(
            name, "Skywork-OR1 3.2.6", quote, ("kl0", arm), words, m.of(fall, arm), "above", LOG_MARGIN, "log ratio",
            compared=(stays("kl0", fall),),
        )

    needed = "without it “model entropy drops rapidly”, performance “falls below” even DAPO"
    return [
        pulls("kl-pulls-back", "“strongly pulls the actor model's policy back toward the reference”", "kl"),
        pulls("kl-strong-pulls-back", "the same with a weight of 3", "kl_strong"),
        passes("kl-loss-harms", "Skywork-OR1 3.2.6", harm, "kl0", "kl"),
        passes("kl-strong-harms", "Skywork-OR1 3.2.6", harm + ", with a weight of 3", "kl0", "kl_strong"),
        passes("kl-reward-harms", "Open-Reasoner-Zero 3.2", "“Both KL Loss and KL Penalty … slow down the training”",
                "gae", "gae_kl_reward"),
        passes("archer-kl-is-needed", "Archer 4.3.1", needed, "archer", "archer_kl0"),
        entropies("archer-kl-keeps-entropy", "Archer 4.3.1", needed, "archer", "archer_kl0"),
        passes("archer-kl-too-strong", "Archer 4.3.1", "0.005: “slows down learning progress”",
                "archer", "archer_kl5"),
        *_archer_clips(),
        passes("archer-clip-0-is-worse", "Archer 3.2.1", "clip 0 on low-entropy tokens: “learns more slowly”",
                "archer", "archer_clip0"),
        passes("archer-mask-is-worse", "Archer 3.2.1", "“completely excluding … low-entropy tokens is suboptimal”",
                "archer", "archer_mask"),
    ]


def _archer_clips() -> list[Claim]:
    """Table 5 and Figures 6 and 11; arms are named by ε_k and ε_r in hundredths."""
    paper = "Archer 4.3.2"
    best = "ε_k = 0.2 ends higher than 0.1 and 0.3 (28.7 against 24.6 and 26.0)"
    return [
        entropies("archer-wider-knowledge-collapses", paper,
                   "a larger ε_k: “the model's entropy decreases more rapidly”", "archer_10_40", "archer_30_40"),
        Claim(
            "archer-wider-knowledge-learns-faster", paper, "a larger ε_k: “leads to faster learning”",
            ("archer_30_40", "archer_10_40"), "pass rate over the course, `archer_30_40` − `archer_10_40`",
            m.minus(COURSE, "archer_30_40", "archer_10_40"),
        ),
        passes("archer-knowledge-20-over-10", paper, best, "archer_20_40", "archer_10_40"),
        passes("archer-knowledge-20-over-30", paper, best, "archer_20_40", "archer_30_40"),
        passes("archer-reasoning-is-insensitive", paper,
                "“much less sensitive to … the clip threshold for high-entropy tokens”",
                "archer_20_60", "archer_20_20", "same"),
        entropies("archer-wider-reasoning-collapses", paper,
                   "a larger ε_r: “a slightly faster reduction in entropy”", "archer_20_20", "archer_20_60"),
    ]


def _lengths() -> list[Claim]:
    mask, between = "Adv-Mask-Before: “the clip ratio increases steadily”", "Adv-Mask-After: “an intermediate point”"
    truncated = m.last_quarter("truncation_rate")
    paper = "Skywork-OR1 3.2.3, Ablation 3"

    def more(name: str, quote: str, one: str, other: str) -> Claim:
        words = f"truncation rate of the last quarter, `{one}` − `{other}`"
        return Claim(name, paper, quote, (one, other), words, m.minus(truncated, one, other), unit="share")

    return [
        more("mask-before-truncates", mask, "short_before", "short"),
        more("mask-after-between-1", between, "short_before", "short_after"),
        more("mask-after-between-2", between, "short_after", "short"),
        passes("mask-before-passes-less", paper, "“the overall training accuracy continues to decline”",
                "short", "short_before"),
        passes("stages-reach-as-much", "Skywork-OR1 3.2.2", "staged context “reaches the same level”",
                "staged", "base", "same"),
        Claim(
            "stages-spend-less", "Skywork-OR1 3.2.2", "“significantly improving token efficiency”", ("base", "staged"),
            "log of tokens generated, `base` / `staged`", m.log_ratio(m.total("tokens/generated"), "base", "staged"),
            "above", 0.05, "log ratio",
        ),
        passes(
            "penalty-does-not-help", "ScaleRL A.11",
            "“replacing interruption with length penalty … does not improve performance”", "penalty", "interruption",
            "not above",
        )._replace(choice=LENGTH_CONTROL),
    ]


def _scalerl() -> list[Claim]:
    section = "ScaleRL 3.2"
    cap, high = "CISPO's cap: “little difference in performance”", "“ε_max fundamentally changes … A”"
    ablation, prevents = "Skywork-OR1 4.5, Ablation 10", "“can prevent premature entropy collapse”"
    better = "“and lead to better test performance”"
    average, similar = "“prompt-average achieves the highest” pass rate", "normalisations “yield similar performance”"
    off = m.minus(m.last(PASS), "pipeline8", "off8")
    return [
        passes("zero-variance-filter", section, "“using the effective batch performs better”", "base", "keep"),
        passes("no-positive-resampling", section, "“improves scalability and the asymptotic reward”",
                "few_npr", "few"),
        passes("cispo-cap-4-and-8", "ScaleRL A.18.2", cap, "cispo8", "cispo4", "same"),
        passes("dapo-clip-28", "ScaleRL A.18.1", high, "clip28", "nsgd4", "apart"),
        entropies("clip-25-slows-collapse", ablation, f"a higher clip ratio of 0.25 {prevents}", "clip25", "nsgd4"),
        entropies("clip-265-slows-collapse", ablation, f"the same of 0.265: {prevents}", "clip265", "nsgd4"),
        passes("clip-25-passes-more", ablation, f"0.25: {better}", "clip25", "nsgd4"),
        passes("clip-265-passes-more", ablation, f"0.265: {better}", "clip265", "nsgd4"),
        entropies("clip-28-raises-entropy", ablation, "at 0.28 “entropy rises sharply”", "clip28", "nsgd4"),
        passes("prompt-mean-over-sample-mean", section, average, "prompt_mean", "sample_mean"),
        passes("prompt-mean-over-token-mean", section, average, "prompt_mean", "base"),
        passes("batch-deviation", section, similar, "batch_std", "base", "same"),
        passes("no-deviation", section, similar, "no_std", "base", "same"),
        Claim(
            "fp32-head-mismatch", "ScaleRL A.19", "the FP32 head “makes the ratio much more accurate”",
            ("bf16", "bf16_head"), "log of mean |log-prob trainer − generator|, `bf16` / `bf16_head`",
            m.log_ratio(m.mean("mismatch/mean"), "bf16", "bf16_head"), "above", LOG_MARGIN, "log ratio", HEADS,
        ),
        Claim(
            "pipeline-per-update", "ScaleRL A.20",
            "PipelineRL and PPO-off-policy: “the performance gains per step is similar”",
            ("pipeline8", "off8"), "pass rate after 16 updates, `pipeline8` − `off8`", off, "same", choice=SCHEDULE,
        ),
        Claim(
            "pipeline-faster-per-update", "ScaleRL 3.1",
            "PipelineRL “reduces the amount of idle time in the training process”", ("pipeline8",),
            "log of simulated seconds an update, PPO-off-policy-8 / PipelineRL-8", timing.schedule_gain("pipeline8"),
            "above", LOG_MARGIN, "log ratio",
        ),
        Claim(
            "pipeline-reaches-half-sooner", "ScaleRL 3.1", "PipelineRL “reaching the ceiling A faster”",
            ("pipeline8", "off8"), "log of simulated seconds to a pass rate of 0.5, `off8` / `pipeline8`",
            timing.sooner("pipeline8", "off8", 0.5), "above", LOG_MARGIN, "log ratio", SCHEDULE,
        ),
        passes("pipeline-4-and-8", "ScaleRL A.12", "“4 and 8 off-policyness performed equally well”",
                "pipeline8", "pipeline4", "same"),
        passes("gae-lambda-1", "Open-Reasoner-Zero 3.2", "λ = 1 “consistently outperforming” 0.95", "gae", "gae95"),
    ]


def _distillation() -> list[Claim]:
    """One update of 128 completions a step in every arm, so that updates count completions."""
    steps = "on-policy distillation takes a seventh to a tenth of RL's steps"
    tokens = "“8-12× token efficiency compared to reinforcement learning methods such as GRPO”"
    return [
        Claim(
            f"{name}-sooner", paper, quote, (arm, rl),
            f"log of completions until a pass rate of {REACHED}, `{rl}` / `{arm}`",
            m.log_ratio(partial(timing.updates_until, rate=REACHED), rl, arm), "above", LOG_MARGIN, "log ratio",
            choice=TEACHER,
        )
        for name, paper, quote, arm, rl in (
            ("distillation", "Thinking Machines 2025", steps, "distill", "base"),
            ("top-k-distillation", "Thinking Machines 2025", steps, "distill_top", "base"),
            ("self-distillation", "OPSD 2601.18734", tokens, "self_distill", "rl_hinted"),
        )
    ]  # fmt: skip


CLAIMS: dict[str, Claim] = {
    claim.name: claim
    for group in (_updates, _opefo, _entropy_control, _sampling, _kl, _lengths, _scalerl, _distillation)
    for claim in group()
}
assert all(arm in ARMS for claim in CLAIMS.values() for arm in claim.arms)
