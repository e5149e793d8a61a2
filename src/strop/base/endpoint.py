"""A model behind an OpenAI-compatible endpoint (`strop serve`, vLLM, a provider): its settings, and a client.

    client = EndpointClient(ChatEndpoint(url="http://127.0.0.1:8000/v1", model="m"))
    reply = await client.chat([{"role": "user", "content": "1 + 1 ="}], temperature=1.0, max_tokens=9, seed=0)
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from strop.base.pieces import Settings
from strop.base.types import FinishReason, InputError, StropError, first_line

if TYPE_CHECKING:
    import httpx

TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
LONGEST_PAUSE = 60.0
NOTE_SECONDS = 60.0  # between two notes that requests are sent again
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
        requests_per_minute: at most so many are sent by one client, retries included; None: no limit.
    """

    url: str
    model: str
    api_key_env: str | None = None
    timeout: Annotated[float, Field(gt=0)] = 120.0
    retries: Annotated[int, Field(ge=0)] = 5
    backoff: Annotated[float, Field(ge=0)] = 1.0
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError("an endpoint begins with http:// or https://")
        if "@" in parts.netloc or parts.query:
            raise ValueError("an address is written into files; put the key in a variable, and its name in api_key_env")
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

        self._key, limits = endpoint.key(), httpx.Limits(max_connections=None)
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        self._endpoint, self._tell = endpoint, tell
        self._http = httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=endpoint.timeout, limits=limits)
        self._told = self._free = -math.inf  # when `tell` was last called; when the next request may be sent

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
            await self._turn()
            try:
                async with asyncio.timeout(self._endpoint.timeout):  # httpx bounds each read, not the whole answer
                    answer = await self._http.post(path, json={"model": self._endpoint.model, **body})
                if answer.status_code == 200:
                    return read(answer.json()), attempt
                reason, asked = self._passing(answer), _retry_after(answer.headers.get("Retry-After", ""))
            except (httpx.HTTPError, TimeoutError, ValueError, LookupError, TypeError) as error:
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

    async def _turn(self) -> None:
        """Wait until another request may be sent."""
        if self._endpoint.requests_per_minute is not None:
            now = time.monotonic()
            begin = max(self._free, now)
            self._free = begin + 60 / self._endpoint.requests_per_minute
            await asyncio.sleep(begin - now)

    def _backoff(self, attempt: int) -> float:
        return min(self._endpoint.backoff * 2**attempt, LONGEST_PAUSE)

    def _passing(self, answer: httpx.Response) -> str:
        """Why a request failed that is sent again.

        Raises:
            InputError: sending it again would not mend it.
        """
        message, code = _message(answer)
        message = message if self._key is None else message.replace(self._key, "[key]")
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
