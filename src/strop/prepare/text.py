"""The content of a question, apart from how it is typed: its words, its numbers and its mathematics (`symbols`).

Two questions are the same when they differ in case, space or punctuation only, or in a few words; they are different
when their numbers are, or their operators, signs and brackets, however alike the rest. So numbers are read out in one
form (`1,250`, `1{,}250` and `1250.0` are one), and compared in order. Number words (`three`, `twice`), words that turn
a question round (`least`, `greatest`) and commands of LaTeX may be missing on one side, where a word was changed; where
each side has one that the other lacks, the questions differ.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from hashlib import blake2b
from itertools import groupby, pairwise
from typing import NamedTuple
from zlib import crc32

from strop_verify.math.latex import CHARACTERS, RAISED

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


_SPACE = re.compile(r"\s+")
_MARKS_OF_PROSE = 3  # as many a text must lack before it counts as one that lost its punctuation

NUMBER_WORDS = {
    word: str(value)
    for value, words in {
        0: "zero", 1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine",
        10: "ten", 11: "eleven", 12: "twelve dozen", 13: "thirteen", 14: "fourteen", 15: "fifteen", 16: "sixteen",
        17: "seventeen", 18: "eighteen", 19: "nineteen", 20: "twenty", 30: "thirty", 40: "forty", 50: "fifty",
        60: "sixty", 70: "seventy", 80: "eighty", 90: "ninety", 100: "hundred", 1000: "thousand",
        1000000: "million", 1000000000: "billion", "1/2": "half halves", "1/3": "third thirds",
        "1/4": "quarter quarters", "2x": "twice double doubled doubles", "3x": "thrice triple tripled triples",
        "4x": "quadruple", "1st": "first", "2nd": "second", "4th": "fourth", "5th": "fifth",
    }.items()
    for word in words.split()
}  # fmt: skip
CONTRASTS = {
    word: meaning
    for meaning, words in {
        "<least": "least smallest minimum minimal minimize lowest fewest", "<most": "greatest largest maximum maximal "
        "maximize highest biggest", "<even": "even", "<odd": "odd", "<sum": "sum", "<difference": "difference",
        "<product": "product", "<quotient": "quotient", "<less": "less fewer", "<more": "more", "<increase": "increase "
        "increases increased increasing", "<decrease": "decrease decreases decreased decreasing",
        "<up": "up upward upwards", "<down": "down downward downwards", "<real": "real", "<imaginary": "imaginary",
        "<magnitude": "magnitude modulus", "<inside": "inside", "<outside": "outside",
        "<before": "before", "<after": "after",
    }.items()
    for word in words.split()
}  # fmt: skip
_PROTECTED = NUMBER_WORDS | CONTRASTS
_WORDS = frozenset((SymbolKind.WORD, SymbolKind.LETTER, SymbolKind.COMMAND))
_OPERATORS = frozenset((SymbolKind.OPERATOR, SymbolKind.SIGN, SymbolKind.OPEN, SymbolKind.CLOSE))
_BETWEEN_FORMULAS = frozenset((SymbolKind.WORD, SymbolKind.BREAK))

@dataclass(frozen=True, slots=True)
class NormalizedText:
    """The normalised text of a question: what two of them are compared by.

    Attributes:
        folded: the text, compatibility forms and case folded.
        tokens: words and numbers in order, as 32-bit hashes.
        numbers: the numbers written in digits, in order.
        spelled: number words and contrasting words by their meaning, in order.
        values: numbers and number words together, in order: `5` and `five` are the same here.
        operators: operators, signs and brackets of mathematics, in order, but for `=`.
        formulas: the same formula by formula, with a dot for each value: `x + 1 = 9` is `.+..`.
        commands: commands of LaTeX that say something, in order.
        exact: hash of every symbol: equal where questions are typed alike.
        bare: hash of letters and digits alone.
    """

    folded: str
    tokens: tuple[int, ...]
    numbers: tuple[str, ...]
    spelled: tuple[str, ...]
    values: tuple[str, ...]
    operators: str
    formulas: tuple[str, ...]
    commands: tuple[str, ...]
    exact: int
    bare: int


def normalize(text: str) -> NormalizedText:
    """A question as it is compared; linear in its length."""
    folded, found = symbols(text)
    words: list[str] = []
    stream: list[str] = []
    numbers: list[str] = []
    values: list[str] = []
    spelled: list[str] = []
    commands: list[str] = []
    operators: list[str] = []
    negative = ""
    for kind, symbol in found:
        if kind is SymbolKind.NUMBER:
            number = f"{negative}{symbol}" if symbol != "0" else symbol
            numbers.append(number)
            values.append(number)
            words.append(number)
            stream.append(f"\x00{symbol}\x00")
        else:
            stream.append(symbol)
            if kind in _OPERATORS:
                operators.append(_operator(symbol))
            elif kind in _WORDS:
                words.append(symbol)
                if kind is SymbolKind.COMMAND:
                    commands.append(symbol)
                elif (meaning := _PROTECTED.get(symbol)) is not None:
                    spelled.append(meaning)
                    if meaning[0] != "<":
                        values.append(meaning)
        negative = "-" if kind is SymbolKind.SIGN else ""
    return NormalizedText(
        folded=folded,
        tokens=tuple(crc32(word.encode()) for word in words),
        numbers=tuple(numbers),
        spelled=tuple(spelled),
        values=tuple(values),
        operators="".join(operators),
        formulas=tuple(_formulas(found)) if operators else (),
        commands=tuple(commands),
        exact=hash64("".join(stream)),
        bare=hash64("".join(filter(str.isalnum, folded))),
    )


def hash64(text: str) -> int:
    """64 bits of a hash that is the same on every machine."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def same_typing(first: NormalizedText, second: NormalizedText) -> bool:
    """Whether the questions differ in case, space and punctuation, or in how mathematics is typed, at most."""
    if first.exact == second.exact:
        return True
    return (
        first.bare == second.bare
        and first.operators == second.operators
        and (_is_stripped(first, second) or _is_stripped(second, first))
    )


