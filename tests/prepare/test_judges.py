"""Judges behind a real HTTP server that speaks the protocol: votes, thresholds, retries, a death in the middle."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.prepare.working import Outcome, questions, run, write_lines

from strop.base.endpoint import ChatEndpoint, EndpointClient, EndpointError
from strop.base.types import InputError
from strop.base.view import SilentView, Values
from strop.engines.endpoint import EndpointEngine, EndpointTokenizer
from strop.engines.protocol import Request, Sampling
from strop.prepare import parse_config, prepare
from strop.prepare.rating import read_vote

Answer = Callable[[dict[str, Any], int], tuple[int, dict[str, str], Any]]


class Server:
    """Answers POST /v1/chat/completions with what `answer(body, number of the call)` says."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.lock = threading.Lock()
        self.url = ""

    def handle(self, path: str, key: str | None, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        with self.lock:
            self.bodies.append(body)
            self.keys.append(key)
            number = len(self.bodies)
        return self.answer(body, number) if path == "/v1/chat/completions" else (404, {}, {"error": "no such path"})


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    server = Server(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, value = server.handle(self.path, self.headers.get("Authorization"), body)
            if status == 0:  # cut the connection off
                return
            data = json.dumps(value).encode()
            self.send_response(status)
            for name, entry in {
                **headers,
                "Content-Type": "application/json",
                "Content-Length": str(len(data)),
            }.items():
                self.send_header(name, entry)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Http(ThreadingHTTPServer):
        request_queue_size = 128

    http = Http(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def said(text: str) -> tuple[int, dict[str, str], Any]:
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return 200, {}, {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage}


def judging(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], Any]:
    """Problems that say `bad` are incomplete, those that say `odd` get no readable vote."""
    question = body["messages"][-1]["content"].partition("Problem:\n")[2]
    if "odd" in question:
        return said("I cannot say.")
    if "bad" in question:
        return said('{"complete_information": false, "valid": false, "reason": "no numbers"}')
    return said('<think>{"valid": false}</think>Here: {"complete_information": true, "valid": true, "reason": ""}')


def judged(folder: Path, rows: list[Any], urls: list[str], **more: Any) -> Outcome:
    judges = [{"url": url, "model": f"m{place}", "backoff": 0.01}
              for place, url in enumerate(urls)]  # fmt: skip
    return run(folder, [rows], [{"piece": "Judges", "judges": judges, "concurrency": 2, **more}])


def test_problems_need_enough_valid_votes(tmp_path: Path) -> None:
    with serving(judging) as first, serving(judging) as second:
        rows = questions("good 1", "bad 2", "odd 3")
        outcome = judged(tmp_path, rows, [first.url, second.url], votes=2, threshold=3, stop_early=False)
        assert outcome.prompts == ["good 1"]
        assert outcome.reasons == {"information is missing": 1, "no vote could be read": 1}
        assert outcome.dropped[1]["detail"] == "4 of 4 votes could not be read, such as 'I cannot say.'"
        assert outcome.dropped[0]["detail"] == "0 of 4 votes valid; no numbers"
        assert (len(first.bodies), len(second.bodies)) == (6, 6)
        assert {body["model"] for body in second.bodies} == {"m1"}
        assert len({body["seed"] for body in [*first.bodies, *second.bodies]}) == 12
    counts = outcome.step("judges")["counts"]
    assert counts["votes"] == 12 and counts["unreadable_votes"] == 4
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (1200, 120)


def test_where_no_vote_can_be_read_the_error_says_so_and_shows_one(tmp_path: Path) -> None:
    with (
        serving(judging) as server,
        pytest.raises(
            InputError, match=r"2\); 4 of 4 .*'I cannot say\.'"
        ),
    ):
        judged(tmp_path, questions("odd 1", "odd 2"), [server.url], votes=2, threshold=1)


def test_no_vote_is_asked_for_that_cannot_matter(tmp_path: Path) -> None:
    with serving(judging) as server:
        outcome = judged(tmp_path, questions("good 1", "bad 2"), [server.url], votes=16, threshold=9)
        assert outcome.prompts == ["good 1"]
        assert len(server.bodies) == 9 + 8  # nine for; eight against leave eight, which are too few


def test_what_fails_in_passing_is_sent_again(tmp_path: Path) -> None:
    def flaky(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], Any]:
        failures: dict[int, tuple[int, dict[str, str], Any]] = {
            1: (503, {}, {}),
            2: (429, {"Retry-After": "0"}, {}),
            3: (0, {}, {}),
            4: (200, {}, {"choices": []}),
        }
        return failures.get(number) or judging(body, number)

    with serving(flaky) as server:
        outcome = judged(tmp_path, questions("good 1"), [server.url], votes=1, threshold=1)
        assert outcome.prompts == ["good 1"]
        assert len(server.bodies) == 5
    assert outcome.step("judges")["counts"]["retries"] == 4


def test_when_an_endpoint_dies_what_was_done_is_kept(tmp_path: Path) -> None:
    rows = questions(*(f"good {number}" for number in range(10)))

    def dying(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], Any]:
        return judging(body, number) if number <= 7 else (500, {}, {"error": "out of memory"})

    # No more at once than the server lets queue: a connection that is made anew after a second would still come in.
    options = {"votes": 2, "threshold": 2, "concurrency": 4}
    judges = [{"url": "", "model": "m", "backoff": 0.0, "retries": 1}]
    with serving(dying) as server:
        judges[0]["url"] = server.url
        with pytest.raises(
            EndpointError, match=r"2 attempts \(HTTP 500"
        ):
            run(tmp_path, [rows], [{"piece": "Judges", "judges": judges, **options}])
    with serving(judging) as server:  # another one: the first may still be taking what was on its way
        judges[0]["url"] = server.url
        outcome = run(
            tmp_path, [{"path": str(tmp_path / "set0.jsonl")}], [{"piece": "Judges", "judges": judges, **options}]
        )
        assert len(outcome.kept) == 10
        assert len(server.bodies) == 20 - 7  # the seven votes were not asked for again
    assert outcome.step("judges")["counts"]["votes"] == 20


