"""The chunked head against plain autograd over full logits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from strop.model.head import LogitForm, collision, logprob_entropy, most_probable, project
from strop.model.kernels.native import LayerKernels

M, E, V = 13, 6, 11


def inputs(dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(M, E, generator=generator, dtype=torch.float64)
    weight = torch.randn(V, E, generator=generator, dtype=torch.float64)
    bias = torch.randn(V, generator=generator, dtype=torch.float64)
    target = torch.randint(V, (M,), generator=generator)
    return hidden.to(dtype), weight.to(dtype), bias.to(dtype), target


def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float):
    logits = hidden @ weight.t() if bias is None else hidden @ weight.t() + bias
    log_p = (logits / temperature).log_softmax(-1)
    return log_p.gather(1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_equal_plain_autograd(chunk: int, with_bias: bool):
    hidden, weight, bias, target = inputs(torch.float64)
    leaves = [x.requires_grad_() for x in ((hidden, weight, bias) if with_bias else (hidden, weight))]
    used = bias if with_bias else None
    mix = torch.randn(2, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = logprob_entropy(hidden, weight, used, target, 0.7, chunk, True)
    expected = plain(hidden, weight, used, target, 0.7)
    torch.testing.assert_close(found, expected)
    for weights in (mix, mix * torch.tensor([[1.0], [0.0]]), mix * torch.tensor([[0.0], [1.0]])):
        ours = torch.autograd.grad((weights * torch.stack(found)).sum(), leaves, retain_graph=True)
        theirs = torch.autograd.grad((weights * torch.stack(expected)).sum(), leaves, retain_graph=True)
        torch.testing.assert_close(ours, theirs)


class Summed(TorchDispatchMode):
    """Notes which operations return something of the weight's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.shape == (V, E) and out.dtype == torch.float32:
            self.found.append(str(func))
        return out


@pytest.mark.parametrize(
    "device, dtype, products",
    [("meta", torch.bfloat16, ["aten.mm.dtype", *["aten.addmm.dtype_out"] * 2]),  # as on a GPU
     ("cpu", torch.float32, ["aten.mm.default", *["aten.addmm_.default"] * 2])],
)  # fmt: skip
def test_finding_11_chunks_add_to_the_weights_gradient_in_the_product(device, dtype, products):
    hidden, weight, _, target = inputs(dtype)
    leaves = [tensor.to(device).requires_grad_() for tensor in (hidden, weight)]
    logprob, entropy = logprob_entropy(leaves[0], leaves[1], None, target.to(device), 0.7, 5, True)
    with Summed() as summed:
        torch.autograd.grad(logprob.sum() + entropy.sum(), leaves)
    assert [name for name in summed.found if "mm" in name or "add" in name] == products


@pytest.mark.gpu
def test_finding_11_on_a_gpu_chunks_sum_to_what_one_product_gives():
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(200, 64, generator=generator).bfloat16().cuda().requires_grad_()
    weight = torch.randn(300, 64, generator=generator).bfloat16().cuda().requires_grad_()
    target = torch.randint(300, (200,), generator=generator).cuda()
    found = []
    for chunk in (64, 200):
        logprob, entropy = logprob_entropy(hidden, weight, None, target, 1.0, chunk, True)
        found.append(torch.autograd.grad(logprob.sum() + entropy.sum(), weight)[0].float())
    torch.testing.assert_close(found[0], found[1], rtol=1e-2, atol=1e-2)


def test_only_one_output_used():
    hidden, weight, _, target = inputs(torch.float64)
    weight.requires_grad_()
    for which in (0, 1):
        (ours,) = torch.autograd.grad(logprob_entropy(hidden, weight, None, target, 1.3, 5, True)[which].sum(), weight)
        (theirs,) = torch.autograd.grad(plain(hidden, weight, None, target, 1.3)[which].sum(), weight)
        torch.testing.assert_close(ours, theirs)


def test_gradcheck():
    hidden, weight, bias, target = inputs(torch.float64)
    leaves = tuple(x.requires_grad_() for x in (hidden, weight, bias))
    assert torch.autograd.gradcheck(lambda h, w, b: logprob_entropy(h, w, b, target, 0.9, 4, True), leaves)


