"""Testing a program: which kind of tests it is run against, and one more try where the sandbox fails."""

from __future__ import annotations

import time
from dataclasses import replace

from strop.verifiers.code.asserts import run_asserts
from strop.verifiers.code.calls import run_calls
from strop.verifiers.code.outcome import CodeResult, Outcome, Settings, Tally
from strop.verifiers.code.stdio import run_stdio
from strop.verifiers.code.tests import Tests
from strop.verifiers.sandbox.limits import SandboxFailure
from strop.verifiers.sandbox.pool import Sandbox, Slot

RUNNERS = {"stdio": run_stdio, "call": run_calls, "assert": run_asserts}


def run_tests(sandbox: Sandbox, program: str, tests: Tests, settings: Settings) -> CodeResult:
    """Test a program; blocks, from any thread. After a failure of the sandbox it is tried once more in a fresh one."""
    began = time.monotonic()
    with sandbox.slot() as slot:
        result = _once(slot, program, tests, settings)
        if result.outcome is Outcome.SANDBOX_ERROR:
            result = _once(slot, program, tests, settings)
    return replace(result, milliseconds=(time.monotonic() - began) * 1000)


def _once(slot: Slot, program: str, tests: Tests, settings: Settings) -> CodeResult:
    tally = Tally(settings, len(tests))
    try:
        RUNNERS[tests.kind](slot, program, tests, settings, tally)
    except SandboxFailure as error:
        return CodeResult(Outcome.SANDBOX_ERROR, str(error), 0, len(tests))
    return tally.result()
