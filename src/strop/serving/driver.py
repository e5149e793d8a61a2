"""The engine on its own thread, and asyncio's side of it.

    event loop   Ticket.submit ──commands──▶ engine thread:  obey commands → step → look at streams
                 Ticket.next   ◀──one call_soon_threadsafe a step, with everything that the step brought──┘

Only its own thread touches the engine. A command runs between two steps, so that its caller waits for
one step at most.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from strop.base.types import Completion, InputError, IntArray, StropError
from strop.engines.protocol import Capabilities, Drawn, Engine, Health, Request, Scores, Scoring, Streaming
from strop.serving import ServeLimits
from strop.serving.http import Refusal
from strop.serving.requests import ServedRequest
from strop.serving.responses import Answers, ServedAnswer, Writer, usage

T = TypeVar("T")
Event = Drawn | Completion | StropError


class EngineFailure(StropError):
    """The engine broke, and with it everything that was asked of it."""


class Ticket:
    """Some requests to the engine that belong together. As a context it cancels at its end what is unfinished then.

    Raises, from `submit` and `next`:
        EngineFailure: the engine broke.
    """

    def __init__(self, driver: Driver, streamed: bool) -> None:
        self._driver = driver
        self.streamed = streamed
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._unfinished: dict[str, int] = {}

    @property
    def unfinished(self) -> int:
        """Samples that are not finished yet."""
        return sum(self._unfinished.values())

    async def submit(self, requests: Sequence[Request]) -> None:
        """Queue all of the requests, or none.

        Raises:
            InputError: the engine cannot honour one of them.
        """
        self._unfinished = {request.id: request.n for request in requests}
        await self._driver.call(lambda engine: self._driver.admit(engine, self, requests))

    async def next(self) -> Drawn | Completion:
        """The next completion, or (where streamed) the next tokens of a running sample; a completion repeats those."""
        event = await self._events.get()
        if isinstance(event, StropError):
            raise event
        if isinstance(event, Completion):
            self._unfinished[event.request_id] -= 1
        return event

    def waiting(self) -> bool:
        """Whether `next` would answer at once."""
        return not self._events.empty()

    def put(self, event: Event) -> None:
        """On the event loop: hand over what the engine brought."""
        self._events.put_nowait(event)

    async def __aenter__(self) -> Ticket:
        return self

    async def __aexit__(self, *error: object) -> None:
        names = [name for name, samples in self._unfinished.items() if samples]
        if names:
            self._driver.cancel(names)


@dataclass(eq=False)
class _Open:
    """On the engine's thread: a request's ticket and what it still waits for."""

    ticket: Ticket
    samples: int


class Driver:
    """Runs `engine` until it is closed; `start` and everything but the thread's own work belong to one event loop.

    `failed` is called on the event loop when the engine breaks.
    """

    def __init__(self, engine: Engine, failed: Callable[[EngineFailure], None]) -> None:
        self._engine = engine
        self._failed = failed
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._open: dict[str, _Open] = {}  # the thread's own
        self._since: dict[tuple[str, int], int] = {}  # the thread's own: tokens of streamed samples that are out
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="strop-engine", daemon=True)
        self.failure: EngineFailure | None = None

    @property
    def streams(self) -> bool:
        """Whether the engine lets running samples be looked at."""
        return isinstance(self._engine, Streaming)

    @property
    def capabilities(self) -> Capabilities:
        """The engine's."""
        return self._engine.capabilities

    def start(self) -> None:
        """Begin, from the event loop that will request."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """End the thread, and the engine with it."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    def name(self) -> str:
        """A new request's id."""
        return f"request-{next(self._numbers)}"

    async def call(self, work: Callable[[Engine], T]) -> T:
        """`work(engine)`, done by the engine's thread between two steps; its errors are raised here.

        Raises:
            EngineFailure: the engine broke before.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def obey() -> None:
            try:
                if self.failure is not None:
                    raise self.failure
                value = work(self._engine)
            except Exception as error:  # belongs to whoever asked, not to the thread
                self._post(_settle, answer, None, error)
            else:
                self._post(_settle, answer, value, None)

        self._commands.put(obey)
        return await answer

    def cancel(self, names: Sequence[str]) -> None:
        """Take requests back; nothing more is heard of them."""

        def obey() -> None:
            for name in names:
                if self._open.pop(name, None) is not None and self.failure is None:
                    self._engine.cancel(name)
            self._since = {key: count for key, count in self._since.items() if key[0] in self._open}

        self._commands.put(obey)

    def admit(self, engine: Engine, ticket: Ticket, requests: Sequence[Request]) -> None:
        """On the engine's thread: submit all of a ticket's requests, or none."""
        watched = ticket.streamed and self.streams
        for place, request in enumerate(requests):
            try:
                engine.submit(replace(request, watched=watched))
            except BaseException:
                for earlier in requests[:place]:
                    del self._open[earlier.id]
                    engine.cancel(earlier.id)
                raise
            self._open[request.id] = _Open(ticket, request.n)
        if watched:
            self._since |= {(request.id, index): 0 for request in requests for index in range(request.n)}

    def _run(self) -> None:
        try:
            while self._obey():
                if self._engine.unfinished:
                    self._step()
        except Exception as error:  # whatever broke the engine, those who wait for it must hear of it
            self._fail(error)
            while self._obey():
                pass
        finally:
            self._engine.close()

    def _obey(self) -> bool:
        """Do what was asked since the last step; wait for it where the engine has nothing to do. False: end."""
        wait = self.failure is not None or not self._engine.unfinished
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            wait = False

    def _step(self) -> None:
        events: list[tuple[Ticket, Event]] = []
        for completion in self._engine.step():
            found = self._open.get(completion.request_id)
            if found is None:
                continue  # it was cancelled
            events.append((found.ticket, completion))
            self._since.pop((completion.request_id, completion.index), None)
            found.samples -= 1
            if not found.samples:
                del self._open[completion.request_id]
        if self._since and isinstance(self._engine, Streaming):
            for drawn in self._engine.drawn(self._since):
                self._since[drawn.request_id, drawn.index] += len(drawn.token_ids)
                events.append((self._open[drawn.request_id].ticket, drawn))
        if events:
            self._post(_hand_over, events)

    def _fail(self, error: Exception) -> None:
        said = str(error) if isinstance(error, StropError) else f"{type(error).__name__}: {error}"
        self.failure = EngineFailure(f"the engine broke: {said}")
        tickets = {id(found.ticket): found.ticket for found in self._open.values()}
        self._open, self._since = {}, {}
        self._post(_hand_over, [(ticket, self.failure) for ticket in tickets.values()])
        self._post(self._failed, self.failure)

    def _post(self, work: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work, *arguments)


def _settle(answer: asyncio.Future[T], value: T, error: Exception | None) -> None:
    if answer.done():  # whoever asked is gone
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


def _hand_over(events: list[tuple[Ticket, Event]]) -> None:
    for ticket, event in events:
        ticket.put(event)


SCORED_AT_ONCE = 8192  # tokens; between two portions the others' sequences get a step


class Endpoint:
    """Answers requests to one engine; at most `limits.requests` of them at once."""

    def __init__(self, driver: Driver, answers: Answers, limits: ServeLimits) -> None:
        self._driver = driver
        self._answers = answers
        self._limits = limits
        self.open = 0
        self.answered = 0

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """A place among the open requests.

        Raises:
            Refusal: 429 where all are taken.
        """
        if self.open >= self._limits.requests:
            message = f"all {self._limits.requests} places of this endpoint are taken; try again"
            raise Refusal(429, message, code="rate_limit_exceeded", headers={"Retry-After": "1"})
        self.open += 1
        try:
            yield
            self.answered += 1
        finally:
            self.open -= 1

    async def health(self) -> Health:
        """The engine's, asked between two of its steps."""
        return await self._driver.call(lambda engine: engine.health())

    async def version(self) -> int:
        """The engine's weight version."""
        return await self._driver.call(lambda engine: engine.weight_version)

    async def whole(self, name: str, request: ServedRequest) -> dict[str, Any]:
        """The answer to a request that is not streamed.

        Raises:
            Refusal: the engine cannot honour it.
        """
        self._refuse_unknown_logprobs(request)
        found: dict[tuple[int, int], Completion] = {}
        names = [self._driver.name() for _ in request.prompts]
        if request.sampling is not None:
            async with Ticket(self._driver, streamed=False) as ticket:
                await _submit(ticket, request, names)
                while ticket.unfinished:
                    completion = await ticket.next()
                    assert isinstance(completion, Completion)
                    _refuse_aborted(completion)
                    found[names.index(completion.request_id), completion.index] = completion
        answers = [
            ServedAnswer(prompt, index, found.get((prompt, index)))
            for prompt in range(len(request.prompts))
            for index in range(request.n)
        ]
        if request.top is not None and (request.top or request.echo):
            answers = await self._scored(request, answers)
        return self._answers.whole(name, request, answers, await self.version())

    async def stream(self, name: str, request: ServedRequest) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events. The first item is empty and comes once the engine accepted the request.

        Raises:
            Refusal: the engine cannot honour it.
        """
        self._refuse_unknown_logprobs(request)
        names = [self._driver.name() for _ in request.prompts]
        writers = {
            (names[prompt], index): self._answers.writer(request, prompt, index)
            for prompt in range(len(names))
            for index in range(request.n)
        }
        done: list[Completion] = []
        version = await self.version()
        async with Ticket(self._driver, streamed=True) as ticket:
            await _submit(ticket, request, names)
            yield b""
            while ticket.unfinished:
                choices: list[dict[str, Any]] = []
                while ticket.unfinished:
                    choices += await _next(ticket, writers, done)
                    if not ticket.waiting():
                        break
                if done:
                    version = max(version, *(span.version for found in done for span in found.versions), 0)
                yield b"".join(_event(self._answers.chunk(name, request, version, [choice])) for choice in choices)
        last = b"data: [DONE]\n\n"
        if request.include_usage:
            chunk = self._answers.chunk(name, request, version, [])
            last = _event({**chunk, "usage": usage(request, done)}) + last
        yield last

    def _refuse_unknown_logprobs(self, request: ServedRequest) -> None:
        cut = request.sampling is not None and request.sampling.temperature > 0 and request.sampling.truncates
        if request.top is not None and cut and not self._driver.capabilities.whole_logprobs:
            message = "logprobs: this engine does not know them under top_p and top_k; leave one or the other out"
            raise Refusal(400, message, "logprobs")

    async def _scored(self, request: ServedRequest, answers: Sequence[ServedAnswer]) -> list[ServedAnswer]:
        """The answers with log-probs of their prompts (`echo`), and the most probable tokens where `request.top`."""
        assert request.top is not None
        sequences = []
        for answer in answers:
            ids = request.prompts[answer.prompt]
            if answer.completion is not None and request.top:
                ids = np.concatenate((ids, answer.completion.token_ids))
            sequences.append(ids)
        scores: list[Scores] = []
        while len(scores) < len(sequences):
            portion, tokens = [sequences[len(scores)]], len(sequences[len(scores)])
            for ids in sequences[len(scores) + 1 :]:
                tokens += len(ids)
                if tokens > SCORED_AT_ONCE:
                    break
                portion.append(ids)
            scores += await self._score(portion, request.temperature, request.top)
        return [
            ServedAnswer(answer.prompt, answer.index, answer.completion, score)
            for answer, score in zip(answers, scores, strict=True)
        ]

    async def _score(self, sequences: Sequence[IntArray], temperature: float, top: int) -> list[Scores]:
        try:
            return await self._driver.call(lambda engine: _score(engine, sequences, temperature, top))
        except InputError as error:
            raise Refusal(400, str(error), "prompt") from None


def _score(engine: Engine, sequences: Sequence[IntArray], temperature: float, top: int) -> list[Scores]:
    if isinstance(engine, Scoring):
        return engine.score(sequences, temperature, top)
    if top or temperature != 1:
        raise InputError(
            "logprobs: this engine knows the log-probs of given tokens at temperature 1, no others; ask for logprobs=0"
        )
    nothing = np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
    return [
        Scores(engine.verify_weights(ids) if len(ids) > 1 else np.zeros(0, np.float32), *nothing) for ids in sequences
    ]


async def _submit(ticket: Ticket, request: ServedRequest, names: Sequence[str]) -> None:
    try:
        await ticket.submit(request.requests(names))
    except InputError as error:
        raise Refusal(400, str(error)) from None


async def _next(ticket: Ticket, writers: dict[tuple[str, int], Writer], done: list[Completion]) -> list[dict[str, Any]]:
    """The choices of the chunks that the next event makes; a completion is added to `done`."""
    event = await ticket.next()
    writer = writers[event.request_id, event.index]
    if isinstance(event, Completion):
        _refuse_aborted(event)
        done.append(event)
        return writer.finish(event)
    return writer.take(event.token_ids, event.logprobs)


def _refuse_aborted(completion: Completion) -> None:
    if completion.finish_reason == "abort":
        raise Refusal(503, "the engine gave this request up; try again", code="aborted")


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
