"""Values of expressions at a point: exact rationals where they are, else intervals that are sure to hold the value.

Two values are proved different where they are two rationals, or where their intervals have no point in common.
Intervals are mpmath's: real ones (`a`, `b` are the ends), or rectangles in the complex plane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial, reduce
from hashlib import blake2b
from typing import Any

from mpmath import libmp
from mpmath.ctx_iv import MPIntervalContext

from strop_verify.math.expressions import DEFINITIONS, E, Effort, Node, TooMuch

MOST_BITS = 400_000
_CONTEXT: Any = MPIntervalContext()
_COMPLEX = _CONTEXT.mpc
Value = Any  # a Fraction, or an interval
Point = Mapping[str, Fraction]


class Undefined(Exception):
    """An expression has no value at a point, or none that is defined here."""


class Vague(Exception):
    """The precision is too low to decide what the value depends on."""


def value(node: Node, point: Point, precision: int) -> Value:
    """The value of an expression where its names have those of a point; intervals have a precision in bits.

    Raises `Undefined` where there is none (a pole, an integral …), `Vague` where more bits could decide, or `TooMuch`.
    """
    if _CONTEXT.prec != precision:  # to set it takes as long as to evaluate a node
        _CONTEXT.prec = precision
    return _value(node, point)


def _value(node: Node, point: Point) -> Value:
    op, cost = node.op, 1 if _CONTEXT.prec < 500 else _CONTEXT.prec // 250
    if (function := _FUNCTIONS.get(op)) is not None:
        Effort.spend(cost + 3)
        if op == "power" and node.args[0] == E:
            return _exp(_value(node.args[1], point))
        return function(*[_value(arg, point) for arg in node.args])
    Effort.spend(cost)
    if op == "number":
        return node.value
    if op == "decimal":
        return Fraction(node.value)
    if op == "name" and node.value in point:
        return point[node.value]
    if op == "constant" and node.value != "inf":
        return _COMPLEX(0, 1) if node.value == "i" else getattr(_CONTEXT, node.value) * _CONTEXT.one
    if op in DEFINITIONS:
        return _value(DEFINITIONS[op](*node.args), point)
    if op == "derivative" or op.startswith("apply "):
        return _unknown(node, point)
    raise Undefined


def interval(given: Value) -> Value:
    """A value as an interval."""
    if type(given) is not Fraction:
        return given
    top, bottom = given.numerator, given.denominator
    return _CONTEXT.make_mpf(tuple(libmp.from_rational(top, bottom, _CONTEXT.prec, way) for way in "fc"))


def is_real(given: Value) -> bool:
    """Whether a value is real."""
    return not isinstance(given, _COMPLEX)


def _tidy(given: Value) -> Value:
    """A rectangle without height as a real interval."""
    return given.real if isinstance(given, _COMPLEX) and given.imag.a == given.imag.b == 0 else given


def sign(given: Value) -> int:
    """The sign of a real value; raises `Vague` where its interval has 0 in it, `Undefined` where it is not real."""
    if not is_real(given):
        raise Undefined
    if type(given) is Fraction:
        return (given.numerator > 0) - (given.numerator < 0)
    low, high = map(libmp.mpf_sign, given._mpi_)
    if low <= 0 <= high:
        raise Vague
    return low or high


def rational(node: Node, precision: int = 200) -> Fraction | None:
    """The value of an expression without names if it is known to be rational, else None."""
    if node.op in ("number", "name"):
        return node.value if node.op == "number" else None
    try:
        found = value(node, {}, precision)
    except (Undefined, Vague, TooMuch):
        return None
    return found if type(found) is Fraction else None


def sign_of(node: Node, precision: int = 200) -> int | None:
    """The sign of an expression without names; None where it is not known."""
    try:
        return sign(value(node, {}, precision))
    except (Undefined, Vague, TooMuch):
        return None


def has_zero(given: Value) -> bool:
    """Whether 0 is the value, or lies in its interval."""
    if type(given) is Fraction:
        return not given
    return all(libmp.mpf_sign(low) <= 0 <= libmp.mpf_sign(high) for low, high in given._mpci_)


def disjoint(first: Value, second: Value) -> bool:
    """Whether two values are proved to be different."""
    if _both_exact(first, second):
        return bool(first != second)
    parts = zip(interval(first)._mpci_, interval(second)._mpci_, strict=True)
    return any(libmp.mpi_lt(one, other) or libmp.mpi_lt(other, one) for one, other in parts)


def below(given: Value, bits: int) -> bool:
    """Whether a value is proved to be less than 2^-bits in its parts."""
    limit = _CONTEXT.mpf(2) ** -bits
    return all(part.b < limit.a and part.a > -limit.a for part in (interval(given).real, interval(given).imag))


def _both_exact(first: Value, second: Value) -> bool:
    return type(first) is type(second) is Fraction  # isinstance takes long where the answer is no


def _bounded(given: Fraction) -> Fraction:
    if given.numerator.bit_length() + given.denominator.bit_length() > MOST_BITS:
        raise TooMuch("too large a number")
    return given


def _add(first: Value, second: Value) -> Value:
    return first + second if _both_exact(first, second) else _tidy(interval(first) + interval(second))


def _multiply(first: Value, second: Value) -> Value:
    if _both_exact(first, second):
        return _bounded(first * second)
    none = any(type(each) is Fraction and not each for each in (first, second))
    return Fraction(0) if none else _tidy(interval(first) * interval(second))


def _divide(top: Value, bottom: Value) -> Value:
    if has_zero(bottom):
        raise Undefined if type(bottom) is Fraction else Vague
    return top / bottom if _both_exact(top, bottom) else _tidy(interval(top) / interval(bottom))


def _power(base: Value, exponent: Value) -> Value:
    """A power; of a negative number to a fraction with an odd denominator the real one, else the principal value."""
    if type(exponent) is not Fraction or (exponent.denominator > 1 and not is_real(base)):
        vanishes = base == 0 and is_real(exponent) and sign(exponent) > 0
        return Fraction(0) if vanishes else _exp(_multiply(exponent, _ln(base)))
    if exponent.denominator == 1:
        return _whole_power(base, exponent.numerator)
    root = exact_root(base, exponent.denominator) if type(base) is Fraction else None
    if root is not None:
        return _whole_power(root, exponent.numerator)
    if sign(base) < 0:
        root = _power(_multiply(Fraction(-1), base), exponent)
        if exponent.denominator % 2:
            return root if exponent.numerator % 2 == 0 else _multiply(Fraction(-1), root)
        unit = _COMPLEX(0, 1)
        turn = unit if exponent.denominator == 2 else _exp(unit * _CONTEXT.pi / exponent.denominator)
        return _multiply(root, _whole_power(turn, exponent.numerator))
    if exponent.denominator == 2:
        return _whole_power(_CONTEXT.sqrt(interval(base)), exponent.numerator)
    return _exp(_multiply(exponent, _ln(base)))


def _whole_power(base: Value, exponent: int) -> Value:
    if exponent < 0:
        return _divide(Fraction(1), _whole_power(base, -exponent))
    if type(base) is not Fraction:
        if exponent.bit_length() > 40:
            raise TooMuch("too large a power")
        return _tidy(base**exponent)
    if abs(base.numerator) == base.denominator:
        return base ** (exponent % 2)
    if (base.numerator.bit_length() + base.denominator.bit_length()) * exponent > MOST_BITS:
        raise TooMuch("too large a power")
    return base**exponent


def exact_root(base: Fraction, degree: int) -> Fraction | None:
    """The root where it is rational."""
    if (base < 0 and degree % 2 == 0) or degree > 64:
        return None
    roots = [_integer_root(part, degree) for part in (abs(base.numerator), base.denominator)]
    found = Fraction(*roots)
    return (found if base >= 0 else -found) if found**degree == abs(base) else None


def _integer_root(number: int, degree: int) -> int:
    if number < 2 or degree == 2:
        return math.isqrt(number)
    root = 1 << -(-number.bit_length() // degree)
    while (better := ((degree - 1) * root + number // root ** (degree - 1)) // degree) < root:
        root = better
    return root


def _exp(given: Value) -> Value:
    if given == 0:
        return Fraction(1)
    exponent = interval(given)
    if abs(exponent.real).b > 2**40:
        raise TooMuch("too large an exponential")
    return _tidy(_CONTEXT.exp(exponent))


def _ln(given: Value) -> Value:
    """The natural logarithm, its principal value."""
    if given == 1:
        return Fraction(0)
    if has_zero(given):
        raise Undefined if type(given) is Fraction else Vague
    if is_real(given) and sign(given) < 0:
        return _COMPLEX(_CONTEXT.ln(-interval(given)), _CONTEXT.pi)
    if not is_real(given) and given.imag.a <= 0 <= given.imag.b and given.real.a < 0:
        raise Vague  # across the cut
    return _CONTEXT.ln(interval(given))


def _log(given: Value, base: Value = Fraction(10)) -> Value:
    return _divide(_ln(given), _ln(base))


def _wave(function: Callable[[Any], Any], at_zero: int, given: Value) -> Value:
    if abs(interval(given).real).b > 2**400:
        raise TooMuch("too large an angle")
    return Fraction(at_zero) if given == 0 else _tidy(function(interval(given)))


_sin, _cos = partial(_wave, _CONTEXT.sin, 0), partial(_wave, _CONTEXT.cos, 1)


def _arctan(given: Value) -> Value:
    if not is_real(given):
        raise Undefined
    return Fraction(0) if given == 0 else _CONTEXT.make_mpf(libmp.libmpi.mpi_atan(interval(given)._mpi_, _CONTEXT.prec))


def _arcsin(given: Value) -> Value:
    if given in (1, -1):
        return _multiply(given, _CONTEXT.pi / 2)
    rest = _add(Fraction(1), _multiply(Fraction(-1), _multiply(given, given)))
    if sign(rest) < 0:
        raise Undefined
    return _arctan(_divide(given, _power(rest, Fraction(1, 2))))


def _floor(given: Value) -> Value:
    if type(given) is Fraction:
        return Fraction(math.floor(given))
    if not is_real(given):
        raise Undefined
    low, high = (libmp.to_int(libmp.mpf_floor(end)) for end in given._mpi_)
    if low != high:
        raise Vague
    return Fraction(low)


def _integers(*values: Value) -> list[int]:
    """Values as integers; raises `Undefined` if one is not an integer."""
    if any(type(each) is not Fraction or each.denominator != 1 for each in values):
        raise Undefined
    return [each.numerator for each in values]


def _factorial(given: Value) -> Value:
    if type(given) is Fraction and given.denominator == 2 and -1 < given < 1000:  # √π (2n)! / (4^n n!), n - 1/2
        count = (given.numerator + 1) // 2
        share = Fraction(math.factorial(2 * count), 4**count * math.factorial(count))
        return _multiply(share, _CONTEXT.sqrt(_CONTEXT.pi))
    (count,) = _integers(given)
    if not 0 <= count <= 5000:
        raise Undefined if count < 0 else TooMuch("too large a factorial")
    return Fraction(math.factorial(count))


def _binomial(top: Value, bottom: Value) -> Value:
    above, under = _integers(top, bottom)
    if above < 0 or under < 0 or above > 20_000:
        raise Undefined if above <= 20_000 else TooMuch("too large a binomial coefficient")
    return Fraction(math.comb(above, under))


def _largest(*values: Value) -> Value:
    best = values[0]
    for each in values[1:]:
        best = each if sign(_add(each, _multiply(Fraction(-1), best))) > 0 else best
    return best


def _modulo(first: Value, second: Value) -> Value:
    if not _both_exact(first, second) or second == 0:
        raise Undefined
    return first % second


def _unknown(node: Node, point: Point) -> Value:
    """A value for a function or derivative of which nothing is known: another one for other arguments."""
    if node.op == "derivative" and node.args[0].op not in ("name", "derivative") and "apply " not in node.args[0].op:
        raise Undefined  # d/dx x², of which something is known
    args = [] if node.op == "derivative" else [_value(arg, point) for arg in node.args]
    if any(type(arg) is not Fraction for arg in args):
        raise Undefined
    said = f"{node} {args}" if node.op == "derivative" else f"{node.op} {args}"
    return Fraction(int.from_bytes(blake2b(said.encode(), digest_size=3).digest(), "big") + 1, 997)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sum": lambda *args: reduce(_add, args),
    "product": lambda *args: reduce(_multiply, args),
    "power": _power, "exp": _exp, "ln": _ln, "log": _log, "sin": _sin, "cos": _cos, "arctan": _arctan,
    "arcsin": _arcsin, "abs": abs, "floor": _floor, "factorial": _factorial, "binom": _binomial, "max": _largest,
    "mod": _modulo, "gcd": lambda *args: Fraction(math.gcd(*_integers(*args))),
    "lcm": lambda *args: Fraction(math.lcm(*_integers(*args))),
}  # fmt: skip
