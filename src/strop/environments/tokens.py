"""From an environment's messages to the tokens put behind a turn; what was sampled is never rendered again.

    ⟨prompt⟩ ⟨sampled …, <|im_end|>⟩ ⟨\\n<|im_start|>user\\n46<|im_end|>\\n<|im_start|>assistant\\n⟩ ⟨sampled …⟩
                                     └─ rendered by itself, from where the sampled tokens have got to ─┘

A chat template is asked how new messages follow a turn of the assistant by rendering them behind a placeholder. So
neither the sampled tokens nor the templates' habit of rewriting earlier turns (Qwen3's drops their thinking) can change
what the model has seen: the trajectory is one sequence that grows at its end. Who wants the model to read what the
template makes of earlier turns has a `Chat`: sampled tokens stay then too, each turn behind the prompt that it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from jinja2 import TemplateError

from strop.base.types import Completion, InputError, IntArray, Message, Observation, Problem
from strop.data.templates import Auto, ChatTemplate, Instruction, PromptTemplate, Tokenizer, described

_TURN = "placeholder4turn"  # no white space at its ends, which templates trim
_QUESTION: Message = {"role": "user", "content": "?"}
_NEXT: Message = {"role": "user", "content": "Go on."}
_TOOL: Message = {"role": "tool", "content": "46"}
_LONGEST_END = 16  # tokens by which a template ends a turn, at most


class TurnTokenizer(Tokenizer, Protocol):
    """A tokenizer that says which tokens are special."""

    @property
    def all_special_tokens(self) -> list[str]: ...


class TurnTokens:
    """Renders observations for one tokenizer and prompt template.

    Without a chat template, or with a prompt template that does not use it, messages are put down as plain text.

    Args:
        tokenizer: of the model.
        template: by which its prompts are rendered.

    Raises:
        InputError: the chat template cannot render a second turn.
    """

    def __init__(self, tokenizer: TurnTokenizer, template: PromptTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._arguments: dict[str, Any] | None = None
        if tokenizer.chat_template and isinstance(template, Auto | ChatTemplate):
            self._arguments = template.arguments
            self._rendered((_NEXT,))  # refuses a template that cannot do it before anything is sampled

    def prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Observation:
        """The beginning of a trajectory whose environment speaks first.

        Raises:
            InputError: the chat template refuses the messages.
        """
        if self._arguments is None:
            tools = ()  # such a model must know the format of calls
        elif tools and "tools" not in str(self._tokenizer.chat_template):
            own, rest = (messages[:1], messages[1:]) if messages[0]["role"] == "system" else ((), messages)
            text = "\n\n".join([*(message["content"] for message in own), described(tools)])
            messages, tools = [Message(role="system", content=text), *rest], ()
        problem = Problem("opening", tuple(messages), None)
        template = self._template.resolved(problem, self._tokenizer, Instruction("", "", tuple(tools)))
        return Observation(template(problem, self._tokenizer), template.render(problem, self._tokenizer))

    def observation(self, turn: Completion, messages: Sequence[Message]) -> Observation:
        """What is put behind `turn`, a completion as the engine gave it, so that the model reads `messages` next.

        The end of the assistant's turn, as the template writes it, is completed where the sampled tokens lack it (all
        of it after a stop string, a new line after `<|im_end|>`); the beginning of the next turn is included.
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
        """What the template writes behind a prompt's own messages: these ones, and the beginning of the next turn.

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
        """What the template writes from the end of an assistant's turn to the beginning of the next."""
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
        return [Message(role=message["role"], content=self.harmless(message["content"])) for message in messages]

    def harmless(self, content: str) -> str:
        """`content` in which no special token is spelt out: an environment must not end or open turns."""
        for special in self._tokenizer.all_special_tokens:
            content = content.replace(special, f"{special[0]} {special[1:]}")
        return content

    def encode(self, text: str) -> IntArray:
        """The tokens of `text`, int32 [K], and none that the tokenizer would add."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)


class Chat:
    """A trajectory's chat where the chat template has its way with earlier turns (`environment.history=separate`).

    A turn follows the tokens before it as long as the template leaves these as they were, white space around a turn
    aside. Where it does not, the next turn's prompt is the chat as the template renders it by then, behind the prompt
    that the trajectory began with.

    Args:
        tokens: of the model that plays.

    Raises:
        InputError: the chat template cannot be used so.
    """

    def __init__(self, tokens: TurnTokens) -> None:
        self._tokens = tokens
        self._messages: list[Message] = []
        self._prompt: IntArray | None = None  # without the beginning of the first turn
        self._shown = tokens.behind_prompt(())

    def observation(self, turn: Completion, messages: Sequence[Message]) -> Observation:
        """What is put behind `turn`, see `TurnTokens.observation`, with the next prompt where it is another one.

        Raises:
            InputError: the prompt does not end as the chat template ends a prompt.
        """
        if self._prompt is None:
            self._prompt = self._without_opening(turn.prompt_ids)
        said = self._tokens.observation(turn, messages)
        before, own = self._shown, self._tokens.harmless(turn.text).strip()
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
