"""An environment as the loop sees it: completions go in, observations and verdicts come out.

Sessions run in worker processes (`SessionPool`) unless the environment is `inline`. If a process dies, the turns that
were running in it are played again in a new process by halves, until the turn that ends its process is found; only its
session is lost. The other sessions are rebuilt when their next turn comes.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from strop.base.seeds import derive
from strop.base.session import accept, carried
from strop.base.types import Completion, InputError, Message, Observation, Problem, StropError, Verdict
from strop.environments.base import SEED, Environment, Outcome, Reply, Unjudged
from strop.environments.sessions import InlineSessions, SessionHost, Turn, failed, with_turns
from strop.environments.tokens import Chat, TurnTokens
from strop.verifiers.process_pool import problem_fields, read_problem
from strop.verifiers.protocol import Judge, Key, Responder
from strop_verify.framing import Channel
from strop_verify.pool import ServedProcess, connect, default_workers, numbered, split_number
from strop_verify.verdict import Status

READY = 0  # number of the message that reports readiness; turns count from 1
MOST_STUCK = 32  # steps that never returned, after which the process exits and is replaced


def write_outcome(outcome: Outcome) -> bytes:
    """An outcome as JSON."""
    if isinstance(outcome, Reply):
        return json.dumps({"reply": asdict(outcome)}).encode()
    if isinstance(outcome, Verdict):
        return json.dumps({"verdict": asdict(outcome)}).encode()
    return json.dumps({"unjudged": outcome}).encode()


def read_outcome(body: bytes) -> Outcome:
    """The outcome from `write_outcome`."""
    found = json.loads(body)
    if "unjudged" in found:
        return Unjudged(*found["unjudged"])
    if "reply" in found:
        fields = found["reply"]
        messages = tuple(Message(role=one["role"], content=one["content"]) for one in fields["messages"])
        return Reply(**fields | {"messages": messages, "tools": tuple(fields["tools"])})
    fields = found["verdict"]
    return Verdict(**fields | {"status": Status(fields["status"]), "turn_scores": tuple(fields["turn_scores"])})


class SessionWorker:
    """Serves the process at the other end of `channel`."""

    def __init__(self, channel: Channel, environment: Environment) -> None:
        self._channel = channel
        self._environment = environment
        self._host = SessionHost(environment, self._in_thread)
        self._threads = ThreadPoolExecutor(environment.threads + MOST_STUCK)
        self._room = asyncio.Semaphore(environment.threads)
        self._stuck = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self) -> None:
        """Serve until the other side closes the channel, which ends the process."""
        loop = asyncio.new_event_loop()
        loop.add_reader(self._channel.socket, self._receive, loop)
        self._send(loop, numbered(READY))
        loop.call_soon(self._receive, loop)  # turns that arrived with the setup
        loop.run_forever()

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            for message in self._channel.receive():
                number, body = split_number(message)
                task = loop.create_task(self._play(loop, number, json.loads(body)))
                self._tasks.add(task)  # keeps the task alive
                task.add_done_callback(self._tasks.discard)
        except EOFError:
            os._exit(0)  # threads must not keep the process alive

    async def _play(self, loop: asyncio.AbstractEventLoop, number: int, job: dict[str, Any]) -> None:
        key = job["key"][0], job["key"][1]
        if job["do"] == "forget":
            self._host.forget(key)
            return
        problem, past = read_problem(job["problem"]), tuple(job["past"])
        outcome = await self._host.turn(Turn(key, problem, job["seed"], job["reply"], job["cut"], past))
        try:
            body = write_outcome(outcome)
        except (TypeError, ValueError) as error:
            body = write_outcome(failed(f"the environment's reply is no JSON: {error}"))
        self._send(loop, numbered(number, body))
        if self._stuck >= MOST_STUCK:
            self._flush(loop)
            os._exit(1)  # running turns are played again in a new process

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        async with self._room:
            future = asyncio.get_running_loop().run_in_executor(self._threads, function)
            try:
                return await asyncio.wait_for(future, self._environment.step_seconds)
            except TimeoutError:
                self._stuck += 1
                raise

    def _send(self, loop: asyncio.AbstractEventLoop, message: bytes) -> None:
        """Send a message, together with others of this iteration of the event loop."""
        if not self._channel.unsent:
            loop.add_writer(self._channel.socket, self._flush, loop)
        self._channel.queue(message)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._channel.flush()
        except OSError:
            os._exit(0)
        if not self._channel.unsent:
            loop.remove_writer(self._channel.socket)


def main() -> None:
    """Serve the process that started this one."""
    channel, environment = connect(_environment)
    limit = environment.memory_mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    SessionWorker(channel, environment).serve()


def _environment(setup: dict[str, Any]) -> Environment:
    accept(setup["code"])
    family: TypeAdapter[Environment] = TypeAdapter(Environment)
    return family.validate_json(setup["environment"])


if __name__ == "__main__":
    main()


GRACE_SECONDS = 10.0  # added to step_seconds before a silent process is replaced
CLOSING_SECONDS = 5.0


@dataclass
class _Seat:
    """A session: its process and its turns so far; the last one may be running."""

    process: _Process
    problem: dict[str, Any]
    seed: int
    replies: list[str] = field(default_factory=list)
    cut: bool = False


@dataclass
class _Process:
    """A process with its sessions, running turns and waiting turns.

    Attributes:
        served: the process and the channel to it.
        running: the key of each turn by its number.
        suspects: lists of turns of which one may have ended a process; they are played one list after the other.
    """

    served: ServedProcess
    ready: bool = False
    heard: float = 0.0
    sessions: set[Key] = field(default_factory=set)
    running: dict[int, Key] = field(default_factory=dict)
    waiting: list[Key] = field(default_factory=list)
    suspects: deque[list[Key]] = field(default_factory=deque)


class SessionPool:
    """Sessions of an environment in separate processes.

    Every turn has one outcome; an outcome other than a `Reply` ends the session.

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
        """Queue a turn for the process of its session; a new session goes to the process with the fewest.

        The next `poll` or `wait` sends it.
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
        """The outcomes that have arrived.

        Raises:
            StropError: a process ended before it was ready.
        """
        for process in self._processes:
            self._hand_out(process)
            self._hear(process)
        found, self._ready = self._ready, []
        return found

    def forget(self, key: Key) -> None:
        """End a session; the outcome of a running turn is dropped."""
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
        """Sleep until a process sends something, at most `seconds`."""
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
        """Send the waiting turns; while there are suspects, only one list of them at a time."""
        if process.suspects:
            batch = [] if process.running else process.suspects.popleft()
        else:
            batch, process.waiting = process.waiting, []
        for key in batch:
            self._play(process, key)
        with suppress(OSError):  # the process has ended; `_hear` replaces it
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
        """Take the outcomes that have arrived; replace a process that has ended or is silent."""
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
        """Replace a process that ended; its running turns are tried again by halves."""
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
            return ServedProcess("strop.environments.responder", {"environment": written, "code": carried(written)})
        except OSError as error:
            raise StropError(f"a process for environments cannot be started: {error}") from error


@dataclass(frozen=True, eq=False)
class Play:
    """An environment, and the rendering of its messages as tokens of the model.

    Attributes:
        longest_prompt: token limit of the prompts of an environment that speaks first; None: no limit.

    Raises:
        InputError: `history` is separate, and the chat template cannot be used so.
    """

    environment: Environment
    tokens: TurnTokens
    longest_prompt: int | None = None

    def __post_init__(self) -> None:
        self.speaker()

    def responder(self, judge: Judge) -> EnvironmentJudge:
        """Open the environment; `judge` is the run's verifier's, and is closed with it."""
        sessions = InlineSessions(self.environment) if self.environment.inline else SessionPool(self.environment)
        return EnvironmentJudge(sessions, self, judge)

    def speaker(self) -> Chat | TurnTokens:
        """Renders the messages of one trajectory."""
        return Chat(self.tokens) if self.environment.history == "separate" else self.tokens

    def notes(self) -> list[str]:
        """Warnings about the chat template, one line each."""
        return self.tokens.notes(self.environment.history == "separate")


@dataclass
class _Trajectory:
    """A sample before its verdict: its last turn, and the environment's replies."""

    problem: Problem
    speaker: Chat | TurnTokens
    turn: Completion | None = None
    said: list[Reply | Unjudged] = field(default_factory=list)


