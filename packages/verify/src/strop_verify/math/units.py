r"""What a number counts or is measured in: known units with dimension and factor, multiples in words, counted things.

A word that is not in these tables is part of the answer: `12 lakh` is a multiple, `5 km north` a unit and a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from strop_verify.math.expressions import END, Token
from strop_verify.words import WORDS, by_word

_PREFIXES, MULTIPLES, _POWERS, _RAISED = map(by_word, ("prefixes", "multiples", "powers", "raised"))
CURRENCY = ("$", "€", "£", "¥", "₹", "₽")
_PER = WORDS["per"].split()
_BOUNDING = re.compile(WORDS["bounding"])


class Unit(NamedTuple):
    """A unit: its factor, and the powers of the base units in it; a plain count has none of these."""

    factor: Fraction
    dimension: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return " ".join((str(self.factor), *(f"{base}^{power}" for base, power in self.dimension)))

    def times(self, other: Unit, exponent: int = 1) -> Unit:
        """The product with a power of another unit."""
        powers = dict(self.dimension)
        for base, power in other.dimension:
            powers[base] = powers.get(base, 0) + power * exponent
        left = sorted((base, power) for base, power in powers.items() if power)
        return Unit(self.factor * other.factor**exponent, tuple(left))


@cache
def table() -> dict[str, Unit]:
    """Every known unit by its names."""
    known: dict[str, Unit] = {}
    for line in re.split("; |\n", WORDS["units"].strip()):
        definition, _, names = line.partition(": " if ": " in line else ":")
        factor, *parts = definition.split()
        unit = Unit(Fraction(factor))
        for part in parts:
            text, _, exponent = part.partition("^")
            unit = unit.times(known.get(text) or Unit(Fraction(1), ((text[1:], 1),)), int(exponent or 1))
        known |= dict.fromkeys(names.split(), unit)
    bases = {known[base] for base in WORDS["prefixed"].split()}
    prefixed = [name for name, unit in known.items() if unit in bases]
    for prefix, power in _PREFIXES.items():
        larger = {unit: unit._replace(factor=unit.factor * Fraction(10) ** power) for unit in bases}
        for base in prefixed:
            if not prefix.isascii() or (len(prefix) > 3) == (len(base) > 3 and base.islower()):
                known.setdefault(prefix + base, larger[known[base]])
    return known


def known_unit(text: str) -> Unit | None:
    """The unit that a word names; longer words in any case, and with their accents."""
    return table().get(text) or (table().get(unaccented(text)) if len(text) > 2 else None)


def unaccented(text: str) -> str:
    """A word in small letters, without accents where they are Latin."""
    if text.isascii():
        return text.lower()
    bare = re.sub("(?<=[a-z])[\u0300-\u036f]", "", unicodedata.normalize("NFD", text.lower()))
    return unicodedata.normalize("NFC", bare)


def read_unit(tokens: Sequence[Token]) -> Unit | None:
    r"""The unit that all of some tokens are: `\text{ km}/\text{h}`, `square meters`, `cm^2`; None for anything else."""
    unit, sign, raised, place, found = Unit(Fraction(1)), 1, 1, 0, False
    tokens = [each for each, after in pairwise((*tokens, END)) if each.text != "-" or after.kind == "number"]
    while place < len(tokens):
        text, two = tokens[place].text, "".join(token.text for token in tokens[place : place + 2])
        place += 1
        power = next((each for each in _POWERS if text.lower().startswith(each) and known_unit(text[len(each) :])), "")
        if power and known_unit(text) is None and text not in _RAISED:  # 平方厘米, Quadratmeter
            raised, text = _POWERS[power], text[len(power) :]
        if text == "." and raised > 1:  # кв. см
            continue
        if text in ("*", "×", "-", ".", *_PER):
            if (not found and not text.isalpha()) or place == len(tokens):
                return None
            sign = -1 if text in _PER else sign
        elif text.lower() in _POWERS:
            raised, found = _POWERS[text.lower()], found or place == len(tokens)
        else:
            split = known_unit(text) is None or text == "°" or two.removeprefix(text) == "Omega"
            compound = place < len(tokens) and split and two in table()  # light years
            place += compound
            base = known_unit(two if compound else text)
            if base is None or tokens[place - 1].kind == "number":
                return None
            exponent, place = _exponent(tokens, place)
            unit, found, raised = unit.times(base, sign * raised * exponent), True, 1
    return unit if found else None


def _exponent(tokens: Sequence[Token], place: int) -> tuple[int, int]:
    """The exponent after a unit, and where it ends."""
    texts = [token.text for token in tokens[place : place + 5]]
    if texts and (power := _RAISED.get(unaccented(texts[0]))):
        return power, place + 1
    if texts and texts[0] in ("2", "3") and not tokens[place].space:
        return int(texts[0]), place + 1
    if texts[:2] == ["^", "{"] and "}" in texts:
        digits, end = "".join(texts[2 : texts.index("}")]), place + texts.index("}") + 1
    else:
        digits, end = "".join(texts[1:2]) if texts[:1] == ["^"] else "", place + 2
    return (int(digits), end) if digits.lstrip("-").isdigit() and len(digits) < 3 else (1, place)


def counted(words: Sequence[str]) -> str | None:
    """The things that words name, one noun, also after a determiner: `apples`, `distinct solutions`; else None."""
    determined = len(words) == 2 and words[0] in WORDS["determiners"].split()
    noun = words[-1] if len(words) == 1 or determined else ""
    if noun and not any(unicodedata.name(each, "").startswith("LATIN") for each in noun if each.isalpha()):
        bounded = _BOUNDING.search(noun) or noun in MULTIPLES or any(map(str.isdecimal, noun))
        return None if bounded or not noun.isalpha() else noun  # 个, способов
    if not noun.isalpha() or noun.removesuffix("s") in MULTIPLES or noun in WORDS["uncounted"].split():
        return None
    plural = len(noun) > 3 and noun.endswith("s") and not noun.endswith(("ss", "us", "is"))
    return noun if plural or determined or noun in WORDS["counted"].split() else None
