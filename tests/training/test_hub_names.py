"""A model by its name on the hub is read from one folder: no rank or generator holds a copy that it does not need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runs import small_config
from tests.tiny import byte_tokenizer, tiny_qwen3
from tests.training.several import together

from strop.base.view import SilentView
from strop.config.schema import RunConfig
from strop.engines import build
from strop.engines.settings import Vllm
from strop.model.files import export
from strop.model.settings import FreshModel
from strop.orchestration.fleet import GeneratorSettings
from strop.run.assembly import _in_folders, _plain_model, generator_spec

NAME, COMMIT = "own/named", "0123456789abcdef0123456789abcdef01234567"
RANKS = GENERATORS = 4


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunConfig, int]:
    """A run of a model of which the hub's cache has the only copy, and the bytes of its weights."""
    from huggingface_hub import constants

    fresh = FreshModel(
        hidden_size=2048, layers=2, heads=8, kv_heads=8, head_dim=256, intermediate_size=4096, max_positions=256,
        tie_embeddings=True,
    )  # fmt: skip
    policy = tiny_qwen3(fresh=fresh)
    repository = tmp_path / "cache" / f"models--{NAME.replace('/', '--')}"
    export(policy.model, byte_tokenizer(), repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    sets = (f"model.path={NAME}", f"orchestration.trainers={RANKS}", f"orchestration.generators={GENERATORS}")
    return small_config(*sets), sum(weight.nbytes for weight in policy.weights().values())


def anonymous() -> int:
    """Bytes of this process's memory that are of no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def test_finding_9_ranks_and_generators_hold_one_copy_and_their_shards(
    cached: tuple[RunConfig, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, size = cached
    view = SilentView()
    given = _in_folders(config, view)
    assert given.model.path is not None and Path(given.model.path).is_dir() and config.model.path == NAME

    def never(*given: Any, **named: Any) -> Any:
        raise AssertionError("the whole model is loaded")

    before = anonymous()
    with monkeypatch.context() as patch:
        patch.setattr("strop.training.sharding.load_policy", never)
        after = together(given, RANKS, tmp_path / "ranks", lambda learner, rank: anonymous())
    held = sum(max(there - before, 0) for there in after)
    # Servers of vLLM read the folder themselves; a generator has none of it.
    monkeypatch.setattr(build, "load_policy", never)
    served: list[Path] = []
    monkeypatch.setattr("strop.engines.vllm.engine.VllmEngine", lambda folder, *rest: served.append(folder))
    for number in range(GENERATORS):
        spec = generator_spec(config.model_copy(update={"engine": Vllm()}), _plain_model(config, view), None, number)
        assert isinstance(spec.settings, GeneratorSettings)
        build.own_engine(spec.settings.engine, spec.settings.model)
    held += max(anonymous() - before, 0)
    assert served == [Path(given.model.path)] * GENERATORS  # the same each time, as vLLM's compile cache wants it
    assert held < 1.3 * size  # their shards; the one copy is in pages of the files, which all share


def test_finding_9_a_cluster_is_given_the_name(cached: tuple[RunConfig, int]) -> None:
    config = cached[0]
    orchestration = config.orchestration.model_copy(update={"executor": "ray"})
    assert _plain_model(config.model_copy(update={"orchestration": orchestration}), SilentView()).path == NAME
