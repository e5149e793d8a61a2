"""`EndpointEngine`: an `Engine` of a model behind an endpoint, so that an evaluation can ask it like any other.

A client of an endpoint has no tokenizer of the model. Prompts are therefore handed over as the bytes of their text
(`EndpointTokenizer`), a chat as the bytes of its messages; a chat goes to /chat/completions, a text to /completions.
What comes back is text: token ids are -1 and log-probs NaN, as many as the endpoint says the completion had.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from strop.base import progress
from strop.base.endpoint import ChatEndpoint, EndpointClient, EndpointReply, NoChatTemplate, cancelled
from strop.base.seeds import derive
from strop.base.types import Completion, FloatArray, InputError, IntArray, VersionSpan
from strop.engines.protocol import Capabilities, Health, KvMode, Request, Sampling, WeightSource

UNKNOWN = -1  # a token id that the endpoint does not give
NO_LIMIT = 2**31 - 1
STEP_SECONDS = 0.5
_CHAT = "\0messages\0"


class EndpointTokenizer:
    """A tokenizer for prompt templates: a chat becomes its messages as JSON, a token is a byte of text."""

    bos_token_id = None
    chat_template: Any = True  # the endpoint's, of which only that it is there is taken for granted

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The bytes of a text."""
        return list(text.encode("utf-8", "replace"))

    def decode(self, token_ids: list[int]) -> str:
        """The text again, a chat as JSON."""
        return bytes(token_ids).decode("utf-8").removeprefix(_CHAT)

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, **arguments: Any
    ) -> str:
        """The messages, for the endpoint to render, and what its chat template is to be given."""
        given = {"chat_template_kwargs": arguments} if arguments else {}
        return _CHAT + json.dumps({"messages": conversation, **given})


class EndpointEngine:
    """An `Engine` that asks `endpoint`, `concurrency` requests at a time; each sample is a separate request.

    A sample's seed follows from the request's and its index. What an endpoint cannot be asked for is refused.
    `tell` is that of `EndpointClient`; `step` calls it.
    """

    def __init__(self, endpoint: ChatEndpoint, concurrency: int, tell: Callable[[str], None] | None = None) -> None:
        self._endpoint = endpoint
        self._loop = asyncio.new_event_loop()
        self._client = EndpointClient(endpoint, tell)
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: dict[asyncio.Task[EndpointReply], tuple[Request, int]] = {}
        self._cancelled: list[Completion] = []
        self._version = 0
        self.tokens: Counter[str] = Counter()  # prompt, completion, calls, retries

    @property
    def capabilities(self) -> Capabilities:
        """The endpoint knows its own limits, and refuses what is beyond them."""
        return Capabilities(max_tokens=NO_LIMIT)

    @property
    def weight_version(self) -> int:
        """The latest that an answer named; 0 where none does."""
        return self._version

    @property
    def unfinished(self) -> int:
        return len(self._tasks) + len(self._cancelled)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InputError: it asks for what an endpoint cannot do.
        """
        if request.sampling.watches_thinking:
            keys = "sampling.thinking_tokens, answer_tokens and interruption"
            raise InputError(f"{keys}: an endpoint's thinking cannot be followed; unset them")
        if request.sampling.stop_token_ids:
            raise InputError("sampling.stop_token_ids: an endpoint's tokens are not known; use sampling.stop")
        text = bytes(request.prompt_ids.astype(np.uint8)).decode()
        path, body = _body(text, request.sampling)
        for index in range(request.n):
            seeded = {**body, "seed": derive(request.seed, "sample", index) % 2**31}
            self._tasks[self._loop.create_task(self._ask(path, seeded))] = request, index

    def step(self) -> list[Completion]:
        """The completions that have come; waits a little where none has.

        Raises:
            EndpointError: the endpoint does not answer after all retries.
            InputError: it refuses a request.
        """
        found, self._cancelled = self._cancelled, []
        if self._tasks and not found:
            some = asyncio.wait(self._tasks, timeout=STEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            self._loop.run_until_complete(some)
            progress.made("the wait for an answer")  # which ends by its own limit of time
        for task in [task for task in self._tasks if task.done()]:
            request, index = self._tasks.pop(task)
            found.append(self._completion(request, index, self._reply(task)))
        return found

    def cancel(self, request_id: str) -> None:
        """Forget a request; what is on its way is not waited for."""
        for task, (request, index) in list(self._tasks.items()):
            if request.id == request_id:
                task.cancel()
                del self._tasks[task]
                reply = EndpointReply("", "abort", version=self._version)
                self._cancelled.append(self._completion(request, index, reply))

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        raise InputError("an endpoint's weights are not ours to change")

    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        raise InputError("an endpoint's weights are not ours to look at")

    def health(self) -> Health:
        return Health(True, "ok", len(self._tasks), 0)

    def close(self) -> None:
        """Forget what was asked: no request is sent again, those on their way are dropped."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._end())
            self._loop.close()
        self._tasks = {}

    async def _end(self) -> None:
        await cancelled({*self._tasks, *asyncio.all_tasks()})
        await self._client.close()

    async def _ask(self, path: str, body: dict[str, Any]) -> EndpointReply:
        async with self._slots:
            return await self._client.ask(path, body)

    def _reply(self, task: asyncio.Task[EndpointReply]) -> EndpointReply:
        """The answer of a finished task, counted."""
        try:
            reply = task.result()
        except NoChatTemplate as error:
            raise InputError(f"{error}; strop eval asks without one by --set data.template=Plain") from error
        self._version = max(self._version, reply.version)
        self.tokens.update(
            prompt=reply.prompt_tokens, completion=reply.completion_tokens, calls=reply.retries + 1,
            retries=reply.retries,
        )  # fmt: skip
        return reply

    @staticmethod
    def _completion(request: Request, index: int, reply: EndpointReply) -> Completion:
        count = reply.completion_tokens
        return Completion(
            request_id=request.id,
            index=index,
            prompt_ids=request.prompt_ids,
            token_ids=np.full(count, UNKNOWN, np.int32),
            logprobs=np.full(count, np.nan, np.float32),
            versions=(VersionSpan(reply.version, 0, count),) if count else (),
            injected=np.zeros(count, np.bool_),
            text=reply.text,
            finish_reason=reply.finish_reason,
        )


def _body(text: str, sampling: Sampling) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request for a text, or for a chat as `EndpointTokenizer` encodes it."""
    body: dict[str, Any] = {
        "temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_new_tokens,
    }  # fmt: skip
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.top_k is not None:
        body["top_k"] = sampling.top_k
    if text.startswith(_CHAT):
        return "chat/completions", {**json.loads(text.removeprefix(_CHAT)), **body}
    return "completions", {"prompt": text, **body}
