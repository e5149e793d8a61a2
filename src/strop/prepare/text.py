"""The content of a question, apart from how it is typed: its words, its numbers and its operators.

Two questions are the same when they differ in case, space or punctuation only, or in a few words; they are different
when their numbers are, however alike the rest. So numbers are read out in one form (`1,250`, `1{,}250` and `1250.0` are
one), and compared in order. Number words (`three`, `twice`), words that turn a question round (`least`, `greatest`) and
operators may be missing on one side, where a word was changed; where each side has one that the other lacks, the
questions differ.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from zlib import crc32

_TOKEN = re.compile(
    r"\\[a-z]+"  # a command of LaTeX
    r"|[\s$(\[{]-(?=\s?\.?[0-9])|[,;:]\s?-(?=\.?[0-9])"  # a minus that may be a sign, with what stands before it
    r"|(?:(?<![0-9],)[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+"
    r"|[^\W\d_]+(?:['’][^\W\d_]+)*"
    r"|[+\-*/^=<>×÷·≤≥≠±√]"
)
_LATEX_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|\\[,!])(?=[0-9]{3})")
_SHORT_FRACTION = re.compile(r"(\\[dt]?frac)([0-9])([0-9])(?![0-9])")  # `\frac12` is one half
_PAUSES = re.compile(r"""(?<![0-9])[\s.,;:!?'"’“”]+|[\s.,;:!?'"’“”]+(?![0-9])""")
_SPACE = re.compile(r"\s+")
_OPERATORS = frozenset("+-*/^=<>×÷·≤≥≠±√")
_SIGN_ALWAYS = frozenset("([{,;:")

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
    }.items()
    for word in words.split()
}  # fmt: skip
_PROTECTED = NUMBER_WORDS | CONTRASTS
# Commands that change how mathematics looks, not what it says.
_LOOKS = frozenset(
    ("left", "right", "big", "bigg", "bigl", "bigr", "displaystyle", "textstyle", "quad", "qquad", "text", "mathrm",
     "mathbf", "mathit", "textbf", "textit")
)  # fmt: skip
_SAME_COMMAND = {"dfrac": "frac", "tfrac": "frac", "leq": "le", "geq": "ge", "neq": "ne", "times": "cdot"}


@dataclass(frozen=True, slots=True)
class NormalizedText:
    """The normalised text of a question: what two of them are compared by.

    Attributes:
        folded: the text, compatibility forms and case folded.
        tokens: words and numbers in order, as 32-bit hashes.
        numbers: the numbers written in digits, in order.
        spelled: number words and contrasting words by their meaning, in order.
        values: numbers and number words together, in order: `5` and `five` are the same here.
        operators: operators between mathematical neighbours, in order.
        commands: commands of LaTeX that say something, in order.
        exact: hash of words, numbers and operators: equal where questions are typed alike.
        loose: the same without operators.
        bare: hash of letters and digits alone.
    """

    folded: str
    tokens: tuple[int, ...]
    numbers: tuple[str, ...]
    spelled: tuple[str, ...]
    values: tuple[str, ...]
    operators: str
    commands: tuple[str, ...]
    exact: int
    loose: int
    bare: int


def normalize(text: str) -> NormalizedText:
    """A question as it is compared; linear in its length."""
    folded = fold(text)
    found = _TOKEN.findall(folded)
    words: list[str] = []
    stream: list[str] = []
    numbers: list[str] = []
    values: list[str] = []
    spelled: list[str] = []
    commands: list[str] = []
    operators: list[str] = []
    negative = False
    last = len(found) - 1
    for place, token in enumerate(found):
        head = token[0]
        if head.isalpha():
            word = token if token.isalpha() else token.replace("'", "").replace("’", "")
            words.append(word)
            stream.append(word)
            meaning = _PROTECTED.get(word)
            if meaning is not None:
                spelled.append(meaning)
                if meaning[0] != "<":
                    values.append(meaning)
        elif token[-1].isdigit():
            number = canonical_number(token)
            number, negative = (f"-{number}" if negative and number != "0" else number), False
            numbers.append(number)
            values.append(number)
            words.append(number)
            stream.append(f"\x00{number}\x00")
        elif head == "\\":
            name = token[1:]
            stream.append(name)
            if name not in _LOOKS:
                name = _SAME_COMMAND.get(name, name)
                words.append(name)
                commands.append(name)
        else:
            before = found[place - 1] if place else ""
            after = found[place + 1] if place < last else ""
            if token[-1] == "-" and _is_sign(token, before, after):
                negative = after[:1].isdigit() or after[:1] == "."
            elif _is_operator(token[-1], before, after):
                operators.append(token[-1])
    signs = "".join(operators)
    letters = "".join(stream)
    return NormalizedText(
        folded=folded,
        tokens=tuple(crc32(word.encode()) for word in words),
        numbers=tuple(numbers),
        spelled=tuple(spelled),
        values=tuple(values),
        operators=signs,
        commands=tuple(commands),
        exact=hash64(f"{letters}\x01{signs}"),
        loose=hash64(letters),
        bare=hash64("".join(filter(str.isalnum, folded))),
    )