@pytest.mark.parametrize("form", [LogitForm(scale=0.3), LogitForm(cap=1.5), LogitForm(scale=2.0, cap=1.5)])
def test_scaled_and_capped_logits_equal_plain_autograd(form: LogitForm):
    hidden, weight, bias, target = inputs(torch.float64)
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]
    logits = (hidden @ weight.t() + bias) * form.scale
    logits = logits if form.cap is None else form.cap * torch.tanh(logits / form.cap)
    log_p = (logits / 0.7).log_softmax(-1)
    expected = log_p.gather(1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    found = logprob_entropy(hidden, weight, bias, target, 0.7, 4, True, form)
    torch.testing.assert_close(found, expected)
    mix = torch.randn(2, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad((mix * torch.stack(found)).sum(), leaves)
    torch.testing.assert_close(ours, torch.autograd.grad((mix * torch.stack(expected)).sum(), leaves))
    wanted = (log_p.exp() ** 2 * (log_p + expected[1][:, None])).sum(1)
    torch.testing.assert_close(collision(hidden, weight, bias, 0.7, 4, True, form), wanted)


def test_no_rows_give_zero_gradients():
    hidden, weight, _, target = inputs(torch.float32)
    empty = hidden[:0].requires_grad_()
    weight.requires_grad_()
    logprob, entropy = logprob_entropy(empty, weight, None, target[:0], 1.0, 4, True)
    (logprob.sum() + entropy.sum()).backward()
    assert weight.grad is not None and not weight.grad.any()


def test_fp32_head_of_bfloat16_weights_keeps_precision_and_the_parameter():
    hidden, weight, _, target = inputs(torch.bfloat16)
    weight.requires_grad_()
    exact = hidden.float() @ weight.float().t()
    assert torch.equal(project(hidden, weight, None, fp32=True), exact)
    rounded = project(hidden, weight, None, fp32=False)
    assert rounded.dtype == torch.float32 and not torch.equal(rounded, exact)
    logprob, _ = logprob_entropy(hidden, weight, None, target, 1.0, 4, True)
    torch.testing.assert_close(logprob, exact.log_softmax(-1).gather(1, target[:, None])[:, 0])
    logprob.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.bfloat16
    with torch.no_grad():
        weight.mul_(2)  # what the head computes follows the parameter: there is no stale copy
    assert torch.equal(project(hidden, weight, None, fp32=True), exact * 2)


def test_full_logits_never_exist():
    rows, vocabulary, chunk = 512, 1024, 16
    hidden = torch.randn(rows, 8, requires_grad=True)
    weight = torch.randn(vocabulary, 8, requires_grad=True)
    target = torch.zeros(rows, dtype=torch.int64)

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                self.most = max(self.most, out.numel())
            return out

    with Largest() as seen:
        logprob, entropy = logprob_entropy(hidden, weight, None, target, 1.0, chunk, True)
        (logprob.sum() + entropy.sum()).backward()
    assert seen.most <= chunk * vocabulary


@pytest.mark.parametrize("scale", [1e-3, 30.0, 3000.0])
def test_extreme_logits(scale: float):
    """float32 against float64: log-probs are as close as a logit of size |z| is known, entropies (the difference of two
    numbers of that size) |z| times less so; everything is finite."""
    hidden, weight, _, target = inputs(torch.float32)
    hidden = (hidden * scale).requires_grad_()
    weight.requires_grad_()
    wide = [leaf.detach().double().requires_grad_() for leaf in (hidden, weight)]
    found = logprob_entropy(hidden, weight, None, target, 1.0, 4, True)
    wanted = plain(wide[0], wide[1], None, target, 1.0)
    largest = float((wide[0] @ wide[1].t()).detach().abs().max())
    slack = 3e-7 * largest + 1e-5
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=1e-5, atol=slack)
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-5, atol=slack * max(largest, 1.0))
    for gradient in torch.autograd.grad(found[0].sum() + found[1].sum(), (hidden, weight)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("temperature", "chunk"), [(0.0, 4), (-1.0, 4), (1.0, 0)])
def test_nonsense_is_refused(temperature: float, chunk: int):
    hidden, weight, _, target = inputs(torch.float32)
    with pytest.raises(ValueError):
        logprob_entropy(hidden, weight, None, target, temperature, chunk, True)


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("with_bias", [False, True])
def test_collision_equals_that_of_full_logits(chunk: int, with_bias: bool):
    hidden, weight, bias, target = inputs(torch.float64)
    chosen = bias if with_bias else None
    _, entropy = plain(hidden, weight, chosen, target, 0.7)
    every = [plain(hidden, weight, chosen, torch.full((M,), v), 0.7)[0] for v in range(V)]
    log_p = torch.stack(every, dim=1)
    expected = (log_p.exp() ** 2 * (log_p + entropy[:, None])).sum(1)
    torch.testing.assert_close(collision(hidden, weight, chosen, 0.7, chunk, True), expected)


