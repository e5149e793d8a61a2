"""The list of what models write, an item each: it is read as what it looks like, and as nothing else."""

from __future__ import annotations

import pytest

from strop_verify.math import MathSettings
from strop_verify.math.compare import compare_readings
from strop_verify.math.expressions import TooMuch, Unreadable
from strop_verify.math.grammar import read
from strop_verify.math.latex import tokens

SAME = {
    # fonts, sizes, colours, tags, spacing
    r"\mathbf{5}": "5", r"\textbf{5}": "5", r"\boldsymbol{5}": "5", r"\bm{x}": "x", r"{\bf 5}": "5", r"\rm 5": "5",
    r"\mathrm{x}": "x", r"\mathit{x}": "x", r"\text{5}": "5", r"\mbox{5}": "5", r"\underline{5}": "5",
    r"\fbox{5}": "5", r"\boxed{5}": "5", r"\large 5": "5", r"\displaystyle 5": "5", r"\color{red}{5}": "5",
    r"\color{red}5": "5", r"{\color{blue} 5}": "5", r"\textcolor{red}{5}": "5", r"\colorbox{yellow}{5}": "5",
    r"5\tag{1}": "5", r"\label{a}5": "5", r"\phantom{1}5": "5", r"\,5\;": "5", r"\quad 5": "5", r"~5": "5",
    r"5\\": "5", "$5$": "5", r"\(5\)": "5", r"\[5\]": "5", "$$5$$": "5", r"\left(5\right)": "5",
    r"\left.5\right.": "5", r"\bigl(5\bigr)": "5", r"\ensuremath{5}": "5", r"5\nonumber": "5", r"{{5}}": "5",
    r"\overbrace{5}": "5", r"\scriptsize 5": "5", r"\textsc{5}": "5", r"\mathnormal{5}": "5", r"\normalfont 5": "5",
    r"\vphantom{1}5": "5", r"\fcolorbox{red}{white}{5}": "5", r"\framebox{5}": "5", r"5\notag": "5", r"\null5": "5",
    r"5\tag*{(1)}": "5", r"\begin{aligned}5\end{aligned}": "5", r"5\blacksquare": "5", r"5\checkmark": "5", "5 ✓": "5",
    "**5**": "5", "“5”": "5", "5\\": "5", r"\rightarrow 5": "5", r"\,10,\!080\,": "10080",
    "5.": "5", "5,": "5", "<|im_start|>5<|im_end|>": "5", r"x=1,\quadx": "x=1, x",
    # fractions, roots, powers
    r"\dfrac12": "1/2", r"\tfrac{1}{2}": "1/2", r"\cfrac{1}{2}": "1/2", r"\frac1{2}": "1/2", r"\frac{1}2": "1/2",
    r"\frac 59": "5/9", r"\frac ab": "a/b", r"\frac\pi4": r"\pi/4", "½": "1/2", "1½": "3/2", "⅔": "2/3",
    "½π": r"\pi/2", r"1\div 2": "1/2", "1÷2": "1/2", "1⁄2": "1/2", r"\sqrt2": "2^{1/2}", r"\sqrt 2": "2^{1/2}",
    "√2": "2^{1/2}", "√(2)": "2^{1/2}", "2√3": r"2\sqrt{3}", r"\sqrt(x+1)": r"\sqrt{x+1}", r"\sqrt[3]{8}": "2",
    "∛8": "2", "x**2": "x^2", "x²": "x^2", "x¹⁰": "x^{10}", "x⁻¹": "1/x", "x^-1": "1/x",
    "10^-5": "0.00001", "x₁": "x_1", "x_{1}": "x_1",
    "10^9": "1000000000", "x^{2}": "x^2", r"\exp(x)": "e^x", r"\mathrm{e}^x": "e^x", r"\text{e}": "e", "1 1/2": "3/2",
    r"1\frac12": "3/2", r"3 \frac{1}{2}": "7/2",
    # numbers
    "−5": "-5", "－5": "-5", "–5": "-5", "５": "5", "𝟓": "5", "1,234,567": "1234567", "1{,}234": "1234",
    r"1\,234": "1234", r"1,\!234": "1234", "1 234 567": "1234567", "007": "7", ".5": "0.5", "+5": "5",
    "1.5e3": "1500", r"1.5\times10^{3}": "1500", r"1.5 \cdot 10^3": "1500", "1.5E-3": "0.0015",
    r"0.\overline{3}": "1/3", r"0.\dot{3}": "1/3", r"0.1\bar{6}": "1/6", "0.(3)": "1/3", r"0.333\ldots": "1/3",
    "0.333...": "1/3", "0.142857142857…": "1/7", r"0.\overline{9}": "1", "0.3\u0305": "1/3",
    # signs, Greek and sets
    "2·3": "6", "2×3": "6", r"2\ast 3": "6", "x≤3": r"x\leq 3", "x >= 3": r"x\ge 3", r"x\leqslant 3": r"x\le 3",
    "x≠3": r"x\neq 3", "x != 3": r"x\ne 3", "π": r"\pi", "pi": r"\pi", "θ": r"\theta", r"\varphi": r"\phi",
    "Δ": r"\Delta", "∞": r"\infty", "-∞": r"-\infty", "∅": r"\emptyset", r"\varnothing": r"\emptyset",
    r"\{\}": r"\emptyset", "ℝ": r"\mathbb{R}", r"\mathbb R": r"\mathbb{R}", "[0,1]∪[2,3]": r"[0,1]\cup[2,3]",
    "｛1，2｝": r"\{1,2\}", r"\lbrace 1,2\rbrace": r"\{1,2\}", r"|x|": r"\lvert x\rvert", "⌊x⌋": r"\lfloor x\rfloor",
    "1±√2": r"1\pm\sqrt{2}", "x ∈ [0,1]": r"x\in[0,1]", r"\mathbb{R}\backslash\{2\}": r"\mathbb{R}\setminus\{2\}",
    r"3\%": "3%", "90°": r"90^\circ", r"90^{\circ}": r"90^\circ", r"90\degree": r"90^\circ", "⁻5": "-5",
    "90^o": r"90^\circ", r"x\not=3": r"x\ne3", r"x\not\in\{1\}": r"x\notin\{1\}", r"f^{\prime}": "f'",
    r"f^\prime": "f'", "9{:}30": "9:30",
    # functions
    "sin(x)": r"\sin x", "sinx": r"\sin x", r"\operatorname{lcm}(4,6)": "12", r"\mathrm{lcm}(4,6)": "12",
    "lcm(4,6)": "12", "np.arcsin(1)": r"\arcsin 1", r"\tan^{-1} x": r"\arctan x", r"\lg 2": r"\log_{10} 2",
    r"\log_e 2": r"\ln 2", "sqrt(2)": r"\sqrt{2}", r"\sin^2 x": r"(\sin x)^2",
    r"\binom{5}{2}": "10", r"\dbinom52": "10", r"\\frac{1}{2}": "1/2",
    # units and words around
    r"5\text{ cm}": "5 cm", r"5\mathrm{~cm}": "5 cm", r"5\,\mathrm{cm}": "5 cm", r"5\mbox{ cm}^2": r"5\text{ cm}^2",
    r"\$5": "5", r"\text{€}5": "5", "£5": "5", r"42^{\text{th}}": "42", r"42\text{nd}": "42",
    r"\text{negative }5": "-5", "minus 5": "-5",
    r"\text{The answer is }5": "5", r"\text{Answer: }5": "5", r"\approx 5": "5", "= 5": "5",
    r"\text{Monday}": "monday", r"\textit{Yes}": "yes",
}  # fmt: skip
DIFFERENT = {
    "⁵": "5", r"5^\prime": "5", r"\frac{12}{3}": r"\frac12 3", "1,23": "123", "(1,234)": "1234", "12,34": "1234",
    "0,4": "4", r"\overline{12}": "12", r"\mathcal{L}": "l", "x_1": "x1", r"0.\overline{9}8": "1", "x^{nd}": "x",
    r"x\not\equiv5\pmod7": r"5\pmod7", r"4\over5": "4", r"-\text{blue}": "blue", r"\text{blue}'": "blue",
    "5!": "5", "5i": "5", r"\cancel{5}": "5", r"5\text{ if }x": "5",
}  # fmt: skip


