"""Answers: completions, chat completions and their chunks, in OpenAI's shapes, and the text that streams.

A request that is not streamed gets the same choices as a stream, each in one piece.

Log-probs are those of the engine: natural, of logits / temperature over the whole vocabulary, whatever top-p and top-k.
Every sampled token has one, the end-of-sequence token and those of a stop string too, though their text is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from strop.base.types import Completion, FloatArray, IntArray
from strop.engines.protocol import Drawn
from strop.serving.requests import ServedRequest

LOWEST = -9999.0  # JSON has no infinity
REPLACEMENT = "\ufffd"
MOST_HELD = 3  # a character has at most four bytes
LONGEST_WINDOW, OVERLAP = 48, 8


class ServedAnswer:
    """The answer to one request, made from the events of the engine.

    Args:
        head: the fields `id` and `model`.
        names: the engine's request id of each prompt.
        version: the engine's weight version when the request came.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, pieces: Pieces, request: ServedRequest, names: Sequence[str],
        head: dict[str, Any], version: int,
    ) -> None:  # fmt: skip
        self._request, self._head, self._version = request, head, version
        self._writers = {
            (name, index): ChoiceWriter(tokenizer, pieces, request, prompt, index)
            for prompt, name in enumerate(names)
            for index in range(request.n)
        }
        self._sampled = 0  # tokens of finished completions

    def choice(self, event: Drawn | Completion) -> dict[str, Any] | None:
        """The choice that an event adds; None if it adds nothing yet."""
        writer = self._writers[event.request_id, event.index]
        if isinstance(event, Drawn):
            return writer.take(event.token_ids, event.logprobs)
        self._sampled += len(event.token_ids)
        self._version = max(self._version, *(span.version for span in event.versions), 0)
        return writer.finish(event)

    def whole(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The answer to a request that is not streamed."""
        ordered = sorted(choices, key=lambda choice: int(choice["index"]))
        return {**self._fields(""), "choices": ordered, "usage": self.usage}

    def chunk(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A chunk of a stream; the last one has no choice, but the usage."""
        value = {**self._fields(".chunk"), "choices": choices}
        if self._request.include_usage:
            value["usage"] = None if choices else self.usage
        return value

    @property
    def usage(self) -> dict[str, int]:
        """Tokens that were read and sampled; a prompt counts once, whatever n."""
        prompt = sum(len(ids) for ids in self._request.prompts)
        return {
            "prompt_tokens": prompt, "completion_tokens": self._sampled, "total_tokens": prompt + self._sampled,
        }  # fmt: skip

    def _fields(self, suffix: str) -> dict[str, Any]:
        return {
            **self._head,
            "object": f"chat.completion{suffix}" if self._request.chat else "text_completion",
            "created": int(time.time()),
            "system_fingerprint": f"strop-weights-{self._version}",
            "weight_version": self._version,
        }


class ChoiceWriter:
    """One choice: takes tokens as they come, and returns the parts of the choice that they make."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, pieces: Pieces, request: ServedRequest, prompt: int, index: int
    ) -> None:
        self._pieces, self._request, self._text = pieces, request, TextStream(tokenizer, request.sampling.stop)
        self._prompt, self._index = prompt, prompt * request.n + index
        self._taken = 0
        self._begun = False

    def take(self, token_ids: IntArray, logprobs: FloatArray) -> dict[str, Any] | None:
        """New tokens of a running sample."""
        self._taken += len(token_ids)
        text, body = self._text.push(token_ids.tolist()), self._request.body
        if not text and not ((body.return_token_ids or self._request.logprobs) and len(token_ids)):
            return None
        return self._part(text, token_ids, logprobs, None)

    def finish(self, completion: Completion) -> dict[str, Any]:
        """The whole completion, which repeats what was taken before."""
        token_ids, logprobs = completion.token_ids[self._taken :], completion.logprobs[self._taken :]
        text = self._text.push(token_ids.tolist()) + self._text.finish()
        stopped = self._text.stopped
        reason = completion.finish_reason if stopped is None else "stop"
        return {**self._part(text, token_ids, logprobs, reason), "stop_reason": stopped}

    def _part(self, text: str, token_ids: IntArray, logprobs: FloatArray, reason: str | None) -> dict[str, Any]:
        request = self._request
        part: dict[str, Any] = {"index": self._index, "finish_reason": reason, "logprobs": None}
        if not request.chat:
            part["text"] = text
        elif request.body.stream:
            part["delta"] = {"content": text} if self._begun else {"role": "assistant", "content": text}
        else:
            part["message"] = {"role": "assistant", "content": text, "refusal": None}
        if request.logprobs:
            part["logprobs"] = self._logprobs(token_ids, logprobs)
        if request.body.return_token_ids:
            if not self._begun:
                part["prompt_token_ids"] = request.prompts[self._prompt].tolist()
            part["token_ids"] = token_ids.tolist()
        self._begun = True
        return part

    def _logprobs(self, token_ids: IntArray, logprobs: FloatArray) -> dict[str, Any]:
        texts = [self._pieces(token) for token in token_ids.tolist()]
        values = logprobs.clip(min=LOWEST).tolist()
        if not self._request.chat:
            return {"tokens": texts, "token_logprobs": values, "top_logprobs": None}
        entries = [
            {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
            for text, value in zip(texts, values, strict=True)
        ]
        return {"content": entries, "refusal": None}


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], special: bool = False) -> str:
    """The text of token ids, without the special tokens unless `special`."""
    text = tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


class Pieces:
    """Single tokens as text, for lists of log-probs; a part of a character keeps the vocabulary's name for it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        # A decoder may drop a space in front of its first token; behind another token it does not.
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._skip = len(decode(tokenizer, self._before, special=True))

    def __call__(self, token: int) -> str:
        if token not in self._known:
            text = decode(self._tokenizer, [*self._before, token], special=True)[self._skip :]
            named = str(self._tokenizer.convert_ids_to_tokens(token)) if REPLACEMENT in text else text
            self._known[token] = named
        return self._known[token]


class Detokenizer:
    """The text of a growing row of tokens; a character that is not complete yet is held back.

    Only a window of the last tokens is decoded again each time, so that the cost of a token does not grow.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = 0  # characters of the window's text that are out

    def push(self, ids: Iterable[int]) -> str:
        """The text that the new tokens add."""
        self._window += ids
        text = decode(self._tokenizer, self._window)
        held = min(MOST_HELD, len(text) - len(text.rstrip(REPLACEMENT)))  # signs of bytes that may become a character
        end = max(self._given, len(text) - held)
        new = text[self._given : end]
        self._given = end
        if len(self._window) > LONGEST_WINDOW:
            self._window = self._window[-OVERLAP:]
            self._given = len(decode(self._tokenizer, self._window)) - held
        return new

    def finish(self) -> str:
        """The text that was held back."""
        return decode(self._tokenizer, self._window)[self._given :]


class TextStream:
    """The text of a completion while it is written: ends before the first stop string.

    Text that may be the beginning of a stop string is held back until it is not.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: tuple[str, ...]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = stops
        self._held = ""
        self.stopped: str | None = None  # the stop string that ended it

    def push(self, ids: Iterable[int]) -> str:
        """The text that may go out after the new tokens."""
        return self._let_out(self._detokenizer.push(ids), last=False)

    def finish(self) -> str:
        """The rest, once there are no more tokens."""
        return self._let_out(self._detokenizer.finish(), last=True)

    def _let_out(self, new: str, last: bool) -> str:
        if self.stopped is not None:
            return ""
        text = self._held + new
        found = first_stop(text, self._stops)
        if found is not None:
            cut, self.stopped = found
            return text[:cut]
        begun = (size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        keep = len(text) - (0 if last else max(begun, default=0))
        self._held = text[keep:]
        return text[:keep]


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """The place of the first stop string, and the string."""
    places = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    return min(places, default=None)
