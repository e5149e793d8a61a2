"""What an endpoint refuses, and how; who hangs up is forgotten; it ends as it should."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.serving.running import Running, endpoint, tiny_engine
from tests.watching import until

from strop.base.types import Completion, InputError, StropError
from strop.engines.torch.engine import TorchEngine
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
        ({"prompt": "a", "temperature": 101}, "temperature"),
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
        ({"prompt": "a" * 512}, "max_tokens"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop"),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "seed": 2**64}, "seed"),
        ({"prompt": "a", "logprobs": 1}, "logprobs"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "frequency_penalty": 0.5}, "frequency_penalty"),
        ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias"),
        ({"prompt": "a", "model": "gpt-4"}, "model"),
        ({"prompt": "\ud800"}, None),
    ],
)
def test_a_field_that_cannot_be_honoured_is_named(served: Running, body: dict[str, Any], param: str | None) -> None:
    answer = served.client.post(
        "/completions", content=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    assert refused(answer, 404 if param == "model" else 400)["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, "tools"),
    ],
)  # fmt: skip
def test_a_chat_is_refused_likewise(served: Running, body: dict[str, Any], param: str) -> None:
    assert refused(served.post("/chat/completions", **body), 400)["param"] == param


def test_unknown_fields_and_neutral_values_change_nothing(served: Running) -> None:
    nothing = {
        "user": "me", "metadata": {"a": "b"}, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {},
        "best_of": 1, "suffix": None, "top_k": -1, "stop": None, "n": None, "stream": False, "temperature": None,
        "unknown": [1], "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert served.complete(**SHORT, **nothing)["choices"] == served.complete(**SHORT)["choices"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"nul", b'{"prompt": NaN}', b"\xff\xfe", b"[" * 4000])
def test_a_body_that_is_no_json_object_is_refused(served: Running, content: bytes) -> None:
    answer = served.client.post("/completions", content=content, headers={"Content-Type": "application/json"})
    assert refused(answer, 400)["code"] == "invalid_json"


def test_paths_methods_and_types(served: Running) -> None:
    refused(served.client.get("/nowhere"), 404)
    answer = served.client.get("/completions")
    assert refused(answer, 405) and answer.headers["allow"] == "POST"
    refused(served.client.post("/models"), 405)
    refused(served.client.post("/completions", content=json.dumps(SHORT)), 415)


def test_logprobs_that_the_engine_does_not_know_are_refused() -> None:
    engine = tiny_engine()
    engine._whole_logprobs = False
    with endpoint(engine=engine) as running:
        assert refused(running.post("/completions", **SHORT, logprobs=0, top_p=0.5), 400)["param"] == "logprobs"
        assert running.complete(**SHORT, logprobs=0)


def test_a_body_beyond_the_limit_is_refused(served: Running) -> None:
    declared = served.post("/completions", prompt="a" * 5000)
    refused(declared, 413)

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


def test_the_key_is_required_and_never_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with endpoint(key="s3cret-key") as running:
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
    out, err = capfd.readouterr()
    assert "s3cret" not in out + err


def test_others_are_let_in_only_with_a_key_or_on_demand() -> None:
    with pytest.raises(InputError, match="--api-key-env"):
        listen("0.0.0.0", 0, None, insecure=False)
    listen("0.0.0.0", 0, "key", insecure=False).close()
    listen("0.0.0.0", 0, None, insecure=True).close()
    assert [is_loopback(host) for host in ("localhost", "127.9.9.9", "[::1]", "10.0.0.1", "evil", "")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_a_taken_port_is_an_error() -> None:
    with listen("127.0.0.1", 0, None, False) as taken, pytest.raises(InputError, match="--port"):
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
        assert until(lambda: running.health()["requests"] == 0)
        assert running.complete(**SHORT)


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_is_cancelled(served: Running, stream: bool) -> None:
    body = json.dumps({**LONG, "stream": stream}).encode()
    names = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    head = "\r\n".join((*names, f"Content-Length: {len(body)}", "", ""))
    with socket.create_connection(("127.0.0.1", int(served.url.split(":")[2].split("/")[0]))) as line:
        line.sendall(head.encode() + body)
        assert until(lambda: served.health()["running"] == 16)
        if stream:
            assert line.recv(100).startswith(b"HTTP/1.1 200")
        asked = served.health()
        assert asked["waiting"] > 0 and asked["requests"] == 1
    assert until(lambda: served.health()["running"] == served.health()["waiting"] == served.health()["requests"] == 0)
    assert served.engine.unfinished == 0


class Breaking(TorchEngine):
    """An engine whose weights overflow once it is told to."""

    broken = False

    def step(self) -> list[Completion]:
        if self.broken:
            raise StropError("a sampled log-prob is not finite")
        return super().step()


def test_a_broken_engine_fails_every_request_and_ends_the_server() -> None:
    engine = tiny_engine()
    engine.__class__ = Breaking
    answers: list[httpx.Response] = []
    with pytest.raises(EngineFailure), endpoint(engine=engine) as running:
        asking = threading.Thread(target=lambda: answers.append(running.post("/completions", **LONG)))
        asking.start()
        assert until(lambda: running.health()["running"] > 0)
        Breaking.broken = True
        asking.join(30)
    Breaking.broken = False
    assert refused(answers[0], 503)["code"] == "engine_failed"


def test_told_to_end_it_lets_open_requests_finish() -> None:
    with endpoint(limits=ServeLimits(grace=30.0)) as running:
        with streaming(running, **{**SHORT, "max_tokens": 200, "seed": 1, "n": 2}) as lines:
            running.server.stop()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
    assert running.server.answered == 1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{running.url}/models", trust_env=False)
