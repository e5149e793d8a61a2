"""The embedded engine keeps the engine contract, with tied and untied heads, on a CPU and on a GPU."""

from __future__ import annotations

import copy

import pytest
from tests.engines.contract import SLOTS, EngineContract, Subject, model
from tests.engines.length_contract import LengthContract
from tests.engines.runs import engine_of


@pytest.fixture
def subject(tie: bool, device: str) -> Subject:
    policy = model(0, tie)
    own = policy if device == "cpu" else copy.deepcopy(policy).to(device)
    return Subject(engine_of(own, slots=SLOTS, share_parameters=False), policy, tie)


@pytest.fixture
def disposable(subject: Subject) -> Subject:
    return subject


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
class TestTorchEngine(EngineContract, LengthContract):
    """`TorchEngine` with parameters of its own."""
