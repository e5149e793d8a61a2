"""The reference answer, read once and kept, for every sample of a group is compared with it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from strop.verifiers.math.candidates import Found, in_prose
from strop.verifiers.math.dressing import undressed
from strop.verifiers.math.normalise import canonical, prepared
from strop.verifiers.math.numbers import Based, Plain, based_number, plain_number
from strop.verifiers.math.parsing import Parsed, parse_answer, parse_raw

GoldForm = Literal["bare", "raw"]
KEPT = 8192
LONGEST_KEY, LONGEST_PROSE = 4000, 120
_LETTER = re.compile(r"[A-J]")
_COMMANDS = re.compile(r"\\[A-Za-z]+")
_NAMES = re.compile(r"[A-Za-z]")
_ELLIPSIS = re.compile(r"\\(?:ldots|dots|cdots|dotsc)(?![A-Za-z])|\.\.\.")


class Reference(NamedTuple):
    """A reference answer before it is parsed: where it stands, and the forms that need no parser."""

    found: Found
    key: str
    number: Plain | None
    based: Based | None

    @property
    def is_letter(self) -> bool:
        """Whether it may be a choice letter."""
        return _LETTER.fullmatch(self.key) is not None

    @property
    def is_mathematics(self) -> bool:
        """Whether it is no word, and no text in letters that only people read."""
        return self.key.isascii() and not self.key.isalpha()

    @property
    def is_constant(self) -> bool:
        """Whether no name is in it: then a letter at the end of an answer can only be a unit."""
        return not _NAMES.search(_COMMANDS.sub("", self.key))

    @property
    def text(self) -> str:
        """The text of the answer."""
        return self.found.latex if self.found.latex is not None else self.found.prose


@lru_cache(maxsize=KEPT)
def read_reference(text: str, form: GoldForm) -> Reference:
    """A reference as text; one that is `raw`, or has a box, is found in its own text; a `bare` one is the answer."""
    if form == "bare" and r"\boxed" not in text:
        return _reference(Found(text))
    found = in_prose(text)
    return _reference(found if isinstance(found, Found) else Found(None, text))


def _reference(found: Found) -> Reference:
    key = answer_key(found)
    return Reference(found, key, plain_number(key), based_number(key))


def answer_key(found: Found, lone_letters: bool = False) -> str:
    """The canonical form of an answer; empty for long prose, which is no answer as a whole."""
    text = found.latex if found.latex is not None else found.prose
    if len(text) > (LONGEST_KEY if found.latex is not None else LONGEST_PROSE):
        return ""
    return canonical(undressed(prepared(text)), lone_letters)


@lru_cache(maxsize=KEPT)
def parse_reference(text: str, form: GoldForm, match_types: tuple[str, ...]) -> Parsed:
    """The values of a reference; raises what math-verify and sympy raise."""
    reference = read_reference(text, form)
    if reference.found.latex is None:
        return parse_raw(reference.found.prose, match_types)
    return parse_answer(reference.found, match_types)


def members(latex: str) -> list[str] | None:
    r"""The members of a sequence with an ellipsis in it (`1, 3, \ldots, 2n-1`), the ellipsis too; None without one."""
    if not _ELLIPSIS.search(latex):
        return None
    parts: list[str] = []
    depth = begin = 0
    for place, character in enumerate(latex):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(latex[begin:place])
            begin = place + 1
    parts.append(latex[begin:])
    return [r"\ldots" if _ELLIPSIS.fullmatch(part.strip()) else part.strip() for part in parts]
