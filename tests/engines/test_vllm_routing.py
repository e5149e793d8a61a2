"""Experts that vLLM records with a completion: read, kept from phase to phase, and replayed in training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engines.fake_vllm import ServedModel, running
from tests.engines.runs import requests, run
from tests.engines.triton_on_cpu import VARIABLES, is_cpu_build, with_triton
from tests.model.test_routing import gaps
from tests.runs import metrics, small_config
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.base.seeds import derive
from strop.base.types import ExpertArray, InputError
from strop.base.view import SilentView
from strop.engines.base import RequestLimits, checked
from strop.engines.build import build_engine
from strop.engines.continuation import StopStrings
from strop.engines.protocol import EngineLost, Request, Sampling
from strop.engines.settings import PYTHON_VARIABLE, Vllm
from strop.engines.vllm.engine import ModelFolder, VllmEngine, VllmSample
from strop.engines.vllm.server import Chunk
from strop.model.policy import PackedInputs, Policy, load_policy
from strop.model.settings import FreshModel
from strop.run.run import train

PROMPT = np.array([5, 17, 80], np.int32)
PROMPTS = [PROMPT, PROMPT[::-1], np.arange(40, 52, dtype=np.int32)]
EXPERTS = ("model.fresh.experts=8", "model.fresh.hidden_size=32", "model.fresh.intermediate_size=64", "steps=2",
           "evaluation.every=none", "model.dtype=bfloat16", "model.replay_routing=true", "engine=Vllm",
           "optim.lr=1e-9")  # fmt: skip


def mixture(replay_routing: bool = False) -> Policy:
    """Two layers of four experts, two for each token, which vLLM can compute too."""
    fresh = FreshModel(
        hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate_size=64, tie_embeddings=False,
        max_positions=512, initializer_range=0.3, experts=4, experts_per_token=2,
    )  # fmt: skip
    return tiny_qwen3(0, fresh=fresh, replay_routing=replay_routing)


def chosen_by(policy: Policy, ids: list[int]) -> ExpertArray:
    """The experts that the policy's own routers choose for all tokens but the last, [tokens, layers, k], in order."""
    assert policy.routing is not None
    policy.routing.replayed = None
    with torch.no_grad():
        policy(PackedInputs.whole([ids]), 1.0)
    found: ExpertArray = torch.stack(policy.routing.chosen, 1).numpy().astype(np.int16)
    ordered: ExpertArray = np.sort(found[: len(ids) - 1], -1).astype(np.int16)
    return ordered


def check(engine: VllmEngine, policy: Policy, sampling: Sampling) -> None:
    """The record of every completion is what the policy itself chooses, and replaying it gives the log-probs."""
    found = run(engine, requests(PROMPTS, sampling, n=4))
    for completion in found.values():
        ids = [*completion.prompt_ids.tolist(), *completion.token_ids.tolist()]
        assert completion.routed_experts is not None and completion.routed_experts.dtype == np.uint8
        assert np.array_equal(np.sort(completion.routed_experts, -1), chosen_by(policy, ids))
    assert gaps(policy, list(found.values())).max() < 1e-3


SAMPLINGS = {
    "one span": Sampling(max_new_tokens=20),
    "a stop string": Sampling(max_new_tokens=60, stop=("e", "a")),
    "interrupted": Sampling.model_validate(
        {"max_new_tokens": 40, "interruption": {"after": (3, 7), "phrase": "Enough. </think>"}, "answer_tokens": 9}
    ),
}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[VllmEngine, Policy]]:
    policy = mixture(replay_routing=True)
    with running(ServedModel(mixture(replay_routing=True))) as server:
        server.longest = 512
        settings = Vllm(slots=16, urls=(server.url,))
        engine = build_engine(settings, policy.settings, byte_tokenizer(), policy)
        assert isinstance(engine, VllmEngine)
        yield engine, policy
        engine.close()


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_record_is_of_every_computed_token(served: tuple[VllmEngine, Policy], sampling: Sampling) -> None:
    check(*served, sampling)


