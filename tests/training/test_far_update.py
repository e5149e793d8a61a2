"""A whole update with its tensors on a device that the host cannot read: nothing waits but the check at its end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from tests.faraway import FAR, faraway

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import Cispo, PolicyLoss, PpoClip
from strop.algorithms.objective import Objective
from strop.algorithms.sequence_losses import Gspo
from strop.algorithms.value_loss import ValueLoss
from strop.base.types import Sample
from strop.model.critic import Critic
from strop.model.policy import Policy, load_policy
from strop.model.settings import FreshModel, ModelSettings
from strop.training.packing import Update, pack
from strop.training.settings import AdamW
from strop.training.step import Trainer

FRESH = FreshModel(hidden_size=32, layers=2, intermediate_size=32, head_dim=16)
# What an update asks of the device, once: is the loss finite, is the norm?
ASKED = ["item in update"] * 2


def far_policy() -> Policy:
    """A tiny policy on the far device, its layers with kernels."""
    from strop.model.kernels import layers
    from strop.model.kernels.modules import fuse

    policy, _ = load_policy(ModelSettings(fresh=FRESH, dtype="bfloat16"))
    policy.to(FAR)
    policy._kernels_tried = fuse(policy.model, layers) > 0  # the comparison at the first forward reads numbers back
    return policy


def an_update() -> Update:
    """Two micro-batches of sequences of several lengths, with every column that a loss may read."""
    rng = np.random.default_rng(0)
    samples = []
    for place in range(5):
        length = int(rng.integers(12, 40))
        trained = np.arange(length) >= 4
        column = np.where(trained, -4.0, 0.0).astype(np.float32)
        samples.append(
            Sample(
                token_ids=rng.integers(0, 100, length).astype(np.int32), trained=trained, logprobs=column,
                advantages=np.where(trained, rng.normal(), 0.0).astype(np.float32),
                versions=np.where(trained, 0, -1).astype(np.int32), group=place // 2, id=place,
                anchors=column, values=column, returns=column,
            )
        )  # fmt: skip
    return pack(samples, TokenMean(), 80)


@pytest.mark.parametrize("loss", [PpoClip(dual_clip=3.0), Cispo(), Gspo()])
def test_an_update_of_the_policy_waits_twice(loss: PolicyLoss, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, update = Trainer(far_policy(), Objective(loss), AdamW(lr=1e-3), 10), an_update()
    with faraway(monkeypatch) as watch:
        trainer.update(update)
    assert (watch.found, watch.waits) == ([], ASKED) and watch.far > 500
    # The head's kernels once a micro-batch, every norm of two layers (four, and the last one) in both directions.
    many = len(update.micro_batches)
    assert watch.launched["_statistics_kernel"] == watch.launched["_gradient_kernel"] == many
    assert watch.launched["_norm_forward_kernel"] == watch.launched["_norm_backward_kernel"] == 5 * many
    assert watch.launched["_rotary_backward_kernel"] == 4 * many and watch.launched["_gate_backward_kernel"] == 2 * many


def test_an_update_of_a_critic_waits_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, _ = load_policy(ModelSettings(fresh=FRESH, dtype="bfloat16"))
    trainer, update = Trainer(Critic.from_policy(policy, 0).to(FAR), ValueLoss(), AdamW(lr=1e-3), 10), an_update()
    with faraway(monkeypatch) as watch:
        trainer.update(update)
    assert (watch.found, watch.waits) == ([], ASKED) and watch.far > 300


def test_the_watch_sees_copies_mixtures_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.arange(4.0)
    with faraway(monkeypatch) as watch:
        far = numbers.to(FAR)
        torch.tensor(1.0, device=FAR)
        far[torch.tensor([1, 2])]
        far.sum().item()
        with pytest.raises((RuntimeError, NotImplementedError)):
            far[far > 1]
    where = "test_the_watch_sees_copies_mixtures_and_waits"
    assert watch.found == [f"_to_copy in {where}", f"tensor in {where}", f"index in {where}"]
    assert watch.waits == [f"item in {where}"]
