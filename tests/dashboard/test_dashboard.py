"""The dashboard: what it reads while a run writes, pages by filters, whom it answers, and how quickly."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.runs import small_config

from strop import dashboard
from strop.base.rollout_table import SCHEMA
from strop.base.types import InputError
from strop.dashboard import Dashboard, Filters, FollowedRuns, page
from strop.model.files import byte_tokenizer
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder
from strop.training.embedded_base import WORDS

HTML = "<script>alert(1)</script><b>bold</b>"


def row(step: int, place: int, **changes: Any) -> dict[str, Any]:
    """A row of the rollout table; its length is 1 + place, its reward place / 10."""
    length = 1 + place
    return {
        "step": step, "ticket": place // 4, "sample": place % 4, "problem_id": f"p{place % 5}", "source": "s",
        "domain": "math", "reference": "2", "prompt": f"question {place % 5}",
        "completion": f"answer {place} of {step}",
        "prompt_ids": [1], "token_ids": list(range(65, 65 + length)), "logprobs": [-0.5] * length,
        "entropies": [0.25] * length, "versions": [{"version": step - 1, "start": 0, "end": length}],
        "interrupted_at": None, "injected": [], "turns": [], "turn_scores": [], "restarts": [], "last_turn_at": 0,
        "finish_reason": "length" if place % 2 else "stop",
        "reward": place / 10, "score": float(place % 3 == 0), "status": "correct" if place % 3 == 0 else "wrong",
        "detail": "",
    } | changes  # fmt: skip


def make_run(path: Path, steps: int = 3, rows: int = 10, **changes: Any) -> RunFolder:
    run = RunFolder.create(path, small_config(f"steps={steps}").model_dump(mode="json"))
    (path / "rollouts").mkdir()
    for step in range(1, steps + 1):
        run.append_metrics(step, {"pass_rate": step / 10})
        table = pa.Table.from_pylist([row(step, place, **changes) for place in range(rows)], schema=SCHEMA)
        pq.write_table(table, run.rollouts_path(step))
    run.close()
    return run


def places(found: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(each["step"], each["row"]) for each in found["rows"]]


def test_pages_follow_one_another_from_the_newest_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    seen: list[tuple[int, int]] = []
    filters: Filters | None = Filters(limit=7)
    while filters is not None:
        found = page(run, filters)
        seen += places(found)
        filters = filters.model_copy(update={"before": found["next"]}) if found["next"] else None
    assert seen == [(step, place) for step in (3, 2, 1) for place in range(10)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"status": "correct"}, [0, 3, 6, 9]),
        ({"truncated": True}, [1, 3, 5, 7, 9]),
        ({"truncated": False, "status": "wrong"}, [2, 4, 8]),
        ({"problem": "p4"}, [4, 9]),
        ({"lowest": 0.75}, [8, 9]),
        ({"lowest": 0.2, "highest": 0.4}, [2, 3, 4]),
        ({"shortest": 9}, [8, 9]),
        ({"longest": 2}, [0, 1]),
        ({"text": "ANSWER 7 OF"}, [7]),
        ({"text": "question 3"}, [3, 8]),
        ({"text": "nothing of the kind"}, []),
    ],
)
def test_filters(tmp_path: Path, filters: dict[str, Any], expected: list[int]) -> None:
    found = page(make_run(tmp_path / "run"), Filters(step=2, **filters))
    assert places(found) == [(2, place) for place in expected]
    assert [each["length"] for each in found["rows"]] == [1 + place for place in expected]


def test_what_the_verifier_failed_on_is_found_by_no_reward(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1, rows=2, status="error", reward=None)
    assert places(page(run, Filters(lowest=-1))) == places(page(run, Filters(highest=1))) == []
    assert len(places(page(run, Filters(status="error")))) == 2


def test_a_list_shows_where_a_text_begins(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1, rows=1, completion="\n\n\n<tool_call>" + 300 * "x")
    (shown,) = page(run, Filters())["rows"]
    assert shown["completion"].startswith("<tool_call>x") and shown["completion"].endswith("x…")


def test_metrics_grow_and_begin_anew_after_a_resume(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    runs = FollowedRuns([run.path])
    first = runs.metrics("run")
    assert [each["step"] for each in first["rows"]] == [1, 2, 3] and not first["reset"]
    assert runs.metrics("run", first["offset"])["rows"] == []
    with run.metrics_path.open("a") as lines:
        lines.write('{"step": 4, "pass_rate": 0.5}\n{"step": 5, "pass')  # a line that is being written
    more = runs.metrics("run", first["offset"])
    assert [each["step"] for each in more["rows"]] == [4]
    run.truncate(1)
    again = runs.metrics("run", more["offset"])
    assert again["reset"] and [each["step"] for each in again["rows"]] == [1]


def test_a_completion_comes_with_its_tokens(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", completion=HTML)
    found = FollowedRuns([run.path]).completion("run", 3, 5)
    assert found["completion"] == HTML and found["length"] == 6
    assert [token["version"] for token in found["tokens"]] == [2] * 6
    assert {(token["logprob"], token["entropy"]) for token in found["tokens"]} == {(-0.5, 0.25)}
    assert "".join(token["text"] for token in found["tokens"]) == "bcdefg"
    assert found["seen"] == byte_tokenizer().decode([1]) and "prompt_ids" not in found
    with pytest.raises(InputError):
        FollowedRuns([run.path]).completion("run", 3, 10)


SAID = ("Let me see. <tool_call>", '{"name": "calculator"}</tool_call>', "42", "It is 42.")
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 6*7?"}]


def make_played_run(path: Path) -> RunFolder:
    """A run of one completion: a turn with a call of a tool, the tool's answer, a second turn; as training saw it."""
    parts = [byte_tokenizer().encode(part) for part in SAID]
    ids = [token for part in parts for token in part]
    begin, turn = len(parts[0]) + len(parts[1]), len(ids) - len(parts[3])
    trainer = [-0.5] * begin + [0.0] * (turn - begin) + [-1.0] * len(parts[3])
    run = make_run(path, steps=1, rows=1)
    recorded = row(
        1, 0, token_ids=ids, logprobs=[-0.5] * begin + [0.0] * (turn - begin) + [-0.5] * len(parts[3]), entropies=None,
        versions=[{"version": 0, "start": 0, "end": len(ids)}], injected=[{"start": begin, "end": turn}], turns=[turn],
        advantages=[1.5] * len(ids), trainer_logprobs=trainer, prompt=json.dumps(CHAT), completion="".join(SAID),
    )  # fmt: skip
    pq.write_table(pa.Table.from_pylist([recorded], schema=SCHEMA), run.rollouts_path(1))
    return run


