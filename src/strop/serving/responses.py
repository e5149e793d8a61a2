"""Answers: completions, chat completions and their chunks, in OpenAI's shapes, and the text that streams.

Log-probs are those of the engine: natural, of logits / temperature over the whole vocabulary, whatever top-p and top-k.
Every sampled token has one, the end-of-sequence token and those of a stop string too, though their text is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from strop.base.types import Completion, FloatArray, IntArray
from strop.engines.protocol import Scores
from strop.serving.requests import ServedRequest

LOWEST = -9999.0  # JSON has no infinity
REPLACEMENT = "\ufffd"
MOST_HELD = 3  # a character has at most four bytes
LONGEST_WINDOW, OVERLAP = 48, 8


class TokenRow(NamedTuple):
    """A token of an answer with its log-prob (None: nothing predicts it) and the most probable ones in its place."""

    token: int
    logprob: float | None
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, eq=False)
class ServedAnswer:
    """One choice; `completion` is None where the prompt was only scored, `scores` are of prompt and completion."""

    prompt: int
    index: int
    completion: Completion | None
    scores: Scores | None = None


class Answers:
    """Shapes the answers of one model."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: str) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._pieces = Pieces(tokenizer)

    def whole(self, name: str, request: ServedRequest, answers: Sequence[ServedAnswer], version: int) -> dict[str, Any]:
        """The answer to a request that is not streamed."""
        return {
            **self._head(name, "chat.completion" if request.chat else "text_completion", version),
            "choices": [self._choice(request, answer) for answer in answers],
            "usage": usage(request, [answer.completion for answer in answers if answer.completion is not None]),
        }

    def chunk(self, name: str, request: ServedRequest, version: int, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A chunk of a stream."""
        value = self._head(name, "chat.completion.chunk" if request.chat else "text_completion", version)
        return {**value, "choices": choices, **({"usage": None} if request.include_usage else {})}

    def writer(self, request: ServedRequest, prompt: int, index: int) -> ChoiceWriter:
        """The stream of one choice."""
        assert request.sampling is not None
        return ChoiceWriter(self, request, prompt, index, TextStream(self._tokenizer, request.sampling.stop))

    def logprobs(self, request: ServedRequest, rows: Sequence[TokenRow]) -> dict[str, Any]:
        """The log-probs of some tokens."""
        pieces = self._pieces
        if request.chat:
            return {
                "content": [
                    {**pieces.entry(row.token, row.logprob), "top_logprobs": [pieces.entry(*best) for best in row.top]}
                    for row in rows
                ],
                "refusal": None,
            }
        return {
            "tokens": [pieces(row.token) for row in rows],
            "token_logprobs": [row.logprob for row in rows],
            "top_logprobs": [self._top(row) for row in rows] if request.top else None,
        }

    def _head(self, name: str, kind: str, version: int) -> dict[str, Any]:
        return {
            "id": name,
            "object": kind,
            "created": int(time.time()),
            "model": self._model,
            "system_fingerprint": f"strop-weights-{version}",
            "weight_version": version,
        }

    def _choice(self, request: ServedRequest, answer: ServedAnswer) -> dict[str, Any]:
        completion = answer.completion
        text, reason, stopped = ("", "length", None) if completion is None else self._text(request, completion)
        if request.echo:
            text = request.texts[answer.prompt] + text
        choice: dict[str, Any] = {"index": answer.prompt * request.n + answer.index, "finish_reason": reason}
        choice["stop_reason"] = stopped
        if request.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice["logprobs"] = None if request.top is None else self.logprobs(request, _rows(request, answer))
        if request.body.return_token_ids:
            choice["prompt_token_ids"] = request.prompts[answer.prompt].tolist()
            choice["token_ids"] = [] if completion is None else completion.token_ids.tolist()
            choice["weight_versions"] = [] if completion is None else [list(span) for span in completion.versions]
        return choice

    def _text(self, request: ServedRequest, completion: Completion) -> tuple[str, str, str | int | None]:
        """The text before the first stop string, why it ends, and the stop string or stop token id that ended it."""
        assert request.sampling is not None
        text = decode(self._tokenizer, completion.token_ids.tolist())
        found = first_stop(text, request.sampling.stop)
        if found is None:
            return text, completion.finish_reason, stop_id(request, completion)
        return text[: found[0]], "stop", found[1]

    def _top(self, row: TokenRow) -> dict[str, float] | None:
        """Best first, and the token itself where it is not among them, as OpenAI has it."""
        if row.logprob is None:
            return None
        found: dict[str, float] = {}
        for token, logprob in (*row.top, (row.token, row.logprob)):
            found.setdefault(self._pieces(token), logprob)
        return found


class ChoiceWriter:
    """One choice of a stream: takes tokens as they come, and returns the choices of the chunks that they make."""

    def __init__(self, answers: Answers, request: ServedRequest, prompt: int, index: int, text: TextStream) -> None:
        self._answers, self._request, self._text = answers, request, text
        self._prompt, self._index = prompt, prompt * request.n + index
        self._taken = 0
        self._begun = False

    def take(self, token_ids: IntArray, logprobs: FloatArray) -> list[dict[str, Any]]:
        """New tokens of a running sample."""
        self._taken += len(token_ids)
        return self._choices(self._text.push(token_ids.tolist()), token_ids, logprobs, None)

    def finish(self, completion: Completion) -> list[dict[str, Any]]:
        """The whole completion, which repeats what was taken before."""
        token_ids, logprobs = completion.token_ids[self._taken :], completion.logprobs[self._taken :]
        text = self._text.push(token_ids.tolist()) + self._text.finish()
        stopped = self._text.stopped
        reason = completion.finish_reason if stopped is None else "stop"
        choices = self._choices(text, token_ids, logprobs, reason)
        choices[-1]["stop_reason"] = stop_id(self._request, completion) if stopped is None else stopped
        if self._request.body.return_token_ids:
            choices[-1]["weight_versions"] = [list(span) for span in completion.versions]
        return choices

    def _choices(
        self, text: str, token_ids: IntArray, logprobs: FloatArray, reason: str | None
    ) -> list[dict[str, Any]]:
        request, listed = self._request, self._request.body.return_token_ids
        if not text and reason is None and not ((listed or request.top is not None) and len(token_ids)):
            return []
        choice: dict[str, Any] = {"index": self._index, "finish_reason": reason, "logprobs": None}
        if request.chat:
            choice["delta"] = {"content": text} if self._begun else {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if request.top is not None:
            choice["logprobs"] = self._answers.logprobs(request, token_rows(token_ids, logprobs))
        if listed:
            if not self._begun:
                choice["prompt_token_ids"] = request.prompts[self._prompt].tolist()
            choice["token_ids"] = token_ids.tolist()
        self._begun = True
        return [choice]


def stop_id(request: ServedRequest, completion: Completion) -> int | None:
    """The token of `stop_token_ids` that ended a completion."""
    assert request.sampling is not None
    last = int(completion.token_ids[-1]) if completion.finish_reason == "stop" else -1
    return last if last in request.sampling.stop_token_ids else None


def usage(request: ServedRequest, completions: Iterable[Completion]) -> dict[str, int]:
    """Tokens that were read and sampled; a prompt counts once, whatever n."""
    prompt = sum(len(ids) for ids in request.prompts)
    completion = sum(len(found.token_ids) for found in completions)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def token_rows(
    token_ids: IntArray, logprobs: FloatArray, scores: Scores | None = None, start: int = 0, top: int = 0
) -> list[TokenRow]:
    """Tokens [T] with their log-probs [T], and the `top` best ones of the places from `start` in `scores`."""
    values = zip(token_ids.tolist(), logprobs.tolist(), strict=True)
    if scores is None or not top:
        return [TokenRow(token, max(logprob, LOWEST)) for token, logprob in values]
    end = start + len(token_ids)
    ids = scores.top_ids[start:end, :top].tolist()
    best = scores.top_logprobs[start:end, :top].clip(min=LOWEST).tolist()
    return [
        TokenRow(token, max(logprob, LOWEST), list(zip(ids[place], best[place], strict=True)))
        for place, (token, logprob) in enumerate(values)
    ]


def _rows(request: ServedRequest, answer: ServedAnswer) -> list[TokenRow]:
    """The tokens of a choice, those of the prompt first under `echo`."""
    prompt, scores, top = request.prompts[answer.prompt], answer.scores, request.top or 0
    length = len(prompt)
    rows: list[TokenRow] = []
    if request.echo:
        assert scores is not None
        rows = [TokenRow(int(prompt[0]), None), *token_rows(prompt[1:], scores.logprobs[: length - 1], scores, 0, top)]
    if answer.completion is not None:
        rows += token_rows(answer.completion.token_ids, answer.completion.logprobs, scores, length - 1, top)
    return rows


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

    def entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        """The token as chats list it."""
        text = self(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


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
