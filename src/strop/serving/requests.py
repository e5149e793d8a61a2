"""Request bodies, and the engine requests that they become."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pydantic_core
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from transformers import PreTrainedTokenizerBase

from strop.base.pieces import complaint
from strop.base.types import InputError, IntArray, Message, Problem, first_line
from strop.data.templates import ChatTemplate, encode_prompt
from strop.engines.protocol import Request, Sampling
from strop.serving import ServeLimits
from strop.serving.http import Refusal
from strop.serving.text import decode

MOST_STOPS, LONGEST_STOP = 16, 256
MOST_TOP = 20
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 100.0  # logits / temperature must stay finite in float32
_INT32 = 2**31 - 1

# Fields that would change the completion, with the value that does not. Other unknown fields are ignored.
UNSUPPORTED: Mapping[str, Any] = {
    "best_of": 1,
    "frequency_penalty": 0,
    "functions": [],
    "ignore_eos": False,
    "logit_bias": {},
    "min_p": 0,
    "min_tokens": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "response_format": {"type": "text"},
    "suffix": "",
    "tools": [],
    "use_beam_search": False,
}

Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Token = Annotated[int, Field(ge=0, le=_INT32)]
_Item = TypeVar("_Item")
_List = Annotated[list[_Item], Field(fail_fast=True)]  # one error about a long list is enough
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


def _representable(temperature: float) -> float:
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ValueError(f"0 is greedy, else at least {LEAST_TEMPERATURE}")
    return temperature


class StreamOptions(_Body):
    """`include_usage`: a last chunk with the usage."""

    include_usage: bool | None = None


class _Common(_Body):
    """Fields of both kinds of request; None is the default."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    temperature: Annotated[float, Field(ge=0, le=MOST_TEMPERATURE), AfterValidator(_representable)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_INT32)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[Token], Field(max_length=MOST_STOPS)] | None = None
    seed: Whole | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionBody(_Common):
    """POST /v1/completions."""

    prompt: str | _List[str] | _List[Token] | _List[_List[Token]]
    max_tokens: Annotated[int, Field(ge=0, le=_INT32)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    echo: bool | None = None


class TextPart(_Body):
    """A part of a message's content; only text is supported."""

    type: Literal["text"]
    text: str


class MessageBody(_Body):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """Its content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(_Common):
    """POST /v1/chat/completions."""

    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None


class TokenizeBody(_Body):
    """POST /tokenize."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(_Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: _List[Token]


Body = TypeVar("Body", CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)


def parse(data: bytes, kind: type[Body]) -> Body:
    """The request in `data`.

    Raises:
        Refusal: 400, naming the field.
    """
    try:
        value = pydantic_core.from_json(data, allow_inf_nan=False)
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
        raise _explained(error) from None


def _explained(error: ValidationError) -> Refusal:
    """The first error, with the field's path. A union is described as a whole, not branch by branch."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = [str(part) for part in first["loc"]]
    field = path[0] if path else None
    if field == "prompt" and len(path) > 1:
        wanted = "a text, a list of texts, a list of token ids, or a list of lists of token ids"
        return Refusal(400, f"prompt: must be {wanted}", "prompt")
    if field == "stop":
        shape = f"a text or at most {MOST_STOPS} texts, each of 1 to {LONGEST_STOP} characters"
        return Refusal(400, f"stop: must be {shape}", "stop")
    if len(path) > 2 and path[0] == "messages" and path[2] == "content":
        return Refusal(400, f"messages.{path[1]}.content: must be a text, or a list of text parts", "messages")
    said = "is missing" if first["type"] == "missing" else complaint(first)
    return Refusal(400, f"{'.'.join(path)}: {said}", field)


DEFAULT_NEW_TOKENS = 16  # of a text completion, as at OpenAI; a chat may fill the context


@dataclass(frozen=True, eq=False)
class ServedRequest:
    """A request, ready for the engine.

    Attributes:
        prompts: token ids of each; a chat has one.
        texts: the prompts as text, for `echo`.
        sampling: None if the prompts are only scored.
        n: completions of each prompt.
        seed: None draws a random one for each prompt.
        top: how many of the most probable tokens to return with each token's log-prob; None: no log-probs at all.
        echo: put the prompt in front of the completion, in text and log-probs.
        stream, include_usage, return_token_ids: the form of the answer.
    """

    chat: bool
    prompts: tuple[IntArray, ...]
    texts: tuple[str, ...]
    sampling: Sampling | None
    n: int
    seed: int | None
    top: int | None
    echo: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool

    @property
    def temperature(self) -> float:
        """Log-probs are of logits / temperature; 1 if greedy."""
        return 1.0 if self.sampling is None else self.sampling.temperature or 1.0

    def requests(self, names: Sequence[str]) -> list[Request]:
        """An engine request for each prompt; with a seed, a prompt's completions do not depend on the other prompts."""
        if self.sampling is None:
            return []
        return [
            Request(name, ids, self.sampling, secrets.randbits(62) if self.seed is None else self.seed, self.n)
            for name, ids in zip(names, self.prompts, strict=True)
        ]


class RequestReader:
    """Makes a `ServedRequest` of a body, for one model and its limits."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_tokens: int,
        limits: ServeLimits,
        template_arguments: Mapping[str, Any],
    ) -> None:
        self._tokenizer = tokenizer
        self._template_arguments = template_arguments
        self._max_tokens = max_tokens
        self._limits = limits

    def completion(self, body: CompletionBody) -> ServedRequest:
        """A completion request. Raises `Refusal`."""
        echo, stream = bool(body.echo), bool(body.stream)
        if echo and stream:
            raise Refusal(400, "echo: not supported with stream=true", "echo")
        prompts, texts = self._prompts(body.prompt, echo)
        n = body.n or 1
        self._refuse_many(len(prompts) * n)
        scoring = body.max_tokens == 0
        if scoring and not echo:
            raise Refusal(400, "max_tokens: 0 needs echo=true, which scores the prompt", "max_tokens")
        if scoring and n > 1:
            raise Refusal(400, "n: must be 1 with max_tokens=0, which samples nothing", "n")
        room = self._room(prompts, scoring)
        asked = body.max_tokens if body.max_tokens is not None else min(DEFAULT_NEW_TOKENS, room)
        return ServedRequest(
            chat=False,
            prompts=prompts,
            texts=texts,
            sampling=None if scoring else self._sampling(body, asked, room, "max_tokens"),
            n=n,
            seed=body.seed,
            top=self._top(body.logprobs, stream, "logprobs"),
            echo=echo,
            stream=stream,
            include_usage=_wants_usage(body),
            return_token_ids=bool(body.return_token_ids),
        )

    def chat(self, body: ChatBody) -> ServedRequest:
        """A chat request. Raises `Refusal`."""
        stream, n = bool(body.stream), body.n or 1
        self._refuse_many(n)
        if body.top_logprobs and not body.logprobs:
            raise Refusal(400, "top_logprobs: needs logprobs=true", "top_logprobs")
        given = {"max_tokens": body.max_tokens, "max_completion_tokens": body.max_completion_tokens}
        named = {name: tokens for name, tokens in given.items() if tokens is not None}
        if len(set(named.values())) > 1:
            raise Refusal(400, "max_completion_tokens: differs from max_tokens; give one of them", "max_tokens")
        prompts = (self._chat_prompt(body),)
        room = self._room(prompts, False)
        name, asked = next(iter(named.items()), ("max_completion_tokens", min(room, self._limits.new_tokens or room)))
        return ServedRequest(
            chat=True,
            prompts=prompts,
            texts=("",),
            sampling=self._sampling(body, asked, room, name),
            n=n,
            seed=body.seed,
            top=self._top(body.top_logprobs or 0, stream, "top_logprobs") if body.logprobs else None,
            echo=False,
            stream=stream,
            include_usage=_wants_usage(body),
            return_token_ids=bool(body.return_token_ids),
        )

    def _prompts(self, prompt: Any, echo: bool) -> tuple[tuple[IntArray, ...], tuple[str, ...]]:
        listed: list[Any]
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            listed = [prompt]
        else:
            listed = prompt
        if not listed:
            raise Refusal(400, "prompt: the list is empty", "prompt")
        self._refuse_many(len(listed))
        ids = tuple(self._encode(one) if isinstance(one, str) else np.array(one, np.int32) for one in listed)
        if not all(len(one) for one in ids):
            raise Refusal(400, "prompt: holds no token", "prompt")
        texts = tuple(one if isinstance(one, str) else decode(self._tokenizer, one) if echo else "" for one in listed)
        return ids, texts

    def _encode(self, text: str) -> IntArray:
        try:
            return encode_prompt(text, self._tokenizer, add_bos=True)
        except InputError:
            raise Refusal(400, "prompt: holds no token", "prompt") from None

    def _chat_prompt(self, body: ChatBody) -> IntArray:
        messages = tuple(Message(role=message.role, content=message.text) for message in body.messages)
        if not self._tokenizer.chat_template:
            raise Refusal(
                400, "messages: this model's tokenizer has no chat template; use /v1/completions",
                "messages", "no_chat_template",
            )  # fmt: skip
        try:
            arguments = {**self._template_arguments, **(body.chat_template_kwargs or {})}
            return ChatTemplate(arguments=arguments)(Problem("messages", messages, reference=None), self._tokenizer)
        except (InputError, TypeError, ValueError, LookupError) as error:  # of any template
            raise Refusal(400, f"messages: {first_line(error)}", "messages") from None

    def _room(self, prompts: Sequence[IntArray], scoring: bool) -> int:
        longest = max(len(ids) for ids in prompts)
        room = self._max_tokens - longest
        if room < (0 if scoring else 1):
            raise Refusal(
                400, f"the prompt has {longest} tokens, the model's context {self._max_tokens}; shorten the prompt",
                "prompt", "context_length_exceeded",
            )  # fmt: skip
        return room

    def _sampling(self, body: CompletionBody | ChatBody, asked: int, room: int, name: str) -> Sampling:
        most = self._limits.new_tokens
        if most is not None and asked > most:
            raise Refusal(400, f"{name}: {asked} exceeds this endpoint's limit of {most}", name)
        if asked > room:
            raise Refusal(
                400, f"{name}: {asked} exceeds the {room} tokens that fit behind the prompt",
                name, "context_length_exceeded",
            )  # fmt: skip
        try:
            return Sampling(
                temperature=1.0 if body.temperature is None else body.temperature,
                top_p=1.0 if body.top_p is None else body.top_p,
                top_k=body.top_k if body.top_k is not None and body.top_k > 0 else None,
                max_new_tokens=asked,
                stop=body.stops,
                stop_token_ids=tuple(body.stop_token_ids or ()),
            )
        except ValidationError as error:
            raise Refusal(400, error.errors()[0]["msg"]) from None

    def _refuse_many(self, samples: int) -> None:
        if samples > self._limits.samples:
            most = self._limits.samples
            raise Refusal(400, f"n: {samples} completions in one request exceed this endpoint's limit of {most}", "n")

    def _top(self, top: int | None, stream: bool, name: str) -> int | None:
        if top and stream:
            raise Refusal(
                400, f"{name}: a stream has log-probs of the sampled tokens only; pass 0, or leave stream out",
                name, "unsupported_parameter",
            )  # fmt: skip
        return top


def _wants_usage(body: CompletionBody | ChatBody) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise Refusal(400, "stream_options: needs stream=true", "stream_options")
    return bool(body.stream_options.include_usage)
