"""The one path that measures a model: problems, how they are asked, an engine → a result.

    asked = ProblemSet("aime24", dataset, samples=16, sampling=sampling, verifier=verifier, seed=seed)
    result = measure_set(engine, asked, judges)       # result.pass_rate, result.interval(), result.pass_at(8)

Evaluations of a run while it trains, `strop eval`, `strop doctor --ask` and Python all end here. Completions are judged
as they arrive, while others are still being generated. Whoever has no idle engine uses the parts: a `Measurement` says
what to request, takes the completions in any order, and has the result.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strop.base.progress import CURRENT
from strop.base.seeds import derive
from strop.base.text import counted
from strop.base.types import Completion, InputError, Observation, Problem, Rollout, StropError, Verdict
from strop.base.view import View
from strop.data.dataset import Dataset, Example
from strop.data.loading import Instruct, build_dataset
from strop.data.templates import PromptTemplate, Tokenizer
from strop.engines.protocol import Engine, Request, Sampling
from strop.environments import turns
from strop.environments.responder import Play
from strop.environments.turns import joined, next_turn, out_of_room, unspoken, within
from strop.evaluation import EvaluationSettings
from strop.evaluation.benchmarks import (
    HELD_OUT,
    Benchmark,
    benchmark,
    default_verifier,
    load_problems,
    with_instruction,
)
from strop.evaluation.intervals import difference_interval
from strop.evaluation.protocols import in_words
from strop.evaluation.result import EvaluationResult
from strop.verifiers.base import Verifier
from strop.verifiers.judges import OpenJudges
from strop.verifiers.protocol import Key, Responder
from strop_verify.verdict import Status

Progress = Callable[[int, int, Rollout], None]  # see `measure_set`
SetProgress = Callable[[str, int, int], None]

STALL_SECONDS = 1800.0
POLL_SECONDS = 0.005  # between polls of the judge when only verdicts are outstanding
OPEN_A_SLOT = 1.25  # open trajectories for each slot of the engine


@dataclass(frozen=True, eq=False)
class ProblemSet:
    """Problems, and how a model is measured on them.

    Attributes:
        name: `held_out`, a benchmark's or a source's.
        dataset: the problems with their prompts.
        samples: completions of each problem, N of avg@N.
        sampling: how completions are drawn.
        verifier: judges them.
        seed: of the samples; the same at every step of a run, so that points compare.
        play: the environment of several turns; None: one turn.
        every: in a run, measure after every so many steps.
    """

    name: str
    dataset: Dataset
    samples: int
    sampling: Sampling
    verifier: Verifier
    seed: int
    play: Play | None = None
    every: int = 1

    def due(self, step: int, last: int) -> bool:
        """Whether to measure after `step` of `last`; step 0 is before training."""
        return step % self.every == 0 or step == last

    @property
    def terms(self) -> dict[str, Any]:
        """The conditions of a pass rate on this set, JSON-able; pass rates under equal conditions are comparable.

        The number of samples is left out: more samples make the rate more exact but measure the same.
        """
        return {
            "problems": self.dataset.fingerprint,
            "sampling": self.sampling.model_dump(mode="json"),
            "verifier": self.verifier.model_dump(mode="json"),
            "environment": None if self.play is None else self.play.environment.model_dump(mode="json"),
        }


def measure_set(
    engine: Engine,
    asked: ProblemSet,
    judges: OpenJudges,
    progress: Progress | None = None,
    turn: Callable[[], None] | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> EvaluationResult:
    """Sample every problem of a set `asked.samples` times and judge the completions.

    A problem's samples depend only on the seed and its id, not on the other problems, so that two evaluations with the
    same seed compare sample by sample.

    Args:
        engine: idle; its weights are those that are evaluated.
        judges: the judges of verifiers, opened when first used; they stay open.
        progress: called as `progress(done, total, rollout)` after each judged completion.
        turn: called between two steps of the engine; an exception of it ends the evaluation.
        stall_seconds: how long neither a token nor a completion nor a verdict may arrive.

    Raises:
        InputError: the engine is busy, a prompt leaves no room for `max_new_tokens`, or there is nothing to evaluate.
        StropError: a completion was aborted, or nothing arrived for `stall_seconds`.
    """
    if engine.unfinished:
        raise InputError(f"the engine still has {engine.unfinished} sequences to finish; evaluate when it is idle")
    measurement = Measurement(asked, judges, engine.capabilities.slots)
    outstanding: Counter[str] = Counter()  # samples that the engine has yet to report, by request
    try:
        _collect(engine, measurement, outstanding, progress, stall_seconds, turn)
    except BaseException:
        _leave_idle(engine, outstanding)
        measurement.forget()
        raise
    return measurement.result(engine.weight_version)


def measure(
    engine: Engine,
    sets: Sequence[ProblemSet],
    names: Iterable[str],
    judges: OpenJudges,
    progress: SetProgress,
    turn: Callable[[], None] | None = None,
) -> dict[str, EvaluationResult]:
    """The results of the sets called `names`, one after the other; `progress(name, done, total)` after each sample.

    Raises:
        StropError: see `measure_set`.
    """
    known = {each.name: each for each in sets}

    def of(name: str) -> EvaluationResult:
        return measure_set(engine, known[name], judges, lambda done, total, _: progress(name, done, total), turn)

    return {name: of(name) for name in names}


def instructing(instruct: Instruct, play: Play | None) -> Instruct:
    """The verifier's instruction for a problem, as the environment changes it."""
    return instruct if play is None else lambda problem: play.environment.instruction(instruct(problem))


