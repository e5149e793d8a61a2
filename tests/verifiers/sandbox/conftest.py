"""One sandbox for the tests of a process, and the check that nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strop_verify.sandbox import Limits, Sandbox, probe

MIB = 1 << 20
LIMITS = Limits(memory=256 * MIB, output=MIB, files=8 * MIB, processes=32)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    if not probe().isolated:
        pytest.skip(f"no isolation on this machine: {probe().missing}")
    with Sandbox(LIMITS, workers=2) as opened:
        yield opened
