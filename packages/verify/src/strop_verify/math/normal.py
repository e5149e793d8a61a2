r"""Normal forms: sums of products of atoms with rational exponents, over the rationals.

Atoms are names, primes (`\sqrt{12}` is 2·3^(1/2)), i, π, exponentials, logarithms, absolute values, sums that stand in
a denominator or under a root, and whatever has no rules here. Trigonometric functions become exponentials,
logarithms split over products. Every rule is an identity wherever both sides of it are real: two expressions with the
same form are equal there. With different forms they may still be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from strop_verify.math import expressions as ex
from strop_verify.math.evaluate import Undefined, rational, sign_of
from strop_verify.math.expressions import Node
from strop_verify.math.forms import HALF, ONE, Form, Ring, added, content_of, factors_of, key_of, scaled

_SHIFTS = 60  # factors taken out of a factorial
_TEN = ex.number(10)


class Field(Ring):
    """Normal forms of expressions."""

    def of(self, node: Node) -> Form:
        """The form of an expression.

        Raises:
            Undefined: it divides by zero, or holds what has no form.
            TooMuch: it has too many terms.
        """
        if node not in self._known:
            self._known[node] = self._of(node)
        return self._known[node]

    def difference(self, first: Node, second: Node) -> Form:
        """What is left of one expression minus another, denominators cleared; empty where the forms are the same."""
        return self._cleared(added(self.of(first), scaled(self.of(second), -1)))

    def exp(self, form: Form) -> Form:
        """e to a form."""
        out = ONE
        for mono, factor in form.items():
            first = self.atoms[mono[0][0]] if mono else None
            if first is not None and first.kind == "log" and len(mono) == 1 and mono[0][1] == 1:
                part = self._single(first.data, factor)
            elif mono == tuple(sorted(((self.i, Fraction(1)), (self.pi, Fraction(1))))):
                part = self._single(self.turn, factor)
            else:
                inner = {mono: Fraction(1)}
                others = [self.atoms[atom] for atom, _ in mono if atom not in (self.i, self.pi)]
                named = all(each.kind == "name" and each.data in self.whole for each in others)
                whole = factor.denominator == 1 and named
                kind = "parity" if whole and len(others) == len(mono) - 2 else "exp"
                part = self._single(self._of_sum(kind, inner, ex.power(ex.E, self.node(inner))), factor)
            out = self._product(out, part)
        return out

    def log(self, form: Form, formal: bool = False) -> Form:
        """The natural logarithm; `formal`: as an exponent, of which only e to it matters."""
        if not form:
            raise Undefined
        if len(form) > 1:
            content = content_of(form)
            return added(self._log_of_number(content), self._log_atom(self._base(scaled(form, 1 / content))))
        ((mono, factor),) = form.items()
        if factor < 0 and not formal and not all(self.atoms[atom].constant for atom, _ in mono):
            return added(self._log_of_number(-factor), self._log_atom(self._base({mono: Fraction(-1)})))
        out = self._log_of_number(factor)
        for atom, exponent in mono:
            known = self.atoms[atom]
            part = self._log_atom(atom) if known.kind not in ("i", "turn", "exp") else {}
            if known.kind in ("i", "turn"):
                part = scaled(
                    self._product(self._single(self.i), self._single(self.pi)), HALF if known.kind == "i" else 1
                )
            elif known.kind == "exp":
                part = known.data if known.real or formal else self._log_atom(atom)
            elif exponent.numerator % 2 == 0 and not formal and not self._is_positive(atom):
                part = self._log_atom(self._absolute_atom(self._single(atom)))
            out = added(out, scaled(part, exponent))
        return out

    def _log_atom(self, atom: int) -> Form:
        known = self.atoms[atom]
        return self._single(self._atom("log", atom, ex.call("ln", known.node), real=known.real))

    def _log_of_number(self, factor: Fraction) -> Form:
        turned = self._product(self._single(self.i), self._single(self.pi)) if factor < 0 else {}
        return self._collected(
            (turned, *(scaled(self._log_atom(self._prime(p)), e) for p, e in factors_of(abs(factor))))
        )

    # ------------------------------------------------------------------ steps

    def _floor(self, form: Form) -> Form:
        """⌊x⌋, a constant integer taken out."""
        whole = Fraction(math.floor(form.get((), 0)))
        rest = added(form, {(): -whole})
        return added({(): whole} if whole else {}, self._other("floor", rest) if set(rest) - {()} else {})

    def _other(self, function: str, *args: Form) -> Form:
        """A function without rules, of forms."""
        node = ex.call(function, *map(self.node, args))
        key = (function, *map(key_of, args))
        return self._single(self._atom("other", None, node, key, all(map(self._is_real, args))))

    def _factorial(self, form: Form) -> Form:
        """n!, of which (n+k)! is a multiple."""
        shift = form.get((), Fraction(0))
        if shift.denominator > 1 or abs(shift) > _SHIFTS:
            return self._other("factorial", form)
        base = added(form, {(): -shift})
        out = self._other("factorial", base)
        for step in range(1, int(abs(shift)) + 1):
            factor = added(base, {(): Fraction(step if shift > 0 else 1 - step)})
            out = self._product(out, self.power(factor, Fraction(1 if shift > 0 else -1)))
        return out

    # ------------------------------------------------------------------ expressions

    def _of(self, node: Node) -> Form:
        op = node.op
        if op in ("number", "decimal"):
            factor = Fraction(node.value)
            return {(): factor} if factor else {}
        if op == "name":
            return self._single(self._atom("name", node.value, node))
        if op == "constant":
            if node.value == "inf":
                raise Undefined
            return self.exp(ONE) if node.value == "e" else self._single(self.pi if node.value == "pi" else self.i)
        if op == "sum":
            return self._collected(map(self.of, node.args))
        if op == "product":
            out = ONE
            for arg in node.args:
                out = self._product(out, self.of(arg))
            return out
        if op == "power":
            return self._of_power(*node.args)
        if op in ex.NO_EXPRESSIONS:
            raise Undefined
        if op == "derivative":
            return self._single(self._atom("other", None, node, node))
        if op in ex.DEFINITIONS:
            return self.of(ex.DEFINITIONS[op](*node.args))
        if op not in _RULES:
            return self._other(op, *map(self.of, node.args))
        exact = None if ex.names_in(node) else rational(node)
        if exact is not None:
            return {(): exact} if exact else {}
        return _RULES[op](self, *node.args)

    def _of_power(self, base: Node, exponent: Node) -> Form:
        raised = self.of(exponent)
        if set(raised) - {()}:
            return self.exp(self._product(raised, self.log(self.of(base), formal=True)))
        rational = raised.get((), Fraction(0))
        if rational.denominator % 2 == 0 and base.op == "power" and not ex.holds(base, "constant"):  # √(x²) is |x|
            inner = self.of(base.args[1])
            if not set(inner) - {()} and inner.get((), Fraction(1)) % 2 == 0:
                return self.power(self.absolute(self.of(base.args[0])), inner.get((), Fraction(0)) * rational)
        return self.power(self.of(base), rational)

    def wave(self, node: Node, down: int) -> Form:
        """e^{ix} + e^{-ix} or, with `down` -1, their difference; halved."""
        angle = self._product(self.of(node), self._single(self.i))
        found = scaled(added(self.exp(angle), scaled(self.exp(scaled(angle, -1)), down)), HALF)
        return self._product(found, self._single(self.i, -1)) if down < 0 else found

    def odd(self, function: str, node: Node) -> Form:
        """An inverse function of which f(−x) = −f(x): a multiple of π/12 where that is its value, else an atom."""
        form = self.of(node)
        for twelfths in range(-5, 7) if not ex.names_in(node) else ():
            angle = ex.times(ex.number(Fraction(twelfths, 12)), ex.PI)
            if (function == "arcsin" or twelfths < 6) and self._same(
                node, ex.call(function.removeprefix("arc"), angle)
            ):
                return self.of(angle)
        if function == "arcsin" and not ex.names_in(node):  # one inverse function for constants
            cosine = ex.power(ex.plus(ex.ONE, ex.minus(ex.power(node, ex.number(2)))), ex.HALF)
            return self.of(ex.call("arctan", ex.over(node, cosine)))
        size = None if ex.names_in(node) else sign_of(ex.plus(ex.power(node, ex.number(2)), ex.MINUS_ONE))
        if function == "arctan" and size == 1:  # arctan x = ±π/2 − arctan 1/x
            quarter = ex.times(ex.number(sign_of(node) or 0), ex.HALF, ex.PI)
            return self.of(ex.plus(quarter, ex.minus(ex.call("arctan", ex.power(node, ex.MINUS_ONE)))))
        negative = bool(form) and form[max(form)] < 0
        return scaled(self._other(function, scaled(form, -1) if negative else form), -1 if negative else 1)

    def _same(self, first: Node, second: Node) -> bool:
        found = self.difference(first, second)
        return not found or self.vanishes(found)


def _absolute(field: Field, node: Node) -> Form:
    known = None if ex.names_in(node) else sign_of(node)
    return field.absolute(field.of(node)) if known is None else scaled(field.of(node), known)


def _largest(field: Field, *args: Node) -> Form:
    """max(a, b) = (a + b + |a − b|) / 2."""
    best = args[0]
    for each in args[1:]:
        best = ex.times(ex.HALF, ex.plus(best, each, ex.call("abs", ex.plus(best, ex.minus(each)))))
    return field.of(best)


def _binomial(field: Field, top: Node, bottom: Node) -> Form:
    """n! / (k! (n − k)!)"""
    rest = ex.call("factorial", ex.plus(top, ex.minus(bottom)))
    return field.of(ex.over(ex.call("factorial", top), ex.times(ex.call("factorial", bottom), rest)))


_RULES: dict[str, Callable[..., Form]] = {
    "ln": lambda field, node: field.log(field.of(node)),
    "log": lambda field, node, base=_TEN: field.quotient(field.log(field.of(node)), field.log(field.of(base))),
    "sin": lambda field, node: field.wave(node, -1), "cos": lambda field, node: field.wave(node, 1),
    "abs": _absolute, "max": _largest, "binom": _binomial,
    "arcsin": lambda field, node: field.odd("arcsin", node), "arctan": lambda field, node: field.odd("arctan", node),
    "floor": lambda field, node: field._floor(field.of(node)),
    "factorial": lambda field, node: field._factorial(field.of(node)),
    "gcd": lambda field, *args: field._other("gcd", *sorted(map(field.of, args), key=key_of)),
    "lcm": lambda field, *args: field._other("lcm", *sorted(map(field.of, args), key=key_of)),
}  # fmt: skip
