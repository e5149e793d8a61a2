"""A model behind an OpenAI-compatible endpoint (`strop serve`, vLLM, a provider): chat completions over plain HTTP."""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from http.client import HTTPException
from queue import Empty, SimpleQueue
from typing import Annotated, Any, Generic, NamedTuple, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from pydantic import Field, field_validator

from strop.base.pieces import Settings
from strop.base.text import duration
from strop.base.types import InputError, StropError, first_line

TOLD_AFTER = 2.0  # seconds of silence: a server that is busy for a moment is nothing to read about
TOLD_ANEW_AFTER = 60.0  # seconds between two notes of one URL, which may answer every other request
Result = TypeVar("Result")


@dataclass
class _Outage:
    """A URL that has answered no request since `began`; requests to it are given up at about `until`."""

    began: float
    until: float
    reason: str
    told: bool = False


class Patience:
    """What requests share while they are sent again: that they were given up, and which URL answers none of them.

    The threads of the requests report to it; the thread that shows things to the user asks it for `news`.
    """

    def __init__(self) -> None:
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        self._outages: dict[str, _Outage] = {}
        self._told: dict[str, float] = {}  # when, by URL
        self._over: list[str] = []

    @property
    def given_up(self) -> bool:
        """Whether no request is to be sent any more."""
        return self._given_up.is_set()

    def give_up(self) -> None:
        """End every pause now; no request is sent after it."""
        self._given_up.set()

    def pause(self, seconds: float) -> None:
        """Wait, no longer than until requests are given up."""
        self._given_up.wait(seconds)

    def failed(self, url: str, reason: str, left: float) -> None:
        """A request failed for `reason`, and is sent again for about `left` seconds more."""
        now = time.monotonic()
        with self._lock:
            outage = self._outages.setdefault(url, _Outage(now, now + left, reason))
            # The first request that is given up ends them all.
            outage.until = min(outage.until, now + left)
            outage.reason = reason

    def answered(self, url: str) -> None:
        """A request was answered: whatever was the matter with `url` is over."""
        with self._lock:
            outage = self._outages.pop(url, None)
            if outage is not None and outage.told:
                self._over.append(f"{url} answers again, after {duration(time.monotonic() - outage.began)}")

    def news(self) -> list[str]:
        """What users have not been told yet: which URL does not answer, how long it is still asked, which is back."""
        now = time.monotonic()
        with self._lock:
            lines, self._over = self._over, []
            for url, outage in self._outages.items():
                silent = now - self._told.get(url, -TOLD_ANEW_AFTER) >= TOLD_ANEW_AFTER
                if silent and not outage.told and now - outage.began >= TOLD_AFTER:
                    outage.told, self._told[url] = True, now
                    left = duration(max(outage.until - now, 1.0))
                    lines.append(f"{url} does not answer ({outage.reason}); it is asked again for about {left}")
        return lines


