"""The engine on a thread, and asyncio's side of it.

    event loop      Ticket.submit, cancel, health …, and the driver's task, which asks for one step after another
    engine thread   obeys these calls in their order, so that a call waits for one step at most

Only that thread touches the engine.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar, runtime_checkable

from strop.base.types import Completion, InputError, StropError
from strop.engines.protocol import Drawn, Engine, Request, Streaming

T = TypeVar("T")
Event = Drawn | Completion


@runtime_checkable
class ServedEngine(Engine, Streaming, Protocol):
    """The protocols that the endpoint needs; both engines of strop implement them."""


class EngineFailure(StropError):
    """The engine broke, and all open requests with it."""


class Ticket:
    """Some requests to the engine that belong together. As a context it cancels at its end those that are unfinished.

    Raises, from `submit` and `next`:
        EngineFailure: the engine broke.
    """

    def __init__(self, driver: Driver, streamed: bool) -> None:
        self._driver = driver
        self.streamed = streamed
        self.events: asyncio.Queue[Event | EngineFailure] = asyncio.Queue()
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
        await self._driver.submit(self, requests)

    async def next(self) -> Event:
        """The next completion or, if streamed, the next tokens of a running sample; a completion repeats its tokens."""
        event = await self.events.get()
        if isinstance(event, EngineFailure):
            raise event
        if isinstance(event, Completion):
            self._unfinished[event.request_id] -= 1
        return event

    async def __aenter__(self) -> Ticket:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._driver.leave(self._unfinished)


class Driver:
    """Runs `engine` until it is closed. All methods belong to one event loop.

    `failed` is called when the engine breaks.
    """

    def __init__(self, engine: ServedEngine, failed: Callable[[EngineFailure], None]) -> None:
        self._engine = engine
        self._failed = failed
        self._thread = ThreadPoolExecutor(1, "strop-engine")
        self._open: dict[str, Ticket] = {}
        self._since: dict[tuple[str, int], int] = {}  # streamed tokens so far, by request and sample
        self._numbers = itertools.count()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failure: EngineFailure | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """End the thread, and the engine with it."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wrap_future(self._thread.submit(self._engine.close))
        self._thread.shutdown()

    def name(self) -> str:
        """A new request's id."""
        return f"request-{next(self._numbers)}"

    async def call(self, work: Callable[..., T], *arguments: object) -> T:
        """The result of `work(engine, *arguments)`, which runs between two steps; its errors are raised here.

        Raises:
            EngineFailure: the engine broke before.
        """
        if self.failure is not None:
            raise self.failure
        return await asyncio.wrap_future(self._thread.submit(work, self._engine, *arguments))

    async def submit(self, ticket: Ticket, requests: Sequence[Request]) -> None:
        """Submit all of a ticket's requests, or none."""
        self._open |= dict.fromkeys((request.id for request in requests), ticket)
        if ticket.streamed:
            self._since |= {(request.id, index): 0 for request in requests for index in range(request.n)}
        await self.call(_submit, [replace(request, watched=ticket.streamed) for request in requests])
        self._wanted.set()

    def leave(self, samples: Mapping[str, int]) -> None:
        """Forget requests, and cancel those of which samples are unfinished; `samples` counts these by request."""
        for name in samples:
            self._open.pop(name, None)
        self._since = {key: count for key, count in self._since.items() if key[0] not in samples}
        unfinished = [name for name, count in samples.items() if count]
        if unfinished and self.failure is None:
            with suppress(RuntimeError):  # the thread has ended
                self._thread.submit(_cancel, self._engine, unfinished)
            self._wanted.set()

    async def _work(self) -> None:
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                unfinished = 1
                while unfinished:
                    events, unfinished = await self.call(_step, dict(self._since))
                    self._hand_over(events)
        except Exception as error:  # whatever broke the engine, everyone who waits must get an error
            said = str(error) if isinstance(error, StropError) else f"{type(error).__name__}: {error}"
            self.failure = EngineFailure(f"the engine broke: {said}")
            for ticket in {id(ticket): ticket for ticket in self._open.values()}.values():
                ticket.events.put_nowait(self.failure)
            self._failed(self.failure)

    def _hand_over(self, events: Sequence[Event]) -> None:
        for event in events:
            ticket = self._open.get(event.request_id)
            if ticket is None:
                continue  # it was cancelled
            key = event.request_id, event.index
            if isinstance(event, Completion):
                self._since.pop(key, None)
            else:
                self._since[key] += len(event.token_ids)
            ticket.events.put_nowait(event)


def _submit(engine: ServedEngine, requests: Sequence[Request]) -> None:
    for place, request in enumerate(requests):
        try:
            engine.submit(request)
        except BaseException:
            _cancel(engine, [earlier.id for earlier in requests[:place]])
            raise


def _cancel(engine: ServedEngine, names: Sequence[str]) -> None:
    for name in names:
        with suppress(InputError):  # it has finished, or was never accepted
            engine.cancel(name)


def _step(engine: ServedEngine, since: Mapping[tuple[str, int], int]) -> tuple[list[Event], int]:
    """What a step brought, and how many sequences are unfinished; the tokens of a finished sample are not repeated."""
    if not engine.unfinished:
        return [], 0
    completions = engine.step()
    running = set(since) - {(completion.request_id, completion.index) for completion in completions}
    drawn = engine.drawn({key: since[key] for key in running}) if running else []
    return [*completions, *drawn], engine.unfinished
