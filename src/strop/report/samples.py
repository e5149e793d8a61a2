"""What the model writes, before and after training, token by token with what is known of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from strop.algorithms.statistics import entropy_flow
from strop.base.seeds import derive
from strop.base.types import Completion, FloatArray, InputError, IntArray, Problem
from strop.config.schema import RunConfig
from strop.data.dataset import Example, load_data
from strop.engines.build import embedded_settings
from strop.engines.protocol import Request, Sampling
from strop.engines.torch import TorchEngine
from strop.model.critic import Critic
from strop.report.runs import RunData
from strop.report.scoring import QUANTILE, RolloutRow, score_rows, temperature_of
from strop.report.snapshots import Models, Snapshot
from strop.report.texts import pieces

SAMPLED_TOKENS = 1024  # most of a completion that is sampled for the report
SHOWN_TOKENS = 600  # most of a completion that is shown


class Token(NamedTuple):
    """A piece of a completion; None is what is not known of it.

    Attributes:
        text: what it adds.
        logprob: of the model that sampled it, nats.
        entropy: of the distribution it was drawn from, nats.
        flow: ΔH of a policy-gradient step on it (see `Shown.note`).
        value: the critic's, of the state it was chosen in.
        reasoning: at or above the 80 % quantile of its response's entropies.
        injected: forced into the context, not sampled.
    """

    text: str
    logprob: float | None
    entropy: float | None
    flow: float | None
    value: float | None
    reasoning: bool
    injected: bool


@dataclass(frozen=True, eq=False)
class Shown:
    """A completion: who wrote it, how it was judged, its first tokens and how many it has in all."""

    label: str
    verdict: str
    finish: str
    tokens: Sequence[Token]
    length: int


@dataclass(frozen=True, eq=False)
class Answers:
    """A prompt with what was written to it."""

    prompt: str
    reference: str
    completions: Sequence[Shown]


@dataclass(frozen=True, eq=False)
class SampleSet:
    """The samples of a run and where they are from."""

    origin: str
    answers: Sequence[Answers]


class Asked(NamedTuple):
    """A prompt to sample from; `problem` is None where nothing can judge the answer."""

    prompt_ids: IntArray
    text: str
    problem: Problem | None


# ---------------------------------------------------------------------- sampled now


def sampled(run: RunData, models: Models, count: int) -> SampleSet | None:
    """The first held-out prompts answered by the starting and by the latest model; None without both of them."""
    start, last = models.start, models.last
    if start is None or last.step == 0:
        return None
    assert run.config is not None
    asked, origin = _prompts(run, run.config, models.tokenizer, count)
    if not asked:
        return None
    critic = models.critic()
    columns = [_answer(run.config, models, snapshot, asked, critic) for snapshot in (start, last)]
    answers = [
        Answers(each.text, _reference(each.problem), [column[place] for column in columns])
        for place, each in enumerate(asked)
    ]
    sampling = run.config.evaluation.temperature
    return SampleSet(
        f"{origin}, answered by {start.name} and by {last.name} at temperature {sampling:g} from the same seeds",
        answers,
    )


def _prompts(
    run: RunData, config: RunConfig, tokenizer: PreTrainedTokenizerBase, count: int
) -> tuple[list[Asked], str]:
    if '"HubDataset"' in json.dumps(config.data.model_dump(mode="json")):
        return _recorded_prompts(run, count), "prompts of the last step (the held-out problems are on a hub)"
    try:
        data = load_data(config.data, tokenizer)
    except InputError as error:
        return _recorded_prompts(run, count), f"prompts of the last step (the problems cannot be read: {error})"
    chosen = data.train if data.held_out is None else data.held_out
    kind = "training prompts (none are held out)" if data.held_out is None else "held-out prompts"
    return [_asked(example) for example in chosen.examples[:count]], f"the first {kind} of {chosen.name}"


def _asked(example: Example) -> Asked:
    return Asked(example.prompt_ids, example.problem.question, example.problem)


def _recorded_prompts(run: RunData, count: int) -> list[Asked]:
    steps = run.folder.rollout_steps()
    first = {row["ticket"]: row for row in reversed(run.folder.read_rollouts(steps[-1]))} if steps else {}
    rows = [first[ticket] for ticket in sorted(first)][:count]
    return [Asked(np.array(row["prompt_ids"], dtype=np.int32), row["prompt"], None) for row in rows]


def _reference(problem: Problem | None) -> str:
    if problem is None or problem.reference is None:
        return ""
    return problem.reference if isinstance(problem.reference, str) else json.dumps(problem.reference, default=str)


def _answer(
    config: RunConfig, models: Models, snapshot: Snapshot, asked: Sequence[Asked], critic: Critic | None
) -> list[Shown]:
    policy = models.become(snapshot)
    engine = TorchEngine(policy, models.tokenizer, embedded_settings(config.engine))
    found: dict[str, Completion] = {}
    try:
        longest = max(len(each.prompt_ids) for each in asked)
        sampling = _sampling(config, engine.capabilities.max_tokens - longest)
        for place, each in enumerate(asked):
            engine.submit(Request(str(place), each.prompt_ids, sampling, derive(config.seed, "report", place)))
        while engine.unfinished:
            found |= {completion.request_id: completion for completion in engine.step()}
    finally:
        engine.close()
    completions = [found[str(place)] for place in range(len(asked))]
    rows = [_as_row(completion) for completion in completions]
    temperature = sampling.temperature or 1.0
    logprobs, entropies = score_rows(policy, rows, temperature)
    values = None if critic is None else score_rows(critic, rows, temperature)[0]
    shown = []
    for place, (each, completion) in enumerate(zip(asked, completions, strict=True)):
        verdict = ""
        if each.problem is not None and each.problem.reference is not None:
            verdict = str(config.verifier(each.problem, completion.text, completion.truncated).status)
        known = _Known(logprobs[place], entropies[place], None if values is None else values[place])
        tokens = _tokens(models.tokenizer, rows[place], known, verdict)
        shown.append(Shown(snapshot.name, verdict, completion.finish_reason, tokens, len(completion.token_ids)))
    return shown


def _sampling(config: RunConfig, room: int) -> Sampling:
    """The run's own sampling at the temperature of its evaluations, bounded for a report.

    Raises:
        InputError: the prompt leaves no room for the run's budgets.
    """
    changes: dict[str, Any] = {"temperature": config.evaluation.temperature}
    if not config.sampling.watches_thinking:
        changes["max_new_tokens"] = max(1, min(config.sampling.max_new_tokens, SAMPLED_TOKENS, room))
    try:
        return Sampling.model_validate({**config.sampling.model_dump(), **changes})
    except ValidationError as error:
        raise InputError(f"sampling: {error.errors()[0]['msg']}") from error


def _as_row(completion: Completion) -> RolloutRow:
    return {
        "prompt_ids": completion.prompt_ids, "token_ids": completion.token_ids, "logprobs": completion.logprobs,
        "interrupted_at": completion.interrupted_at, "injected_tokens": int(completion.injected.sum()),
    }  # fmt: skip


# ---------------------------------------------------------------------- recorded by the run


def recorded(run: RunData, tokenizer: PreTrainedTokenizerBase, models: Models | None, count: int) -> SampleSet | None:
    """Rollouts of the first and of the last step that has any, one a prompt; None where the run has no rollouts.

    Those of the last step are scored by the latest model where it is at hand; of the others only the recorded
    log-probs are known.
    """
    steps = run.folder.rollout_steps()
    if not steps:
        return None
    answers: list[Answers] = []
    for step in dict.fromkeys((steps[0], steps[-1])):
        rows = list({row["ticket"]: row for row in reversed(run.folder.read_rollouts(step))}.values())[::-1]
        rows = [row for row in rows if row["token_ids"]][: max(1, count // 2)]
        known = _recorded_knowledge(run, models, rows, step == steps[-1])
        for row, each in zip(rows, known, strict=True):
            tokens = _tokens(tokenizer, row, each, row["status"])
            shown = Shown(f"step {step}", row["status"], row["finish_reason"], tokens, len(row["token_ids"]))
            answers.append(Answers(row["prompt"], row["reference"], [shown]))
    scored = f"; those of the last step scored by {models.last.name}" if models is not None else ""
    return SampleSet(f"rollouts of the first and of the last step{scored}", answers)


def _recorded_knowledge(run: RunData, models: Models | None, rows: Sequence[RolloutRow], last: bool) -> list[_Known]:
    plain = [_Known(np.array(row["logprobs"], dtype=np.float32), None, None) for row in rows]
    if models is None or not last or not rows:
        return plain
    temperature = temperature_of(run)
    logprobs, entropies = score_rows(models.become(models.last), rows, temperature)
    critic = models.critic()
    values = None if critic is None else score_rows(critic, rows, temperature)[0]
    return [
        _Known(logprobs[place], entropies[place], None if values is None else values[place])
        for place in range(len(rows))
    ]


# ---------------------------------------------------------------------- tokens


class _Known(NamedTuple):
    """Aligned columns [T] of a completion."""

    logprob: FloatArray
    entropy: FloatArray | None
    value: FloatArray | None


def _tokens(tokenizer: PreTrainedTokenizerBase, row: Mapping[str, Any], known: _Known, verdict: str) -> list[Token]:
    """The first tokens of a completion with what is known of them."""
    ids = [int(token) for token in row["token_ids"][:SHOWN_TOKENS]]
    start = row["interrupted_at"]
    forced = range(0) if start is None else range(start, start + row["injected_tokens"])
    flow = None if known.entropy is None else flow_of(known.logprob, known.entropy, verdict)
    threshold = None
    if known.entropy is not None and len(known.entropy):
        own = [float(entropy) for place, entropy in enumerate(known.entropy) if place not in forced]
        threshold = float(np.quantile(own, QUANTILE)) if own else None

    def at(column: FloatArray | None, place: int) -> float | None:
        return None if column is None or place in forced else float(column[place])

    return [
        Token(
            text=text,
            logprob=at(known.logprob, place),
            entropy=(entropy := at(known.entropy, place)),
            flow=at(flow, place),
            value=at(known.value, place),
            reasoning=threshold is not None and entropy is not None and entropy >= threshold,
            injected=place in forced,
        )
        for place, text in enumerate(pieces(tokenizer, ids))
    ]


def flow_of(logprob: FloatArray, entropy: FloatArray, verdict: str) -> FloatArray:
    """ΔH of each token (OPEFO, Eq. 6) for an advantage of 1 where the completion is correct, −1 where it is not.

    The sign is that of the group's own advantage wherever its rewards differ; without a verdict the advantage is 1.
    """
    advantage = 1.0 if verdict in ("correct", "") else -1.0
    found = entropy_flow(torch.full((len(logprob),), advantage), torch.from_numpy(logprob), torch.from_numpy(entropy))
    flow: FloatArray = found.numpy().astype(np.float32)
    return flow
