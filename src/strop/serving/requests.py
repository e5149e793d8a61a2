"""Request bodies, and the engine requests that they become."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import from_json
from transformers import PreTrainedTokenizerBase

from strop.base.pieces import complaint
from strop.base.types import InputError, IntArray, Message, Problem, first_line
from strop.data.templates import ChatTemplate, encode_prompt
from strop.engines.protocol import Request, Sampling
from strop.serving import ServeLimits
from strop.serving.http import Refusal

LEAST_TEMPERATURE = 0.01  # logits / temperature must stay finite in float32
DEFAULT_NEW_TOKENS = 16  # of a text completion, as at OpenAI; a chat may fill the context

# Fields that would change the completion, with the value that does not. Other unknown fields are ignored.
UNSUPPORTED: Mapping[str, Any] = {
    "best_of": 1, "echo": False, "frequency_penalty": 0, "functions": [], "ignore_eos": False, "logit_bias": {},
    "min_p": 0, "min_tokens": 0, "presence_penalty": 0, "repetition_penalty": 1, "response_format": {"type": "text"},
    "stop_token_ids": [], "suffix": "", "tools": [], "top_logprobs": 0,
}  # fmt: skip

Token = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[int, Field(ge=1, lt=2**31)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
_Item = TypeVar("_Item")
_List = Annotated[list[_Item], Field(fail_fast=True)]  # one error about a long list is enough


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """`include_usage`: a last chunk with the usage."""

    include_usage: bool | None = None


class _Body(_Strict):
    """Fields of both kinds of request; None is the default."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None


class CompletionBody(_Body):
    """POST /v1/completions."""

    prompt: str | _List[str] | _List[Token] | _List[_List[Token]]
    max_tokens: Tokens | None = None
    logprobs: Literal[0] | None = None  # OpenAI counts the other tokens, of which there are none


class TextPart(_Strict):
    """A part of a message's content; only text is supported."""

    type: Literal["text"]
    text: str


class MessageBody(_Strict):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """Its content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(_Body):
    """POST /v1/chat/completions."""

    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None


Body = TypeVar("Body", CompletionBody, ChatBody)


def parse(data: bytes, kind: type[Body]) -> Body:
    """The request in `data`.

    Raises:
        Refusal: 400, naming the field.
    """
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object", code="invalid_json")
    for name, neutral in UNSUPPORTED.items():
        if value.get(name) not in (None, neutral):
            raise Refusal(400, f"{name}: not supported; leave it out", name, "unsupported_parameter")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> Refusal:
    first = error.errors(include_url=False, include_input=False)[0]
    path = [str(part) for part in first["loc"]]
    message = ": ".join(filter(None, (".".join(path), complaint(first))))
    return Refusal(400, message, path[0] if path else message.partition(":")[0])


@dataclass(frozen=True, eq=False)
class ServedRequest:
    """A request, ready for the engine: its body as it came, and the token ids of each prompt; a chat has one."""

    body: CompletionBody | ChatBody
    prompts: tuple[IntArray, ...]
    sampling: Sampling

    @property
    def chat(self) -> bool:
        """Whether it is one of the chat route."""
        return isinstance(self.body, ChatBody)

    @property
    def logprobs(self) -> bool:
        """Whether the answer has the log-prob of every sampled token."""
        return bool(self.body.logprobs) if isinstance(self.body, ChatBody) else self.body.logprobs is not None

    @property
    def n(self) -> int:
        """Completions of each prompt."""
        return self.body.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return self.body.stream_options is not None and bool(self.body.stream_options.include_usage)

    def requests(self, names: Sequence[str]) -> list[Request]:
        """An engine request for each prompt; with a seed, a prompt's completions do not depend on the other prompts."""
        seed = self.body.seed
        return [
            Request(name, ids, self.sampling, secrets.randbits(62) if seed is None else seed, self.n)
            for name, ids in zip(names, self.prompts, strict=True)
        ]


