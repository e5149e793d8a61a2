"""What is refused before it is computed: an answer can be short and still name more work than any machine can do.

The limits lie far beyond the answers of any data set. The text is bounded before it is read, its tree before anything
is computed; after that every step counts its own work, so that no answer can make a verdict slow.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from strop_verify.math.expressions import Node, TooMuch

_DIGITS = re.compile(r"\d+")
_SIGNS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])|[±∓]")


@dataclass(frozen=True)
class Bounds:
    r"""How large an answer may be.

    Attributes:
        characters: its length.
        parentheses: how deep `(`, `[` may nest.
        braces: how deep `{` may nest.
        digits: of one number.
        exponent: the largest literal exponent; a power of numbers may have four times as many bits.
        factorial: the largest number before a `!`.
        binomial: the largest number in a binomial coefficient.
        members: of a list, set, matrix or sum.
        signs: how many `\pm`; each doubles the answer.
    """

    characters: int = 4000
    parentheses: int = 16
    braces: int = 24
    digits: int = 1000
    exponent: int = 100_000
    factorial: int = 3000
    binomial: int = 20_000
    members: int = 64
    signs: int = 4

    def refuse(self, text: str) -> str | None:
        """Which bound a text breaks before it is read, or None."""
        if len(text) > self.characters:
            return f"beyond the bounds: {len(text)} characters"
        round_depth = brace_depth = 0
        for character in text:
            round_depth = max(round_depth + (character in "([") - (character in ")]"), 0)
            brace_depth = max(brace_depth + (character == "{") - (character == "}"), 0)
            if round_depth > self.parentheses:
                return f"beyond the bounds: more than {self.parentheses} nested parentheses"
            if brace_depth > self.braces:
                return f"beyond the bounds: more than {self.braces} nested braces"
        longest = max(map(len, _DIGITS.findall(text)), default=0)
        if longest > self.digits:
            return f"beyond the bounds: a number of {longest} digits"
        return "beyond the bounds: too many ±" if len(_SIGNS.findall(text)) > self.signs else None

    def refuse_answer(self, answer: Node) -> str | None:
        """Which bound an answer breaks after it was read, or None."""
        try:
            self._bits(answer)
        except TooMuch as limit:
            return f"beyond the bounds: {limit}"
        except RecursionError:
            return "beyond the bounds: too deeply nested"
        return None

    def _bits(self, node: Node) -> float:
        """An upper guess of log2 of the absolute value of what a tree names, at least 0; raises `TooMuch`."""
        if node.op in ("number", "decimal"):
            exact = abs(Fraction(node.value))
            return max(math.log2(exact.numerator) - math.log2(exact.denominator), 0.0) if exact else 0.0
        if not node.args:
            return 2.0 if node.op == "constant" and node.value != "inf" else 0.0
        if len(node.args) > self.members:
            raise TooMuch(f"{len(node.args)} members")
        bits = list(map(self._bits, node.args))
        largest = 2.0 ** min(max(bits), 64.0)
        if node.op == "power":
            exponent = node.args[1]
            small = Fraction(exponent.value) if exponent.op == "number" else None
            raised = float(abs(small)) if small is not None and abs(small) < 2**64 else 2.0 ** min(bits[1], 64.0)
            if max(raised, bits[0] * raised / 4) > self.exponent:
                raise TooMuch("too large an exponent")
            return 0.0 if small is not None and small < 0 else bits[0] * raised
        if node.op == "factorial":
            if largest > self.factorial + 0.5:
                raise TooMuch("too large a factorial")
            return math.lgamma(largest + 1) / math.log(2)
        if node.op == "binom":
            if largest > self.binomial + 0.5:
                raise TooMuch("too large a binomial coefficient")
            return largest
        if node.op == "sum":
            return max(bits) + math.log2(len(bits))
        return sum(bits) if node.op == "product" else max(bits)
