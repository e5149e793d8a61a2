"""Finding the answer in a response. Every function is linear in its length, whatever the policy writes."""

from __future__ import annotations

import re
from typing import Literal

from strop_verify.boxes import last_boxed
from strop_verify.numbers import NUMBER

Where = Literal["boxed", "answer_tag", "any", "last_number"]  # where an answer stands, see `extract_answer`

_LAST_NUMBER = re.compile(rf"(?<![\w.]){NUMBER}", re.ASCII)


def extract_answer(text: str, where: Where, box_required: bool = False) -> str | None:
    """The answer of a response; None where there is none, or where what holds it is empty.

    Args:
        text: the whole response; a think block that it leaves open hides every answer.
        where: `boxed`: the last balanced box; `answer_tag`: the last `<answer>…</answer>`, the box inside it if there
            is one; `last_number`; `any`: the first of these three that is there.
        box_required: an answer tag without a box inside is no answer.
    """
    final = after_thinking(text)
    if final is None:
        return None
    if where == "boxed":
        return last_boxed(final) or None
    if where == "answer_tag":
        return answer_tag(final, box_required) or None
    if where == "last_number":
        return last_number(final)
    for found in (last_boxed(final), answer_tag(final, box_required), last_number(final)):
        if found is not None:
            return found or None
    return None


def after_thinking(text: str) -> str | None:
    """The text after the last `</think>`; all of a text without thinking; None where a think block was left open."""
    _, _, final = text.rpartition("</think>")
    return None if "<think>" in final else final


def answer_tag(text: str, box_required: bool = False) -> str | None:
    """The content of the last `<answer>…</answer>`: its last box, else (unless `box_required`) all of it."""
    end = text.rfind("</answer>")
    begin = text.rfind("<answer>", 0, end) if end >= 0 else -1
    if begin < 0:
        return None
    content = text[begin + len("<answer>") : end].strip()
    boxed = last_boxed(content)
    if boxed is not None or box_required:
        return boxed
    return content or None


def last_number(text: str) -> str | None:
    """The last number of a text, as it is written there."""
    last = None
    for match in _LAST_NUMBER.finditer(text.replace("\N{MINUS SIGN}", "-")):
        last = match.group()
    return last