def same_numbers(first: NormalizedText, second: NormalizedText) -> bool:
    """Whether the numbers are equal in order, number words counted where both sides have them."""
    if first.values == second.values:
        return contains(_contrasts(first), _contrasts(second))
    return first.numbers == second.numbers and contains(first.spelled, second.spelled)


def same_question(first: NormalizedText, second: NormalizedText, similarity: float) -> bool:
    """Whether the questions are one: typed differently, or at most 1 - `similarity` of the words changed."""
    if same_typing(first, second):
        return True
    return (
        same_numbers(first, second)
        and first.operators == second.operators
        and contains(first.commands, second.commands)
        and _few_changes(first.tokens, second.tokens, similarity)
    )


def overlap(first: Sequence[int], second: Sequence[int]) -> int:
    """How many words the texts share, repeated words counted."""
    return (Counter(first) & Counter(second)).total()


def contains(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether the shorter sequence is the longer one with entries left out."""
    short, long = (first, second) if len(first) <= len(second) else (second, first)
    rest = iter(long)
    return all(entry in rest for entry in short)


def collapsed(text: str) -> str:
    """`text` on one line."""
    return _SPACE.sub(" ", text).strip()


def _contrasts(text: NormalizedText) -> list[str]:
    return [meaning for meaning in text.spelled if meaning[0] == "<"]


def _few_changes(first: Sequence[int], second: Sequence[int], similarity: float) -> bool:
    longest = max(len(first), len(second))
    allowed = int((1 - similarity) * longest + 1e-9)
    return abs(len(first) - len(second)) <= allowed and overlap(first, second) >= longest - allowed


def _operator(sign: str) -> str:
    """What an operator says where words were changed too: not `=`, for `O(0,0)` and `O=(0,0)` are one point."""
    return "" if sign == "=" else sign


def _formulas(found: Sequence[Symbol]) -> Iterator[str]:
    """The form of every formula: its operators and brackets, and a dot for each value."""
    for is_formula, run in groupby(found, lambda symbol: symbol.kind not in _BETWEEN_FORMULAS):
        if is_formula:
            form = "".join(_operator(symbol) if kind in _OPERATORS else "." for kind, symbol in run)
            if form.strip("."):
                yield form


def _is_stripped(full: NormalizedText, stripped: NormalizedText) -> bool:
    """Whether a question is another one that lost all of its punctuation, which may have changed its numbers.

    `It's 1.50, or 2.50, isn't it?` and `its 150 or 250 isnt it` are one; `Take 1.5.` and `Take 15` are two.
    """
    if any(not (sign.isalnum() or sign.isspace()) for sign in stripped.folded):
        return False
    text = full.folded
    marks = sum(not (sign.isalnum() or sign.isspace() or text[place + 1 : place + 2].isdigit())
                for place, sign in enumerate(text))  # fmt: skip
    return marks >= _MARKS_OF_PROSE
