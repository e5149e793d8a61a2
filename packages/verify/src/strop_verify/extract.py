"""Finding the answer in a response. Every function takes time linear in the length of the text."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Literal, NamedTuple

NUMBER = r"[+-]?(?:(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_NUMBER = re.compile(NUMBER)
_SCIENTIFIC = re.compile(r"([+-]?(?:\d{1,100}(?:\.\d{0,100})?|\.\d{1,100}))(?:[eE]([+-]?\d{1,3}))?")
_POWER_OF_TEN = re.compile(r"\s*(?:\\times|\\cdot|\*|×)\s*10\s*\^\s*\{?\s*([+-]?\d{1,3})\s*\}?")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:\.\d{3})+(?!\d|[.,]\d)")
_LONGEST = 300
_EDGES = " $"
# In this order, and whole runs at once, so that what is replaced leaves nothing that would be replaced.
_LATEX = [
    (re.compile(run), text)
    for run, text in ((r"\\+!", ""), (r"\\+\$", "$"), (r"\{+,\}+", ","), ("\N{MINUS SIGN}", "-"))
]


def normalise(text: str) -> str:
    """An answer without what does not count: outer white space, `$`, trailing periods, runs of white space."""
    for written, plain in _LATEX:
        text = written.sub(plain, text)
    spaced = " ".join(text.split())
    return spaced.lstrip(_EDGES).rstrip(_EDGES + ".") or spaced


def as_number(text: str) -> Decimal | None:
    """A normalised answer as a number, or None: `+1,250.50` is 1250.5; `1,25` and `1e3` give None."""
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def measured_number(text: str | None) -> Decimal | None:
    r"""An answer as a number, written plainly, as `1.5e3` or as `1.5 \times 10^{3}`; None if it is not a number."""
    if text is None or len(text) > _LONGEST:
        return None
    plain = _POWER_OF_TEN.sub(r"e\1", normalise(text))
    number = as_number(plain)
    return Decimal(plain) if number is None and _SCIENTIFIC.fullmatch(plain) else number


def without_points(text: str) -> str:
    """A text without the points that separate thousands: 22540 € for 22.540 €."""
    return _THOUSANDS.sub(lambda number: number[0].replace(".", ""), text)


def canonical(text: str) -> str:
    """One text for all ways of writing the same answer: `007.50` and `7.5` both give `7.5`."""
    plain = normalise(text)
    number = as_number(plain)
    if number is None:
        return plain
    digits = format(number, "f")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return "0" if digits == "-0" else digits


# The second is a box of one token without braces that ends a formula: $\boxed 8$.
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\boxed\s*([^\s{}$\\]{1,300})(?=\s?(?:\$|\\[)\]]))|\\.|[{}]", re.DOTALL)


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
    """Every balanced box in the order in which they close; of nested ones only the outermost."""
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
        elif match[1]:
            found.append(Box(*match.span(), *match.span(1)))
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


Where = Literal["boxed", "answer_tag", "any", "last_number"]  # where an answer stands, see `extract_answer`

_LAST_NUMBER = re.compile(rf"(?<![\w.]){NUMBER}", re.ASCII)


def extract_answer(text: str, where: Where, box_required: bool = False) -> str | None:
    """The answer of a response; None if there is no answer, or if its box or tag is empty.

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
