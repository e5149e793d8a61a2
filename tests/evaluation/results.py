"""Evaluation results and kept samples made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tests.evaluation.scripted import ScriptedEngine, evaluate

from strop.base.files import write_json
from strop.base.types import FinishReason, Problem
from strop.data.dataset import Dataset
from strop.data.loading import build_dataset
from strop.data.templates import Plain
from strop.engines.protocol import Request, Sampling
from strop.evaluation.result import EvaluationResult
from strop.evaluation.sample_store import SUMMARY, SampleStore, load_result
from strop.model.files import byte_tokenizer
from strop.verifiers.answer import Answer

Answers = Mapping[str, Sequence[str]]
BUDGET = 64
TOKENIZER = byte_tokenizer()
VERIFIER = Answer(extract="any")


def result(
    correct: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]] | None = None, budget: int = 100
) -> EvaluationResult:
    """Samples that are correct or not, of given lengths; those of `budget` tokens and wrong are truncated."""
    right = np.array(correct, dtype=np.bool_)
    long = np.full(right.shape, 10, dtype=np.int32) if lengths is None else np.array(lengths, dtype=np.int32)
    return EvaluationResult(
        dataset="made",
        problem_ids=tuple(f"p{index}" for index in range(len(right))),
        scores=right.astype(np.float32),
        correct=right,
        usable=np.ones_like(right),
        unparsed=np.zeros_like(right),
        undecided=np.zeros_like(right),
        truncated=(long >= budget) & ~right,
        lengths=long,
        answers=tuple(tuple("1" if entry else "0" for entry in row) for row in right.tolist()),
        version=0,
        seconds=1.0,
    )


def digits(answers: Answers) -> Dataset:
    """A problem a question: `7=` with the answer 7."""
    problems = [Problem(f"p{question}", f"{question}=", question) for question in answers]
    return build_dataset("digits", problems, Plain(), TOKENIZER, 8)


def says(answers: Answers) -> ScriptedEngine:
    """Sample i of the question `q=` is the text `answers[q][i]`; one that ends in `…` is truncated."""

    def script(request: Request, index: int) -> tuple[str, FinishReason]:
        text = answers[str(TOKENIZER.decode(request.prompt_ids)).rstrip("=")][index]
        return text, "length" if text.endswith("…") else "stop"

    return ScriptedEngine(script)


def settings(dataset: Dataset, samples: int, model: str = "base", benchmark: str = "digits") -> dict[str, object]:
    """What `strop eval` writes down of an evaluation."""
    return {
        "model": model, "benchmark": benchmark, "title": benchmark.upper(), "domain": "math",
        "samples_per_problem": samples, "sampling": {"max_new_tokens": BUDGET},
        "problem_ids": [problem.id for problem in dataset.problems],
    }  # fmt: skip


def keep(folder: Path, answers: Answers, model: str = "base", benchmark: str = "digits") -> None:
    """Evaluate the answers and keep them as FOLDER/MODEL/BENCHMARK."""
    dataset, samples = digits(answers), len(next(iter(answers.values())))
    kept = SampleStore(folder / model / benchmark, settings(dataset, samples, model, benchmark), VERIFIER)
    engine = says(answers)
    evaluate(engine, dataset, samples, Sampling(), VERIFIER, progress=lambda done, total, rollout: kept.add(rollout))
    kept.flush()
    write_json(folder / model / benchmark / SUMMARY, load_result(folder / model / benchmark).summary())
