"""The verdict on a response that holds a program."""

from __future__ import annotations

from strop.base.types import Problem, Status, Verdict
from strop.verifiers.base import scored, shortened
from strop.verifiers.code.extract import last_python_block
from strop.verifiers.code.outcome import CodeResult, Outcome, Settings
from strop.verifiers.code.run import run_tests
from strop.verifiers.code.tests import read_tests
from strop.verifiers.sandbox.pool import Sandbox


def judge_response(
    sandbox: Sandbox, problem: Problem, text: str, settings: Settings, partial_credit: bool
) -> Verdict:
    """Run the last block of Python in a response against the tests of its problem; blocks until they are over."""
    try:
        tests = read_tests(problem.reference)
    except ValueError as error:
        return Verdict(0.0, Status.ERROR, f"tests that cannot be used: {shortened(str(error), 200)}")
    program = last_python_block(text)
    if program is None:
        return Verdict(0.0, Status.UNPARSED, "no closed ```python block")
    return verdict_of(run_tests(sandbox, program, tests, settings), partial_credit)


def verdict_of(result: CodeResult, partial_credit: bool) -> Verdict:
    """A result as a verdict: what the program caused is wrong, what failed in the sandbox is an error."""
    detail = shortened(": ".join(part for part in (result.outcome.value, result.detail) if part), 200)
    if result.outcome is Outcome.SANDBOX_ERROR:
        return Verdict(0.0, Status.ERROR, detail)
    if result.outcome is Outcome.PASS:
        return Verdict(1.0, Status.CORRECT, detail)
    share = result.passed / result.total
    return scored(min(share, 1.0 - 1e-9), detail, partial_credit)
