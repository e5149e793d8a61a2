"""Renders an environment's messages as tokens that follow a turn; sampled tokens are never rendered again.

    ⟨prompt⟩ ⟨sampled …, <|im_end|>⟩ ⟨\\n<|im_start|>user\\n46<|im_end|>\\n<|im_start|>assistant\\n⟩ ⟨sampled …⟩
                                     └─ rendered by itself, from where the sampled tokens have got to ─┘

New messages are rendered by the chat template after a placeholder for the assistant's turn. So templates that rewrite
earlier turns (Qwen3's drops their thinking) cannot change what the model has seen: the trajectory is one growing
sequence. `Chat` lets the model read earlier turns as the template rewrites them: each turn then keeps the prompt that
it was sampled with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from jinja2 import TemplateError

from strop.base.types import Completion, InputError, IntArray, Message, Observation, Problem
from strop.data.templates import Auto, ChatTemplate, Instruction, PromptTemplate, Tokenizer, described

_TURN = "placeholder4turn"  # without outer white space, which templates trim
_QUESTION: Message = {"role": "user", "content": "?"}
_NEXT: Message = {"role": "user", "content": "Go on."}
_TOOL: Message = {"role": "tool", "content": "46"}
_LONGEST_END = 16  # most tokens with which a template ends a turn


class TurnTokenizer(Tokenizer, Protocol):
    """A tokenizer that lists its special tokens."""

    @property
    def all_special_tokens(self) -> list[str]: ...


class TurnTokens:
    """Renders observations for one tokenizer and prompt template.

    Without a chat template, or with a prompt template that does not use it, messages are plain text.

    Args:
        tokenizer: the model's tokenizer.
        template: the template of its prompts.

    Raises:
        InputError: the chat template cannot render a second turn.
    """

    def __init__(self, tokenizer: TurnTokenizer, template: PromptTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._arguments: dict[str, Any] | None = None
        self._frame: tuple[str, ...] = ()  # the special tokens that the chat template writes around turns
        if tokenizer.chat_template and isinstance(template, Auto | ChatTemplate):
            self._arguments = template.arguments
            self._rendered((_NEXT,))  # raises before anything is sampled
            written = self._render([_QUESTION, {"role": "assistant", "content": _TURN}, _NEXT], False)
            self._frame = tuple(special for special in tokenizer.all_special_tokens if special in written)

    def prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Observation:
        """The prompt of a trajectory whose environment speaks first.

        Raises:
            InputError: the chat template refuses the messages.
        """
        if self._arguments is None:
            tools = ()  # the model must know the format of calls
        elif tools and "tools" not in str(self._tokenizer.chat_template):
            own, rest = (messages[:1], messages[1:]) if messages[0]["role"] == "system" else ((), messages)
            text = "\n\n".join([*(message["content"] for message in own), described(tools)])
            messages, tools = [Message(role="system", content=text), *rest], ()
        problem = Problem("opening", tuple(messages), None)
        template = self._template.resolved(problem, self._tokenizer, Instruction("", "", tuple(tools)))
        return Observation(template(problem, self._tokenizer), template.render(problem, self._tokenizer))

    def observation(self, turn: Completion, messages: Sequence[Message]) -> Observation:
        """The tokens that follow `turn`, a completion of the engine, so that the model reads `messages` next.

        They begin with the part of the turn's end that the sampled tokens lack (all of it after a stop string, a new
        line after `<|im_end|>`), and end with the beginning of the next turn.
        """
        if self._arguments is None:
            text = "".join(self.harmless(message["content"]) for message in messages)
            return Observation(self.encode(text), text)
        text = self._rendered(messages)
        ids = self.encode(text)
        sampled = turn.token_ids[-_LONGEST_END:]
        overlap = max(k for k in range(len(sampled) + 1) if np.array_equal(sampled[len(sampled) - k :], ids[:k]))
        return Observation(ids[overlap:], text)

    def notes(self, separate: bool = False) -> list[str]:
        """Warnings about the chat template, one line each; `separate` as `Environment.history` is."""
        if self._arguments is None:
            return ["turns: plain text, one behind the other; no chat template is used"]
        try:
            self._rendered((_TOOL,))
        except InputError as error:
            return [f"turns: {error}; tools will not work"]
        here = "here they stay as they were sampled, and so should they where the model is used"
        if separate:
            here = "turns behind that are separate sequences"
        for reply, habit in (("<think>\nx\n</think>\n\n2", "drops the thinking of"), ("2", "rewrites")):
            asked = self._render([_QUESTION], True)
            later = self._render([_QUESTION, {"role": "assistant", "content": reply}, _NEXT], True)
            if not later.startswith(asked + reply):
                return [f"turns: the model's chat template {habit} earlier turns; {here}"]
        return ["turns: the model's chat template leaves earlier turns as they were"]

    def behind_prompt(self, messages: Sequence[Message]) -> str:
        """The text that the template writes after a prompt: `messages`, and the beginning of the next turn.

        Raises:
            InputError: there is no chat template, or it changes the prompt for them.
        """
        if self._arguments is None:
            raise InputError("environment.history=separate needs the model's chat template; set it to keep")
        asked = self._render([_QUESTION], False)
        text = self._render([_QUESTION, *self._spelt(messages)], True)
        if not text.startswith(asked):
            raise InputError("environment.history=separate: the chat template changes the question; set it to keep")
        return text[len(asked) :]

    def _rendered(self, messages: Sequence[Message]) -> str:
        """The text from the end of an assistant's turn to the beginning of the next one."""
        text = self._render([_QUESTION, {"role": "assistant", "content": _TURN}, *self._spelt(messages)], True)
        _, found, after = text.partition(_TURN)
        if not found or _TURN in after or not after:
            raise InputError("the model's chat template does not show an earlier turn of the assistant as it was")
        return after

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        chat = [dict(role=message["role"], content=message["content"]) for message in messages]
        assert self._arguments is not None
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    chat, tokenize=False, add_generation_prompt=add_generation_prompt, **self._arguments
                )
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise InputError(f"the model's chat template refuses a chat of {roles}: {error}") from error

    def _spelt(self, messages: Sequence[Message]) -> list[Message]:
        said = [(message["role"], message["content"]) for message in messages]
        return [Message(role=role, content=self.harmless(content, role == "assistant")) for role, content in said]

    def harmless(self, content: str, own: bool = False) -> str:
        """`content` with special tokens broken up, so that it cannot end or open turns.

        In what the model itself said (`own`) only those around turns are: the chat template reads its `</think>`.
        """
        for special in self._frame if own else self._tokenizer.all_special_tokens:
            content = content.replace(special, f"{special[0]} {special[1:]}")
        return content

    def encode(self, text: str) -> IntArray:
        """The tokens of `text`, int32 [K], without added special tokens."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)


class Chat:
    """A trajectory's chat with earlier turns as the chat template rewrites them (`environment.history=separate`).

    A turn follows the tokens before it while the template leaves these unchanged, white space around a turn aside. If
    it rewrites them, the next turn's prompt is the trajectory's first prompt and the chat as it is rendered now.

    Args:
        tokens: renders for the model.

    Raises:
        InputError: the chat template cannot be used so.
    """

    def __init__(self, tokens: TurnTokens) -> None:
        self._tokens = tokens
        self._messages: list[Message] = []
        self._prompt: IntArray | None = None  # without the beginning of the first turn
        self._shown = tokens.behind_prompt(())

    def observation(self, turn: Completion, messages: Sequence[Message]) -> Observation:
        """The tokens that follow `turn`, see `TurnTokens.observation`, with the next prompt if it differs.

        Raises:
            InputError: the prompt does not end as the chat template ends a prompt.
        """
        if self._prompt is None:
            self._prompt = self._without_opening(turn.prompt_ids)
        said = self._tokens.observation(turn, messages)
        before, own = self._shown, self._tokens.harmless(turn.text, own=True).strip()
        self._messages += [Message(role="assistant", content=turn.text), *messages]
        self._shown = self._tokens.behind_prompt(self._messages)
        if self._shown.startswith(before) and self._shown[len(before) :].lstrip().startswith(own):
            return said
        return replace(said, prompt_ids=np.concatenate([self._prompt, self._tokens.encode(self._shown)]))

    def _without_opening(self, prompt_ids: IntArray) -> IntArray:
        opening = self._tokens.encode(self._shown)
        end = len(prompt_ids) - len(opening)
        if not np.array_equal(prompt_ids[end:], opening):
            raise InputError("environment.history=separate: the prompt does not end as the chat template ends it")
        return prompt_ids[:end]
