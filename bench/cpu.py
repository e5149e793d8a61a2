"""The matrix products of this CPU: operations a second of strop's kernels, of torch's, and the most a core can do.

    python bench/cpu.py                  # one thread, which other processes disturb least
    python bench/cpu.py --rows 16,64 --shapes 640x2048,640x262144

Every product is measured in both precisions and on both sides: strop's with weights in float32 and in bfloat16 (whose
sums are float32 in either case), torch's in both, of which the better one is the peer. The limit is a loop of
multiply-adds (limit.c) measured between the products, on as many threads. Each figure is the best of `--repeats`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from common import begin, emit, multiply_adds, parser_of, timed
from torch import Tensor

from strop.model.kernels import native

PASSES = ("forward", "input's gradient", "weight's gradient")


def ours(x: Tensor, weight: Tensor, grad: Tensor, products: native.Products) -> dict[str, Callable[[], object]]:
    """The three products of a layer by strop's kernels; the forward one with weights packed as the engine has them."""
    packed = products.pack([weight], None)
    return {
        "forward": lambda: products.multiply(x, packed, True),
        "input's gradient": lambda: products.grad_input(grad, weight),
        "weight's gradient": lambda: products.grad_weight(grad, x, weight.dtype),
    }


def torchs(x: Tensor, weight: Tensor, grad: Tensor) -> dict[str, Callable[[], object]]:
    """The same by torch."""
    return {
        "forward": lambda: F.linear(x, weight),
        "input's gradient": lambda: grad @ weight,
        "weight's gradient": lambda: grad.t() @ x,
    }


def main() -> None:
    """Measure every product asked for."""
    parser = parser_of(__doc__, ())
    parser.add_argument("--rows", default="16,64,512")
    parser.add_argument("--shapes", default="640x2048,1024x3072,640x262144", help="inputs x outputs of weights")
    given = parser.parse_args()
    given.threads = given.threads or 1
    begin(given)
    kernels = native.load()
    if kernels is None:
        raise SystemExit("no C compiler (cc) on this machine: torch's products are all there is")
    torch.manual_seed(0)
    for shape in given.shapes.split(","):
        inputs, outputs = map(int, shape.split("x"))
        for rows in map(int, given.rows.split(",")):
            rates: dict[tuple[str, str], float] = {}
            most = 0.0
            for dtype in (torch.float32, torch.bfloat16):
                x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
                grad = torch.randn(rows, outputs).to(dtype)
                sides = {"strop": ours(x, weight, grad, kernels.products), "torch": torchs(x, weight, grad)}
                for _ in range(given.repeats):
                    most = max(most, multiply_adds(given.threads))
                    for side, works in sides.items():
                        for name, work in works.items():
                            rate = 2 * rows * inputs * outputs / timed(work, "cpu").wall
                            key = f"{side} {str(dtype).removeprefix('torch.')}", name
                            rates[key] = max(rates.get(key, 0.0), rate)
            for name in PASSES:
                found = {side: rate for (side, one), rate in rates.items() if one == name}
                best = max((side for side in found if side.startswith("torch")), key=found.__getitem__)
                for dtype_name in ("float32", "bfloat16"):
                    emit(
                        "cpu", f"{name}, {rows} rows of {inputs} by {outputs}, {dtype_name}",
                        found[f"strop {dtype_name}"] / 1e9, found[best] / 1e9, best, "GFLOP/s", most / 1e9,
                        threads=given.threads,
                    )  # fmt: skip


if __name__ == "__main__":
    main()
