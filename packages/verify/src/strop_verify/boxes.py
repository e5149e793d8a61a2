"""Finding the boxes of a text, `\\boxed{…}` and `\\fbox{…}`, in time linear in its length."""

from __future__ import annotations

import re
from typing import NamedTuple

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)


class Box(NamedTuple):
    """A closed box `text[outer_begin:outer_end]` and its answer `text[begin:end]`."""

    outer_begin: int
    outer_end: int
    begin: int
    end: int


def last_boxed(text: str) -> str | None:
    r"""The content of the last balanced `\boxed{…}` or `\fbox{…}`, the outermost of nested ones.

    `\boxed{1} or \boxed{\frac{1}{2}}` gives `\frac{1}{2}`; a box that is never closed does not count.
    """
    found = boxes(text)
    return text[found[-1].begin : found[-1].end].strip() if found else None


def boxed_answer(solution: object) -> str:
    """The answer that a worked solution boxes last.

    Raises:
        ValueError: it boxes none.
    """
    found = last_boxed(str(solution))
    if not found:
        raise ValueError("the solution has no \\boxed{answer}")
    return found


def boxes(text: str) -> list[Box]:
    """Every balanced box in the order in which they close; of nested ones the outermost alone."""
    found: list[Box] = []
    open_braces: list[tuple[int, int] | None] = []  # of a box, where it and its content begin; None for other braces
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "}":
            opened = open_braces.pop() if open_braces else None
            if opened is not None:
                closed = _close(text, *opened, match.start(), found[-1] if found else None)
                while found and found[-1].outer_begin > closed.outer_begin:
                    found.pop()
                found.append(closed)
        elif token == "{":
            open_braces.append(None)
        elif token.endswith("{") and len(token) > 2:  # not an escaped brace
            open_braces.append((match.start(), match.end()))
    return found


def _close(text: str, outer_begin: int, begin: int, end: int, inner: Box | None) -> Box:
    """The box closed at `end`; where a box inside is all that it holds, that one's answer is its answer."""
    if inner is not None and inner.outer_begin >= begin:
        around = text[begin : inner.outer_begin] + text[inner.outer_end : end]
        if not around.strip():
            return Box(outer_begin, end + 1, inner.begin, inner.end)
    return Box(outer_begin, end + 1, begin, end)
