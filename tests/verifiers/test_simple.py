"""Choices, exact texts, numbers with a tolerance, and several verifiers in one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from strop.base.types import InputError, Problem, Verdict
from strop.lab.agreement import Sampled, compare_verifiers, named_verifier, read_rollouts
from strop.report.lab_figures import plot_agreement
from strop.verifiers.answer import Answer, ExactMatch, MultipleChoice, Numeric
from strop.verifiers.base import Isolation, Verifier
from strop.verifiers.combined import AnyOf
from strop.verifiers.math_verifier import MathVerifier
from strop_verify.verdict import Status


def problem(reference: object) -> Problem:
    return Problem("p", "", reference)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (r"\boxed{B}", Status.CORRECT),
        (r"\boxed{\text{(B)}}", Status.CORRECT),
        (r"\boxed{b}", Status.CORRECT),
        ("<answer>B. Paris</answer>", Status.CORRECT),
        ("The answer is (B).", Status.CORRECT),
        ("Answer: **B**", Status.CORRECT),
        ("The answer is A. No: the answer is B", Status.CORRECT),
        ("B", Status.CORRECT),
        ("(B) Paris", Status.CORRECT),
        (r"\boxed{C}", Status.WRONG),
        (r"\boxed{Z}", Status.UNPARSED),
        (r"The answer is (B): \boxed{}", Status.UNPARSED),
        (r"\boxed{Berlin}", Status.UNPARSED),
        ("The answer is Berlin", Status.UNPARSED),
        ("I like B more", Status.UNPARSED),
        ("<think>the answer is B", Status.UNPARSED),
    ],
)
def test_multiple_choice(text: str, status: Status) -> None:
    assert MultipleChoice()(problem("B"), text).status is status


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("I am unsure; the answer is a polynomial.", None),
        ("The answer is A polynomial.", None),
        ("The answer is C major.", None),
        ("Answer: B\n\nThis option is a good match.", "B"),
        ("the correct answer is: B\n\nExplanation: option A is not a valid choice because it is larger.", "B"),
        ("The answer is (D). This is because option (C) violates the law.", "D"),
        ("The answer is D, since A and B are too large.", "D"),
        ("The answer is B, not A.", "B"),
        ("Therefore, the answer is \\textbf{(B)}.", "B"),
        ("### Answer\nB", "B"),
        ("Option C is correct.", "C"),
        ("I choose B.", "B"),
        ("I would go for option B.", "B"),
        ("The answer is not A but B.", "B"),
        ("The best choice would be (B).", "B"),
        ("The best option here is B.", "B"),
        ("The answer is clearly B, not A.", "B"),
        ("The correct option must be C, i.e. the third.", "C"),
        ("Choice: [B]", "B"),
        ("The answer could be A.", None),
        ("Option (C) is wrong.", None),
        ("(B) is wrong.", None),
        ("Is the answer B?", None),
        ("If the answer is A, then x = 1.", None),
        ("The answer is A or B.", None),
        ("Answer: A and C", None),
        ("A. Paris\nB. London\nC. Rome", None),
        ("The answer is (A)(B).", None), (r"\boxed{A} or \boxed{B}", None), (r"\boxed{A}, no: \boxed{B}", "B"),
        ('The answer is "B".', "B"), ("Answer - B", "B"), ("The letter is B", "B"), ("I would answer B.", "B"),
        ("x = 2.\nTherefore, B.", "B"), ("It is small.\n\nOption B", "B"), ("Option A: small. Option B: large.", None),
        ("The answer is A rather than B.", "A"), ("Vitamin C", None),
        ("Vitamin C is the best choice.", None), ("I think B is correct.", "B"), ("It is not A. B is right.", "B"),
        ("The answer is a, b.", None), ("Select a, b", None),
        ("A) is wrong because it is small. B) may be right", None), ("A. Paris B. London", None), ("C?", None),
        (r"\boxed{Option B}", "B"), (r"\boxed{B and C}", None), (r"\boxed{B, since (A) is small}", "B"),
        ("So it's B.", "B"), ("The answer is A. Wait, no, it is C.", "C"), ("The answer is B. Some say it is D.", "B"),
        ("The answer is B. It is C that tempts.", "B"), ("Is it C? No, the correct one is B.", "B"),
        ("(C) Rome. Option (B) is too far.", "C"), ("C. Rome\n\nOption B: London", None), ("Option A: small", None),
    ],
)
def test_a_choice_is_what_a_response_states_as_such(text: str, letter: str | None) -> None:
    assert MultipleChoice().answer(problem("B"), text) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Antwort B", "B"), ("Die richtige Antwort ist (B).", "B"), ("Die Antwort ist ein B-Moll-Akkord.", None),
        ("Die Antwort ist nicht B.", None), ("Option B ist richtig, Option A nicht.", "B"),
        ("Ответ: В", "B"), ("Правильный ответ — (C).", "C"), ("Ответ: Ведро", None), ("Ответ не В.", None),
        ("La réponse est la B.", "B"), ("Réponse : B", "B"), ("La réponse est à trouver", None),
        ("La respuesta correcta es B.", "B"), ("La respuesta no es B.", None), ("La respuesta es a veces", None),
        ("A resposta é B.", "B"), ("La risposta corretta è la lettera B.", "B"),
        ("选A", "A"), ("故选：B", "B"), ("正确答案是（B）。", "B"), ("答案为 B", "B"), ("选项A错误，选项B正确", "B"),
        ("答案不是A", None), ("不选A", None), ("不是A，而是B", "B"),
        ("应该选A还是B？", None), ("选A或B", None), ("选项A错误", None),
        ("答：B", "B"), ("正解はBです。", "B"),
        ("정답은 B입니다.", "B"), ("정답: B", "B"), ("الإجابة: B", "B"), ("उत्तर: B", "B"),
    ],
)
def test_a_choice_may_be_stated_in_other_languages(text: str, letter: str | None) -> None:
    assert MultipleChoice().answer(problem("B"), text) == letter


def test_letters_of_cyrillic_are_those_of_the_choices() -> None:
    assert MultipleChoice(choices="АБВГ")(problem("Б"), "Правильный ответ: Б").score == 1.0
    assert MultipleChoice(choices="АБВГ")(problem("В"), r"\boxed{Б}").status is Status.WRONG


def test_many_statements_take_linear_time() -> None:
    assert MultipleChoice().answer(problem("B"), "选A，" * 20_000 + "选B") == "B"
    assert MultipleChoice().answer(problem("B"), "answer: " * 20_000 + "B") == "B"


CITIES = "Which is the capital of France?\nA) London\nB) Paris\nC) Rome"
NUMBERS = r"$x$? $\textbf{(A)}\ 3 \qquad\textbf{(B)}\ 4 \qquad\textbf{(C)}\ 7\qquad\textbf{(D)}\ \frac{1}{2}$"


@pytest.mark.parametrize(
    ("question", "text", "letter"),
    [
        (CITIES, "Paris", "B"),
        (CITIES, r"\boxed{\text{paris}}", "B"),
        (CITIES, "<answer>B. Paris</answer>", "B"),
        (CITIES, "London is in England, so the answer is **Paris**.", "B"),
        (CITIES, "The answer is not London but Paris.", "B"),
        (CITIES, "The answer is B, Paris.", "B"),
        (CITIES, r"\boxed{London or Paris}", None),
        (CITIES, "London Paris Rome", None),
        (CITIES, "Answer: Paris and Rome", None),
        (CITIES, "The answer is Paris-like.", None),
        (CITIES, "The answer is a city in France, not London.", None),
        (NUMBERS, r"\boxed{7}", "C"),
        (NUMBERS, r"The answer is $\frac{1}{2}$.", "D"),
        (NUMBERS, "The answer is 3 + 4 = 7, I think", None),
        (NUMBERS, "The answer is 3.5", None),
        (NUMBERS, "The answer is -3", None),
        (NUMBERS, "The answer is 3 or more.", None),
        (NUMBERS, r"\boxed{3, 4}", None),
        ("Is it A or B? A. one B. two", "two", "B"),
        (f"Is 1 < 2?\nA: yes\nB: no\n\n{CITIES}\nAnswer with one letter.\n", "Rome", "C"),
        ("Choose. A) B B) A", "A", "A"), (f"{CITIES}\nAnswer with A, B, or C.", "Rome", "C"),
        (CITIES, r"\boxed{B, Paris}", "B"), (CITIES, r"\boxed{A, Paris}", None),
        (CITIES, "Rome rather than Paris", "C"),
        ("Vitamin C. Is it so? A: yes B: no", "The answer is no.", "B"),
        ("No options.", "Paris", None),
    ],
)
def test_the_text_of_an_option_stands_for_its_letter(question: str, text: str, letter: str | None) -> None:
    assert MultipleChoice().answer(Problem("p", question, "B"), text) == letter


def test_a_reference_may_be_the_text_of_an_option() -> None:
    asked = Problem("p", CITIES, "Paris")
    assert MultipleChoice().refuses(asked) is None and MultipleChoice()(asked, r"\boxed{B}").score == 1.0
    assert MultipleChoice()(asked, r"\boxed{A}").status is Status.WRONG
    assert MultipleChoice().refuses(Problem("p", CITIES, "Berlin")) is not None


def test_choices_are_a_field_and_references_are_held_to_them() -> None:
    assert MultipleChoice(choices="ABCD").refuses(problem("E")) is not None
    assert MultipleChoice(choices="ABCD").refuses(problem("(D)")) is None
    assert MultipleChoice()(problem(3), "A").status is Status.ERROR
    assert MultipleChoice().answer(problem("B"), "the answer is (c)") == "C"


def test_exact_match() -> None:
    exact = ExactMatch()
    assert exact(problem("New York"), r"\boxed{New   York}").status is Status.CORRECT
    assert exact(problem("New York"), r"\boxed{new york}").status is Status.WRONG
    assert ExactMatch(ignore_case=True)(problem("New York"), r"\boxed{new york}").score == 1.0
    assert ExactMatch(ignore_space=False)(problem("a b"), r"\boxed{a  b}").score == 0.0
    assert ExactMatch(extract="all")(problem("yes"), "<think>no</think>\nyes\n").score == 1.0
    assert exact(problem("a"), "a").status is Status.UNPARSED
    assert exact(problem(1), r"\boxed{1}").status is Status.ERROR
    assert exact.answer(problem("a"), r"\boxed{ b  c }") == "b c"


@pytest.mark.parametrize(
    ("reference", "text", "fields", "status"),
    [
        ("3.14159", r"\boxed{3.1416}", {}, Status.CORRECT),  # 0.00001 apart, 0.000314 allowed
        ("3.14159", r"\boxed{3.15}", {}, Status.WRONG),
        ("3.14159", r"\boxed{3.15}", {"absolute": 0.01}, Status.CORRECT),
        ("100", r"\boxed{101}", {"relative": 0.01}, Status.CORRECT),  # at the very edge
        ("100", r"\boxed{101.01}", {"relative": 0.01}, Status.WRONG),
        ("-100", r"\boxed{-100.5}", {"relative": 0.01}, Status.CORRECT),
        ("0", r"\boxed{0.00001}", {}, Status.WRONG),
        ("1500", r"\boxed{1.5 \times 10^{3}}", {}, Status.CORRECT),
        ("1500", r"\boxed{1.5e3}", {}, Status.CORRECT),
        ("1500", r"\boxed{1,500}", {}, Status.CORRECT),
        (1500, "it is 1500 m", {}, Status.CORRECT),
        ("1500", r"\boxed{many}", {}, Status.UNPARSED),
        ("1500", "", {}, Status.UNPARSED),
        ("many", r"\boxed{1}", {}, Status.ERROR),
        ("1", r"\boxed{1e999}", {}, Status.WRONG),
    ],
)
def test_numbers_with_a_tolerance(reference: object, text: str, fields: dict[str, float], status: Status) -> None:
    assert Numeric.model_validate(fields)(problem(reference), text).status is status


def test_a_tolerance_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError):
        Numeric(absolute=0, relative=0)
    assert Numeric().refuses(problem("three")) is not None
    assert Numeric().answer(problem("1"), r"\boxed{1.50}") == "1.5"


class Says(Verifier):
    """A verifier that always says the same."""

    score: float
    status: Status

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        return Verdict(self.score, self.status, "said")


RIGHT, WRONG = Says(score=1, status=Status.CORRECT), Says(score=0, status=Status.WRONG)
BROKEN, LATE = Says(score=0, status=Status.ERROR), Says(score=0, status=Status.TIMEOUT)


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ((WRONG, RIGHT), Status.CORRECT),
        ((BROKEN, RIGHT), Status.CORRECT),
        ((BROKEN, WRONG), Status.WRONG),
        ((LATE, BROKEN), Status.TIMEOUT),
        ((BROKEN,), Status.ERROR),
    ],
)
def test_any_of(members: tuple[Verifier, ...], status: Status) -> None:
    assert AnyOf(members=members)(problem("1"), "").status is status


def test_any_of_is_archers_pair_by_default() -> None:
    verifier = AnyOf()
    assert [member.piece_name() for member in verifier.members] == ["Answer", "MathVerifier"]
    assert verifier(problem("1/2"), r"\boxed{1/2}").score == 1.0
    assert verifier(problem("1/2"), r"\boxed{\frac{2}{4}}").score == 1.0
    assert verifier(problem("1/2"), r"\boxed{0.3}").status is Status.WRONG
    assert verifier.isolated() == Isolation()
    assert AnyOf(members=(Answer(),)).isolated() is None
    assert verifier.refuses(problem([1])) is not None
    assert verifier.refuses(problem(r"\frac{1}{")) is None  # Answer can still compare it as text
    assert verifier.answer(problem("7"), r"\boxed{007}") == "7"


def test_any_of_keeps_whole_members_in_json() -> None:
    piece = AnyOf(members=(Answer(extract="any"), MathVerifier(precision=3)))
    family: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    assert family.validate_json(piece.model_dump_json()) == piece


def sampled(name: str, reference: str, *texts: str) -> list[Sampled]:
    return [Sampled(Problem(name, "", reference), text, False) for text in texts]


def test_verifiers_are_compared_by_solve_counts(tmp_path: Path) -> None:
    rollouts = [
        *sampled("a", "1/2", r"\boxed{1/2}", r"\boxed{0.5}", r"\boxed{\frac12}"),  # Answer 1, MathVerifier 3
        *sampled("b", "7", r"\boxed{7}", r"\boxed{8}", r"\boxed{\sqrt{49}}"),  # 1, 2
        *sampled("c", "x", r"\boxed{y}", "", ""),  # 0, 0
    ]
    found = compare_verifiers([Answer(), MathVerifier()], rollouts)
    assert found == {
        "problems": 3, "rollouts": 9, "disagreements": 3, "failures": {"Answer": 0, "MathVerifier": 0},
        "histograms": {"Answer": [1, 2, 0, 0], "MathVerifier": [1, 0, 1, 1]},
    }  # fmt: skip
    assert plot_agreement(found["histograms"], tmp_path / "counts.png") == tmp_path / "counts.png"
    drawn = (tmp_path / "counts.svg").read_text()
    assert ">Answer<" in drawn and ">MathVerifier<" in drawn and ">2<" in drawn


def test_comparing_needs_two_verifiers_and_rollouts() -> None:
    with pytest.raises(InputError):
        compare_verifiers([Answer()], sampled("a", "1", "1"))
    with pytest.raises(InputError):
        compare_verifiers([Answer(), Answer()], [])


def test_verifiers_are_named_or_written_as_json() -> None:
    assert named_verifier("Answer") == Answer()
    assert named_verifier('{"piece": "MathVerifier", "extract": "any"}') == MathVerifier(extract="any")
    for text in ("Anser", "{", '{"piece": 3}'):
        with pytest.raises(InputError, match="--verifier"):
            named_verifier(text)


def test_rollouts_are_read_from_lines(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    file.write_text(json.dumps({"problem_id": "a", "reference": "1", "completion": "x", "finish_reason": "length"}))
    assert read_rollouts(file) == [Sampled(Problem("a", "", "1"), "x", True)]
    turns = {"problem_id": "a", "reference": "1", "completion": "2?\nNo.\n1", "last_turn_at": 7}
    file.write_text(json.dumps(turns))
    assert read_rollouts(file) == [Sampled(Problem("a", "", "1"), "1", False)]
    file.write_text('{"problem_id": "a", "reference": "1"}')
    with pytest.raises(InputError, match=r"rollouts\.jsonl:1: .*'completion'"):
        read_rollouts(file)
    with pytest.raises(InputError):
        read_rollouts(tmp_path)
