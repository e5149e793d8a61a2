"""Quality judged by language models: several judges, several votes each, a threshold (Skywork-OR1: 2 × 16, keep 9)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from strop.base.seeds import derive
from strop.base.types import InputError, Problem, StropError
from strop.engines.endpoint.client import (
    Callers,
    ChatEndpoint,
    EndpointError,
    EndpointReply,
    NoChatTemplate,
    NoRoom,
    Patience,
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
NOTHING = EndpointReply("", 0, 0, 0)
POLL_SECONDS = 0.5
GRACE_SECONDS = 0.5  # in which votes that are on their way may still come in
READING = 2  # raise it when answers are read otherwise: votes that were kept are then asked for again
# \b and \f are LaTeX (\beta, \frac) rather than the control characters that JSON would make of them.
_ESCAPE = re.compile(r'\\(["\\/nrt]|u[0-9a-fA-F]{4})?')
_JSON = json.JSONDecoder(strict=False)


class Vote(NamedTuple):
    """One judge's vote; `failed` are the criteria that are not met, `valid` None where the answer cannot be read."""

    valid: bool | None
    failed: tuple[str, ...]
    reason: str


class Judges(Step):
    """Asks every judge `votes` times about each problem and keeps problems with at least `threshold` valid votes.

    Votes are journalled one by one: when an endpoint dies, its retries exhausted, the step ends with what was done
    kept, and the same command goes on from there. for_reading.md holds a sample for people.

    Fields:
        judges: the endpoints.
        votes: of each judge on each problem.
        threshold: valid votes that keep a problem; votes that cannot be read do not count as valid.
        stop_early: ask no further once the votes that are left cannot change the outcome.
        concurrency: problems asked about at once.
        temperature: above 0, or the votes of a judge would be one vote.
        max_tokens: of an answer.
        sample: problems written out for people to read.
        instruction: what stands before the problem; the answer's form must stay.
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
        """Without how the endpoints are reached: votes stay valid when an endpoint moves or is asked more patiently."""
        value = self.model_dump(mode="json", exclude={"concurrency"})
        value["judges"] = [judge.model_dump(mode="json", exclude=REACHED) for judge in self.judges]
        return value | {"reading": READING}

    @property
    def total_votes(self) -> int:
        """Votes on a problem when all are asked for."""
        return self.votes * len(self.judges)

    def run(self, stage: Stage) -> None:
        """Collect the votes, then decide.

        Raises:
            EndpointError: an endpoint died; what was done is kept.
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
    """What most votes hold against a problem; that no vote could be read is nothing against it."""
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
    """The votes, asked for by threads; the journal is written by the calling thread alone."""

    def __init__(self, step: Judges, stage: Stage) -> None:
        self._step, self._stage = step, stage
        self._journal = Journal(stage.folder / "votes.jsonl")
        self._patience = Patience()
        # Problems that a thread asks about, with the votes that it has got so far.
        self._running: dict[Future[None], list[dict[str, Any]]] = {}
        self._done = 0
        self.votes: dict[str, list[Vote | None]] = {}
        for entry in self._journal.entries:
            self._seats(entry["id"])[entry["seat"]] = Vote(entry["valid"], tuple(entry["failed"]), entry["reason"])

    @property
    def cast(self) -> int:
        """Votes in the journal."""
        return len(self._journal.entries)

    def run(self) -> None:
        """Until every problem is decided.

        An error or a Ctrl-C waits no longer than `GRACE_SECONDS` for what is on its way.
        """
        waiting = self._undecided()
        callers = Callers(self._step.concurrency)
        try:
            while self._fill(callers, waiting):
                done, _ = wait(self._running, POLL_SECONDS, FIRST_COMPLETED)
                for line in self._patience.news():
                    self._stage.view.note(line)
                self._take(done)
        except BaseException:
            self._patience.give_up()
            callers.close()
            wait(self._running, GRACE_SECONDS)
            self._take(set(self._running), raising=False)
            raise
        callers.close()

    def _fill(self, callers: Callers, waiting: Iterator[Problem]) -> bool:
        """Have more problems asked about, while there are any; whether something is asked at all."""
        while len(self._running) < 2 * self._step.concurrency:
            problem = next(waiting, None)
            if problem is None:
                break
            entries: list[dict[str, Any]] = []
            ask = partial(self._ask, problem.id, problem.question, list(self._seats(problem.id)), entries)
            self._running[callers.submit(ask)] = entries
        return bool(self._running)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def costs(self) -> dict[str, Any]:
        """Votes, tokens and dollars, of this run and of those before a kill together."""
        entries = self._journal.entries
        prompt, completion = Counter[int](), Counter[int]()
        for entry in entries:
            prompt[entry["seat"] % len(self._step.judges)] += entry["prompt_tokens"]
            completion[entry["seat"] % len(self._step.judges)] += entry["completion_tokens"]
        judges = enumerate(self._step.judges)
        return {
            "votes": len(entries),
            "unreadable_votes": sum(entry["valid"] is None for entry in entries),
            "calls": sum(entry["retries"] + 1 for entry in entries),
            "retries": sum(entry["retries"] for entry in entries),
            "prompt_tokens": prompt.total(),
            "completion_tokens": completion.total(),
            "dollars": round(sum(judge.cost(prompt[place], completion[place]) for place, judge in judges), 6),
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

    def _ask(
        self, problem_id: str, question: str, seats: list[Vote | None], entries: list[dict[str, Any]]
    ) -> None:
        """In a thread: one problem, seat by seat (the judges take turns), into `entries`; an error comes last."""
        for seat in range(len(seats)):
            if self._patience.given_up or self._decided(seats):
                break
            if seats[seat] is not None:
                continue
            judge = self._step.judges[seat % len(self._step.judges)]
            seed = derive(self._stage.seed, "judge", problem_id, seat)
            messages = [{"role": "user", "content": self._step.instruction + question}]
            try:
                reply = judge.chat(messages, self._step.temperature, self._step.max_tokens, seed, self._patience)
            except NoRoom as error:
                # The other problems are not the worse for one that is too long for this judge.
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

    def _take(self, done: set[Future[None]], raising: bool = True) -> None:
        """Journal what came back; then raise what went wrong, once every vote that was got is safe.

        Without `raising` a problem may still be asked about: its votes so far are taken.
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
                future.result()  # what is no StropError
        if errors and raising:
            raise errors[0]


def read_vote(text: str) -> Vote:
    """The vote of a judge's answer: its last JSON object that is one, wherever it stands.

    A vote without `valid` is valid when every criterion is met. Judges write LaTeX into their reasons: a backslash that
    is no escape of JSON stands for itself.
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
        # An object that is no vote may have one inside.
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
    """A sample of problems with their votes, drawn by a hash of their ids, as a page for people."""

    def __init__(self, stage: Stage, size: int) -> None:
        self._stage, self._size = stage, size
        self._pages: list[tuple[int, str]] = []

    def offer(self, problem: Problem, votes: list[Vote], kept: bool) -> None:
        """Perhaps take a problem into the sample."""
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
