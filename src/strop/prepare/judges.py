"""Language models vote on the quality of problems (Skywork-OR1: 2 judges × 16 votes, keep from 9)."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from strop.base.seeds import derive
from strop.base.types import InputError, Problem, StropError
from strop.engines.endpoint import (
    ChatEndpoint,
    EndpointClient,
    EndpointError,
    EndpointReply,
    NoChatTemplate,
    NoRoom,
    cancelled,
)
from strop.prepare.stage import Dropped, Journal, Stage, Step

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
REACHED = {"url", "api_key_env", "timeout", "retries", "backoff"}
NOTHING = EndpointReply("")
POLL_SECONDS = 0.5
GRACE_SECONDS = 0.5  # how long an interrupted step still waits for running requests
# \b and \f are read as LaTeX (\beta, \frac), not as control characters of JSON.
_ESCAPE = re.compile(r'\\(["\\/nrt]|u[0-9a-fA-F]{4})?')
_JSON = json.JSONDecoder(strict=False)


class Vote(NamedTuple):
    """One vote of a judge: `failed` lists the unmet criteria; `valid` is None if the answer is unreadable."""

    valid: bool | None
    failed: tuple[str, ...]
    reason: str


class Judges(Step):
    """Asks every judge `votes` times about each problem and keeps problems with at least `threshold` valid votes.

    Votes are journalled one by one. If an endpoint fails after all retries, the step ends, and the same command
    resumes from the journal. for_reading.md holds a sample for people.

    Fields:
        judges: the endpoints.
        votes: number of votes of each judge on each problem.
        threshold: number of valid votes that keeps a problem; unreadable votes are not valid.
        stop_early: stop asking once the remaining votes cannot change the outcome.
        concurrency: number of problems that are asked about at once.
        temperature: sampling temperature; at 0 all votes of a judge would be equal.
        max_tokens: token limit of an answer.
        sample: number of problems in for_reading.md.
        instruction: text before the problem; it must ask for the same JSON object.
    """

    judges: Annotated[tuple[ChatEndpoint, ...], Field(min_length=1)]
    votes: Annotated[int, Field(ge=1)] = 16
    threshold: Annotated[int, Field(ge=1)] = 9
    stop_early: bool = True
    concurrency: Annotated[int, Field(ge=1)] = 8
    temperature: Annotated[float, Field(ge=0)] = 1.0
    max_tokens: Annotated[int, Field(ge=16)] = 1024
    sample: Annotated[int, Field(ge=0)] = 200
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
            polling.run()
        except EndpointError as error:
            raise EndpointError(
                f"{error}; {polling.cast} votes are kept, run the same command again to go on from them"
            ) from error
        finally:
            polling.close()
        self._decide(stage, polling)

    def _decide(self, stage: Stage, polling: _Polling) -> None:
        reading = _ForReading(stage, self.sample)
        failed: Counter[str] = Counter()
        for problem in stage.problems(f"{stage.name}: choosing"):
            votes = [vote for vote in polling.votes[problem.id] if vote is not None]
            valid = sum(vote.valid is True for vote in votes)
            reading.offer(problem, votes, valid >= self.threshold)
            if valid >= self.threshold:
                stage.keep(problem)
                continue
            blamed = Counter(name for vote in votes for name in vote.failed)
            failed.update(blamed.keys())
            stage.drop(problem, _why(votes, valid, blamed))
        reading.close()
        stage.counts |= polling.costs()
        stage.counts["problems_dropped_with_a_vote_against"] = dict(failed)
        unread = [vote for votes in polling.votes.values() for vote in votes if vote is not None and vote.valid is None]
        if unread:
            stage.hint = (
                f"{len(unread)} of {polling.cast} votes could not be read, such as {unread[0].reason!r} (an answer is "
                "one JSON object, within max_tokens)"
            )


def _why(votes: list[Vote], valid: int, blamed: Counter[str]) -> Dropped:
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
    """Collects the votes: a task for each problem that is asked about."""

    def __init__(self, step: Judges, stage: Stage) -> None:
        self._step, self._stage = step, stage
        self._journal = Journal(stage.folder / "votes.jsonl")
        self._loop = asyncio.new_event_loop()
        self._clients = [EndpointClient(judge, stage.view.note) for judge in step.judges]
        self._ending = False
        # The task of each problem, with the votes that it has received so far.
        self._running: dict[asyncio.Task[None], list[dict[str, Any]]] = {}
        self._done = 0
        self.votes: dict[str, list[Vote | None]] = {}
        for entry in self._journal.entries:
            self._seats(entry["id"])[entry["seat"]] = Vote(entry["valid"], tuple(entry["failed"]), entry["reason"])

    @property
    def cast(self) -> int:
        """The number of votes in the journal."""
        return len(self._journal.entries)

    def run(self) -> None:
        """Run until every problem is decided.

        After an error or a Ctrl-C it waits at most `GRACE_SECONDS` for running requests.
        """
        waiting = self._undecided()
        try:
            while self._fill(waiting):
                self._take(self._wait(POLL_SECONDS, asyncio.FIRST_COMPLETED))
        except BaseException:
            self._ending = True
            if self._running:
                self._wait(GRACE_SECONDS, asyncio.ALL_COMPLETED)
            self._take(set(self._running), raising=False)
            raise

    def _wait(self, seconds: float, until: str) -> set[asyncio.Task[None]]:
        """Wait for running tasks, at most `seconds`; returns those that are done."""
        return self._loop.run_until_complete(asyncio.wait(self._running, timeout=seconds, return_when=until))[0]

    def _fill(self, waiting: Iterator[Problem]) -> bool:
        """Ask about more problems; returns whether any task is running."""
        while len(self._running) < self._step.concurrency:
            problem = next(waiting, None)
            if problem is None:
                break
            entries: list[dict[str, Any]] = []
            ask = self._ask(problem.id, problem.question, list(self._seats(problem.id)), entries)
            self._running[self._loop.create_task(ask)] = entries
        return bool(self._running)

    def close(self) -> None:
        """Drop the requests that are left, and close the journal."""
        self._loop.run_until_complete(self._end())
        self._loop.close()
        self._journal.close()

    async def _end(self) -> None:
        await cancelled(asyncio.all_tasks())
        for client in self._clients:
            await client.close()

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

    def _seats(self, problem_id: str) -> list[Vote | None]:
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

    def _decided(self, seats: list[Vote | None]) -> bool:
        left = seats.count(None)
        if left == 0 or not self._step.stop_early:
            return left == 0
        valid = sum(vote is not None and vote.valid is True for vote in seats)
        return valid >= self._step.threshold or valid + left < self._step.threshold

    async def _ask(
        self, problem_id: str, question: str, seats: list[Vote | None], entries: list[dict[str, Any]]
    ) -> None:
        """Collects the votes on a problem in `entries`, the judges in turns; an error comes last."""
        for seat in range(len(seats)):
            if self._ending or self._decided(seats):
                break
            if seats[seat] is not None:
                continue
            judge = self._clients[seat % len(self._clients)]
            seed = derive(self._stage.seed, "judge", problem_id, seat)
            messages = [{"role": "user", "content": self._step.instruction + question}]
            try:
                reply = await judge.chat(messages, self._step.temperature, self._step.max_tokens, seed)
            except NoRoom as error:
                # A problem that is too long for this judge does not end the step.
                vote = seats[seat] = Vote(None, (), str(error)[:300])
                entries.append({"id": problem_id, "seat": seat, **vote._asdict(), **_counted(NOTHING)})
                continue
            except NoChatTemplate as error:
                way_out = "judges are asked by messages: name an instruct model, or serve this one with a chat template"
                entries.append({"error": InputError(f"{error}; {way_out}")})
                break
            except StropError as error:
                entries.append({"error": error})
                break
            vote = seats[seat] = read_vote(reply.text)
            entries.append({"id": problem_id, "seat": seat, **vote._asdict(), **_counted(reply)})

    def _take(self, done: set[asyncio.Task[None]], raising: bool = True) -> None:
        """Journal the votes that came back, then raise the first error.

        With `raising=False` the requests may still be running; their votes so far are taken.
        """
        errors: list[StropError] = []
        for future in done:
            for entry in tuple(self._running.pop(future)):
                if "error" in entry:
                    errors.append(entry["error"])
                else:
                    seat = Vote(entry["valid"], tuple(entry["failed"]), entry["reason"])
                    self._seats(entry["id"])[entry["seat"]] = seat
                    self._journal.add(entry)
                    if self._decided(self._seats(entry["id"])):
                        self._count()
            if raising:
                future.result()  # raises errors other than StropError
        if errors and raising:
            raise errors[0]


def read_vote(text: str) -> Vote:
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
    return last or Vote(None, (), text.strip()[:100])


def _vote(value: dict[str, Any]) -> Vote | None:
    failed = tuple(name for name in CRITERIA if value.get(name) is False)
    valid = value.get("valid")
    if valid is None and any(name in value for name in CRITERIA):
        valid = not failed
    return Vote(valid, failed, str(value.get("reason", ""))[:300]) if isinstance(valid, bool) else None


def _counted(reply: EndpointReply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "retries": reply.retries,
    }


class _ForReading:
    """Writes for_reading.md: problems with their votes, sampled by a hash of their ids."""

    def __init__(self, stage: Stage, size: int) -> None:
        self._stage, self._size = stage, size
        self._pages: list[tuple[int, str]] = []

    def offer(self, problem: Problem, votes: list[Vote], kept: bool) -> None:
        """Add a problem to the sample if its hash is small enough."""
        if not self._size:
            return
        self._pages.append((derive(self._stage.seed, "reading", problem.id), _page(problem, votes, kept)))
        if len(self._pages) > 2 * self._size + 64:
            self._pages = sorted(self._pages)[: self._size]

    def close(self) -> None:
        """Write the page."""
        pages = "\n\n".join(page for _, page in sorted(self._pages)[: self._size])
        (self._stage.folder / "for_reading.md").write_text(
            f"# Problems and their judges\n\n{pages}\n", encoding="utf-8"
        )


def _page(problem: Problem, votes: list[Vote], kept: bool) -> str:
    marks = "".join({True: "+", False: "-", None: "?"}[vote.valid] for vote in votes)
    reasons = "\n".join(f"- {vote.reason}" for vote in votes if vote.reason and vote.valid is not True)
    verdict = "kept" if kept else "dropped"
    answer = str(problem.reference)[:500]
    return f"## {problem.id}: {verdict} ({marks})\n\n{problem.question}\n\nAnswer: {answer}\n\n{reasons}"
