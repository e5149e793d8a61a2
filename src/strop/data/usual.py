"""What prompts and answers are called in the tables that people bring, and how worked solutions mark an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from strop.data.columns import NoColumn, pick
from strop_verify.extract import boxed_answer

# In the sets of GSM8K, verl, TRL, open-r1 and others; dots reach into nested columns.
PROMPTS = (
    "prompt", "question", "problem", "Problem", "Question", "question_content", "problem_description", "messages",
    "input", "query", "instruction",
)  # fmt: skip
ANSWERS = (
    "answer", "reference", "final_answer", "reward_model.ground_truth", "ground_truth", "Answer", "expected_answer",
    "gold", "target", "label",
)  # fmt: skip
# What belongs to a question and stands in a column of its own.
PARTS = ("system", "context", "passage", "choices", "options")
HALVES = {"instruction": "input", "input": "instruction"}  # of a question, where a row has both
SOLUTIONS = ("solution", "Solution")  # a worked solution in some sets, the answer alone in others
CODE = "code"  # the domain whose references are tests

# The end of GSM8K's solutions, `#### 1,250`: one word with a digit, which no heading at the end of a text is.
RESULT = re.compile(r"(?<!\S)####[ \t]*(?=[^\s\d]*\d)[^\s#]+\s*\Z")


def has(row: Mapping[str, Any], name: str) -> bool:
    """Whether the row has the column, be it empty."""
    try:
        pick(row, name)
    except NoColumn:
        return False
    return True


def first_present(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of `names` that the row has a value for, else the first that it has at all; None where it has none."""
    present = [name for name in names if has(row, name)]
    return next((name for name in present if pick(row, name) is not None), present[0] if present else None)


def unseen(row: Mapping[str, Any], prompt: str) -> str | None:
    """A column that belongs to the question and is not in `prompt`, the column that was taken for it; else None."""
    parts = (*PARTS, *([HALVES[prompt]] if prompt in HALVES else []))
    return next((name for name in parts if row.get(name) not in (None, "", "None", [])), None)


def refuse_unseen(row: Mapping[str, Any], prompt: str, enough: str) -> None:
    """Refuse a row of whose question `prompt`, the column that was taken for it, holds a part only.

    Args:
        row: by columns.
        prompt: the column.
        enough: how to say that the column is enough, behind "leave … out: "; empty where there is no way.

    Raises:
        ValueError: it does.
    """
    name = unseen(row, prompt)
    if name is not None:
        way_out = f", or leave {name!r} out: {enough}" if enough else ""
        raise ValueError(
            f"the prompt would be {prompt!r} alone, without what stands in {name!r}; put both into one column{way_out}"
        )


def final_answer(solution: object) -> str:
    """The text after the last `####`, thousands commas removed: `"… #### 1,250"` gives `"1250"`.

    Raises:
        ValueError: there is no `####`, or nothing after it.
    """
    _, mark, answer = str(solution).rpartition("####")
    answer = answer.strip().replace(",", "")
    if not mark or not answer:
        raise ValueError("the answer has no '####' with the result after it, as GSM8K has")
    return answer


def stated(reference: Any, domain: str, worked: bool = False) -> tuple[Any, dict[str, Any]]:
    """A reference, and what `Problem.extra` keeps with it.

    Of a worked solution that ends as GSM8K's do, or is known as one (`worked`) and boxes its answer, that is the
    result, and the solution. Everything else stays as it is: a text with headings (`#### Notes`), and what programs
    are judged by.

    Raises:
        ValueError: `worked`, and no answer is marked.
    """
    if domain == CODE or not isinstance(reference, str):
        return reference, {}
    if RESULT.search(reference) is not None:
        return final_answer(reference), {"solution": reference}
    return (boxed_answer(reference), {"solution": reference}) if worked else (reference, {})
