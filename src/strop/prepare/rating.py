"""Steps that rate problems by language models: how often one solves them (`Difficulty`), how several vote (`Judges`).

Archer's two screens are two steps: eight samples of a strong model with `max_correct = 8`, which drops what no sample
solves, then eight samples of the policy, which drops what it always or never solves. Skywork-OR1 has 2 judges with 16
votes each, and keeps from 9.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, SerializeAsAny, model_validator

from strop.base.endpoint import (
    ChatEndpoint,
    EndpointClient,
    EndpointError,
    EndpointReply,
    NoChatTemplate,
    NoRoom,
    cancelled,
)
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


# ---------------------------------------------------------------------- the votes of judges


CRITERIA = {
    "clear_wording": "the wording is unclear",
    "complete_information": "information is missing",
    "good_formatting": "badly formatted",
    "no_distractions": "has distracting or irrelevant text",
}
INSTRUCTION = """You check problems for a training set. Judge the problem below, do not solve it.

clear_wording: it is stated in a way that is easy to understand.
complete_information: it gives every detail that is needed to answer it.
good_formatting: its numbers, symbols and equations are clear and well formatted.
no_distractions: it has no text that does not belong to it (numbering, sources, remarks of a translator, repetitions).

Answer with one JSON object and nothing else:
{"clear_wording": true, "complete_information": true, "good_formatting": true, "no_distractions": true, \
"valid": true, "reason": "a few words"}
"valid" is true when the problem is good enough to train on.

