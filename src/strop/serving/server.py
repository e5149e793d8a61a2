"""An engine served over HTTP, in this process, until it is asked to end."""

from __future__ import annotations

import asyncio
import copy
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from transformers import PreTrainedTokenizerBase
from uvicorn.protocols.http.h11_impl import H11Protocol

from strop.base.interrupt import on_interrupt
from strop.engines.protocol import Engine
from strop.serving.app import App, Log
from strop.serving.driver import Driver, Endpoint, EngineFailure
from strop.serving.listening import QuietServer
from strop.serving.parsing import Asking
from strop.serving.refusal import ServeLimits
from strop.serving.responses import Answers, ServedTokens

KEEP_ALIVE = 30  # seconds that an idle connection stays open
HEAD_SECONDS = 30.0  # for the head of a request to arrive


@dataclass(frozen=True)
class Served:
    """What is served, and how.

    Attributes:
        model: its name for clients.
        key: see `App`; never shown.
        local_only: see `App`.
        log: see `App`.
        template_arguments: of the tokenizer's chat template, where a request does not say otherwise.
    """

    model: str
    limits: ServeLimits = ServeLimits()
    key: str | None = field(default=None, repr=False)
    local_only: bool = True
    log: Log | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)


class Server:
    """Serves `engine` on a listening socket; `run` blocks, `stop` may be called from any thread or signal handler."""

    def __init__(
        self, engine: Engine, tokenizer: PreTrainedTokenizerBase, served: Served, listening: socket.socket
    ) -> None:
        self._engine = engine
        # The engine's thread decodes with its own; encoding sets the tokenizer's state.
        self._tokenizer = copy.deepcopy(tokenizer)
        self._tokenizer.encode("a", add_special_tokens=False)
        self._served = served
        self._socket = listening
        self._stop = threading.Event()
        self.started = threading.Event()
        self.answered = 0

    @property
    def url(self) -> str:
        """Where it is served, up to and with `/v1`."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    def stop(self) -> None:
        """End: open requests may finish within `limits.grace`, further ones are not taken."""
        self._stop.set()

    def run(self) -> None:
        """Serve until `stop`, the first Ctrl-C, or the engine's end. A second Ctrl-C ends at once.

        Raises:
            EngineFailure: the engine broke.
            KeyboardInterrupt: the second Ctrl-C.
        """
        with on_interrupt(self.stop):
            failure = asyncio.run(self._serve())
        if failure is not None:
            raise failure

    async def _serve(self) -> EngineFailure | None:
        failures: list[EngineFailure] = []

        def failed(failure: EngineFailure) -> None:
            failures.append(failure)
            self.stop()

        served, limits = self._served, self._served.limits
        driver = Driver(self._engine, failed)
        context = self._engine.capabilities.max_tokens
        endpoint = Endpoint(driver, Answers(self._tokenizer, served.model), limits)
        asking = Asking(self._tokenizer, context, limits, served.template_arguments)
        tokens = ServedTokens(self._tokenizer, context)
        app = App(endpoint, asking, tokens, served.model, context, limits, served.key, served.local_only, served.log)
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            http=_impatient(min(HEAD_SECONDS, limits.seconds)),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=max(1, round(limits.grace)),
        )
        server = QuietServer(config)
        driver.start()
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            self.started.set()
            while not self._stop.is_set() and not serving.done():
                await asyncio.sleep(0.05)
        finally:
            server.should_exit = True
            await serving
            await driver.close()
            self.answered = endpoint.answered
        return failures[0] if failures else None


def _impatient(seconds: float) -> Any:
    """uvicorn's side of a connection, which it closes where the head of a request does not arrive in time."""

    class Impatient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._closing: asyncio.TimerHandle | None = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)  # which stops the clock of idle connections
            between = self.cycle is None or self.cycle.response_complete
            if not between:
                self._stop()
            elif self._closing is None:
                self._closing = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _stop(self) -> None:
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None

    return Impatient


@contextmanager
def background(server: Server) -> Iterator[str]:
    """Serve on a thread while the block runs; its URL. For programs that need an endpoint while they work."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            server.run()
        except BaseException as error:  # raised where the block ends
            failures.append(error)

    thread = threading.Thread(target=work, name="strop-serve")
    thread.start()
    server.started.wait()
    try:
        yield server.url
    finally:
        server.stop()
        thread.join()
    if failures:
        raise failures[0]
