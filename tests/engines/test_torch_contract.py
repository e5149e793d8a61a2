"""The embedded engine keeps the engine contract, with tied and untied heads."""

from __future__ import annotations

import pytest
from tests.engines.contract import SLOTS, EngineContract, Subject, model
from tests.engines.runs import engine_of


@pytest.fixture
def subject(tie: bool) -> Subject:
    policy = model(0, tie)
    return Subject(engine_of(policy, slots=SLOTS, share_parameters=False), policy, tie)


@pytest.fixture
def disposable(subject: Subject) -> Subject:
    return subject


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
class TestTorchEngine(EngineContract):
    """`TorchEngine` with parameters of its own."""
