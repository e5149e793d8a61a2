"""`CodeVerifier`: the program of a response against the tests of its problem."""

from __future__ import annotations

from pydantic import Field

from strop.base.types import Problem, Status, Verdict
from strop.verifiers.base import Verifier, scored, shortened
from strop.verifiers.code.extract import last_python_block
from strop.verifiers.code.outcome import CodeResult, Outcome, Settings
from strop.verifiers.code.run import run_tests
from strop.verifiers.code.tests import Tests, read_tests
from strop.verifiers.sandbox.limits import MIB, Limits
from strop.verifiers.sandbox.pool import Sandbox, shared


class CodeVerifier(Verifier):
    """Runs the last closed ```python block of a response in the sandbox against the tests in `Problem.reference`.

    Whatever the program does (time-out, memory, crash, no Python) is wrong and worth 0, no block is unparsed; a failure
    of the sandbox itself is an error, tried twice and then no reward at all. See `read_tests` for the forms of tests.

    Fields:
        test_seconds: wall clock of one test.
        total_seconds: wall clock of all tests; by default min(7 n + 5, 300) for n tests.
        memory_mib: memory of the process tree.
        output_mib: what a program may write.
        processes: processes and threads alive at once.
        float_tolerance: numbers may differ by so much, absolutely or relatively; by default not at all.
        tokens: compare outputs word by word instead of line by line.
        partial_credit: the score is the share of tests passed, all of them are run; else all or nothing, stopping at
            the first that fails.
        workers: programs at once; by default the usable cores.
        allow_unsafe_sandbox: run programs with limits alone where this machine offers no isolation.
    """

    test_seconds: float = Field(default=6.0, gt=0)
    total_seconds: float | None = Field(default=None, gt=0)
    memory_mib: int = Field(default=1024, ge=32)
    output_mib: int = Field(default=16, ge=1)
    processes: int = Field(default=64, ge=4)
    float_tolerance: float | None = Field(default=None, gt=0)
    tokens: bool = False
    partial_credit: bool = False
    workers: int | None = Field(default=None, ge=1)
    allow_unsafe_sandbox: bool = False

    @property
    def limits(self) -> Limits:
        """What each process may use."""
        return Limits(memory=self.memory_mib * MIB, output=self.output_mib * MIB, processes=self.processes)

    @property
    def settings(self) -> Settings:
        """How programs are tested."""
        return Settings(
            limits=self.limits, test_seconds=self.test_seconds, total_seconds=self.total_seconds,
            tolerance=self.float_tolerance, tokens=self.tokens, stop=not self.partial_credit,
        )  # fmt: skip

    def open_sandbox(self) -> Sandbox:
        """A sandbox of one's own with these settings, to be closed by the caller.

        Raises:
            NoIsolation: this machine has no walls for foreign programs.
        """
        return Sandbox(self.limits, self.workers, self.allow_unsafe_sandbox)

    def refuses(self, problem: Problem) -> str | None:
        """Tests that cannot be read."""
        try:
            read_tests(problem.reference)
        except ValueError as error:
            return f"tests that cannot be used: {error}"
        return None

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The verdict; blocks until the tests are over. The first call starts the sandbox of this process."""
        return self.judge_in(shared(self.limits, self.workers, self.allow_unsafe_sandbox), problem, text)

    def judge_in(self, sandbox: Sandbox, problem: Problem, text: str) -> Verdict:
        """The verdict on a whole response, with a sandbox of one's own."""
        try:
            tests = read_tests(problem.reference)
        except ValueError as error:
            return Verdict(0.0, Status.ERROR, f"tests that cannot be used: {shortened(str(error), 200)}")
        program = last_python_block(text)
        if program is None:
            return Verdict(0.0, Status.UNPARSED, "no closed ```python block")
        return verdict(run_tests(sandbox, program, tests, self.settings), self.partial_credit)

    def test(self, sandbox: Sandbox, program: str, tests: Tests) -> CodeResult:
        """What becomes of a bare program."""
        return run_tests(sandbox, program, tests, self.settings)


def verdict(result: CodeResult, partial_credit: bool) -> Verdict:
    """A result as a verdict: what the program caused is wrong, what failed in the sandbox is an error."""
    detail = shortened(": ".join(part for part in (result.outcome.value, result.detail) if part), 200)
    if result.outcome is Outcome.SANDBOX_ERROR:
        return Verdict(0.0, Status.ERROR, detail)
    if result.outcome is Outcome.PASS:
        return Verdict(1.0, Status.CORRECT, detail)
    share = result.passed / result.total
    return scored(min(share, 1.0 - 1e-9), detail, partial_credit)
