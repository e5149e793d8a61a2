"""Evaluation: avg@n, pass@k and majority votes with bootstrap intervals, from any engine."""

from strop.evaluation.evaluate import evaluate
from strop.evaluation.intervals import Interval, bootstrap, majority, pass_at_k
from strop.evaluation.result import EvaluationResult, Gain, paired_gain

__all__ = [
    "EvaluationResult",
    "Gain",
    "Interval",
    "bootstrap",
    "evaluate",
    "majority",
    "paired_gain",
    "pass_at_k",
]
