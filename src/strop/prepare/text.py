"""How questions are compared: by their words and numbers, whatever their case, spacing and punctuation.

`normalize` reads numbers in one form (`1,250`, `1{,}250` and `1250.0` are one) and common LaTeX as plain signs
(`3\\cdot5` is `3 * 5`). Two questions are typed alike if they have the same words, numbers and mathematical signs. They
are alike if their numbers are equal in order and only a few words differ.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from zlib import crc32

_SPACE = re.compile(r"\s+")
_LATEX_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|\\[,!])(?=[0-9]{3})")
_NUMBER = r"(?:(?<![0-9],)[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+"
_OPERAND = r"(?=\s*(?:[0-9(\\|-]|[a-z](?![a-z])))"  # what follows a sign that is no hyphen and no emphasis
_TOKEN = re.compile(
    rf"(?P<number>{_NUMBER})|(?P<word>\\[a-z]+|[^\W\d_]+(?:['’][^\W\d_]+)*)"
    rf"|(?P<sign>[-*/]{_OPERAND}|(?<=[0-9)])!(?!\s*$)|[^\w\s.,;:?!\"'’`$&~\\*/-])"
)
_SIGNS = {
    "cdot": "*", "times": "*", "div": "/", "leq": "≤", "le": "≤", "geq": "≥", "ge": "≥", "neq": "≠", "ne": "≠",
    "lt": "<", "gt": ">", "mid": "|", "vert": "|", "lvert": "|", "rvert": "|", "circ": "°",
}  # fmt: skip
_CHARACTERS = str.maketrans("×·÷−", "**/-")
_FORMS = (
    # Commands that change how mathematics looks, not what it says.
    (re.compile(r"\\(?:left|right|big+[lr]?|displaystyle|textstyle|q?quad|limits|text(?:bf|it)?|mbox|math(?:rm|bf|it)"
                r"|operatorname)(?![a-z])|\\[^a-z0-9{}%|]"), " "),
    (re.compile(r"\\([{}%|])"), r"\1"),
    (re.compile(r"\\([a-z]+)(?![a-z])"), lambda found: f" {_SIGNS.get(found[1], found[0])} "),
    (re.compile(r"\\[dt]?frac\s*([0-9])\s*([0-9])(?![0-9])"), r" \1/\2 "),
    (re.compile(r"\\[dt]?frac\s*\{\s*(\w+)\s*\}\s*\{\s*(\w+)\s*\}"), r" \1/\2 "),
    (re.compile(r"\^\s*(?:\{\s*)?°\s*\}?"), "°"),
    (re.compile(r"([\^_])\s*\{\s*(\w+)\s*\}"), r"\1\2"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NormalizedText:
    """The normalised text of a question.

    Attributes:
        tokens: words and numbers in order, as 32-bit hashes.
        numbers: the numbers in order.
        typing: hash of words, numbers and signs: equal where questions are typed alike.
    """

    tokens: tuple[int, ...]
    numbers: tuple[str, ...]
    typing: int


def fold(text: str) -> str:
    """`text` in one case, compatibility characters (full width, superscripts …) and minus signs made plain."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")
    return _LATEX_THOUSANDS.sub(",", plain.casefold())


def normalize(text: str) -> NormalizedText:
    """A question as it is compared; linear in its length."""
    plain = fold(text).translate(_CHARACTERS)
    if "\\" in plain or "^" in plain:
        for pattern, replacement in _FORMS:
            plain = pattern.sub(replacement, plain)
    stream: list[str] = []
    words: list[str] = []
    numbers: list[str] = []
    for match in _TOKEN.finditer(plain):
        written = match[0]
        if match.lastgroup == "number":
            written = canonical_number(written)
            numbers.append(written)
        if match.lastgroup != "sign":
            words.append(written)
        stream.append(written)
    tokens = tuple(crc32(word.encode("utf-8", "surrogatepass")) for word in words)
    return NormalizedText(tokens, tuple(numbers), hash64(" ".join(stream)))


def canonical_number(text: str) -> str:
    """`1,250.50` → `1250.5`, `007` → `7`, `.5` → `0.5`, `3.0` → `3`."""
    whole, _, fraction = text.replace(",", "").partition(".")
    whole = whole.lstrip("0") or "0"
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def hash64(text: str) -> int:
    """64 bits of a hash that is the same on every machine."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def alike(first: NormalizedText, second: NormalizedText, similarity: float) -> bool:
    """Whether the numbers are equal in order, and at most 1 - `similarity` of the longer question's words differ."""
    longest = max(len(first.tokens), len(second.tokens))
    allowed = int((1 - similarity) * longest + 1e-9)
    return (
        first.numbers == second.numbers
        and abs(len(first.tokens) - len(second.tokens)) <= allowed
        and overlap(first.tokens, second.tokens) >= longest - allowed
    )


def overlap(first: Sequence[int], second: Sequence[int]) -> int:
    """How many words the texts share, repeated words counted."""
    return (Counter(first) & Counter(second)).total()


def collapsed(text: str) -> str:
    """`text` on one line."""
    return _SPACE.sub(" ", text).strip()
