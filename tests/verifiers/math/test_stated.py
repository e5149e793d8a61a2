"""What an answer states where it holds more than a value: options, decimal commas, quantities, chains, assignments."""

from __future__ import annotations

import time

import pytest

from strop.base.types import Problem
from strop.verifiers.base import Isolation
from strop.verifiers.math_verifier import MathVerifier
from strop_verify.math import MathSettings
from strop_verify.math.compare import compare_readings
from strop_verify.math.expressions import TooMuch, Unreadable
from strop_verify.math.grammar import Reading, read
from strop_verify.math.prose import Finder
from strop_verify.math.settings import stated_settings
from strop_verify.math.verifier import verify_here

FINDER = Finder()


def rewarded(gold: str, answer: str) -> bool:
    try:
        return compare_readings(read(gold), read(answer), MathSettings()).equal
    except (Unreadable, TooMuch):
        return False


@pytest.mark.parametrize(
    "answer",
    [
        "B. C.", "(B)(C)", "(B) (C)", "B/C", "B C", "(B), (C)", "BC", "B: C", "B) C)", "B.C.", "B-C", "B & C", "A=B",
        "(B)/C", "(B)/(C)", "(B) 12 (C) 13", "(B) 12, (C) 13", "(B) 12, C", r"(B) 12 \text{ or } C", "B; C",
        r"\text{B}\ \text{C}", r"\text{B. C. D.}", r"\text{(B) red (C) blue}", r"(B) \rightarrow (C)", "(B,C)",
        r"\text{(B), maybe C}", r"\text{(B) but maybe (C)}", "B. the red one or C. the blue one", "A. B", r"\{B,C\}",
        r"\text{B. red C. blue}", r"\text{B: red, C: blue}", r"\text{(B) is wrong}", r"\text{not B}", "B = C", "B_C",
        r"\text{not C but B}", r"\text{(B) and also (C)}", r"\text{Options B and C}", "(B) 1 (C)", "(B) CD",
        r"(B) \neq (C)",
        "b c", "b/c", "b. c.", "(b)(c)", "(b), (c)", "b or c", "bc", "2b", "b^2", "-b", "c", "(c)", "C",
    ],
)  # fmt: skip
def test_a_choice_is_one_option(answer: str) -> None:
    assert not rewarded("B", answer)
    assert not rewarded("(B)", answer)


@pytest.mark.parametrize(
    "answer",
    [
        "B", "(B)", "B.", "(B) 12", "B. the red one", "(B) x = 5", "B: 12", r"\textbf{(B)}\ \frac12", "(B) C = 5",
        r"\text{B. A triangle}", "(B) x^2 + C",
        r"(B)\ 5\,\text{C}", r"\text{(B) Only A}", r"B. \text{the area of } A", "x = B",
        r"(B)\ A \cap C", "(B) F = ma", r"(B)\ \{1,2\}",
        "b", "(b)", "b.", r"\text{b}", r"\mathbf{(b)}", "(b) 12", "b) 12", r"\text{option b}", "B. B",
    ],
)  # fmt: skip
def test_the_text_of_an_option_and_a_small_letter_are_that_choice(answer: str) -> None:
    assert rewarded("B", answer)


