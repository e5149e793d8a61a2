"""Where a response states its answer: markers first, then an asserting sentence or a formula, never a lucky number."""

from __future__ import annotations

import pytest

from strop_verify.math import MathSettings
from strop_verify.math.compare import compare_readings
from strop_verify.math.grammar import Reading, read
from strop_verify.math.prose import Finder
from strop_verify.math.verifier import verify_here

ANYWHERE = MathSettings(extract="any")
FINDER = Finder()


def states(text: str, gold: str) -> bool:
    found = FINDER.in_prose(text)
    return isinstance(found, Reading) and compare_readings(read(gold), found, MathSettings()).equal


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 42", "42"), ("so it is 7\n#### 42", "42"), ("Answer: 42", "42"), ("**Answer:** 42", "42"),
        ("A: -10", "-10"), ("Final Answer: The largest $n$ is 34.", "34"),
        ("The final answer is $42$. I hope it is correct.", "42"),
        ("The answer is 3.\n\nNote: this was solved in 2024.", "3"),
        ("answer: 5", "5"), ("The answer is 6.\n\n5", "6"), ("Answer:\n\n$$42$$", "42"),
        ("The answer to the question is 5 apples.", "5"), (r"\boxed{1} so \boxed{2}", "2"),
        (r"$x=\boxed{2}$ or $x=\boxed{3}$", r"\{2,3\}"), (r"\boxed{5}, wait, \boxed{6}", "6"),
        (r"$\boxed{5}$. Hmm, actually, the final answer is 7.", "7"),
        (r"$\boxed{5}$ is wrong; the answer is 7.", "7"), (r"$\boxed{28}\%$", r"28\%"),
        (r"$\boxed{2516}_8$", "2516_8"), (r"$\boxed{5}\text{ cm}$", "5 cm"), (r"&= \boxed{90^\circ}.", "90"),
        ("<answer>7</answer>", "7"), (r"<answer>so \boxed{7}</answer>", "7"), (r"\boxed{5} <answer>7</answer>", "7"),
        ("The answer is B.", "B"), ("The correct option is (B) 12.", "B"), ("Answer: C", "C"),
        ("Answer: B\n\nThis option is a good match.", "B"),
        ("The answer is **B**", "B"), ("Among the options, option C looks right, but the answer is B.", "B"),
        ("The answer is a bit odd: it must be (D).", "D"), ("So 2+2 = 4.", "4"), ("4^2 = 16", "16"),
        ("x = 3 or x = 4", r"\{3,4\}"), ("Therefore, $x = 3$ or $x = 4$.", r"\{3,4\}"), (r"\[ x = 5 \]", "5"),
        ("= 5", "5"), ("5 apples", "5"), ("The point is (2, 3).", "(2,3)"), ("It costs $21.", "21"),
        (r"She has $\$21$ left.", "21"), ("We get 1,000.", "1000"), ("approximately 3.14", "3.14"),
        ("angle is 90°", "90"), ("so the number is 10 which is 1,000.99m²", "1000.99"),
        ("The error increases by 100%.", r"100\%"), (r"It is 2\sqrt{3}.", r"2\sqrt3"),
        ("Thus the probability that Alice wins is 2/3. <|im_start|>user", "2/3"), (r"$17 \bmod 5 = 2$", "2"),
        ("She sold 3 of the 8, so she has 5 apples left.", "5"), (r"By this, $f(x) = \boxed{x^2}$", "x^2"),
        (r"Thus, the answer is \(\boxed{12}\).", "12"), ("\\[\n\\boxed{12}\n\\]", "12"), (r"\textbf{(D)}", "D"),
        ("So $x=2$ and $y=3$.", "(2,3)"),
        ("The shortest person is **Cid**.", "Cid"), (r"They add up to $\log 10$, i.e. **1**.", "1"),
        ("Final answer:\n```\n36\n```", "36"),
        ("B", "B"), ("(C).", "C"), ("**B**", "B"), ("not all of them\n#### 42", "42"),
        ("x is not 4, so the answer is 5.", "5"), ("I first got 4, but the correct answer is 5.", "5"),
    ],
)  # fmt: skip
def test_what_is_stated(text: str, answer: str) -> None:
    assert states(text, answer), FINDER.in_prose(text)


@pytest.mark.parametrize(
    "around",
    [
        "**{}**", "- {}", "({})", r"\({}\)", r"\[ x = {} \]", "<answer>{}</answer>", "It is 3. {}", "2 + 3 = {}",
        "$f(3) = {}$", "{}: done", "{} units.", "so {}, as desired", "{} - that is it", "{} apples remain",
        "&= {}.", "-{}", "{}^2", "2^{}", "it is not {}",
    ],
)  # fmt: skip
def test_what_stands_around_a_box_is_no_part_of_the_answer(around: str) -> None:
    assert states(around.replace("{}", r"\boxed{5}"), "5")


@pytest.mark.parametrize(
    ("text", "lucky"),
    [
        ("The answer is not 5.", "5"), ("x is not 5", "5"), ("The answer is greater than 5.", "5"),
        ("It is at least 5.", "5"), ("The answer is 4, or maybe 5.", "5"), ("It could be 3, 4 or 5.", "5"),
        ("If x is 5 then we are done", "5"),
        (r"\boxed{5} or \boxed{6}", "5"), (r"\boxed{5}, \boxed{6}", "5"), ("The answer is 1, 2, 3, 4, 5.", "5"),
        ("1 2 3 4 5", "5"), ("2 * 9 = 18", "9"), ("So 2+2 = 5.", "4"), ("The answer is A or B.", "B"),
        ("The answer is (B), (C).", "B"), ("AZY2K", "2"), ("The answer is a bit surprising: it must be (D).", "A"),
        ("I first thought the answer is C. But no, the answer is D.", "C"),
        ("I count 7 days... The answer is therefore a week.", "7"), ("The answer is 5π.", "5"),
        ("The answer is $5^2$.", "5"), ("I do not know", "5"), ("", "5"), (r"\boxed{}", "5"), (r"\boxed{5", "5"),
        ("Tom has 3 apples and Sue has 5.", "5"), ("The answer is !!!invalid!!!", "4"),
        ("The answer is 5. No wait, it is 6.", "5"), ("I am not sure that the answer is 5.", "5"),
        ("It is false that the answer is 5.", "5"), ("Some think the answer is 5.", "5"), ("A is out", "A"),
        ("I do not think the answer is 5.", "5"), ("A and B", "A"),
        ("It is false that the answer is: 5", "5"), ("Suppose the answer is 5.", "5"),
        ("<think>the answer is 5", "5"), ("The answer is 6.\n\n5", "5"), ("I guess 5", "5"),
    ],
)  # fmt: skip
def test_what_is_not_stated(text: str, lucky: str) -> None:
    found = FINDER.find(text, "any")
    assert isinstance(found, str) or not compare_readings(read(lucky), found, MathSettings()).equal


def test_formulas_and_sentences_are_looked_for_as_asked() -> None:
    formula, sentence = "Hence $x^2$", "Hence it is 5"
    assert isinstance(Finder(latex=True, plain=False).in_prose(formula), Reading)
    assert isinstance(Finder(latex=True, plain=False).in_prose(sentence), str)
    assert isinstance(Finder(latex=False, plain=True).in_prose(sentence), Reading)


def test_a_choice_that_a_sentence_states() -> None:
    for letter, passed in (("d", True), ("c", False)):
        found = verify_here("D", f"Any power with exponent 0 is 1, so the correct option is ({letter}).", ANYWHERE)
        assert found.passed is passed
