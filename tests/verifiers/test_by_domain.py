"""A mixture of domains: each problem goes to the verifier of its domain, and to that verifier's judge."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.made import completion

from strop.base.types import Problem, Verdict
from strop.verifiers.answer import Answer, MultipleChoice
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.combined import ByDomain
from strop.verifiers.judges import DomainJudge, judge_for
from strop.verifiers.math_verifier import MathVerifier
from strop_verify.verdict import Status

MATH = Problem("m", "1/2 + 1/2 = ?", "1", domain="math")
CODE = Problem("c", "Echo a number.", {"inputs": ["3\n"], "outputs": ["3\n"]}, domain="code")
STRAY = Problem("s", "?", "1", domain="logic")
BOTH = ByDomain(members={"math": MathVerifier(), "code": CodeVerifier()})
ECHO = "```python\nprint(input())\n```"


def test_each_problem_has_its_own_verifier() -> None:
    assert BOTH(MATH, r"\boxed{\frac{2}{2}}", False).status is Status.CORRECT
    assert BOTH(CODE, ECHO, False).status is Status.CORRECT
    assert BOTH(CODE, ECHO.replace("input()", "4"), False).status is Status.WRONG
    assert BOTH(STRAY, "1", False).status is Status.ERROR
    assert BOTH.refuses(MATH) is None and BOTH.refuses(CODE) is None
    assert BOTH.refuses(STRAY) == "its domain 'logic' has no verifier; there are code, math"
    assert ByDomain.model_validate_json(BOTH.model_dump_json()) == BOTH


def test_a_member_keeps_its_own_rule_on_truncated_responses() -> None:
    strict = ByDomain(members={"math": Answer(require_stop=True), "code": MultipleChoice()})
    assert strict(MATH, r"\boxed{1}", True).status is Status.UNPARSED
    assert strict(MATH, r"\boxed{1}", False).status is Status.CORRECT


def test_the_judges_of_a_mixture_work_side_by_side() -> None:
    judge = judge_for(BOTH)
    assert isinstance(judge, DomainJudge)
    try:
        for number, (problem, text) in enumerate([(MATH, r"\boxed{1}"), (CODE, ECHO), (STRAY, "1"), (MATH, "no")]):
            judge.submit(("r", number), problem, replace(completion(), text=text))
        assert judge.pending == 4
        found: dict[int, Verdict] = {}
        end = time.monotonic() + 60
        while judge.pending and time.monotonic() < end:
            judge.wait(0.2)
            found |= {number: verdict for (_, number), verdict in judge.poll()}
    finally:
        judge.close()
    statuses = [found[number].status for number in range(4)]
    assert statuses == [Status.CORRECT, Status.CORRECT, Status.ERROR, Status.UNPARSED]