def fitted(sampling: Sampling, examples: Iterable[Example], room: int, note: Callable[[str], None]) -> Sampling:
    """`sampling` with no more new tokens than a model of `room` tokens has left after the longest prompt.

    A lower budget applies to all examples, so it is noted with the problem that causes it.

    Raises:
        InputError: the longest prompt leaves no room.
    """
    longest = max(examples, key=lambda example: len(example.prompt_ids))
    tokens = len(longest.prompt_ids)
    left = room - tokens
    if left < 1:
        raise InputError(
            f"the longest prompt has {tokens} tokens, the model's limit is {room}; "
            "lower data.max_prompt_tokens, which leaves longer prompts out"
        )
    if sampling.max_new_tokens <= left:
        return sampling
    note(
        f"completions end at {left} tokens, not {sampling.max_new_tokens}: of the model's {room}, the prompt of "
        f"problem {longest.problem.id!r} takes {tokens}"
    )
    return sampling.model_copy(update={"max_new_tokens": left})


def reporting_to(view: View) -> Progress:
    """Reports progress to a view, with the pass rate over the samples judged so far."""
    right = judged = 0

    def progress(done: int, total: int, rollout: Rollout) -> None:
        nonlocal right, judged
        right += rollout.verdict.passed
        judged += not rollout.verdict.failed
        view.advance(done, {"pass_rate": right / judged} if judged else {})

    return progress


def _collect(
    engine: Engine,
    measurement: Measurement,
    outstanding: Counter[str],
    progress: Progress | None,
    stall_seconds: float,
    turn: Callable[[], None] | None,
) -> None:
    """Step until every sample is judged."""
    last_arrival, made = time.monotonic(), CURRENT.count
    while measurement.done < measurement.total:
        if turn is not None:
            turn()
        for request in measurement.requests():
            engine.submit(request)
            outstanding[request.id] = request.n
        completions = engine.step() if engine.unfinished else []
        outstanding.subtract(completion.request_id for completion in completions)
        for completion in completions:
            measurement.take(completion)
        rollouts = measurement.judged()
        for done, rollout in rollouts:
            if progress is not None:
                progress(done, measurement.total, rollout)
        if completions or rollouts or made != CURRENT.count:  # of long completions an hour may be too short for one
            last_arrival, made = time.monotonic(), CURRENT.count
        elif not engine.unfinished:
            time.sleep(POLL_SECONDS)  # every sample is there; what is left are verdicts
        if time.monotonic() - last_arrival > stall_seconds:
            raise StropError(
                f"evaluation: no token for {stall_seconds:.0f} s, {measurement.total - measurement.done} of "
                f"{measurement.total} are missing; the engine says: {engine.health().detail}"
            )