Problem:
"""
REACHED = {"url", "api_key_env", "timeout", "retries", "backoff", "requests_per_minute"}
NOTHING = EndpointReply("")
GRACE_SECONDS = 0.5  # how long an interrupted step still waits for running requests
# \b and \f are read as LaTeX (\beta, \frac), not as control characters of JSON.
_ESCAPE = re.compile(r'\\(["\\/nrt]|u[0-9a-fA-F]{4})?')
_JSON = json.JSONDecoder(strict=False)


class ProblemVote(NamedTuple):
    """One vote of a judge: `failed` lists the unmet criteria; `valid` is None if the answer is unreadable."""

    valid: bool | None
    failed: tuple[str, ...]
    reason: str


class Judges(Step):
    """Asks every judge `votes` times about each problem and keeps problems with at least `threshold` valid votes.

    Votes are journalled one by one. If an endpoint fails after all retries, the step ends, and the same command
    resumes from the journal.

    Fields:
        judges: the endpoints.
        votes: number of votes of each judge on each problem.
        threshold: number of valid votes that keeps a problem; unreadable votes are not valid.
        stop_early: stop asking once the remaining votes cannot change the outcome.
        concurrency: number of problems that are asked about at once.
        temperature: sampling temperature; at 0 all votes of a judge would be equal.
        max_tokens: token limit of an answer.
        instruction: text before the problem; it must ask for the same JSON object.
    """

    judges: Annotated[tuple[ChatEndpoint, ...], Field(min_length=1)]
    votes: Annotated[int, Field(ge=1)] = 16
    threshold: Annotated[int, Field(ge=1)] = 9
    stop_early: bool = True
    concurrency: Annotated[int, Field(ge=1)] = 8
    temperature: Annotated[float, Field(ge=0)] = 1.0
    max_tokens: Annotated[int, Field(ge=16)] = 1024
    instruction: str = INSTRUCTION

    @model_validator(mode="after")
    def _check(self) -> Judges:
        if self.threshold > self.total_votes:
            raise ValueError(f"threshold={self.threshold} exceeds the {self.total_votes} votes that there are")
        return self

    def identity(self) -> dict[str, Any]:
        """The settings without addresses, retries and concurrency, which do not change the votes."""
        value = self.model_dump(mode="json", exclude={"concurrency"})
        value["judges"] = [judge.model_dump(mode="json", exclude=REACHED) for judge in self.judges]
        return value

    @property
    def total_votes(self) -> int:
        """The number of votes on a problem if all are asked for."""
        return self.votes * len(self.judges)

    def run(self, stage: Stage) -> None:
        """Collect the votes, then decide.

        Raises:
            EndpointError: an endpoint failed; the votes so far are kept.
        """
        polling = _Polling(self, stage)
        try:
            asyncio.run(polling.run())
        except EndpointError as error:
            raise EndpointError(
                f"{error}; {polling.cast} votes are kept, run the same command again to go on from them"
            ) from error
        finally:
            polling.close()
        self._decide(stage, polling)

    def _decide(self, stage: Stage, polling: _Polling) -> None:
        failed: Counter[str] = Counter()
        for problem in stage.problems(f"{stage.name}: choosing"):
            votes = [vote for vote in polling.votes[problem.id] if vote is not None]
            valid = sum(vote.valid is True for vote in votes)
            if valid >= self.threshold:
                stage.keep(problem)
                continue
            blamed = Counter(name for vote in votes for name in vote.failed)
            failed.update(blamed.keys())
            stage.drop(problem, _why(votes, valid, blamed))
        stage.counts |= polling.costs()
        stage.counts["problems_dropped_with_a_vote_against"] = dict(failed)
        unread = [vote for votes in polling.votes.values() for vote in votes if vote is not None and vote.valid is None]
        if unread:
            stage.hint = (
                f"{len(unread)} of {polling.cast} votes could not be read, such as {unread[0].reason!r} (an answer is "
                "one JSON object, within max_tokens)"
            )


def _why(votes: list[ProblemVote], valid: int, blamed: Counter[str]) -> Dropped:
    """The most frequent complaint of the votes, or that no vote could be read."""
    unread = [vote for vote in votes if vote.valid is None]
    if len(unread) == len(votes):
        said = f"{len(votes)} of {len(votes)} votes could not be read, such as {unread[0].reason!r}"
        return Dropped("no vote could be read", said)
    worst = blamed.most_common(1)
    reason = CRITERIA[worst[0][0]] if worst else "judged not valid"
    said = next((vote.reason for vote in votes if vote.valid is False and vote.reason), "")
    missing = f", {len(unread)} could not be read" if unread else ""
    return Dropped(reason, f"{valid} of {len(votes)} votes valid{missing}; {said}")


class _Polling:
    """Collects the votes; each one is journalled when it arrives."""

    def __init__(self, step: Judges, stage: Stage) -> None:
        self._step, self._stage = step, stage
        self._journal = Journal(stage.folder / "votes.jsonl")
        self._ending = False
        self._done = 0
        self.votes: dict[str, list[ProblemVote | None]] = {}
        for entry in self._journal.entries:
            vote = ProblemVote(entry["valid"], tuple(entry["failed"]), entry["reason"])
            self._seats(entry["id"])[entry["seat"]] = vote

    @property
    def cast(self) -> int:
        """The number of votes in the journal."""
        return len(self._journal.entries)

    async def run(self) -> None:
        """Run until every problem is decided.

        After an error or a Ctrl-C it waits at most `GRACE_SECONDS` for running requests.
        """
        clients = [EndpointClient(judge, self._stage.view.note) for judge in self._step.judges]
        waiting = self._undecided()
        tasks = [asyncio.create_task(self._work(waiting, clients)) for _ in range(self._step.concurrency)]
        try:
            for done in asyncio.as_completed(tasks):
                await done
        finally:
            self._ending = True
            await asyncio.wait(tasks, timeout=GRACE_SECONDS)
            await cancelled(tasks)
            for client in clients:
                await client.close()

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    async def _work(self, waiting: Iterator[Problem], clients: list[EndpointClient]) -> None:
        """Ask about one problem after the other."""
        for problem in waiting:
            await self._ask(problem, clients)
            if self._ending:
                break

    def costs(self) -> dict[str, Any]:
        """Votes and tokens, including those before a kill."""
        entries = self._journal.entries
        return {
            "votes": len(entries),
            "unreadable_votes": sum(entry["valid"] is None for entry in entries),
            "calls": sum(entry["retries"] + 1 for entry in entries),
            "retries": sum(entry["retries"] for entry in entries),
            "prompt_tokens": sum(entry["prompt_tokens"] for entry in entries),
            "completion_tokens": sum(entry["completion_tokens"] for entry in entries),
        }

    def _seats(self, problem_id: str) -> list[ProblemVote | None]:
        return self.votes.setdefault(problem_id, [None] * self._step.total_votes)

    def _undecided(self) -> Iterator[Problem]:
        for problem in self._stage.problems(ticking=False):
            if self._decided(self._seats(problem.id)):
                self._count()
            else:
                yield problem

    def _count(self) -> None:
        self._done += 1
        self._stage.tick(self._done)

    def _decided(self, seats: list[ProblemVote | None]) -> bool:
        left = seats.count(None)
        if left == 0 or not self._step.stop_early:
            return left == 0
        valid = sum(vote is not None and vote.valid is True for vote in seats)
        return valid >= self._step.threshold or valid + left < self._step.threshold

    async def _ask(self, problem: Problem, clients: list[EndpointClient]) -> None:
        """Collect the votes on a problem, the judges in turns."""
        seats = self._seats(problem.id)
        for seat in range(len(seats)):
            if self._ending or self._decided(seats):
                break
            if seats[seat] is not None:
                continue
            seed = derive(self._stage.seed, "judge", problem.id, seat)
            messages = [{"role": "user", "content": self._step.instruction + problem.question}]
            client = clients[seat % len(clients)]
            try:
                reply = await client.chat(messages, self._step.temperature, self._step.max_tokens, seed)
                vote = read_vote(reply.text)
            except NoRoom as error:  # a problem that is too long for this judge does not end the step
                reply, vote = NOTHING, ProblemVote(None, (), str(error)[:300])
            except NoChatTemplate as error:
                way_out = "judges are asked by messages: name an instruct model, or serve this one with a chat template"
                raise InputError(f"{error}; {way_out}") from error
            seats[seat] = vote
            self._journal.add({"id": problem.id, "seat": seat, **vote._asdict(), **_counted(reply)})
        if self._decided(seats):
            self._count()


def read_vote(text: str) -> ProblemVote:
    """The vote in a judge's answer: the last JSON object in it that is a vote.

    A vote without `valid` is valid if every criterion is met. Reasons may contain LaTeX: a backslash that is not an
    escape of JSON is kept.
    """
    answer = _ESCAPE.sub(lambda found: found[0] if found[1] else r"\\", text.rpartition("</think>")[2])
    last, place = None, answer.find("{")
    while place >= 0:
        try:
            value, end = _JSON.raw_decode(answer, place)
        except (ValueError, RecursionError):
            vote = None
        else:
            vote = _vote(value)
        # An object that is not a vote may contain one.
        last, place = vote or last, answer.find("{", place + 1 if vote is None else end)
    return last or ProblemVote(None, (), text.strip()[:100])


def _vote(value: dict[str, Any]) -> ProblemVote | None:
    failed = tuple(name for name in CRITERIA if value.get(name) is False)
    valid = value.get("valid")
    if valid is None and any(name in value for name in CRITERIA):
        valid = not failed
    return ProblemVote(valid, failed, str(value.get("reason", ""))[:300]) if isinstance(valid, bool) else None


def _counted(reply: EndpointReply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "retries": reply.retries,
    }
