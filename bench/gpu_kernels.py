"""The Triton kernels of training: compiled for Hopper on any machine, or timed on a GPU.

    python bench/gpu_kernels.py --compile          # no GPU: registers, bytes spilled, shared memory, tensor-core use
    python bench/gpu_kernels.py --device cuda      # the head in several tilings; kernels of layers

Timed: for each tiling the head's forward and the gradient of its logits, in operations a second (one product each), the
limit being the matrix rate; then RMSNorm, rotary positions and SwiGLU, forward and backward, in bytes a second that
they must move, the limit being the copy bandwidth. What is timed is first held against float64 on some rows.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import bandwidth, begin, emit, matrix_rate, parser_of, timed
from torch import Tensor

HOPPER = 90
WORST = 1e-2  # ‖ours − exact‖ / ‖exact‖ of gradients in bfloat16


def tilings() -> list[Any]:
    """Those worth a try."""
    from strop.model.kernels.head import Tiling

    return [
        Tiling(descriptors=True), Tiling(descriptors=True, stages=4), Tiling(descriptors=True, group=8),
        Tiling(columns=128, warps=4, descriptors=True), Tiling(columns=128, stages=4, descriptors=True),
        Tiling(rows=64, warps=4, descriptors=True), Tiling(), Tiling(columns=128, stages=4),
    ]  # fmt: skip


# ---------------------------------------------------------------------- without a GPU


def compiled(kernel: Any, signature: dict[str, str], constants: dict[str, Any], **options: int) -> dict[str, Any]:
    """What the compiler makes of a kernel for Hopper; pointers and sizes, but rows, are taken to be multiples of 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    sizes = {"vocabulary", "start", "width", "count"}
    round_ones = [name for name, kind in signature.items() if kind.startswith("*") or name in sizes]
    source = ASTSource(
        fn=kernel,
        signature={**signature, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in round_ones},
    )
    found = triton.compile(source, target=GPUTarget("cuda", HOPPER, 32), options=options)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    registers, stack = (int(re.findall(rf"{name}:(\d+)", usage)[-1]) for name in ("REG", "STACK"))
    products = found.asm["ptx"].count("wgmma.mma_async")
    return {"registers": registers, "stack_bytes": stack, "shared": found.metadata.shared, "products": products}


