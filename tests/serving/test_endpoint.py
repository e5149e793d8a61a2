"""Completions over HTTP are the engine's: tokens, log-probs, text, and what a stream adds up to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from tests.engines.runs import policy_logprobs
from tests.serving.running import VERSION, Running, directly, endpoint, ids_of
from tests.tiny import tiny_qwen3

PROMPT = "3+5-2="
BODY = {"prompt": PROMPT, "max_tokens": 24, "seed": 11}


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with endpoint() as running:
        yield running


def test_completions_are_the_engines_own(served: Running) -> None:
    wanted = directly(PROMPT, 11, n=3, max_new_tokens=24, temperature=0.8, top_p=0.9, top_k=40)
    body = {**BODY, "n": 3, "temperature": 0.8, "top_p": 0.9, "top_k": 40, "logprobs": 0, "return_token_ids": True}
    answer = served.complete(**body)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for choice, completion in zip(answer["choices"], wanted, strict=True):
        assert choice["token_ids"] == completion.token_ids.tolist()
        assert choice["prompt_token_ids"] == ids_of(PROMPT).tolist()
        assert choice["text"] == completion.text and choice["finish_reason"] == completion.finish_reason
        np.testing.assert_array_equal(np.float32(choice["logprobs"]["token_logprobs"]), completion.logprobs)
    sampled = sum(len(completion.token_ids) for completion in wanted)
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": sampled, "total_tokens": 6 + sampled}


def test_a_seed_gives_the_same_and_none_gives_others(served: Running) -> None:
    texts = {served.complete(**BODY)["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1
    free = {served.complete(prompt=PROMPT, max_tokens=24)["choices"][0]["text"] for _ in range(3)}
    assert len(free) == 3


def test_prompts_may_be_texts_or_token_ids_one_or_several(served: Running) -> None:
    ids, other = ids_of(PROMPT).tolist(), ids_of("7*8").tolist()
    alone = served.complete(**BODY)["choices"][0]["text"]
    assert served.complete(**{**BODY, "prompt": ids})["choices"][0]["text"] == alone
    several = served.complete(**{**BODY, "prompt": ["7*8", PROMPT], "n": 2})["choices"]
    assert [choice["index"] for choice in several] == [0, 1, 2, 3]
    assert several[2]["text"] == alone  # a prompt's completions do not depend on the list it comes in
    assert served.complete(**{**BODY, "prompt": [other, ids], "n": 2})["choices"][2]["text"] == alone


def test_defaults_are_openais(served: Running) -> None:
    answer = served.complete(prompt=PROMPT, seed=1)
    assert answer["usage"]["completion_tokens"] <= 16 and answer["object"] == "text_completion"
    assert answer["model"] == "tiny" and answer["id"].startswith("cmpl-")
    chat = served.chat("hi", seed=2)
    assert chat["object"] == "chat.completion" and chat["choices"][0]["message"]["role"] == "assistant"
    prompt = len(ids_of("user: hi\nassistant: "))
    assert chat["usage"]["prompt_tokens"] == prompt
    assert chat["choices"][0]["finish_reason"] == "stop"


def test_a_chat_is_rendered_with_the_tokenizers_template(served: Running) -> None:
    rendered = "system: Be brief.\nuser: 1+1\nassistant: "
    wanted = served.complete(**{**BODY, "prompt": rendered, "return_token_ids": True})["choices"][0]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "name": "me", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1"}]},
    ]
    answer = served.post(
        "/chat/completions", messages=messages, max_completion_tokens=24, seed=11, logprobs=True, return_token_ids=True
    ).json()["choices"][0]
    assert answer["token_ids"] == wanted["token_ids"] and answer["message"]["content"] == wanted["text"]
    assert len(answer["logprobs"]["content"]) == len(answer["token_ids"])


def test_the_chat_template_takes_arguments() -> None:
    """Those of the endpoint, and over them those of a request."""

    def prompt(running: Running, **body: Any) -> list[int]:
        answer = running.chat("hi", max_tokens=1, return_token_ids=True, **body)
        return list(answer["choices"][0]["prompt_token_ids"])

    def rendered(beginning: str) -> list[int]:
        return ids_of(f"{beginning}user: hi\nassistant: ").tolist()

    with endpoint(template_arguments={"enable_thinking": False}) as running:
        assert prompt(running) == rendered("thinking: False\n")
        assert prompt(running, chat_template_kwargs={"enable_thinking": True}) == rendered("thinking: True\n")
        body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinkin": True}}
        answer = running.post("/chat/completions", **body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages"
    with endpoint(template_arguments={}) as running:
        assert prompt(running) == rendered("")


def test_without_a_chat_template_the_error_says_so() -> None:
    with endpoint(template=False) as running:
        answer = running.post("/chat/completions", messages=[{"role": "user", "content": "hi"}])
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "no_chat_template"


@pytest.mark.parametrize("path", ["/completions", "/chat/completions"])
def test_a_stream_adds_up_to_the_answer(served: Running, path: str) -> None:
    prompt = {"prompt": PROMPT} if path == "/completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    many = {**prompt, "max_tokens": 150, "n": 2, "seed": 4, "temperature": 8.0, "return_token_ids": True,
            "logprobs": 0 if path == "/completions" else True}  # fmt: skip
    whole = served.post(path, **many).json()
    chunks = served.stream(path, **many, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert {chunk["weight_version"] for chunk in chunks} == {VERSION}
    for wanted in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == wanted["index"]]
        assert len(mine) > len(wanted["token_ids"]) // 4  # it really came in pieces
        assert [token for c in mine for token in c["token_ids"]] == wanted["token_ids"]
        assert [c["finish_reason"] for c in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == wanted["finish_reason"]
        if path == "/completions":
            text = "".join(c["text"] for c in mine)
            assert text == wanted["text"]
            for key in ("token_logprobs", "tokens"):
                assert [x for c in mine for x in c["logprobs"][key]] == wanted["logprobs"][key]
        else:
            text = "".join(c["delta"]["content"] for c in mine)
            assert text == wanted["message"]["content"] and mine[0]["delta"]["role"] == "assistant"
            assert [x for c in mine for x in c["logprobs"]["content"]] == wanted["logprobs"]["content"]
    letters = {letter for letter in text if ord(letter) > 127 and letter != "\ufffd"}
    assert letters, "the test wants characters of several tokens"


def stop_in(text: str) -> str:
    """Three ASCII characters from the middle of a text."""
    for start in range(5, len(text) - 3):
        piece = text[start : start + 3]
        if piece.isascii() and piece not in text[:start]:
            return piece
    raise AssertionError(f"no stop string in {text!r}")


@pytest.mark.parametrize("seed", [0, 3])
def test_a_stop_string_ends_the_text_before_it(served: Running, seed: int) -> None:
    free = directly(PROMPT, seed, max_new_tokens=60)[0]
    stop = stop_in(free.text)
    body = {"prompt": PROMPT, "max_tokens": 60, "seed": seed, "stop": [stop, "never there"], "return_token_ids": True}
    choice = served.complete(**body)["choices"][0]
    wanted = directly(PROMPT, seed, max_new_tokens=60, stop=(stop,))[0]
    assert choice["text"] == free.text[: free.text.index(stop)] and choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop
    assert choice["token_ids"] == wanted.token_ids.tolist()  # its tokens are sampled ones, and told
    parts = [c for chunk in served.stream("/completions", **body) for c in chunk["choices"]]
    assert "".join(part["text"] for part in parts) == choice["text"] and parts[-1]["finish_reason"] == "stop"
    assert parts[-1]["stop_reason"] == stop


def test_answers_name_the_weight_version(served: Running) -> None:
    answer = served.complete(**BODY)
    assert answer["weight_version"] == VERSION
    assert answer["system_fingerprint"] == f"strop-weights-{VERSION}"


def test_models_and_health(served: Running) -> None:
    models = served.client.get("/models").json()
    assert [model["id"] for model in models["data"]] == ["tiny"] and models["data"][0]["max_model_len"] == 512
    assert served.client.get("/models/tiny").json()["object"] == "model"
    assert served.client.get("/models/other").status_code == 404
    assert served.health() == {
        "status": "ok", "detail": "ok", "model": "tiny", "weight_version": VERSION, "running": 0, "waiting": 0,
        "requests": 0,
    }  # fmt: skip


def test_sequences_run_together(served: Running) -> None:
    """A short request that comes while a long one runs is answered before it: both are in the batch."""
    long = {"prompt": PROMPT, "max_tokens": 400, "n": 4, "seed": 0, "stream": True}
    with served.client.stream("POST", "/completions", json=long) as stream:
        lines = stream.iter_lines()
        next(lines)
        running = served.health()
        short = httpx.post(f"{served.url}/completions", json={**BODY, "max_tokens": 2}, timeout=60, trust_env=False)
        assert short.status_code == 200
        still = served.health()
        rest = [line for line in lines if line]
    assert running["running"] > 1
    assert still["requests"] == 1 and still["running"] > 0
    assert rest[-1] == "data: [DONE]"


def test_a_recorded_logprob_is_the_policys(served: Running) -> None:
    completion = directly(PROMPT, 11, max_new_tokens=24)[0]
    answer = served.complete(**BODY, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
    np.testing.assert_allclose(answer, policy_logprobs(tiny_qwen3(), completion), atol=1e-4)
