"""Samples answers of a model to prompts or problems: `strop sample`, and `Run.sample` in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from strop.base.types import InputError, Problem, Rollout, StropError
from strop.base.view import View
from strop.config.edits import explain
from strop.config.schema import RunConfig, evaluation_sampling
from strop.data.dataset import Dataset, Example, make_example
from strop.engines.protocol import Sampling
from strop.evaluation.evaluate import ProblemSet, fitted, measure_set
from strop.run.measuring import problems_of
from strop.run.models import ModelSetup, NamedModel, open_engine, open_model
from strop.run.questions import play_of
from strop.verifiers.answer import Answer
from strop.verifiers.judges import OpenJudges


def sample_model(
    setup: ModelSetup,
    prompts: Sequence[str] | None,
    count: int,
    temperature: float | None,
    max_new_tokens: int | None,
    seed: int,
    view: View,
    model: NamedModel | None = None,
) -> list[dict[str, Any]]:
    """`count` completions of each prompt, or of each of the configured problems if there are no prompts, in order.

    A completion of a problem is judged; its `status` and `reference` are None for a prompt without a reference.
    """
    config = setup.config
    policy, tokenizer = open_model(config, view, model)
    if prompts is None:
        examples: Sequence[Example] = problems_of(setup, tokenizer, view)[0].examples
    else:
        verbatim = setup.verbatim and _trained_verbatim(setup)
        problems = [
            Problem(f"prompt-{number}", prompt, reference=None, verbatim=verbatim)
            for number, prompt in enumerate(prompts)
        ]
        examples = [
            make_example(problem, config.data.template, tokenizer, config.instruction(problem))
            for problem in problems
        ]
    sampling = _sampling(config, temperature, max_new_tokens)
    engine, judges = open_engine(config, policy, tokenizer, model, sampling), OpenJudges()
    found: dict[tuple[str, int], Rollout] = {}

    def progress(done: int, total: int, rollout: Rollout) -> None:
        found[rollout.problem.id, rollout.completion.index] = rollout

    try:
        room = engine.capabilities.max_tokens
        sampling, play = fitted(sampling, examples, room, view.note), play_of(config, tokenizer, room)
        # Prompts have nothing to be judged by, so that a sandbox or workers need not start; an environment may judge.
        verifier = config.verifier if prompts is None or play is not None else Answer()
        asked = ProblemSet("", Dataset("", tuple(examples)), count, sampling, verifier, seed, play)
        measure_set(engine, asked, judges, progress)
    finally:
        judges.close()
        engine.close()
    return [_row(found[example.problem.id, index]) for example in examples for index in range(count)]


def _trained_verbatim(setup: ModelSetup) -> bool:
    """Whether the run's problems are used as is, without a template; True without a run, or if they cannot be read."""
    try:
        first = None if setup.run is None else next(setup.config.data.source.problems(), None)
    except StropError:
        return True
    return first is None or first.verbatim


def _sampling(config: RunConfig, temperature: float | None, max_new_tokens: int | None) -> Sampling:
    """The sampling of the run's evaluations, with the given changes."""
    changes: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
    if max_new_tokens is not None:
        changes["max_new_tokens"] = max_new_tokens
    try:
        return Sampling.model_validate({**evaluation_sampling(config).model_dump(), **changes})
    except ValidationError as error:
        raise InputError(f"sampling: {explain(error).removeprefix('(whole): ')}") from error


def _row(rollout: Rollout) -> dict[str, Any]:
    problem, completion = rollout.problem, rollout.completion
    return {
        "prompt": problem.question,
        "completion": completion.text,
        "tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "status": None if problem.reference is None else str(rollout.verdict.status),
        "reference": problem.reference,
    }