def _leave_idle(engine: Engine, outstanding: Counter[str]) -> None:
    """Cancel the evaluation's requests, so that the next user of the engine does not receive their completions."""
    if not engine.health().ok:
        return
    for request_id, samples in outstanding.items():
        if samples > 0:
            engine.cancel(request_id)
    engine.step()  # reports what was cancelled; the reports are dropped


class Measurement:
    """A problem set that is being measured: requests go out, completions come in any order, and a result comes of them.

    Args:
        asked: the set.
        judges: see `measure_set`; only one measurement may use the set's judge at a time.
        slots: sequences that run at once, where known; an environment that speaks first begins few more trajectories.

    Raises:
        InputError: there is nothing to evaluate.
    """

    def __init__(self, asked: ProblemSet, judges: OpenJudges, slots: int | None) -> None:
        if asked.samples < 1 or not len(asked.dataset):
            raise InputError(f"nothing to evaluate: {len(asked.dataset)} problems, {asked.samples} samples of each")
        self._started = time.monotonic()
        self._dataset, self._sampling, self._verifier = asked.dataset, asked.sampling, asked.verifier
        self._judge: Responder = judges.of(asked.verifier, asked.play)
        self._seed = asked.seed
        self._waiting: dict[Key, Completion] = {}
        self._first_turns: set[Key] = set()  # samples whose first turn is in
        self._turns: dict[str, tuple[Key, Observation]] = {}  # those that are being sampled, by request
        self._versions: set[int] = set()
        self._begun = 0  # trajectories, where the environment begins them
        self._next: list[Request] = []
        first = within(asked.sampling, self._judge.turn_tokens)
        for index, example in enumerate(() if self._judge.speaks_first else asked.dataset):
            stream, keeps = _stream(asked.seed, example.problem), self._judge.several_turns
            self._next.append(
                Request(_request_id(index), example.prompt_ids, first, stream, asked.samples, keeps=keeps)
            )
        self._at_once = len(asked.dataset) * asked.samples if slots is None else math.ceil(OPEN_A_SLOT * slots)
        self._index_of = {_request_id(index): index for index in range(len(asked.dataset))}
        shape = (len(asked.dataset), asked.samples)
        self._verdicts: dict[tuple[int, int], Verdict] = {}
        self._answers: list[list[str | None]] = [[None] * asked.samples for _ in range(len(asked.dataset))]
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

    def requests(self) -> list[Request]:
        """What is to be sampled and was not yet asked for: all samples at first, later the next turns of some."""
        while self._judge.speaks_first and self._begun < min(self.done + self._at_once, self.total):
            index, sample = divmod(self._begun, self._lengths.shape[1])
            problem = self._dataset[index].problem
            self._judge.begin((_request_id(index), sample), problem, _stream(self._seed, problem))
            self._begun += 1
        found, self._next = self._next, []
        return found

    def take(self, completion: Completion) -> None:
        """Submit a completion, or the next turn of one, to the judge.

        A request may be sampled again as a whole, where a generator was lost; samples that are known are ignored.

        Raises:
            StropError: it was aborted, or nobody asked for it.
        """
        own = completion.request_id, completion.index
        key, observation = self._turns.pop(completion.request_id, (own, None))
        if observation is None and key in self._first_turns:
            return
        if key[0] not in self._index_of:
            raise StropError(f"evaluation: the engine reported request {completion.request_id!r}, which is not ours")
        if completion.finish_reason == "abort":
            raise StropError(f"evaluation: sample {key[1]} of {key[0]!r} was aborted")
        self._first_turns.add(key)
        self._versions.update(version for version, _, _ in completion.versions)
        turn = turns.counted(completion, self._sampling, self._judge.turn_tokens)
        whole = turn if observation is None else joined(key, self._waiting.get(key), observation, turn)
        self._submit(key, whole, turn)

    def _submit(self, key: Key, whole: Completion, turn: Completion) -> None:
        problem = self._dataset[self._index_of[key[0]]].problem
        self._waiting[key] = whole
        self._answers[self._index_of[key[0]]][key[1]] = self._verifier.answer(problem, turn.text)
        self._judge.submit(key, problem, turn, _stream(self._seed, problem))

    def judged(self) -> list[tuple[int, Rollout]]:
        """The samples judged since the last call, each with the number judged by then."""
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

    def forget(self) -> None:
        """Nobody wants the result any more."""
        for request_id in self._index_of:
            self._judge.forget(request_id)

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

    def result(self, version: int) -> EvaluationResult:
        """The result, once every sample is judged; `version` is that of the weights if no sample says which drew it."""
        versions = self._versions or {version}
        # Samples of a truncated distribution do not estimate the entropy of the whole one.
        whole = not self._sampling.truncates
        scores = np.zeros(self._lengths.shape, dtype=np.float32)
        usable, unparsed, undecided = (np.zeros(self._lengths.shape, dtype=np.bool_) for _ in range(3))
        for place, verdict in self._verdicts.items():
            usable[place], unparsed[place] = not verdict.failed, verdict.status is Status.UNPARSED
            undecided[place] = verdict.status is Status.UNDECIDED
            scores[place] = verdict.score if verdict.usable else 0.0
        return EvaluationResult(
            dataset=self._dataset.name,
            problem_ids=tuple(problem.id for problem in self._dataset.problems),
            scores=scores,
            correct=scores == 1.0,
            usable=usable,
            unparsed=unparsed,
            undecided=undecided,
            truncated=self._truncated,
            lengths=self._lengths,
            answers=tuple(tuple(row) for row in self._answers),
            version=min(versions),
            newest=max(versions),
            seconds=time.monotonic() - self._started,
            surprise=self._surprise if whole else None,
            sampled=self._sampled if whole else None,
            first_failure=next((verdict.detail for verdict in self._verdicts.values() if verdict.failed), ""),
        )


