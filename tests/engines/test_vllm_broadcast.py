"""vLLM's worker receives broadcasts: the contract's promises about weights, kept by the other way. `make test-vllm`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.engines.contract import LONG, SLOTS, EngineContract, Subject, expected, model
from tests.engines.runs import drain, prompts, requests
from tests.engines.test_broadcast import Meeting, tickets
from tests.engines.test_vllm_worker import experts
from tests.runs import assert_same_run, metrics, small_config
from tests.tiny import byte_tokenizer

from strop.base.types import InputError
from strop.base.view import SilentView
from strop.engines.broadcast import LOOPBACK, Entry, Peer, TransferLost
from strop.engines.build import build_engine
from strop.engines.protocol import KvMode, Receiving, WeightSource
from strop.engines.vllm import Vllm, VllmEngine
from strop.run.run import train

SETTINGS = Vllm(slots=SLOTS, eager=True, kv_cache_gib=0.25)


@dataclasses.dataclass
class Told(Subject):
    """With who tells it."""

    by: Broadcaster


class Broadcaster:
    """Updates an engine by broadcasts, from a thread that stands for the trainer."""

    def __init__(self, engine: VllmEngine, meeting: Meeting) -> None:
        self.engine = engine
        self.meeting = meeting
        self.peer = Peer()
        self.channel = meeting.channel(2, bucket_bytes=10_000)
        self.number = 0

    def update(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        """`Engine.update_weights`."""
        pairs = list(source.items() if isinstance(source, Mapping) else source)
        entries = [Entry(name, str(one.dtype).removeprefix("torch."), tuple(one.shape)) for name, one in pairs]
        self.number += 1
        told = tickets(self.channel, version, self.number)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(self.peer.send, told[0], entries, pairs)
            try:
                self.engine.receive_weights(told[1], LOOPBACK, kv)
            except TransferLost as lost:  # what no sender of ours does: a name twice
                self.channel = self.meeting.channel(2, bucket_bytes=10_000)
                assert isinstance(sent.exception(60), TransferLost)
                raise InputError(f"weights: {lost}") from lost
            sent.result(60)


@pytest.fixture(scope="module")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meeting]:
    made = Meeting(tmp_path_factory.mktemp("meeting"))
    yield made
    made.close()


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def shared(request: pytest.FixtureRequest, meeting: Meeting) -> Iterator[Told]:
    policy = model(0, request.param)
    engine = build_engine(SETTINGS, policy.settings, byte_tokenizer(), policy)
    assert isinstance(engine, VllmEngine) and isinstance(engine, Receiving) and engine.ranks == 1
    by = Broadcaster(engine, meeting)
    engine.update_weights = by.update  # type: ignore[method-assign]
    yield Told(engine, policy, request.param, by)
    engine.close()


@pytest.fixture
def subject(shared: Told) -> Told:
    shared.publish(model(0, shared.tie))
    return shared


@pytest.mark.vllm
@pytest.mark.timeout(600)
class TestVllmByBroadcast:
    """What the contract says of weights."""

    test_an_update_is_what_the_trainer_has = EngineContract.test_an_update_is_what_the_trainer_has
    test_every_parameter_arrives = EngineContract.test_every_parameter_arrives
    test_a_bad_update_changes_nothing = EngineContract.test_a_bad_update_changes_nothing
    test_weights_change_between_two_tokens = EngineContract.test_weights_change_between_two_tokens
    test_prompts_are_never_shared_across_versions = EngineContract.test_prompts_are_never_shared_across_versions

    def test_a_sender_that_is_killed_leaves_the_old_version(self, subject: Told, meeting: Meeting) -> None:
        engine, probe = subject.engine, prompts(2, longest=30)[1]
        assert isinstance(engine, VllmEngine)
        version, before = engine.weight_version, engine.verify_weights(probe)
        for request in requests(prompts(4), LONG):
            engine.submit(request)
        found = engine.step() + engine.step()
        told = tickets(meeting.channel(2), version + 1)
        meeting.spawn("send:kill", told[0])
        with pytest.raises(TransferLost):
            engine.receive_weights(told[1], LOOPBACK)
        assert engine.weight_version == version and engine.health().ok
        assert np.array_equal(engine.verify_weights(probe), before)
        found += drain(engine)
        assert len(found) == 4 and {one.versions[0].version for one in found} == {version}
        subject.by.channel = meeting.channel(2)  # as who publishes makes one for those who live
        subject.publish(model(1, subject.tie))
        np.testing.assert_allclose(engine.verify_weights(probe), expected(subject.policy, probe), atol=2e-4)


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_experts_in_one_tensor_arrive_taken_apart(meeting: Meeting) -> None:
    policy, probe = experts(0), np.arange(5, 30, dtype=np.int32)
    engine = build_engine(SETTINGS, policy.settings, byte_tokenizer(), policy)
    assert isinstance(engine, VllmEngine)
    by = Broadcaster(engine, meeting)
    for seed in (1, 2):
        by.update(experts(seed).weights(), seed)
        np.testing.assert_allclose(engine.verify_weights(probe), expected(experts(seed), probe), atol=1e-3)
    engine.close()


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_with_vllm_is_published_by_broadcasts(tmp_path: Path) -> None:
    sets = ("steps=2", "orchestration.executor=embedded", "evaluation.every=none", "engine=Vllm", "engine.eager=true",
            "engine.kv_cache_gib=0.25", "model.fresh.head_dim=32")  # fmt: skip
    for way in ("shared_memory", "collective"):
        train(small_config(*sets, f"orchestration.weights={way}"), tmp_path / way, SilentView())
    assert_same_run(tmp_path / "shared_memory", tmp_path / "collective")
    assert len(metrics(tmp_path / "collective")) == 2
