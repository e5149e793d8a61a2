"""A rank group: workers that do every call together, each its share, and fail together.

    group = RankGroup(launcher, specs, silence=60.0, stall=900.0)
    answer = group.call("learn", groups, survivors, step, states)     # of the first; the others must agree with it
    group.close()

A call goes to every member at once, because they wait for each other inside it. If one dies or hangs, the others would
wait for ever: the whole group is then ended, and `RankGroupLost` says why.

On one host the arrays of a call lie in a file in memory, once for all members. Each maps it, and reads of it what it
computes with: of the experts that tokens were sent to those of its micro-batches, of gigabytes for all.
"""

from __future__ import annotations

import mmap
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.base import progress
from strop.base.text import counted
from strop.base.types import StropError
from strop.orchestration.workers import (
    ControllerConnection,
    Supervision,
    Team,
    WorkerHandle,
    WorkerLauncher,
    WorkerSpec,
)

_LOOK_SECONDS = 0.5  # between two checks for silent members
_LAST_WORDS_SECONDS = 0.5  # in which other members may report the same reason
_AGREE_SECONDS = 30.0  # for the others, once one has refused
IDLE_SECONDS = 1.0
_ALIGNED = 64  # bytes, at a multiple of which each array begins


class RankGroupLost(StropError):
    """A member died or hung, and the rank group was ended; another group may succeed."""


class Disagreement(StropError):
    """Members that must have equal results have different ones."""


