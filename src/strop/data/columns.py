"""How a row becomes a problem's fields: known column names, nested columns, prompts and answers.

This module has the only list of column names. Training, Python rows, `strop data prepare` and benchmarks all read rows
with `Columns`. Data sets that need more have a ready mapping (`strop.prepare.mappings`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from strop.base.near import nearest
from strop.base.pieces import Settings
from strop.base.types import InputError, Message, Prompt
from strop.data.cells import plain
from strop_verify.extract import boxed_answer
from strop_verify.math.settings import FORM, stated_form

# Names in the data sets of GSM8K, verl, TRL, open-r1 and others; dots reach into nested columns.
PROMPTS = (
    "prompt", "question", "problem", "Problem", "Question", "question_content", "problem_description", "messages",
    "input", "query", "instruction",
)  # fmt: skip
ANSWERS = (
    "answer", "reference", "final_answer", "reward_model.ground_truth", "ground_truth", "Answer", "expected_answer",
    "gold", "target", "label",
)  # fmt: skip
SOLUTIONS = ("solution", "Solution")  # worked solutions in some data sets, only the answer in others
# Columns, or parts of a message, that belong to the question whatever they hold: a chat template may be given them.
HANDED = (
    "tools", "functions", "documents", "image", "images", "video", "videos", "audio", "system", "system_prompt",
    "context", "chat_template_kwargs",
)  # fmt: skip
UNASKED = ("tool_calls", "function_call", *HANDED)  # parts of a message that a prompt cannot hold
CODE = "code"  # the domain whose references are tests
SPEAKERS = {"human": "user", "gpt": "assistant"}  # ShareGPT's names of the roles
USERS = ("user", "human")

# The end of GSM8K's solutions, `#### 1,250`: one word with a digit, unlike a heading.
RESULT = re.compile(r"(?<!\S)####[ \t]*(?=[^\s\d]*\d)[^\s#]+\s*\Z")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{\s*[^\s}]")
_STOPS = tuple(".?!:;,。？！：；，")
_LABEL = 12  # words that the name of a subject or a contest may have
_CHAT = re.compile(r'\s*\[\s*\{\s*"(?:role|from|content|value)"\s*:')


class Row(NamedTuple):
    """One record: its number from 1, its place (`train.jsonl:12`), and its columns."""

    number: int
    where: str
    columns: Mapping[str, Any]


class BrokenRow(NamedTuple):
    """A record that cannot be read: its place, and the reason."""

    where: str
    reason: str

    def error(self) -> InputError:
        """The place and the reason as an error."""
        return InputError(f"{self.where}: {self.reason}")


class NoColumn(ValueError):
    """A row has no such column; the message names the nearest one."""


def pick(columns: Mapping[str, Any], name: str) -> Any:
    """The value of the column `name`; dots reach into nested columns.

    Raises:
        NoColumn: there is no such column.
    """
    inner, rest = _reached(columns, name)
    if rest not in inner:
        raise NoColumn(f"no column {name!r}; {nearest(rest, inner)}")
    return inner[rest]


def has(columns: Mapping[str, Any], name: str) -> bool:
    """Whether there is such a column, even if it is empty."""
    inner, rest = _reached(columns, name)
    return rest in inner


def _reached(columns: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], str]:
    """The innermost mapping that a dotted name reaches, and the rest of the name."""
    rest = name
    while rest not in columns:
        first, dot, behind = rest.partition(".")
        if not dot or not isinstance(columns.get(first), Mapping):
            break
        columns, rest = columns[first], behind
    return columns, rest


def first_present(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of `names` with a value in the row, else the first that the row has; None if it has none."""
    present = [name for name in names if has(row, name)]
    return next((name for name in present if pick(row, name) is not None), present[0] if present else None)


class Fields(NamedTuple):
    """The fields of a problem in a row; `id` is None if the row has none."""

    prompt: Prompt
    reference: Any
    extra: dict[str, Any]
    id: str | None = None


