"""VllmEngine around its worker: settings, frames, a worker that is missing, dies or hangs; and a real run with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file
from strop.engines.vllm.model_folder import ModelFolder
from strop.engines.vllm.worker import Closed, Frames
from tests.engines.contract import expected, model
from tests.engines.runs import policy_logprobs, requests
from tests.runs import metrics, parameters, small_config
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.base.types import InputError, StropError
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.engines.build import build_engine, embedded_settings, own_engine
from strop.engines.protocol import Interruption, Request, Sampling
from strop.engines.torch import EngineSettings, TorchEngine
from strop.engines.vllm import Vllm, VllmEngine, worker
from strop.model.policy import Policy, export
from strop.model.settings import FreshModel
from strop.recipes.resolve import resolve
from strop.run.run import train

PROMPT = np.array([5, 17, 80], np.int32)
EAGER = Vllm(slots=16, eager=True, kv_cache_gib=0.25)


def experts(seed: int) -> Policy:
    """A mixture of four experts, two for each token."""
    fresh = FreshModel(
        hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate_size=64, tie_embeddings=False,
        max_positions=512, initializer_range=0.3, experts=4, experts_per_token=2,
    )  # fmt: skip
    return tiny_qwen3(seed, fresh=fresh)


# ---------------------------------------------------------------------- without vLLM


def test_one_setting_switches_the_engine_and_back() -> None:
    config = resolve("grpo", ["engine.slots=32", "engine=Vllm", "engine.python=/opt/vllm/bin/python"])
    assert isinstance(config.engine, Vllm) and config.engine.python == "/opt/vllm/bin/python"
    stored = json.loads(config.to_json())
    assert stored["engine"]["piece"] == "Vllm"
    assert RunConfig.model_validate(stored).engine == config.engine
    back = edit(config, ["engine.piece=Torch"])
    assert type(back.engine) is EngineSettings and json.loads(back.to_json())["engine"]["piece"] == "Torch"
    older = json.loads(back.to_json())
    del older["engine"]["piece"]  # as runs were written before there was a choice
    assert RunConfig.model_validate(older) == back


def test_settings_that_mean_nothing_to_it_are_refused() -> None:
    for wrong in ({"share_parameters": True}, {"shrink": False}, {"arguments": {"max_model_len": 5}}):
        with pytest.raises(ValidationError, match=r"share_parameters|shrink|engine.max_tokens"):
            Vllm.model_validate(wrong)
    with pytest.raises(InputError, match=r"engine.tensor_paralel.*did you mean engine.tensor_parallel"):
        resolve("grpo", ["engine=Vllm", "engine.tensor_paralel=2"])
    assert type(embedded_settings(Vllm(slots=77))) is EngineSettings
    assert embedded_settings(Vllm(slots=77)).slots == 77


def test_the_worker_imports_the_standard_library_alone_until_it_starts() -> None:
    code = (
        "import sys, runpy; before = set(sys.modules); runpy.run_path(sys.argv[1], run_name='other'); "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    command = [sys.executable, "-I", "-c", code, str(Path(worker.__file__))]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == []


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.lists(st.binary(max_size=3000), max_size=5))
def test_frames_arrive_as_they_were_sent(header: dict[str, object], blobs: list[bytes]) -> None:
    header.pop("blobs", None)
    one, other = socket.socketpair()
    with one, other:
        Frames(one).send(header, tuple(blobs))
        Frames(one).send({"second": 1})
        assert Frames(other).receive() == (header, blobs)
        assert Frames(other).receive() == ({"second": 1}, [])
        one.close()
        with pytest.raises(Closed):
            Frames(other).receive()


def test_a_frame_that_is_none_is_refused() -> None:
    for wrong in (b"\xff" * 12, b"\0\0\0\2" + b"\0" * 8 + b"{]", b"\0\0\0\x0d" + b"\0" * 7 + b"\1" + b'{"blobs":[0]}x'):
        one, other = socket.socketpair()
        with one, other:
            one.sendall(wrong)
            with pytest.raises(ValueError):
                Frames(other).receive()


def test_an_interpreter_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = model(0, tie=True)
    monkeypatch.delenv("STROP_VLLM_PYTHON", raising=False)
    with pytest.raises(InputError, match=r"engine\.python=/path.*STROP_VLLM_PYTHON"):
        build_engine(EAGER, policy.settings, byte_tokenizer(), policy)
    with pytest.raises(InputError, match=r"engine\.python=/no/such/python: there is no such"):
        build_engine(EAGER.model_copy(update={"python": "/no/such/python"}), policy.settings, byte_tokenizer(), policy)


def test_an_interpreter_without_vllm_says_so() -> None:
    policy = model(0, tie=True)
    bare = EAGER.model_copy(update={"python": sys.executable})
    if subprocess.run([sys.executable, "-I", "-c", "import vllm"], capture_output=True).returncode == 0:
        pytest.skip("this interpreter has vLLM")
    with pytest.raises(StropError, match=r"No module named 'vllm'.*docs/vllm.md") as failure:
        build_engine(bare, policy.settings, byte_tokenizer(), policy)
    assert "\n" not in str(failure.value)


def test_a_worker_that_ends_or_hangs_at_the_start_is_reported(tmp_path: Path) -> None:
    policy = model(0, tie=True)
    for script, seconds, message in (
        ("echo the reason it gave; exit 3", 60.0, r"ended with exit code 3 during 'start'; .*the reason it gave"),
        ("echo waiting for nobody; sleep 600", 0.5, r"did not answer 'start' within .*waiting for nobody"),
        ("kill -9 $$", 60.0, r"killed by signal 9 \(SIGKILL\)"),
    ):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        settings = EAGER.model_copy(update={"python": str(python), "start_seconds": seconds})
        with pytest.raises(StropError, match=message):
            build_engine(settings, policy.settings, byte_tokenizer(), policy)


def test_sampling_that_no_vllm_can_honour_is_refused_before_one_is_started() -> None:
    policy = model(0, tie=True)
    for sampling, message in (
        (Sampling(max_new_tokens=60, interruption=Interruption(after=(4, 4), phrase="x")), "interruption"),
        (Sampling(temperature=0.001), "temperature=0.001"),
    ):
        with pytest.raises(InputError, match=message):
            build_engine(EAGER, policy.settings, byte_tokenizer(), policy, sampling=sampling)


@pytest.mark.parametrize("tie", [True, False])
def test_a_models_folder_says_what_the_policy_is(tmp_path: Path, tie: bool) -> None:
    policy = model(0, tie)
    export(policy.model, byte_tokenizer(), tmp_path / "model")
    folder = ModelFolder.read(tmp_path / "model")
    assert folder.shapes == {name: weight.shape for name, weight in policy.weights().items()}
    assert folder.tied == ({"lm_head.weight": "model.embed_tokens.weight"} if tie else {})
    assert folder.dtypes == {torch.float32}
    limits = folder.limits(byte_tokenizer(), None)
    assert (limits.max_tokens, limits.vocabulary, limits.end_ids) == (512, 258, (256,))
    with pytest.raises(InputError, match="beyond the model's 512"):
        folder.limits(byte_tokenizer(), 513)
    for file in (tmp_path / "model").glob("*.safetensors"):
        file.write_bytes(b"\xff" * 20)
    with pytest.raises(InputError, match="not a safetensors file"):
        ModelFolder.read(tmp_path / "model")


def test_fused_experts_come_apart_into_what_the_files_hold(tmp_path: Path) -> None:
    policy = experts(0)
    export(policy.model, byte_tokenizer(), tmp_path / "model")
    folder = ModelFolder.read(tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    found = dict(folder.in_files(policy.weights()))
    assert found.keys() == stored.keys() == folder.shapes.keys() != policy.weights().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in stored.items())


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


# ---------------------------------------------------------------------- with vLLM


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
def test_a_worker_that_is_killed_ends_the_engine_loudly(engine: VllmEngine) -> None:
    engine.submit(Request("x", PROMPT, Sampling(max_new_tokens=400), seed=1, n=8))
    engine.step()
    os.kill(engine.process.pid, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(StropError, match=r"killed by signal 9 \(SIGKILL\) during 'step'"):
        for _ in range(400):
            engine.step()
    assert time.monotonic() - begin < 2
    assert not engine.health().ok
    with pytest.raises(InputError, match="make a new one"):
        engine.submit(Request("y", PROMPT, Sampling(), seed=1))


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_worker_that_hangs_is_ended() -> None:
    policy = model(0, tie=True)
    hasty = EAGER.model_copy(update={"reply_seconds": 3.0})
    engine = build_engine(hasty, policy.settings, byte_tokenizer(), policy)
    assert isinstance(engine, VllmEngine)
    pid = engine.process.pid
    os.kill(pid, signal.SIGSTOP)
    engine.submit(Request("x", PROMPT, Sampling(), seed=1))
    with pytest.raises(StropError, match=r"did not answer 'step' within 3 s and was ended"):
        engine.step()
    assert not engine.process.alive and not Path(f"/proc/{pid}").exists()
    assert not engine.health().ok


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_the_worker_dies_with_its_driver(tmp_path: Path) -> None:
    script = (
        "import os, signal\n"
        "from tests.engines.contract import model\n"
        "from tests.engines.test_vllm_worker import EAGER\n"
        "from tests.tiny import byte_tokenizer\n"
        "from strop.engines.build import build_engine\n"
        "policy = model(0, tie=True)\n"
        "engine = build_engine(EAGER, policy.settings, byte_tokenizer(), policy)\n"
        "print(engine.process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[2]
    driver = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    deadline = time.monotonic() + 2
    while Path(f"/proc/{driver.stdout.strip()}/fd/0").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{driver.stdout.strip()}/fd/0").exists()


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
def test_a_mixture_of_experts_follows_updates() -> None:
    policy, probe = experts(0), np.arange(5, 30, dtype=np.int32)
    engine = build_engine(EAGER, policy.settings, byte_tokenizer(), policy)
    for seed in (0, 1, 2):
        engine.update_weights(experts(seed).weights(), seed + 1)
        np.testing.assert_allclose(engine.verify_weights(probe), expected(experts(seed), probe), atol=1e-3)
    engine.close()


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lag", [0, 2])
def test_three_steps_of_training(tmp_path: Path, lag: int) -> None:
    """The loop itself holds vLLM's log-probs against the trainer's after each of the updates."""
    sets = ["steps=3", "model.fresh.head_dim=32", "engine=Vllm", "engine.slots=16", "engine.eager=true"]
    sets += ["engine.kv_cache_gib=0.25", f"orchestration.max_lag={lag}", "evaluation.every=3"]
    config = edit(small_config(), sets)
    outcome = train(config, tmp_path / "run", SilentView())
    rows = metrics(tmp_path / "run")
    assert [row["version"] for row in rows if "version" in row] == [1.0, 2.0, 3.0]
    assert outcome.summary.steps == 3 and outcome.summary.held_out_pass_rate is not None
    assert all(torch.isfinite(tensor).all() for tensor in parameters(tmp_path / "run").values())
    # On-policy, generator and trainer agree on every sampled token.
    assert lag or all(row["mismatch/max"] < 1e-3 for row in rows if "version" in row)
