r"""The symbols of a question in order: words, numbers, and the signs that are mathematics.

How mathematics is typed does not show: `\cdot`, `×` and `*` are one sign, `\frac{a}{b}` is `a/b`, `\left(` is `(`,
`x^{2}` and `x²` are `x^2`. Punctuation is left out: hyphens between words, bullets, emphasis, brackets around words or
a label, the `!` that ends a sentence. Every other sign is a symbol, so that a question with one more, one less or
another one is another question.
"""

from __future__ import annotations

import re
import unicodedata
from enum import IntEnum, auto
from itertools import pairwise
from typing import NamedTuple

from strop_verify.math.notation import CHARACTERS, RAISED

_TOKEN = re.compile(
    r"\\(?:begin|end)\s?\{[a-z]+\*?\}"  # an environment
    r"|\\(?:[a-z]+|[^a-z0-9])"  # a command of LaTeX, or an escaped sign
    r"|(?:(?<![0-9],)[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+"
    r"|[^\W\d_]+(?:['’][^\W\d_]+)*"
    r"|</?[a-z]{2,12}>"  # a tag, which is markup: its name is a word
    r"|<=|>=|(?<=\s)!=|\*+|!+|(?<![a-z]{2})(?<=[a-z])'+(?=\()|[-+/^=<>%°|(){}\[\]]"
    r"|[≤≥≠±√≈≡∈∉∪∩⊂⊆⊃⊇→∞∘⊕⊗∧∨]"
)
_LATEX_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|\\[,!])(?=[0-9]{3})")
_SHORT_FRACTION = re.compile(r"(\\[dt]?frac)\s?([0-9])(?=[0-9](?![0-9])|\s?\{)")  # `\frac12` is one half
_RAISED = re.compile(f"[{''.join(RAISED)}]+")
_DEGREE = re.compile(r"\^\s?(?:\\circ|\{\s?\\circ\s?\})(?![a-z])")
_PRIME = re.compile(r"\^\s?(?:\\prime|\{\s?\\prime\s?\})(?![a-z])")
_SENTENCE_ENDS = re.compile(r"[.?!;:](?:[\s$]|$)|\n\s*\n")

# Commands that change how mathematics looks, not what it says.
_LOOKS = frozenset(
    ("left", "right", "big", "bigg", "bigl", "bigr", "biggl", "biggr", "displaystyle", "textstyle", "quad", "qquad",
     "limits", "nolimits", "text", "mbox", "mathrm", "mathbf", "mathit", "textbf", "textit", "operatorname")
)  # fmt: skip
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cdot": "*", "times": "*", "ast": "*", "div": "/", "leq": "≤", "le": "≤",
    "leqslant": "≤", "geq": "≥", "ge": "≥", "geqslant": "≥", "neq": "≠", "ne": "≠", "lt": "<", "gt": ">", "pm": "±",
    "sqrt": "√", "vert": "|", "lvert": "|", "rvert": "|", "mid": "|", "approx": "≈", "equiv": "≡", "in": "∈",
    "notin": "∉", "cup": "∪", "cap": "∩", "subset": "⊂", "subseteq": "⊆", "to": "→", "rightarrow": "→", "infty": "∞",
    "degree": "°", "wedge": "∧", "vee": "∨", "<=": "≤", ">=": "≥", "!=": "≠", "{": "⦃", "}": "⦄", "%": "%", "|": "|",
    "lbrace": "⦃", "rbrace": "⦄",
}  # fmt: skip
_OPENING, _CLOSING = frozenset("([{⦃"), frozenset(")]}⦄")
_AFTER_OPERAND = frozenset("!%°|'")  # what stands behind a value, which is a value with it
_FONT = "font"  # the brace of `\\mathrm{`, which says nothing
_MINUS_OR_DASH = frozenset("-/*")
_GROUP_AFTER = frozenset("}]^_")  # what a brace that groups stands behind, but for letters and digits


class SymbolKind(IntEnum):
    """What a symbol is; an integer, whose hash is quick."""

    WORD = auto()
    LETTER = auto()
    NUMBER = auto()
    COMMAND = auto()
    OPERATOR = auto()
    SIGN = auto()  # a minus that makes the number after it negative
    OPEN = auto()
    CLOSE = auto()
    BREAK = auto()  # where a formula ends, beside words


_VALUES = frozenset((SymbolKind.LETTER, SymbolKind.NUMBER, SymbolKind.COMMAND))


class Symbol(NamedTuple):
    """A word, a number or a sign, in the one form that it has."""

    kind: SymbolKind
    text: str


class _Token(NamedTuple):
    kind: SymbolKind
    text: str
    start: int
    end: int