FORMS = [LogitForm(), LogitForm(scale=0.3), LogitForm(scale=2.0, cap=1.5)]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40), vocabulary=st.integers(2, 2100), chunk=st.integers(1, 50), form=st.sampled_from(FORMS),
    temperature=st.sampled_from([1.0, 0.7]), dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    with_bias=st.booleans(), mix=st.sampled_from([(1.0, 0.0), (0.0, 1.0), (1.0, 0.3)]),
)  # fmt: skip
def test_kernels_are_as_near_to_float64_as_torch_is(
    kernels: LayerKernels, rows: int, vocabulary: int, chunk: int, form: LogitForm, temperature: float,
    dtype: torch.dtype, with_bias: bool, mix: tuple[float, float],
):  # fmt: skip
    """Values and gradients at the same leaves: the torch of a GPU multiplies bfloat16 as the kernels do, that of a CPU
    gradients in float32, which then are rounded to bfloat16."""
    generator = torch.Generator().manual_seed(rows)
    shapes = ((rows, 64), (vocabulary, 64), (vocabulary,))[: 3 if with_bias else 2]
    leaves = [torch.randn(*shape, generator=generator, dtype=torch.float64).mul_(0.4).to(dtype) for shape in shapes]
    target = torch.randint(vocabulary, (rows,), generator=generator)
    ups = torch.randn(2, rows, generator=generator, dtype=torch.float64) * torch.tensor(mix)[:, None]

    def computed(*given: Tensor, kernels: LayerKernels | None) -> tuple[Tensor, ...]:
        own = [leaf.clone().requires_grad_() for leaf in given]
        bias = own[2] if with_bias else None
        found = logprob_entropy(own[0], own[1], bias, target, temperature, chunk, True, form, kernels)
        used = [part for part, weight in zip(found, mix, strict=True) if weight]
        up = [row.to(found[0].dtype) for row, weight in zip(ups, mix, strict=True) if weight]
        return *(part.detach() for part in found), *torch.autograd.grad(used, own, up)

    exact = computed(*(leaf.double() for leaf in leaves), kernels=None)
    ours = computed(*leaves, kernels=kernels)
    for found, wanted in zip(ours[:2], exact[:2], strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=2e-5)
    close = 1e-5 if dtype == torch.float32 else 6e-3  # as rounding to bfloat16 explains, see test_native_layers.py
    for found, wanted in zip(ours[2:], exact[2:], strict=True):
        assert float((found.double() - wanted).norm()) <= close * float(wanted.norm()) + 1e-7


def test_kernels_and_torch_agree_where_logits_overflowed(kernels: LayerKernels):
    z = torch.zeros(3, 40)
    z[0, 7], z[1, 8], z[2, 3] = torch.nan, torch.inf, -torch.inf
    out = torch.empty(3), torch.empty(3), torch.empty(3)
    kernels.softmax(z, torch.tensor([0, 1, 2]), out)
    for column in out:
        assert column.isfinite().tolist() == [False, False, True]
    torch.testing.assert_close(out[0][2], z[2].log_softmax(-1)[2])


def test_without_rows_or_with_odd_sizes_the_head_computes_as_before(kernels: LayerKernels):
    hidden, weight, _, target = inputs(torch.bfloat16)
    assert not kernels.products.fits(weight)
    assert torch.equal(project(hidden, weight, None, True, kernels), project(hidden, weight, None, True))
    empty, even = torch.zeros(0, 32).bfloat16(), torch.zeros(4, 32).bfloat16().requires_grad_()
    logprob, entropy = logprob_entropy(empty, even, None, target[:0], 1.0, 4, True, LogitForm(), kernels)
    (logprob.sum() + entropy.sum()).backward()
    assert even.grad is not None and not even.grad.any()


@pytest.mark.parametrize("chunk", [3, 100])
def test_several_targets_a_row_and_the_most_probable(chunk: int) -> None:
    torch.manual_seed(0)
    shapes = (7, 4), (9, 4), (9,)
    hidden, weight, bias = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    target = torch.randint(0, 9, (7, 3))
    logp = (hidden @ weight.t() + bias).div(0.7).log_softmax(-1)
    wanted = logp.gather(1, target), -(logp.exp() * logp).sum(-1)
    found = logprob_entropy(hidden, weight, bias, target, 0.7, chunk, True)
    ups = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
    mine, theirs = (torch.autograd.grad(pair, (hidden, weight, bias), ups) for pair in (found, wanted))
    torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=0)
    ids, best = most_probable(hidden, weight, bias, 4, 0.7, chunk, True)
    torch.testing.assert_close(best.double(), logp.topk(4).values, atol=1e-6, rtol=0)
    assert torch.equal(ids, logp.topk(4).indices)
