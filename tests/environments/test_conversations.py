"""The endpoint of agents by OpenAI's client: tool calls, refusals, and what an agent may change of its conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.environments.agents import LOOK_UP

from strop.base.imports import allow_module
from strop.base.types import Problem, Verdict
from strop.environments.agent import Agent
from strop.environments.base import Outcome, Reply
from strop.environments.sessions import SessionHost, Turn
from strop_verify.verdict import Status

openai = pytest.importorskip("openai", reason="needs the package openai (extra dev)")
HERE = __name__
heard: list[Any] = []
CALL = 'Let me see.\n<tool_call>{"name": "look_up", "arguments": {"word": "owl"}}</tool_call>'


def curious(problem: Problem, base_url: str, api_key: str) -> float:
    """Two turns; the second request is what another library might make of the first answer."""
    messages: list[Any] = [{"role": "system", "content": "Look."}, {"role": "user", "content": "What?"}]
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        choice = client.chat.completions.create(model="m", messages=messages, tools=[LOOK_UP]).choices[0]
        heard.append(choice)
        message = choice.message.model_dump()
        if message["tool_calls"]:
            message["tool_calls"][0]["function"]["arguments"] = '{ "word":"owl" }'
            messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a bird"}]
        else:
            messages += [message, {"role": "user", "content": "So?"}]
        heard.append(client.chat.completions.create(model="m", messages=messages, tools=[LOOK_UP]).choices[0])
    return 0.5


def refused(problem: Problem, base_url: str, api_key: str) -> bool:
    """Asks for what there is not."""
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        for field, value in {"n": 2, "stream": True, "messages": []}.items():
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(**{**asked, field: value})
            assert caught.value.param == field
        with pytest.raises(openai.NotFoundError):
            client.models.list()
        with (
            openai.OpenAI(base_url=base_url, api_key="no", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.chat.completions.create(**asked)
        client.chat.completions.create(**asked)
    return True


def played(function: str, replies: list[str]) -> list[Outcome]:
    allow_module(HERE)
    heard.clear()

    async def play() -> list[Outcome]:
        host = SessionHost(Agent(function=f"{HERE}:{function}"))
        problem = Problem("p", "3+4=", "7")
        found = [await host.turn(Turn(("g", 0), problem, 1, None, False))]
        for reply in replies:
            found.append(await host.turn(Turn(("g", 0), problem, 1, reply, False)))
        return found

    return asyncio.run(play())


def test_a_call_comes_back_as_openai_has_it() -> None:
    opening, second, end = played("curious", [CALL, "An owl."])
    assert isinstance(opening, Reply) and [one["role"] for one in opening.messages] == ["system", "user"]
    assert opening.tools == (LOOK_UP,)
    assert second == Reply(({"role": "tool", "content": "a bird"},))
    assert end == Verdict(0.5, Status.WRONG)
    first, last = heard
    assert first.finish_reason == "tool_calls" and first.message.content == "Let me see."
    assert first.message.tool_calls[0].function.name == "look_up"
    assert first.message.tool_calls[0].function.arguments == '{"word": "owl"}'
    assert last.finish_reason == "stop" and last.message.content == "An owl." and not last.message.tool_calls


def test_a_malformed_call_is_text() -> None:
    _, second, end = played("curious", ["<tool_call>{</tool_call>", " An owl."])
    assert second == Reply(({"role": "user", "content": "So?"},)) and isinstance(end, Verdict)
    assert heard[0].message.content == "<tool_call>{</tool_call>" and heard[0].finish_reason == "stop"


def test_what_there_is_not_is_refused() -> None:
    opening, end = played("refused", ["!"])
    assert opening == Reply(({"role": "user", "content": "?"},)) and end == Verdict(1.0, Status.CORRECT)


@pytest.mark.parametrize("name", ["agent", "tests.environments.test_conversations:nothing", f"{HERE}:heard"])
def test_an_agent_that_cannot_be_called_is_refused(name: str) -> None:
    allow_module(HERE)
    with pytest.raises(ValueError, match="function"):
        Agent(function=name)
