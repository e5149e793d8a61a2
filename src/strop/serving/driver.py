"""The engine on its own thread, and asyncio's side of it.

    event loop   Ticket.submit ──commands──▶ engine thread:  obey commands → step → look at streams
                 Ticket.next   ◀──one call_soon_threadsafe a step, with everything that the step brought──┘

Only its own thread touches the engine. A command runs between two steps, so that its caller waits for
one step at most.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

from strop.base.types import Completion, StropError
from strop.engines.protocol import Drawn, Engine, Request, Streaming

T = TypeVar("T")
Event = Drawn | Completion | StropError


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
        """The next completion or, if streamed, the next tokens of a running sample; a completion repeats its tokens."""
        event = await self._events.get()
        if isinstance(event, StropError):
            raise event
        if isinstance(event, Completion):
            self._unfinished[event.request_id] -= 1
        return event

    def put(self, event: Event) -> None:
        """On the event loop: hand over an event of the engine."""
        self._events.put_nowait(event)

    async def __aenter__(self) -> Ticket:
        return self

    async def __aexit__(self, *error: object) -> None:
        names = [name for name, samples in self._unfinished.items() if samples]
        if names:
            self._driver.cancel(names)


@dataclass(eq=False)
class _Open:
    """On the engine's thread: a request's ticket, and how many of its samples are unfinished."""

    ticket: Ticket
    samples: int


class Driver:
    """Runs `engine` on a thread until it is closed. Call its methods from one event loop.

    `failed` is called on the event loop when the engine breaks.
    """

    def __init__(self, engine: ServedEngine, failed: Callable[[EngineFailure], None]) -> None:
        self._engine = engine
        self._failed = failed
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._open: dict[str, _Open] = {}  # the thread's own
        self._since: dict[tuple[str, int], int] = {}  # the thread's own: streamed tokens so far
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="strop-engine", daemon=True)
        self.failure: EngineFailure | None = None

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

    async def call(self, work: Callable[[ServedEngine], T]) -> T:
        """The result of `work(engine)`, which the engine's thread does between two steps; its errors are raised here.

        Raises:
            EngineFailure: the engine broke before.
        """
        answer: Future[T] = Future()

        def obey() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                if self.failure is not None:
                    raise self.failure
                answer.set_result(work(self._engine))
            except Exception as error:  # the caller's, not the thread's
                answer.set_exception(error)

        self._commands.put(obey)
        return await asyncio.wrap_future(answer)

    def cancel(self, names: Sequence[str]) -> None:
        """Cancel requests; they bring no further events."""

        def obey() -> None:
            for name in names:
                if self._open.pop(name, None) is not None and self.failure is None:
                    self._engine.cancel(name)
            self._since = {key: count for key, count in self._since.items() if key[0] in self._open}

        self._commands.put(obey)

    def admit(self, engine: ServedEngine, ticket: Ticket, requests: Sequence[Request]) -> None:
        """On the engine's thread: submit all of a ticket's requests, or none."""
        watched = ticket.streamed
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
        except Exception as error:  # whatever broke the engine, everyone who waits must get an error
            self._fail(error)
            while self._obey():
                pass
        finally:
            self._engine.close()

    def _obey(self) -> bool:
        """Run the commands since the last step; wait for one if the engine is idle. Returns False at the end."""
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
        if self._since:
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


def _hand_over(events: list[tuple[Ticket, Event]]) -> None:
    for ticket, event in events:
        ticket.put(event)
