"""`CodeVerifier`: from a response to a verdict, and its judge."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from tests.made import completion
from tests.verifiers.sandbox.machine import processes_below

from strop.base.types import Completion, Problem, Verdict
from strop.verifiers.base import Verifier
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.judges import SandboxJudge
from strop_verify.code.verifier import last_python_block
from strop_verify.sandbox import probe
from strop_verify.sandbox.pool import Sandbox
from strop_verify.verdict import Status

needs_walls = pytest.mark.skipif(not probe().isolated, reason="no isolation on this machine")
TESTS = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"]}
DOUBLE = "print(2 * int(input()))"


def answer(program: str) -> str:
    return f"Let me see.\n```python\n{program}\n```\nDone."


def said(text: str) -> Completion:
    return replace(completion(), text=text)


def problem(tests: Any = TESTS, **extra: Any) -> Problem:
    return Problem("p", "?", tests, domain="code", extra=extra)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```", "a"),
        ("```py\na\nb\n```", "a\nb"),
        ("```python\na\n```\n```python\nb\n```", "b"),
        ("```python\na\n```\n```text\nb\n```", "a"),
        ("```python\na\n```\n```python\nb", "a"),
        ("```python\na\n```python\nb\n```", "b"),
        ("```Python \r\na\r\n```\r\n", "a\r"),
        ("  ```python\n  a\n  ```", "a"),
        ("1. So:\n   ```python\n   if a:\n       b\n\n   c\n   ```", "if a:\n    b\n\nc"),
        ("- Then ```python\n  a\n  ```", "a"),
        ("so: ```python\na\n```", "a"),
        ('```python\nx = """\n```js\n"""\n```', 'x = """\n```js\n"""'),
        ("```\na\n```", "a"),
        ("```python\na\n```\nIt prints\n```\n6\n```", "a"),
        ("```json\n{}\n```\nthen ```\nb\n```", None),
        ("````python\na\n```\nb\n````", "a\n```\nb"),
        ("~~~python\na\n~~~", "a"),
        ("```py3\na\n```", "a"),
        ("```ipython\na\n```", "a"),
        ("```python3.11\na\n```", "a"),
        ("```pycon\n>>> a\n```", None),
        ("~~~\na\n```\n~~~", "a\n```"),
        ('```{.python title="x"}\na\n```', "a"),
        ('```python linenums="1"\na\n```', "a"),
        ("````\n```python\na\n```\n````", "```python\na\n```"),
        ("a", None),
        ("<think>```python\na\n```", None),
        ("<think>```python\na\n```</think>", None),
        ("<think>x</think>```python\na\n```", "a"),
        ("```python\n```", ""),
    ],
)
def test_the_last_python_block(text: str, program: str | None) -> None:
    assert last_python_block(text) == program


@needs_walls
@pytest.mark.parametrize(
    ("text", "score", "status", "detail"),
    [
        (answer(DOUBLE), 1.0, Status.CORRECT, "pass"),
        (answer("print(2)"), 0.0, Status.WRONG, "wrong: test 2 of 2: line 1: '2' for '4'"),
        (answer("print("), 0.0, Status.WRONG, "syntax_error"),
        (answer("1 / 0"), 0.0, Status.WRONG, "runtime_error"),
        (answer("while True: pass"), 0.0, Status.WRONG, "timeout"),
        (answer("x = [0] * 10**9"), 0.0, Status.WRONG, "memory"),
        (answer("while True: print('x' * 10**5)"), 0.0, Status.WRONG, "killed"),
        (DOUBLE, 0.0, Status.UNPARSED, "no closed ```python block"),
    ],
)
def test_verdicts(text: str, score: float, status: Status, detail: str) -> None:
    verifier = CodeVerifier(test_seconds=1.0 if "while" in text else 10.0, memory_mib=256, output_mib=1, workers=1)
    verdict = verifier(problem(), text, False)
    assert (verdict.score, verdict.status) == (score, status)
    assert verdict.detail.startswith(detail)


