"""Prompt templates: from a problem to the token ids that the policy continues.

A template is a pure function of the problem and the tokenizer. If the rendered prompt ends with an opened think block,
the response does not repeat the tag; `opening` returns it for the verifier.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from strop.base.pieces import Piece
from strop.base.types import InputError, IntArray, Message, Problem

THINK = "<think>"
DATE = "26 Jul 2024"  # the default date of Llama 3.2's template


class Tokenizer(Protocol):
    """The methods of a tokenizer that templates use, as those of transformers have them."""

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def chat_template(self) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> Any: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, **arguments: Any
    ) -> Any: ...


class Instruction(NamedTuple):
    r"""The sentence of a prompt about the form of the answer, so that the verifier can read it.

    A prompt that contains `mark`, such as `\\boxed`, needs no instruction. `tools` are the JSON schemas of tools, which
    the model's chat template describes.
    """

    text: str
    mark: str
    tools: tuple[dict[str, Any], ...] = ()


# The last sentence of questions in data sets of the DeepSeek-R1 family.
BOXED = Instruction("Please reason step by step, and put your final answer within \\boxed{}.", "\\boxed")
TAGGED = Instruction("Please reason step by step, and put your final answer in <answer> </answer> tags.", "<answer>")
LETTER = Instruction("Please reason step by step, and put the letter of the right option within \\boxed{}.", "\\boxed")
PROGRAM = Instruction(
    "Please reason step by step, then write the whole program, imports and helpers included, in one ```python block.",
    "```python",
)


class PromptTemplate(Piece):
    """Turns a problem into a prompt. Subclasses define `render`."""

    adds_bos: ClassVar[bool] = True  # whether to put the tokenizer's BOS, if it uses one, in front

    @abstractmethod
    def render(self, problem: Problem, tokenizer: Tokenizer) -> str:
        """The prompt as text."""

    def resolved(self, problem: Problem, tokenizer: Tokenizer, instruction: Instruction | None) -> PromptTemplate:
        """The template to render with: this one, unless it depends on tokenizer and verifier."""
        return self

    def __call__(self, problem: Problem, tokenizer: Tokenizer) -> IntArray:
        """The prompt as token ids, int32 [prompt tokens]; at most one BOS, and no EOS.

        Raises:
            InputError: the tokenizer cannot render the template, or the prompt has no tokens.
        """
        return encode_prompt(self.render(problem, tokenizer), tokenizer, self.adds_bos)


class Plain(PromptTemplate):
    """`prefix + question + suffix`, for base models; the messages of a chat prompt are joined by new lines."""

    prefix: str = ""
    suffix: str = ""

    def render(self, problem: Problem, tokenizer: Tokenizer) -> str:
        """The prompt as text; the tokenizer is not used."""
        return f"{self.prefix}{joined(problem)}{self.suffix}"


class ChatTemplate(PromptTemplate):
    """The tokenizer's own chat template, up to where the assistant begins.

    Fields:
        system: a system message; a problem that has one too is refused.
        instruction: added as a new line to the last user message.
        arguments: arguments of the chat template, such as {enable_thinking = false} for Qwen3.
    """

    adds_bos: ClassVar[bool] = False  # the chat template writes it

    system: str | None = None
    instruction: str | None = None
    arguments: dict[str, Any] = {}

    def resolved(self, problem: Problem, tokenizer: Tokenizer, instruction: Instruction | None) -> PromptTemplate:
        """This template, with the tools that the policy may call."""
        if instruction is None or not instruction.tools:
            return self
        if "tools" in str(tokenizer.chat_template):
            return self.model_copy(update={"arguments": {**self.arguments, "tools": list(instruction.tools)}})
        system = "\n\n".join(filter(None, (self.system, described(instruction.tools))))
        return self.model_copy(update={"system": system})

    def messages(self, problem: Problem) -> list[Message]:
        """The chat that is rendered.

        Raises:
            InputError: both the template and the problem have a system message.
        """
        prompt = problem.prompt
        chat = [Message(role="user", content=prompt)] if isinstance(prompt, str) else list(prompt)
        if self.instruction is not None:
            chat[-1] = Message(role="user", content=f"{chat[-1]['content']}\n{self.instruction}")
        if self.system is None:
            return chat
        if any(message["role"] == "system" for message in chat):
            raise InputError(f"problem {problem.id!r} has a system message, and the template has one; drop one of them")
        return [Message(role="system", content=self.system), *chat]

    def render(self, problem: Problem, tokenizer: Tokenizer) -> str:
        """The prompt as text, special tokens written out.

        Raises:
            InputError: the tokenizer has no chat template, or it refuses the messages or an argument.
        """
        from jinja2 import TemplateError

        if not tokenizer.chat_template:
            raise InputError(
                "the tokenizer has no chat template; use data.template=Plain or data.template=OpenReasonerZero"
            )
        chat = [dict(role=message["role"], content=message["content"]) for message in self.messages(problem)]
        arguments = self.arguments
        written = tokenizer.chat_template
        for name in arguments if isinstance(written, str) else ():
            if not re.search(rf"\b{re.escape(name)}\b", written):  # jinja would ignore it
                raise InputError(f"the tokenizer's chat template takes no argument {name!r}")
        if "strftime_now" in str(written):
            # The template writes today's date, which would make prompts differ from day to day.
            arguments = {"date_string": DATE, **arguments}
        try:
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **arguments)
            return str(text)
        except TemplateError as error:
            raise InputError(f"the tokenizer's chat template refuses problem {problem.id!r}: {error}") from error


class Auto(PromptTemplate):
    """The tokenizer's chat template if it has one, else the plain question; the default.

    Both ask for the answer in the form that the verifier reads, unless the prompt already does. A problem that is the
    beginning of a text (`Problem.verbatim`) is used as it is if there is no chat template.

    Fields:
        instruct: whether to ask for the form of the answer; None: except for strop's own bases (`asked_with`).
        system, arguments: as in `ChatTemplate`.
    """

    instruct: bool | None = None
    system: str | None = None
    arguments: dict[str, Any] = {}

    def resolved(self, problem: Problem, tokenizer: Tokenizer, instruction: Instruction | None) -> PromptTemplate:
        """`ChatTemplate` or `Plain`, with an instruction if the problem needs one."""
        text = instruction.text if instruction is not None and self.instruct is not False else None
        if text is not None and instruction is not None and instruction.mark in joined(problem):
            text = None
        if tokenizer.chat_template:
            chat = ChatTemplate(system=self.system, instruction=text, arguments=self.arguments)
            return chat.resolved(problem, tokenizer, instruction)
        return Plain() if text is None or problem.verbatim else Plain(suffix=f"\n{text}\n")

    def render(self, problem: Problem, tokenizer: Tokenizer) -> str:
        """The prompt as text, without an instruction."""
        return self.resolved(problem, tokenizer, None).render(problem, tokenizer)


def described(tools: Sequence[Mapping[str, Any]]) -> str:
    """A system message that describes tools, for chat templates that do not."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"You may call these functions:\n<tools>\n{listed}\n</tools>\n"
        "For each call return a JSON object with the function's name and its arguments within tags:\n"
        '<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>'
    )


