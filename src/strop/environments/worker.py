"""A worker process that runs thousands of sessions on one event loop: turns in, outcomes out.

    loop's process ──turns──▶ socket ─▶ event loop ─▶ `async` steps here, plain ones in threads
                   ◀─outcomes─         ◀─
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from strop.base.session import accept
from strop.base.types import Message, Verdict
from strop.environments.base import Environment, Outcome, Reply, Unjudged
from strop.environments.sessions import SessionHost, Turn, failed
from strop.verifiers.process_pool import read_problem
from strop_verify.framing import Channel
from strop_verify.pool import connect, numbered, split_number
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
