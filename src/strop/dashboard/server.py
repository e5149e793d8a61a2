"""The dashboard's server: uvicorn on a loopback socket until Ctrl-C, or on a thread beside other work."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from strop.base.interrupt import on_interrupt
from strop.dashboard.app import Dashboard
from strop.dashboard.reading import Runs
from strop.serving.listening import QuietServer, listen

HOST, PORT = "127.0.0.1", 8030


class Server:
    """Serves the dashboard of some runs to this machine; `run` blocks, `stop` may be called from any thread.

    Args:
        runs: what it shows.
        listening: the socket that it answers on; see `opened`.
    """

    def __init__(self, runs: Runs, listening: socket.socket) -> None:
        self._app = Dashboard(runs)
        self._socket = listening
        self._stop = threading.Event()

    def stop(self) -> None:
        """End."""
        self._stop.set()

    def run(self) -> None:
        """Serve until `stop` or the first Ctrl-C."""
        with on_interrupt(self.stop):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        config = uvicorn.Config(
            self._app, lifespan="off", ws="none", http="h11", log_config=None, log_level="warning", access_log=False,
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        server = QuietServer(config)
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        while not self._stop.is_set() and not serving.done():
            await asyncio.sleep(0.05)
        server.should_exit = True
        await serving


def opened(port: int) -> tuple[socket.socket, str]:
    """A socket on this machine's loopback address (port 0 takes a free one), and where a browser finds it.

    Raises:
        InputError: the port is taken.
    """
    listening = listen(HOST, port, None, False)
    return listening, f"http://{HOST}:{listening.getsockname()[1]}/"


@contextmanager
def background(runs: Sequence[Path]) -> Iterator[str]:
    """A dashboard on a thread while the block runs; its URL."""
    listening, url = opened(0)
    server = Server(Runs(runs), listening)
    thread = threading.Thread(target=server.run, name="strop-dashboard", daemon=True)
    thread.start()
    try:
        yield url
    finally:
        server.stop()
        thread.join()
