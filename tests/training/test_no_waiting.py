"""A micro-batch never waits for the device: nothing in its forward, loss and backward reads a value back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import Cispo, PolicyLoss, PpoClip
from strop.algorithms.objective import Objective, UpdateContext
from strop.base.metrics import Metrics
from strop.base.types import Sample
from strop.model.policy import load_policy
from strop.model.settings import FreshModel, ModelSettings
from strop.training.packing import MicroBatch, pack
from strop.training.settings import AdamW
from strop.training.step import Trainer

LENGTH = 32  # all alike and whole vectors: then attention on a CPU needs no gathering, as a GPU's never does
WAITING = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "equal"}


class Watch(TorchDispatchMode):
    """Notes operators whose result's value or shape must come back from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(part is not None and part.dtype == torch.bool for part in args[1])
        if name in WAITING or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class Watched(Trainer):
    """A trainer whose micro-batches are watched."""

    def _backward(self, batch: MicroBatch, context: UpdateContext) -> tuple[Tensor, Metrics]:
        self.watch = Watch()
        with self.watch:
            return super()._backward(batch, context)


@pytest.mark.parametrize("loss", [PpoClip(), Cispo()])
def test_nothing_is_read_back_in_a_micro_batch(loss: PolicyLoss):
    policy, _ = load_policy(ModelSettings(fresh=FreshModel(hidden_size=32, layers=1, intermediate_size=32)))
    rng = np.random.default_rng(0)
    trained = np.arange(LENGTH) >= 4
    samples = [
        Sample(
            token_ids=rng.integers(0, 100, LENGTH).astype(np.int32), trained=trained,
            logprobs=np.where(trained, -4.0, 0.0).astype(np.float32),
            advantages=np.where(trained, rng.normal(), 0.0).astype(np.float32),
            versions=np.where(trained, 0, -1).astype(np.int32), group=place // 2, id=place,
        )
        for place in range(4)
    ]  # fmt: skip
    trainer = Watched(policy, Objective(loss), AdamW(lr=1e-3), 10)
    trainer.update(pack(samples, TokenMean(), 2 * LENGTH))
    assert trainer.watch.seen > 100 and trainer.watch.found == []


def test_the_watch_sees_what_waits():
    with Watch() as watch:
        numbers = torch.arange(4.0)
        numbers.sum().item()
        numbers[numbers > 1].sum()
    assert watch.found == ["_local_scalar_dense", "index"]