def test_what_training_made_of_a_token(tmp_path: Path) -> None:
    found = FollowedRuns([make_played_run(tmp_path / "run").path]).completion("run", 1, 0)["tokens"]
    assert [token["advantage"] for token in found if not token["injected"]] == [1.5] * (len(found) - len(SAID[2]))
    assert {(token["turn"], token["ratio"]) for token in found} == {(0, 1.0), (0, None), (1, math.exp(-0.5))}
    older = FollowedRuns([make_run(tmp_path / "older").path]).completion("older", 1, 0)["tokens"]
    assert "advantage" not in older[0] and "ratio" not in older[0]


def asked(
    app: Dashboard, path: str, method: str = "GET", host: str = "127.0.0.1:8030"
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body of an answer."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()  # the client stays and sends no body

    async def send(message: Any) -> None:
        sent.append(message)

    where, _, query = path.partition("?")
    scope = {
        "type": "http", "method": method, "path": where, "query_string": query.encode(), "root_path": "",
        "scheme": "http", "http_version": "1.1", "headers": [(b"host", host.encode())],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(part["body"] for part in sent[1:])


def test_it_answers_this_machine_and_only_reads(tmp_path: Path) -> None:
    app = Dashboard(FollowedRuns([make_run(tmp_path / "run").path]))
    status, headers, body = asked(app, "/")
    assert status == 200 and b"<title>strop</title>" in body
    assert b"default-src 'none'" in headers[b"content-security-policy"] and b"//" not in body
    for name in ("uPlot.iife.min.js", "uPlot.min.css", "style.css", "main.js"):
        assert asked(app, f"/static/{name}")[0] == 200 and f"/static/{name}".encode() in body
    assert asked(app, "/", "HEAD")[2] == b""
    assert asked(app, "/api/runs", "POST")[0] == 405
    assert asked(app, "/", host="evil.example")[0] == 403
    assert asked(app, "/", host="[::1]:8030")[0] == 200
    for path in ("/static/../__init__.py", "/static/__init__.py", "/etc/passwd", "/api/nothing?run=run"):
        assert asked(app, path)[0] == 404


def test_the_questions_of_the_page(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "first"), make_run(tmp_path / "second", steps=4)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    app = Dashboard(FollowedRuns([first.path, second.path]))

    def got(path: str) -> Any:
        status, _, body = asked(app, path)
        assert status == 200, body
        return json.loads(body)

    one, two = got("/api/runs")
    metrics = {metric: error for _, metric, error, _ in got("/api/curves")}
    assert metrics["evaluation/pass_rate"] == "evaluation/stderr" and metrics["pass_rate"] is None
    assert (one["name"], one["steps_kept"], one["status"]["step"]) == ("first", [1, 2, 3], 3)
    assert got("/api/metrics?run=second&offset=0")["rows"][-1]["step"] == 4
    assert got("/api/settings?run=first&run=second")["rows"] == [["steps", ["3", "4"]]]
    assert ["steps", ["3"]] in got("/api/settings?run=first")["rows"]
    assert len(got("/api/rollouts?run=second&status=wrong&limit=3")["rows"]) == 3
    assert got("/api/completion?run=first&step=1&row=0")["status"] == "correct"
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}, "it writes nothing"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/metrics", 400), ("/api/metrics?run=x", 404), ("/api/metrics?run=run&offset=a", 400),
        ("/api/rollouts?run=run&limit=0", 400), ("/api/rollouts?run=run&nothing=1", 400),
        ("/api/rollouts?run=run&before=x", 400), ("/api/rollouts?run=run&step=99", 404),
        ("/api/completion?run=run&step=1&row=99", 404), ("/api/settings?run=x", 404),
    ],
)  # fmt: skip
def test_a_wrong_question_says_why(tmp_path: Path, path: str, status: int) -> None:
    found, _, body = asked(Dashboard(FollowedRuns([make_run(tmp_path / "run").path])), path)
    assert found == status and json.loads(body)["error"]


