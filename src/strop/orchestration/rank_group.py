"""A gang: workers that do every piece of work together, each its share, and fail together.

    gang = Gang(launcher, specs, silence=60.0, stall=900.0)
    answer = gang.call("learn", groups, survivors, step, states)     # of the first; the others must agree with it
    gang.close()

A call goes to every member at once, because they wait for each other inside it. One that dies, is silent or stands
still makes the rest wait for ever: the whole gang is then ended, and `GangLost` says why.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.base import progress
from strop.base.types import StropError
from strop.orchestration.connection import Launcher, Line, Link, WorkerSpec, end, lively, overdue

_LOOK_SECONDS = 0.5  # between two looks at who is silent
_LAST_WORDS_SECONDS = 0.5  # the others of a dead member end of it too, and may say what it was
_AGREE_SECONDS = 30.0  # for the others, once one has refused
IDLE_SECONDS = 1.0


class GangLost(StropError):
    """A member died, was silent or stood still, and the gang with it; another one may do better."""


class Disagreement(StropError):
    """Members that must come to the same have not."""


@dataclass(frozen=True)
class Call:
    """Work for every member: a method and its pickled arguments."""

    number: int
    method: str
    arguments: bytes


@dataclass(frozen=True, eq=False)
class Answer:
    """What came of a call: the value, from the first member alone, and a digest of it from all."""

    number: int
    value: Any
    digest: str


@dataclass(frozen=True, eq=False)
class Refusal:
    """The call could not be done, and changed nothing; the member goes on."""

    number: int
    error: StropError


class Gang:
    """The controller's side. Members are launched at once and need not be waited for: the first call is.

    Args:
        launcher: starts the members.
        specs: one for each, in order.
        silence: seconds without a sign of life after which a member counts as dead.
        stall: seconds without progress of a member's work after which it counts as dead. A call may take longer where
            what it does makes something meanwhile (`supervision.progress`), as training makes micro-batches.
    """

    def __init__(self, launcher: Launcher, specs: Sequence[WorkerSpec], silence: float, stall: float) -> None:
        self._launcher = launcher
        self._silence, self._stall = silence, stall
        self._calls = 0
        self._open = True
        self.links: list[Link] = [launcher.launch(spec) for spec in specs]

    @property
    def alive(self) -> bool:
        """Whether it can be called."""
        return self._open

    def call(self, method: str, *arguments: Any) -> Any:
        """Have every member do it; what the first one answers.

        Raises:
            GangLost: a member is no more, or took too long.
            Disagreement: two members came to different results.
            StropError: what the members refused it with.
        """
        if not self._open:
            raise GangLost("the trainer's ranks are ended")
        self._calls += 1
        call = Call(self._calls, method, pickle.dumps(arguments, protocol=pickle.HIGHEST_PROTOCOL))
        for link in self.links:
            link.send(call)
        found = self._collect(self._calls)
        refused = [one.error for one in found if isinstance(one, Refusal)]
        if refused:
            raise refused[0]
        answers = [one for one in found if isinstance(one, Answer)]
        if len({answer.digest for answer in answers}) > 1:
            self._end()
            digests = ", ".join(f"{link.role} {one.digest[:8]}" for link, one in zip(self.links, answers, strict=True))
            raise Disagreement(f"the trainer's ranks came to different results in {method}: {digests}")
        return answers[0].value

    def close(self) -> None:
        """End the members; may be called twice."""
        if self._open:
            self._open = False
            end(self._launcher, self.links)

    # ------------------------------------------------------------------ inside

    def _collect(self, number: int) -> list[Answer | Refusal]:
        """Every member's reply to a call, in order of members."""
        found: dict[int, Answer | Refusal] = {}
        deadline: float | None = None
        while len(found) < len(self.links):
            missing = [link for place, link in enumerate(self.links) if place not in found]
            self._launcher.wait(missing, _LOOK_SECONDS)
            for place, link in enumerate(self.links):
                for message in link.receive():
                    if isinstance(message, Answer | Refusal) and message.number == number:
                        found[place] = message
            self._check(missing)
            busy = [link.role for place, link in enumerate(self.links) if place not in found and lively(link)]
            if busy:  # the others may wait for it
                progress.made(f"work of {busy[0]}")
            if any(isinstance(reply, Refusal) for reply in found.values()):
                deadline = deadline or time.monotonic() + _AGREE_SECONDS
                if time.monotonic() > deadline:  # it was alone with that; the others wait for it
                    self._end()
                    break
        return [found[place] for place in sorted(found)]

    def _check(self, missing: Sequence[Link]) -> None:
        """Give the gang up where somebody who is waited for will not answer."""
        for link in missing:
            reason = overdue(link, self._silence, self._stall)
            if link.death is None and reason is not None:
                link.kill(reason)
        if any(link.death is not None or overdue(link, self._silence, self._stall) for link in missing):
            raise self._lost()

    def _lost(self) -> StropError:
        until = time.monotonic() + _LAST_WORDS_SECONDS
        while (left := until - time.monotonic()) > 0 and (living := [x for x in self.links if x.death is None]):
            self._launcher.wait(living, left)
            for link in self.links:
                link.receive()
        deaths = {link.role: link.death for link in self.links}
        self._end()
        said = "; ".join(f"{role}: {death.reason}" for role, death in deaths.items() if death is not None)
        fatal = next((death.reason for death in deaths.values() if death is not None and death.fatal), None)
        return GangLost(f"the trainer is lost ({said})") if fatal is None else StropError(fatal)

    def _end(self) -> None:
        """What is left of it waits for those that are gone: no time for farewells."""
        self._open = False
        for link in self.links:
            if link.death is None:
                link.kill("another rank of the trainer is gone")
        end(self._launcher, self.links)


Handler = Callable[..., tuple[Any, str]]


def serve(line: Line, first: bool, handlers: Mapping[str, Handler]) -> None:
    """A member's side: do what is called for, until nobody calls any more.

    Args:
        line: to the controller.
        first: whether this is the member whose values are wanted.
        handlers: by method; each gives its value and a digest of what all members must come to.

    Raises:
        ControllerGone: the normal end.
    """
    while True:
        for call in line.receive(IDLE_SECONDS):
            assert isinstance(call, Call)
            try:
                value, digest = handlers[call.method](*pickle.loads(call.arguments))
            except StropError as error:
                line.send(Refusal(call.number, error))
            else:
                line.send(Answer(call.number, value if first else None, digest))
            line.progress()
