"""From a request's body to what is asked of the engine."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from strop.base.types import InputError, IntArray, Message, Problem, first_line
from strop.data.templates import ChatTemplate, encode_prompt
from strop.engines.protocol import Request, Sampling
from strop.serving.limits import ServeLimits
from strop.serving.refusal import Refusal
from strop.serving.schemas import ChatBody, CompletionBody
from strop.serving.text import decode

DEFAULT_NEW_TOKENS = 16  # of a text completion, as OpenAI has it; a chat may fill the context


@dataclass(frozen=True, eq=False)
class Ask:
    """A request, ready for the engine.

    Attributes:
        prompts: token ids of each; a chat has one.
        texts: the prompts as text, for `echo`.
        sampling: None where nothing is sampled and the prompts are only scored.
        n: completions of each prompt.
        seed: None: each prompt gets one of its own.
        top: most probable tokens beside each token's log-prob; None: no log-probs at all.
        echo: the prompt stands in front of the completion, in text and log-probs.
        stream, include_usage, return_token_ids: how it is answered.
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
        """What log-probs are of: logits / temperature (1 where greedy)."""
        return 1.0 if self.sampling is None else self.sampling.temperature or 1.0

    def requests(self, names: Sequence[str]) -> list[Request]:
        """One request of the engine for each prompt; the same seed gives a prompt the same completions in any list."""
        if self.sampling is None:
            return []
        return [
            Request(name, ids, self.sampling, secrets.randbits(62) if self.seed is None else self.seed, self.n)
            for name, ids in zip(names, self.prompts, strict=True)
        ]


class Asking:
    """Makes an `Ask` of a body, for one model and its limits."""

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

    def completion(self, body: CompletionBody) -> Ask:
        """Raises `Refusal`."""
        echo, stream = bool(body.echo), bool(body.stream)
        if echo and stream:
            raise Refusal(400, "echo: goes without stream", "echo")
        prompts, texts = self._prompts(body.prompt, echo)
        n = body.n or 1
        self._refuse_many(len(prompts) * n)
        scoring = body.max_tokens == 0
        if scoring and not echo:
            raise Refusal(400, "max_tokens: 0 asks for nothing; with echo=true it scores the prompt", "max_tokens")
        if scoring and n > 1:
            raise Refusal(400, "n: max_tokens=0 samples nothing, so there is one answer to a prompt", "n")
        room = self._room(prompts, scoring)
        asked = body.max_tokens if body.max_tokens is not None else min(DEFAULT_NEW_TOKENS, room)
        return Ask(
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

    def chat(self, body: ChatBody) -> Ask:
        """Raises `Refusal`."""
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
        return Ask(
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
                400, "messages: this model's tokenizer has no chat template; use /v1/completions with a prompt",
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
                400, f"{name}: {asked} exceeds the {room} tokens that the model has room for behind the prompt",
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
                400, f"{name}: a stream has log-probs of the sampled tokens only; ask for 0, or leave stream out",
                name, "unsupported_parameter",
            )  # fmt: skip
        return top


def _wants_usage(body: CompletionBody | ChatBody) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise Refusal(400, "stream_options: goes with stream=true", "stream_options")
    return bool(body.stream_options.include_usage)
