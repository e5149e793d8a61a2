"""Each kind of answer by its own rule: what is proved equal, and what is not rewarded."""

from __future__ import annotations

import pytest

from strop_verify.math import MathSettings
from strop_verify.math.compare import compare_readings
from strop_verify.math.expressions import TooMuch, Unreadable
from strop_verify.math.grammar import read
from strop_verify.math.units import counted, read_unit, table

RULES = MathSettings()


def outcome(gold: str, answer: str, rules: MathSettings = RULES) -> str:
    try:
        return str(compare_readings(read(gold), read(answer), rules).outcome)
    except (Unreadable, TooMuch):
        return "unreadable"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("5", "number"), ("0.5", "decimal"), ("x+1", "expression"), (r"5\text{ cm}", "measure"), (r"5\%", "measure"),
        (r"\text{Monday}", "words"), ("no solution", "words"), ("PQR", "title"), (r"\angle ABC", "title"),
        ("B", "choice"), ("(B)", "choice"), (r"\text{A, C}", "choice"), ("9:30", "clock"), ("3 PM", "clock"),
        ("2516_8", "digits"),
        ("3:2", "expression"), ("1:2:3", "ratio"), ("(1,2)", "tuple"), ("1,2", "list"), (r"\{1,2\}", "set"),
        ("1 or 2", "set"), ("x=1, x=2", "set"), ("[1,2)", "interval"), (r"(2,\infty)", "interval"),
        ("x>2", "relation"), ("y=x", "relation"), (r"[0,1]\cup[2,3]", "∪"), ("x>2 and x<3", "∩"),
        (r"5\pmod 7", "residue"), (r"x\equiv5\pmod7", "residue"), (r"7k, k\in\mathbb{Z}", "family"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "matrix"), (r"\begin{cases}1&x>0\\0&x\le0\end{cases}", "cases"),
    ],
)  # fmt: skip
def test_what_a_text_is(text: str, kind: str) -> None:
    assert read(text).kind == kind


