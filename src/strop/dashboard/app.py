"""The HTTP side of the dashboard, which answers only GET requests of this machine.

    GET /                       the page; /static/NAME its parts, which are files of this package
    GET /api/curves             the charts: title, metric, its standard error, least height of the y-axis
    GET /api/runs               every run with its status
    GET /api/metrics?run=&offset=      lines of metrics.jsonl from a byte on
    GET /api/rollouts?run=&…    a page of completions, by the fields of `Filters`
    GET /api/completion?run=&step=&row=
    GET /api/settings?run=&run=        settings in which runs differ
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from strop.base.types import InputError
from strop.config.edits import explain
from strop.dashboard.reading import Filters, FollowedRuns, page
from strop.report.curves import main_curves
from strop.serving.http import asks_loopback

STATIC = Path(__file__).parent / "static"
HEADERS = (
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
     b"connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)  # fmt: skip
LEAST_HEIGHT = 0.02  # of the chart of ratios: those that differ from 1 by rounding look flat
_logger = logging.getLogger(__name__)


class Dashboard:
    """The application, over the runs that it shows."""

    def __init__(self, runs: FollowedRuns) -> None:
        self._runs = runs
        routes = [
            Route("/", lambda request: FileResponse(STATIC / "index.html")),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/{what}", self._api),
        ]
        self._app = Starlette(routes=routes, exception_handlers={HTTPException: _misrouted})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; every answer gets the security headers."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        # A web page of another site could otherwise read the runs through a host name that points here.
        if asks_loopback(Headers(scope=scope).get("host")):
            await self._app(scope, receive, guarded)
        else:
            await _error(403, "the dashboard answers only to this machine's own name")(scope, receive, guarded)

    async def _api(self, request: Request) -> Response:
        try:
            return JSONResponse(
                await run_in_threadpool(self._read, request.path_params["what"], request.query_params)
            )
        except InputError as error:
            return _error(404, str(error))
        except ValidationError as error:
            return _error(400, explain(error))
        except ValueError as error:
            return _error(400, str(error))
        except Exception as error:  # a bug, or a file that is being replaced
            _logger.exception("%s failed", request.url.path)
            return _error(500, f"{type(error).__name__}; the program's output says more")

    def _read(self, what: str, query: QueryParams) -> Any:
        if what == "curves":
            return _charts()
        if what == "runs":
            return self._runs.overview()
        if what == "settings":
            return self._runs.settings(query.getlist("run") or self._runs.names)
        run = _one(query, "run")
        if what == "metrics":
            return self._runs.metrics(run, int(query.get("offset", "0")))
        if what == "completion":
            return self._runs.completion(run, int(_one(query, "step")), int(_one(query, "row")))
        if what == "rollouts":
            given = {name: value for name, value in query.items() if name != "run"}
            return page(self._runs.folder(run), Filters.model_validate(given))
        raise InputError(f"there is no /api/{what}")


def _charts() -> list[tuple[str, str, str | None, float | None]]:
    """The main curves of a report, each by its first metric."""
    charts = []
    for curves in main_curves():
        metric, label = next(iter(curves.lines.items()))
        title = curves.title if len(curves.lines) == 1 else f"{curves.title}, {label}"
        charts.append((title, metric, curves.error, LEAST_HEIGHT if curves.key == "ratio" else None))
    return charts


def _one(query: QueryParams, name: str) -> str:
    if name not in query:
        raise ValueError(f"say which {name}: ?{name}=…")
    return query[name]


def _misrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail)


def _error(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)