class RequestReader:
    """Turns a body into a `ServedRequest`, for one model and its limits.

    Args:
        max_tokens: the model's context.
        template_arguments: of the chat template, unless a request overrides them.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_tokens: int,
        limits: ServeLimits,
        template_arguments: Mapping[str, Any],
    ) -> None:
        self._tokenizer, self._max_tokens, self._limits = tokenizer, max_tokens, limits
        self._template_arguments = template_arguments

    def completion(self, body: CompletionBody) -> ServedRequest:
        """A completion request. Raises `Refusal`."""
        given: Any = body.prompt
        listed = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
        self._refuse_many(len(listed) * (body.n or 1))
        prompts = tuple(self._encode(one) if isinstance(one, str) else np.array(one, np.int32) for one in listed)
        if not prompts or not all(len(ids) for ids in prompts):
            raise Refusal(400, "prompt: holds no token", "prompt")
        room = self._room(prompts)
        asked = min(DEFAULT_NEW_TOKENS, room) if body.max_tokens is None else body.max_tokens
        return ServedRequest(body, prompts, self._sampling(body, asked, room))

    def chat(self, body: ChatBody) -> ServedRequest:
        """A chat request. Raises `Refusal`."""
        self._refuse_many(body.n or 1)
        prompts = (self._chat_prompt(body),)
        room = self._room(prompts)
        asked = body.max_completion_tokens or body.max_tokens or min(room, self._limits.new_tokens or room)
        return ServedRequest(body, prompts, self._sampling(body, asked, room))

    def _encode(self, text: str) -> IntArray:
        try:
            return encode_prompt(text, self._tokenizer, add_bos=True)
        except InputError:
            raise Refusal(400, "prompt: holds no token", "prompt") from None

    def _chat_prompt(self, body: ChatBody) -> IntArray:
        if not self._tokenizer.chat_template:
            message = "messages: this model's tokenizer has no chat template; use /v1/completions"
            raise Refusal(400, message, "messages", "no_chat_template")
        messages = tuple(Message(role=message.role, content=message.text) for message in body.messages)
        try:
            arguments = {**self._template_arguments, **(body.chat_template_kwargs or {})}
            return ChatTemplate(arguments=arguments)(Problem("messages", messages, reference=None), self._tokenizer)
        except (InputError, TypeError, ValueError, LookupError) as error:  # of any template
            raise Refusal(400, f"messages: {first_line(error)}", "messages") from None

    def _room(self, prompts: Sequence[IntArray]) -> int:
        """The tokens that fit behind the longest prompt."""
        longest = max(len(ids) for ids in prompts)
        if longest > self._max_tokens:
            message = f"prompt: has {longest} tokens, the model's context {self._max_tokens}; shorten it"
            raise Refusal(400, message, "prompt", "context_length_exceeded")
        return self._max_tokens - longest

    def _sampling(self, body: CompletionBody | ChatBody, asked: int, room: int) -> Sampling:
        most = self._limits.new_tokens
        if most is not None and asked > most:
            raise Refusal(400, f"max_tokens: {asked} exceeds this endpoint's limit of {most}", "max_tokens")
        if not 0 < asked <= room:
            message = f"max_tokens: {max(1, asked)} exceeds the {room} tokens that fit behind the prompt"
            raise Refusal(400, message, "max_tokens", "context_length_exceeded")
        temperature = 1.0 if body.temperature is None else body.temperature
        return Sampling(
            temperature=max(temperature, LEAST_TEMPERATURE) if temperature else 0.0,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=body.top_k if body.top_k is not None and body.top_k > 0 else None,
            max_new_tokens=asked,
            stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        )

    def _refuse_many(self, samples: int) -> None:
        if samples > self._limits.samples:
            most = self._limits.samples
            raise Refusal(400, f"n: {samples} completions in one request exceed this endpoint's limit of {most}", "n")
