"""What the endpoint does with a request that has been read: ask the engine, wait, answer whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from strop.base.types import Completion, InputError, IntArray
from strop.engines.protocol import Engine, Health, Scores, Scoring
from strop.serving.driver import Driver, Ticket
from strop.serving.limits import ServeLimits
from strop.serving.parsing import Ask
from strop.serving.refusal import Refusal
from strop.serving.responses import Answer, Answers, Writer, usage

SCORED_AT_ONCE = 8192  # tokens; between two portions the others' sequences get a step


class Endpoint:
    """Answers requests to one engine; at most `limits.requests` of them at once."""

    def __init__(self, driver: Driver, answers: Answers, limits: ServeLimits) -> None:
        self._driver = driver
        self._answers = answers
        self._limits = limits
        self.open = 0
        self.answered = 0

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """A place among the open requests.

        Raises:
            Refusal: 429 where all are taken.
        """
        if self.open >= self._limits.requests:
            message = f"all {self._limits.requests} places of this endpoint are taken; try again"
            raise Refusal(429, message, code="rate_limit_exceeded", headers=((b"retry-after", b"1"),))
        self.open += 1
        try:
            yield
            self.answered += 1
        finally:
            self.open -= 1

    async def health(self) -> Health:
        """The engine's, asked between two of its steps."""
        return await self._driver.call(lambda engine: engine.health())

    async def version(self) -> int:
        """The engine's weight version."""
        return await self._driver.call(lambda engine: engine.weight_version)

    async def whole(self, name: str, ask: Ask) -> dict[str, Any]:
        """The answer to a request that is not streamed.

        Raises:
            Refusal: the engine cannot honour it.
        """
        self._refuse_unknown_logprobs(ask)
        found: dict[tuple[int, int], Completion] = {}
        names = [self._driver.name() for _ in ask.prompts]
        if ask.sampling is not None:
            async with Ticket(self._driver, streamed=False) as ticket:
                await _submit(ticket, ask, names)
                while ticket.unfinished:
                    completion = await ticket.next()
                    assert isinstance(completion, Completion)
                    _refuse_aborted(completion)
                    found[names.index(completion.request_id), completion.index] = completion
        answers = [
            Answer(prompt, index, found.get((prompt, index)))
            for prompt in range(len(ask.prompts))
            for index in range(ask.n)
        ]
        if ask.top is not None and (ask.top or ask.echo):
            answers = await self._scored(ask, answers)
        return self._answers.whole(name, ask, answers, await self.version())

    async def stream(self, name: str, ask: Ask) -> AsyncGenerator[list[bytes], None]:
        """The answer as server-sent events, as many at a time as there are; the first, empty, once the engine took it.

        Raises:
            Refusal: the engine cannot honour it.
        """
        self._refuse_unknown_logprobs(ask)
        names = [self._driver.name() for _ in ask.prompts]
        writers = {
            (names[prompt], index): self._answers.writer(ask, prompt, index)
            for prompt in range(len(names))
            for index in range(ask.n)
        }
        done: list[Completion] = []
        version = await self.version()
        async with Ticket(self._driver, streamed=True) as ticket:
            await _submit(ticket, ask, names)
            yield []
            while ticket.unfinished:
                choices: list[dict[str, Any]] = []
                while ticket.unfinished:
                    choices += await _next(ticket, writers, done)
                    if not ticket.waiting():
                        break
                if done:
                    version = max(version, *(span.version for found in done for span in found.versions), 0)
                yield [_event(self._answers.chunk(name, ask, version, [choice])) for choice in choices]
        last = []
        if ask.include_usage:
            chunk = self._answers.chunk(name, ask, version, [])
            last.append(_event({**chunk, "usage": usage(ask, done)}))
        yield [*last, b"data: [DONE]\n\n"]

    def _refuse_unknown_logprobs(self, ask: Ask) -> None:
        cut = ask.sampling is not None and ask.sampling.temperature > 0 and ask.sampling.truncates
        if ask.top is not None and cut and not self._driver.capabilities.whole_logprobs:
            message = "logprobs: this engine does not know them under top_p and top_k; leave one or the other out"
            raise Refusal(400, message, "logprobs")

    async def _scored(self, ask: Ask, answers: Sequence[Answer]) -> list[Answer]:
        """The answers with log-probs of their prompts (`echo`), and the most probable tokens where `ask.top`."""
        assert ask.top is not None
        sequences = []
        for answer in answers:
            ids = ask.prompts[answer.prompt]
            if answer.completion is not None and ask.top:
                ids = np.concatenate((ids, answer.completion.token_ids))
            sequences.append(ids)
        scores: list[Scores] = []
        while len(scores) < len(sequences):
            portion, tokens = [sequences[len(scores)]], len(sequences[len(scores)])
            for ids in sequences[len(scores) + 1 :]:
                tokens += len(ids)
                if tokens > SCORED_AT_ONCE:
                    break
                portion.append(ids)
            scores += await self._score(portion, ask.temperature, ask.top)
        return [
            Answer(answer.prompt, answer.index, answer.completion, score)
            for answer, score in zip(answers, scores, strict=True)
        ]

    async def _score(self, sequences: Sequence[IntArray], temperature: float, top: int) -> list[Scores]:
        try:
            return await self._driver.call(lambda engine: _score(engine, sequences, temperature, top))
        except InputError as error:
            raise Refusal(400, str(error), "prompt") from None


def _score(engine: Engine, sequences: Sequence[IntArray], temperature: float, top: int) -> list[Scores]:
    if isinstance(engine, Scoring):
        return engine.score(sequences, temperature, top)
    if top or temperature != 1:
        raise InputError(
            "logprobs: this engine knows the log-probs of given tokens at temperature 1, no others; ask for logprobs=0"
        )
    nothing = np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
    return [
        Scores(engine.verify_weights(ids) if len(ids) > 1 else np.zeros(0, np.float32), *nothing) for ids in sequences
    ]


async def _submit(ticket: Ticket, ask: Ask, names: Sequence[str]) -> None:
    try:
        await ticket.submit(ask.requests(names))
    except InputError as error:
        raise Refusal(400, str(error)) from None


async def _next(ticket: Ticket, writers: dict[tuple[str, int], Writer], done: list[Completion]) -> list[dict[str, Any]]:
    """The choices of the chunks that the next event makes; a completion is added to `done`."""
    event = await ticket.next()
    writer = writers[event.request_id, event.index]
    if isinstance(event, Completion):
        _refuse_aborted(event)
        done.append(event)
        return writer.finish(event)
    return writer.take(event.token_ids, event.logprobs)


def _refuse_aborted(completion: Completion) -> None:
    if completion.finish_reason == "abort":
        raise Refusal(503, "the engine gave this request up; try again", code="aborted")


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
