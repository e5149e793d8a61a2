"""Agents for tests: they know nothing but OpenAI's client, an address and a key."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from openai import AsyncOpenAI, BadRequestError, OpenAI

from strop.base.types import Problem

LOOK_UP: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Says a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}


def chatty(problem: Problem, base_url: str, api_key: str) -> float:
    """A random conversation, its length by the problem; the score is whether it heard an even number of letters."""
    chance = random.Random(problem.id)
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": problem.question}]},
    ]
    heard = 0
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        for turn in range(chance.randint(1, 4)):
            if turn:
                messages.append({"role": "user", "content": "".join(chance.choices("ab 1=", k=chance.randint(1, 6)))})
            answer = client.chat.completions.create(model="any", messages=messages, temperature=0.2, tools=[LOOK_UP])
            choice = answer.choices[0]
            messages.append(choice.message)
            heard += len(choice.message.content or "")
            for call in choice.message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "a word"})
            if choice.finish_reason == "length":
                break
    return float(heard % 2 == 0)


async def asynchronous(problem: Problem, base_url: str, api_key: str) -> bool:
    """Two turns by the asynchronous client."""
    messages: list[Any] = [{"role": "user", "content": problem.question}]
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        answer = await client.chat.completions.create(model="any", messages=messages)
        messages += [answer.choices[0].message, {"role": "user", "content": "Again?"}]
        answer = await client.chat.completions.create(model="any", messages=messages)
    return len(answer.choices[0].message.content or "") % 2 == 0


OPEN: set[str] = set()


def crowded(problem: Problem, base_url: str, api_key: str) -> float:
    """One turn; raises where more than 20 of them are open in this process."""
    OPEN.add(api_key)
    try:
        if len(OPEN) > 20:
            raise RuntimeError(f"{len(OPEN)} at once")
        unjudged(problem, base_url, api_key)
    finally:
        OPEN.discard(api_key)
    return 1.0


def unjudged(problem: Problem, base_url: str, api_key: str) -> None:
    """One turn, which the run's verifier judges."""
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": problem.question}])


def spendthrift(problem: Problem, base_url: str, api_key: str) -> float:
    """Goes on until it is told to stop."""
    messages: list[Any] = [{"role": "user", "content": problem.question}]
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        try:
            while True:
                answer = client.chat.completions.create(model="any", messages=messages)
                messages += [answer.choices[0].message, {"role": "user", "content": "Go on."}]
        except BadRequestError:
            if problem.reference in ("2", "4", "6", "8", "10", "12", "14", "16", "18"):
                raise
            return 1.0


def faulty(problem: Problem, base_url: str, api_key: str) -> float:
    """Fails in a way of its own on one problem in three."""
    messages: list[Any] = [{"role": "user", "content": problem.question}]
    if int(problem.reference) % 3:
        with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            answer = client.chat.completions.create(model="any", messages=messages)
        return float(len(answer.choices[0].message.content or "") % 2)
    how = os.environ["STROP_TEST_FAULT"]
    if how == "silent":
        return 1.0
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        answer = client.chat.completions.create(model="any", messages=messages)
        if how == "hang":
            time.sleep(1000)
        if how == "exit":
            os._exit(3)
        if how == "raise":
            raise ValueError("no such move")
        if how == "much":
            return 7.0
        assert how == "rewrite"
        messages += [{"role": "assistant", "content": "what it never said"}, {"role": "user", "content": "?"}]
        client.chat.completions.create(model="any", messages=messages)
    return 1.0
