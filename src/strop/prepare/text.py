"""The content of a question, apart from how it is typed: its words, its numbers and its mathematics (`symbols`).

Two questions are the same when they differ in case, space or punctuation only, or in a few words; they are different
when their numbers are, or their operators, signs and brackets, however alike the rest. So numbers are read out in one
form (`1,250`, `1{,}250` and `1250.0` are one), and compared in order. Number words (`three`, `twice`), words that turn
a question round (`least`, `greatest`) and commands of LaTeX may be missing on one side, where a word was changed; where
each side has one that the other lacks, the questions differ.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from zlib import crc32

from strop.prepare.symbols import Symbol, SymbolKind, symbols

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
