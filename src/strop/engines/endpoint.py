"""A model behind an OpenAI-compatible endpoint (`strop serve`, vLLM, a provider): settings, client and engine.

    client = EndpointClient(ChatEndpoint(url="http://127.0.0.1:8000/v1", model="m"))
    reply = await client.chat([{"role": "user", "content": "1 + 1 ="}], temperature=1.0, max_tokens=9, seed=0)

`EndpointEngine` makes an `Engine` of it, so that an evaluation can ask it like any other. A client of an endpoint has
no tokenizer of the model. Prompts are therefore handed over as the bytes of their text (`EndpointTokenizer`), a chat as
the bytes of its messages; a chat goes to /chat/completions, a text to /completions. What comes back is text: token ids
are -1 and log-probs NaN, as many as the endpoint says the completion had.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, field_validator

from strop.base import progress
from strop.base.pieces import Settings
from strop.base.seeds import derive
from strop.base.types import (
    Completion,
    FinishReason,
    FloatArray,
    InputError,
    IntArray,
    StropError,
    VersionSpan,
    first_line,
)
from strop.engines.protocol import Capabilities, Health, KvMode, Request, Sampling, WeightSource

if TYPE_CHECKING:
    import httpx

TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
LONGEST_PAUSE = 60.0
NOTE_SECONDS = 60.0  # between two notes that requests are sent again
UNKNOWN = -1  # a token id that the endpoint does not give
NO_LIMIT = 2**31 - 1
STEP_SECONDS = 0.5
_CHAT = "\0messages\0"
Reply = TypeVar("Reply")


class EndpointError(StropError):
    """An endpoint does not answer, after every retry."""


class NoRoom(InputError):
    """The model behind an endpoint has no room for a prompt and its answer."""


class NoChatTemplate(InputError):
    """The model behind an endpoint has no chat template for the messages."""


class EndpointReply(NamedTuple):
    """An endpoint's answer to one request, and the tokens that were counted for it.

    `retries` is how often the request was sent again, `version` the weights that the endpoint named, or 0.
    """

    text: str
    finish_reason: FinishReason = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    version: int = 0
    retries: int = 0


class ChatEndpoint(Settings):
    """One model behind an endpoint.

    Fields:
        url: up to and with `/v1`, such as `http://127.0.0.1:8000/v1`.
        model: its name there.
        api_key_env: the environment variable that holds the key; None sends none.
        timeout: seconds for one answer.
        retries: how often a request that failed for a passing reason (no connection, 429, 5xx) is sent again.
        backoff: seconds before the first retry; doubled each time, up to a minute, unless the server says how long.
    """

    url: str
    model: str
    api_key_env: str | None = None
    timeout: Annotated[float, Field(gt=0)] = 120.0
    retries: Annotated[int, Field(ge=0)] = 5
    backoff: Annotated[float, Field(ge=0)] = 1.0

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("an endpoint begins with http:// or https://")
        return url.rstrip("/")

    def key(self) -> str | None:
        """The key; None where none is sent.

        Raises:
            InputError: the variable is not set.
        """
        key = None if self.api_key_env is None else os.environ.get(self.api_key_env)
        if not key and self.api_key_env is not None:
            raise InputError(f"the key of {self.url} is read from the variable {self.api_key_env}, which is not set")
        return key


class EndpointClient:
    """Sends requests to one endpoint, and again where they fail for a passing reason.

    `tell` receives a line when requests are sent again, at most one a minute.
    """

    def __init__(self, endpoint: ChatEndpoint, tell: Callable[[str], None] | None = None) -> None:
        import httpx

        key, limits = endpoint.key(), httpx.Limits(max_connections=None)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._endpoint, self._tell = endpoint, tell
        self._http = httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=endpoint.timeout, limits=limits)
        self._told = -math.inf  # when `tell` was last called

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def chat(
        self, messages: list[dict[str, str]], temperature: float, max_tokens: int, seed: int
    ) -> EndpointReply:
        """One completion; raises as `ask`."""
        body = {"messages": messages, "temperature": temperature, "max_tokens": max_tokens, "seed": seed % 2**31}
        return await self.ask("chat/completions", body)

    async def ask(self, path: str, body: dict[str, Any]) -> EndpointReply:
        """The completion that POST `path` answers with; raises as `post`."""
        reply, retries = await self.post(path, body, read_reply)
        return reply._replace(retries=retries)

    async def post(self, path: str, body: dict[str, Any], read: Callable[[Any], Reply]) -> tuple[Reply, int]:
        """What `read` makes of the answer to POST `path`, and how often the request was sent again: also for an answer
        of which `read` raises ValueError, LookupError or TypeError.

        Raises:
            EndpointError: it does not answer after all retries.
            NoRoom: it refuses a prompt that is too long.
            NoChatTemplate: it refuses messages, because the model has no form for them.
            InputError: it refuses the request (key, model, form), which no retry would mend.
        """
        import httpx

        retries, url = self._endpoint.retries, self._endpoint.url
        for attempt in range(retries + 1):
            asked = None
            try:
                answer = await self._http.post(path, json={"model": self._endpoint.model, **body})
                if answer.status_code == 200:
                    return read(answer.json()), attempt
                reason, asked = self._passing(answer), _retry_after(answer.headers.get("Retry-After", ""))
            except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                # No connection, a connection cut off, or an answer of another form.
                reason = f"{type(error).__name__}: {first_line(error)}"
            if attempt < retries:
                # Spread out, or all that were sent away together would come back together.
                pause = self._backoff(attempt) * random.uniform(0.75, 1.25)
                if asked is not None:
                    pause = asked * random.uniform(1.0, 1.5)
                self._failed(reason)
                await asyncio.sleep(pause)
        model = self._endpoint.model
        raise EndpointError(f"{url} does not answer for {model!r} after {retries + 1} attempts ({reason})")

    def _backoff(self, attempt: int) -> float:
        return min(self._endpoint.backoff * 2**attempt, LONGEST_PAUSE)

    def _passing(self, answer: httpx.Response) -> str:
        """Why a request failed that is sent again.

        Raises:
            InputError: sending it again would not mend it.
        """
        message, code = _message(answer)
        reason = f"HTTP {answer.status_code}: {message}"
        if answer.status_code in TRANSIENT:
            return reason
        known = {"context_length_exceeded": NoRoom}
        kind = NoChatTemplate if "chat template" in message else known.get(code or "", InputError)
        raise kind(f"{self._endpoint.url} refuses a request to {self._endpoint.model!r} ({reason})")

    def _failed(self, reason: str) -> None:
        """A request failed, and is sent again."""
        if self._tell is not None and time.monotonic() - self._told >= NOTE_SECONDS:
            self._told = time.monotonic()
            self._tell(f"{self._endpoint.url} does not answer ({reason}); requests are sent again")


def read_reply(value: Any) -> EndpointReply:
    """A completion or chat completion, as OpenAI shapes them.

    Raises:
        ValueError, LookupError, TypeError: it is none.
    """
    choice = value["choices"][0]
    message = choice.get("message")
    text = choice["text"] if message is None else message["content"] or ""
    # Endpoints that take a model's thinking out of its answer put it here; verifiers expect it in front.
    thinking = None if message is None else message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thinking, str) and thinking:
        text = f"<think>{thinking}</think>{text}"
    if not isinstance(text, str):
        raise ValueError("the answer has no text")
    stopped = choice.get("stop_reason")
    if isinstance(stopped, str):  # an engine's text has the stop string, which verifiers may look for
        text += stopped
    usage = value.get("usage") or {}
    version = value.get("weight_version")
    return EndpointReply(
        text=text,
        finish_reason="length" if choice.get("finish_reason") == "length" else "stop",
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        version=version if isinstance(version, int) else 0,
    )


def _message(answer: httpx.Response) -> tuple[str, str | None]:
    """The message and the code of an error, where it has OpenAI's shape."""
    try:
        given = answer.json()["error"]
        message, code = str(given["message"]), given.get("code")
    except (ValueError, LookupError, TypeError, AttributeError):  # another shape
        message, code = answer.text or answer.reason_phrase, None
    return " ".join(message.split())[:200], code if isinstance(code, str) else None


def _retry_after(value: str) -> float | None:
    """The seconds that a `Retry-After` header asks for."""
    try:
        seconds = float(value)
    except ValueError:
        return None
    return min(max(seconds, 0.0), LONGEST_PAUSE) if math.isfinite(seconds) else None


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks other than the present one, and wait for their ends, whatever these are."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


# ---------------------------------------------------------------------- as an engine


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
