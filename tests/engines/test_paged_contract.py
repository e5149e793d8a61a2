"""The embedded engine with pages keeps the engine contract: on a CPU with plain PyTorch for its kernels, and, where
there is a GPU, with Triton's and CUDA graphs."""

from __future__ import annotations

import copy

import pytest
from tests.engines.contract import SLOTS, EngineContract, Subject, model
from tests.engines.paged import paged_engine


@pytest.fixture
def subject(tie: bool, device: str) -> Subject:
    policy = model(0, tie)
    engine = paged_engine(copy.deepcopy(policy).to(device), slots=SLOTS, share_parameters=False)
    return Subject(engine, policy, tie)


@pytest.fixture
def disposable(subject: Subject) -> Subject:
    return subject


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("tie", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["tied", "untied"])
class TestPagedEngine(EngineContract):
    """`PagedEngine` with parameters of its own, whose host reads each step two steps later."""
