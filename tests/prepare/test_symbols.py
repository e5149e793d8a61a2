r"""One sign, bracket or decimal point more, less or other makes another question; how mathematics is typed does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prepare.working import questions, run, write_lines

from strop.prepare.text import normalize, same_question, same_typing

# A whole expression as tokens, each with a space around it; words around it make it long enough for near duplicates.
SHORT = ("What is {} ?", "Compute {} .", "Find x if {} = 0 .")
LONG = "In a small town many farmers grow wheat and sell it at the market every week; each gets {} coins in the end ."
values = st.one_of(
    st.integers(2, 99).map(str), st.sampled_from(["x", "y", "n"]), st.decimals(1, 9, places=1).map(lambda d: f"{d + 0}")
).filter(lambda text: not text.endswith(".0"))
terms = st.one_of(values, st.tuples(values, st.sampled_from("+-*/^"), values).map(lambda p: f"( {' '.join(p)} )"))
expressions = st.tuples(
    st.sampled_from(["", "-"]), terms, st.lists(st.tuples(st.sampled_from("+-*/"), terms), min_size=1, max_size=4)
).map(lambda parts: f"{parts[0]}{parts[1]} " + " ".join(f"{sign} {term}" for sign, term in parts[2]))
frames = st.sampled_from([*SHORT, LONG])


def same(first: str, second: str) -> bool:
    one, other = normalize(first), normalize(second)
    found = same_question(one, other, 0.8)
    assert same_question(other, one, 0.8) == found
    return found


def alike(first: str, second: str) -> bool:
    return same_typing(normalize(first), normalize(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Solve for x: 2x + 3 = 7.", "Solve for x: -2x + 3 = 7."),
        ("What is 5 + 3?", "What is -5 + 3?"),
        ("Find all roots of x^2 + 4x - 5 = 0.", "Find all roots of -x^2 + 4x - 5 = 0."),
        ("Compute |3 - 8|.", "Compute 3 - 8."),
        ("Compute 7 - y when y = 3.", "Compute 7y when y = 3."),
        (r"Compute \sin(a) + b for a=0", r"Compute -\sin(a) + b for a=0"),
        ("What is (4 + 5) * 2?", "What is 4 + 5 * 2?"),
        ("What is 5!?", "What is 5?"),
        ("What is $5!$?", "What is $5$?"),
        ("Find x such that x + 1 = 9.", "Find x such that -x + 1 = -9."),
        ("Evaluate f'(2) of it.", "Evaluate f(2) of it."),
        ("Take 20% of 50.", "Take 20 of 50."),
        ("Find x in [0, 1).", "Find x in (0, 1]."),
        ("Compute ab + cd.", "Compute ab - cd."),
        (r"Find \frac{x+1}{2}.", r"Find x+\frac{1}{2}."),
        (r"Find \sqrt{x+1}.", r"Find \sqrt{x}+1."),
        ("Find x^{n+1}.", "Find x^{n}+1."),
        ("Find x² + 1.", "Find x2 + 1."),
        ("Take 1.5.", "Take 15"),
    ],
)
def test_one_sign_or_bracket_makes_another_question(first: str, second: str) -> None:
    assert not same(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("What is $3-5$?", "What is 3 - 5?"),
        (r"What is $3 \cdot 5$?", "What is 3 * 5?"),
        (r"What is \(3\times 5\)?", "What is 3×5"),
        (r"Find $\left(x+1\right)\!\left(x-1\right)$.", "Find (x+1)(x−1)."),
        (r"Find \frac{1}{2} + \dfrac{x+1}{3}", "Find 1/2 + (x+1)/3"),
        (r"Find \frac12 and $\frac1{10}$", "Find 1/2 and 1/10"),
        ("Find x^{2} + x^{10}.", "Find x² + x^10."),
        ("Find x^{n+1}.", "Find x^(n+1)."),
        (r"Is \(x\le 5\), or \(x\neq 3\)?", "Is x <= 5 or x ≠ 3?"),
        (r"An angle of $30^\circ$, of $60^{\circ}$", "An angle of 30° of 60°"),
        (r"Let $\mathrm{cm}$ be \text{long} and \mathbf{v} short", "Let cm be long and v short"),
        (r"Take \{1, 2\} and 20\% of it", r"Take \lbrace 1, 2 \rbrace and 20% of it"),
        ("A well-known two-digit number (in dollars)", "a well known two digit number, in dollars"),
        ("- a red apple\n- some pears\n* one plum", "a red apple some pears one plum"),
        ("How *many* are **5** of them (see (a))?", "How many are 5 of them, see a"),
        ("Question number 5!", "Question number 5?"),
        (r"Call \(n\) \(b\text-\textit{fine}\) if", r"Call $n$ $b\textit{-fine}$ if"),
        (r"Let \[x^2 = 6\] be", r"Let \begin{equation*} x^2 = 6 \end{equation*} be"),
        ("<asy> draw(A--B); </asy>", "[asy] draw(A--B); [/asy]"),
        ("Say it loud!!", "Say it loud."),
        ("Take the point (7, -2).", "take the point (7 -2)"),
    ],
)
def test_typing_mathematics_differently_does_not_count(first: str, second: str) -> None:
    assert alike(first, second)
    assert alike(second, first)


def test_an_equals_sign_more_is_no_other_question_where_words_were_changed_too() -> None:
    first = r"Let $O(0,0)$ and $A(\tfrac{1}{2},0)$ be two points of the plane, and find the length of $OA$ in it."
    assert same(first, first.replace("A(", "A=(").replace("O(", "O = (").replace("plane", "place"))
    assert not same(first, first.replace("O(", "-O("))


@pytest.mark.parametrize(("sign", "found"), [("", True), ("-", False)])
def test_a_benchmarks_question_inside_another_has_the_same_formulas(tmp_path: Path, sign: str, found: bool) -> None:
    exam = write_lines(tmp_path / "exam.jsonl", questions("Find all the real roots of x^2 + 4x - 5 = 0 and add them."))
    text = f"Be brief. Find all the real roots of {sign}x^2 + 4x - 5 = 0 and add them. Write a + b."
    outcome = run(tmp_path, [questions(text, "What is 3 + 4?")], [{"piece": "Decontaminate", "against": [str(exam)]}])
    assert len(outcome.kept) == (1 if found else 2)


@given(frames, expressions, st.data())
def test_another_operator_sign_bracket_or_point_is_another_question(frame: str, text: str, data: st.DataObject) -> None:
    places = [place for place, char in enumerate(text) if char in "+-*/^.()"]
    place = data.draw(st.sampled_from(places))
    was, before, after = text[place], text[:place], text[place + 1 :]
    changes = [f"{before}{after}"]
    if was not in "().":
        changes += [f"{before}{sign}{after}" for sign in "+-*/^" if sign != was]
    if not text.startswith("-"):
        changes.append(f"-{text}")
    changes.append(f"({text.replace(' ', '', 1)})" if " " in text else f"|{text}|")
    for changed in changes:
        assert not same(frame.format(text), frame.format(changed)), changed


RETYPED = (
    lambda text: f"${text}$",
    lambda text: rf"\({text}\)",
    lambda text: text.replace("(", r"\left(").replace(")", r"\right)"),
    lambda text: text.replace("*", r"\cdot "),
    lambda text: text.replace("*", r"\times "),
    lambda text: text.replace("*", "×"),
    lambda text: text.replace("-", "\N{MINUS SIGN}"),
    lambda text: text.replace("/", "÷"),
    lambda text: re.sub(r"\^ ?(\w+(?:\.\d)?)", r"^{\1}", text),
    lambda text: re.sub(r"\( ([\w.]+) / ([\w.]+) \)", r"(\\frac{\1}{\2})", text),
    str.upper,
    lambda text: text.replace(" ", ""),
)


@given(frames, expressions, st.lists(st.sampled_from(range(len(RETYPED))), min_size=1, max_size=3, unique=True))
def test_retyping_is_the_same_question(frame: str, text: str, ways: list[int]) -> None:
    retyped = text
    for way in sorted(ways, reverse=True):  # the later come first: they would miss what the others write
        retyped = RETYPED[way](retyped) if RETYPED[way] is not str.upper or "\\" not in retyped else retyped
    assert alike(frame.format(text), frame.format(retyped)), retyped
    assert alike(frame.format(retyped).replace(" ?", "?").replace(" .", "."), frame.format(text))
