"""Products whose order counts, sets in sets, propositions, conditions, constants of integration, choices with texts."""

from __future__ import annotations

import pytest

from strop_verify.math import MathSettings
from strop_verify.math.compare import compare_readings
from strop_verify.math.expressions import Unreadable
from strop_verify.math.grammar import read
from strop_verify.math.prose import Finder

EQUAL = (
    # matrices
    ("(AB)^{-1}", "B^{-1}A^{-1}"), ("(AB)^T", "B^TA^T"), ("A^{-1}(B+C)", "A^{-1}C+A^{-1}B"), ("A^{-1}AB", "B"),
    ("AB-BA", "-(BA-AB)"), ("(A+B)^2-A^2-B^2", "AB+BA"), ("PD^2P^{-1}", "PDDP^{-1}"), ("2A^{-1}B", "A^{-1}(2B)"),
    # in lengths and volumes the order is free
    (r"\frac{AB}{CD}", r"\frac{BA}{DC}"), (r"\frac{nRT}{V}", r"nTRV^{-1}"), ("Ax+By", "By+Ax"),
    # vectors
    (r"\vec{a}\times\vec{b}", r"-\vec{b}\times\vec{a}"), (r"\mathbf{u}\times\mathbf{v}", r"\vec u\times\vec v"),
    (r"\vec{a}\times(\vec{b}+2\vec{c})", r"\vec a\times\vec b-2\vec c\times\vec a"),
    (r"\vec{a}\cdot\vec{b}", r"\vec{b}\cdot\vec{a}"), (r"l\times w", "wl"), (r"2\times3", "6"),
    (r"3\mathbf{i}-2\mathbf{j}+\mathbf{k}", r"3\hat{i}-2\hat{j}+\hat{k}"), (r"3\hat{i}-\hat{j}", "(3,-1)"),
    (r"\mathbf{v}", "v"), (r"6-5i", r"\overline{6+5i}"),
    # functions
    (r"f\circ g", r"f \circ g"), ("f(g(x))", r"(f\circ g)(x)"), (r"30^\circ", r"30\circ"), ("mg(a+b)", "mga+mgb"),
    # propositions
    (r"p\to q", r"\neg q\to\neg p"), (r"p\to q", r"\neg p\lor q"), (r"\neg(p\land q)", r"\neg p\lor\neg q"),
    (r"p\leftrightarrow q", r"(p\to q)\land(q\to p)"), (r"p\to(q\to r)", r"p\to q\to r"),
    # constants of integration, conditions, derivatives
    (r"\frac{x^3}{3}+C", r"\frac{x^3+1}{3}+C"), (r"\frac12\sin^2x+C", r"-\frac12\cos^2x+C"),
    (r"\ln|x|+C", r"\ln|2x|+C"), (r"\frac{1}{1-x}", r"\frac{1}{1-x}\text{ for }|x|<1"),
    (r"\sqrt{\frac ab}", r"\frac{\sqrt{ab}}{b}\text{ for }a,b>0"), ("f'(x)=2x", r"\frac{df}{dx}=2x"),
    ("y'=2x", r"\frac{dy}{dx}=2x"), ("x^2+y^2=25", r"\sqrt{x^2+y^2}=5"), (r"y=Ce^{2x}", r"Ce^{2x}"),
    # roots of quotients, inverse functions
    (r"\sqrt{1+\frac{1}{x-1}}", r"\sqrt{\frac{x}{x-1}}"), (r"\arctan x", r"\arcsin\frac{x}{\sqrt{1+x^2}}"),
    # sets in words, units and counters
    (r"\text{all even integers}", r"n=2k,\ k\in\mathbb{Z}"), (r"\text{all odd integers}", r"2k-1, k\in\mathbb{Z}"),
    (r"\text{all even integers}", r"\text{all even integers } n"), (r"\mathbb{Q}", r"\text{the rational numbers}"),
    (r"\text{no solution}", r"\text{There are no solutions}"), ("12", r"12\text{平方厘米}"), ("12", "12个"),
    (r"12\text{ cm}^2", r"12\text{平方厘米}"), (r"\mathrm{C_6H_{12}O_6}", "C_6H_{12}O_6"), (r"H_2O", r"\ce{H2O}"),
    ("3:60", "1:20"), (r"\frac34", r"\nicefrac{3}{4}"), ("Alice: 5, Bob: 3", "Bob: 3, Alice: 5"), ("5", r"\{5\}"),
    ("(B) 12", "(B)"), ("(B) 12", r"(B) \frac{24}{2}"),
    # other spellings of conditions, lists, points, matrices and numbers
    (r"\frac1x", r"\frac1x,\ x\ne0"), (r"\frac1x", r"\frac1x\ (x\ne0)"), (r"\frac1x", r"\frac1x\text{ if }x\ne0"),
    ("1,2", r"1\text{ et }2"), ("1,2", r"x=1\text{ oder }x=2"), ("12", r"\text{la respuesta es }12"),
    ("(3,4)", "P(3,4)"), ("(3,4)", "P=(3,4)"), ("3+4i", "3+i4"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4]]"), ("F_{n+1}", "F_{1+n}"), ("21", r"\text{twenty-one}"),
    (r"\binom{n}{k}", r"{n \choose k}"), (r"\frac12", r"{1 \over 2}"), (r"5\text{ cm}", r"\SI{5}{cm}"),
    ("12000", r"\num{12000}"), (r"30^\circ", r"30\textdegree"), (r"\mathbb{R}", r"\R"), (r"A\subset B", r"A \subset B"),
    (r"l\perp m", r"m\perp l"), (r"A\subset B", r"B\supset A"), ("1,-2", "x=1或x=-2"), ("ACD", r"\{A,C,D\}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\[4pt]2\end{bmatrix}"), ("18", r"18\ \text{(dollars)}"),
    (r"\frac14", r"\sin^230^\circ"), (r"\sqrt{\frac{2GM}{R}}", r"\sqrt2\sqrt{\frac{GM}{R}}"),
    (r"2\pi\sqrt{\frac Lg}", r"\sqrt{\frac{4\pi^2L}{g}}"), ("5:12:13", "15:36:39"),
)  # fmt: skip
NOT_EQUAL = (
    ("B^{-1}A^{-1}", "A^{-1}B^{-1}"), ("PDP^{-1}", "D"), ("AB-BA", "0"), ("A^TB", "BA^T"),
    (r"\vec{a}\times\vec{b}", r"\vec{a}\cdot\vec{b}"), (r"\mathbf{u}\times\mathbf{v}", r"\mathbf{v}\times\mathbf{u}"),
    (r"\nabla\times F", r"\nabla\cdot F"), (r"A\times B", r"B\times A"), (r"f\circ g", r"g\circ f"),
    (r"f\circ f", "f^2"), (r"f\circ g", "fg"), (r"\{1,2,3\}", r"\{\{1,2,3\}\}"),
    (r"\{1,2,3\}", r"\{\{1\},\{2\},\{3\}\}"), (r"\{1,2,3\}", r"\{\{1,2\},3\}"), ("n=5", r"n\equiv5\pmod7"),
    (r"p\to q", r"q\to p"), (r"p\to q", r"p\land q"), (r"\frac{x^3}{3}+C", r"\frac{x^3}{3}+x+C"),
    (r"\frac{x^3}{3}+C", r"\frac{x^3}{3}"), ("n=k+4", "n=k+5"), ("C+4", "C+5"),
    ("ax^2+bx+c", "ax^2+bx+c+1"), ("x+1", r"x+1\text{ for }y>2"), ("5", r"5\text{ for }x>2"),
    (r"\text{all even integers}", r"2k+1, k\in\mathbb{Z}"), (r"\text{no solution}", r"\text{no solution exist for } x"),
    ("12", "12万"), ("12", "12以上"), ("3:60", "4:00"), ("9:30", "0.3"), ("Alice: 5, Bob: 3", "Alice: 3, Bob: 5"),
    ("x=1, y=2", "2, 1"), ("(2,12)", "y=2, x=12"), (r"1,2,\ldots,n", r"2,1,\ldots,n"), ("1,2", "(2,1)"),
    ("(B) 12", "(B) 13"), ("(B) 12", "(A) 12"), ("1,-2", r"x=-2\text{ no }x=1"),
    (r"A\subset B", r"B\subset A"), (r"A\subset B", r"A\subseteq B"), (r"l\perp m", r"l\parallel m"),
    ("(3,4)", r"\text{reflection of }(3,4)"), ("(3,4)", r"\text{not }(3,4)"), ("42", r"42\text{ if }x>2"),
    ("F_{n+1}", "F_{n-1}"), ("21", r"\text{twenty one hundred}"), 
    ("12", r"\text{la respuesta no es }12"), (r"\sqrt{x^2+y^2}=5", "x^2+y^2=5"),
)  # fmt: skip


def equal(gold: str, answer: str) -> bool:
    try:
        return compare_readings(read(gold), read(answer), MathSettings()).equal
    except Unreadable:
        return False


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(gold: str, answer: str) -> None:
    assert equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), NOT_EQUAL)
def test_not_equal(gold: str, answer: str) -> None:
    assert not equal(gold, answer)


@pytest.mark.parametrize("where", ["boxed", "any"])
def test_a_box_that_is_called_wrong_states_nothing(where: str) -> None:
    for text in (r"$\boxed{5}$ is wrong.", r"\boxed{5} is not the answer", r"\boxed{5} isn't right."):
        assert Finder().find(text, where) == "the answer is denied"
    assert not isinstance(Finder().find(r"$\boxed{5}$ is the answer, not 6.", where), str)
