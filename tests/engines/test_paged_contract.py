"""The embedded engine with pages keeps the engine contract, on a CPU, where its kernels are plain PyTorch."""

from __future__ import annotations

import pytest
from tests.engines.contract import SLOTS, EngineContract, Subject, model
from tests.engines.paged import paged_engine


@pytest.fixture
def subject(tie: bool) -> Subject:
    policy = model(0, tie)
    return Subject(paged_engine(policy, slots=SLOTS, share_parameters=False), policy, tie)


@pytest.fixture
def disposable(subject: Subject) -> Subject:
    return subject


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
class TestPagedEngine(EngineContract):
    """`PagedEngine` with parameters of its own, whose host reads each step two steps later."""
