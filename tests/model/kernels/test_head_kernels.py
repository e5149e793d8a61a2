"""The head's Triton kernels against plain autograd in float64: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from strop.model import head
from strop.model.kernels import head as kernels
from strop.model.kernels.head import Tiling, Upstream

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Tiling(rows=16, columns=32, inner=16, warps=1, stages=1, group=2)
# What bfloat16's rounding of the gradients leaves, as ‖ours − exact‖ / ‖exact‖.
HALF_ERROR = 4e-3


def inputs(rows: int, vocabulary: int, width: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16):
    generator = torch.Generator().manual_seed(rows * vocabulary + width)
    hidden = torch.randn(rows, width, generator=generator) * scale
    weight = torch.randn(vocabulary, width, generator=generator)
    bias = torch.randn(vocabulary, generator=generator)
    target = torch.randint(vocabulary, (rows,), generator=generator)
    target[0], target[-1] = vocabulary - 1, 0
    return hidden.to(DEVICE, dtype), weight.to(DEVICE, dtype), bias.to(DEVICE, dtype), target.to(DEVICE)


def exact(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float):
    """Log-prob and entropy in float64 through all logits."""
    logits = hidden @ weight.t() if bias is None else hidden @ weight.t() + bias
    log_p = (logits / temperature).log_softmax(-1)
    return log_p.gather(1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def gap(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖; not a number where either has one."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


# (rows, vocabulary, width): below, at and beyond whole tiles of 16 × 32 × 16.
SHAPES = [(1, 5, 16), (16, 32, 16), (19, 70, 24)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("descriptors", [False, True])
def test_values(shape: tuple[int, int, int], descriptors: bool):
    hidden, weight, bias, target = inputs(*shape)
    tiling = SMALL._replace(descriptors=descriptors)
    for chosen, temperature in ((None, 1.0), (bias, 0.6)):
        found = kernels.statistics(hidden, weight, chosen, target, temperature, True, tiling=tiling)
        wide = None if chosen is None else chosen.double()
        logprob, entropy = exact(hidden.double(), weight.double(), wide, target, temperature)
        torch.testing.assert_close(found.logprob.double(), logprob, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(found.entropy.double(), entropy, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("which", "chunk"), [("both", 4), ("both", 1000), ("logprob", 8), ("entropy", 8)])
def test_gradients(shape: tuple[int, int, int], which: str, chunk: int):
    hidden, weight, bias, target = inputs(*shape)
    generator = torch.Generator().manual_seed(1)
    mix = torch.randn(2, shape[0], generator=generator).to(DEVICE)
    mix *= torch.tensor([[float(which != "entropy")], [float(which != "logprob")]], device=DEVICE)
    used = [k for k, name in enumerate(("logprob", "entropy")) if which in ("both", name)]
    leaves = [x.clone().requires_grad_() for x in (hidden, weight, bias)]
    wide = [x.double().requires_grad_() for x in (hidden, weight, bias)]
    found = kernels.logprob_entropy(leaves[0], leaves[1], leaves[2], target, 0.8, chunk, True, (SMALL, SMALL))
    wanted = exact(wide[0], wide[1], wide[2], target, 0.8)
    ours = torch.autograd.grad(torch.stack([(mix[k] * found[k]).sum() for k in used]).sum(), leaves)
    theirs = torch.autograd.grad(torch.stack([(mix[k] * wanted[k]).sum() for k in used]).sum(), wide)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.bfloat16 and gap(one, other) < HALF_ERROR


def test_equals_the_chunked_head():
    """The public function's own path gives the same, up to the order of sums and one rounding of the gradient."""
    hidden, weight, bias, target = inputs(21, 70, 32)
    leaves = [[x.clone().requires_grad_() for x in (hidden, weight, bias)] for _ in range(2)]
    (h, w, b), (other_h, other_w, other_b) = leaves
    for fp32 in (True, False):
        ours = kernels.logprob_entropy(h, w, b, target, 0.9, 8, fp32, (SMALL, SMALL))
        theirs = head.logprob_entropy(other_h, other_w, other_b, target, 0.9, 8, fp32, kernels=False)
        for one, other in zip(ours, theirs, strict=True):
            # Without the fp32 head a logit may be rounded the other way: a step of bfloat16 at |z| < 32.
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 if fp32 else 0.13)
            assert fp32 or gap(one, other) < 1e-3
        for one, other in zip(
            torch.autograd.grad(ours[0].sum() - 0.3 * ours[1].sum(), leaves[0]),
            torch.autograd.grad(theirs[0].sum() - 0.3 * theirs[1].sum(), leaves[1]),
            strict=True,
        ):
            assert gap(one, other) < 2 * HALF_ERROR


def test_logits_rounded_first_without_the_fp32_head():
    hidden, weight, _, target = inputs(16, 64, 32)
    found = kernels.statistics(hidden, weight, None, target, 1.0, False, tiling=SMALL)
    logits = (hidden.float() @ weight.float().t()).bfloat16().double()
    wanted = logits.log_softmax(-1).gather(1, target[:, None])[:, 0]
    kept = kernels.statistics(hidden, weight, None, target, 1.0, True, tiling=SMALL).logprob
    assert gap(found.logprob, wanted) < 1e-4 < gap(kept, wanted)


