"""A model behind an OpenAI-compatible endpoint as an `Engine`, so that an evaluation can ask it like any other.

A client of an endpoint has no tokenizer of the model. Prompts are therefore handed over as the bytes of their text
(`EndpointTokenizer`), a chat as the bytes of its messages; a chat goes to /chat/completions, a text to /completions.
What comes back is text: token ids are -1 and log-probs NaN, as many as the endpoint says the completion had.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from strop.base.seeds import derive
from strop.base.types import Completion, FinishReason, FloatArray, InputError, IntArray, VersionSpan
from strop.engines.endpoint.client import Callers, ChatEndpoint, NoChatTemplate, Patience
from strop.engines.protocol import Capabilities, Health, KvMode, PauseMode, Request, Sampling, WeightSource

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


class Said(NamedTuple):
    """An endpoint's answer to one request."""

    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    version: int


class EndpointEngine:
    """An `Engine` that asks `endpoint`, `concurrency` requests at a time; each sample is its own request.

    A sample's seed follows from the request's and its index. What an endpoint cannot be asked for is refused.
    `tell` hears, from `step`, that the endpoint does not answer, and that it does again.
    """

    def __init__(self, endpoint: ChatEndpoint, concurrency: int, tell: Callable[[str], None] | None = None) -> None:
        self._endpoint, self._tell = endpoint, tell
        self._callers, self._patience = Callers(concurrency), Patience()
        self._futures: dict[Future[tuple[Said, int]], tuple[Request, int]] = {}
        self._cancelled: list[Completion] = []
        self._version = 0
        self.tokens: Counter[str] = Counter()  # prompt, completion, calls, retries

    @property
    def capabilities(self) -> Capabilities:
        """The endpoint knows its own limits, and refuses what is beyond them."""
        return Capabilities(max_tokens=NO_LIMIT, in_flight_updates=False)

    @property
    def weight_version(self) -> int:
        """The latest that an answer named; 0 where none does."""
        return self._version

    @property
    def unfinished(self) -> int:
        return len(self._futures) + len(self._cancelled)

    @property
    def dollars(self) -> float:
        """The cost of the answers by the endpoint's prices."""
        return self._endpoint.cost(self.tokens["prompt"], self.tokens["completion"])

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InputError: it asks for what an endpoint cannot do.
        """
        self.capabilities.refuse_unable(request.sampling)
        if request.sampling.stop_token_ids:
            raise InputError("sampling.stop_token_ids: an endpoint's tokens are not known; use sampling.stop")
        text = bytes(request.prompt_ids.astype(np.uint8)).decode()
        path, body = _body(text, request.sampling)
        for index in range(request.n):
            seeded = {**body, "seed": derive(request.seed, "sample", index) % 2**31}
            future = self._callers.submit(partial(self._endpoint.ask, path, seeded, read_said, self._patience))
            self._futures[future] = request, index

    def step(self) -> list[Completion]:
        """The completions that have come; waits a little where none has.

        Raises:
            EndpointError: the endpoint does not answer after all retries.
            InputError: it refuses a request.
        """
        found, self._cancelled = self._cancelled, []
        done, _ = wait(self._futures, STEP_SECONDS, FIRST_COMPLETED)
        if self._tell is not None:
            for line in self._patience.news():
                self._tell(line)
        for future in done:
            request, index = self._futures.pop(future)
            try:
                said, retries = future.result()
            except NoChatTemplate as error:
                raise InputError(f"{error}; strop eval asks without one by --set data.template=Plain") from error
            except InputError as error:
                if not _beyond_budget(str(error)):
                    raise
                fewer = f"fewer than {request.sampling.max_new_tokens} by --set sampling.max_new_tokens=N"
                raise InputError(f"{error}; strop eval asks for {fewer}") from error
            self._version = max(self._version, said.version)
            self.tokens.update(
                {"prompt": said.prompt_tokens, "completion": said.completion_tokens, "calls": retries + 1,
                 "retries": retries}
            )  # fmt: skip
            found.append(_completion(request, index, said))
        return found

    def cancel(self, request_id: str) -> None:
        """Forget a request; what is on its way is not waited for."""
        for future, (request, index) in list(self._futures.items()):
            if request.id == request_id:
                future.cancel()
                del self._futures[future]
                said = Said("", "abort", 0, 0, self._version)
                self._cancelled.append(_completion(request, index, said))

    def pause(self, mode: PauseMode = "keep") -> None:
        raise InputError("an endpoint cannot be paused from here")

    def resume(self) -> None:
        raise InputError("an endpoint cannot be paused from here")

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        raise InputError("an endpoint's weights are not ours to change")

    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        raise InputError("an endpoint's weights are not ours to look at")

    def health(self) -> Health:
        running = sum(future.running() for future in self._futures)
        return Health(True, "ok", running, len(self._futures) - running)

    def close(self) -> None:
        """Forget what was asked: no request is sent again, those on their way end by themselves."""
        self._patience.give_up()
        self._futures = {}
        self._callers.close()


def read_said(value: Any) -> Said:
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
    return Said(
        text=text,
        finish_reason="length" if choice.get("finish_reason") == "length" else "stop",
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        version=version if isinstance(version, int) else 0,
    )


def _beyond_budget(refusal: str) -> bool:
    """Whether an endpoint refuses as many tokens as it is asked for, in the words of strop serve, vLLM or OpenAI."""
    told = refusal.lower()
    return ("max_tokens" in told or "context length" in told) and "not supported" not in told


def _body(text: str, sampling: Sampling) -> tuple[str, dict[str, Any]]:
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


def _completion(request: Request, index: int, said: Said) -> Completion:
    count = said.completion_tokens
    return Completion(
        request_id=request.id,
        index=index,
        prompt_ids=request.prompt_ids,
        token_ids=np.full(count, UNKNOWN, np.int32),
        logprobs=np.full(count, np.nan, np.float32),
        versions=(VersionSpan(said.version, 0, count),) if count else (),
        injected=np.zeros(count, np.bool_),
        text=said.text,
        finish_reason=said.finish_reason,
    )