def test_a_refusal_is_not_retried(tmp_path: Path) -> None:
    with serving(lambda body, number: (401, {}, {"error": "bad key"})) as server:
        with pytest.raises(InputError, match="HTTP 401"):
            judged(tmp_path, questions("good 1"), [server.url], votes=1, threshold=1)
        assert len(server.bodies) == 1


def refusing(body: dict[str, Any], number: int) -> tuple[int, dict[str, str], Any]:
    return 400, {}, {"error": "the tokenizer has no chat template"}


def test_a_judge_without_a_chat_template_is_refused_with_what_helps_here(tmp_path: Path) -> None:
    with serving(refusing) as server, pytest.raises(InputError, match="HTTP 400") as found:
        judged(tmp_path, questions("good 1"), [server.url], votes=1, threshold=1)
    assert "strop eval" not in str(found.value)


def test_an_evaluation_is_told_how_a_model_without_a_chat_template_is_asked() -> None:
    with serving(refusing) as server:
        engine = EndpointEngine(ChatEndpoint(url=server.url, model="m"), 1)
        tokens = EndpointTokenizer().apply_chat_template(
            [{"role": "user", "content": "1+1="}], tokenize=False, add_generation_prompt=True
        ).encode()  # fmt: skip
        engine.submit(Request("one", np.array(list(tokens), np.int32), Sampling(max_new_tokens=4), 0, 1))
        with pytest.raises(InputError, match="HTTP 400: .*data.template=Plain"):
            while not engine.step():
                pass
        engine.close()


def test_a_problem_is_counted_once_its_votes_are_there(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []

    class Told(SilentView):
        def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
            self.name = name

        def advance(self, step: int, metrics: Values) -> None:
            told.append((self.name, step))

    write_lines(tmp_path / "set.jsonl", questions("good 1", "bad 2", "good 3"))
    with serving(refusing) as server:
        steps = [{"piece": "Judges", "judges": [{"url": server.url, "model": "m"}], "votes": 2, "threshold": 2}]
        given = {"out": str(tmp_path / "out"), "sources": [{"path": str(tmp_path / "set.jsonl")}], "steps": steps}
        with pytest.raises(InputError):
            prepare(parse_config(given), Told())
        assert [step for name, step in told if name == "judges"] == []
        server.answer = judging
        prepare(parse_config(given), Told())
    assert [step for name, step in told if name == "judges"][-1] == 3


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(judging) as server:
        endpoint = ChatEndpoint(url=f"{server.url}/", model="m", api_key_env="STROP_TEST_KEY")
        with pytest.raises(InputError, match="STROP_TEST_KEY"):
            EndpointClient(endpoint)
        monkeypatch.setenv("STROP_TEST_KEY", "secret")
        reply = asyncio.run(EndpointClient(endpoint).chat([{"role": "user", "content": "Problem:\n1"}], 1.0, 10, 0))
        assert reply.prompt_tokens == 100
        assert server.keys == ["Bearer secret"]


def test_no_server_at_all() -> None:
    endpoint = ChatEndpoint(url="http://127.0.0.1:9/v1", model="m", retries=1, backoff=0.0)
    with pytest.raises(EndpointError, match="'m'"):
        asyncio.run(EndpointClient(endpoint).chat([], 1.0, 10, 0))


@pytest.mark.parametrize(
    ("text", "valid", "failed"),
    [
        ('{"valid": true}', True, ()),
        ('```json\n{"clear_wording": false, "valid": false}\n```', False, ("clear_wording",)),
        ('{"good_formatting": true, "no_distractions": true}', True, ()),
        ('{"good_formatting": true, "no_distractions": false}', False, ("no_distractions",)),
        ('{"valid": "yes"}', None, ()),
        ('{"valid": true, "reason": "the set {1, 2}"}', True, ()),
        ('{"valid": true, "reason": "}{ is odd"}', True, ()),
        (r'{"valid": true, "reason": "\\frac{1}{2}"}', True, ()),
        (r'{"valid": true, "reason": "\( x \) and \sqrt{2} and \underline{a}"}', True, ()),
        ('{"valid": true, "reason": "two\nlines"}', True, ()),
        (r'{"valid": true} no: {"valid": false, "reason": "\( x \)"} {not this}', False, ()),
        ('{"verdict": {"valid": true}, "of": {}}', True, ()),
        ('{"a":' * 5000, None, ()),
        ("{" * 1000, None, ()),
        ("", None, ()),
    ],
)
def test_votes_are_read(text: str, valid: bool | None, failed: tuple[str, ...]) -> None:
    vote = read_vote(text)
    assert (vote.valid, vote.failed) == (valid, failed)


@pytest.mark.parametrize("written", [r"half is \frac{1}{2}", r"half is \\frac{1}{2}"])
def test_a_reason_keeps_its_latex(written: str) -> None:
    assert read_vote(f'{{"valid": false, "reason": "{written}"}}').reason == r"half is \frac{1}{2}"
