"""The loop's side of the processes in which sessions run: a process that ends costs the session that ended it.

Which one that was is not known, for many run in a process. So the turns that were running when it ended are played
again in a fresh one by halves, one half after the other, until a single turn has ended its process. Sessions that were
not running are rebuilt when their next turn comes.
"""

from __future__ import annotations

import json
import select
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from strop.base.session import carried
from strop.base.types import StropError
from strop.environments.base import Environment, Outcome, Reply
from strop.environments.sessions import Turn, failed
from strop.environments.worker import READY, read_outcome
from strop.verifiers.process_pool import problem_fields
from strop.verifiers.protocol import Key
from strop_verify.pool import ServedProcess, default_workers, numbered, split_number

GRACE_SECONDS = 10.0  # beyond a step's own time, in which a process with running turns must be heard of
CLOSING_SECONDS = 5.0


@dataclass
class _Seat:
    """A session: where it runs, and all of its turns so far, the last of them perhaps running."""

    process: _Process
    problem: dict[str, Any]
    seed: int
    replies: list[str] = field(default_factory=list)
    cut: bool = False


@dataclass
class _Process:
    """A process, its sessions, the turns that it has now, and those that wait for it.

    Attributes:
        served: the process and the channel to it.
        running: the key of each turn by its number.
        suspects: turns of which one has ended a process; each list is played when the one before is through.
    """

    served: ServedProcess
    ready: bool = False
    heard: float = 0.0
    sessions: set[Key] = field(default_factory=set)
    running: dict[int, Key] = field(default_factory=dict)
    waiting: list[Key] = field(default_factory=list)
    suspects: deque[list[Key]] = field(default_factory=deque)


class SessionPool:
    """Sessions of an environment in separate processes; the `Sessions` of `EnvironmentJudge`.

    Raises:
        StropError: no process can be started.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._seats: dict[Key, _Seat] = {}
        self._ready: list[tuple[Key, Outcome]] = []
        self._number = READY
        self._processes: list[_Process] = []
        for _ in range(environment.processes or default_workers()):
            self._processes.append(_Process(self._started(), heard=time.monotonic()))

    @property
    def pending(self) -> int:
        """Turns whose outcome was not yet polled."""
        open_turns = (len(p.running) + len(p.waiting) + sum(map(len, p.suspects)) for p in self._processes)
        return len(self._ready) + sum(open_turns)

    def take(self, turn: Turn) -> None:
        """Have a turn sent to the process of its session; a new session goes where the fewest are.

        It goes out with the next `poll` or `wait`, together with the others.
        """
        seat = self._seats.get(turn.key)
        if seat is None:
            process = min(self._processes, key=lambda one: len(one.sessions) + len(one.waiting))
            seat = self._seats[turn.key] = _Seat(process, problem_fields(turn.problem), turn.seed)
        if turn.reply is not None:
            seat.replies.append(turn.reply)
        seat.cut = turn.cut
        seat.process.waiting.append(turn.key)

    def poll(self) -> list[tuple[Key, Outcome]]:
        """The outcomes that are there.

        Raises:
            StropError: a process ended before it was ready.
        """
        for process in self._processes:
            self._hand_out(process)
            self._hear(process)
        found, self._ready = self._ready, []
        return found

    def forget(self, key: Key) -> None:
        """End a session; the outcome of a turn that runs is dropped."""
        seat = self._seats.pop(key, None)
        if seat is None:
            return
        process = seat.process
        process.waiting = [other for other in process.waiting if other != key]
        process.suspects = deque([other for other in batch if other != key] for batch in process.suspects)
        if key in process.sessions:
            process.sessions.discard(key)
            self._send(process, {"do": "forget", "key": key})

    def wait(self, seconds: float) -> None:
        """Sleep until something comes from a process, at most `seconds`."""
        poll = select.poll()
        for process in self._processes:
            self._hand_out(process)
            channel = process.served.channel
            poll.register(channel.socket, select.POLLIN | (select.POLLOUT if channel.unsent else 0))
        if not self._ready:
            poll.poll(seconds * 1000)

    def close(self) -> None:
        """End the processes; may be called twice."""
        for process in self._processes:
            process.served.end(CLOSING_SECONDS)
        self._processes = []

    # ------------------------------------------------------------------ one process

    def _hand_out(self, process: _Process) -> None:
        """Send what waits; while there are suspects, one list of them at a time and nothing else."""
        if process.suspects:
            batch = [] if process.running else process.suspects.popleft()
        else:
            batch, process.waiting = process.waiting, []
        for key in batch:
            self._play(process, key)
        with suppress(OSError):  # it has ended, which `_hear` finds
            process.served.channel.flush()

    def _play(self, process: _Process, key: Key) -> None:
        seat = self._seats[key]
        past = [] if key in process.sessions else seat.replies[:-1]
        if past and not self._environment.repeatable:
            self._end(key, failed("the session was lost with its process, and the environment is not repeatable"))
            return
        if not process.running:
            process.heard = time.monotonic()
        process.sessions.add(key)
        job = {
            "do": "turn", "key": key, "problem": seat.problem, "seed": seat.seed,
            "past": past, "reply": seat.replies[-1] if seat.replies else None, "cut": seat.cut,
        }  # fmt: skip
        self._number += 1
        process.running[self._number] = key
        try:
            self._send(process, job)
        except TypeError as error:
            del process.running[self._number]
            process.sessions.discard(key)
            self._end(key, failed(f"the problem cannot be given to a process: {error}"))

    def _send(self, process: _Process, job: dict[str, Any]) -> None:
        process.served.channel.queue(numbered(self._number, json.dumps(job).encode()))

    def _hear(self, process: _Process) -> None:
        """Take the outcomes that are in; replace a process that has ended or does not answer."""
        try:
            process.served.channel.flush()
            for message in process.served.channel.receive():
                process.heard = time.monotonic()
                number, body = split_number(message)
                if number == READY:
                    process.ready = True
                else:
                    self._finish(process, number, read_outcome(body))
        except (EOFError, OSError):
            self._replace(process)
            return
        limit = self._environment.step_seconds + GRACE_SECONDS
        if process.ready and process.running and time.monotonic() - process.heard > limit:
            process.served.child.kill()
            self._replace(process)

    def _finish(self, process: _Process, number: int, outcome: Outcome) -> None:
        key = process.running.pop(number)
        if key not in self._seats:  # forgotten
            return
        if isinstance(outcome, Reply):
            self._ready.append((key, outcome))
        else:
            process.sessions.discard(key)
            self._end(key, outcome)

    def _end(self, key: Key, outcome: Outcome) -> None:
        del self._seats[key]
        self._ready.append((key, outcome))

    def _replace(self, process: _Process) -> None:
        """Start another process in the place of one that ended; what was running is tried again by halves."""
        reason = process.served.end(0.0)
        if not process.ready:
            raise StropError(f"a process for environments could not start: it {reason}")
        running = [key for key in process.running.values() if key in self._seats]
        process.running.clear()
        process.sessions.clear()
        process.ready = False
        process.served = self._started()
        process.heard = time.monotonic()
        if len(running) == 1:
            self._end(running[0], failed(f"the environment's process {reason}"))
        elif running:
            half = len(running) // 2
            process.suspects.extendleft([running[half:], running[:half]])

    def _started(self) -> ServedProcess:
        written = self._environment.model_dump_json()
        try:
            return ServedProcess("strop.environments.worker", {"environment": written, "code": carried(written)})
        except OSError as error:
            raise StropError(f"a process for environments cannot be started: {error}") from error
