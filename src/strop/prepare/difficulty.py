"""Difficulty: how often a model solves each problem, estimated from sampled completions.

Archer's two screens are two steps: eight samples of a strong model with `max_correct = 8`, which drops what no sample
solves, then eight samples of the policy, which drops what it always or never solves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, SerializeAsAny, model_validator

from strop.base.files import Journal
from strop.base.seeds import derive
from strop.base.types import InputError, Problem, Rollout
from strop.data.dataset import Dataset, Example, make_example
from strop.data.templates import Auto, PromptTemplate
from strop.engines.protocol import Sampling
from strop.engines.settings import EngineSettings
from strop.model.location import asked_with
from strop.model.settings import ModelSettings
from strop.prepare.stage import Dropped, Stage, Step
from strop.verifiers.base import Verifier
from strop.verifiers.math_verifier import MathVerifier

BASE_SEED = 0  # of the embedded base and of fresh models; independent of the samples' seed
AT_ONCE = 1024  # problems in the engine's queue


class SampleTally(NamedTuple):
    """Counts of a problem's samples: `samples` were judged, `correct` of them are correct."""

    correct: int
    samples: int
    truncated: int
    tokens: int


class Difficulty(Step):
    """Samples every problem, keeps those whose number of correct answers lies in a range, and stores the pass rates.

    Pass rates go into `extra["pass_rates"][name]` and into pass_rates.jsonl. The counts are journalled problem by
    problem, so that a killed estimation resumes.

    Fields:
        model: `model.path` is a run's model folder, a hub name, or `embedded`.
        name: the key of the pass rates; by default the path.
        samples: number of samples per problem, N.
        min_correct: problems with fewer correct samples are too hard (1 drops those never solved).
        max_correct: problems with more correct samples are too easy; None means N - 1, which drops those always
            solved.
        verifier: judges the completions, in parallel with generation if it runs in processes or a sandbox.
        template: how a problem becomes a prompt.
        sampling: sampling settings (Skywork-OR1: temperature 1, 32k tokens).
        max_prompt_tokens: problems with a longer prompt are dropped.
        engine: settings of the engine, such as its slots.
        device: device of the model.
        seed: of the samples; None follows the preparation's seed.
    """

    model: ModelSettings
    name: str | None = None
    samples: Annotated[int, Field(ge=1)] = 8
    min_correct: Annotated[int, Field(ge=0)] = 1
    max_correct: Annotated[int, Field(ge=0)] | None = None
    verifier: SerializeAsAny[Verifier] = MathVerifier(extract="any")
    template: SerializeAsAny[PromptTemplate] = Auto()
    sampling: Sampling = Sampling()
    max_prompt_tokens: Annotated[int, Field(ge=1)] = 1024
    engine: SerializeAsAny[EngineSettings] = EngineSettings()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.min_correct <= self.highest <= self.samples:
            raise ValueError(
                f"min_correct={self.min_correct} and max_correct={self.highest} keep nothing of {self.samples} samples"
            )
        return self

    @property
    def highest(self) -> int:
        """The largest number of correct samples of a kept problem."""
        return self.samples - 1 if self.max_correct is None else self.max_correct

    @property
    def label(self) -> str:
        """The model's name in reports."""
        return self.name or self.model.path or "fresh"

    def inputs(self) -> str:
        """Modification times of the model's files, if it is a folder."""
        path = self.model.path
        if path is None or not Path(path).is_dir():
            return ""
        return " ".join(f"{file.name} {file.stat().st_mtime_ns}" for file in sorted(Path(path).glob("*.safetensors")))

    def run(self, stage: Stage) -> None:
        """Sample the problems that are not in the journal, then keep or drop every problem.

        Raises:
            InputError: the model cannot be loaded, or its context is too short.
        """
        journal = Journal(stage.folder / "samples.jsonl")
        try:
            tallies = {entry["id"]: SampleTally(*entry["tally"]) for entry in journal.entries}
            too_long: dict[str, int] = {
                entry["id"]: entry["limit"] for entry in journal.entries if entry["tally"][1] < 0
            }
            if len(tallies) < stage.total:
                estimation = _Estimation(self, stage, journal, tallies)
                try:
                    estimation.run()
                finally:
                    estimation.close()
                too_long |= estimation.too_long
        finally:
            journal.close()
        self._decide(stage, tallies, too_long)

    def _decide(self, stage: Stage, tallies: dict[str, SampleTally], too_long: dict[str, int]) -> None:
        histogram = [0] * (self.samples + 1)
        for problem in stage.problems(f"{stage.name}: choosing"):
            tally = tallies[problem.id]
            if problem.id in too_long:
                limit, budget = too_long[problem.id], self.sampling.max_new_tokens
                why = "" if limit == self.max_prompt_tokens else f", the context less sampling.max_new_tokens={budget}"
                stage.drop(problem, Dropped(f"prompt over {limit} tokens{why}"))
                continue
            if tally.samples == 0:
                stage.drop(problem, Dropped("the verifier failed on every sample"))
                continue
            # If the verifier failed on some samples, scale up the share of the others.
            correct = (
                tally.correct if tally.samples == self.samples else round(tally.correct / tally.samples * self.samples)
            )
            histogram[correct] += 1
            rated = with_pass_rate(problem, self.label, tally)
            if self.min_correct <= correct <= self.highest:
                stage.keep(rated)
            else:
                reason = "too hard" if correct < self.min_correct else "too easy"
                stage.drop(rated, Dropped(f"{reason} for {self.label}", f"{tally.correct} of {tally.samples} correct"))
        stage.counts["model"] = self.label
        stage.counts["problems_by_correct_samples"] = histogram
        judged = sum(max(tally.samples, 0) for tally in tallies.values())
        right = sum(tally.correct for tally in tallies.values())
        stage.counts["pass_rate"] = right / judged if judged else None


