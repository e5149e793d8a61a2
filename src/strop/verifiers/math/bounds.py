"""How large an answer may be: the limits lie far beyond the answers of any data set (checked by `bound_checks`)."""

from __future__ import annotations

from pydantic import PositiveInt

from strop.base.pieces import Settings


class Bounds(Settings):
    r"""How large an answer may be to be parsed.

    Fields:
        characters: its length.
        parentheses: how deep `(`, `[` may nest; the parser's time grows with each level, to seconds at 30.
        braces: how deep `{` may nest.
        digits: of one number.
        exponent: the largest literal exponent; also of the exponent's exponent, so that towers are refused.
        factorial: the largest number before a `!`.
        binomial: the largest number in a binomial coefficient.
        terms: of a sum or product with literal limits.
        expression: the length of a sum or product in plain characters, in prose.
        signs: how many `\pm`; each doubles the answer.
    """

    characters: PositiveInt = 4000
    parentheses: PositiveInt = 16
    braces: PositiveInt = 40
    digits: PositiveInt = 1000
    exponent: PositiveInt = 100_000
    factorial: PositiveInt = 5000
    binomial: PositiveInt = 20_000
    terms: PositiveInt = 100_000
    expression: PositiveInt = 300
    signs: PositiveInt = 4