@needs_walls
def test_partial_credit_is_the_share_of_tests_passed() -> None:
    verifier = CodeVerifier(partial_credit=True, workers=1)
    verdict = verifier(problem(), answer("print(2)"), False)
    assert (verdict.score, verdict.status) == (0.5, Status.WRONG)
    assert CodeVerifier(workers=1)(problem(), answer("print(2)"), False).score == 0.0


def test_tests_that_cannot_be_used_are_an_error_and_refused() -> None:
    verifier = CodeVerifier()
    unequal: dict[str, Any] = {"inputs": ["1"], "outputs": []}
    given: tuple[Any, ...] = ({}, unequal, {"inputs": [], "outputs": []}, 3, "not json", {"asserts": ["assert ("]})
    for tests in given:
        assert verifier(problem(tests), answer(DOUBLE), False).status is Status.ERROR
        assert (verifier.refuses(problem(tests)) or "").startswith("tests that cannot be used: ")
    assert verifier.refuses(problem(json.dumps(TESTS))) is None


def test_tests_that_use_what_is_not_there_are_refused() -> None:
    asked = "class TreeNode: ...\nWrite depth(root) with the module heapq."
    for test, name in (
        ("assert depth(root=tree_node([3])) == 1", "tree_node"), ("assert depth(TreeNode(3)) == helper", "helper"),
        ("assert depth(TreeNode(3)) == 1", None),
        ("from copy import copy as tree_node\nassert depth(tree_node([3])) == 1", None),
        ("def tree_node(x): return x\nassert depth(tree_node([3])) == 1", None),
        ("import no_such.part\nassert depth(TreeNode(3)) == 1", "no_such"),
        ("from no_such import x\nassert depth(TreeNode(3)) == 1", "no_such"),
        ("import numpy as np\nfrom solution import depth\nassert depth(np.zeros(1)) == 1", None),
        ("try:\n    import no_such\nexcept ImportError: pass\nassert depth(TreeNode(3)) == 1", None),
        ("assert Solution().depth(TreeNode(3)) == math.floor(1)", None), ("assert other(tree_node([3])) == 1", None),
    ):  # fmt: skip
        reason = CodeVerifier().refuses(Problem("p", asked, {"asserts": [test]}, domain="code"))
        assert (reason is None) if name is None else f"'{name}'" in str(reason), test


def test_it_is_a_piece() -> None:
    family: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    verifier = CodeVerifier(test_seconds=2.5, float_tolerance=1e-6)
    assert family.validate_python(verifier.model_dump(mode="json")) == verifier
    with pytest.raises(ValidationError):
        CodeVerifier(test_seconds=0)


@needs_walls
def test_the_judge_works_beside() -> None:
    judge = SandboxJudge(CodeVerifier(workers=2))
    began = time.monotonic()
    for key in range(4):
        program = f"import time\ntime.sleep(1.0)\n{DOUBLE}" if key < 3 else "print(0)"
        judge.submit(("a", key), problem(), said(answer(program)))
    assert time.monotonic() - began < 1.0  # nothing waits
    assert judge.pending == 4
    verdicts: dict[Any, Verdict] = {}
    while judge.pending and time.monotonic() - began < 30:
        verdicts.update(judge.poll())
        time.sleep(0.01)
    assert {key[1]: verdict.score for key, verdict in verdicts.items()} == {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.0}
    judge.close()


@needs_walls
def test_closing_the_judge_ends_what_runs() -> None:
    before = processes_below()
    judge = SandboxJudge(CodeVerifier(workers=2, test_seconds=60.0))
    for key in range(6):
        judge.submit(("a", key), problem(), said(answer("while True: pass")))
    time.sleep(1.0)
    began = time.monotonic()
    judge.close()
    assert time.monotonic() - began < 10.0
    assert processes_below() <= before


@needs_walls
def test_a_sandbox_that_fails_is_an_error_and_never_a_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = CodeVerifier(workers=1)
    sandbox = verifier.open_sandbox()
    try:
        with sandbox.slot() as slot:
            slot.close()  # as if its fork server could not be started any more
        assert isinstance(sandbox, Sandbox)
        verdict = verifier.judge_in(sandbox, problem(), answer(DOUBLE))
        assert (verdict.score, verdict.status, verdict.usable) == (0.0, Status.ERROR, False)
    finally:
        sandbox.close()
