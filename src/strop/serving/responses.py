"""What goes back: completions, chat completions and their chunks, in OpenAI's shapes.

Log-probs are those of the engine: natural, of logits / temperature over the whole vocabulary, whatever top-p and top-k.
Every sampled token has one, the end-of-sequence token and those of a stop string too, though their text is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from strop.base.types import Completion, FloatArray, IntArray
from strop.engines.protocol import Scores
from strop.serving.http import Refusal
from strop.serving.requests import DetokenizeBody, ServedRequest, TokenizeBody
from strop.serving.text import Offsets, Pieces, TextStream, decode, first_stop

LOWEST = -9999.0  # JSON has no infinity


@dataclass(frozen=True)
class TokenRow:
    """A token of an answer with its log-prob (None: nothing predicts it) and the most probable ones in its place."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


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
        kind = "chat.completion" if request.chat else "text_completion"
        value = self._head(name, kind, version)
        value["choices"] = [self._choice(request, answer) for answer in answers]
        value["usage"] = usage(request, [answer.completion for answer in answers if answer.completion is not None])
        return value

    def chunk(self, name: str, request: ServedRequest, version: int, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A chunk of a stream."""
        value = self._head(name, "chat.completion.chunk" if request.chat else "text_completion", version)
        value["choices"] = choices
        if request.include_usage:
            value["usage"] = None
        return value

    def writer(self, request: ServedRequest, prompt: int, index: int) -> Writer:
        """The stream of one choice."""
        assert request.sampling is not None
        return Writer(self, request, prompt, index, TextStream(self._tokenizer, request.sampling.stop))

    def logprobs(self, chat: bool, rows: Sequence[TokenRow], top: int, offsets: Offsets) -> dict[str, Any]:
        """The log-probs of some tokens, whose places in the text `offsets` follows."""
        return self._chat_logprobs(rows) if chat else self._text_logprobs(rows, top, offsets)

    def offsets(self) -> Offsets:
        """For the tokens of one choice."""
        return Offsets(self._tokenizer)

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
        choice["logprobs"] = None
        if request.top is not None:
            rows = self._rows(request, answer, request.top)
            choice["logprobs"] = self.logprobs(request.chat, rows, request.top, self.offsets())
        if request.return_token_ids:
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

    def _rows(self, request: ServedRequest, answer: ServedAnswer, top: int) -> list[TokenRow]:
        """The tokens of a choice, those of the prompt first under `echo`."""
        prompt, scores = request.prompts[answer.prompt], answer.scores
        length = len(prompt)
        rows: list[TokenRow] = []
        if request.echo:
            assert scores is not None
            rows.append(TokenRow(int(prompt[0]), None))
            rows += token_rows(prompt[1:], scores.logprobs[: length - 1], _best(scores, top, 0))
        if answer.completion is not None:
            best = () if scores is None or not top else _best(scores, top, length - 1)
            rows += token_rows(answer.completion.token_ids, answer.completion.logprobs, best)
        return rows

    def _chat_logprobs(self, rows: Iterable[TokenRow]) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            return {"token": self._pieces(token), "logprob": logprob, "bytes": self._pieces.utf8(token)}

        content = []
        for row in rows:
            assert row.logprob is not None
            top = [entry(token, logprob) for token, logprob in row.top]
            content.append({**entry(row.token, row.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _text_logprobs(self, rows: Sequence[TokenRow], top: int, offsets: Offsets) -> dict[str, Any]:
        return {
            "tokens": [self._pieces(row.token) for row in rows],
            "token_logprobs": [row.logprob for row in rows],
            "top_logprobs": [self._top(row) for row in rows] if top else None,
            "text_offset": [offsets.push(row.token) for row in rows],
        }

    def _top(self, row: TokenRow) -> dict[str, float] | None:
        """Best first, and the token itself where it is not among them, as OpenAI has it."""
        if row.logprob is None:
            return None
        found: dict[str, float] = {}
        for token, logprob in (*row.top, (row.token, row.logprob)):
            found.setdefault(self._pieces(token), logprob)
        return found


class Writer:
    """One choice of a stream: takes tokens as they come, gives what the next chunk says of them."""

    def __init__(self, answers: Answers, request: ServedRequest, prompt: int, index: int, text: TextStream) -> None:
        self._answers, self._request, self._text = answers, request, text
        self._prompt, self._index = prompt, prompt * request.n + index
        self._offsets = answers.offsets()
        self._taken = 0
        self._begun = False

    def take(self, token_ids: IntArray, logprobs: FloatArray) -> list[dict[str, Any]]:
        """New tokens; the choices of the chunks that they make."""
        self._taken += len(token_ids)
        return self._choices(self._text.push(token_ids.tolist()), token_ids, logprobs, None)

    def finish(self, completion: Completion) -> list[dict[str, Any]]:
        """The completion is whole; it holds what was taken before."""
        token_ids, logprobs = completion.token_ids[self._taken :], completion.logprobs[self._taken :]
        text = self._text.push(token_ids.tolist()) + self._text.finish()
        stopped = self._text.stopped
        reason = completion.finish_reason if stopped is None else "stop"
        choices = self._choices(text, token_ids, logprobs, reason)
        choices[-1]["stop_reason"] = stop_id(self._request, completion) if stopped is None else stopped
        if self._request.return_token_ids:
            choices[-1]["weight_versions"] = [list(span) for span in completion.versions]
        return choices

    def _choices(
        self, text: str, token_ids: IntArray, logprobs: FloatArray, reason: str | None
    ) -> list[dict[str, Any]]:
        request = self._request
        listed = request.top is not None or request.return_token_ids
        if not text and reason is None and not (listed and len(token_ids)):
            return []
        choice: dict[str, Any] = {"index": self._index, "finish_reason": reason, "logprobs": None}
        if request.chat:
            choice["delta"] = {"content": text} if self._begun else {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if request.top is not None:
            rows = token_rows(token_ids, logprobs)
            choice["logprobs"] = self._answers.logprobs(request.chat, rows, request.top, self._offsets)
        if request.return_token_ids:
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


def token_rows(
    token_ids: IntArray, logprobs: FloatArray, best: Sequence[tuple[tuple[int, float], ...]] = ()
) -> list[TokenRow]:
    """Tokens [T] with their log-probs [T], and the best ones of each place."""
    return [
        TokenRow(token, max(logprob, LOWEST), best[place] if best else ())
        for place, (token, logprob) in enumerate(zip(token_ids.tolist(), logprobs.tolist(), strict=True))
    ]


def _best(scores: Scores, top: int, start: int) -> list[tuple[tuple[int, float], ...]]:
    """The `top` best tokens of every place from `start` on."""
    rows = zip(scores.top_ids[start:, :top].tolist(), scores.top_logprobs[start:, :top].tolist(), strict=True)
    return [
        tuple((token, max(logprob, LOWEST)) for token, logprob in zip(ids, logprobs, strict=True))
        for ids, logprobs in rows
    ]


def usage(request: ServedRequest, completions: Iterable[Completion]) -> dict[str, int]:
    """Tokens that were read and sampled; a prompt counts once, whatever n."""
    prompt = sum(len(ids) for ids in request.prompts)
    completion = sum(len(found.token_ids) for found in completions)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class ServedTokens:
    """Answers for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context: int) -> None:
        self._tokenizer, self._context = tokenizer, context
        self._pieces = Pieces(tokenizer)

    def info(self) -> dict[str, Any]:
        """What the tokenizer is."""
        tokenizer = self._tokenizer
        return {
            "tokenizer_class": type(tokenizer).__name__,
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "pad_token": tokenizer.pad_token,
            "chat_template": tokenizer.chat_template,
            "vocab_size": len(tokenizer),
            "max_model_len": self._context,
        }

    def tokenize(self, body: TokenizeBody) -> dict[str, Any]:
        """The tokens of a text; the special ones that the tokenizer adds by itself unless asked not to."""
        special = body.add_special_tokens is not False
        ids = [int(one) for one in self._tokenizer.encode(body.prompt, add_special_tokens=special)]
        value: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": self._context}
        if body.return_token_strs:
            value["token_strs"] = [self._pieces(one) for one in ids]
        return value

    def detokenize(self, body: DetokenizeBody) -> dict[str, Any]:
        """The text of tokens, special ones written out.

        Raises:
            Refusal: a token that there is not.
        """
        strange = [one for one in body.tokens if one >= len(self._tokenizer)]
        if strange:
            raise Refusal(400, f"tokens: there are {len(self._tokenizer)}, {strange[0]} is none of them", "tokens")
        return {"prompt": decode(self._tokenizer, body.tokens, special=True)}
