"""One sandbox for the tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from strop_verify.code.runners import CodeResult, ProgramSettings
from strop_verify.code.tests import read_tests
from strop_verify.code.verifier import run_tests
from strop_verify.sandbox import Limits, Sandbox, probe

Judge = Callable[..., CodeResult]


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """Tests a program: `judge(program, tests, test_seconds=1.0)`."""
    if not probe().isolated:
        pytest.skip(f"no isolation on this machine: {probe().missing}")
    limits = Limits(memory=256 << 20, output=1 << 20, processes=32)
    with Sandbox(limits, workers=1) as sandbox:

        def run(program: str, tests: Any, **settings: Any) -> CodeResult:
            return run_tests(sandbox, program, read_tests(tests), ProgramSettings(limits, **settings))

        yield run
