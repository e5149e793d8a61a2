"""Decimals: how many digits one states, and whether a constant agrees with it to these digits."""

from __future__ import annotations

from fractions import Fraction

from strop_verify.math import expressions as ex
from strop_verify.math.evaluate import Undefined, Vague, interval, rational, value
from strop_verify.math.expressions import Node, TooMuch


def approximates(shown: Node, meant: Node) -> bool:
    """Whether a constant is another one, rounded to the digits that it states."""
    at = rational(shown)
    digits = stated_digits(shown) or (len(str(abs(at))) if at is not None and at.denominator == 1 else 0)
    return at is not None and at != 0 and digits > 0 and rounds_to(meant, at, digits)


def stated_digits(node: Node) -> int | None:
    """How many digits a decimal states: `1.60`, `-0.5`, `1.6 \\times 10^{-19}`; None for anything else."""
    factors = [part for part in (node.args if node.op == "product" else (node,)) if part != ex.MINUS_ONE]
    decimals = [part for part in factors if part.op == "decimal"]
    tens = [
        part for part in factors if part.op == "power" and part.args[0] == ex.number(10) and part.args[1].op == "number"
    ]
    if len(decimals) != 1 or len(tens) > 1 or len(decimals) + len(tens) != len(factors):
        return None
    return len(decimals[0].value.replace(".", "").lstrip("0"))


def rounds_to(node: Node, at: Fraction, digits: int) -> bool:
    """Whether a constant is a decimal when it is rounded or, where it is no decimal itself, cut off to some digits."""
    size = (
        len(str(int(abs(at)))) if abs(at) >= 1 else 1 - len(str(int(1 / abs(at)) - (1 / abs(at) == int(1 / abs(at)))))
    )
    half = Fraction(10) ** (size - digits) / 2
    most = half if stated_digits(node) is not None else 2 * half
    try:  # how much larger the constant is, in the direction away from 0
        gap = value(ex.times(ex.number(1 if at > 0 else -1), ex.plus(node, ex.number(-at))), {}, 200)
    except (Undefined, Vague, TooMuch):
        return False
    if isinstance(gap, Fraction):
        return -half <= gap <= most and (gap + at).denominator > 1  # an integer is not approximated
    return bool(gap.imag.a == gap.imag.b == 0 and gap.real.b <= interval(most).a and gap.real.a >= interval(-half).b)
