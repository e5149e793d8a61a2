"""Proofs by value, and by thousands of drawn pairs of each kind: rewritten answers are equal, perturbed ones never are.

The pairs are made without the verifier: an answer is drawn as a value with several ways of writing it, or as a tree
whose value is computed with fractions; one leaf is changed so that the value is another.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from strop_verify.math import MathSettings, evaluate
from strop_verify.math.compare import compare_readings
from strop_verify.math.expressions import Effort, TooMuch
from strop_verify.math.grammar import read
from strop_verify.math.latex import tokens
from strop_verify.math.normal_form import Field
from strop_verify.math.parser import Parser
from strop_verify.math.proof import ProofOutcome, compare

TIMES = int(os.environ.get("STROP_EXAMPLES", "1"))  # how many times as many pairs are drawn as in every run


def expression(text: str):  # noqa: ANN201
    return Parser(tokens(text)).whole()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x^2-1", "(x-1)(x+1)"), (r"\sqrt{2-\sqrt3}", r"\frac{\sqrt6-\sqrt2}{2}"), (r"\log_2 3", r"\log_4 9"),
        (r"\ln2", r"-\ln\frac12"), (r"\sin^2x", r"1-\cos^2x"), (r"\tan^2y+1", r"\sec^2y"),
        (r"\sin2x", r"2\sin x\cos x"), ("|x|", r"\sqrt{x^2}"), ("|x-5|", "|5-x|"), (r"\sqrt{ab}", r"\sqrt a\sqrt b"),
        (r"\ln(x^2y)", r"2\ln x+\ln y"), (r"\sqrt{1/n}", r"\frac{1}{\sqrt n}"), ("4^n", "2^{2n}"),
        ("(-1)^n", "(-1)^{n+2}"), (r"\frac{1+i}{\sqrt2}", r"e^{i\pi/4}"), ("-1", r"e^{i\pi}"),
        (r"\sqrt{(x+10)^2}", "|x+10|"), (r"\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5}", "1"),
        (r"\cos\frac{2\pi}{7}+\cos\frac{4\pi}{7}+\cos\frac{6\pi}{7}", r"-\frac12"), (r"\frac{n!}{(n-1)!}", "n"),
        (r"\binom n2", r"\frac{n(n-1)}{2}"), (r"\gcd(m,n)", r"\gcd(n,m)"), (r"\arctan1", r"\frac\pi4"),
        (r"\lfloor x+1\rfloor", r"\lfloor x\rfloor+1"), (r"\max(a,b)", r"\max(b,a)"), (r"\min(a,b)", r"-\max(-a,-b)"),
        ("x^x", r"e^{x\ln x}"), (r"\frac{x}{x^2-1}", r"\frac12(\frac{1}{x-1}+\frac{1}{x+1})"),
        (r"\cos2t+\sin2t", r"\sqrt2\cos(2t-\pi/4)"), ("f(x+1)", "f(1+x)"), (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"),
        (r"\sqrt[3]{-8}", "-2"), (r"\arccos x", r"\frac\pi2-\arcsin x"), (r"\cosh x", r"\frac{e^x+e^{-x}}{2}"),
    ],
)  # fmt: skip
def test_proved_equal(first: str, second: str) -> None:
    Effort.begin()
    for one, other in ((first, second), (second, first)):
        assert compare(expression(one), expression(other)).outcome is ProofOutcome.EQUAL


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1/2004!", "1/2006!"), ("1/2^{99}", "1/2^{98}"), ("x^{2024}-1", "x^{2023}-1"), ("x+1/2004!", "x+1/2005!"),
        ("x", "x+10^{-99}"), (r"\lfloor n/2\rfloor", r"\lfloor n/3\rfloor"), ("|x-5|", "5-x"),
        (r"\sqrt{(x+10)^2}", "x+10"), (r"\min(n,3)", r"\min(n,4)"), (r"\max(n,100)", r"\max(2n,100)"),
        (r"\sqrt{10^{40}+1}", "10^{20}"), (r"\gcd(m,n)", r"\gcd(m,2n)"), ("2^{1000}", "2^{1000}+1"),
        (r"e^{\pi\sqrt{163}}", "262537412640768744"), ("(-1)^n", "1"), ("|x|", "x"),
        (r"\lfloor x\rfloor", "x-\\frac12"), ("f(x)", "f(x)+1"), (r"\binom{2n}{n}", r"\binom{2n}{n+1}"),
        (r"\lceil n/2\rceil", r"\lfloor n/2\rfloor"), ("x^2", "y^2"), (r"\sin x", r"x-\frac{x^3}{6}"),
        (r"|x-\frac{1}{1000}|", r"\frac{1}{1000}-x"), ("n!", "2n!"), (r"\pi", r"\frac{355}{113}"), ("i", "-i"),
        ("10^{100}+1", "10^{100}"),
    ],
)  # fmt: skip
def test_proved_different(first: str, second: str) -> None:
    Effort.begin()
    for one, other in ((first, second), (second, first)):
        assert compare(expression(one), expression(other)).outcome is ProofOutcome.DIFFERENT


@pytest.mark.parametrize(
    ("first", "second"),
    [("|x|", r"x+0\sqrt x"), ("|x|", r"(\sqrt x)^2"), (r"|x-5|", r"5-x+0\ln(5-x)"), ("x", r"e^{\ln x}")],
)
def test_a_smaller_domain_is_no_proof(first: str, second: str) -> None:
    """A policy must not pass by an expression that is only defined where it agrees."""
    Effort.begin()
    assert compare(expression(first), expression(second)).outcome is not ProofOutcome.EQUAL


def test_intervals_hold_the_value() -> None:
    values = {
        r"\sqrt2": math.sqrt(2), r"\sin1": math.sin(1), r"\arcsin\frac13": math.asin(1 / 3),
        r"e^\pi": math.exp(math.pi), r"\log_37": math.log(7, 3), r"\sqrt[5]{7}": 7**0.2, r"\tan2": math.tan(2),
        r"\arccot2": math.atan(0.5), r"\sec1": 1 / math.cos(1),
        r"\cosh2": math.cosh(2), r"\sinh2": math.sinh(2),
        r"\arccos\frac13": math.acos(1 / 3),
    }  # fmt: skip
    for text, value in values.items():
        Effort.begin()
        found = evaluate.interval(evaluate.value(expression(text), {}, 100))
        assert float(found.delta) < 1e-25 and abs(float(found.mid) - value) < 1e-12


def test_work_is_counted_and_ends() -> None:
    Effort.begin()
    with pytest.raises(TooMuch):
        Field().of(expression("(a+b+c+d)^{9}(a-b+c-d)^{9}(a+2b)^{9}"))
    assert compare(expression("(a+b+c+d)^{9}(a-b+c-d)^{9}"), expression("a")).outcome is not ProofOutcome.EQUAL


# ---------------------------------------------------------------------- kinds that are drawn as values

RULES = MathSettings()


def outcome(gold: str, answer: str) -> str:
    return str(compare_readings(read(gold), read(answer), RULES).outcome)


def both(first: str, second: str, equal: bool) -> None:
    """The verdict is the same whichever of two answers is the reference."""
    for one, other in ((first, second), (second, first)):
        found = outcome(one, other)
        assert (found == "equal") is equal, (one, other, found)


def fractions(text: Fraction) -> list[str]:
    """Ways of writing a rational number."""
    top, bottom = text.numerator, text.denominator
    ways = [f"{top}/{bottom}", rf"\dfrac{{{3 * top}}}{{{3 * bottom}}}", rf"{top}\div{bottom}"]
    ways += [rf"\frac{{{top - 2 * bottom}}}{{{bottom}}}+2", rf"\left({top}\right)\cdot\frac1{{{bottom}}}"]
    if bottom == 1:
        ways += [str(top), f"{top}.0", f"{top:,}".replace(",", "{,}"), f"{top + 5}-5"]
    if set(prime for prime in (2, 5) if bottom % prime == 0) and bottom in (2, 4, 5, 8, 10, 20, 25, 40, 50, 100):
        ways.append(f"{top / bottom:.8f}".rstrip("0"))
    return ways


numbers = st.fractions(min_value=-10_000, max_value=10_000, max_denominator=60)


@settings(max_examples=300 * TIMES, deadline=None)
@given(numbers, numbers, st.data())
def test_numbers(first: Fraction, second: Fraction, data: st.DataObject) -> None:
    one, other = data.draw(st.sampled_from(fractions(first))), data.draw(st.sampled_from(fractions(second)))
    both(one, data.draw(st.sampled_from(fractions(first))), True)
    both(one, other, first == second)


@settings(max_examples=200 * TIMES, deadline=None)
@given(st.integers(1, 10**7), st.integers(0, 8), st.integers(-30, 30), st.integers(0, 6), st.integers(1, 9))
def test_decimals(digits: int, places: int, power: int, place: int, change: int) -> None:
    assume(len(str(digits)) > place)
    text = str(digits).rjust(places + 1, "0")
    plain = f"{text[: len(text) - places]}.{text[len(text) - places :]}" if places else f"{text}.0"
    both(plain, rf"\frac{{{digits}}}{{{10**places}}}", True)
    both(f"{plain}e{power}", rf"{digits}\times10^{{{power - places}}}", True)
    changed = text[:place] + str((int(text[place]) + change) % 10) + text[place + 1 :]
    assume(int(changed) != digits)
    other = f"{changed[: len(text) - places]}.{changed[len(text) - places :]}" if places else f"{changed}.0"
    both(plain, other, False)
    both(f"{plain}e{power}", f"{other}e{power}", False)
    both(f"{plain}e{power}", f"{plain}e{power + 1}", False)


UNITS = {
    "mm": ("m", "1/1000"), "cm": ("m", "1/100"), "km": ("m", "1000"), "feet": ("m", "3048/10000"),
    "minutes": ("s", "60"), "hours": ("s", "3600"), "days": ("s", "86400"), "kg": ("g", "1000"),
    "mg": ("g", "1/1000"), "cents": ("$", "1/100"), "dollars": ("$", "1"), "seconds": ("s", "1"),
    "meters": ("m", "1"), "grams": ("g", "1"),
}  # fmt: skip


@settings(max_examples=150 * TIMES, deadline=None)
@given(numbers, st.sampled_from(sorted(UNITS)), st.sampled_from(sorted(UNITS)), numbers)
def test_units(number: Fraction, first: str, second: str, other: Fraction) -> None:
    (one, factor), (two, again) = UNITS[first], UNITS[second]
    converted = number * Fraction(factor) / Fraction(again)
    gold = rf"{fractions(number)[0]}\text{{ {first}}}"
    both(gold, rf"{fractions(converted)[0]}\text{{ {second}}}", one == two)
    both(gold, rf"{fractions(other)[0]}\text{{ {second}}}", one == two and other == converted)


WORDS = (
    "yes",
    "no",
    "odd",
    "even",
    "Monday",
    "Tuesday",
    "ellipse",
    "circle",
    "Evelyn",
    "Briana",
    "on",
    "May",
    "Amy",
    "left",
    "right",
    "dog",
    "god",
)


@settings(max_examples=200 * TIMES, deadline=None)
@given(
    st.sampled_from(WORDS),
    st.sampled_from(WORDS),
    st.sampled_from((r"\text{%s}", r"\textbf{%s}", "%s", r"\mathrm{%s}", r"\text{ %s.}")),
)
def test_words(first: str, second: str, written: str) -> None:
    both(rf"\text{{{first}}}", written % second, first == second)
    both(rf"\text{{{first}}}", rf"\text{{not {second}}}", False)
    both(rf"\text{{{first}}}", rf"\text{{{first}, {second}}}", False)


@settings(max_examples=200 * TIMES, deadline=None)
@given(
    st.text("PQRSTUVW", min_size=2, max_size=4),
    st.text("PQRSTUVW", min_size=2, max_size=4),
    st.sampled_from(("", r"\angle ", r"\triangle ")),
)
def test_names(first: str, second: str, shape: str) -> None:
    both(shape + first, shape + second, first == second)
    both(shape + first, shape + "+".join(first), False)


@settings(max_examples=200 * TIMES, deadline=None)
@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 23), st.integers(0, 59))
def test_times(hour: int, minute: int, other: int, later: int) -> None:
    half = "a.m." if hour < 12 else "p.m."
    both(f"{hour:02}:{minute:02}", rf"{(hour - 1) % 12 + 1}:{minute:02}\text{{ {half}}}", True)
    both(f"{hour}:{minute:02}", f"{other:02}:{later:02}", (hour, minute) == (other, later))


MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


members = st.lists(st.integers(-50, 50), min_size=2, max_size=5, unique=True)


@settings(max_examples=150 * TIMES, deadline=None)
@given(members, members, st.data())
def test_tuples_lists_and_sets(first: list[int], second: list[int], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(first))
    written = [", ".join(rf"\frac{{{2 * each}}}{{2}}" for each in part) for part in (first, second, shuffled)]
    plain = ", ".join(map(str, first))
    both(f"({plain})", f"({written[1]})", first == second)
    both(f"({plain})", f"({written[2]})", first == shuffled)
    both(rf"\{{{plain}\}}", rf"\{{{written[1]}\}}", set(first) == set(second))
    both(rf"\{{{plain}\}}", rf"\{{{written[2]}\}}", True)
    both(rf"\{{{plain}\}}", f"({written[0]})", False)
    both(rf"\{{{plain}\}}", rf"\{{{', '.join(map(str, first[1:]))}\}}", False)


@dataclass(frozen=True)
class Range:
    low: int
    high: int
    left: bool
    right: bool

    def written(self, way: int) -> str:
        if way == 0:
            return f"{'[' if self.left else '('}{self.low}, {self.high}{']' if self.right else ')'}"
        if way == 1:
            return f"{self.low} {'≤' if self.left else '<'} x {'≤' if self.right else '<'} {self.high}"
        return f"x {'≥' if self.left else '>'} {self.low} and x {'≤' if self.right else '<'} {self.high}"


ranges = st.builds(Range, st.integers(-20, 0), st.integers(1, 20), st.booleans(), st.booleans())


@settings(max_examples=150 * TIMES, deadline=None)
@given(ranges, ranges, st.integers(1, 2), st.integers(0, 2))
def test_intervals_and_inequalities(first: Range, second: Range, way: int, other: int) -> None:
    pair = not other and not first.left and not first.right  # (1, 2) may be a pair; then no relation is it
    assert (outcome(first.written(other), first.written(way)) == "equal") is not pair
    assert outcome(first.written(way), first.written(other)) == "equal"
    if not pair:
        assert (outcome(first.written(way), second.written(other)) == "equal") is (first == second)


@settings(max_examples=80 * TIMES, deadline=None)
@given(st.lists(st.integers(-30, 30), min_size=4, max_size=4, unique=True), st.integers(0, 3), st.integers(1, 5))
def test_unions(ends: list[int], place: int, change: int) -> None:
    a, b, c, d = sorted(ends)
    gold = rf"[{a},{b})\cup({c},{d}]"
    both(gold, rf"({c},{d}]\cup[{a},{b})", True)
    both(gold, rf"{a}\le x<{b}\text{{ or }}{c}<x\le {d}", True)
    both(gold, rf"[{a},{d}]\setminus[{b},{c}]", True)
    moved = [a, b, c, d]
    moved[place] += change
    assume(sorted(moved) == moved and len(set(moved)) == 4)
    a, b, c, d = moved
    both(gold, rf"[{a},{b})\cup({c},{d}]", False)


@settings(max_examples=100 * TIMES, deadline=None)
@given(st.integers(2, 60), st.integers(-200, 200), st.integers(-200, 200), st.integers(2, 60))
def test_residues(modulus: int, first: int, second: int, other: int) -> None:
    same = (first - second) % modulus == 0
    both(rf"x\equiv{first}\pmod{{{modulus}}}", rf"{second} (mod {modulus})", same)
    both(rf"{first}\pmod{{{modulus}}}", rf"{first}\pmod{{{other}}}", modulus == other)
    both(rf"{modulus}k{first:+}, k\in\mathbb{{Z}}", rf"{modulus}n{first + modulus:+}, n\in\mathbb{{Z}}", True)


matrices = st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=2, max_size=2)


@settings(max_examples=80 * TIMES, deadline=None)
@given(matrices, matrices)
def test_matrices(first: list[list[int]], second: list[list[int]]) -> None:
    def written(rows: list[list[int]], kind: str, factor: int = 1) -> str:
        inner = r"\\".join("&".join(rf"\frac{{{factor * each}}}{{{factor}}}" for each in row) for row in rows)
        return rf"\begin{{{kind}}}{inner}\end{{{kind}}}"

    both(written(first, "pmatrix"), written(second, "bmatrix", 3), first == second)


# ---------------------------------------------------------------------- expressions, drawn as trees


@dataclass(frozen=True)
class Tree:
    """An operation, or a leaf: a number or a name."""

    op: str
    args: tuple[Tree, ...] = ()

    def latex(self) -> str:
        inner = [arg.latex() for arg in self.args]
        if not self.args:
            return self.op
        if self.op == "+":
            return f"({inner[0]}+{inner[1]})"
        if self.op == "*":
            return rf"{inner[0]} \cdot {inner[1]}"
        if self.op == "/":
            return rf"\frac{{{inner[0]}}}{{{inner[1]}}}"
        return f"({inner[0]})^{{2}}"

    def at(self, point: dict[str, Fraction]) -> Fraction:
        values = [arg.at(point) for arg in self.args]
        if not self.args:
            return point[self.op] if self.op in point else Fraction(self.op)
        if self.op == "+":
            return values[0] + values[1]
        if self.op == "*":
            return values[0] * values[1]
        return values[0] / values[1] if self.op == "/" else values[0] ** 2

    def leaves(self) -> int:
        return sum(arg.leaves() for arg in self.args) if self.args else 1

    def with_leaf(self, place: int, leaf: Tree) -> Tree:
        if not self.args:
            return leaf
        args = []
        for arg in self.args:
            args.append(arg.with_leaf(place, leaf) if 0 <= place < arg.leaves() else arg)
            place -= arg.leaves()
        return Tree(self.op, tuple(args))

    def rewritten(self, ways: list[int]) -> Tree:
        """The same function: terms and factors turned round, multiplied out, 0 and 1 put in, x/y as x·(1/y)."""
        if not self.args:
            return [
                self,
                Tree("+", (self, Tree("0"))),
                Tree("*", (Tree("1"), self)),
                Tree("/", (Tree("*", (self, Tree("3"))), Tree("3"))),
            ][ways[0] % 4]
        turned, args = (
            ways[1:] + ways[:1],
            tuple(arg.rewritten(ways[k + 1 :] + ways[: k + 1]) for k, arg in enumerate(self.args)),
        )
        way = turned[0] % 3
        if self.op == "+" and way:
            return Tree("+", args[::-1])
        if self.op == "*" and way == 1 and args[0].op == "+":
            return Tree("+", tuple(Tree("*", (part, args[1])) for part in args[0].args))
        if self.op == "*" and way:
            return Tree("*", args[::-1])
        if self.op == "/" and way:
            return Tree("*", (Tree("/", (Tree("1"), args[1])), args[0]))
        return Tree("*", (args[0], args[0])) if self.op == "^" and way else Tree(self.op, args)


leaves = st.sampled_from([Tree(each) for each in ("x", "y", "n", "1", "2", "3", "5", "7")])
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda op, a, b: Tree(op, (a, b)), st.sampled_from("++*/"), inner, inner),
        st.builds(lambda a: Tree("^", (a,)), inner),
    ),
    max_leaves=6,
)
POINT = {"x": Fraction(17, 3), "y": Fraction(-5, 7), "n": Fraction(29, 11)}


@settings(max_examples=500 * TIMES, deadline=None)
@given(trees, st.lists(st.integers(0, 11), min_size=6, max_size=6), st.integers(0, 5), leaves)
def test_expressions(tree: Tree, ways: list[int], place: int, leaf: Tree) -> None:
    try:
        value, changed = tree.at(POINT), tree.with_leaf(place % tree.leaves(), leaf)
        other = changed.at(POINT)
    except ZeroDivisionError:
        return
    both(tree.latex(), tree.rewritten(ways).latex(), True)
    if other != value:
        both(tree.latex(), changed.rewritten(ways).latex(), False)


FUNCTIONS = (
    r"\sqrt{%s}",
    r"\sin(%s)",
    r"e^{%s}",
    r"\ln(%s)",
    r"|%s|",
    r"\lfloor %s\rfloor",
    r"f(%s)",
    r"\arctan(%s)",
    r"\sqrt[3]{%s}",
    r"2^{%s}",
)


@settings(max_examples=250 * TIMES, deadline=None)
@given(
    trees, st.sampled_from(FUNCTIONS), st.lists(st.integers(0, 11), min_size=6, max_size=6), st.integers(0, 5), leaves
)
def test_functions_of_expressions(tree: Tree, function: str, ways: list[int], place: int, leaf: Tree) -> None:
    point = {name: abs(value) for name, value in POINT.items()}
    try:
        changed = tree.with_leaf(place % tree.leaves(), leaf)
        value, other = tree.at(point), changed.at(point)
    except ZeroDivisionError:
        return
    first, second = function % tree.latex(), function % tree.rewritten(ways).latex()
    if not any(each.op == "/" for each in _nodes(tree)) and 0 < value < 400:
        assert outcome(f"{first}+1", f"1+{second}") == "equal"
    if other != value and "floor" not in function:
        assert outcome(first, function % changed.latex()) != "equal"


def _nodes(tree: Tree) -> list[Tree]:
    return [tree, *(node for arg in tree.args for node in _nodes(arg))]


@settings(max_examples=120 * TIMES, deadline=None)
@given(st.integers(2, 99), st.integers(2, 99), st.integers(-9, 9), st.integers(1, 9), st.integers(1, 4))
def test_surds(first: int, second: int, shift: int, factor: int, change: int) -> None:
    gold = rf"{shift}+{factor}\sqrt{{{first}}}"
    both(gold, rf"\sqrt{{{first * factor * factor}}}+\frac{{{2 * shift}}}{{2}}", True)
    both(gold, rf"{shift}+\frac{{{factor * first}}}{{\sqrt{{{first}}}}}", True)
    both(rf"\sqrt{{{first}}}\sqrt{{{second}}}", rf"\sqrt{{{first * second}}}", True)
    both(rf"\sqrt{{{first}}}+\sqrt{{{second}}}", rf"\sqrt{{{first + second}+2\sqrt{{{first * second}}}}}", True)
    both(gold, rf"{shift}+{factor}\sqrt{{{first + change}}}", False)
    both(gold, rf"{shift + change}+{factor}\sqrt{{{first}}}", False)
    both(rf"\sqrt{{{first}}}+\sqrt{{{second}}}", rf"\sqrt{{{first + second}}}", False)


@settings(max_examples=100 * TIMES, deadline=None)
@given(st.integers(1, 9), st.integers(-9, 9), st.integers(-9, 9), st.integers(2, 5), st.integers(1, 3))
def test_equations(a: int, b: int, c: int, factor: int, change: int) -> None:
    assume(b and c)
    gold = f"{a}x{b:+}y={c}"
    both(gold, f"{factor * a}x{factor * b:+}y{-factor * c:+}=0", True)
    both(gold, f"{c}={b}y+{a}x", True)
    both(gold, f"{a}x{b:+}y={c + change}", False)
    both(gold, f"{a + change}x{b:+}y={c}", False)
    both(f"y={a}x{b:+}", f"{a}x-y{b:+}=0", True)
    both(f"x={c}", f"x={c + change}", False)
