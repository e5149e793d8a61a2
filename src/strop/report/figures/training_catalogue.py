"""Which metrics make a chart of a report, under which heading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Scale = Literal["plain", "percent", "log", "zero"]


class Curves(NamedTuple):
    """A chart of metrics against the step; `lines` are what each metric is called in it."""

    key: str
    title: str
    scale: Scale
    caption: str
    lines: Mapping[str, str]


# fmt: off
GROUPS: dict[str, tuple[Curves, ...]] = {
    "Learning": (
        Curves(
            "training-pass-rate", "Pass rate in training", "percent",
            "Share of the rollouts of each step that are right, a score of 1.",
            {"pass_rate": "all completions", "pass_rate/whole": "not truncated"},
        ),
        Curves("reward", "Reward", "plain", "Mean shaped reward.", {"reward/mean": "reward"}),
        Curves("loss", "Loss", "plain", "A policy-gradient loss says little by its value.", {"loss": "loss"}),
        Curves(
            "gradient", "Gradient norm", "zero", "Before clipping.",
            {"grad_norm": "policy", "critic/grad_norm": "critic"},
        ),
        Curves("learning-rate", "Learning rate", "zero", "", {"lr": "policy", "critic/lr": "critic"}),
    ),
    "Exploration": (
        Curves(
            "entropy", "Entropy", "zero",
            "Nats a token: over the whole vocabulary, its sampled estimate (mean of −log p), the same held out.",
            {"entropy": "full", "entropy/sampled": "sampled", "evaluation/entropy": "held out"},
        ),
        Curves(
            "entropy-flow", "Entropy flow", "plain",
            "Sums of ΔH (OPEFO, Eq. 6) over tokens that raise and that lower the entropy.",
            {"entropy_flow/positive": "raises", "entropy_flow/negative": "lowers",
             "entropy_flow/clipped_high": "clipped above", "entropy_flow/clipped_low": "clipped below"},
        ),
        Curves(
            "entropy-lambda", "Balance λ*", "plain", "What it would take to balance the two (OPEFO, Eq. 9).",
            {"entropy_flow/lambda": "λ*", "opefo/lambda": "applied"},
        ),
        Curves(
            "covariance", "Covariance of advantage and log π", "plain",
            "Positive where what is likely is rewarded: entropy falls.",
            {"covariance": "covariance"},
        ),
        Curves(
            "zero-variance", "Groups without signal", "percent", "Groups whose rollouts all have the same score.",
            {"groups/zero_variance_share": "zero variance"},
        ),
    ),
    "Completions": (
        Curves(
            "length", "Completion length", "zero", "Tokens, of all completions of a step.",
            {"length/mean": "mean", "length/p50": "median", "length/p90": "90 %", "length/max": "longest"},
        ),
        Curves(
            "length-correct", "Length by outcome", "zero", "Mean tokens of correct and of reflective completions.",
            {"length/correct": "correct", "length/reflective": "reflective"},
        ),
        Curves(
            "truncation", "Truncation and form", "percent",
            "Ended by the token budget; without an answer; neither proved right nor wrong; interrupted.",
            {
                "truncation_rate": "truncated",
                "unparsed_rate": "no answer",
                "unknown_rate": "undecided",
                "interruption/share": "interrupted",
            },
        ),
        Curves(
            "reflection", "Reflection", "percent",
            "Completions with one of five patterns (wait, recheck, retry, alternatively, however).",
            {"reflection/share": "reflective"},
        ),
        Curves(
            "repetition", "Repetition", "percent", "Completions in which 20 tokens in a row recur, and repeated text.",
            {"repetition/share": "looping", "repetition/ngram20": "20-grams", "repetition/repeatness": "repeatness"},
        ),
    ),
    "Stability": (
        Curves(
            "ratio", "Importance ratio", "log",
            "Trainer to generator, raw: smallest, mean and largest token of a step.",
            {"ratio/mean": "mean", "ratio/min": "smallest", "ratio/max": "largest"},
        ),
        Curves(
            "clipped", "Clipped tokens", "percent", "Tokens whose gradient was cut or capped.",
            {"ratio/clipped_share": "any", "ratio/clipped_high_share": "above", "ratio/clipped_low_share": "below"},
        ),
        Curves(
            "lag", "Staleness", "zero", "Weight versions between sampling and training, over trained tokens.",
            {"lag/mean": "mean", "lag/max": "largest"},
        ),
        Curves(
            "mismatch", "Generator-trainer mismatch", "log",
            "Absolute difference of log-probs of the same token, nats.",
            {"mismatch/mean": "mean", "mismatch/max": "largest"},
        ),
        Curves(
            "kl", "KL to the reference", "plain", "k3 and k1 estimates, nats a token.",
            {"kl/reference": "k3", "kl/reference_k1": "k1"},
        ),
        Curves(
            "explained-variance", "Critic: explained variance", "plain",
            "1 − Var(return − value) / Var(return); 1 is perfect, 0 is no better than a constant.",
            {"value/explained_variance": "explained variance"},
        ),
        Curves(
            "values", "Critic: values and returns", "plain", "Means over trained tokens.",
            {"value/mean": "value", "value/target": "return"},
        ),
        Curves(
            "credit", "Advantage of repetitive tokens", "plain",
            "As trained, and as GRPO would have given it (Open-Reasoner-Zero, Figure 5).",
            {"repetition/advantage": "as trained", "repetition/advantage_grpo": "GRPO"},
        ),
    ),
    "Time and compute": (
        Curves(
            "speed", "Tokens a second", "zero", "Generated tokens over the seconds of a step without evaluation.",
            {"tokens_per_second": "tokens/s"},
        ),
        Curves(
            "device-seconds", "Device-seconds so far", "zero", "Of GPUs, or of cores where there are none.",
            {"compute/device_seconds": "all", "compute/generator_seconds": "generator",
             "compute/trainer_seconds": "trainer"},
        ),
        Curves(
            "flops", "Estimated FLOPs so far", "zero", "2 a parameter and token generated or injected, 6 packed.",
            {"compute/flops": "FLOPs"},
        ),
        Curves(
            "packing", "Packing efficiency", "percent", "How full micro-batches are.",
            {"packing_efficiency": "efficiency"},
        ),
    ),}
# fmt: on