def test_letters_are_choices_only_where_the_reference_is_one() -> None:
    assert not rewarded("b", "B") and not rewarded("A,C", "a") and not rewarded("e", "E")
    assert rewarded("E", "e") and not rewarded("E", "e^2") and not rewarded("E", "2.718281828")
    assert not rewarded("A:B=1", "A") and not rewarded("a) 5", "a) 7")
    assert rewarded("(B) 12", "(b) 12") and not rewarded("(B) 12", "(b) 13")
    assert rewarded("A,C", "(A)(C)") and not rewarded("A,C", "(A)(B)(C)")


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("The answer is b.", True), ("The answer is (b).", True), ("The answer is (B) because (C) is false.", True),
        ("The answer is (B), not (C).", True), ("The answer is (B) or (C).", False), (r"\boxed{B}\boxed{C}", False),
        ("The answer is (B) (C).", False), ("The answer is B. Wait, it is C.", False),
    ],
)  # fmt: skip
def test_options_in_sentences(text: str, stated: bool) -> None:
    found = FINDER.in_prose(text)
    assert (isinstance(found, Reading) and compare_readings(read("B"), found, MathSettings()).equal) is stated


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("0,111", "0.111", True), ("0.111", "0,111", True), (r"0{,}111", "0.111", True), ("-0.5", "-0,5", True),
        ("1/4", "0,25", True), ("0,5", "1/2", True), ("0.5", "x=0,5", True), ("0.5 m", "0,5 m", True),
        (r"0,5\%", r"0.5\%", True), ("3.5", "3,5", True), ("7/2", "3{,}5", True), ("1234.5", "1234{,}5", True),
        ("12345", "12,345", True), ("12345", r"12{,}345", True), ("1,2", "1, 2", True), ("0,5", "0, 5", True),
        ("0,1", "x=0 or x=1", True), ("0.111", "0,112", False), ("0,111", "0.112", False), ("0,111", "111", False),
        ("12.345", "12,345", False), ("12.345", r"12{,}345", False), ("1,2", "1.2", False), ("1,2", "12", False),
        ("7/2", "3,5", False), ("0.5", "0, 5", False), ("0.5", "(0,5)", False), ("0.5", r"\{0,5\}", False),
        ("(0,5)", "0.5", False), ("0.12", "0,1,2", False), ("0.12", "0,12 or 0,13", False), ("5", "0,5", False),
        ("0", "0,5", False), ("0.001", "0,0001", False),
    ],
)  # fmt: skip
def test_decimal_commas(gold: str, answer: str, same: bool) -> None:
    assert rewarded(gold, answer) is same


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{NO}{BO}=\frac{1}{\sqrt6}", r"\frac{1}{\sqrt6}"), (r"\frac{PA}{PB}=\frac32", "1.5"), ("|AB|=1", "1"),
        ("A:B=1", "1"), (r"\angle ABC=30^\circ", "30"), (r"AB\cdot CD=12", "12"), ("AB:CD=2:3", "2/3"), ("ab=6", "6"),
        ("a:b:c=1:2:3", "2:4:6"), (r"\frac{a}{b}=3", "3"), ("AB^2=25", "25"), ("f(3)=7", "7"), ("AB+CD=5", "5"),
        (r"\angle A+\angle B=90^\circ", r"90^\circ"), ("S_{ABC}:S_{DEF}=4", "4"), (r"m\angle A=30", "30"),
        (r"\overrightarrow{AB}\cdot\overrightarrow{AC}=3", "3"), (r"|\vec a|=3", "3"), ("x=AB", "AB"),
        ("f(1)+f(2)=7", "7"),
    ],
)  # fmt: skip
def test_the_value_stands_for_a_named_quantity(gold: str, answer: str) -> None:
    assert rewarded(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("2x+3=y", "y"), ("2x+3=7", "7"), ("x^2=9", "9"), ("2x=6", "6"), ("x+y=3", "3"), ("xy=1", "1"), ("|x|=1", "1"),
        ("|x-1|=2", "2"), ("r^2=6", "6"), ("x^2+y^2=25", "25"), ("a^2+b^2=25", "25"), (r"\frac{x}{2}=3", "3"),
        (r"\frac1x=9", "9"), (r"\frac{x^2}{4}+\frac{y^2}{9}=1", "1"), (r"\frac{x}{x}=1", "1"), ("3A=9", "9"),
        ("A+2B=9", "9"), ("AB+1=9", "9"), ("A^2=9", "9"), ("AB=AC", "AC"), (r"\frac{PA}{PB}=\frac32", r"\frac23"),
        (r"\frac{PA}{PB}=\frac32", "PA"), (r"\frac{PA}{PB}=\frac32", r"\frac{PB}{PA}=\frac32"),
        (r"\angle ABC=30^\circ", "60"), ("a:b:c=1:2:3", "3:2:1"), (r"\frac{NO}{BO}=\frac{1}{\sqrt6}", r"\sqrt6"),
    ],
)  # fmt: skip
def test_no_value_stands_for_an_equation_to_be_solved(gold: str, answer: str) -> None:
    assert not rewarded(gold, answer)


@pytest.mark.parametrize(
    ("answer", "states"),
    [
        (r"x=\frac13\approx1.3", r"\frac13"), (r"\frac13\approx1.3", r"\frac13"), (r"x=\frac13\approx0.33", r"\frac13"),
        ("x=5+5+1=7=11", "11"), ("x=7=11", "11"), (r"x\approx5", "5"), ("x=5", "5"),
        (r"\sqrt{50}\approx7.07", r"\sqrt{50}"), ("2+3=5=x", "5"),
        (r"(x,y)=(\frac13,2)\approx(0.3,2)", r"(\frac13,2)"),
        ("x=5=7", "x=7"),
        (r"P(A)=\frac26=\frac13\approx0.333", r"\frac13"), ("5! = 120", "120"),
        (r"x=\frac13\approx1.3", r"x=\frac13"), ("3+4=7", "7"),
    ],
)  # fmt: skip
def test_a_chain_states_its_last_exact_member(answer: str, states: str) -> None:
    assert rewarded(states, answer)