@dataclass
class _Job(Generic[Result]):
    future: Future[Result]
    call: Callable[[], Result]

    def do(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.call()
        except BaseException as error:  # raised again where the result is asked for
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Callers:
    """At most `count` threads that make calls.

    A program ends without waiting for them, as it would for those of a `ThreadPoolExecutor`: answers may take minutes.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Have `call` made by a thread."""
        future: Future[Result] = Future()
        self._jobs.put(_Job(future, call))
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._work, name="strop-endpoint", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Cancel the calls that no thread has begun; each thread ends with the call that it is at."""
        with suppress(Empty):
            while (job := self._jobs.get_nowait()) is not None:
                job.future.cancel()
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.do()


TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
LONGEST_BODY, LONGEST_ERROR = 16 * 2**20, 64 * 2**10
LONGEST_PAUSE = 60.0
Answer = TypeVar("Answer")


class EndpointError(StropError):
    """An endpoint that does not answer, after every retry."""


class GivenUp(EndpointError):
    """A request that is not sent again, because its user has given up all requests."""


class NoRoom(InputError):
    """A prompt (and its answer) that the model behind an endpoint has no room for."""


class NoChatTemplate(InputError):
    """Messages that the model behind an endpoint has no chat template for."""


class EndpointReply(NamedTuple):
    """A model's answer, and the tokens that were counted for it."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    retries: int


class ChatEndpoint(Settings):
    """One model behind an endpoint.

    Fields:
        url: up to and with `/v1`, such as `http://127.0.0.1:8000/v1`.
        model: its name there.
        api_key_env: the environment variable that holds the key; None sends none.
        timeout: seconds for one answer.
        retries: how often a request that failed in passing (no connection, 429, 5xx) is sent again.
        backoff: seconds before the first retry; doubled each time, up to a minute, unless the server says how long.
        prompt_price: dollars for a million prompt tokens; `completion_price` for completion tokens.
    """

    url: str
    model: str
    api_key_env: str | None = None
    timeout: Annotated[float, Field(gt=0)] = 120.0
    retries: Annotated[int, Field(ge=0)] = 5
    backoff: Annotated[float, Field(ge=0)] = 1.0
    prompt_price: Annotated[float, Field(ge=0)] = 0.0
    completion_price: Annotated[float, Field(ge=0)] = 0.0

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("an endpoint begins with http:// or https://")
        return url.rstrip("/")

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Dollars."""
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6

    def chat(
        self, messages: list[dict[str, str]], temperature: float, max_tokens: int, seed: int,
        patience: Patience | None = None,
    ) -> EndpointReply:  # fmt: skip
        """One completion; `patience` as of `ask`.

        Raises:
            EndpointError, InputError: see `ask`.
        """
        body = {"messages": messages, "temperature": temperature, "max_tokens": max_tokens, "seed": seed % 2**31}
        value, retries = self.ask("chat/completions", body, _reply, patience)
        return value._replace(retries=retries)

    def ask(
        self, path: str, body: dict[str, Any], read: Callable[[Any], Answer], patience: Patience | None = None
    ) -> tuple[Answer, int]:
        """`read` of the JSON that POST `path` answers, and how often the request had to be sent again.

        An answer that `read` cannot make sense of (`ValueError`, `LookupError`, `TypeError`) is asked for again too.
        `patience` is shared by requests that are given up together; None: it has its own.

        Raises:
            EndpointError: it does not answer after all retries.
            GivenUp: `patience` has ended before.
            NoRoom: it refuses a prompt that is too long.
            NoChatTemplate: it refuses messages, because the model has no form for them.
            InputError: it refuses the request (key, model, form), which no retry would mend.
        """
        patience = Patience() if patience is None else patience
        request = Request(
            f"{self.url}/{path}",
            json.dumps({"model": self.model, **body}).encode(),
            {"Content-Type": "application/json", **self._key()},
        )
        for attempt in range(self.retries + 1):
            if patience.given_up:
                raise GivenUp(f"{self.url} is asked no more")
            began = time.monotonic()
            try:
                with urlopen(request, timeout=self.timeout) as answer:
                    found = read(json.loads(answer.read(LONGEST_BODY)))
                patience.answered(self.url)
                return found, attempt
            except HTTPError as error:
                reason, wait = self._in_passing(error), _retry_after(error)
            except (URLError, HTTPException, OSError, ValueError, LookupError, TypeError) as error:
                # No connection, a connection cut off, or an answer that is not a chat completion.
                reason, wait = f"{type(error).__name__}: {first_line(error)}", None
            if attempt < self.retries:
                # Spread out, or all that were sent away together would come back together.
                pause = self._pause(attempt) if wait is None else wait * random.uniform(1.0, 1.5)
                patience.failed(self.url, reason, pause + self._left(attempt, time.monotonic() - began))
                patience.pause(pause)
        raise EndpointError(
            f"{self.url} does not answer for {self.model!r} after {self.retries + 1} attempts ({reason})"
        )

    def _in_passing(self, error: HTTPError) -> str:
        """Why a request failed that is sent again.

        Raises:
            InputError: sending it again would not mend it.
        """
        message, code = _message(error)
        reason = f"HTTP {error.code}: {message}"
        if error.code not in TRANSIENT:
            known = {"context_length_exceeded": NoRoom}
            kind = NoChatTemplate if "chat template" in message else known.get(code or "", InputError)
            raise kind(f"{self.url} refuses a request to {self.model!r} ({reason})") from error
        return reason

    def _left(self, attempt: int, took: float) -> float:
        """About how many seconds the attempts after the next pause take, each as long as this one `took`."""
        later = sum(min(self.backoff * 2**each, LONGEST_PAUSE) for each in range(attempt + 1, self.retries))
        return later + (self.retries - attempt) * took

    def _pause(self, attempt: int) -> float:
        return min(self.backoff * 2**attempt, LONGEST_PAUSE) * random.uniform(0.75, 1.25)

    def _key(self) -> dict[str, str]:
        if self.api_key_env is None:
            return {}
        key = os.environ.get(self.api_key_env)
        if not key:
            raise InputError(f"the key of {self.url} is read from the variable {self.api_key_env}, which is not set")
        return {"Authorization": f"Bearer {key}"}


def _reply(value: Any) -> EndpointReply:
    text = value["choices"][0]["message"]["content"]
    if not isinstance(text, str):
        raise ValueError("the answer has no text")
    usage = value.get("usage") or {}
    return EndpointReply(text, int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0), 0)


def _message(error: HTTPError) -> tuple[str, str | None]:
    """The message and the code of an error, where it has OpenAI's shape."""
    try:
        text = error.read(LONGEST_ERROR).decode("utf-8", "replace")
    except (OSError, HTTPException):  # the body of an error that was cut off says nothing more
        return str(error.reason), None
    try:
        given = json.loads(text)["error"]
        message, code = str(given["message"]), given.get("code")
    except (ValueError, LookupError, TypeError, AttributeError):  # another shape
        message, code = text, None
    return " ".join(message.split())[:200], code if isinstance(code, str) else None


def _retry_after(error: HTTPError) -> float | None:
    """Seconds that the server asks for, given as such or as a date."""
    value = error.headers.get("Retry-After", "") if error.headers is not None else ""
    try:
        seconds = float(value)
    except ValueError:
        date = parsedate_tz(value)
        seconds = math.nan if date is None else mktime_tz(date) - time.time()
    return min(max(seconds, 0.0), LONGEST_PAUSE) if math.isfinite(seconds) else None