def _stream(seed: int, problem: Problem) -> int:
    return derive(seed, "evaluation", problem.id)


def _request_id(index: int) -> str:
    return f"evaluation-{index}"


# ---------------------------------------------------------------------- while a run trains


PREFIX = "evaluation"
# Metrics of the held-out problems have these names.
_TAKEN = ("pass_rate", "stderr", "entropy", "seconds", "version", "newest_version")


def benchmark_sets(
    settings: EvaluationSettings,
    steps: int,
    template: PromptTemplate,
    tokenizer: Tokenizer,
    sampling: Sampling,
    room: int,
    seed: int,
    note: Callable[[str], None],
    play: Play | None = None,
) -> tuple[ProblemSet, ...]:
    """The benchmarks of a run: the problems, prompts, verifiers and, for a seed, samples that `strop eval` uses.

    Args:
        settings: which benchmarks, how often, and where their files are.
        steps: of the run.
        template: the run's; it is made to ask for the form of the answer (`with_instruction`).
        sampling: the run's, rather than a protocol's.
        room: tokens of the model; problems with too long a prompt are left out, and noted.
        seed: the run's.
        note: called with a line for each set, and for problems left out.
        play: the run's environment, which is used where it takes any problem.

    Raises:
        InputError: a benchmark that is not optional cannot be found, is named twice, or has no problem that can be
            asked.
    """
    found: list[ProblemSet] = []
    play, where = benchmark_play(play)
    data = None if settings.benchmark_data is None else Path(settings.benchmark_data)
    for item in settings.benchmarks:
        if item.optional and (item.every or settings.every) is None:
            continue
        try:
            known = benchmark(item.name)
            if known.name in (HELD_OUT, *_TAKEN):
                raise InputError(f"no benchmark can be called {known.name!r} here; give the file another name")
            if any(known.name == other.name for other in found):
                raise InputError(f"two benchmarks are called {known.name!r}; give one of the files another name")
            problems = load_problems(known, data, item.limit, settings.benchmark_columns)
            verifier = default_verifier(known.kind)
            asking, most = with_instruction(template, known.kind, trained=True), room - sampling.max_new_tokens
            instruct = instructing(verifier.instruction, play)
            dataset = build_dataset(known.name, problems, asking, tokenizer, most, instruct)
        except InputError as error:
            if item.optional:
                note(f"{item.name}: not measured, {error}")
                continue
            raise InputError(f"evaluation.benchmarks: {error}") from error
        every = item.every or settings.every or steps
        often = "every step" if every == 1 else f"every {every} steps"
        note(f"{known.name}: {counted(len(dataset), 'problems')}, measured {often}{where}, at {in_words(sampling)}")
        if dataset.over_budget:
            left_out = counted(dataset.over_budget, "problems")
            note(f"{known.name}: {left_out} left out, the model has no room for their prompts")
        samples, stream = item.samples_per_problem or settings.samples_per_problem, benchmark_seed(seed, known)
        found.append(ProblemSet(known.name, dataset, samples, sampling, verifier, stream, play, every))
    return tuple(found)