EQUAL = (
    # numbers, decimals, percentages
    ("1/2", "0.5"), ("1/3", "0.333333"), (r"\frac{22}{7}", "3.142857"), (r"\sqrt2", "1.414214"), ("0.1", "0.10"),
    (r"\frac{1000000}{3}", "333333.33"), ("10%", "10"), ("10%", "0.1"), ("0.25", r"25\%"), ("25", r"25\%"),
    (r"2^{-30}", r"\frac{1}{2^{30}}"), ("1.6e-19", "0.00000000000000000016"), ("2.5 million", "2500000"),
    ("60", "5 dozen"), ("1200000", "12 lakh"),
    # units and counted things
    ("5 cm", "50 mm"), ("5 cm", "5"), ("5", "5 cm"), ("90 minutes", "1.5 hours"),
    ("2 hours 30 minutes", "150 minutes"), ("2 hours 30 minutes", "2 hours and 30 minutes"), ("1500 m", "1.5 km"),
    ("5 m/s", r"5\,\mathrm{m}\,\mathrm{s}^{-1}"), ("3 square meters", r"3\text{ m}^2"), ("36 km/h", "10 m/s"),
    ("5.4 cents", r"\$0.054"), ("5", "5 distinct apples"), ("42", "42 ways"), ("5", "5m"), ("5", r"5\,\Omega"),
    ("5", r"5^\circ C"), (r"45^\circ", "45"), (r"\frac{\pi}{4}", r"45^\circ"), (r"30^\circ 15'", r"30.25^\circ"),
    ("12", "12 different outcomes"), (r"-\$5", r"\$-5"), ("5 liters of water", "5 L"),
    # words, names, choices
    ("No", "no"), ("True", "TRUE"), (r"\text{no solution}", r"\emptyset"), (r"\emptyset", r"\{\}"),
    ("DNE", "does not exist"), (r"\infty", r"\text{infinite}"), (r"\mathbb{R}", "all real numbers"),
    ("Sue and Tom", "Tom and Sue"), ("three", "3"), ("ABC", r"\text{ABC}"), ("B", "(B)"), ("B", "B. 12"),
    ("A,C", "AC"), ("A,C", "C, A"), (r"\text{(A)}", "Option A"),
    # times, dates, divisions, digits
    ("9:30", "09:30"), ("9:30", "9:30 a.m."), ("3 PM", "15:00"),
    ("2516_8", "2516"), ("11", "11_{10}"),
    ("3:2", "6:4"), ("1:2:3", "2:4:6"),
    (r"\angle ABC", r"\angle{CBA}"),
    ("Yes", "The answer is yes"), ("2516_8", "(2516)_8"),
    ("2516_8", r"2516_{\text{eight}}"), ("3:2", "6 to 4"), (r"2\text{ h }30\text{ min}", "150 minutes"),
    (r"9.8\text{ m/s}^2", r"9.8\frac{\text{m}}{\text{s}^2}"), ("even", "is even"),
    (r"(-\infty,-3]\cup[5,\infty)", r"x\le-3\cup x\ge5"), (r"\tan x", r"\operatorname{tg}x"),
    ("42", "42 in total"), ("42", "42 years old"), ("42", "42 cookies per day"), ("42", r"42^\circ\text{C}"),
    # several answers
    ("1,2", "1 and 2"), ("1,2", "x=2 or x=1"), (r"\{1,2\}", "2, 1"), ("(1,2)", "(x,y)=(1,2)"),
    ("-2, 1", "1, -2"), ("(2,12)", "y=12, x=2"), ("1,-2", r"x=-2\text{ ou }x=1"),
    ("1,2", "x_1=1, x_2=2"), ("a=4,b=5", "b=5,a=4"), ("(1,2),(3,4)", "(3,4),(1,2)"), (r"\pm2", "2,-2"),
    (r"1\pm\sqrt2", r"1-\sqrt2, 1+\sqrt2"), (r"\{1\pm\sqrt5,-2\}", r"-2, 1+\sqrt5, 1-\sqrt5"),
    ("p=5,q=2;p=7,q=2", "(p,q)=(5,2),(7,2)"), (r"1,3,\ldots,2n-1", r"1, 3, \dots, -1+2n"),
    # sets of numbers
    ("1<x<3", "(1,3)"), ("1<x<3", r"x\in(1,3)"), (r"(2,\infty)", "x>2"), ("x>2", "2<x"), (r"[-1,1]", r"-1\le x\le 1"),
    (r"(-\infty,2)\cup(2,\infty)", r"\mathbb{R}\setminus\{2\}"), (r"(-\infty,2)\cup(2,\infty)", r"x\ne2"),
    ("|x|<3", "-3<x<3"), ("x^2<9", "-3<x<3"), ("|2x-1|>3", "x<-1 or x>2"), ("x>0 and x<5", "0<x<5"),
    (r"x\in\mathbb{R}", r"\forall x\in\mathbb{R}"),
    ("-x>=-1", "x<=1"), ("[0,2]", r"[0,1]\cup[1,2]"), (r"x^2\ge 2", r"(-\infty,-\sqrt2]\cup[\sqrt2,\infty)"),
    (r"x\le\sqrt8", r"x\le2\sqrt2"), ("x+y<3", "3>y+x"), ("]1,2[", "1<x<2"),
    # equations, residues, families
    ("x^2+y^2=4", "x^2+y^2-4=0"), ("2x+3y=6", "4x+6y=12"), ("y=2x+3", "2x-y+3=0"), ("f(x)=2x", "2x"),
    ("y=2x+3", "2x+3"), (r"\frac{dx}{dt}=kx-a", r"\frac{dx}{dt}+a=kx"), ("5", "x=5"), ("11", "x=5+5+1=11"),
    ("5", "|AB|=5"), ("MR=SRMC", "MR = SRMC"), (r"5\pmod7", "5"), (r"x\equiv5\pmod7", "x ≡ 12 (mod 7)"),
    ("2", r"17\bmod5=2"), (r"7k+5, k\in\mathbb{Z}", "7n-2"), (r"\frac{x^3}{3}+C", r"\frac{x^3}{3}+c"),
    (r"\frac{\sqrt3}{3}\approx0.577", r"\frac{1}{\sqrt3}"), (r"\frac13", r"\frac13\approx0.33"), ("5", "f(2)=5"),
    ("5", "a+b=5"), ("f(x)=2x", "f(t)=2t"), (r"P(A)=\frac13", r"P=\frac13"),
    ("p=5,q=2;p=7,q=2", r"(p,q)\in\{(5,2),(7,2)\}"), (r"5\pmod7", "x=7k+5"), ("e", "2.71828182845904"),
    (r"7k+5, k\in\mathbb{Z}", "7m+5 for integers m"), (r"1\pm\sqrt2", r"1\mp\sqrt2"),
    # matrices and cases
    (r"\begin{pmatrix}1/2\\-1\end{pmatrix}", r"\begin{bmatrix}0.5\\-1\end{bmatrix}"),
    (r"\begin{pmatrix}6&8\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}+\begin{pmatrix}5&6\end{pmatrix}"),
    (r"\begin{cases}1&n\text{ even}\\0&n\text{ odd}\end{cases}",
     r"\begin{cases}1&\text{if }n\text{ even}\\0&n\text{ odd}\end{cases}"),
)  # fmt: skip
NOT_EQUAL = (
    ("1/3", "0.33"), (r"\frac{22}{7}", "3.142858"), (r"\pi", "3.14159"), (r"\pi", r"\frac{355}{113}"),
    ("0.0000001", "0"), ("5.001", "5"), ("3.5", "3.49"), ("0.25", r"0.25\%"), ("100", r"99\%"),
    ("1.6e-19", "1.7e-19"), ("1", "0.9999999999"), ("1234", "1.234"), ("12", "12 lakh"), ("12", "12 k"),
    ("12", "12 gross"), ("12", "12 per mille"), ("12", "12 inverse"), ("12", "12 doubled"), ("12", "12 quadrillion"),
    ("5", "5 thirds"), ("5", "5 minus"), ("5", "5 squared"), ("5", "5 negative"), ("5", "more than 5"),
    ("5 km north", "5 km south"), ("5", "5 left"), ("5 left", "5 right"), ("5 cm", "5 m"), ("5 cm", "5 kg"),
    (r"45^\circ", "45 kg"), (r"45^\circ", r"-45^\circ"), ("5 apples", "5 oranges"),
    ("30 hours 2 minutes", "2 hours 30 minutes"), ("2 hours 30 minutes", "230"), ("5.4 cents", r"\$5.4"),
    ("44 BC", "44 AD"), (r"30^\circ\text{ N}", r"30^\circ\text{ S}"), ("No", "on"), ("May", "Amy"),
    ("Evelyn", "not Evelyn"), ("Evelyn", "Evelyn, Briana"), (r"\text{no solution}", "solution"),
    (r"\text{no solution}", "0"), (r"\emptyset", r"\{\emptyset\}"), (r"\emptyset", r"\{0\}"), ("ABC", "CAB"),
    (r"\angle ABC", r"\angle ACB"), ("AB", "A+B"), ("B", "(B), (C)"), ("B", "B+1"), ("B", "A. B"), ("A,C", "A"),
    ("C, A, B", "A, B, C"), ("A", "A or B"), ("3 PM", "3 AM"), ("9:30", "9:3"), ("9:30", "9:30 PM"), ("9:30", "0.3"),
    ("12:30", "1:30"), ("2516_8", "1358"),
    ("2", "10_2"), ("5", "5_7"), ("10:1", "1:10"), ("(1,2)", "(2,1)"), (r"\{1,2\}", "(1,2)"),
    ("1,2", "1"), ("1", "1,2"), ("5", "5 or 6"), ("2", r"\pm2"), (r"\pm2", "2"), ("5", "a=5, b=6"),
    ("p=5,q=2;p=7,q=2", "p=2,q=5;p=2,q=7"), (r"1,2,\ldots,n", r"1,2,\ldots,n+1"), ("4", "4=5"), ("3", "2=3"),
    ("(1,2)", "[1,2]"), (r"(2,\infty)", r"x\ge2"), ("1<x<3", "1<x"), ("x<-1 or x>1", "x<-1 and x>1"), ("x>2", "y>2"),
    ("[0,1)", "[0,1]"), (r"[0,1)\cup(2,3]", "[0,3]"), ("(0,12.5)", "0<x<12.5"),
    (r"\left(3,\frac{\pi}{2}\right)", r"\left[3,\frac{\pi}{2}\right)"), ("5", "x>5"), ("5", r"\neq5"), ("x=1", "y=1"),
    ("x^2+y^2=4", "x^2+y^2=16"), ("x+y=1", "x-y=1"), (r"\frac{dx}{dt}=kx-a", r"\frac{dq}{dt}=kx-a"),
    (r"\frac{dM}{dt}=M", "3"), ("5", "2x=5"), ("f(x)=2x", "f(x)=f(x)"), ("f(x)", "f(y)"), (r"5\pmod7", r"5\pmod8"),
    (r"5\pmod7", r"6\pmod7"), ("5", r"5\pmod1"), ("7k+5, k\\in\\mathbb{Z}", "7k+4"), (r"\ln x+C", r"\ln x"),
    (r"\frac{x^3}{3}+C", r"\frac{x^3}{3}+D^2"), ("2n+1", "2k+1"), ("2", r"2\in\{1,2\}"), ("55", r"\sum_{k=1}^{10}k"),
    (r"\frac12", r"\int_0^1x\,dx"), ("5", r"5\text{ if }n\text{ is even}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    (r"\begin{cases}1&x>0\\0&x<0\end{cases}", "0"), ("Sue and Tom", "Sue or Tom"), ("A,C", "A or C"),
    ("x^2+y^2=25", "25"), ("x^2+y^2=25", "x^2+y^2=5"), ("P(A)=\\frac13", r"P(B)=\frac13"), ("5", "5 \\approx 6"),
    ("blue", "9=blue"), ("(1,2)", "9=(1,2)"), (r"\infty", r"\infty\approx9"), ("9:30", r"9:30\approx9"),
    ("n!", "9=n!"), ("x+1", "9=x+1"), ("blue", "blue (mod 9)"), ("0.75", "0.75 (mod 9)"), ("x+1", "x+1 (mod 9)"),
    (r"5\pmod7", r"5\pmod7\pm1"), ("1/2004!", "1/2006!"), ("12", "12 basis points"), ("12", "12 cookies per dozen"),
    ("f(x)=2x", "f(x)=2y"), ("f(x)=2x", "f(t)=2x"), ("0.5", "0.49999999"), (r"\frac23", "0.66666"),
)  # fmt: skip
# What turns an answer into another one, or into none, wherever it stands before or after it.
GOLDS = (
    "5", r"\frac12", "0.75", "2n+3", "(1,2)", r"\text{blue}", r"10\text{ cm}", r"\sqrt7", r"\{1,2\}", "[0,1)", "x=3",
    r"25\%", r"\infty", r"\text{no solution}", "9:30", r"\begin{pmatrix}1\\2\end{pmatrix}", "2x-y=3", "PQR", "101_2",
    r"1.6\times10^{-19}", "x>2", r"1\frac12",
)  # fmt: skip
AFTER = (
    "+1", "-1", r"\cdot2", "^3", ",9", ";9", r"\text{ or }9", r"\text{ and }9", r"\text{ not}", r"\text{ if }a>0", "/7",
    "_9", r"\times10^3", r"\pm1", "i", r"\pi", r"\text{ million}", r"\text{ dozen}", r"\text{ squared}", "=9", r"\ne9",
    "<9", r"\to9", "?", r"\ldots", r"\text{ is wrong}", r"\text{ except }9", r"\cup\{9\}", r"\text{ or more}",
    r"\text{ plus }9", r"\text{ times }9", r"\vee 9", r"\oplus9", r"\text{ maybe}", r"\text{ to }9", r"\approx9",
    r"\equiv9", r"\Rightarrow9", r"\quad9", r"\text{ halves}", r"\text{ or none}", r"\text{ or so}", r"\text{ (false)}",
)  # fmt: skip
BEFORE = (
    "2", r"\sqrt", "4+", r"\text{not }", r"\neg", r"\ne", r"\text{more than }", r"\text{at most }", "9,",
    r"9\text{ or }", r"\text{all but }", r"\not", r"\sin", "e^", r"\text{half of }", r"\text{twice }", "9=", "9-",
    r"\text{between }9\text{ and }", r"\text{under }", r"\text{non-}", r"\text{neither }", r"\text{anything but }",
    r"\text{minus }", r"\Delta", r"\mathbb{R}\setminus", r"\text{never }", r"\text{false: }", r"\text{it is not }",
    r"\text{except }", "9;", r"9\text{ and }", r"\sum", r"\lim", r"\text{about half }",
)  # fmt: skip


@pytest.mark.parametrize("gold", GOLDS)
def test_nothing_that_changes_an_answer_is_overlooked(gold: str) -> None:
    equal = [text for text in (*(gold + each for each in AFTER), *(each + gold for each in BEFORE))
             if outcome(gold, text) == "equal"]  # fmt: skip
    assert not equal


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(gold: str, answer: str) -> None:
    assert outcome(gold, answer) == "equal"


@pytest.mark.parametrize(("gold", "answer"), NOT_EQUAL)
def test_not_equal(gold: str, answer: str) -> None:
    assert outcome(gold, answer) != "equal"


def test_what_is_neither_proved_is_unknown() -> None:
    assert outcome("5", "5 left") == "unknown"
    assert outcome(r"\int_0^1 x\,dx", "1/2") == "unknown"
    assert outcome(r"\zeta(3)", r"\zeta(3)") == "equal"


def test_rules_are_settings() -> None:
    assert outcome("-2, 1", "1, -2", MathSettings(ordered_lists=True)) == "different"
    assert outcome("(0,5)", "0<x<5", MathSettings(allow_set_relation_comp=True)) == "equal"
    assert outcome("f(x)", "f(y)", MathSettings(strict=False)) == "equal"
    assert outcome("0.3333", "1/3", MathSettings(precision=4)) == "equal"
    assert outcome("0.3333", "1/3", MathSettings(precision=5)) != "equal"


def test_units_have_dimension_and_factor() -> None:
    known = table()
    assert known["N"] == known["newton"] and known["N"].dimension == (("g", 1), ("m", 1), ("s", -2))
    assert known["mph"].factor * 3600 == known["mile"].factor
    assert known["mL"].factor * 1000 == known["L"].factor
    assert "lakh" not in known and "north" not in known and "k" not in known


@pytest.mark.parametrize("words", ["lakh", "k", "north", "and 3 km", "cm cm cm or", "/", "per"])
def test_what_is_no_unit(words: str) -> None:
    from strop_verify.math.latex import tokens

    assert read_unit(tokens(words)) is None


def test_what_is_counted_is_a_plural_noun() -> None:
    assert counted(["apples"]) == "apples" and counted(["people"]) and counted(["any", "text"])
    assert outcome(r"60\text{ beats per minute}", "60") == outcome("14", r"\$14\text{ per person}") == "equal"
    assert outcome(r"60\text{ beats per minute}", r"60\text{ beats per second}") == "unknown"
    for words in (["inverse"], ["minus"], ["times"], ["thirds"], ["less"], ["north"], ["more", "apples"], []):
        assert counted(words) is None
    assert outcome("42 km", "42 furlongs") == outcome("42", "42 double apples") == "unknown"