@pytest.mark.parametrize(
    ("answer", "holds"),
    [
        (r"x=\frac13\approx1.3", "1.3"), (r"\frac13\approx1.3", "1.3"), ("x=5+5+1=7=11", "7"), ("5=7", "5"),
        ("5=7", "7"), ("7=5", "5"), ("x=5=7", "5"), ("x=5=7", "x=5"), ("x=7=5=8", "5"), (r"x=5\approx6", "5"),
        (r"5\approx6", "6"), (r"x\approx5\approx6", "6"), ("2+3=6=x", "5"), ("2+3=6=x", "x=5"), ("7=5=x", "5"),
        ("5-1=5=4", "4"), (r"\frac13\approx0.3\approx\frac12", r"\frac12"), (r"x=\frac12\approx0.333333", "0.333333"),
        (r"x=\frac17\approx0.3", "0.3"), (r"x=\frac12\approx0.333333", r"\frac13"), ("x=7=5=8", "7"),
        (r"x=\frac{1000}3\approx334", "334"),
        (r"x=7.4\approx7", "7.4"), (r"7.4\approx7", "7"), (r"\sqrt{50}\approx7", "7"), (r"7\approx7.1", "7.1"),
        (r"1\frac12\approx9", r"1\frac12"), ("(x,y)=(1,2)=(2,1)", "(1,2)"),
    ],
)  # fmt: skip
def test_no_other_member_of_a_chain_counts(answer: str, holds: str) -> None:
    assert not rewarded(holds, answer)


@pytest.mark.parametrize(
    ("text", "gold", "stated"),
    [
        ("Thus $x <= 2$ is our answer.", r"x\le2", True), ("So $5$ is the final answer.", "5", True),
        ("Our final answer is $x = 5$.", "5", True), ("Hence $x=5$ is the solution.", "5", True),
        ("5 is our result", "5", True), (r"We compute \[3+4=7\]", "7", True), ("So 5 is not our answer.", "5", False),
        ("I doubt that 5 is our answer.", "5", False), ("Maybe 5 is our answer.", "5", False),
        ("$4$ or $5$ is our answer.", "5", False), ("5 is our answer? Perhaps.", "5", False),
        ("5 is the answer, or 6.", "5", False), ("Nobody says 5 is our answer.", "5", False),
        ("If x=5 then $5$ is our answer.", "5", False), ("Hence $x=5$ is no solution.", "5", False),
    ],
)  # fmt: skip
def test_sentences_that_call_something_the_answer(text: str, gold: str, stated: bool) -> None:
    found = FINDER.in_prose(text)
    assert (isinstance(found, Reading) and compare_readings(read(gold), found, MathSettings()).equal) is stated


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Thus $5$ is our answer.", True), ("So, $x = 5$ is the final answer", True),
        ("$5$ is the correct answer.", True),
        ("I doubt that $5$ is our answer.", False), ("Everyone denies that $5$ is the answer.", False),
        ("Twice $5$ is the answer.", False), ("I hope $5$ is the answer.", False), ("$3$ or $5$ is our answer.", False),
        ("Neither $7$ nor $5$ is the answer.", False), ("$5$ is not our answer.", False),
    ],
)  # fmt: skip
def test_formulas_that_a_sentence_calls_the_answer_where_formulas_alone_are_read(text: str, stated: bool) -> None:
    found = FINDER._replace(latex=True, plain=False).in_prose(text)
    assert (isinstance(found, Reading) and compare_readings(read("5"), found, MathSettings()).equal) is stated


def matrix(*rows: str) -> str:
    return r"\begin{pmatrix}" + r"\\".join(rows) + r"\end{pmatrix}"