class Columns(Settings):
    """Which column holds what: `Columns(prompt="question")`. Dots reach into nested columns.

    Fields:
        prompt: text, or a list of chat messages. None: the first of the usual names that the first row has: prompt,
            question, problem, messages, ….
        answer: the reference answer, or the tests of a program. None: answer, ground_truth, final_answer, …, or a
            solution that boxes its answer. A worked solution that ends like GSM8K's (`#### 72`) gives its result, a
            solution its boxed answer.
        answer_json: the answer is JSON, as text or parsed; a list of one entry stands for that entry
            (Skywork-OR1-RL-Data: `["42"]`).
        id: None numbers the rows under the source's name.
        extra: columns to keep in `Problem.extra`.
        without: an instruction that is removed from the end of the prompts.
        instruction: a line that is added after the prompts of this source; `data.template` sets one for all.
        starter: code that the program must begin with; it is shown after the prompt.
        function: the name of the function that the tests call.
    """

    prompt: str | None = None
    answer: str | None = None
    answer_json: bool = False
    id: str | None = None
    extra: tuple[str, ...] = ()
    without: str | None = None
    instruction: str | None = None
    starter: str | None = None
    function: str | None = None

    def named(self, row: Mapping[str, Any]) -> Columns:
        """These columns, with the usual names that the row has in place of None."""
        prompt = self.prompt or first_present(row, PROMPTS) or "prompt"
        boxed = [name for name in SOLUTIONS if has(row, name) and r"\boxed" in str(pick(row, name))]
        answer = self.answer or first_present(row, ANSWERS)
        if answer is None or (self.answer is None and pick(row, answer) is None):
            answer = next(iter(boxed), answer or "answer")
        return self.model_copy(update={"prompt": prompt, "answer": answer})

    def fields(self, row: Mapping[str, Any], domain: str, first: Columns | None = None) -> Fields:
        """The fields of a problem in a row.

        Args:
            domain: the problem's domain; tests of programs are kept as they are.
            first: `named` of the first row, which decides the names for all rows; by default of this row.

        Raises:
            NoColumn: the row lacks a column.
            ValueError: a column has an unusable value, or only a part of the question.
        """
        named = first or self.named(row)
        worked = self.answer is None and named.answer in SOLUTIONS
        reference, solution = stated(plain(named.reference(row)), domain, worked)
        if self.prompt is None:
            named.refuse_parts(row)
        more = row.get("extra_info")  # verl's column of whatever else a row says
        said = stated_form({**more, **row} if isinstance(more, Mapping) else row) if domain != CODE else {}
        form = {name: plain(value) for name, value in said.items()}
        extra = {**({"answer_form": form} if form else {}), **{name: plain(pick(row, name)) for name in named.extra}}
        identity = None if named.id is None else str(pick(row, named.id))
        return Fields(named.question(row), reference, {**solution, **extra}, identity)

    def unread(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that nobody reads."""
        names = [name or "" for name in (self.prompt, self.answer, self.id, self.starter, self.function, *self.extra)]
        read = {*FORM, *names, *(name.partition(".")[0] for name in names)}
        return {name: cell for name, cell in row.items() if name not in read}

    def refuse_parts(self, row: Mapping[str, Any]) -> None:
        """Refuse a row in which a column that nobody reads may hold a part of the question.

        That is a sentence, several texts in a list, a text under a usual name of questions or under the name that is
        the answer (an option), or what chat templates take. A text that is read elsewhere is not lost, nor one that
        repeats the whole question. A column in which a text states an answer holds answers.

        Raises:
            ValueError: there is such a column.
        """
        unread = self.unread(row)
        said = "\n".join(text for name in row if name not in unread for text, _ in _texts(row[name]))
        asked = [part for text, _ in _texts(pick(row, self.prompt or "prompt")) for part in text.split("\n\n")]
        option = str(pick(row, self.answer)) if self.answer is not None and has(row, self.answer) else ""
        for name, cell in unread.items():
            texts = list(_texts({name: cell}, name in PROMPTS))
            if any(_BOX.search(text) or RESULT.search(text) for text, _ in texts):
                continue
            for text, listed in [(f"{cell}", True)] if cell and name in (*HANDED, option) else texts:
                told = listed or "\n" in text or text.endswith(_STOPS) or len(text.split(maxsplit=_LABEL)) > _LABEL
                if told and text not in said and not (asked and all(part in text for part in asked)):
                    raise ValueError(
                        f"the prompt would be only {self.prompt!r}, but {name!r} may be part of the question "
                        f"({text!r:.60}); put both into one column, or say that it is not: columns.prompt={self.prompt}"
                    )

    def question(self, row: Mapping[str, Any]) -> Prompt:
        """The prompt of a row.

        Raises:
            ValueError: the column is missing, or neither text nor chat messages.
        """
        prompt = as_prompt(pick(row, self.prompt or "prompt"))
        starter = pick(row, self.starter) if self.starter is not None else None
        added = [f"\n\n```python\n{starter.strip()}\n```"] if isinstance(starter, str) and starter.strip() else []
        added += [f"\n{self.instruction}"] if self.instruction is not None else []
        if self.without is None and not added:
            return prompt
        last = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        last = "".join([last.removesuffix(self.without or ""), *added])
        return last if isinstance(prompt, str) else (*prompt[:-1], Message(role=prompt[-1]["role"], content=last))

    def reference(self, row: Mapping[str, Any]) -> Any:
        """The reference of a row.

        Raises:
            ValueError: the column is missing, or not JSON although it should be.
        """
        found = _answer(pick(row, self.answer or "answer"), self.answer_json)
        if isinstance(found, list) and has(row, "is_multiple_answer") and all(isinstance(each, str) for each in found):
            found = ", ".join(found)  # OlympiadBench: all the answers
        name = pick(row, self.function) if self.function is not None else None
        return {"fn_name": name, "tests": found} if name is not None else found


def as_prompt(value: Any) -> Prompt:
    """A prompt from text or from a list of chat messages (also with ShareGPT's `from` and `value`, also as JSON).

    Messages after the user's last one are left out, since data sets may have an answer there. A single turn of the user
    becomes its text.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, str):
        value = _written_chat(value) or value
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(message, Mapping) for message in value):
        raise ValueError(f"the prompt must be text or a list of chat messages, not {type(value).__name__}")
    users = [number for number, turn in enumerate(value, 1) if turn.get("role", turn.get("from")) in USERS]
    chat = tuple(map(_message, value[: users[-1]] if users else value))
    single = len(chat) == 1 and chat[0]["role"] == "user" and isinstance(chat[0]["content"], str)
    return chat[0]["content"] if single else chat


