"""Evaluation: avg@n, pass@k and majority votes with bootstrap intervals, from any engine."""

from strop.evaluation.benchmarks import Benchmark, benchmark, load_problems
from strop.evaluation.evaluate import evaluate
from strop.evaluation.intervals import Interval, bootstrap, majority, majority_at_k, pass_at_k, sign_flip_p
from strop.evaluation.protocols import Protocol, protocol
from strop.evaluation.result import EvaluationResult, PairedTest, paired_test

__all__ = [
    "Benchmark", "EvaluationResult", "Interval", "PairedTest", "Protocol", "benchmark", "bootstrap", "evaluate",
    "load_problems", "majority", "majority_at_k", "paired_test", "pass_at_k", "protocol", "sign_flip_p",
]  # fmt: skip