class OpenReasonerZero(PromptTemplate):
    """Open-Reasoner-Zero's prompt for base models, which ends in `Assistant: <think>`.

    `wording="paper"` is the text of Table 5, `"code"` that of the released code, which differs in a few words. Sampling
    wants the stop strings of `STOP`.
    """

    STOP: ClassVar[tuple[str, ...]] = ("User:", "Human:", "Assistant:", "</answer>")

    wording: Literal["code", "paper"] = "paper"

    def render(self, problem: Problem, tokenizer: Tokenizer) -> str:
        """The prompt as text; the tokenizer is not used."""
        return ORZ[self.wording].replace("{prompt}", joined(problem))


_TASK = (
    "You must put your answer inside <answer> </answer> tags, i.e., <answer> answer here </answer>. "
    "And your final answer will be extracted automatically by the \\boxed{} tag.\n"
)
ORZ = {
    "code": (
        "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. "
        "The Assistant first thinks about the reasoning process in the mind and then provides the User with the "
        "answer. The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> "
        "</answer> tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>. "
        f"User: {_TASK}This is the problem:\n{{prompt}}\nAssistant: <think>"
    ),
    "paper": (
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. "
        "The assistant first thinks about the reasoning process in the mind and then provides the user with the "
        "answer. The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> "
        "tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>. "
        f"User: {_TASK}{{prompt}}\nAssistant: <think>"
    ),
}


def joined(problem: Problem) -> str:
    """The prompt of a problem as one text."""
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "\n".join(message["content"] for message in problem.prompt)


def opening(rendered: str) -> str:
    """`<think>` if the prompt ends with it, else an empty text."""
    return THINK if rendered.rstrip().endswith(THINK) else ""


def encode_prompt(text: str, tokenizer: Tokenizer, add_bos: bool) -> IntArray:
    """Token ids of a prompt, int32 [prompt tokens].

    With `add_bos`, the BOS goes in front if the tokenizer uses one and the text does not begin with it. Other special
    tokens that the tokenizer would add, such as an EOS, are left out.

    Raises:
        InputError: there is no token.
    """
    ids = list(tokenizer.encode(text, add_special_tokens=False))
    bos = tokenizer.bos_token_id
    if add_bos and bos is not None and tokenizer.encode("", add_special_tokens=True)[:1] == [bos] and ids[:1] != [bos]:
        ids = [bos, *ids]
    if not ids:
        raise InputError("a prompt without tokens: the template rendered an empty text")
    return np.array(ids, dtype=np.int32)
