"""`VllmEngine` around its server: settings, a server that is missing, wrong, dies or hangs; runs with real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tests.engines.contract import expected, model
from tests.engines.fake_vllm import FakeVllm, fake_vllm
from tests.engines.runs import drain, policy_logprobs, requests, run
from tests.tiny import byte_tokenizer, tiny_qwen3
from tests.watching import alive, until
from torch import Tensor

from strop.base.types import InputError, StropError
from strop.config.parse import edit, validated
from strop.config.schema import RunConfig
from strop.engines import weights
from strop.engines.build import build_engine, own_engine
from strop.engines.protocol import EngineLost, Request, Sampling
from strop.engines.settings import PYTHON_VARIABLE, EngineSettings, Vllm
from strop.engines.torch.engine import TorchEngine
from strop.engines.vllm.engine import HEAD, VllmEngine, written
from strop.model.files import export
from strop.model.policy import Policy
from strop.model.settings import FreshModel
from strop.orchestration.executor import PROBE_TOLERANCE
from strop.recipes.resolve import resolve

PROMPT = np.array([5, 17, 80], np.int32)
EAGER = Vllm(slots=16, eager=True, kv_cache_gib=0.25)


def experts(seed: int) -> Policy:
    """A mixture of four experts, two for each token."""
    fresh = FreshModel(
        hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate_size=64, tie_embeddings=False,
        max_positions=512, initializer_range=0.3, experts=4, experts_per_token=2,
    )  # fmt: skip
    return tiny_qwen3(seed, fresh=fresh)


def engine_at(fake: FakeVllm, **settings: object) -> VllmEngine:
    """An engine whose server is not vLLM."""
    policy = model(0, tie=True)
    given = Vllm.model_validate({"slots": 16, "urls": [fake.url], "reply_seconds": 30.0, **settings})
    engine = build_engine(given, policy.settings, byte_tokenizer(), policy)
    assert isinstance(engine, VllmEngine)
    return engine


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    with fake_vllm() as server:
        yield server


# ---------------------------------------------------------------------- settings


def test_one_setting_switches_the_engine_and_back() -> None:
    config = resolve("grpo", ["engine.slots=32", "engine=Vllm", "engine.python=/opt/vllm/bin/python"])
    assert isinstance(config.engine, Vllm) and config.engine.python == "/opt/vllm/bin/python"
    stored = json.loads(config.model_dump_json())
    assert stored["engine"]["piece"] == "Vllm"
    assert RunConfig.model_validate(stored).engine == config.engine
    back = edit(config, ["engine.piece=Torch"])
    assert type(back.engine) is EngineSettings and json.loads(back.model_dump_json())["engine"]["piece"] == "Torch"


def test_settings_that_mean_nothing_to_it_are_refused() -> None:
    for wrong in (
        {"share_parameters": True}, {"shrink": False}, {"arguments": {"max_model_len": 5}}, {"urls": ["a:80"]},
    ):  # fmt: skip
        with pytest.raises(ValidationError, match=r"share_parameters|shrink|engine.max_tokens|urls"):
            Vllm.model_validate(wrong)
    with pytest.raises(InputError, match=r"engine.tensor_paralel\b.* engine.tensor_parallel"):
        resolve("grpo", ["engine=Vllm", "engine.tensor_paralel=2"])


def test_each_generator_has_a_server_of_its_own() -> None:
    two = ["engine=Vllm", 'engine.urls=["http://a:8000", "http://b:8000"]', "orchestration.max_lag=1"]
    with pytest.raises(InputError, match=r"orchestration.generators=2"):
        validated(resolve("grpo", two))
    assert validated(resolve("grpo", [*two, "orchestration.generators=2"])).orchestration.generators == 2
    with pytest.raises(InputError, match="engine.urls"):
        policy = model(0, tie=True)
        build_engine(Vllm(urls=("http://a", "http://b")), policy.settings, byte_tokenizer(), policy)


def test_an_interpreter_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = model(0, tie=True)
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    with pytest.raises(InputError, match=r"engine\.python=/path.*STROP_VLLM_PYTHON"):
        build_engine(EAGER, policy.settings, byte_tokenizer(), policy)
    with pytest.raises(InputError, match="engine.python=/no/such/python"):
        build_engine(EAGER.model_copy(update={"python": "/no/such/python"}), policy.settings, byte_tokenizer(), policy)


def test_an_interpreter_without_vllm_says_so() -> None:
    policy = model(0, tie=True)
    bare = EAGER.model_copy(update={"python": sys.executable})
    if subprocess.run([sys.executable, "-I", "-c", "import vllm"], capture_output=True).returncode == 0:
        pytest.skip("this interpreter has vLLM")
    with pytest.raises(EngineLost, match="'vllm'"):
        build_engine(bare, policy.settings, byte_tokenizer(), policy)


def test_a_server_that_ends_or_hangs_at_the_start_is_reported(tmp_path: Path) -> None:
    policy = model(0, tie=True)
    for script, seconds, message in (
        ("echo the reason it gave; exit 3", 60.0, "the reason it gave"),
        ("echo waiting for nobody; sleep 600", 0.5, "waiting for nobody"),
        ("kill -9 $$", 60.0, "SIGKILL"),
    ):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        settings = EAGER.model_copy(update={"python": str(python), "start_seconds": seconds})
        with pytest.raises(EngineLost, match=message):
            build_engine(settings, policy.settings, byte_tokenizer(), policy)


def test_sampling_that_no_vllm_can_honour_is_refused_before_one_is_started() -> None:
    policy = model(0, tie=True)
    with pytest.raises(InputError, match=r"temperature=0\.001"):
        build_engine(EAGER, policy.settings, byte_tokenizer(), policy, sampling=Sampling(temperature=0.001))


def test_the_embedded_engine_is_built_from_its_settings_alone(tmp_path: Path) -> None:
    policy = model(3, tie=True)
    export(policy.model, byte_tokenizer(), tmp_path / "model")
    settings = policy.settings.model_copy(update={"path": str(tmp_path / "model"), "fresh": None})
    engine = build_engine(EngineSettings(slots=16), settings, byte_tokenizer(), version=4)
    assert isinstance(engine, TorchEngine) and engine.weight_version == 4
    probe = np.arange(20, dtype=np.int32)
    shared = build_engine(EngineSettings(slots=16), policy.settings, byte_tokenizer(), policy)
    np.testing.assert_allclose(engine.verify_weights(probe), shared.verify_weights(probe), atol=1e-6)
    own = own_engine(EngineSettings(slots=16), settings)
    own.update_weights(model(1, tie=True).weights(), 1)
    assert not np.allclose(own.verify_weights(probe), shared.verify_weights(probe), atol=1e-2)


# ---------------------------------------------------------------------- a server that is not vLLM


def test_what_the_server_draws_is_reported_as_it_came(fake: FakeVllm) -> None:
    engine = engine_at(fake)
    engine.update_weights(model(1, tie=True).weights(), 3)
    found = run(engine, [Request("x", PROMPT, Sampling(max_new_tokens=7), seed=1, n=40)])
    for completion in found.values():
        assert completion.token_ids.tolist() == [5, 17, 80, 5, 17, 80, 5] and completion.versions == ((3, 0, 7),)
        assert completion.logprobs.tolist() == [-1.0] * 7 and completion.finish_reason == "length"
    engine.close()


@pytest.mark.parametrize(
    "wrong", ["error", "hang", "short", "long", "no versions", "unfinished", "gap", "abort", "gibberish"]
)
def test_a_server_that_does_wrong_ends_the_engine_loudly(fake: FakeVllm, wrong: str) -> None:
    engine = engine_at(fake, reply_seconds=2.0 if wrong == "hang" else 30.0)
    fake.wrong, fake.after = wrong, 5
    for request in requests([PROMPT] * 3, Sampling(max_new_tokens=9), n=4):
        engine.submit(request)
    with pytest.raises(EngineLost):
        drain(engine)
    assert not engine.health().ok
    with pytest.raises(EngineLost):  # a worker that ends of it is started again
        engine.submit(Request("late", PROMPT, Sampling(), seed=1))
    engine.close()


def test_what_goes_wrong_while_no_step_listens_is_found_by_the_next(fake: FakeVllm) -> None:
    engine = engine_at(fake)
    fake.wrong = "short"
    engine.submit(Request("x", PROMPT, Sampling(max_new_tokens=9), seed=1))
    for _ in range(50):  # requests of its own, meanwhile the sample comes to its end
        engine.verify_weights(PROMPT)
    with pytest.raises(EngineLost):
        for _ in range(50):
            engine.step()
    engine.close()


def test_a_server_that_is_not_there_or_not_as_it_must_be_is_refused(fake: FakeVllm) -> None:
    with pytest.raises(EngineLost, match="http://127.0.0.1:9"):
        engine_at(fake, urls=["http://127.0.0.1:9"], start_seconds=1.0)
    fake.mode = "raw_logprobs"
    with pytest.raises(InputError, match="--logprobs-mode"):
        engine_at(fake)
    fake.mode, fake.longest = "processed_logprobs", 100
    with pytest.raises(InputError, match=r"engine\.max_tokens"):
        engine_at(fake)
    engine_at(fake, max_tokens=100).close()


def test_the_key_is_sent_and_never_shown(fake: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.key = "hush"
    with pytest.raises(InputError, match="engine.api_key_env=STROP_TEST_KEY"):
        engine_at(fake, api_key_env="STROP_TEST_KEY")
    with pytest.raises(StropError, match="401") as refusal:
        engine_at(fake)
    monkeypatch.setenv("STROP_TEST_KEY", "hush")
    engine = engine_at(fake, api_key_env="STROP_TEST_KEY")
    assert len(run(engine, [Request("x", PROMPT, Sampling(max_new_tokens=7), seed=1, n=4)])) == 4
    assert "hush" not in str(refusal.value) + engine.settings.model_dump_json()
    engine.close()


def test_weights_go_through_the_folder_that_both_see(fake: FakeVllm, tmp_path: Path) -> None:
    engine = engine_at(fake, weights_folder=str(tmp_path))
    engine.update_weights(model(1, tie=True).weights(), 3)
    assert fake.version == "3" and list(tmp_path.iterdir()) == []
    engine.close()
    with pytest.raises(StropError, match="nowhere"):
        engine_at(fake, weights_folder=str(tmp_path / "nowhere"))


# ---------------------------------------------------------------------- vLLM


def test_finding_8_samples_go_on_while_weights_are_checked(fake: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_at(fake, slots=16)
    engine.submit(Request("x", PROMPT, Sampling(max_new_tokens=2), seed=1, n=32))
    check, left = weights.checked, list[bool]()

    def slowly(*given: Any) -> dict[str, Tensor]:
        left.append(until(lambda: len(engine._samples) <= 8))  # so that some had to wait for a slot
        return check(*given)

    monkeypatch.setattr(weights, "checked", slowly)
    engine.update_weights(model(1, tie=True).weights(), 1)
    assert left == [True]
    engine.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[VllmEngine]:
    policy = model(0, tie=True)
    export(policy.model, byte_tokenizer(), tmp_path / "model")
    settings = policy.settings.model_copy(update={"path": str(tmp_path / "model"), "fresh": None})
    found = own_engine(EAGER, settings)
    assert isinstance(found, VllmEngine)
    probe = np.arange(5, 30, dtype=np.int32)
    np.testing.assert_allclose(found.verify_weights(probe), expected(policy, probe), atol=1e-4)
    yield found
    found.close()


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_server_that_is_killed_ends_the_engine_loudly(engine: VllmEngine) -> None:
    assert engine.server is not None
    engine.submit(Request("x", PROMPT, Sampling(max_new_tokens=400), seed=1, n=8))
    engine.step()
    os.kill(engine.server.pid, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(EngineLost, match=r"SIGKILL.*log\.txt"):
        drain(engine)
    assert time.monotonic() - begin < 5
    assert not engine.health().ok
    with pytest.raises(EngineLost):
        engine.submit(Request("y", PROMPT, Sampling(), seed=1))


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_server_that_hangs_is_given_up() -> None:
    policy = model(0, tie=True)
    engine = build_engine(EAGER.model_copy(update={"reply_seconds": 5.0}), policy.settings, byte_tokenizer(), policy)
    assert isinstance(engine, VllmEngine) and engine.server is not None
    run(engine, [Request("warm", PROMPT, Sampling(max_new_tokens=2), seed=1)])
    os.killpg(engine.server.pid, signal.SIGSTOP)
    engine.submit(Request("x", PROMPT, Sampling(max_new_tokens=400), seed=1, n=8))
    with pytest.raises(EngineLost):
        drain(engine)
    assert not engine.health().ok
    engine.close()
    process = engine.server.pid
    assert until(lambda: not alive(process), 1)


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_the_probe_catches_a_head_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that reaches the server without its head is loaded without complaint, and must not pass unseen."""
    policy, probe = model(0, tie=True), np.arange(5, 30, dtype=np.int32)
    engine = build_engine(EAGER, policy.settings, byte_tokenizer(), policy)
    np.testing.assert_allclose(engine.verify_weights(probe), expected(policy, probe), atol=1e-4)

    def headless(version: Mapping[str, Tensor], place: Path | None, file: None) -> AbstractContextManager[Path]:
        return written({name: tensor for name, tensor in version.items() if name != HEAD}, place)

    with monkeypatch.context() as patch:
        patch.setattr("strop.engines.vllm.engine.written", headless)
        engine.update_weights(model(1, tie=True).weights(), 1)
    wanted = expected(model(1, tie=True), probe)
    assert np.abs(engine.verify_weights(probe) - wanted).mean() > PROBE_TOLERANCE  # above which the loop ends the run
    engine.update_weights(model(1, tie=True).weights(), 2)
    np.testing.assert_allclose(engine.verify_weights(probe), wanted, atol=1e-4)
    engine.close()


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_the_server_dies_with_its_driver(tmp_path: Path) -> None:
    script = (
        "import os, signal\n"
        "from tests.engines.contract import model\n"
        "from tests.engines.test_vllm_engine import EAGER\n"
        "from tests.tiny import byte_tokenizer\n"
        "from strop.engines.build import build_engine\n"
        "policy = model(0, tie=True)\n"
        "engine = build_engine(EAGER, policy.settings, byte_tokenizer(), policy)\n"
        "print(engine.server.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[2]
    driver = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    assert until(lambda: not alive(int(driver.stdout)), 10)


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_bfloat16_with_the_head_in_float32_follows_updates(tmp_path: Path) -> None:
    policy = model(0, tie=True)
    settings = policy.settings.model_copy(update={"dtype": "bfloat16"})
    policy.model.to(torch.bfloat16)
    engine = build_engine(EAGER, settings, byte_tokenizer(), policy)
    for seed in (0, 1):
        new = model(seed, tie=True)
        new.model.to(torch.bfloat16)
        engine.update_weights(new.weights(), seed + 1)
        found: list[float] = []
        for request in requests([PROMPT, PROMPT[::-1]], Sampling(max_new_tokens=30), n=8):
            engine.submit(request)
        while engine.unfinished:
            for completion in engine.step():
                found += np.abs(completion.logprobs - policy_logprobs(new, completion)).tolist()
        assert float(np.mean(found)) < 0.1 and len(found) > 100
    engine.close()


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_mixture_of_experts_follows_updates_or_is_caught() -> None:
    """The CPU build of vLLM copies plain weights of experts over packed ones (docs/vllm.md): the probe must say so."""
    policy, probe = experts(0), np.arange(5, 30, dtype=np.int32)
    engine = build_engine(EAGER, policy.settings, byte_tokenizer(), policy)
    np.testing.assert_allclose(engine.verify_weights(probe), expected(policy, probe), atol=1e-3)
    engine.update_weights(experts(1).weights(), 1)
    gap = np.abs(engine.verify_weights(probe) - expected(experts(1), probe))
    look = "import importlib.metadata as m; print(m.version('vllm'))"
    found = subprocess.run([os.environ[PYTHON_VARIABLE], "-c", look], capture_output=True, text=True, check=True)
    if "cpu" in found.stdout:
        assert gap.mean() > PROBE_TOLERANCE
    else:
        assert gap.max() < 1e-3
    engine.close()
