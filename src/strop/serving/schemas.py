"""Request bodies: read, checked, and refused field by field.

A field that strop does not know is an error, not a silent difference. A few that change nothing are left out
(`IGNORED`), and fields that it cannot honour are taken where their value asks for nothing (`NEUTRAL`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from strop.base.near import near
from strop.base.pieces import complaint
from strop.serving.refusal import Refusal

MOST_STOPS, LONGEST_STOP = 16, 256
MOST_TOP = 20
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 100.0  # logits / temperature must stay finite in float32
_INT32 = 2**31 - 1

IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "best_of": (1,),
    "suffix": ("",),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
_MESSAGE_NEUTRAL = ("name", "refusal", "audio", "annotations", "tool_calls", "function_call")

Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Token = Annotated[int, Field(ge=0, le=_INT32)]
_Item = TypeVar("_Item")
_List = Annotated[list[_Item], Field(fail_fast=True)]  # one complaint about a long list is enough
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(_Body):
    """`include_usage`: a last chunk with the usage."""

    include_usage: bool | None = None


class _Common(_Body):
    """What both kinds of request have; None is the default."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=_INT32)] | None = None
    temperature: Annotated[float, Field(ge=0, le=MOST_TEMPERATURE)] | None = None
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
    """A part of a message's content; text is the only kind."""

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


def read(data: bytes, kind: type[Body]) -> Body:
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
    known = kind.model_fields.keys()
    value = _plain(value, known)
    if isinstance(value.get("messages"), list):
        value["messages"] = [_plain_message(message) for message in value["messages"]]
    try:
        found = kind.model_validate(value)
    except ValidationError as error:
        raise _explained(error) from None
    if isinstance(found, _Common) and 0 < (found.temperature or 0) < LEAST_TEMPERATURE:
        raise Refusal(400, f"temperature: 0 is greedy, else at least {LEAST_TEMPERATURE}", "temperature")
    return found


def _plain(value: dict[str, Any], known: Any) -> dict[str, Any]:
    """The fields that mean something here."""
    kept: dict[str, Any] = {}
    unknown: list[str] = []
    for name, entry in value.items():
        if name in known:
            kept[name] = entry
        elif name in NEUTRAL:
            if entry is not None and entry not in NEUTRAL[name]:
                raise Refusal(400, f"{name}: not supported; leave it out", name, "unsupported_parameter")
        elif name not in IGNORED:
            unknown.append(name)
    if unknown:
        meant = near(unknown[0], known)
        hint = f"; did you mean {meant!r}?" if meant else ""
        names = ", ".join(repr(name[:100]) for name in unknown[:10])
        raise Refusal(400, f"unknown field {names}{hint}", unknown[0][:100], "unknown_parameter")
    return kept


def _plain_message(message: Any) -> Any:
    """A message without the fields that clients send empty when they give an answer back; names are not rendered."""
    if not isinstance(message, dict):
        return message
    return {
        key: entry
        for key, entry in message.items()
        if key not in _MESSAGE_NEUTRAL or (key != "name" and entry not in (None, []))
    }


def _explained(error: ValidationError) -> Refusal:
    """The first complaint, with the field's path; the branches of a union are told as one."""
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