def test_a_product_of_matrices_is_worked_out() -> None:
    first, second, product = matrix("1&2", "3&4"), matrix("5&6", "7&8"), matrix("19&22", "43&50")
    for answer in (first + second, f"{first}{second}={product}", f"2{first}{second} - {first}{second}"):
        assert rewarded(product, answer)
    assert rewarded(matrix("17", "39"), first + matrix("5", "6")) and not rewarded(product, first + matrix("5&6"))
    for wrong in (second + first, f"{product}={first}", f"{first}{second}={first}", f"{first}={second}={product}"):
        assert not rewarded(product, wrong)
    found = FINDER.in_prose(f"When multiplying by identity: ${first}{matrix('1&0', '0&1')} = {first}$")
    assert isinstance(found, Reading) and compare_readings(read(first), found, MathSettings()).equal


def test_matrices_in_deep_brackets_are_read_at_once() -> None:
    square = matrix("1&2", "3&4")
    begin = time.thread_time()
    assert read("(" * 20 + square + f"+{square})" * 20).kind == "matrix"
    assert time.thread_time() - begin < 1.0


def test_a_product_of_many_matrices_is_too_much() -> None:
    square = matrix(*["&".join("123456789")] * 9)
    verdict = MathVerifier(isolation=Isolation(workers=1))(Problem("p", "", "5"), rf"\boxed{{{square * 6}}}")
    assert verdict.score == 0.0 and verdict.usable


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("p=5,q=2;p=7,q=2", r"p=5, q=2 \quad\text{and}\quad p=7, q=2", True),
        ("p=5,q=2;p=7,q=2", r"p=7, q=2 \text{ or } p=5, q=2", True), ("p=5,q=2;p=7,q=2", "p=5,q=2,p=7,q=2", True),
        ("p=5,q=2;p=7,q=2", "q=2,p=5;q=2,p=7", True), ("p=5,q=2;p=7,q=2", "(p=5,q=2), (p=7,q=2)", True),
        ("p=5,q=2;p=7,q=2", r"p=5\text{ and }q=2\text{ or }p=7\text{ and }q=2", True),
        ("(1,2),(3,4)", r"x=1,y=2\text{ or }x=3,y=4", True), (r"x=1,y=2\text{ or }x=3,y=4", "(3,4),(1,2)", True),
        ("(1,2)", "(x=1,y=2)", True), ("x=1,y=2,z=3", r"x=1,y=2\text{ and }z=3", True), ("1,2", "x=1, x=2", True),
        ("p=5,q=2;p=7,q=2", r"p=5, q=7 \text{ and } p=2, q=2", False), ("p=5,q=2;p=7,q=2", "p=5,q=2", False),
        ("p=5,q=2;p=7,q=2", r"p=5, q=2 \text{ and } p=7", False), ("p=5,q=2;p=7,q=2", "p=5,p=7,q=2", False),
        ("p=5,q=2;p=7,q=2", r"p=5, q=2 \text{ and } p=7, r=2", False), ("x=1,y=2;x=3,y=4", "x=1,y=4;x=3,y=2", False),
        ("p=5,q=2", r"p=5,q=2 \text{ and } p=7,q=2", False), ("(1,2)", r"x=1,y=2\text{ or }x=2,y=1", False),
        ("x=1,y=2;x=2,y=1", "x=1,y=2,x=1,y=2", False), ("x=1,y=2;x=3,y=4", "(2,1),(4,3)", False),
        ("5", "x=5,y=6;x=7,y=8", False), ("(1,2)", "(x=2,y=1)", False),
    ],
)  # fmt: skip
def test_assignments_are_grouped_where_a_name_comes_again(gold: str, answer: str, same: bool) -> None:
    assert rewarded(gold, answer) is same


@pytest.mark.parametrize(
    ("form", "reference", "right", "wrong"),
    [
        ({"error": "5%"}, "3.5", "3.6", "8.4"), ({"error": r"1 \times 10^{-2}"}, "3.5", "3.505", "4.4"),
        ({"error": "-0.1"}, "3.5", "3.55", "3.7"), ({"error": "about 1"}, "3.5", "3.50", "4"),
        ({"unit": r"$10^{-5} \mathrm{~N}$"}, "1.7", r"1.7\times10^{-5}\text{ N}", r"1.7\text{ N}"),
        ({"unit": "m"}, "3.5", r"3500\text{ mm}", r"3.5\text{ s}"),
        ({"unit": "degrees"}, "30", r"30^\circ", r"30\text{ rad}"),
    ],
)  # fmt: skip
def test_what_a_row_says(form: dict[str, str], reference: str, right: str, wrong: str) -> None:
    settings = stated_settings(MathSettings(), "", form)
    assert verify_here(reference, rf"\boxed{{{right}}}", settings).passed
    assert not verify_here(reference, rf"\boxed{{{wrong}}}", settings).passed
