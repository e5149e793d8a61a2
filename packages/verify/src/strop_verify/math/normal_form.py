r"""Normal forms of expressions: sums of products of atoms with rational exponents, over the rationals.

Atoms are names, primes (`\sqrt{12}` is 2·3^(1/2)), i, π, exponentials, logarithms, absolute values, sums that stand in
a denominator or under a root, and every function that has no rule here. Trigonometric functions become exponentials,
logarithms split over products. Every rule is an identity wherever both sides of it are real: two expressions with the
same form are equal there. Two expressions with different forms may still be equal.

`Ring` has the arithmetic of forms; `Field` makes the form of an expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

from strop_verify.math import expressions as ex
from strop_verify.math.evaluate import MOST_BITS, Undefined, exact_root, rational, sign_of
from strop_verify.math.expressions import Effort, Node, TooMuch

Mono = tuple[tuple[int, Fraction], ...]  # numbers of atoms with their exponents, in order
Form = dict[Mono, Fraction]
ONE: Form = {(): Fraction(1)}
_MOST_TERMS = 400  # of a power that is expanded
_MOST_ROOT_TERMS = 12
_FREE = ("name", "pi", "exp", "log", "other")  # atoms without a rule for their powers
HALF = Fraction(1, 2)


class Atom(NamedTuple):
    """What forms are made of.

    Attributes:
        kind: `name`, `prime`, `i`, `pi`, `turn` (e^{iπ}), `exp`, `log`, `parity` ((-1)^n), `base` (a sum with an
            exponent), `abs`, or `other`.
        node: the expression that it is.
        data: the name or prime; the atom under a logarithm; the exponent of e; the sum that is a base or between bars.
        constant: whether it is free of names.
        real: whether it is real wherever it has a value.
    """

    kind: str
    node: Node
    data: Any
    constant: bool
    real: bool


class Ring:
    """The atoms that the forms of one comparison share, and sums, products and powers of forms.

    `is_zero` says whether a constant is proved to be 0; names are taken to be positive that stand under roots or
    logarithms, and integers where they are `whole`.
    """

    def __init__(
        self,
        is_zero: Callable[[Node], bool] = lambda node: False,
        positive: frozenset[str] = frozenset(),
        whole: frozenset[str] = frozenset(),
    ) -> None:
        self._is_zero, self.positive, self.whole = is_zero, positive, whole
        self.atoms: list[Atom] = []
        self._numbers: dict[tuple[str, Any], int] = {}
        self._known: dict[Node, Form] = {}
        self.i = self._atom("i", None, ex.UNIT, real=False)
        self.pi = self._atom("pi", None, ex.PI)
        self.turn = self._atom("turn", None, ex.power(ex.E, ex.times(ex.UNIT, ex.PI)), real=False)

    def _cleared(self, form: Form) -> Form:
        """A form times the sums in its denominators."""
        while True:
            lowest = {
                atom: min(dict(mono).get(atom, Fraction(0)) for mono in form)
                for atom in {atom for mono in form for atom, _ in mono if self.atoms[atom].kind == "base"}
            }
            atom = next((atom for atom, exponent in lowest.items() if exponent < 0), None)
            if atom is None:
                return form
            shift = {atom: Fraction(math.ceil(-lowest[atom]))}
            form = self._collected(self._settled(_merged(dict(mono), shift), factor) for mono, factor in form.items())

    def vanishes(self, form: Form) -> bool:
        """Whether a form is proved to be 0: each sum of constants before a product of names is."""
        groups: dict[Mono, Form] = {}
        for mono, factor in form.items():
            outer = tuple(part for part in mono if not self.atoms[part[0]].constant)
            groups.setdefault(outer, {})[tuple(part for part in mono if part not in outer)] = factor
        return all(len(group) > 1 and self._is_zero(self.node(group)) for group in groups.values())

    def node(self, form: Form) -> Node:
        """A form as an expression."""
        terms = []
        for mono, factor in form.items():
            inner = [self._power_node(atom, exponent) for atom, exponent in mono]
            terms.append(ex.times(*([ex.number(factor)] if factor != 1 or not inner else []), *inner))
        return ex.plus(*terms) if terms else ex.ZERO

    def _power_node(self, atom: int, exponent: Fraction) -> Node:
        if atom == self.turn:
            return ex.power(ex.E, ex.times(ex.number(exponent), ex.UNIT, ex.PI))
        return ex.power(self.atoms[atom].node, ex.number(exponent)) if exponent != 1 else self.atoms[atom].node

    def _atom(self, kind: str, data: Any, node: Node, key: Any = None, real: bool = True) -> int:
        key = (kind, data if key is None else key)
        if key not in self._numbers:
            self._numbers[key] = len(self.atoms)
            self.atoms.append(Atom(kind, node, data, _is_constant(node), real))
        return self._numbers[key]

    def _of_sum(self, kind: str, form: Form, node: Node) -> int:
        return self._atom(kind, form, node, key_of(form), self._is_real(form))

    def _prime(self, number: int) -> int:
        return self._atom("prime", number, ex.number(number))

    def _is_real(self, form: Form) -> bool:
        return all(self.atoms[atom].real for mono in form for atom, _ in mono)

    def _single(self, atom: int, exponent: Fraction | int = 1) -> Form:
        return self._settled({atom: Fraction(exponent)}, Fraction(1))

    def _settled(self, exponents: dict[int, Fraction], factor: Fraction) -> Form:
        """A product of powers of atoms, with what is known of primes, i, turns, sums and absolute values."""
        kept: dict[int, Fraction] = {}
        extra: list[Form] = []
        for atom, exponent in exponents.items():
            kind, data = self.atoms[atom].kind, self.atoms[atom].data
            whole = math.floor(exponent)
            if kind == "prime":
                if abs(whole) * data.bit_length() > MOST_BITS:
                    raise TooMuch("too large a power")
                factor, exponent = factor * Fraction(data) ** whole, exponent - whole
            elif kind == "i":
                factor, exponent = -factor if exponent % 4 >= 2 else factor, exponent % 2
            elif kind == "turn":
                factor, exponent = -factor if exponent % 2 >= 1 else factor, exponent % 1
                if exponent == HALF:
                    extra.append(self._single(self.i))
                    exponent = Fraction(0)
            elif kind == "parity":
                exponent %= 2
            elif kind == "base" and whole >= 1:
                extra.append(self._expanded(data, whole))
                exponent -= whole
            elif kind == "abs" and (exponent >= 2 or (exponent < 0 and self.atoms[atom].real)):
                extra.append(self.power(data, Fraction(whole // 2 * 2)))
                exponent -= whole // 2 * 2
            if exponent:
                kept[atom] = exponent
        found = {tuple(sorted(kept.items())): factor} if factor else {}
        for each in extra:
            found = self._product(found, each)
        return found

    def _collected(self, forms: Any) -> Form:
        out: Form = {}
        for form in forms:
            for mono, factor in form.items():
                _increase(out, mono, factor)
        if any(factor.numerator.bit_length() + factor.denominator.bit_length() > MOST_BITS for factor in out.values()):
            raise TooMuch("too large a number")
        return out

    def _product(self, first: Form, second: Form) -> Form:
        Effort.spend(len(first) * len(second), share=2)
        return self._collected(
            self._settled(_merged(dict(one), dict(other)), a * b) if one and other else {one or other: a * b}
            for one, a in first.items()
            for other, b in second.items()
        )

    def _expanded(self, form: Form, exponent: int) -> Form:
        """A sum to a positive integer, multiplied out."""
        if len(form) > 1 and math.comb(exponent + len(form) - 1, len(form) - 1) > _MOST_TERMS:
            node = ex.power(self.node(form), ex.number(exponent))
            return self._single(self._atom("other", None, node, (key_of(form), exponent), self._is_real(form)))
        if len(form) == 1:
            ((mono, factor),) = form.items()
            if (factor.numerator.bit_length() + factor.denominator.bit_length()) * exponent > MOST_BITS:
                raise TooMuch("too large a power")
            return self._settled({atom: each * exponent for atom, each in mono}, factor**exponent)
        out = ONE
        for bit in f"{exponent:b}":
            out = self._product(out, out)
            out = self._product(out, form) if bit == "1" else out
        return out

    def power(self, form: Form, exponent: Fraction) -> Form:
        """A rational power; raises `Undefined` for a negative one of 0."""
        if not form:
            if exponent <= 0:
                raise Undefined
            return form
        if exponent.denominator == 1 and exponent >= 0:
            return self._expanded(form, int(exponent)) if exponent else ONE
        form = self._quotient(form)
        if len(form) == 1:
            return self._power_of_product(*next(iter(form.items())), exponent)
        content = content_of(form)
        inner = scaled(form, 1 / content)
        if exponent.denominator % 2 and inner[max(inner)] < 0:  # one sign for all odd roots
            inner, content = scaled(inner, -1), -content
        outer = self._power_of_product((), content, exponent)
        for degree in (2, 3, 5):
            root = self._root(inner, degree) if exponent.denominator % degree == 0 else None
            if root is not None:  # √(x² + 2xy + y²) is |x + y|
                root = self.absolute(root) if degree == 2 else root
                return self._product(outer, self.power(root, exponent * degree))
        return self._product(outer, self._single(self._base(inner), exponent))

    def _quotient(self, form: Form) -> Form:
        """A sum with sums in its denominators as one product, (1 + x²)⁻¹ for 1 − x²/(1 + x²); any other as it is."""
        below: dict[int, Fraction] = {}
        for atom, exponent in chain(*form) if len(form) > 1 else ():
            if self.atoms[atom].kind == "base" and exponent < 0 and exponent.denominator == 1:
                below[atom] = max(below.get(atom, Fraction(0)), -exponent)
        if not below:
            return form
        top = self._collected(self._settled(_merged(dict(mono), below), factor) for mono, factor in form.items())
        content = content_of(top) if len(top) > 1 else next(iter(top.values()))
        over = {self._base(scaled(top, 1 / content)): Fraction(1)} if len(top) > 1 else dict(next(iter(top)))
        quotient = _merged(over, {atom: -each for atom, each in below.items()})
        return {tuple(sorted(quotient.items())): content}

    def absolute(self, form: Form) -> Form:
        """The absolute value of a real form."""
        form = self._quotient(form)
        if form and not self._is_real(form):
            below = len(form) == 1 and all(exponent < 0 for _, exponent in next(iter(form)))  # |1/cos x| is 1/|cos x|
            inner = self.power(form, Fraction(-1)) if below else form
            return self.power(self._single(self._absolute_atom(inner)), Fraction(-1 if below else 1))
        if not form:
            return form
        if len(form) > 1:
            content = content_of(form) * (1 if form[max(form)] > 0 else -1)
            base = self._base(scaled(form, 1 / content))
            inner = self.atoms[base].data
            return scaled(inner if self._is_positive(base) else self._single(self._absolute_atom(inner)), abs(content))
        ((mono, factor),) = form.items()
        out: Form = {(): abs(factor)}
        for atom, exponent in mono:
            known = self._is_positive(atom, exponent) or exponent.numerator % 2 == 0
            sums = self.atoms[atom].kind == "base" and not known
            bars = self.absolute(self.atoms[atom].data) if sums else None
            part = bars or self._single(self._absolute_atom(self._single(atom)))
            out = self._product(out, self._single(atom, exponent) if known else self.power(part, exponent))
        return out

    def _root(self, form: Form, degree: int) -> Form | None:
        """The sum of which a sum is a power, found term by term from the highest on; None where it is of none."""
        atoms = sorted({atom for mono in form for atom, _ in mono})
        if any(self.atoms[atom].kind not in _FREE for atom in atoms):
            return None

        def place(mono: Mono) -> tuple[Fraction, ...]:
            powers = dict(mono)
            return tuple(powers.get(atom, Fraction(0)) for atom in atoms)

        high, low = place(max(form, key=place)), place(min(form, key=place))
        factor = exact_root(form[max(form, key=place)], degree)
        if factor is None or any((each / degree).denominator > 1 for each in (*high, *low)):
            return None
        found: Form = {_mono(atoms, [each / degree for each in high]): factor}
        while len(found) <= _MOST_ROOT_TERMS:
            rest = added(form, scaled(self._expanded(found, degree), -1))
            if not rest:
                return found
            last = max(rest, key=place)
            following = [at - top * (degree - 1) / degree for at, top in zip(place(last), high, strict=True)]
            if [each * degree for each in following] < list(low) or _mono(atoms, following) in found:
                return None
            found[_mono(atoms, following)] = rest[last] / (degree * factor ** (degree - 1))
        return None

    def _base(self, form: Form) -> int:
        return self._of_sum("base", form, self.node(form))

    def _power_of_product(self, mono: Mono, factor: Fraction, exponent: Fraction) -> Form:
        degree = exponent.denominator
        if degree == 1:
            return self._settled({atom: each * exponent for atom, each in mono}, factor ** int(exponent))
        out: dict[int, Fraction] = {}
        unknown = []
        for atom, each in mono:
            known = self.atoms[atom]
            if known.kind in ("i", "turn"):
                if len(mono) > 1 or factor < 0:  # angles that may add up past the cut
                    unknown.append(atom)
                out = _merged(out, {self.turn: each * exponent * (HALF if known.kind == "i" else 1)})
            elif degree % 2 or self._is_positive(atom, each):
                out = _merged(out, {atom: each * exponent})
            elif each.numerator % 2 == 0:
                out = _merged(out, {self._absolute_atom(self._single(atom)): each * exponent})
            else:
                unknown.append(atom)
                out = _merged(out, {atom: each * exponent})
        single = len(unknown) == 1 and factor > 0 and self.atoms[unknown[0]].kind not in ("i", "turn")
        if unknown and not single:
            if any(self.atoms[atom].kind in ("i", "turn") for atom in unknown):
                return self._single(self._base({mono: factor}), exponent)
            inside = tuple(part for part in mono if part[0] in unknown)  # what is positive leaves the root
            turned = -1 if inside[0][1] < 0 else 1  # √(L/g) is 1/√(g/L)
            inside = tuple((atom, turned * each) for atom, each in inside)
            base = self._base({inside: Fraction(1 if factor > 0 else -1)})
            out = _merged({atom: each for atom, each in out.items() if atom not in unknown}, {base: turned * exponent})
            factor = abs(factor)
        if factor < 0:
            out = _merged(out, {self.turn: exponent} if degree % 2 == 0 else {})
            sign_ = -1 if degree % 2 and exponent.numerator % 2 else 1
        else:
            sign_ = 1
        for prime, times in factors_of(abs(factor)):
            out = _merged(out, {self._prime(prime): times * exponent})
        return self._settled(out, Fraction(sign_))

    def _is_positive(self, atom: int, exponent: Fraction = Fraction(1)) -> bool:
        """Whether a power of an atom is not negative; under an even root the atom itself cannot be."""
        known = self.atoms[atom]
        if exponent.denominator % 2 == 0 or (known.kind == "name" and known.data in self.positive):
            return True
        if known.kind == "base":
            return self._root(known.data, 2) is not None or all(
                factor > 0 and all(e.numerator % 2 == 0 or self._is_positive(a, e) for a, e in mono)
                for mono, factor in known.data.items()
            )
        return known.kind in ("prime", "pi", "abs") or (known.kind == "exp" and known.real)

    def _absolute_atom(self, form: Form) -> int:
        return self._of_sum("abs", form, ex.call("abs", self.node(form)))

    def quotient(self, top: Form, bottom: Form) -> Form:
        """The quotient of two forms."""
        return self._product(top, self.power(bottom, Fraction(-1)))


def key_of(form: Form) -> tuple[Any, ...]:
    return tuple(sorted(form.items()))


def _is_constant(node: Node) -> bool:
    """Whether a tree is free of names; the work is counted, for what forms are made of may be a large tree."""
    left, count = [node], 0
    while left:
        part, count = left.pop(), count + 1
        Effort.spend(int(count % 4 == 0), share=2)
        if part.op in ("name", "derivative"):
            return False
        left += part.args
    return True


def _mono(atoms: list[int], exponents: list[Fraction]) -> Mono:
    return tuple((atom, exponent) for atom, exponent in zip(atoms, exponents, strict=True) if exponent)


def _merged(first: dict[int, Fraction], second: dict[int, Fraction]) -> dict[int, Fraction]:
    return {atom: first.get(atom, Fraction(0)) + second.get(atom, Fraction(0)) for atom in first | second}


def _increase(form: Form, mono: Mono, factor: Fraction) -> None:
    total = form[mono] + factor if mono in form else factor
    if total:
        form[mono] = total
    else:
        form.pop(mono, None)


def added(first: Form, second: Form) -> Form:
    out = dict(first)
    for mono, factor in second.items():
        _increase(out, mono, factor)
    return out


def scaled(form: Form, factor: Fraction | int) -> Form:
    factor = Fraction(factor)
    return {mono: coefficient * factor for mono, coefficient in form.items()} if factor else {}


def content_of(form: Form) -> Fraction:
    """The largest positive rational by which all coefficients are integers without a common factor."""
    tops, bottoms = (factor.numerator for factor in form.values()), (factor.denominator for factor in form.values())
    return Fraction(math.gcd(*tops), math.lcm(*bottoms))


def factors_of(number: Fraction) -> list[tuple[int, int]]:
    """Small primes with their exponents; what is left over counts as a prime, a square as one of its root."""
    found = []
    for rest, turned in ((number.numerator, 1), (number.denominator, -1)):
        for prime in chain((2,), range(3, 1000, 2)):
            exponent = 0
            while rest % prime == 0:
                rest, exponent = rest // prime, exponent + turned
            found += [(prime, exponent)] if exponent else []
            if prime * prime > rest:
                break
        root = math.isqrt(rest)
        found += [] if rest == 1 else [(root, 2 * turned)] if root * root == rest else [(rest, turned)]
    return found


_SHIFTS = 60  # factors taken out of a factorial
_TEN = ex.number(10)


class Field(Ring):
    """Normal forms of expressions."""

    def of(self, node: Node) -> Form:
        """The form of an expression; raises `Undefined` where it has none, `TooMuch` where it has too many terms."""
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
        form = self._quotient(form)
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
                turn = self._product(self._single(self.i), self._single(self.pi))
                part = scaled(turn, HALF if known.kind == "i" else 1)
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
        logs = (scaled(self._log_atom(self._prime(prime)), times) for prime, times in factors_of(abs(factor)))
        return self._collected((turned, *logs))

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
        if shift.denominator == 2:  # (n - 1/2)! is √π (2n)! / (4^n n!)
            count = self.node(added(form, {(): HALF}))
            twice = ex.call("factorial", ex.times(ex.number(2), count))
            below = ex.times(ex.power(ex.number(4), count), ex.call("factorial", count))
            return self.of(ex.times(ex.power(ex.PI, ex.HALF), ex.over(twice, below)))
        if shift.denominator > 1 or abs(shift) > _SHIFTS:
            return self._other("factorial", form)
        base = added(form, {(): -shift})
        out = self._other("factorial", base)
        for step in range(1, int(abs(shift)) + 1):
            factor = added(base, {(): Fraction(step if shift > 0 else 1 - step)})
            out = self._product(out, self.power(factor, Fraction(1 if shift > 0 else -1)))
        return out

    def _of(self, node: Node) -> Form:
        op = node.op
        if op in ("number", "decimal"):
            factor = node.value if op == "number" else Fraction(node.value)
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
        if base.op == "power" and not ex.holds(base, "constant"):
            inner = self.of(base.args[1])
            times = HALF if set(inner) - {()} else inner.get((), Fraction(0))
            if times % 2 == 0 and rational.denominator % 2 == 0:  # √(x²) is |x|
                return self.power(self.absolute(self.of(base.args[0])), times * rational)
            if times.denominator == rational.denominator == 1:
                return self.power(self.of(base.args[0]), times * rational)
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
            at = ex.call(function.removeprefix("arc"), angle)
            meet = (function == "arcsin" or twelfths < 6) and sign_of(ex.plus(node, ex.minus(at))) in (None, 0)
            if meet and self._same(node, at):
                return self.of(angle)
        if function == "arcsin":  # one inverse function
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
