"""Environments and tokenizers for tests."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING

from strop.base.types import Message, Problem, Verdict
from strop.environments.base import Environment, Reply, Session, Unjudged
from strop_verify.verdict import Status

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# The shape of Qwen's templates: tool results in the user's name, thinking dropped from earlier turns.
QWEN_LIKE = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% elif m.role == 'assistant' %}<|im_start|>assistant\n"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n{% else %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Drops what is before the last bytes that are no text, so that most of an untrained model's turns are rewritten.
FORGETFUL = QWEN_LIKE.replace("</think>", "\ufffd")
# The shape of Llama's: headers, no new line behind a turn, every content trimmed.
LLAMA_LIKE = (
    "{% for m in messages %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
STRICT = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('one turn only') }}{% endif %}{% endfor %}"
)


def chat_tokenizer(template: str, *more: str) -> PreTrainedTokenizerFast:
    """A byte tokenizer with the special tokens of the templates above, and `more`."""
    from strop.model.files import byte_tokenizer  # here, because processes that import this module need no torch

    specials = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", *more)
    tokenizer = byte_tokenizer(specials)
    tokenizer.add_special_tokens({"additional_special_tokens": list(specials)})
    tokenizer.chat_template = template
    return tokenizer


class OneTurn(Environment):
    """Leaves the first turn to the verifier."""

    @property
    def inline(self) -> bool:
        return True

    def open(self) -> Session:
        return _OneTurn()


class _OneTurn(Session):
    def step(self, reply: str) -> None:
        return None


class Chatty(Environment):
    """Answers with random text for a random number of turns, then judges by the parity of all that was said."""

    most: int = 4
    here: bool = True
    scores: bool = False

    @property
    def inline(self) -> bool:
        return self.here

    def open(self) -> Session:
        return _Chatty(self.most, self.scores)


class _Chatty(Session):
    def __init__(self, most: int, scores: bool) -> None:
        self._most, self._scores = most, scores

    def reset(self, problem: Problem, seed: int) -> None:
        self._chance = random.Random(seed)
        self._turns = self._chance.randint(1, self._most)
        self._heard = 0

    def step(self, reply: str) -> Reply | Verdict:
        self._turns -= 1
        self._heard += len(reply.encode())
        if self._turns:
            role = self._chance.choice(("user", "tool"))
            text = "".join(self._chance.choices("ab 1=\n", k=self._chance.randint(1, 6)))
            return Reply((Message(role=role, content=text),), score=len(text) / 8 if self._scores else 0.0)
        return self._judged()

    def end(self, reply: str) -> Verdict:
        self._heard += len(reply.encode())
        return self._judged()

    def _judged(self) -> Verdict:
        right = self._heard % 2 == 0
        return Verdict(float(right), Status.CORRECT if right else Status.WRONG)


class Faulty(Environment):
    """Fails in one of several ways in the sessions whose seed is even."""

    how: str

    @property
    def inline(self) -> bool:
        return True

    def open(self) -> Session:
        return _Faulty(self.how)


class _Faulty(Session):
    def __init__(self, how: str) -> None:
        self._how = how

    def reset(self, problem: Problem, seed: int) -> None:
        self._strikes, self._turns = seed % 2 == 0, 0
        if self._how == "reset" and self._strikes:
            raise RuntimeError("cannot begin")

    def step(self, reply: str) -> object:  # type: ignore[override]
        if not self._strikes:
            return Verdict(1.0, Status.CORRECT)
        self._turns += 1
        if self._how == "later" and self._turns == 1:
            return Reply((Message(role="user", content="Go on."),))
        if self._how in ("raise", "later"):
            raise ValueError("no such\nmove")
        if self._how == "flood":
            return Reply((Message(role="user", content="x" * 100_000),))
        return "what?"

    def end(self, reply: str) -> object:  # type: ignore[override]
        return self.step(reply)


class Praising(Environment):
    """Scores each turn and goes on, or, where the reply is `done`, leaves the trajectory to the verifier."""

    @property
    def inline(self) -> bool:
        return True

    def open(self) -> Session:
        return _Praising()


class _Praising(Session):
    def step(self, reply: str) -> Reply | Unjudged:
        if reply == "done":
            return Unjudged(0.75, malformed_calls=1)
        return Reply((Message(role="user", content="Go on."),), score=0.5, malformed_calls=1)


class Slow(Environment):
    """Takes its time for one step."""

    awaits: bool
    seconds: float

    def open(self) -> Session:
        return _SlowAsync(self.seconds) if self.awaits else _SlowPlain(self.seconds)


class _SlowAsync(Session):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def step(self, reply: str) -> Verdict:
        await asyncio.sleep(self._seconds)
        return Verdict(1.0, Status.CORRECT)


class _SlowPlain(Session):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def step(self, reply: str) -> Verdict:
        time.sleep(self._seconds)
        return Verdict(1.0, Status.CORRECT)


class Harmful(Environment):
    """Three turns; the sessions of the seeds `harmful` do harm in their second."""

    how: str
    harmful: tuple[int, ...]
    again: bool = True

    @property
    def repeatable(self) -> bool:
        return self.again

    def open(self) -> Session:
        return (_HarmfulAsync if self.how in ("awaits", "blocks") else _Harmful)(self.how, self.harmful)


class _Harmful(Session):
    def __init__(self, how: str, harmful: tuple[int, ...]) -> None:
        self._how, self._harmful, self._turns = how, harmful, 0

    def reset(self, problem: Problem, seed: int) -> None:
        self._seed = seed

    def step(self, reply: str) -> Reply | Verdict:
        if self.strikes():
            self.harm()
        return self.answer()

    def strikes(self) -> bool:
        self._turns += 1
        return self._turns == 2 and self._seed in self._harmful

    def harm(self) -> None:
        if self._how == "exit":
            os._exit(3)
        if self._how == "memory":
            raise MemoryError if len(bytearray(1 << 40)) else AssertionError
        time.sleep(1000)

    def answer(self) -> Reply | Verdict:
        if self._turns < 3:
            return Reply((Message(role="user", content=str(self._turns)),))
        return Verdict(1.0, Status.CORRECT, str(self._seed))


class _HarmfulAsync(_Harmful):
    async def step(self, reply: str) -> Reply | Verdict:  # type: ignore[override]
        if self.strikes():
            if self._how == "awaits":
                await asyncio.sleep(1000)
            time.sleep(1000)
        return self.answer()