def fold(text: str) -> str:
    """`text` in one case, compatibility characters (full width, superscripts …) and minus signs made plain."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")
    return _SHORT_FRACTION.sub(r"\1 \2 \3", _LATEX_THOUSANDS.sub(",", plain.casefold()))


def canonical_number(text: str) -> str:
    """`1,250.50` → `1250.5`, `007` → `7`, `.5` → `0.5`, `3.0` → `3`."""
    whole, _, fraction = text.replace(",", "").partition(".")
    whole = whole.lstrip("0") or "0"
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def hash64(text: str) -> int:
    """64 bits of a hash that is the same on every machine."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def same_typing(first: NormalizedText, second: NormalizedText) -> bool:
    """Whether the questions differ in case, space and punctuation at most."""
    if first.loose == second.loose:
        return contains(first.operators, second.operators)
    if first.bare != second.bare:
        return False
    return (
        _without_pauses(first.folded) == _without_pauses(second.folded)
        or _is_stripped(first, second)
        or _is_stripped(second, first)
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
        and contains(first.operators, second.operators)
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


def _without_pauses(folded: str) -> str:
    """The text without space and sentence punctuation, but for those between digits: signs and brackets stay."""
    return _PAUSES.sub("", folded)


def _contrasts(text: NormalizedText) -> list[str]:
    return [meaning for meaning in text.spelled if meaning[0] == "<"]


def _few_changes(first: Sequence[int], second: Sequence[int], similarity: float) -> bool:
    longest = max(len(first), len(second))
    allowed = int((1 - similarity) * longest + 1e-9)
    return abs(len(first) - len(second)) <= allowed and overlap(first, second) >= longest - allowed


def _is_sign(token: str, before: str, after: str) -> bool:
    """Whether a minus makes the number after it negative, rather than subtract it or join words."""
    if len(token) == 1:  # nothing before it but a token: after an operator it is a sign, else it joins or subtracts
        return not before or before[-1] in _OPERATORS
    if token[0] in _SIGN_ALWAYS:
        return True
    if not before or before[-1] in _OPERATORS or before[0] == "\\":
        return True
    return len(before) > 1 and before[0].isalpha()


def _is_operator(token: str, before: str, after: str) -> bool:
    """Whether a sign joins mathematics: a hyphen, an emphasis or `and/or` stands between words."""
    left, right = _is_mathematical(before), _is_mathematical(after)
    return (left and right) if token in "-*" else (left or right)


def _is_mathematical(token: str) -> bool:
    return bool(token) and (len(token) == 1 or not token[0].isalpha())


def _is_stripped(full: NormalizedText, stripped: NormalizedText) -> bool:
    """Whether a question is another one with some punctuation characters left out everywhere.

    `pays 1.50.` and `pays 150` are one, `pays 1.5!` and `pays 15!` are two: a character that only ever stood before
    digits may have been left out to make another number.
    """
    gone = {sign for sign in set(full.folded) - set(stripped.folded) if not sign.isalnum() and not sign.isspace()}
    if not gone:
        return False
    text = full.folded
    sentence = any(sign in gone and not text[place + 1 : place + 2].isdigit() for place, sign in enumerate(text))
    left = "".join(sign for sign in text if sign not in gone and not sign.isspace())
    return sentence and left == "".join(stripped.folded.split())