def test_a_search_that_takes_long_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    monkeypatch.setattr(dashboard, "PATIENCE", -1.0)
    first = page(run, Filters(text="answer 4 of 1"))
    second = page(run, Filters(text="answer 4 of 1", before=first["next"]))
    assert (first["rows"], second["rows"]) == ([], [])
    last = page(run, Filters(text="answer 4 of 1", before=second["next"]))
    assert places(last) == [(1, 4)] and last["next"] is None


def test_a_page_of_a_hundred_thousand_completions_is_quick(tmp_path: Path) -> None:
    """100 steps of 1,000 completions of 100 tokens; the one that timed out is in the last file looked at."""
    run = make_run(tmp_path / "run", steps=1, rows=1)
    tokens = {"token_ids": [1] * 100, "logprobs": [0.0] * 100, "entropies": None}
    rows = [row(1, place % 97, ticket=place, **tokens) for place in range(1000)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    rare = pa.Table.from_pylist([{**rows[0], "status": "timeout"}, *rows[1:]], schema=SCHEMA)
    for step in range(1, 101):
        pq.write_table(rare if step == 1 else table, run.rollouts_path(step), compression="zstd")

    def slowest(**filters: Any) -> tuple[float, list[tuple[int, int]]]:
        """Processor seconds of the slowest of the pages that a search takes, and what they found."""
        times: list[float] = []
        found: list[tuple[int, int]] = []
        before: str | None = None
        while before is not None or not times:
            begin = time.process_time()
            part = page(run, Filters(before=before, **filters))
            times.append(time.process_time() - begin)
            found += places(part)
            before = part["next"] if len(found) < 20 else None
        return max(times), found

    slowest()  # the first reading of Parquet takes its time once
    for filters, expected in (({}, 20), ({"status": "timeout"}, 1), ({"text": "answer 96"}, 20)):
        spent, found = slowest(**filters)
        assert len(found) == expected and spent < 0.5, filters
    assert slowest(status="timeout")[1] == [(1, 0)]


def test_the_embedded_model_writes_in_its_own_words(tmp_path: Path) -> None:
    """Its tokenizer has a word that plain bytes have not, also before the run has exported a model."""
    run = RunFolder.create(tmp_path / "run", resolve("quickstart").model_dump(mode="json"))
    (run.path / "rollouts").mkdir()
    ids = byte_tokenizer(WORDS).encode("1+1=2 \\boxed{2}")
    recorded = row(1, 0, token_ids=ids, logprobs=[0.0] * len(ids), entropies=None, versions=[])
    pq.write_table(pa.Table.from_pylist([recorded], schema=SCHEMA), run.rollouts_path(1))
    run.close()
    tokens = FollowedRuns([run.path]).completion("run", 1, 0)["tokens"]
    assert "".join(token["text"] for token in tokens) == "1+1=2 \\boxed{2}"
