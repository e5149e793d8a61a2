"""The call of torch's variable-length attention, with the signatures of torch 2.11 and of 2.12 and later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.tiny import tiny_qwen3
from torch import Tensor
from torch.nn import attention

from strop.algorithms.tokens import send
from strop.base.types import InputError
from strop.model.attention import PackedContext, adapted, use_flash_attention
from strop.model.policy import Policy

LENGTHS = (3, 7, 1, 5)


def reference(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, scale: float | None, causal: bool) -> Tensor:
    """Sequence by sequence; heads of keys are shared."""
    parts = []
    for start, stop in zip(offsets.tolist()[:-1], offsets.tolist()[1:], strict=True):
        q, k, v = (states[None, start:stop].transpose(1, 2) for states in (query, key, value))
        output = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)
        parts.append(output[0].transpose(0, 1))
    return torch.cat(parts)


def of_2_11(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *,
    return_aux: Any = None, scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
) -> Tensor:  # fmt: skip
    """What torch 2.11 promises."""
    assert torch.equal(cu_seq_q, cu_seq_k) and cu_seq_q.dtype == torch.int32
    assert max_q == max_k == max(cu_seq_q.diff().tolist())
    return reference(query, key, value, cu_seq_q, scale, window_size == (-1, 0))


def of_2_13(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *,
    return_aux: Any = None, scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False, seqused_k: Tensor | None = None, block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:  # fmt: skip
    """What torch 2.13 promises: other numbers of heads are refused unless asked for."""
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError("enable_gqa")
    return of_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size)


def states(heads: int) -> Tensor:
    return torch.randn(sum(LENGTHS), heads, 8, generator=torch.Generator().manual_seed(heads))


@pytest.mark.parametrize("kernel", [of_2_11, of_2_13])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_both_signatures_give_packed_causal_attention(kernel: Any, kv_heads: int):
    query, key, value = states(4), states(kv_heads), states(kv_heads) * 2
    offsets = torch.tensor([0, 3, 10, 11, 16], dtype=torch.int32)
    found = adapted(kernel)(query, key, value, offsets, max(LENGTHS), 0.3)
    plain = PackedContext(LENGTHS, torch.device("cpu")).attend(0, query, key, value, 0.3)
    torch.testing.assert_close(found, plain)


def test_a_window_is_handed_on():
    asked = []

    def kernel(*args: Any, window_size: tuple[int, int], scale: float) -> Tensor:
        asked.append(window_size)
        return torch.zeros(1)

    offsets = torch.tensor([0, 16], dtype=torch.int32)
    for window in (None, 1, 8):
        adapted(kernel)(states(4), states(4), states(4), offsets, 16, 1.0, window)
    assert asked == [(-1, 0), (0, 0), (7, 0)]


def test_the_installed_torch_has_one_of_them():
    from torch.nn.attention.varlen import varlen_attn

    assert adapted(varlen_attn) is not None
    from inspect import signature

    taken = set(signature(varlen_attn).parameters)
    assert {"scale", "window_size"} <= taken


def test_more_than_the_output_is_refused():
    def talkative(*args: Any, **more: Any) -> tuple[Tensor, Tensor]:
        return torch.zeros(1), torch.zeros(1)

    offsets = torch.tensor([0, 16], dtype=torch.int32)
    with pytest.raises(TypeError):
        adapted(talkative)(states(4), states(4), states(4), offsets, 16, 1.0)


@pytest.fixture
def versions() -> Iterator[None]:
    yield
    attention.restore_flash_attention_impl(_raise_warn=False)


class Registered:
    def remove(self) -> None: ...


def test_finding_11_another_version_is_called_where_its_package_is_installed(
    versions: None, monkeypatch: pytest.MonkeyPatch
):
    def installed() -> Registered:
        return Registered()

    def absent() -> None:
        raise ImportError("No module named 'flash_attn'")

    for name, made in (("FA3", installed), ("FA4", absent)):
        monkeypatch.setitem(attention._registry._FLASH_ATTENTION_IMPLS, name, made)
    plain = tiny_qwen3()
    assert attention.current_flash_attention_impl() is None
    three, four = (plain.settings.model_copy(update={"flash_attention": version}) for version in (3, 4))
    Policy(plain.model, three)
    assert attention.current_flash_attention_impl() == "FA3"
    with pytest.raises(InputError, match=r"model\.flash_attention=4: .*No module named 'flash_attn'.*set 2"):
        Policy(plain.model, four)


def test_sending_within_a_device_is_free():
    tensor = torch.arange(3)
    assert send(tensor, torch.device("cpu")) is tensor


@pytest.mark.gpu
@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_on_a_gpu_as_sequence_by_sequence(kv_heads: int, version: int, versions: None):
    """Values and gradients of the kernels that this torch can call, shared heads among them."""
    try:
        use_flash_attention(version)
    except InputError as error:
        pytest.skip(str(error))
    device = torch.device("cuda")
    heads = [states(h).to(device) for h in (4, kv_heads, kv_heads)]
    heads = [F.pad(h, (0, 56)) + 0.01 for h in heads]  # head dimension 64
    ours = [h.bfloat16().requires_grad_() for h in heads]
    exact = [h.detach().double().requires_grad_() for h in ours]
    offsets = torch.tensor([0, 3, 10, 11, 16], dtype=torch.int32)
    found = PackedContext(LENGTHS, device).attend(0, ours[0], ours[1], ours[2], 0.3)
    wanted = reference(exact[0], exact[1], exact[2], offsets, 0.3, True)
    up = torch.randn(wanted.shape, device=device, dtype=torch.float64)
    grads = torch.autograd.grad(found, ours, up.bfloat16()), torch.autograd.grad(wanted, exact, up)
    for one, other in zip((found, *grads[0]), (wanted, *grads[1]), strict=True):
        assert float((one.double() - other).norm() / other.norm()) < 2e-2
