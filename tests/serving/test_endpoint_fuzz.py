"""Whatever the body, the answer is a completion or an error of the client's, and the engine goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serving.running import Running, endpoint

from strop.serving import ServeLimits

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.sampled_from([0, 1, 2, 3, -1, 0.5, 1e-300, 1e300, 2**31, 2**63, 10**400, "", "a", "\ud83d"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
FIELDS = (
    "model", "prompt", "messages", "n", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "stop",
    "stop_token_ids", "seed", "stream", "stream_options", "logprobs", "top_logprobs", "echo", "return_token_ids",
    "best_of", "user", "tools", "role", "content",
)  # fmt: skip
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.text(max_size=20) | st.lists(st.integers(-2, 300), max_size=6) | st.lists(st.text(max_size=4)),
    "messages": st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "tool", ""]), "content": VALUES})),
    "n": st.integers(0, 5),
    "temperature": st.floats(0, 101) | st.sampled_from([0.01, 100, 1e-3]),
    "top_p": st.floats(0, 1) | st.just(1e-300),
    "top_k": st.integers(-2, 300),
    "max_tokens": st.integers(-1, 20),
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=3),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stream": st.booleans(),
    "logprobs": st.integers(-1, 1) | st.booleans(),
    "return_token_ids": st.booleans(),
}
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5)


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with endpoint(limits=ServeLimits(new_tokens=20, grace=1.0)) as running:
        yield running


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.sampled_from(["/completions", "/chat/completions"]), BODIES, st.data())
def test_no_body_brings_a_500(served: Running, path: str, body: dict[str, Any], data: st.DataObject) -> None:
    # Half of the bodies have what is needed, so that what comes behind the form is reached too.
    for field in data.draw(st.lists(st.sampled_from(sorted(LIKELY)), unique=True)):
        body[field] = data.draw(LIKELY[field])
    if data.draw(st.booleans()):
        body.setdefault(*(("prompt", "ab") if path == "/completions" else
                          ("messages", [{"role": "user", "content": "ab"}])))  # fmt: skip
    content = json.dumps(body).encode()
    answer = served.client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text, body)
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text


@settings(max_examples=30)
@given(st.binary(max_size=60))
def test_no_bytes_bring_a_500(served: Running, content: bytes) -> None:
    answer = served.client.post("/completions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


def test_afterwards_the_engine_goes_on(served: Running) -> None:
    assert served.health()["running"] == 0
    assert served.complete(prompt="ab", max_tokens=3)["usage"]["completion_tokens"] <= 3