def compile_all(width: int, few: bool) -> None:
    """A line a kernel; `few` leaves out the tilings that are not the default."""
    import triton.language as tl

    from strop.model.kernels import head, layers

    half, single, whole = "*bf16", "*fp32", "i32"
    for tiling in [head.FORWARD] if few else [*tilings(), head.OLDER]:
        x, w = half, half
        if tiling.descriptors:
            x, w = (f"tensordesc<bf16[{rows},{tiling.inner}]>" for rows in (tiling.rows, tiling.columns))
        common = {
            "bias_ref": None, "E": width, "BM": tiling.rows, "BN": tiling.columns, "BK": tiling.inner,
            "GROUP": tiling.group, "BIAS": False, "TYPE": tl.bfloat16, "ROUND": False,
            "DESCRIPTORS": tiling.descriptors, "INTERPRETED": False,
        }  # fmt: skip
        sizes = {"rows": whole, "vocabulary": whole, "scale": "fp32"}
        works = [
            (head._statistics_kernel, {"parts_ref": single, "picked_ref": single, **sizes}, {"SQUARES": False}),
            (
                head._gradient_kernel,
                {"norm_ref": single, "entropy_ref": single, "up_logprob_ref": single, "up_entropy_ref": single,
                 "out_ref": half, "start": whole, "width": whole, **sizes},
                {"LOGPROB": True, "ENTROPY": True},
            ),
        ]  # fmt: skip
        for kernel, signature, constants in works:
            operands = {"x_ref": x, "w_ref": w, "target_ref": "*i64"}
            found = compiled(kernel, operands | signature, common | constants,
                             num_warps=tiling.warps, num_stages=tiling.stages)  # fmt: skip
            report(kernel, f"{tiling}", found)
    block, rows = layers._shape(width, layers._TILE)
    half_head, heads_rows = layers._shape(64, layers._HALF_TILE)
    types = {"TYPE": tl.bfloat16, "INTERPRETED": False}
    norm = {"E": width, "BLOCK": block, "ROWS": rows, **types}
    turn = {"H": 16, "D": 128, "HALF": half_head, "ROWS": heads_rows, "NORM": True, **types}
    angles, steps = {"cos_ref": half, "sin_ref": half}, {"STEPS": layers._STEPS}
    for kernel, signature, constants in (
        (layers._norm_forward_kernel, {"x_ref": half, "w_ref": half, "y_ref": half, "scale_ref": single, "rows": whole,
                                       "eps": "fp32"}, norm),
        (layers._norm_backward_kernel, {"up_ref": half, "x_ref": half, "w_ref": half, "scale_ref": single,
                                        "dx_ref": half, "dw_ref": single, "rows": whole}, norm | steps),
        (layers._rotary_forward_kernel, {"x_ref": half, "w_ref": half, **angles, "y_ref": half, "scale_ref": single,
                                         "rows": whole, "eps": "fp32"}, turn),
        (layers._rotary_backward_kernel, {"up_ref": half, "x_ref": half, "w_ref": half, **angles, "scale_ref": single,
                                          "dx_ref": half, "dw_ref": single, "rows": whole}, turn | steps),
        (layers._gate_forward_kernel, {"gate_ref": half, "up_ref": half, "y_ref": half, "count": whole},
         {"BLOCK": layers._FLAT, **types}),
        (layers._gate_backward_kernel, {"dy_ref": half, "gate_ref": half, "up_ref": half, "dgate_ref": half,
                                        "dup_ref": half, "count": whole}, {"BLOCK": layers._FLAT, **types}),
    ):  # fmt: skip
        report(kernel, f"width {width}", compiled(kernel, signature, constants, num_warps=4, num_stages=3))


def report(kernel: Any, about: str, found: dict[str, Any]) -> None:
    """One line."""
    case = f"compiled {kernel.__name__} {about}"
    emit("gpu_kernels", case, found["registers"], None, None, "registers", 255, **found)


# ---------------------------------------------------------------------- on a GPU


def best(work: Callable[[], object], device: str, repeats: int) -> float:
    """Least seconds of `repeats` runs after one to warm up."""
    work()
    return min(timed(work, device).wall for _ in range(repeats))


