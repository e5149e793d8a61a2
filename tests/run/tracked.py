"""An update of a rank without any memory: torch's fake tensors, fake process group and memory tracker.

On fake tensors the policy computes as on a GPU (varlen attention, products of bfloat16 summed in float32).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from transformers import Qwen3Config, Qwen3MoeConfig

from strop.model.files import empty_model
from strop.model.policy import PackedInputs, Policy
from strop.model.settings import ModelSettings
from strop.training.optimizer import MasterAdamW
from strop.training.settings import AdamW
from strop.training.sharding import Place, shard

CPU = torch.device("cpu")
_QWEN3: dict[str, Any] = {"vocab_size": 151_936, "max_position_embeddings": 40_960, "head_dim": 128}


def qwen3(hidden: int, inner: int, layers: int, heads: int, keys: int, tied: bool = False) -> Qwen3Config:
    """A dense Qwen3."""
    return Qwen3Config(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=keys, tie_word_embeddings=tied, **_QWEN3,
    )  # fmt: skip


def shape(name: str, layers: int | None = None) -> Qwen3Config | Qwen3MoeConfig:
    """The shape of a published Qwen3, with so many of its layers."""
    match name:
        case "Qwen3-0.6B":
            return qwen3(1024, 3072, layers or 28, 16, 8, tied=True)
        case "Qwen3-8B":
            return qwen3(4096, 12_288, layers or 36, 32, 8)
        case "Qwen3-32B":
            return qwen3(5120, 25_600, layers or 64, 64, 8)
    return Qwen3MoeConfig(  # Qwen3-30B-A3B
        hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
        num_hidden_layers=layers or 48, num_attention_heads=32, num_key_value_heads=4, tie_word_embeddings=False,
        norm_topk_prob=True, **_QWEN3,
    )  # fmt: skip


@contextmanager
def _as_on_a_gpu() -> Iterator[FakeTensorMode]:
    found = ShardingPropagator._propagate_tensor_meta_non_cached

    def untracked(self: ShardingPropagator, schema: Any) -> Any:
        """What DTensor computes to know shapes takes no memory."""
        with _disable_current_modes():
            return found(self, schema)

    with pytest.MonkeyPatch.context() as patched, FakeTensorMode(allow_non_fake_inputs=True) as mode:
        patched.setattr(FakeTensor, "is_cuda", True, raising=False)
        patched.setattr(ShardingPropagator, "_propagate_tensor_meta_non_cached", untracked)
        yield mode


def _fill(module: nn.Module) -> None:
    """Move parameters and buffers from the meta device, one by one: `to_empty` cannot with fake ones."""
    for each in module.modules():
        for name, parameter in list(each.named_parameters(recurse=False)):
            setattr(each, name, nn.Parameter(torch.empty_like(parameter, device=CPU)))
        for name, buffer in list(each.named_buffers(recurse=False)):
            each.register_buffer(name, torch.empty_like(buffer, device=CPU), persistent=False)


def peak_of_update(
    config: Qwen3Config | Qwen3MoeConfig, settings: ModelSettings, ranks: int, lengths: Sequence[int]
) -> int:
    """Bytes of a rank at the peak of an update, the second one, of a micro-batch of sequences of these lengths."""
    batches = [PackedInputs.whole([[1] * length for length in each]) for each in ([16], lengths)]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        place = Place(init_device_mesh("cpu", (ranks,)), CPU)
        with _as_on_a_gpu() as mode:
            policy = Policy(empty_model(config, settings), settings)
            if ranks > 1:
                shard(policy, place)
                policy.to_empty(device=CPU)
            else:
                _fill(policy)
            policy.model.tie_weights()
            tracker: MemTracker = FSDPMemTracker(policy) if ranks > 1 else MemTracker()
            if ranks == 1:
                tracker.track_external(policy)
            columns = ("token_ids", "positions", "rows", "targets")
            with tracker:
                optimizer = MasterAdamW(AdamW(lr=1e-6), policy.named_parameters())
                policy.train()
                for batch in batches:
                    own: dict[str, Any] = {name: mode.from_tensor(getattr(batch, name)) for name in columns}
                    fake = replace(batch, **own)
                    logprob, entropy = policy(fake, 1.0)
                    with optimizer.accumulating():
                        (logprob.sum() + entropy.sum()).backward()
                    del logprob, entropy
                    optimizer.step(1e-6, optimizer.grad_norm())
                    tracker.reset_mod_stats()
            return int(tracker.get_tracker_snapshot("peak")[CPU]["Total"])
    finally:
        dist.destroy_process_group()
