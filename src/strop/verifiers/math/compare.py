"""When two parsed answers are the same: first by sampling, which is quick, then by math-verify's rules."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

POINTS = 8
ENOUGH = 3
MOST_NAMES = 6
EXACT = 1e-40  # a relative gap above it is no error of rounding: sympy works to 100 digits to tell it from 0
AGREE, DIFFER = 1e-9, 1e-4  # with decimals: below the one equal, above the other not


class Rules(NamedTuple):
    """Settings of the comparison, as math-verify names them."""

    precision: int = 6
    strict: bool = True
    allow_set_relation_comp: bool = False


def same(gold: Any, given: Any, rules: Rules) -> bool:
    """Whether two parsed answers are equal; raises what sympy raises."""
    from math_verify import verify

    gold, given = _one_unit(*_one_naming(gold, given))
    sampled = sampling(gold, given) if rules.strict else None
    if sampled is not None:
        return sampled
    if (
        verify(
            gold,
            given,
            float_rounding=rules.precision,
            strict=rules.strict,
            allow_set_relation_comp=rules.allow_set_relation_comp,
            timeout_seconds=None,
            raise_on_error=True,
        )
    ):
        return True
    return same_inequalities(gold, given)


def _one_naming(gold: Any, given: Any) -> tuple[Any, Any]:
    """A name is the same on both sides; math-verify assumes of it what the text around it suggests."""
    from sympy import Expr

    if not isinstance(gold, Expr) or not isinstance(given, Expr):
        return gold, given
    known = {str(name): name for name in gold.free_symbols}
    changed = {name: known[str(name)] for name in given.free_symbols if known.get(str(name), name) != name}
    return gold, given.subs(changed) if changed else given


def _one_unit(gold: Any, given: Any) -> tuple[Any, Any]:
    """Where one side knows i as the imaginary unit, the name i is it on both; math-verify guesses for each alone."""
    from sympy import Expr, I

    if not isinstance(gold, Expr) or not isinstance(given, Expr):
        return gold, given
    units = {name for name in gold.free_symbols | given.free_symbols if str(name) == "i"}
    if not (gold.has(I) or given.has(I) or any(name.is_real is False for name in units)):
        return gold, given
    unit = dict.fromkeys(units, I)
    return gold.subs(unit), given.subs(unit)


def same_inequalities(gold: Any, given: Any) -> bool:
    """Whether inequalities in one and the same name have the same solutions: `|x| < 3` and `-3 < x < 3`."""
    from sympy import And, S, Symbol

    parts = [_inequalities(side) for side in (gold, given)]
    names = {name for members in parts for member in members for name in member.free_symbols}
    if not all(parts) or len(names) != 1:
        return False
    plain = Symbol(str(names.pop()), real=True)
    sets = [And(*(member.subs(dict.fromkeys(member.free_symbols, plain)) for member in members)) for members in parts]
    try:
        first, second = (each.as_set() if each not in (S.true, S.false) else each for each in sets)
    except (NotImplementedError, TypeError, ValueError):  # sympy cannot solve them
        return False
    return bool(first == second)


def _inequalities(side: Any) -> list[Any]:
    """The inequalities that an answer is made of, all of which hold; none where it is anything else."""
    from latex2sympy2_extended.logic import And
    from sympy import Eq, FiniteSet
    from sympy.core.relational import Relational

    if isinstance(side, FiniteSet):
        members = list(side.args)
    else:
        members = list(side._unsorted_args) if isinstance(side, And) else [side]
    return members if all(isinstance(each, Relational) and not isinstance(each, Eq) for each in members) else []


def sampling(gold: Any, given: Any) -> bool | None:
    r"""Compare two expressions as real functions, at points drawn once and for all.

    Points count where every root and logarithm in either is real: so `\sqrt{1/n}` is `1/\sqrt{n}`, which has no meaning
    for negative n, and `|x|` is not `x`. None: not expressions, too few points, or a gap so small that the
    precision of the comparison must decide.
    """
    from sympy import Expr, Float, Rational, Symbol
    from sympy.core.function import AppliedUndef

    if not isinstance(gold, Expr) or not isinstance(given, Expr):
        return None
    if isinstance(gold, Symbol) or isinstance(given, Symbol):
        return None
    names = sorted(gold.free_symbols | given.free_symbols, key=str)
    if not names or len(names) > MOST_NAMES:
        return None
    if any(side.has(AppliedUndef) or _unevaluated(side) for side in (gold, given)):
        return None
    domain = _domain(gold) | _domain(given)
    exact = not (gold.has(Float) or given.has(Float))
    difference = gold - given
    draw = random.Random(7)
    equal = 0
    for number in range(POINTS):
        signs = (1,) if number < POINTS // 2 else (-1, 1)
        # Some points lie near 0, where no high power hides what is added to it.
        low, high = ((30, 150), (200, 900), (500, 2300))[number % 3]
        point = {name: Rational(draw.choice(signs) * draw.randint(low, high), 1000) for name in names}
        if not all(_is_positive(condition, point) for condition in domain):
            continue
        gap, scale = _at(difference, point), _at(gold, point)
        if gap is None or scale is None:
            continue
        relative = abs(gap) / max(1e-3, abs(scale))
        if relative > (EXACT if exact else DIFFER):
            return False
        if not exact and relative > AGREE:
            return None
        equal += 1
    return True if equal >= ENOUGH and gold.free_symbols == given.free_symbols else None


def _unevaluated(expression: Any) -> bool:
    from sympy import Derivative, Integral, Limit, Product, Sum

    return bool(expression.has(Sum, Product, Integral, Limit, Derivative))


def _domain(expression: Any) -> set[Any]:
    """What must be positive for every root and logarithm to be real."""
    from sympy import Pow, Rational, log

    conditions = {power.base for power in expression.atoms(Pow) if not _is_whole(power.exp, Rational)}
    return {base for base in conditions | {each.args[0] for each in expression.atoms(log)} if base.free_symbols}


def _is_whole(exponent: Any, rational: Any) -> bool:
    return isinstance(exponent, rational) and exponent.q == 1


def _is_positive(condition: Any, point: dict[Any, Any]) -> bool:
    value = _at(condition, point)
    return value is not None and value > 0


def _at(expression: Any, point: dict[Any, Any]) -> float | None:
    """The real value of an expression at a point; None where there is none."""
    try:
        value = complex(expression.evalf(15, subs=point, maxn=100))
    except (TypeError, ValueError, ArithmeticError, AttributeError):  # no number there: a pole, an unknown function
        return None
    return value.real if abs(value) < 1e100 and abs(value.imag) <= AGREE * max(1.0, abs(value.real)) else None
