"""The HTTP side of the dashboard: a plain ASGI application that answers only GET, and only this machine.

    GET /                       the page; /static/NAME its parts, which lie in this package
    GET /api/runs               every run with its status
    GET /api/metrics?run=&offset=      lines of metrics.jsonl from a byte on
    GET /api/rollouts?run=&…    a page of completions, by the fields of `rollouts.Filters`
    GET /api/completion?run=&step=&row=
    GET /api/settings?run=&run=        what runs differ in
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from pydantic import ValidationError

from strop.base.interrupt import on_interrupt
from strop.base.types import InputError, StropError
from strop.base.view import View
from strop.config.edits import explain
from strop.dashboard.reading import Filters, FollowedRuns, page
from strop.serving.listening import QuietServer, host_of, is_loopback, listen
from strop_verify.child_process import ChildProcess, connect_to_parent, start_module, thread_environment
from strop_verify.framing import Channel

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Query = dict[str, list[str]]

KINDS = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
}  # fmt: skip
PAGE = "index.html"
HEADERS = (
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
     b"connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)  # fmt: skip
_logger = logging.getLogger(__name__)


class Dashboard:
    """The application, over the runs that it shows."""

    def __init__(self, runs: FollowedRuns) -> None:
        self._runs = runs
        self._files = {
            each.name: each.read_bytes()
            for each in resources.files("strop.dashboard").joinpath("static").iterdir()
            if each.name.endswith(tuple(KINDS))
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        status, kind, body = await self._answer(scope)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *HEADERS]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: Scope) -> tuple[int, str, bytes]:
        if scope["method"] not in ("GET", "HEAD"):
            return _error(405, "the dashboard only reads")
        # A page of elsewhere that a name points here must not be let in.
        if not is_loopback(host_of(dict(scope["headers"]))):
            return _error(403, "the dashboard answers to this machine's own name only")
        path = scope["path"]
        name = PAGE if path == "/" else path.removeprefix("/static/")
        if name in self._files and path in ("/", f"/static/{name}"):
            return 200, KINDS[name[name.rindex(".") :]], self._files[name]
        if not path.startswith("/api/"):
            return _error(404, f"there is no {path}")
        try:
            query = parse_qs(scope["query_string"].decode(), strict_parsing=bool(scope["query_string"]))
            found = await asyncio.to_thread(self._read, path.removeprefix("/api/"), query)
        except InputError as error:
            return _error(404, str(error))
        except ValidationError as error:
            return _error(400, explain(error))
        except ValueError as error:
            return _error(400, str(error))
        except Exception as error:  # a defect of ours, or a file that is being replaced
            _logger.exception("%s failed", path)
            return _error(500, f"{type(error).__name__}; the program's output says more")
        return 200, "application/json", json.dumps(found, ensure_ascii=False).encode()

    def _read(self, what: str, query: Query) -> Any:
        if what == "runs":
            return self._runs.overview()
        if what == "settings":
            return self._runs.settings(query.get("run") or self._runs.names)
        run = _one(query, "run")
        if what == "metrics":
            return self._runs.metrics(run, int(query.get("offset", ["0"])[0]))
        if what == "completion":
            return self._runs.completion(run, int(_one(query, "step")), int(_one(query, "row")))
        if what == "rollouts":
            given = {name: values[0] for name, values in query.items() if name != "run"}
            return page(self._runs.folder(run), Filters.model_validate(given))
        raise InputError(f"there is no /api/{what}")


def _one(query: Query, name: str) -> str:
    if name not in query:
        raise ValueError(f"say which {name}: ?{name}=…")
    return query[name][0]


def _error(status: int, reason: str) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps({"error": reason}, ensure_ascii=False).encode()


HOST, PORT = "127.0.0.1", 8030


class DashboardServer:
    """Serves the dashboard of some runs to this machine; `run` blocks, `stop` may be called from any thread.

    Args:
        runs: what it shows.
        listening: the socket that it answers on; see `opened`.
    """

    def __init__(self, runs: FollowedRuns, listening: socket.socket) -> None:
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
    server = DashboardServer(FollowedRuns(runs), listening)
    thread = threading.Thread(target=server.run, name="strop-dashboard", daemon=True)
    thread.start()
    try:
        yield url
    finally:
        server.stop()
        thread.join()


NICENESS = 10
LOOK_SECONDS = 0.2


@contextmanager
def following(run: Path, view: View) -> Iterator[None]:
    """A dashboard of the run in this folder while the block runs.

    Raises:
        StropError: its process cannot be started.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process lives)
    child, end = start_module("strop.dashboard.app", thread_environment(1), output)
    channel = Channel(end)
    try:
        view.note(f"dashboard: {_address(run, channel, child)}")
        yield
    finally:
        channel.close()
        child.end()
        child.close()


def _address(run: Path, channel: Channel, child: ChildProcess) -> str:
    try:
        channel.send_all(str(run.resolve()).encode())
        return channel.next().decode()
    except (EOFError, OSError) as error:
        raise StropError(f"the dashboard's process {child.exit_reason()}") from error


def main() -> None:
    """Serve the process that started this one: say where at once, and answer as soon as there is a run."""
    os.nice(NICENESS)
    channel = Channel(connect_to_parent())
    run = Path(channel.next().decode())
    try:
        listening, url = opened(PORT)
    except InputError:
        listening, url = opened(0)
    channel.send_all(url.encode())
    DashboardServer(_begun(run), listening).run()


def _begun(run: Path) -> FollowedRuns:
    """The run once its folder is there and whole; a former one in its place may be removed meanwhile."""
    while True:
        try:
            return FollowedRuns([run])
        except InputError:
            time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
