"""OpenAI's own client understands the endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engines.runs import run
from tests.serving.running import VERSION, Running, directly, endpoint, ids_of, tiny_engine

from strop.engines.protocol import Request, Sampling
from strop.serving import ServeLimits

openai = pytest.importorskip("openai", reason="needs the package openai (extra dev)")

KEY = "a-key-of-tests"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with endpoint(key=KEY, limits=ServeLimits(new_tokens=300, grace=1.0)) as running:
        yield running


@pytest.fixture(scope="module")
def client(served: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=served.url, api_key=KEY, max_retries=0) as client:
        yield client


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "strop"


def test_completions(client: Any) -> None:
    wanted = directly("3+5=", 9, n=2, max_new_tokens=20)
    answer = client.completions.create(
        model="tiny", prompt="3+5=", n=2, max_tokens=20, seed=9, logprobs=0, extra_body={"return_token_ids": True}
    )
    assert [choice.text for choice in answer.choices] == [completion.text for completion in wanted]
    for choice, completion in zip(answer.choices, wanted, strict=True):
        assert choice.logprobs is not None and choice.finish_reason == completion.finish_reason
        assert choice.logprobs.token_logprobs == completion.logprobs.tolist()
        assert choice.model_extra is not None and choice.model_extra["token_ids"] == completion.token_ids.tolist()
    assert answer.system_fingerprint == f"strop-weights-{VERSION}"
    assert answer.usage is not None and answer.usage.completion_tokens == sum(len(one.token_ids) for one in wanted)


def test_chats_whole_and_streamed(client: Any) -> None:
    messages = [{"role": "user", "content": "3+5="}]
    asked = {"model": "tiny", "messages": messages, "max_tokens": 40, "seed": 9, "temperature": 0.9, "user": "me"}
    answer = client.chat.completions.create(**asked, logprobs=True)
    choice = answer.choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(part.delta.content or "" for part in chunk.choices)
    assert text == choice.message.content and usage == answer.usage
    again = client.chat.completions.create(
        model="tiny", max_tokens=5, messages=[*messages, choice.message, {"role": "user", "content": "?"}]
    )
    assert again.usage is not None and again.usage.prompt_tokens > answer.usage.prompt_tokens


def test_errors_are_those_the_client_knows(client: Any, served: Running) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="a", max_tokens=301)
    assert refused.value.param == "max_tokens" and refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=served.url, api_key="no") as stranger:
        stranger.models.list()


def test_many_at_once(served: Running) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=served.url, api_key=KEY, max_retries=0) as client:
            asked = {"model": "tiny", "prompt": "3+5=", "max_tokens": 30}
            answers = await asyncio.gather(*(client.completions.create(**asked, seed=seed) for seed in range(12)))
        return [answer.choices[0].text for answer in answers]

    found = asyncio.run(ask())
    alone = [Request(str(seed), ids_of("3+5="), Sampling(max_new_tokens=30), seed) for seed in range(12)]
    wanted = run(tiny_engine(), alone)
    assert found == [wanted[str(seed), 0].text for seed in range(12)]