def fold(text: str) -> str:
    """`text` in one case, compatibility characters (full width, superscripts …) and minus signs made plain."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")
    return _SHORT_FRACTION.sub(r"\1{\2}", _LATEX_THOUSANDS.sub(",", plain.casefold()))


def symbols(text: str) -> tuple[str, list[Symbol]]:
    """The folded text, its mathematics in ASCII and LaTeX, and its symbols; linear in its length."""
    if not text.isascii():
        raised = _RAISED.sub(lambda run: f"^{{{''.join(map(RAISED.__getitem__, run[0]))}}}", text)
        text = raised.translate(CHARACTERS)
    folded = _PRIME.sub("'", _DEGREE.sub("°", fold(text)))
    return folded, list(_Reading(folded).symbols())


class _Reading:
    """The tokens of a text, and which of its brackets are mathematics."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._brackets: dict[int, str] = {}  # place of a bracket → how it is written, empty where it says nothing
        self._fractions: set[int] = set()  # places of brackets that close a numerator
        self._mark_brackets()

    def symbols(self) -> list[Symbol]:
        """Words, numbers and what is mathematics, in order."""
        found: list[Symbol] = []
        end = 0
        for place, (kind, text, start, stop) in enumerate(self._tokens):
            if start > end + 1 and _SENTENCE_ENDS.search(self._text, end, start):
                found.append(Symbol(SymbolKind.BREAK, ""))
            end = stop
            if kind in (SymbolKind.OPEN, SymbolKind.CLOSE):
                if written := self._brackets.get(place):
                    found.append(Symbol(kind, written))
                if place in self._fractions:
                    found.append(Symbol(SymbolKind.OPERATOR, "/"))
            elif kind is not SymbolKind.OPERATOR:
                if text != "frac":
                    found.append(Symbol(kind, text))
            elif self._is_sign(place):
                found.append(Symbol(SymbolKind.SIGN, "-"))
            elif self._is_operator(place):
                found.append(Symbol(kind, "^" if text == "**" else text))
        return found

    def _mark_brackets(self) -> None:
        """Decide of each pair of brackets whether it is mathematics: one pass with the open ones on a stack."""
        open_places: list[int] = []
        words: list[bool] = []  # of each open bracket, whether there is a word in it
        signs: list[bool] = []  # … whether there is an operator, a command or a comma in it
        for place, (kind, text, start, _) in enumerate(self._tokens):
            if open_places and place and "," in self._text[self._tokens[place - 1].end : start]:
                signs[-1] = True
            if kind is SymbolKind.OPEN:
                open_places.append(place)
                words.append(False)
                signs.append(False)
            elif kind is SymbolKind.CLOSE:
                if open_places:
                    first, has_word, has_sign = open_places.pop(), words.pop(), signs.pop()
                    self._mark(first, place, has_word, has_sign)
                    if open_places:
                        words[-1] |= has_word
                        signs[-1] |= has_sign
            elif open_places:
                words[-1] |= kind is SymbolKind.WORD
                signs[-1] |= kind is SymbolKind.COMMAND or (kind is SymbolKind.OPERATOR and text[0] not in "!'")

    def _mark(self, first: int, last: int, has_word: bool, has_sign: bool) -> None:
        opening, closing = self._tokens[first], self._tokens[last]
        before = self._tokens[first - 1] if first else None
        if opening.text == "{" and self._groups(opening.start):
            inside = last - first - 1 - (self._tokens[first + 1].text == "-")
            self._brackets[first], self._brackets[last] = ("", "") if inside <= 1 else ("(", ")")
            if before is not None and before.text == "frac":
                self._fractions.add(last)
        elif opening.text == _FONT:
            self._brackets[first] = self._brackets[last] = ""
        elif self._is_mathematical(before, opening, closing, last, has_word, has_sign):
            self._brackets[first], self._brackets[last] = opening.text, closing.text

    def _groups(self, start: int) -> bool:
        before = self._text[start - 1 : start]
        return before.isalnum() or before in _GROUP_AFTER and before != ""

    def _is_mathematical(
        self, before: _Token | None, opening: _Token, closing: _Token, last: int, has_word: bool, has_sign: bool
    ) -> bool:
        """Whether brackets group, apply or list: `2(x + 1)`, `f(2)`, `(7, -2)`, not `(in dollars)` or `(a)`."""
        if has_sign and not has_word:
            return True
        after = self._tokens[last + 1] if last + 1 < len(self._tokens) else None
        for other, bracket in ((before, SymbolKind.CLOSE), (after, SymbolKind.OPEN)):
            if other is None:
                continue
            joined = opening.start == other.end or closing.end == other.start
            if other.kind is SymbolKind.OPERATOR and (not has_word or other.text not in _MINUS_OR_DASH):
                if joined or other.text[0] not in "!'":
                    return True
            elif joined and (other.kind in _VALUES or other.kind is bracket and not has_word):
                return True
        return False

    def _is_value(self, place: int, from_left: bool) -> bool:
        """Whether a value begins (or, seen `from_left`, ends) at this token."""
        while self._brackets.get(place) == "":
            place += -1 if from_left else 1
        if not 0 <= place < len(self._tokens):
            return False
        kind, text, _, _ = self._tokens[place]
        if kind is (SymbolKind.CLOSE if from_left else SymbolKind.OPEN):
            return place in self._brackets
        return kind in _VALUES or (text[0] in _AFTER_OPERAND if from_left else text in "|√")

    def _is_sign(self, place: int) -> bool:
        """Whether a minus makes the number after it negative, rather than subtract it or join words."""
        _, sign, start, end = self._tokens[place]
        after = self._tokens[place + 1] if place + 1 < len(self._tokens) else None
        if sign != "-" or after is None or after.kind is not SymbolKind.NUMBER:
            return False
        gap = self._text[end : after.start]
        if gap.strip(" \t\n$"):
            return False
        before = self._tokens[place - 1] if place else None
        if before is None or (before.kind is SymbolKind.OPERATOR and before.text[0] not in _AFTER_OPERAND):
            return True
        char = self._text[start - 1]
        if char in "([{,;:":
            return True
        if not (char.isspace() or char == "$"):
            return False
        pause = not gap and self._text[max(start - 2, 0) : start - 1] in (",", ";", ":")
        return pause or before.kind in (SymbolKind.WORD, SymbolKind.COMMAND)

    def _is_operator(self, place: int) -> bool:
        """Whether a sign is mathematics: a hyphen, emphasis, a slash or the end of a sentence may stand there."""
        _, text, start, _ = self._tokens[place]
        left, right = self._is_value(place - 1, True), self._is_value(place + 1, False)
        negated = place + 1 < len(self._tokens) and self._tokens[place + 1].text == "-"
        if text == "-":
            return right and (left or self._is_prefix(place))
        if text[0] == "*":
            return left and (right or negated)
        if text[0] == "!":
            return left and self._tokens[place - 1].end == start and not self._ends_sentence(place)
        return (left or right) if text in "/|" else True

    def _is_prefix(self, place: int) -> bool:
        """Whether a minus may negate what follows: it stands first, behind an operator, or apart from a word."""
        if place == 0:
            return True
        before = self._tokens[place - 1]
        return (
            before.kind in (SymbolKind.OPERATOR, SymbolKind.OPEN)
            or not self._text[self._tokens[place].start - 1].isalnum()
        )

    def _ends_sentence(self, place: int) -> bool:
        """Whether `!` is the sentence's: nothing but space follows it, and a number stands there, not a formula."""
        end = self._tokens[place].end
        if self._text[end : end + 1].strip():
            return False
        value = self._tokens[place - 1]
        return value.kind is not SymbolKind.CLOSE and (place == 1 or self._tokens[place - 2].kind is SymbolKind.WORD)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    looks = 0  # where the last command that only looks ended
    for match in _TOKEN.finditer(text):
        written, start, end = match[0], match.start(), match.end()
        head = written[0]
        if head.isalpha():
            word = written if written.isalpha() else written.replace("'", "").replace("’", "")
            found.append(_Token(SymbolKind.WORD if len(word) > 1 else SymbolKind.LETTER, word, start, end))
        elif written[-1] == "}" and len(written) > 2:
            if written.endswith("matrix}"):  # other environments change the looks alone
                found.append(_Token(SymbolKind.COMMAND, written[written.index("{") + 1 : -1], start, end))
        elif head == "\\":
            name = written[1:]
            if name in _LOOKS:
                looks = end
                continue
            if not name.isalpha() and name not in _SAME:
                continue
            name = _SAME.get(name, name)
            kind = SymbolKind.COMMAND if name.isalpha() else _kind_of_sign(name)
            found.append(_Token(kind, name, start, end))
        elif head == "<" and len(written) > 2:
            found.append(_Token(SymbolKind.WORD, written.strip("</>"), start, end))
        elif written[-1].isdigit():
            found.append(_Token(SymbolKind.NUMBER, canonical_number(written), start, end))
        else:
            name = _SAME[written] if len(written) == 2 and written in _SAME else written
            if head == "{" and looks == start:
                name = _FONT
            found.append(_Token(_kind_of_sign(written), name, start, end))
    for place, (letter, following) in enumerate(pairwise(found)):
        apart = text[letter.end : following.start].isspace()
        if apart and letter.text in ("a", "i") and following.kind in (SymbolKind.WORD, SymbolKind.NUMBER):
            found[place] = letter._replace(kind=SymbolKind.WORD)  # an article or a pronoun, not a variable
    return found


def _kind_of_sign(sign: str) -> SymbolKind:
    return SymbolKind.OPEN if sign in _OPENING else SymbolKind.CLOSE if sign in _CLOSING else SymbolKind.OPERATOR


def canonical_number(text: str) -> str:
    """`1,250.50` → `1250.5`, `007` → `7`, `.5` → `0.5`, `3.0` → `3`."""
    whole, _, fraction = text.replace(",", "").partition(".")
    whole = whole.lstrip("0") or "0"
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole
