"""The engine with pages on a device that the host cannot read: steps, prompts and new weights wait for nothing."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")

from tests.engines.paged import paged_engine
from tests.faraway import FAR, faraway
from tests.tiny import byte_tokenizer

from strop.engines.protocol import Request, Sampling
from strop.engines.torch import device_rows
from strop.engines.torch.device_rows import DeviceRows
from strop.engines.torch.kernels.triton_kernels import TritonKernels
from strop.engines.torch.paged_engine import PagedEngine
from strop.model.policy import load_policy
from strop.model.settings import FreshModel, ModelSettings

FRESH = FreshModel(hidden_size=32, layers=2, intermediate_size=32, heads=4, kv_heads=2, head_dim=16)


class Guessed:
    """In place of a landing: tokens that the host makes up for the rows that it believes to run."""

    engine: PagedEngine

    def __init__(self, rows: DeviceRows, width: int) -> None:
        self.width = width
        self._ran = self.engine._slots.active[:width].copy()

    def read(self):
        ran = self._ran & self.engine._slots.active[: self.width]
        return np.arange(self.width) % 200, np.full(self.width, -1.0, np.float32), ran


def far_engine(monkeypatch: pytest.MonkeyPatch, **settings: object) -> PagedEngine:
    """An engine whose parameters, pages and rows are on the far device."""
    monkeypatch.setattr(PagedEngine, "_refuse_by_probe", lambda self: None)  # it reads numbers back, once
    monkeypatch.setattr(device_rows, "Landing", Guessed)
    policy, _ = load_policy(ModelSettings(fresh=FRESH, dtype="bfloat16"), byte_tokenizer())
    engine = paged_engine(policy.to(FAR), TritonKernels(), cache_pages=200, max_tokens=128, **settings)
    Guessed.engine = engine
    return engine


@pytest.mark.parametrize("share", [True, False])
def test_nothing_in_a_step_waits(share: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of several lengths, shared pages, stop strings and ids, top-p, a cancelled request, new weights."""
    engine = far_engine(monkeypatch, share_parameters=share)
    rng = np.random.default_rng(0)
    kinds = [
        Sampling(max_new_tokens=40),
        Sampling(max_new_tokens=12, temperature=0.0),
        Sampling(max_new_tokens=20, top_p=0.9, top_k=5),
        Sampling(max_new_tokens=30, stop=("never",)),
        Sampling(max_new_tokens=30, stop_token_ids=tuple(range(201, 215))),
    ]
    for place, kind in enumerate(kinds):
        prompt = rng.integers(0, 200, int(rng.integers(2, 40))).astype(np.int32)
        engine.submit(Request(str(place), prompt, kind, seed=place, n=4))
    done = []
    with faraway(monkeypatch) as watch:
        for number in range(120):
            done += engine.step()
            if number == 4:
                engine.cancel("0")
            if number == 6:
                engine.set_version(1, "keep")
            if number == 8:
                engine.set_version(2, "recompute")
            if not engine.unfinished:
                break
    assert len(done) == 20 and (watch.found, watch.waits) == ([], [])
    steps = watch.launched["choose_kernel"]
    assert steps > 10 and watch.launched["rotate_and_write_kernel"] == watch.launched["attend_kernel"] >= 2 * steps


def test_a_step_is_few_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a graph of one step has beside the kernels counted below; a layer more is four products and no more."""
    engine = far_engine(monkeypatch)
    engine.submit(Request("a", np.arange(9, dtype=np.int32), Sampling(max_new_tokens=40), seed=0, n=16))
    with faraway(monkeypatch):
        engine.step()
    with faraway(monkeypatch) as watch:
        engine.step()
    assert dict(watch.launched) == {
        "norm_kernel": 5, "rotate_and_write_kernel": 2, "attend_kernel": 2, "gate_kernel": 2, "blocks_kernel": 1,
        "choose_kernel": 1,
    }  # fmt: skip
    assert watch.far <= 100  # many of them views