def sample_of(layers: list[int]) -> VllmSample:
    """One that is interrupted after four tokens, of a prompt of three."""
    sampling = Sampling.model_validate(
        {"max_new_tokens": 20, "interruption": {"after": (4, 4), "phrase": "ab"}, "answer_tokens": 5}
    )
    tokenizer = byte_tokenizer()
    entry = checked(
        Request("x", PROMPT, sampling, seed=1), RequestLimits(64, 258, (256,)), tokenizer, StopStrings(tokenizer)
    )
    return VllmSample(entry, 0, layers)


def answer(sample: VllmSample, ids: list[int], experts: int | ExpertArray | None) -> None:
    """The server's answer to what it is asked next: tokens, and the experts of all layers and tokens."""
    sample.ask("x", "salt")
    rows = np.full((3 + len(sample.token_ids) + len(ids) - 1, 4, 2), experts) if isinstance(experts, int) else experts
    sample.take(Chunk(ids, [-1.0] * len(ids), "length", [(0, 0, len(ids))], rows))
    sample.end()


def test_a_token_keeps_the_experts_of_the_request_that_computed_it_first() -> None:
    sample = sample_of([1, 3])
    answer(sample, [10, 11, 12, 13], 1)
    assert sample.experts is not None and sample.experts.shape == (6, 2, 2)
    answer(sample, [20, 21, 22, 23, 24], 2)
    assert sample.experts.shape == (3 + 4 + 2 + 5 - 1, 2, 2) and sample.reason == "length"
    assert (sample.experts[:6] == 1).all() and (sample.experts[6:] == 2).all()


def test_a_record_of_other_tokens_is_refused() -> None:
    for wrong in (None, np.zeros((5, 4, 2), np.int16)):
        with pytest.raises(EngineLost):
            answer(sample_of([0]), [10, 11, 12, 13], wrong)


def test_layers_without_experts_are_left_out() -> None:
    names = ("embed_tokens.weight", "layers.0.mlp.up_proj.weight", "layers.11.mlp.experts.0.up_proj.weight",
             "layers.2.mlp.experts.3.down_proj.weight", "layers.2.mlp.gate.weight")  # fmt: skip
    shapes = {f"model.{name}": torch.Size((1,)) for name in names}
    assert ModelFolder(Path(), {}, {}, shapes, {}, frozenset(), {}, {}, None).layers_with_experts == [2, 11]


def test_a_server_that_records_nothing_is_refused() -> None:
    policy = mixture(replay_routing=True)
    with running(ServedModel(mixture())) as server:
        server.longest = 512
        with pytest.raises(InputError, match="--enable-return-routed-experts"):
            build_engine(Vllm(slots=16, urls=(server.url,)), policy.settings, byte_tokenizer(), policy)


def test_replay_lessens_the_mismatch_of_a_run(tmp_path: Path) -> None:
    found = {}
    for replays in (True, False):
        config = small_config(*EXPERTS, f"model.replay_routing={str(replays).lower()}")
        policy = load_policy(config.model, byte_tokenizer(), derive(config.seed, "model"))[0]
        with running(ServedModel(policy)) as server:
            run_of = tmp_path / str(replays)
            train(small_config(*EXPERTS, f"model.replay_routing={str(replays).lower()}",
                               f'engine.urls="{server.url}"'), run_of, SilentView())  # fmt: skip
            found[replays] = sum(row["mismatch/mean"] for row in metrics(run_of)) / 2
    assert found[True] < found[False]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmEngine, Policy]]:
    """vLLM's server with a mixture of experts, of the weights that it began with: see the traps in docs/vllm.md."""
    policy, python = mixture(replay_routing=True), os.environ[PYTHON_VARIABLE]
    with pytest.MonkeyPatch.context() as patch:
        if is_cpu_build(python):
            python = with_triton(python, tmp_path_factory.mktemp("python"))
            for name, value in VARIABLES.items():
                patch.setenv(name, value)
        settings = Vllm(python=python, slots=16, eager=True, kv_cache_gib=0.25)
        engine = build_engine(settings, policy.settings, byte_tokenizer(), policy)
    assert isinstance(engine, VllmEngine)
    yield engine, policy
    engine.close()


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_vllm_records_the_experts_of_every_computed_token(
    recording: tuple[VllmEngine, Policy], sampling: Sampling
) -> None:
    check(*recording, sampling)
