"""The tokenizer over HTTP, as vLLM offers it: clients that count tokens themselves need no copy of it.

    GET  /tokenizer_info   its special tokens and chat template
    POST /tokenize         {"prompt": "3+5"} → {"tokens": […], "count": 3, "max_model_len": 256}
    POST /detokenize       {"tokens": […]} → {"prompt": "3+5"}
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from strop.serving.refusal import Refusal
from strop.serving.schemas import DetokenizeBody, TokenizeBody
from strop.serving.text import Pieces, decode


class Tokens:
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