def benchmark_seed(seed: int, measured: Benchmark) -> int:
    """The seed of the samples of a benchmark, in a run and for `strop eval`."""
    return derive(seed, "benchmark", measured.name)


def held_out_seed(seed: int) -> int:
    """The seed of the samples of a run's held-out problems, in the run and for `strop eval`."""
    return derive(seed, "evaluation")


def benchmark_play(play: Play | None) -> tuple[Play | None, str]:
    """The environment that benchmarks are asked in (None: one turn), and words for that."""
    if play is None:
        return None, ""
    name = play.environment.piece_name()
    if play.environment.takes_any_problem:
        return play, f" in the environment {name}"
    return None, f" in one turn, without the environment {name}, which only takes problems made for it"


def metrics(result: EvaluationResult, of: ProblemSet) -> dict[str, float | None]:
    """A result's metrics for metrics.jsonl; where held-out problems are of several domains, with those of each."""
    own = of.name == HELD_OUT
    prefix = PREFIX if own else f"{PREFIX}/{of.name}"
    low, high = result.interval()
    row: dict[str, float | None] = {
        f"{prefix}/pass_rate": result.pass_rate, f"{prefix}/stderr": result.stderr,
        f"{prefix}/interval_low": low, f"{prefix}/interval_high": high, f"{prefix}/entropy": result.entropy,
        f"{prefix}/version": result.version,
        f"{prefix}/newest_version": result.version if result.newest is None else result.newest,
    }  # fmt: skip
    if own:
        return row | _by_domain(result, of.dataset)
    return row | {f"{prefix}/length": result.mean_length, f"{prefix}/truncation_rate": result.truncation_rate}


def by_problem(result: EvaluationResult) -> dict[str, float]:
    """The pass rate of each problem that was judged, by its id."""
    rates = zip(result.problem_ids, result.pass_rates.tolist(), result.judged.tolist(), strict=True)
    return {name: rate for name, rate, judged in rates if judged}


def gain(before: Mapping[str, float], result: EvaluationResult) -> dict[str, float | None]:
    """The gain in held-out pass rate since `before` (by problem), with its 95 % interval; paired by problem."""
    after = by_problem(result)
    differences = np.array([after[name] - rate for name, rate in before.items() if name in after])
    if not len(differences):
        return {}
    low, high = difference_interval(differences)
    return {f"{PREFIX}/gain": float(differences.mean()), f"{PREFIX}/gain_low": low, f"{PREFIX}/gain_high": high}


def _by_domain(result: EvaluationResult, dataset: Dataset) -> dict[str, float | None]:
    domain_of = {problem.id: problem.domain for problem in dataset.problems}
    places: dict[str, list[int]] = {}
    for place, name in enumerate(result.problem_ids):
        places.setdefault(domain_of[name], []).append(place)
    found = {name: result.subset(of) for name, of in sorted(places.items()) if result.judged[of].any()}
    if len(places) == 1:
        return {}
    rates: dict[str, float | None] = {f"{PREFIX}/pass_rate/{name}": of.pass_rate for name, of in found.items()}
    return rates | {f"{PREFIX}/stderr/{name}": of.stderr for name, of in found.items()}
