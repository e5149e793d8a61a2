"""The list of training curves: which metrics are drawn together, under which title, on which scale.

The page of `strop report`, the figure `plots/training.png` and the dashboard all draw from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

Scale = Literal["plain", "percent", "log", "zero"]


class Curves(NamedTuple):
    """A chart of metrics against the step.

    Attributes:
        key: of the chart, and the name of its file.
        lines: the label of each metric.
        scale: of the y-axis; `zero` begins at 0.
        main: whether the chart is also one of the dashboard and of `plots/training.png`.
        error: the metric that is the standard error of the first one.
    """

    key: str
    title: str
    lines: Mapping[str, str]
    scale: Scale = "plain"
    caption: str = ""
    main: bool = False
    error: str | None = None


# fmt: off
GROUPS: dict[str, tuple[Curves, ...]] = {
    "Learning": (
        Curves("held-out-pass-rate", "Held-out pass rate", {"evaluation/pass_rate": "held out"}, "percent",
               "Mean over problems and samples; the band is one standard error over problems.", main=True,
               error="evaluation/stderr"),
        Curves("training-pass-rate", "Pass rate in training",
               {"pass_rate": "all completions", "pass_rate/whole": "not truncated"}, "percent",
               "Share of the rollouts of each step that are right.", main=True),
        Curves("reward", "Reward", {"reward/mean": "reward"}, "plain", "Mean shaped reward.", main=True),
        Curves("loss", "Loss", {"loss": "loss"}, "plain", "The value of a policy-gradient loss says little.",
               main=True),
        Curves("gradient", "Gradient norm", {"grad_norm": "policy", "critic/grad_norm": "critic"}, "zero",
               "Before clipping.", main=True),
        Curves("learning-rate", "Learning rate", {"lr": "policy", "critic/lr": "critic"}, "zero"),
    ),
    "Exploration": (
        Curves("entropy", "Entropy",
               {"entropy": "full", "entropy/sampled": "sampled", "evaluation/entropy": "held out"}, "zero",
               "Nats per token, over the whole vocabulary; its sampled estimate is the mean of −log p.", main=True),
        Curves("entropy-flow", "Entropy flow",
               {"entropy_flow/net": "net", "entropy_flow/positive": "raises", "entropy_flow/negative": "lowers"},
               "plain",
               "Sums of ΔH (OPEFO, Eq. 6) over the tokens that raise and that lower the entropy, and over all."),
        Curves("clipped-flow", "Entropy flow of clipped tokens",
               {"entropy_flow/clipped_high": "above", "entropy_flow/clipped_low": "below"}, "plain",
               "Sums of ΔH over the tokens clipped at the upper and the lower bound (OPEFO, Figure 2c)."),
        Curves("entropy-lambda", "Balance λ*", {"entropy_flow/lambda": "λ*", "opefo/lambda": "applied"}, "plain",
               "The factor that balances the two flows (OPEFO, Eq. 9)."),
        Curves("zero-variance", "Groups without signal", {"groups/zero_variance_share": "zero variance"}, "percent",
               "Groups whose rollouts all have the same score.", main=True),
    ),
    "Completions": (
        Curves("length", "Completion length",
               {"length/mean": "mean", "length/p50": "median", "length/p90": "90 %", "length/max": "longest"}, "zero",
               "Tokens, over all completions of a step.", main=True),
        Curves("length-correct", "Length by outcome",
               {"length/correct": "correct", "length/reflective": "reflective"}, "zero",
               "Mean tokens of correct and of reflective completions."),
        Curves("truncation", "Truncation and form",
               {"truncation_rate": "truncated", "unparsed_rate": "no answer", "undecided_rate": "undecided",
                "interruption/share": "interrupted"}, "percent",
               "Completions cut off by the token budget, without an answer, undecided, or interrupted.", main=True),
        Curves("reflection", "Reflection", {"reflection/share": "reflective"}, "percent",
               "Completions with one of five patterns (wait, recheck, retry, alternatively, however)."),
        Curves("repetition", "Repetition",
               {"repetition/share": "looping", "repetition/ngram20": "20-grams", "repetition/repeatness": "repeatness"},
               "percent", "Completions in which 20 tokens in a row recur, and repeated text."),
    ),
    "Stability": (
        Curves("ratio", "Importance ratio",
               {"ratio/max": "largest", "ratio/mean": "mean", "ratio/min": "smallest"}, "log",
               "Trainer to generator: largest, mean and smallest token of a step.", main=True),
        Curves("clipped", "Clipped tokens",
               {"ratio/clipped_share": "any", "ratio/clipped_high_share": "above", "ratio/clipped_low_share": "below"},
               "percent", "Tokens whose gradient was cut or capped."),
        Curves("lag", "Staleness", {"lag/mean": "mean", "lag/max": "largest"}, "zero",
               "Weight versions between sampling and training, over trained tokens.", main=True),
        Curves("mismatch", "Generator-trainer mismatch", {"mismatch/mean": "mean", "mismatch/max": "largest"}, "log",
               "Absolute difference of log-probs of the same token, in nats.", main=True),
        Curves("verifier-failures", "Verifier failures", {"verifier/failures": "failures"}, "zero",
               "Samples that the verifier could not judge; they leave the loss.", main=True),
        Curves("kl", "KL to the reference", {"kl/reference": "k3", "kl/reference_k1": "k1"}, "plain",
               "Estimates k3 and k1, in nats per token."),
        Curves("explained-variance", "Critic: explained variance",
               {"value/explained_variance": "explained variance"}, "plain",
               "1 − Var(return − value) / Var(return): 1 is perfect, 0 is no better than a constant."),
        Curves("values", "Critic: values and returns", {"value/mean": "value", "value/target": "return"}, "plain",
               "Means over trained tokens."),
        Curves("credit", "Advantage of repetitive tokens",
               {"repetition/advantage": "as trained", "repetition/advantage_grpo": "GRPO"}, "plain",
               "As trained, and as GRPO would have given it (Open-Reasoner-Zero, Figure 5)."),
    ),
    "Time and compute": (
        Curves("seconds", "Seconds of a step",
               {"seconds/step": "whole step", "seconds/rollout": "generation", "seconds/update": "training",
                "seconds/verify": "verification", "seconds/evaluation": "evaluation"}, "zero", main=True),
        Curves("speed", "Tokens per second", {"tokens_per_second": "tokens/s"}, "zero",
               "Generated tokens over the seconds of a step without evaluation.", main=True),
        Curves("device-seconds", "Device-seconds so far",
               {"compute/device_seconds": "all", "compute/generator_seconds": "generator",
                "compute/trainer_seconds": "trainer"}, "zero", "Of GPUs, or of cores without GPUs."),
        Curves("flops", "Estimated FLOPs so far", {"compute/flops": "FLOPs"}, "zero",
               "2 per parameter and token generated, 6 per parameter and token trained."),
        Curves("tokens", "Tokens of a step", {"tokens/generated": "generated", "trained_tokens": "trained"}, "zero",
               "Sampled tokens of all completions, and those that the update trains (ScaleRL, Figures 24 and 25)."),
        Curves("packing", "Packing efficiency", {"packing_efficiency": "efficiency"}, "percent",
               "The share of the token budget of micro-batches that is filled."),
    ),
}
# fmt: on


def main_curves() -> Iterator[Curves]:
    """The charts of the dashboard and of `plots/training.png`."""
    return (curves for group in GROUPS.values() for curves in group if curves.main)
