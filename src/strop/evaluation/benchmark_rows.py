"""From a row of a benchmark to a problem. Hub data sets and published files name the same things differently: each
reader knows the names in use and refuses a row that has none of them.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Mapping
from typing import Any

from strop.base.seeds import derive
from strop.base.types import Message, Prompt
from strop.data.columns import SOLUTIONS, Columns, final_answer, pick, question_asked, refuse_unseen, stated

Row = Mapping[str, Any]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# Instructions that published files carry inside some questions; the template says how to answer, for all alike.
INSTRUCTIONS = (
    "Let's think step by step and output the final answer within \\boxed{}.",
    "Please reason step by step, and put your final answer within \\boxed{}.",
)


def math_question(row: Row, whole: bool) -> Prompt:
    """The question, or the chat that ends with it; the context that OlympiadBench gives goes before it.

    Args:
        row: of the benchmark.
        whole: refuse a row in which other columns belong to the question too.

    Raises:
        ValueError: there is no column with it, or `whole` and one holds a part of it only.
    """
    named = Columns().named(row)
    asked = question_asked(pick(row, str(named.prompt)))
    if whole:
        refuse_unseen({**row, "context": None}, str(named.prompt), "")
    if isinstance(asked, str):
        return _bare(asked, row.get("context"))
    return (*asked[:-1], Message(role=asked[-1]["role"], content=_bare(asked[-1]["content"], row.get("context"))))


def _bare(question: str, context: object) -> str:
    for instruction in INSTRUCTIONS:
        question = question.removesuffix(instruction).rstrip()
    return f"{context}\n{question}" if isinstance(context, str) and context.strip() else question


def math_answer(row: Row) -> str:
    """The reference answer: a column with it, or with a solution that ends as GSM8K's do; else the last box of the
    solution (Minerva).

    A whole number that a file holds as a float is written without its fraction; several answers are joined by commas.

    Raises:
        ValueError: there is none.
    """
    named = Columns().named(row)
    answer = pick(row, str(named.answer))
    text = _text(answer) if named.answer in SOLUTIONS else _answer_text(answer)
    return str(stated(text, "math", worked=named.answer in SOLUTIONS)[0])


def gsm8k_answer(row: Row) -> str:
    """The answer after `####` of the worked solution."""
    return final_answer(column(row, "answer"))


def choice_question(row: Row, seed_of: str) -> tuple[str, str]:
    """A multiple-choice question with its lettered options, and the letter of the right one.

    GPQA lists the right answer first; its options are put into an order that follows from `seed_of`, the same for
    every model. MMLU and MMLU-Pro keep theirs.

    Raises:
        ValueError: the columns are none of those of GPQA, MMLU or MMLU-Pro, or the answer is no option.
    """
    question = _text(pick(row, str(Columns().named(row).prompt))).strip()
    if row.get("Correct Answer") is not None:
        right = _text(row["Correct Answer"]).strip()
        options = [right, *(_text(column(row, f"Incorrect Answer {place}")).strip() for place in (1, 2, 3))]
        random.Random(derive(0, "gpqa", seed_of)).shuffle(options)
        answer = options.index(right)
    else:
        options = [_text(option).strip() for option in column(row, "options" if "options" in row else "choices")]
        answer = _index(row, len(options))
    if not 2 <= len(options) <= len(LETTERS):
        raise ValueError(f"{len(options)} options; a question has 2 to {len(LETTERS)}")
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"{question}\n\n{listed}", LETTERS[answer]


def human_eval_problem(row: Row) -> tuple[str, dict[str, Any]]:
    """The function to complete, and `{"asserts": [program]}`, as the code verifier takes tests.

    The program is the test as published; what the prompt defines beside the function to write (imports, helpers) goes
    in front of it, since the test may use it.

    Raises:
        ValueError: a column is absent, or the prompt is not Python.
    """
    prompt, test, entry = (_text(column(row, name)) for name in ("prompt", "test", "entry_point"))
    try:
        body = ast.parse(prompt).body
    except SyntaxError as error:
        raise ValueError(f"the prompt is not Python ({error.msg})") from error
    rest = [node for node in body if not (isinstance(node, ast.FunctionDef) and node.name == entry)]
    helpers = ast.unparse(ast.Module(body=rest, type_ignores=[]))
    program = f"{helpers}\n{test.rstrip()}\n\ncheck({entry})\n".lstrip()
    return prompt, {"asserts": [program]}


def column(row: Row, name: str) -> Any:
    """The column of that very name.

    Raises:
        ValueError: there is none.
    """
    if name not in row:
        raise ValueError(f"no column {name!r}; there are {', '.join(row)}")
    return row[name]


def _index(row: Row, count: int) -> int:
    """The place of the right option: `answer_index` (MMLU-Pro), a number (MMLU) or a letter in `answer`."""
    value = row["answer_index"] if row.get("answer_index") is not None else column(row, "answer")
    if isinstance(value, str) and len(value.strip()) == 1 and value.strip().upper() in LETTERS:
        value = LETTERS.index(value.strip().upper())
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise ValueError(f"the answer {value!r} is none of the {count} options")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, not {value!r:.60}")
    return value


def _answer_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_answer_text(entry) for entry in value)
    if isinstance(value, bool) or value is None:
        raise ValueError(f"{value!r} is no answer")
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    whole = text.startswith("$") and text.endswith("$") and text.count("$") == 2
    return text[1:-1].strip() if whole else text