@dataclass(frozen=True)
class RankCall:
    """Work for every member: a method and its pickled arguments.

    Attributes:
        arrays: where each array of the arguments begins and ends in the file `path`; none: they are in the pickle.
    """

    number: int
    method: str
    arguments: bytes
    path: str = ""
    arrays: tuple[tuple[int, int], ...] = ()

    def unpickled(self) -> Sequence[Any]:
        """The arguments. Their arrays are pages of the file, copied where they are written to."""
        if not self.arrays:
            found: Sequence[Any] = pickle.loads(self.arguments)
            return found
        with open(self.path, "rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        found = pickle.loads(self.arguments, buffers=[content[begin:end] for begin, end in self.arrays])
        return found


@dataclass(frozen=True, eq=False)
class RankAnswer:
    """The answer to a call: the value, from the first member only, and a digest of it from all."""

    number: int
    value: Any
    digest: str


@dataclass(frozen=True, eq=False)
class RankRefusal:
    """The call failed and changed nothing; the member goes on."""

    number: int
    error: StropError


class RankGroup:
    """The controller's side. Members are launched at once and need not be waited for: the first call is.

    Args:
        launcher: starts the members.
        specs: one for each, in order.
        silence: seconds without a sign of life after which a member counts as dead.
        stall: seconds without progress of a member's work after which it counts as dead. A call may take longer where
            what it does makes something meanwhile (`supervision.progress`), as training makes micro-batches.
        one_host: all members are on this host.
    """

    def __init__(
        self, launcher: WorkerLauncher, specs: Sequence[WorkerSpec], silence: float, stall: float, one_host: bool = True
    ) -> None:
        self._one_host = one_host
        self._supervision = Supervision(silence, stall)
        self._team = Team(launcher, specs, self._supervision)
        self._calls = 0
        self._open = True
        self._team.start()

    @property
    def handles(self) -> Sequence[WorkerHandle]:
        """The members."""
        return self._team.handles

    @property
    def alive(self) -> bool:
        """Whether it can be called."""
        return self._open

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of every member; returns the answer of the first.

        Raises:
            RankGroupLost: a member is no more, or took too long.
            Disagreement: two members have different results.
            StropError: the error with which the members refused.
        """
        if not self._open:
            raise RankGroupLost("the trainer's ranks are ended")
        self._calls += 1
        file = os.memfd_create(f"strop-{method}")
        try:
            call = self._packed(method, arguments, file)
            for handle in self.handles:
                handle.send(call)
            with progress.doing(f"waiting for {method} of {counted(len(self.handles), 'ranks')}"):
                found = self._collect(self._calls)
        finally:
            os.close(file)
        refused = [one.error for one in found if isinstance(one, RankRefusal)]
        if refused:
            raise refused[0]
        answers = [one for one in found if isinstance(one, RankAnswer)]
        if len({answer.digest for answer in answers}) > 1:
            self._end()
            pairs = zip(self.handles, answers, strict=True)
            digests = ", ".join(f"{handle.role} {answer.digest[:8]}" for handle, answer in pairs)
            raise Disagreement(f"the trainer's ranks came to different results in {method}: {digests}")
        return answers[0].value

    def close(self) -> None:
        """End the members; may be called twice."""
        if self._open:
            self._open = False
            self._team.close()

    # ------------------------------------------------------------------ inside

    def _packed(self, method: str, arguments: Sequence[Any], file: int) -> RankCall:
        """A call, with the arrays of its arguments in `file` where members can open it."""
        buffers: list[pickle.PickleBuffer] = []
        apart = buffers.append if self._one_host else None
        body = pickle.dumps(arguments, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=apart)
        places, end = [], 0
        with open(file, "wb", closefd=False) as content:
            for buffer in buffers:
                raw = buffer.raw()
                begin = -(-end // _ALIGNED) * _ALIGNED
                content.write(b"\0" * (begin - end))
                content.write(raw)
                end = begin + raw.nbytes
                places.append((begin, end))
            content.write(b"\0")  # an empty file could not be mapped
        return RankCall(self._calls, method, body, f"/proc/{os.getpid()}/fd/{file}", tuple(places))

    def _collect(self, number: int) -> list[RankAnswer | RankRefusal]:
        """Every member's reply to a call, in order of members."""
        found: dict[int, RankAnswer | RankRefusal] = {}
        deadline: float | None = None
        while len(found) < len(self.handles):
            self._team.wait(_LOOK_SECONDS, [one for place, one in enumerate(self.handles) if place not in found])
            for place, handle in enumerate(self.handles):
                for message in handle.receive():
                    if isinstance(message, RankAnswer | RankRefusal) and message.number == number:
                        found[place] = message
            missing = [place for place in range(len(self.handles)) if place not in found]
            if any([self._gone(place) for place in missing]):  # each one is checked
                raise self._lost()
            if any(isinstance(reply, RankRefusal) for reply in found.values()):
                deadline = deadline or time.monotonic() + _AGREE_SECONDS
                if time.monotonic() > deadline:  # no other rank did; the others wait for it
                    self._end()
                    break
        return [found[place] for place in sorted(found)]

    def _gone(self, place: int) -> bool:
        """Whether a member is dead, or was killed just now because it hangs: then its death is not waited for."""
        dead = self._team.check(place, busy=True) is not None
        return dead or self._supervision.overdue(self.handles[place]) is not None

    def _lost(self) -> StropError:
        self._team.await_deaths(_LAST_WORDS_SECONDS)
        deaths = {handle.role: handle.death for handle in self.handles}
        self._end()
        said = "; ".join(f"{role}: {death.reason}" for role, death in deaths.items() if death is not None)
        fatal = next((death.reason for death in deaths.values() if death is not None and death.fatal), None)
        return RankGroupLost(f"the trainer is lost ({said})") if fatal is None else StropError(fatal)

    def _end(self) -> None:
        """Kill the members that are left: they wait for dead ones and would not end by themselves."""
        self._open = False
        self._team.close(kill="another rank of the trainer is gone")


Handler = Callable[..., tuple[Any, str]]


def serve(connection: ControllerConnection, first: bool, handlers: Mapping[str, Handler]) -> None:
    """A member's side: do what is called for, until the connection is closed.

    Args:
        connection: to the controller.
        first: whether this is the member whose values are wanted.
        handlers: by method; each gives its value and a digest of what all members must come to.

    Raises:
        ControllerGone: the normal end.
    """
    while True:
        for call in connection.receive(IDLE_SECONDS):
            assert isinstance(call, RankCall)
            try:
                value, digest = handlers[call.method](*call.unpickled())
            except StropError as error:
                connection.send(RankRefusal(call.number, error))
            else:
                connection.send(RankAnswer(call.number, value if first else None, digest))
            connection.progress()