def gap(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def head_of(given: Any, width: int, rate: float) -> None:
    """The head's two kernels in each tiling, checked and timed."""
    from strop.model.kernels import head

    rows, vocabulary = given.tokens, given.vocabulary
    hidden = torch.randn(rows, width, device=given.device).bfloat16()
    weight = (torch.randn(vocabulary, width, device=given.device) * 0.05).bfloat16()
    target = torch.randint(vocabulary, (rows,), device=given.device)
    up = torch.randn(2, rows, device=given.device)
    operations = 2.0 * rows * vocabulary * width
    few = slice(0, min(rows, 32))
    exact = (hidden[few].double() @ weight.double().t()).log_softmax(-1)
    entropy = -(exact.exp() * exact).sum(-1, keepdim=True)
    grad = torch.nn.functional.one_hot(target[few], vocabulary) - exact.exp()
    grad = up[0, few, None] * grad - up[1, few, None] * exact.exp() * (exact + entropy)
    logprob = exact.gather(1, target[few, None])[:, 0]
    wanted_hidden = grad @ weight.double()
    for tiling in tilings() if given.tiling is None else [tilings()[given.tiling]]:
        found = head.statistics(hidden, weight, None, target, 1.0, True, tiling=tiling)
        wrong = [gap(found.logprob[few], logprob), gap(found.entropy[few], entropy[:, 0])]
        upstream = head.Upstream(up[0].contiguous(), up[1].contiguous(), found.normaliser, found.entropy)
        whole = (hidden, weight, None, target, 1.0, True)
        forward = partial(head.statistics, *whole, tiling=tiling)
        backward = partial(head.gradients, *whole, upstream, given.chunk, tiling=tiling)
        grad_hidden = backward()[0]
        assert grad_hidden is not None
        wrong.append(gap(grad_hidden[few], wanted_hidden))
        if not max(wrong) < WORST:
            raise SystemExit(f"{tiling}: errors {wrong} of log-prob, entropy and hidden's gradient")
        for name, products, work in (
            ("forward", 1, forward),
            ("gradient of logits", 1, partial(backward, needs=(False, False, False))),
            ("backward", 3, backward),
        ):
            emit(
                "gpu_kernels", f"head {name}, hidden {width}",
                products * operations / best(work, given.device, given.repeats), None, None, "FLOP/s", rate,
                tiling=str(tiling), errors=[float(f"{w:.2g}") for w in wrong], device=given.device,
            )  # fmt: skip


def layers_of(given: Any, width: int, limit: float) -> None:
    """Kernels between products: bytes that must move (inputs and outputs once, in bfloat16) a second."""
    from strop.model.kernels.layers import rms_norm, rotary, swiglu

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, device=given.device).bfloat16().requires_grad_()

    tokens, inner, heads, features = given.tokens, 3 * width, 16, min(128, width)
    angle = torch.randn(tokens, features // 2, device=given.device)
    cos, sin = (part.repeat(1, 2).bfloat16() for part in (angle.cos(), angle.sin()))
    norm_in, norm_weight = noise(tokens, width), noise(width)
    turn_in, turn_weight = noise(tokens, heads, features), noise(features)
    gate, lift = noise(tokens, inner), noise(tokens, inner)
    works: dict[str, tuple[Callable[[], Tensor], list[Tensor], int, int]] = {
        "rms_norm": (lambda: rms_norm(norm_in, norm_weight, 1e-6), [norm_in, norm_weight], 2, 3),
        "rotary with norm": (lambda: rotary(turn_in, turn_weight, cos, sin, 1e-6), [turn_in, turn_weight], 2, 3),
        "swiglu": (lambda: swiglu(gate, lift), [gate, lift], 3, 5),
    }
    for name, (work, leaves, forward, backward) in works.items():
        output = work()
        moved, up = output.numel() * 2, torch.randn_like(output)

        def back(out: Tensor = output, inputs: list[Tensor] = leaves, grad: Tensor = up) -> object:
            return torch.autograd.grad(out, inputs, grad, retain_graph=True)

        for case, what, times in (("forward", work, forward), ("backward", back, backward)):
            took = best(what, given.device, given.repeats)
            emit("gpu_kernels", f"{name} {case}, hidden {width}", moved * times / took, None, None, "B/s", limit,
                 device=given.device)  # fmt: skip


def main() -> None:
    """Compile or measure."""
    parser = parser_of(__doc__, ("none",))
    parser.add_argument("--compile", action="store_true", help="for Hopper, without a GPU")
    parser.add_argument("--few", action="store_true", help="compile the default tiling alone")
    parser.add_argument("--widths", default="1024,2048", help="hidden sizes")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--tiling", type=int, help="number of the only tiling to time")
    given = parser.parse_args()
    begin(given)
    widths = [int(width) for width in given.widths.split(",")]
    if given.compile:
        if os.environ.get("TRITON_INTERPRET"):
            raise SystemExit("--compile: unset TRITON_INTERPRET, with it nothing is compiled")
        for width in widths:
            compile_all(width, given.few)
        return
    rate, copy = matrix_rate(torch.bfloat16, given.device), bandwidth(given.device)
    for width in widths:
        head_of(given, width, rate)
        layers_of(given, width, copy)


if __name__ == "__main__":
    main()