@pytest.mark.parametrize("scale", [1e-3, 30.0, 3000.0])
def test_extreme_logits(scale: float):
    hidden, weight, _, target = inputs(19, 75, 32, scale)
    leaves = (hidden.requires_grad_(), weight.requires_grad_())
    wide = tuple(x.detach().double().requires_grad_() for x in leaves)
    found = kernels.logprob_entropy(hidden, weight, None, target, 1.0, 4, True, (SMALL, SMALL))
    wanted = exact(wide[0], wide[1], None, target, 1.0)
    # A logit of size |z| is known to |z| · 2⁻²⁴ or so.
    slack = 3e-7 * float((wide[0] @ wide[1].t()).detach().abs().max()) + 1e-5
    for one, other in zip(found, wanted, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=slack)
    ours = torch.autograd.grad(found[0].sum() + found[1].sum(), leaves)
    theirs = torch.autograd.grad(wanted[0].sum() + wanted[1].sum(), wide)
    for one, other in zip(ours, theirs, strict=True):
        assert one.isfinite().all() and gap(one, other) < max(HALF_ERROR, 3 * slack)


def test_collision():
    hidden, weight, bias, target = inputs(21, 70, 32)
    found = kernels.statistics(hidden, weight, bias, target, 0.7, True, squares=True, tiling=SMALL)
    log_p = ((hidden.double() @ weight.double().t() + bias.double()) / 0.7).log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
    wanted = (log_p.exp() ** 2 * (log_p + entropy)).sum(1)
    assert found.collision is not None
    torch.testing.assert_close(found.collision.double(), wanted, rtol=1e-4, atol=1e-6)


def test_float16():
    hidden, weight, _, target = inputs(17, 33, 24, dtype=torch.float16)
    found = kernels.statistics(hidden, weight, None, target, 1.0, True, tiling=SMALL)
    logprob, entropy = exact(hidden.double(), weight.double(), None, target, 1.0)
    assert gap(found.logprob, logprob) < 1e-5 and gap(found.entropy, entropy) < 1e-5


def test_only_what_is_needed_is_computed_and_everything_is_written():
    """Buffers are poisoned: what is not written would be seen."""
    hidden, weight, bias, target = inputs(17, 33, 24)
    up = torch.ones(17, device=DEVICE)
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        found = kernels.statistics(hidden, weight, bias, target, 1.0, True, tiling=SMALL)
        upstream = Upstream(up, None, found.normaliser, found.entropy)
        every = kernels.gradients(hidden, weight, bias, target, 1.0, True, upstream, 4, tiling=SMALL)
        assert all(part is not None and part.isfinite().all() for part in every)
        for place in range(3):
            needs = (place == 0, place == 1, place == 2)
            some = kernels.gradients(hidden, weight, bias, target, 1.0, True, upstream, 4, needs, SMALL)
            assert [part is not None for part in some] == list(needs)
            one, same = some[place], every[place]
            assert one is not None and same is not None and torch.equal(one, same)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_target_outside_the_vocabulary_is_not_a_number():
    hidden, weight, _, target = inputs(17, 33, 24)
    target[3] = 33
    found = kernels.statistics(hidden, weight, None, target, 1.0, True, tiling=SMALL)
    assert found.logprob.isnan().nonzero().flatten().tolist() == [3] and found.entropy.isfinite().all()


def test_logits_of_all_tokens_never_exist():
    rows, vocabulary, chunk = 32, 256, 8
    hidden, weight, _, target = inputs(rows, vocabulary, 16)
    hidden.requires_grad_()
    weight.requires_grad_()

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.is_floating_point():  # the interpreter copies arguments as bytes
                self.most = max(self.most, out.numel())
            return out

    with Largest() as seen:
        logprob, entropy = kernels.logprob_entropy(hidden, weight, None, target, 1.0, chunk, True, (SMALL, SMALL))
        (logprob.sum() + entropy.sum()).backward()
    # Statistics of tiles are 3 numbers for 32 logits; a slice of gradients is chunk · V; the weight is V · E.
    assert seen.most <= max(vocabulary * 16, chunk * vocabulary, 3 * rows * vocabulary // 32) < rows * vocabulary


def test_the_public_functions_go_through_the_kernels(monkeypatch: pytest.MonkeyPatch):
    hidden, weight, bias, target = inputs(9, 70, 32)
    plain = head.logprob_entropy(hidden, weight, bias, target, 0.9, 4, True, kernels=False)
    squares = head.collision(hidden, weight, bias, 0.9, 4, True, kernels=False)
    monkeypatch.setattr(head, "_fused", lambda hidden, weight: True)  # as on CUDA
    fused = head.logprob_entropy(hidden, weight, bias, target, 0.9, 4, True)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(head.collision(hidden, weight, bias, 0.9, 4, True), squares, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="must be positive"):
        head.logprob_entropy(hidden, weight, bias, target, 0.0, 4, True)
