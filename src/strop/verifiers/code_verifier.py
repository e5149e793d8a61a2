"""`CodeVerifier`: the program of a response against the tests of its problem."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pydantic import Field

from strop.base.types import Problem, Verdict
from strop.data.templates import PROGRAM, Instruction
from strop.verifiers.base import Verifier
from strop_verify.verdict import Status

if TYPE_CHECKING:
    from strop_verify.code.runners import ProgramSettings
    from strop_verify.sandbox.pool import Sandbox


_WORD = re.compile(r"\w+")


class CodeVerifier(Verifier):
    """Runs the last closed ```python block of a response in the sandbox against the tests in `Problem.reference`.

    A program that runs out of time or memory, crashes or is no Python is wrong and scores 0; a response without a block
    is unparsed. A failure of the sandbox itself is tried once more, then it is an error. `code.tests.read_tests` lists
    the forms of tests.

    Fields:
        test_seconds: wall clock of one test.
        total_seconds: wall clock of all tests; by default min(7 n + 5, 300) for n tests.
        memory_mib: memory of the process tree.
        output_mib: what a program may write.
        processes: processes and threads alive at once.
        float_tolerance: numbers may differ by so much, absolutely or relatively, not integers; by default none may.
        tokens: compare outputs word by word instead of line by line.
        partial_credit: the score is the share of tests passed, all of them are run; else all or nothing, stopping at
            the first that fails.
        workers: programs at once; by default the usable cores.
        allow_unsafe_sandbox: run programs with limits only where this machine offers no isolation.
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
    def settings(self) -> ProgramSettings:
        """How programs are tested."""
        from strop_verify.code.runners import ProgramSettings
        from strop_verify.sandbox.limits import MIB, Limits

        limits = Limits(memory=self.memory_mib * MIB, output=self.output_mib * MIB, processes=self.processes)
        return ProgramSettings(
            limits, self.test_seconds, self.total_seconds, self.float_tolerance, self.tokens,
            stop=not self.partial_credit,
        )  # fmt: skip

    def open_sandbox(self) -> Sandbox:
        """A new sandbox with these settings, which the caller closes.

        Raises:
            NoIsolation: this machine cannot isolate foreign programs.
        """
        from strop_verify.sandbox.pool import Sandbox

        return Sandbox(self.settings.limits, self.workers, self.allow_unsafe_sandbox)

    def instruction(self, problem: Problem) -> Instruction | None:
        """To write one block of Python."""
        return PROGRAM

    def refuses(self, problem: Problem) -> str | None:
        """Tests that cannot be read, or that no program can pass.

        These import a module that is not installed, or use a name that neither they nor the prompt has, which has
        others of theirs.
        """
        from strop_verify.code.tests import read_tests
        from strop_verify.sandbox.guest.tester import modules_of, solution_names

        try:
            tests = read_tests(problem.reference)
        except ValueError as error:
            return f"tests that cannot be used: {error}"
        if tests.kind != "assert":
            return None
        absent = sorted(name for name in modules_of(list(tests.inputs)) if find_spec(name) is None)
        if absent:
            return f"tests that no program can pass: they import {absent[0]!r}, which is not installed"
        names = solution_names(list(tests.inputs)) - {"Solution"}
        unknown = sorted(names - set(_WORD.findall(problem.question)))
        if not unknown or len(unknown) == len(names):  # a prompt that names nothing may not be all that a model sees
            return None
        return f"tests that no program can pass: they use {unknown[0]!r}, which neither they nor the prompt define"

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The verdict; blocks until the tests are over. The first call starts the sandbox of this process."""
        from strop_verify.sandbox.pool import shared

        return self.judge_in(shared(self.settings.limits, self.workers, self.allow_unsafe_sandbox), problem, text)

    def judge_in(self, sandbox: Sandbox, problem: Problem, text: str, truncated: bool = False) -> Verdict:
        """The verdict on a whole response, made in the caller's sandbox."""
        from strop_verify.code.verifier import verify_in

        if truncated and self.require_stop:
            return Verdict(0.0, Status.UNPARSED, "truncated")
        found = verify_in(sandbox, problem.reference, text, self.settings, self.partial_credit)
        return Verdict(found.score, found.status, found.detail)