def with_pass_rate(problem: Problem, model: str, tally: SampleTally) -> Problem:
    """The problem with a model's pass rate added."""
    rates = {**problem.extra.get("pass_rates", {}), model: {"correct": tally.correct, "samples": tally.samples}}
    return replace(problem, extra={**problem.extra, "pass_rates": rates})


class _Estimation:
    """Measures problems as an evaluation does; a problem is journalled when all its samples are judged."""

    def __init__(self, step: Difficulty, stage: Stage, journal: Journal, tallies: dict[str, SampleTally]) -> None:
        from strop.engines.build import build_engine
        from strop.model.device import pick_device
        from strop.model.policy import load_policy
        from strop.training.embedded_base import located
        from strop.verifiers.judges import OpenJudges

        self.too_long: dict[str, int] = {}  # ids of problems, and the token limit that their prompts exceed
        self._step, self._stage, self._journal, self._tallies = step, stage, journal, tallies
        model = located(step.model, BASE_SEED, stage.view)
        policy, self._tokenizer = load_policy(model, seed=derive(BASE_SEED, "model"))
        policy.to(pick_device(step.device)).requires_grad_(False).eval()
        self._engine = build_engine(step.engine, model, self._tokenizer, policy, sampling=step.sampling)
        self._room = self._engine.capabilities.max_tokens - step.sampling.max_new_tokens
        self._judges = OpenJudges()
        self._rollouts: dict[str, list[Rollout]] = {}
        if self._room < 1:
            raise InputError(
                f"sampling.max_new_tokens={step.sampling.max_new_tokens} leaves no room for a prompt: the model has "
                f"{self._engine.capabilities.max_tokens} tokens"
            )

    def run(self) -> None:
        """Run until every problem has its counts."""
        from strop.evaluation.evaluate import ProblemSet, measure_set

        step, waiting = self._step, self._waiting()
        seed = derive(self._stage.seed if step.seed is None else step.seed, "difficulty")
        while examples := tuple(islice(waiting, AT_ONCE)):
            dataset = Dataset(step.label, examples)
            asked = ProblemSet(step.label, dataset, step.samples, step.sampling, step.verifier, seed)
            measure_set(self._engine, asked, self._judges, self._judged)

    def close(self) -> None:
        """Close the engine and the judges."""
        self._engine.close()
        self._judges.close()

    def _waiting(self) -> Iterator[Example]:
        limit = min(self._step.max_prompt_tokens, self._room)
        title = f"{self._stage.name}: {self._step.label} × {self._step.samples}"
        template = asked_with(self._step.template, self._step.model)
        for problem in self._stage.problems(title, ticking=False):
            if problem.id in self._tallies:
                self._stage.tick(len(self._tallies))
                continue
            instruction = self._step.verifier.instruction(problem)
            example = make_example(problem, template, self._tokenizer, instruction)
            if len(example.prompt_ids) <= limit:
                yield example
            else:
                self.too_long[problem.id] = limit
                self._record(problem.id, SampleTally(0, -1, 0, len(example.prompt_ids)), limit)

    def _judged(self, done: int, total: int, rollout: Rollout) -> None:
        rollouts = self._rollouts.setdefault(rollout.problem.id, [])
        rollouts.append(rollout)
        if len(rollouts) < self._step.samples:
            return
        del self._rollouts[rollout.problem.id]
        usable = [each.verdict for each in rollouts if each.verdict.usable]
        truncated = sum(each.completion.truncated for each in rollouts)
        tokens = sum(len(each.completion.token_ids) for each in rollouts)
        correct = sum(verdict.passed for verdict in usable)
        self._record(rollout.problem.id, SampleTally(correct, len(usable), truncated, tokens))

    def _record(self, problem_id: str, tally: SampleTally, limit: int | None = None) -> None:
        self._tallies[problem_id] = tally
        self._stage.tick(len(self._tallies))
        entry: dict[str, Any] = {"id": problem_id, "model": self._step.label, "tally": list(tally)}
        if limit is not None:
            entry["limit"] = limit
        self._journal.add(entry)
