"""vLLM keeps the engine contract, with tied and untied heads. Run by `make test-vllm`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.engines.contract import SLOTS, EngineContract, Subject, model
from tests.engines.length_contract import LengthContract
from tests.tiny import byte_tokenizer

from strop.engines.build import build_engine
from strop.engines.settings import Vllm
from strop.engines.vllm.engine import VllmEngine

# Blocks smaller than the prompts of the tests, or no prefix would be cached.
SETTINGS = Vllm(slots=SLOTS, eager=True, kv_cache_gib=0.25, arguments={"block_size": 32})


def started(tie: bool) -> Subject:
    policy = model(0, tie)
    return Subject(build_engine(SETTINGS, policy.settings, byte_tokenizer(), policy), policy, tie)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def shared(request: pytest.FixtureRequest) -> Iterator[Subject]:
    subject = started(request.param)
    yield subject
    subject.engine.close()


@pytest.fixture
def subject(shared: Subject) -> Iterator[Subject]:
    yield shared
    # Whatever a failed test has left behind.
    assert isinstance(shared.engine, VllmEngine)
    for name in list(shared.engine._open):
        shared.engine.cancel(name)
    shared.engine.step()
    shared.publish(model(0, shared.tie))


@pytest.fixture
def disposable(shared: Subject) -> Iterator[Subject]:
    subject = started(shared.tie)
    yield subject
    subject.engine.close()


@pytest.mark.vllm
@pytest.mark.timeout(600)
class TestVllmEngine(EngineContract, LengthContract):
    """`VllmEngine` on whatever platform its vLLM is for."""

    stepwise = False