def _written_chat(text: str) -> list[Any] | None:
    """The chat that a text holds as JSON; None for other texts."""
    if not _CHAT.match(text):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _message(turn: Mapping[str, Any]) -> Message:
    if "role" not in turn and "from" in turn:
        speaker = pick(turn, "from")
        return Message(role=SPEAKERS.get(speaker, speaker), content=content_text(pick(turn, "value")))
    lost = next((name for name in UNASKED if turn.get(name)), None)
    if lost is not None:
        raise ValueError(f"a message of the prompt has {lost!r}, which cannot be asked; write it into its content")
    return Message(role=pick(turn, "role"), content=content_text(pick(turn, "content")))


def content_text(content: Any) -> Any:
    """The content of a message; parts of text, as the APIs of OpenAI and Google write them, as one text.

    Raises:
        ValueError: a part is something else, such as a picture.
    """
    return "".join(map(_part_text, content)) if isinstance(content, list) else content


def _part_text(part: Any) -> str:
    typed = isinstance(part, Mapping) and str(part.get("type", "text")).endswith("text")  # input_text, output_text
    text = part["text"] if typed and "text" in part else part
    if not isinstance(text, str):
        raise ValueError(f"a message holds a part that is no text: {part!r:.80}")
    return text


def _answer(value: Any, is_json: bool) -> Any:
    """A column's answer; raises `ValueError` if it should be JSON and is not."""
    if not is_json or not isinstance(value, str | list):
        return value
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise ValueError(f"the answer {value!r:.60} is not JSON: {error.msg}") from error
    return found[0] if isinstance(found, list) and len(found) == 1 else found


def _texts(cell: Any, listed: bool = False) -> Iterator[tuple[str, bool]]:
    """The texts in a cell, and whether they stand in a list with others, without those of answers and speakers."""
    if isinstance(cell, Mapping):
        for name, part in cell.items():
            if name not in (*ANSWERS, *SOLUTIONS, "role", "from"):
                yield from _texts(part, listed)
    elif isinstance(cell, list | tuple):
        for part in cell:
            yield from _texts(part, listed or len(cell) > 1 or isinstance(part, Mapping))
    elif isinstance(cell, str) and any(map(str.isalnum, cell)):
        yield cell.strip(), listed or cell.lstrip()[0] in "[{"  # as a table of texts writes a list
    elif not _is_plain(cell):  # a picture, or its bytes
        yield type(cell).__name__, True


def _is_plain(cell: Any) -> bool:
    try:
        plain(cell)
    except ValueError:
        return False
    return True


def stated(reference: Any, domain: str, worked: bool = False) -> tuple[Any, dict[str, Any]]:
    """The reference, and the fields to keep in `Problem.extra`.

    A worked solution, which ends like GSM8K's or boxes its answer (`worked`), gives its final answer, and is kept in
    `extra`. Other values are returned unchanged.

    Raises:
        ValueError: `worked`, and there is no boxed answer.
    """
    if domain == CODE or not isinstance(reference, str):
        return reference, {}
    result = RESULT.search(reference)
    if result is not None:
        return result[0].removeprefix("####").strip().replace(",", ""), {"solution": reference}
    return (boxed_answer(reference), {"solution": reference}) if worked else (reference, {})
