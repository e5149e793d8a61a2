"""The dashboard: reads run folders, and answers only GET requests of this machine.

    GET /                       the page; /static/NAME its parts, which are files of this package
    GET /api/curves             the charts: title, metric, its standard error, least height of the y-axis
    GET /api/runs               every run with its status
    GET /api/metrics?run=&offset=      lines of metrics.jsonl from a byte on
    GET /api/rollouts?run=&…    a page of completions, by the fields of `Filters`
    GET /api/completion?run=&step=&row=
    GET /api/settings?run=&run=        settings in which runs differ
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from strop.base.pieces import Settings
from strop.base.types import InputError
from strop.config.edits import differing, explain, flatten
from strop.report.curves import main_curves
from strop.report.runs import RunData, read_runs
from strop.report.status import listed
from strop.run.folder import RunFolder
from strop.serving.http import asks_loopback
from strop_verify.verdict import Status

COLUMNS = (
    "problem_id", "ticket", "sample", "reward", "score", "status", "finish_reason", "prompt", "completion", "reference",
    "detail", "len(token_ids) AS length", "file_row_number AS row",
)  # fmt: skip
CONDITIONS = {
    "status": "status = $status",
    "problem": "problem_id = $problem",
    "truncated": "(finish_reason = 'length') = $truncated",
    "lowest": f"reward >= $lowest AND status NOT IN ('{Status.TIMEOUT}', '{Status.ERROR}')",
    "highest": f"reward <= $highest AND status NOT IN ('{Status.TIMEOUT}', '{Status.ERROR}')",
    "shortest": "len(token_ids) >= $shortest",
    "longest": "len(token_ids) <= $longest",
    "text": "(contains(lower(prompt), lower($text)) OR contains(lower(completion), lower($text)))",
}
PATIENCE = 0.3  # seconds
LAST_ROW = 2**31  # after every row of a step
PREVIEW = 280  # characters of a prompt and of a completion in a list


class Filters(Settings):
    """Filters of completions; None matches every one.

    Fields:
        step: of this step only.
        status: of this verdict.
        problem: of this problem, by its id.
        truncated: whether the token budget ended it.
        lowest, highest: bounds of the reward; completions that the verifier failed on have none.
        shortest, longest: bounds of the number of tokens.
        text: in prompt or completion, ignoring case.
        before: `STEP:ROW`, the end of the previous page.
        limit: completions per page.
    """

    step: int | None = None
    status: str | None = None
    problem: str | None = None
    truncated: bool | None = None
    lowest: float | None = None
    highest: float | None = None
    shortest: int | None = None
    longest: int | None = None
    text: str | None = None
    before: str | None = Field(default=None, pattern=r"^\d+:\d+$")
    limit: int = Field(default=20, ge=1, le=200)


def page(folder: RunFolder, filters: Filters) -> dict[str, Any]:
    """The next completions that match the filters, and the start of the page after (None at the end).

    A page that takes longer than `PATIENCE` to fill is returned as it is, perhaps empty.

    Raises:
        InputError: the run has no completions of the step.
    """
    steps = folder.rollout_steps()[::-1]
    if filters.step is not None:
        if filters.step not in steps:
            raise InputError(f"{folder.path} has no completions of step {filters.step}")
        steps = [filters.step]
    first, after = map(int, filters.before.split(":")) if filters.before else (None, -1)
    rows: list[dict[str, Any]] = []
    database, begin = duckdb.connect(config={"threads": 1}), time.monotonic()
    for step in steps:
        if first is not None and (step > first or (step == first and after == LAST_ROW)):
            continue
        after_row = after if step == first else -1
        rows += _matching(database, folder.rollouts_path(step), step, filters, after_row, filters.limit - len(rows))
        if len(rows) == filters.limit:
            return {"rows": rows, "next": f"{step}:{rows[-1]['row']}"}
        if time.monotonic() - begin > PATIENCE and step != steps[-1]:
            return {"rows": rows, "next": f"{step}:{LAST_ROW}"}
    return {"rows": rows, "next": None}


def _matching(
    database: duckdb.DuckDBPyConnection, path: Path, step: int, filters: Filters, after: int, limit: int
) -> list[dict[str, Any]]:
    """The first rows of a step behind row `after` that match the filters, with their listed fields."""
    given = {name: value for name in CONDITIONS if (value := getattr(filters, name)) is not None}
    where = " AND ".join(["file_row_number > $after", *(CONDITIONS[name] for name in given)])
    query = f"SELECT {', '.join(COLUMNS)} FROM read_parquet($path, file_row_number=true) WHERE {where} LIMIT $limit"
    values = {**given, "path": str(path), "after": after, "limit": limit}
    found = database.sql(query, params=values).to_arrow_table()
    return [
        {**row, "step": step, "prompt": _beginning(row["prompt"]), "completion": _beginning(row["completion"])}
        for row in found.to_pylist()
    ]


def _beginning(text: str) -> str:
    """The beginning of a text without leading empty lines."""
    text = text.strip()
    return text if len(text) <= PREVIEW else f"{text[:PREVIEW]}…"


PER_TOKEN = ("token_ids", "logprobs", "entropies", "advantages", "trainer_logprobs", "prompt_ids")
LARGEST_LOG_RATIO = 20.0  # of a token's probabilities; JSON has no infinity
LONGEST_READ = 4 * 2**20  # bytes of metrics in one answer; the page asks again for the rest


class FollowedRuns:
    """The runs that a dashboard shows, by unique names.

    Raises:
        InputError: a folder is not a run or is named twice, or a file in it is broken.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._known = {run.name: run for run in read_runs(paths)}
        self._decoding = threading.Lock()  # a tokenizer is not thread-safe

    @property
    def names(self) -> list[str]:
        """The names, in the order in which the runs were given."""
        return list(self._known)

    def folder(self, name: str) -> RunFolder:
        """The folder of a run.

        Raises:
            InputError: there is no run of that name here.
        """
        if name not in self._known:
            raise InputError(f"no run is called {name!r} here")
        return self._known[name].folder

    def overview(self) -> list[dict[str, Any]]:
        """Every run with its status and the steps that have completions."""
        return [
            {
                "name": name, "path": str(run.path), "steps_kept": run.folder.rollout_steps(),
                "status": listed(run.path).as_json(),
            }
            for name, run in self._known.items()
        ]  # fmt: skip

    def metrics(self, name: str, offset: int = 0) -> dict[str, Any]:
        """The whole lines of metrics.jsonl from byte `offset` on, and the offset to go on from.

        If the file has become shorter, because the run was resumed from an earlier step, it starts again (`reset`).
        """
        path = self.folder(name).metrics_path
        if not path.is_file():
            return {"rows": [], "offset": 0, "reset": offset > 0}
        with path.open("rb") as lines:
            lines.seek(max(offset - 1, 0))
            reset = offset > 0 and lines.read(1) != b"\n"  # no line begins there any more
            begin = 0 if reset else max(offset, 0)
            lines.seek(begin)
            text = lines.read(LONGEST_READ)
        whole = text[: text.rfind(b"\n") + 1]
        rows = [json.loads(line) for line in whole.splitlines() if line.strip()]
        return {"rows": rows, "offset": begin + len(whole), "reset": reset}

    def settings(self, names: Sequence[str]) -> dict[str, Any]:
        """The settings in which runs differ; for one run, all settings."""
        configs = [self.folder(name).read_json("config.json") for name in names]
        found = flatten(configs[0]) if len(configs) == 1 else differing(*configs)
        return {"runs": list(names), "rows": [[key, values] for key, *values in found]}

    def completion(self, name: str, step: int, row: int) -> dict[str, Any]:
        """One completion with all its recorded values, and its tokens as text if the tokenizer is known.

        Raises:
            InputError: the run has no such completion.
        """
        path = self.folder(name).rollouts_path(step)
        table = pq.ParquetFile(path).read() if path.is_file() else None
        if table is None or not 0 <= row < table.num_rows:
            raise InputError(f"{name} has no completion {row} of step {step}")
        (found,) = table.slice(row, 1).to_pylist()
        with self._decoding:
            tokens, seen = _tokens(self._known[name], found)
        kept = {key: value for key, value in found.items() if key not in PER_TOKEN}
        return kept | {"row": row, "length": len(found["token_ids"]), "tokens": tokens, "seen": seen}


@cache
def _tokenizer(path: Path) -> Any:
    """The run's tokenizer; loading it takes a few seconds, once."""
    from strop.report.samples import tokenizer_of

    (run,) = read_runs([path])
    return tokenizer_of(run)


def _tokens(run: RunData, row: Mapping[str, Any]) -> tuple[list[dict[str, Any]] | None, str | None]:
    """The tokens with their values, and the prompt as the model saw it."""
    from strop.report.samples import prompt_of, shown_tokens

    tokenizer = _tokenizer(run.path)
    if tokenizer is None:
        return None, None
    tokens = [token._asdict() for token in shown_tokens(tokenizer, row)]
    for token, advantage in zip(tokens, row["advantages"] or (), strict=False):
        token["advantage"] = None if token["injected"] else advantage
    for token, logprob in zip(tokens, row["trainer_logprobs"] or (), strict=False):
        known = token["logprob"] is not None
        token["ratio"] = math.exp(min(logprob - token["logprob"], LARGEST_LOG_RATIO)) if known else None
    for span in row["versions"] or ():
        for token in tokens[span["start"] : span["end"]]:
            token["version"] = span["version"]
    return tokens, prompt_of(tokenizer, row)


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
