"""The products in C against float64, by shapes of every kind, and with packed weights against weights as they are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from strop.model.kernels.native import LayerKernels, Products

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def products(kernels: LayerKernels) -> Products:
    return kernels.products


@pytest.fixture(scope="module")
def linear(products: Products) -> Products:
    if not products.multiplies(torch.bfloat16):
        pytest.skip("this processor does not multiply bfloat16: torch does then")
    return products


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(found: Tensor, wanted: Tensor) -> None:
    """Sums of float32, rounded to bfloat16 where the result is of it."""
    slack = 1e-6 * float(wanted.abs().max())
    rounding = 2.0**-8 if found.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), wanted, rtol=rounding, atol=40 * slack)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 300), lines=st.integers(1, 9), pairs=st.integers(1, 150), biased=st.booleans())
def test_the_three_products_of_a_layer_by_value(linear: Products, rows: int, lines: int, pairs: int, biased: bool):
    inputs, outputs = 32 * lines, 2 * pairs
    x, weight, up = drawn(rows, inputs, seed=0), drawn(outputs, inputs, seed=1), drawn(rows, outputs, seed=2)
    bias = drawn(outputs, seed=3) if biased else None
    assert linear.fits(weight)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    outer = up.double().t() @ x.double()
    for dtype in DTYPES:
        close(linear.forward(x, weight, bias, dtype), wanted)
        close(linear.grad_weight(up, x, dtype), outer)
    close(linear.grad_input(up, weight), up.double() @ weight.double())
    onto = torch.ones(outputs, inputs)
    assert linear.grad_weight(up, x, onto.dtype, onto) is onto
    close(onto, outer + 1)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(5, 32, 9000), (1100, 4128, 34), (9001, 64, 40)])
def test_products_longer_than_the_cache_by_value(rows: int, inputs: int, outputs: int, linear: Products):
    """Inner sizes and rows beyond what a panel is packed for at once."""
    x, weight, up = drawn(rows, inputs, seed=0), drawn(outputs, inputs, seed=1), drawn(rows, outputs, seed=2)
    close(linear.forward(x, weight, None, torch.float32), x.double() @ weight.double().t())
    close(linear.grad_input(up, weight), up.double() @ weight.double())
    close(linear.grad_weight(up, x, torch.bfloat16), up.double().t() @ x.double())
    assert torch.equal(
        linear.forward(x, weight, None, torch.float32),
        linear.multiply(x, linear.pack([weight], None), float_out=True),
    )


def test_what_does_not_fit_is_said_beforehand(linear: Products):
    assert linear.fits(drawn(6, 64, seed=0))
    others = (drawn(5, 64, seed=0), drawn(6, 47, seed=0), drawn(6, 64, seed=0).float(), drawn(64, 64, seed=0)[:, :32],
              drawn(6, 64, seed=0).to("meta"))  # fmt: skip
    assert not any(linear.fits(weight) for weight in others)


def test_a_row_of_a_layer_has_the_bits_of_decoding(linear: Products):
    x, weight, bias = drawn(45, 96, seed=0), drawn(70, 96, seed=1), drawn(70, seed=2)
    whole = linear.forward(x, weight, bias, torch.bfloat16)
    packed = linear.pack([weight], bias)
    for row in range(45):
        assert torch.equal(linear.multiply(x[row : row + 1], packed, float_out=False)[0], whole[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 32, 32), (7, 48, 258), (70, 256, 100), (131, 64, 16)])
def test_products_by_value_and_row_by_row(
    dtype: torch.dtype, rows: int, inputs: int, outputs: int, products: Products
):
    if not products.multiplies(dtype):
        pytest.skip("this processor has no instructions for it: torch multiplies instead")
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    for added in (bias, None):
        by = products.pack([weight], added)
        wide = products.multiply(x, by, float_out=True)
        wanted = F.linear(x.double(), weight.double(), None if added is None else added.double())
        torch.testing.assert_close(wide.double(), wanted, atol=2e-5, rtol=1e-5)
        assert torch.equal(products.multiply(x, by, float_out=False), wide.to(dtype))
        for row in range(0, rows, 9):
            assert torch.equal(products.multiply(x[row : row + 1], by, float_out=True)[0], wide[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(64, 32, 32), (32, 100), (20, 30, 14), (16,), (5,)])
@pytest.mark.parametrize("inputs", [32, 34, 96])
def test_weights_are_packed_one_below_the_other_and_into_the_same_memory(
    dtype: torch.dtype, sizes: tuple[int, ...], inputs: int, products: Products
):
    if not products.multiplies(dtype):
        pytest.skip("this processor has no instructions for it: torch multiplies instead")
    generator = torch.Generator().manual_seed(inputs)
    earlier = None
    for _ in range(2):
        parts = [torch.randn(size, inputs, generator=generator).to(dtype) for size in sizes]
        found = products.pack(parts, None, earlier)
        pairs = 2 if dtype == torch.bfloat16 else 1  # two numbers of a row of bfloat16 lie side by side
        panel = products._panel
        rows = F.pad(torch.cat(parts), (0, 0, 0, -sum(sizes) % panel)).view(-1, panel, inputs // pairs, pairs)
        assert torch.equal(found.weight.flatten(), rows.transpose(1, 2).flatten())
        assert found.outputs == sum(sizes) and (earlier is None or found.weight is earlier.weight)
        earlier = found
