"""Samples of every problem from an engine, judged as they arrive, beside those that are still being generated."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from strop.base.seeds import derive
from strop.base.types import Completion, InputError, Observation, Problem, Rollout, StropError, Verdict
from strop.base.view import View
from strop.data.dataset import Dataset
from strop.engines.protocol import Engine, Request, Sampling
from strop.environments.turns import counted, joined, next_turn, out_of_room, unspoken, within
from strop.evaluation.result import EvaluationResult
from strop.verifiers.base import Verifier
from strop.verifiers.protocol import InlineJudge, Key, Responder
from strop_verify.verdict import Status

Progress = Callable[[int, int, Rollout], None]  # see `evaluate`

STALL_SECONDS = 1800.0
POLL_SECONDS = 0.005  # between looks at a judge that others wait for
OPEN_A_SLOT = 1.25  # trajectories that an environment begins: more would wait for the engine, and for each other


def reporting_to(view: View) -> Progress:
    """Shows a view how far an evaluation is, and the share that is right of what could be judged."""
    right = judged = 0

    def progress(done: int, total: int, rollout: Rollout) -> None:
        nonlocal right, judged
        right += rollout.verdict.passed
        judged += rollout.verdict.usable
        view.advance(done, {"pass_rate": right / judged} if judged else {})

    return progress


def evaluate(
    engine: Engine,
    dataset: Dataset,
    samples_per_problem: int,
    sampling: Sampling,
    verifier: Verifier,
    seed: int = 0,
    progress: Progress | None = None,
    stall_seconds: float = STALL_SECONDS,
    judge: Responder | None = None,
    turn: Callable[[], None] | None = None,
) -> EvaluationResult:
    """Sample every problem `samples_per_problem` times and judge the completions.

    A problem's samples depend on `seed` and its id alone, not on the other problems, so that two evaluations with the
    same seed compare sample by sample.

    Args:
        engine: idle; its weights are those that are evaluated.
        dataset: P problems with their prompts.
        samples_per_problem: N.
        sampling: how tokens are drawn.
        verifier: judges each completion; its reward is not shaped.
        seed: of the samples.
        progress: called as `progress(done, total, rollout)` after each judged completion.
        stall_seconds: how long neither a completion nor a verdict may arrive.
        judge: of `verifier`, which may work in processes of its own, or an environment in front of it; stays open.
            None judges in this process.
        turn: called between two steps of the engine; what it raises ends the evaluation.

    Raises:
        InputError: the engine is busy, a prompt leaves no room for `max_new_tokens`, or there is nothing to evaluate.
        StropError: a completion was aborted, or none arrived for `stall_seconds`.
    """
    if samples_per_problem < 1 or not len(dataset):
        raise InputError(f"nothing to evaluate: {len(dataset)} problems, {samples_per_problem} samples of each")
    if engine.unfinished:
        raise InputError(f"the engine still has {engine.unfinished} sequences to finish; evaluate when it is idle")
    started = time.monotonic()
    judge = judge if judge is not None else InlineJudge(verifier)
    first = within(sampling, judge.turn_tokens)
    tally = _Tally(dataset, samples_per_problem, sampling, verifier, judge, seed)
    outstanding: Counter[str] = Counter()  # samples that the engine has yet to report, by request
    try:
        for index, example in enumerate(() if judge.speaks_first else dataset):
            stream = _stream(seed, example.problem)
            request = Request(
                _request_id(index), example.prompt_ids, first, stream, samples_per_problem, keeps=judge.several_turns
            )
            engine.submit(request)
            outstanding[request.id] = samples_per_problem
        _collect(engine, tally, outstanding, progress, stall_seconds, turn)
    except BaseException:
        _leave_idle(engine, outstanding)
        for index in range(len(dataset)):
            judge.forget(_request_id(index))
        raise
    return tally.result(engine.weight_version, time.monotonic() - started, sampling)


def _collect(
    engine: Engine,
    tally: _Tally,
    outstanding: Counter[str],
    progress: Progress | None,
    stall_seconds: float,
    turn: Callable[[], None] | None,
) -> None:
    """Step until every sample is judged."""
    last_arrival = time.monotonic()
    slots = engine.capabilities.slots
    at_once = tally.total if slots is None else math.ceil(OPEN_A_SLOT * slots)
    while tally.done < tally.total:
        if turn is not None:
            turn()
        tally.begin(at_once)
        completions = engine.step() if engine.unfinished else []
        outstanding.subtract(completion.request_id for completion in completions)
        for completion in completions:
            tally.take(completion)
        rollouts = tally.judged()
        for request in tally.next_turns():
            engine.submit(request)
            outstanding[request.id] = 1
        for done, rollout in rollouts:
            if progress is not None:
                progress(done, tally.total, rollout)
        if completions or rollouts:
            last_arrival = time.monotonic()
        elif not engine.unfinished:
            time.sleep(POLL_SECONDS)  # every sample is there; what is left are verdicts
        if time.monotonic() - last_arrival > stall_seconds:
            raise StropError(
                f"evaluation: no completion for {stall_seconds:.0f} s, {tally.total - tally.done} of {tally.total} are "
                f"missing; the engine says: {engine.health().detail}"
            )


def _leave_idle(engine: Engine, outstanding: Counter[str]) -> None:
    """Take back what was asked of the engine, so that its next user does not meet our completions."""
    if not engine.health().ok:
        return
    for request_id, samples in outstanding.items():
        if samples > 0:
            engine.cancel(request_id)
    engine.step()  # reports what was cancelled; the reports are dropped


class _Tally:
    """The verdicts so far, each in its place."""

    def __init__(
        self, dataset: Dataset, samples: int, sampling: Sampling, verifier: Verifier, judge: Responder, seed: int
    ) -> None:
        self._dataset, self._sampling, self._verifier, self._judge = dataset, sampling, verifier, judge
        self._seed = seed
        self._waiting: dict[Key, Completion] = {}
        self._turns: dict[str, tuple[Key, Observation]] = {}  # those that are being sampled, by request
        self._next: list[Request] = []
        self._begun = 0  # trajectories, where the environment begins them
        self._index_of = {_request_id(index): index for index in range(len(dataset))}
        shape = (len(dataset), samples)
        self._verdicts: dict[tuple[int, int], Verdict] = {}
        self._answers: list[list[str | None]] = [[None] * samples for _ in range(len(dataset))]
        self._truncated = np.zeros(shape, dtype=np.bool_)
        self._lengths = np.zeros(shape, dtype=np.int32)
        self._surprise = np.zeros(shape, dtype=np.float64)
        self._sampled = np.zeros(shape, dtype=np.int32)

    @property
    def total(self) -> int:
        """Samples asked for."""
        return int(self._lengths.size)

    @property
    def done(self) -> int:
        """Samples judged."""
        return len(self._verdicts)

    def begin(self, at_once: int) -> None:
        """Where the environment speaks first: have it begin trajectories as long as fewer than `at_once` are open."""
        while self._judge.speaks_first and self._begun < min(self.done + at_once, self.total):
            index, sample = divmod(self._begun, self._lengths.shape[1])
            problem = self._dataset[index].problem
            self._judge.begin((_request_id(index), sample), problem, _stream(self._seed, problem))
            self._begun += 1

    def take(self, completion: Completion) -> None:
        """Have a completion, or the next turn of one, judged."""
        key, observation = self._turns.pop(completion.request_id, ((completion.request_id, completion.index), None))
        if key[0] not in self._index_of:
            raise StropError(f"evaluation: the engine reported request {completion.request_id!r}, which is not ours")
        if completion.finish_reason == "abort":
            raise StropError(f"evaluation: sample {key[1]} of {key[0]!r} was aborted")
        turn = counted(completion, self._sampling, self._judge.turn_tokens)
        whole = turn if observation is None else joined(key, self._waiting.get(key), observation, turn)
        self._submit(key, whole, turn)

    def _submit(self, key: Key, whole: Completion, turn: Completion) -> None:
        problem = self._dataset[self._index_of[key[0]]].problem
        self._waiting[key] = whole
        self._answers[self._index_of[key[0]]][key[1]] = self._verifier.answer(problem, turn.text)
        self._judge.submit(key, problem, turn, _stream(self._seed, problem))

    def judged(self) -> list[tuple[int, Rollout]]:
        """What was judged since the last call, each with the number of samples judged by then."""
        found: list[tuple[int, Rollout]] = []
        for key, answer in self._judge.poll():
            if isinstance(answer, Observation):
                self._go_on(key, answer)
                continue
            index = self._index_of[key[0]]
            completion = self._waiting.pop(key, None) or unspoken(*key, self._dataset[index].prompt_ids)
            self._record((index, key[1]), completion, answer)
            reward = answer.score if answer.usable else 0.0
            found.append((self.done, Rollout(self._dataset[index].problem, completion, answer, reward)))
        return found

    def next_turns(self) -> list[Request]:
        """What is to be sampled next behind the observations that came in."""
        found, self._next = self._next, []
        return found

    def _go_on(self, key: Key, observation: Observation) -> None:
        whole, limit = self._waiting.get(key), self._judge.turn_tokens
        seed = _stream(self._seed, self._dataset[self._index_of[key[0]]].problem)
        request = next_turn(key, whole, observation, self._sampling, limit, seed)
        if request is None:
            assert whole is not None, "a first turn has room"
            self._submit(key, *out_of_room(whole))
        else:
            self._turns[request.id] = key, observation
            self._next.append(request)

    def _record(self, place: tuple[int, int], completion: Completion, verdict: Verdict) -> None:
        self._verdicts[place] = verdict
        self._truncated[place] = completion.truncated
        self._lengths[place] = len(completion.token_ids)
        drawn = ~completion.injected
        self._surprise[place] = -completion.logprobs[drawn].sum(dtype=np.float64)
        self._sampled[place] = drawn.sum()

    def result(self, version: int, seconds: float, sampling: Sampling) -> EvaluationResult:
        """Everything recorded, of completions drawn as `sampling` says."""
        # What a truncated distribution gives is no estimate of the entropy of the whole one.
        whole = not sampling.truncates
        scores = np.zeros(self._lengths.shape, dtype=np.float32)
        usable, unparsed = (np.zeros(self._lengths.shape, dtype=np.bool_) for _ in range(2))
        for place, verdict in self._verdicts.items():
            usable[place], unparsed[place] = verdict.usable, verdict.status is Status.UNPARSED
            scores[place] = verdict.score if verdict.usable else 0.0
        return EvaluationResult(
            dataset=self._dataset.name,
            problem_ids=tuple(problem.id for problem in self._dataset.problems),
            scores=scores,
            correct=scores == 1.0,
            usable=usable,
            unparsed=unparsed,
            truncated=self._truncated,
            lengths=self._lengths,
            answers=tuple(tuple(row) for row in self._answers),
            version=version,
            seconds=seconds,
            surprise=self._surprise if whole else None,
            sampled=self._sampled if whole else None,
            first_failure=next((verdict.detail for verdict in self._verdicts.values() if not verdict.usable), ""),
        )


def _stream(seed: int, problem: Problem) -> int:
    return derive(seed, "evaluation", problem.id)


def _request_id(index: int) -> str:
    return f"evaluation-{index}"
