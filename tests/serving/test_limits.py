"""What an endpoint refuses, and how; who hangs up is forgotten; it ends as it should."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.serving.running import Running, endpoint, tiny_engine

from strop.base.types import Completion, InputError, StropError
from strop.engines.torch import TorchEngine
from strop.serving import ServeLimits
from strop.serving.driver import EngineFailure
from strop.serving.http import is_loopback, listen

LONG = {"prompt": "3+5-2=", "max_tokens": 490, "n": 64, "seed": 0}
SHORT = {"prompt": "3+5-2=", "max_tokens": 2, "seed": 0}


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    limits = ServeLimits(body_bytes=4096, samples=64, new_tokens=500, grace=1.0)
    with endpoint(limits=limits) as running:
        yield running


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, in OpenAI's shape."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and "\n" not in error["message"]
    return dict(error)


def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [999]}, None),  # the engine says that it does not know this token
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "temperature": 1e-9}, "temperature"),
        ({"prompt": "a", "temperature": "1"}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "top_k": 2**40}, "top_k"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 65}, "n"),
        ({"prompt": ["a", "b"], "n": 33}, "n"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 501}, "max_tokens"),
        ({"prompt": "a" * 100, "max_tokens": 450}, "max_tokens"),
        ({"prompt": "a" * 600}, "prompt"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop"),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "seed": 2**64}, "seed"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": 2, "stream": True}, "logprobs"),
        ({"prompt": "a", "echo": True, "stream": True}, "echo"),
        ({"prompt": "a", "frequency_penalty": 0.5}, "frequency_penalty"),
        ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "model": "gpt-4"}, "model"),
        ({"prompt": "\ud800"}, None),
    ],
)
def test_a_field_that_cannot_be_honoured_is_named(served: Running, body: dict[str, Any], param: str | None) -> None:
    answer = served.client.post(
        "/completions", content=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    error = refused(answer, 404 if param == "model" else 400)
    assert error["param"] == param and (param is None or error["message"].startswith((param, f"the {param}")))


@pytest.mark.parametrize(
    ("body", "param", "path"),
    [
        ({"messages": []}, "messages", "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages", "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "messages.0.content"),
        ({"messages": [{"role": "user"}]}, "messages", "messages.0.content"),
        ({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, "top_logprobs", "top_logprobs"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, "tools", "tools"),
        (
            {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "max_completion_tokens": 4},
            "max_tokens", "max_completion_tokens",
        ),
    ],
)  # fmt: skip
def test_a_chat_is_refused_likewise(served: Running, body: dict[str, Any], param: str, path: str) -> None:
    error = refused(served.post("/chat/completions", **body), 400)
    assert error["param"] == param and error["message"].startswith(f"{path}: ")


def test_unknown_fields_and_neutral_values_change_nothing(served: Running) -> None:
    nothing = {
        "user": "me", "metadata": {"a": "b"}, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {},
        "best_of": 1, "suffix": None, "top_k": -1, "stop": None, "n": None, "stream": False, "temperature": None,
        "unknown": [1],
    }  # fmt: skip
    assert served.complete(**SHORT, **nothing)["choices"] == served.complete(**SHORT)["choices"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"nul", b'{"prompt": NaN}', b"\xff\xfe", b"[" * 4000])
def test_what_is_no_json_object_is_told(served: Running, content: bytes) -> None:
    answer = served.client.post("/completions", content=content, headers={"Content-Type": "application/json"})
    assert refused(answer, 400)["code"] == "invalid_json"


def test_paths_methods_and_types(served: Running) -> None:
    assert "/v1/completions" in refused(served.client.get("/nowhere"), 404)["message"]
    answer = served.client.get("/completions")
    assert refused(answer, 405) and answer.headers["allow"] == "POST"
    refused(served.client.post("/models"), 405)
    refused(served.client.post("/completions", content=json.dumps(SHORT)), 415)


def test_a_body_beyond_the_limit_is_refused(served: Running) -> None:
    declared = served.post("/completions", prompt="a" * 5000)
    assert "4096 bytes" in refused(declared, 413)["message"]

    def parts() -> Iterator[bytes]:
        yield b'{"prompt": "'
        yield b"a" * 5000
        yield b'"}'

    undeclared = served.client.post("/completions", content=parts(), headers={"Content-Type": "application/json"})
    refused(undeclared, 413)
    assert served.complete(**SHORT)


def test_another_host_name_is_refused(served: Running) -> None:
    """A web page that has its own name point at this machine must not reach it."""
    answer = served.client.post("/completions", json=SHORT, headers={"Host": "evil.example:80"})
    refused(answer, 403)
    port = served.url.split(":")[2].split("/")[0]
    for host in (f"localhost:{port}", "127.0.0.1", "[::1]:80", "[::1]"):
        assert served.client.get("/models", headers={"Host": host}).status_code == 200


def test_the_key_is_wanted_and_never_told(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with endpoint(key="s3cret-key", log=lines.append) as running:
        assert running.complete(**SHORT)
        for given in (b"", b"Bearer wrong", b"s3cret-key", b"Bearer s3cret-key2", b"Bearer \xff"):
            headers = {b"Authorization": given}
            answer = httpx.post(f"{running.url}/completions", json=SHORT, headers=headers, trust_env=False)
            error = refused(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer" and "s3cret" not in answer.text
            assert error["code"] == "invalid_api_key"
        refused(httpx.get(f"{running.url}/models", trust_env=False), 401)
        assert running.health()["status"] == "ok"  # for a supervisor, which has no key
        assert "s3cret" not in repr(running.server._served)
    assert len(lines) == 8 and lines[0].startswith("POST '/v1/completions' 200 ") and "401" in lines[1]
    out, err = capfd.readouterr()
    assert "s3cret" not in out + err + "".join(lines)


def test_others_are_let_in_only_with_a_key_or_on_demand() -> None:
    with pytest.raises(InputError, match="--api-key-env"):
        listen("0.0.0.0", 0, None, insecure=False)
    listen("0.0.0.0", 0, "key", insecure=False).close()
    listen("0.0.0.0", 0, None, insecure=True).close()
    assert [is_loopback(host) for host in ("localhost", "127.9.9.9", "[::1]", "10.0.0.1", "evil", "")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_a_taken_port_is_told() -> None:
    with listen("127.0.0.1", 0, None, False) as taken, pytest.raises(InputError, match="choose another with --port"):
        listen("127.0.0.1", taken.getsockname()[1], None, False)


@contextmanager
def streaming(running: Running, **body: Any) -> Iterator[Iterator[str]]:
    """A stream that has begun."""
    with running.client.stream("POST", "/completions", json={**body, "stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        yield lines


def test_beyond_its_places_it_says_come_again() -> None:
    with endpoint(limits=ServeLimits(requests=1, grace=1.0)) as running:
        with streaming(running, **LONG):
            answer = httpx.post(f"{running.url}/completions", json=SHORT, trust_env=False)
            error = refused(answer, 429)
            assert answer.headers["retry-after"] == "1" and error["type"] == "rate_limit_error"
            assert running.health()["requests"] == 1
        until(lambda: running.health()["requests"] == 0)
        assert running.complete(**SHORT)


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_is_cancelled(served: Running, stream: bool) -> None:
    body = json.dumps({**LONG, "stream": stream}).encode()
    names = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    head = "\r\n".join((*names, f"Content-Length: {len(body)}", "", ""))
    with socket.create_connection(("127.0.0.1", int(served.url.split(":")[2].split("/")[0]))) as line:
        line.sendall(head.encode() + body)
        until(lambda: served.health()["running"] == 16)
        if stream:
            assert line.recv(100).startswith(b"HTTP/1.1 200")
        asked = served.health()
        assert asked["waiting"] > 0 and asked["requests"] == 1
    until(lambda: served.health()["running"] == served.health()["waiting"] == served.health()["requests"] == 0, 10)
    assert served.engine.unfinished == 0


def test_a_request_beyond_its_time_is_ended() -> None:
    with endpoint(limits=ServeLimits(seconds=0.3, grace=1.0)) as running:
        assert "0.3 seconds" in refused(running.post("/completions", **LONG), 504)["message"]
        with streaming(running, **LONG) as lines:
            rest = [line for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "timeout"
        until(lambda: running.health()["running"] == 0)


def test_a_stream_that_is_not_read_is_not_waited_for() -> None:
    lines: list[str] = []
    with endpoint(limits=ServeLimits(seconds=1.5, grace=1.0), log=lines.append) as running:
        body = json.dumps({**LONG, "stream": True, "return_token_ids": True, "logprobs": 0}).encode()
        names = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.connect(("127.0.0.1", int(running.url.split(":")[2].split("/")[0])))
            line.sendall("\r\n".join((*names, f"Content-Length: {len(body)}", "", "")).encode() + body)
            until(lambda: bool(lines))
            until(lambda: running.health()["requests"] == running.health()["running"] == 0)
    assert lines[0].startswith("POST '/v1/completions'")


class Breaking(TorchEngine):
    """An engine whose weights overflow once it is told to."""

    broken = False

    def step(self) -> list[Completion]:
        if self.broken:
            raise StropError("a sampled log-prob is not finite")
        return super().step()


def test_a_broken_engine_is_told_to_everybody_and_ends_the_server() -> None:
    engine = tiny_engine()
    engine.__class__ = Breaking
    answers: list[httpx.Response] = []
    with pytest.raises(EngineFailure, match="not finite"), endpoint(engine=engine) as running:
        asking = threading.Thread(target=lambda: answers.append(running.post("/completions", **LONG)))
        asking.start()
        until(lambda: running.health()["running"] > 0)
        Breaking.broken = True
        asking.join(30)
    Breaking.broken = False
    assert "not finite" in refused(answers[0], 503)["message"]


def test_told_to_end_it_lets_open_requests_finish() -> None:
    with endpoint(limits=ServeLimits(grace=30.0)) as running:
        with streaming(running, **{**SHORT, "max_tokens": 200, "seed": 1, "n": 2}) as lines:
            running.server.stop()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
    assert running.server.answered == 1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{running.url}/models", trust_env=False)


def raw(running: Running) -> socket.socket:
    host, _, port = running.url.removeprefix("http://").removesuffix("/v1").partition(":")
    return socket.create_connection((host, int(port)), timeout=20.0)


def closed_after(connection: socket.socket) -> float:
    """Seconds until the other side closes."""
    began = time.monotonic()
    while connection.recv(1 << 16):
        pass
    return time.monotonic() - began


def test_a_connection_without_a_whole_head_is_closed() -> None:
    with endpoint(limits=ServeLimits(seconds=1.0, grace=1.0)) as running:
        silent, slow, after = raw(running), raw(running), raw(running)
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        # An answered request whose body never comes whole: one more byte of it stops the clock of idle connections.
        after.sendall(b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n")
        assert b"404" in after.recv(1 << 16)
        after.sendall(b"x")
        for connection in (silent, slow, after):
            assert closed_after(connection) < 10.0
            connection.close()
        for _ in range(3):  # one connection, which asks and is kept
            assert running.client.get("/models").status_code == 200
            time.sleep(0.5)


def test_two_lengths_of_one_body_are_refused(served: Running) -> None:
    body = json.dumps({"model": "tiny", **SHORT}).encode()
    chunked = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n"
    )
    with raw(served) as connection:
        connection.sendall(head + b"Content-Length: 5\r\n\r\n" + chunked + b"GET /v1/models HTTP/1.1\r\n\r\n")
        told = b""
        while part := connection.recv(1 << 16):
            told += part
    assert told.startswith(b"HTTP/1.1 400") and told.count(b"HTTP/1.1") == 1  # and the connection ends there
    with raw(served) as connection:
        connection.sendall(head + b"\r\n" + chunked)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
