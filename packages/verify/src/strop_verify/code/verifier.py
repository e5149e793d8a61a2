"""Testing a program: by which kind of tests, once more where the sandbox fails, and the verdict on a response.

    run(program, {"inputs": ["1 2\\n"], "outputs": ["3\\n"]})            # CodeResult(outcome="pass", …)
    verify({"asserts": ["assert add(1, 2) == 3"]}, response)            # Verdict(score=1.0, status="correct", …)
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from strop_verify.code.runners import CodeResult, ProgramSettings, Tally, run_asserts, run_calls, run_stdio
from strop_verify.code.tests import Tests, read_tests
from strop_verify.extract import after_thinking
from strop_verify.sandbox.limits import Outcome, SandboxFailure
from strop_verify.sandbox.pool import Sandbox, Slot, shared
from strop_verify.verdict import Status, Verdict, shortened

_PYTHON = re.compile(r"i?py(?:thon)?[\d.]*")  # what a block of Python is marked as
# A fence of Markdown: three or more backticks or tildes, then the language, also as {.python title="x"}.
_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*\{?\.?([^\s`{},=:]*)[^`]*")


def last_python_block(text: str) -> str | None:
    """The content of the last closed block that is marked as Python, else of the last that is not marked at all.

    None without one, or in an open think block. A block ends at a line that holds only its fence, or a longer one, so
    that a program may hold fences in its texts.
    """
    final = after_thinking(text)
    if final is None:
        return None
    marked = unmarked = None
    fence, language = "", ""
    lines: list[str] = []
    for line in final.split("\n"):
        bare = line.strip()
        if fence and bare.startswith(fence) and not bare.strip(fence[0]):
            marked = _unindented(lines) if _PYTHON.fullmatch(language) else marked
            unmarked = _unindented(lines) if not language else unmarked
            fence = ""
        elif (begun := _begun(bare, fence)) is not None:
            (fence, language), lines = begun, []  # where another block is open, it was never closed
        else:
            lines.append(line)
    return unmarked if marked is None else marked


def _unindented(lines: list[str]) -> str:
    """The program of a block that may stand in an item of a list: its first line is not indented."""
    first = next(filter(str.strip, lines), "")
    return "\n".join(line.removeprefix(first[: -len(first.lstrip())]) for line in lines)


def _begun(line: str, within: str) -> tuple[str, str] | None:
    """Fence and language of the block that a line begins; `within` is the fence of the one that is open, or empty."""
    place = 0 if within else max(line.find("```"), 0)  # behind a sentence too, where Python is named
    found = _FENCE.fullmatch(line, place)
    if found is None or not found[1].startswith(within):
        return None
    language = found[2].lower()
    return None if not _PYTHON.fullmatch(language) and (within or place) else (found[1], language)


RUNNERS = {"stdio": run_stdio, "call": run_calls, "assert": run_asserts}


def run(
    program: str, tests: object, limits: ProgramSettings | None = None, allow_unsafe_sandbox: bool = False
) -> CodeResult:
    """Run a program against tests in the sandbox that this process shares; blocks until the tests are over.

    Args:
        program: its source.
        tests: in one of the forms that `tests.read_tests` reads.
        limits: seconds, memory, tolerance; the first call with other limits starts another sandbox.
        allow_unsafe_sandbox: run with limits only where this machine offers no isolation.

    Raises:
        ValueError: the tests cannot be read.
        NoIsolation: this machine cannot isolate untrusted programs.
    """
    settings = limits or ProgramSettings()
    return run_tests(shared(settings.limits, None, allow_unsafe_sandbox), program, read_tests(tests), settings)


def verify(
    tests: object, response: str, limits: ProgramSettings | None = None, partial_credit: bool = False,
    allow_unsafe_sandbox: bool = False,
) -> Verdict:  # fmt: skip
    """The verdict on the last closed ```python block of a response; see `run`.

    With `partial_credit` the score is the share of tests passed; set `limits.stop` to false with it.
    """
    settings = limits or ProgramSettings()
    sandbox = shared(settings.limits, None, allow_unsafe_sandbox)
    return verify_in(sandbox, tests, response, settings, partial_credit)


def verify_all(
    pairs: Iterable[tuple[object, str]], limits: ProgramSettings | None = None, partial_credit: bool = False,
    allow_unsafe_sandbox: bool = False,
) -> Iterator[tuple[int, Verdict]]:  # fmt: skip
    """The verdicts on (tests, response) pairs as they come, each with the place of its pair; one program a core."""
    settings = limits or ProgramSettings()
    sandbox = shared(settings.limits, None, allow_unsafe_sandbox)
    with ThreadPoolExecutor(sandbox.workers) as threads:
        running = {
            threads.submit(verify_in, sandbox, tests, response, settings, partial_credit): place
            for place, (tests, response) in enumerate(pairs)
        }
        for done in as_completed(running):
            yield running[done], done.result()


def run_tests(sandbox: Sandbox, program: str, tests: Tests, settings: ProgramSettings) -> CodeResult:
    """Test a program; blocks, from any thread. After a failure of the sandbox it is tried once more in a fresh one."""
    began = time.monotonic()
    with sandbox.slot() as slot:
        result = _once(slot, program, tests, settings)
        if result.outcome is Outcome.SANDBOX_ERROR:
            result = _once(slot, program, tests, settings)
    return replace(result, milliseconds=(time.monotonic() - began) * 1000)


def _once(slot: Slot, program: str, tests: Tests, settings: ProgramSettings) -> CodeResult:
    tally = Tally(settings, len(tests))
    try:
        RUNNERS[tests.kind](slot, program, tests, settings, tally)
    except SandboxFailure as error:
        return CodeResult(Outcome.SANDBOX_ERROR, str(error), 0, len(tests))
    return tally.result()


def verify_in(
    sandbox: Sandbox, reference: object, text: str, settings: ProgramSettings, partial_credit: bool
) -> Verdict:
    """Run the last block of Python in a response against the tests in `reference`; blocks until they are over."""
    try:
        tests = read_tests(reference)
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
    return Verdict(min(share, 1.0 - 1e-9) if partial_credit else 0.0, Status.WRONG, detail)