def equal(gold: str, answer: str) -> bool:
    try:
        return compare_readings(read(gold), read(answer), MathSettings()).equal
    except (Unreadable, TooMuch):
        return False


@pytest.mark.parametrize(("written", "plain"), SAME.items())
def test_it_is_read_as_what_it_looks_like(written: str, plain: str) -> None:
    assert equal(plain, written), (read(plain).answer, read(written).answer)
    assert equal(written, plain)


@pytest.mark.parametrize(("written", "plain"), DIFFERENT.items())
def test_it_is_not_read_as_more(written: str, plain: str) -> None:
    assert not equal(plain, written)


@pytest.mark.parametrize(
    "broken",
    [
        "", "2 +", r"2^", "2)(3", "5@3", "5 & 3", r"\frac{1}{", r"5 \to 3", "5?", r"x = 2 +", "(", "|x", r"\foo{5}",
        "1 2",
    ],
)  # fmt: skip
def test_what_cannot_be_read_as_a_whole_is_unreadable(broken: str) -> None:
    with pytest.raises(Unreadable):
        read(broken)


def test_a_letter_run_is_a_product_and_a_word_is_a_word() -> None:
    assert [token.kind for token in tokens("2mgh")] == ["number", "letter", "letter", "letter"]
    assert [token.kind for token in tokens("no solution")] == ["word", "word"]
    assert [token.text for token in tokens("e^{it}")] == ["e", "^", "{", "i", "t", "}"]
    assert [token.kind for token in tokens("5 cm")] == ["number", "word"]