class EnvironmentJudge(Responder):
    """Hands each turn to its session, and unjudged last turns to the verifier's judge.

    Args:
        sessions: the environment's sessions.
        play: the environment and the rendering of its messages.
        judge: the judge of the run's verifier.
    """

    def __init__(self, sessions: InlineSessions | SessionPool, play: Play, judge: Judge) -> None:
        self.several_turns = play.environment.max_turns > 1
        self.turn_tokens = play.environment.turn_tokens
        self.speaks_first = play.environment.speaks_first
        self._sessions = sessions
        self._play = play
        self._judge = judge
        self._open: dict[Key, _Trajectory] = {}

    @property
    def pending(self) -> int:
        """The number of turns without a polled answer."""
        return self._sessions.pending + self._judge.pending

    def begin(self, key: Key, problem: Problem, seed: int) -> None:
        """Ask the session of `key` for its prompt."""
        self._open[key] = _Trajectory(problem, self._play.speaker())
        self._sessions.take(Turn(key, problem, self._drawn(key, problem, seed), None, False))

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Hand a turn to the session of `key`; the first turn opens it."""
        if key not in self._open:
            self._open[key] = _Trajectory(problem, self._play.speaker())
        self._open[key].turn = completion
        drawn = self._drawn(key, problem, seed)
        self._sessions.take(Turn(key, problem, drawn, completion.text, completion.truncated))

    def _drawn(self, key: Key, problem: Problem, seed: int) -> int:
        """The session's seed."""
        drawn: int = problem.extra.get(SEED, derive(seed, "environment", key[1]))
        return drawn

    def poll(self) -> list[tuple[Key, Verdict | Observation]]:
        """The observations and verdicts that have arrived."""
        found: list[tuple[Key, Verdict | Observation]] = []
        for key, outcome in self._sessions.poll():
            if key not in self._open:  # forgotten
                continue
            trajectory = self._open[key]
            if not isinstance(outcome, Verdict) and trajectory.turn is not None and outcome != Unjudged():
                trajectory.said.append(outcome)
            answer = self._said(trajectory, outcome) if isinstance(outcome, Reply) else outcome
            if isinstance(outcome, Reply) and isinstance(answer, Verdict):
                self._sessions.forget(key)
            if isinstance(answer, Unjudged):
                assert trajectory.turn is not None, "a session ends with a turn"
                self._judge.submit(key, trajectory.problem, trajectory.turn)
            else:
                found.append((key, self._whole(key, answer) if isinstance(answer, Verdict) else answer))
        return [*found, *((key, self._whole(key, verdict)) for key, verdict in self._judge.poll())]

    def _whole(self, key: Key, verdict: Verdict) -> Verdict:
        """The verdict of a finished trajectory, with the scores and malformed calls of its turns."""
        trajectory = self._open.pop(key, None)
        said = [] if trajectory is None else trajectory.said
        return with_turns(verdict, [one.score for one in said], sum(one.malformed_calls for one in said))

    def _said(self, trajectory: _Trajectory, reply: Reply) -> Observation | Verdict:
        """The environment's reply as tokens; a verdict of status error if it cannot be rendered."""
        most = self._play.longest_prompt
        try:
            if trajectory.turn is not None:
                return trajectory.speaker.observation(trajectory.turn, reply.messages)
            prompt = self._play.tokens.prompt(reply.messages, reply.tools)
        except InputError as error:
            return failed(f"the environment's messages cannot be rendered: {error}")
        if most is not None and len(prompt.token_ids) > most:
            return failed(f"the environment's prompt has {len(prompt.token_ids)} tokens of {most}")
        return prompt

    def forget(self, request_id: str) -> None:
        """End the sessions of a request's samples."""
        for key in [key for key in self._open if key[0] == request_id]:
            del self._open[key]
            self._sessions.forget(key)

    def wait(self, seconds: float) -> None:
        """Sleep until an answer may have arrived, at most `seconds`."""
        (self._sessions if self._sessions.pending else self._judge).wait(seconds)

    def close(self) -> None:
        """End the sessions, and the verifier's judge."""
        self._sessions.close()
        self._judge.close()
