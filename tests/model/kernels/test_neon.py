"""The kernels on ARM: cross-compiled, run by an emulator of the processor, and compared with those of this CPU.

pip install ziglang unicorn pyelftools
"""

from __future__ import annotations

import importlib.util
import struct
import subprocess
import sys
from ctypes import c_int
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from strop.engines.torch import fused_forward
from strop.engines.torch.fused_forward import DecodeKernels
from strop.model.kernels import compiled, native
from strop.model.kernels.native import Activation, LayerKernels

MISSING = [name for name in ("ziglang", "unicorn", "elftools") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason="needs pip install ziglang unicorn pyelftools"),
    pytest.mark.timeout(900),  # the first time zig also compiles the C library of ARM
]

PAGE = 4096
# Memory without an operating system: what a call allocates is never given back within it.
RUNTIME = r"""
#include <stddef.h>
static char heap[1 << 24] __attribute__((aligned(64)));
static size_t used;
void strop_begin(void) { used = 0; }
void *malloc(size_t size) {
    void *found = heap + used;
    used += (size + 63) & ~(size_t)63;
    return used > sizeof heap ? NULL : found;
}
void *aligned_alloc(size_t alignment, size_t size) { return malloc(size); }
void *calloc(size_t count, size_t size) {
    char *found = malloc(count * size);
    for (size_t i = 0; found && i < count * size; i++) found[i] = 0;
    return found;
}
void free(void *memory) {}
int main(void) { return 0; }
"""


class Emulated:
    """A library on an emulated ARM processor: `emulated["strop_gate"](tensor, 3, 0.5)` as ctypes would call it."""

    def __init__(self, path: Path) -> None:
        from elftools.elf.elffile import ELFFile
        from unicorn import arm64_const as register

        unicorn: Any = importlib.import_module("unicorn")  # its types do not name what it exports
        self._arm = register
        self._cpu: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        with path.open("rb") as stream:
            elf: Any = ELFFile(stream)
            self._symbols = {one.name: one["st_value"] for one in elf.get_section_by_name(".symtab").iter_symbols()}
            mapped = 0
            for part in elf.iter_segments("PT_LOAD"):
                start = max(part["p_vaddr"] & -PAGE, mapped)
                mapped = (part["p_vaddr"] + part["p_memsz"] + PAGE - 1) & -PAGE
                self._cpu.mem_map(start, mapped - start)
                self._cpu.mem_write(part["p_vaddr"], part.data())
        self._stack, self._room, self._back = 0x7F0000000, 0x600000000, 0x500000000
        for start, size in ((self._stack, 1 << 22), (self._room, 1 << 26), (self._back, PAGE), (0x7E0000000, 1 << 23)):
            self._cpu.mem_map(start, size)
        self._cpu.reg_write(register.UC_ARM64_REG_TPIDR_EL0, 0x7E0000000 + 64)  # where variables of a thread lie
        self._cpu.reg_write(register.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # vector registers are on

    def __getitem__(self, name: str) -> Function:
        return Function(self, name)

    def __getattr__(self, name: str) -> Function:
        return Function(self, name)

    def call(self, name: str, types: tuple[Any, ...], given: tuple[Any, ...]) -> int:
        """Copy what tensors lie in to the emulated memory, run, and copy it back."""
        arm, cpu = self._arm, self._cpu
        places: dict[int, tuple[Tensor, int]] = {}
        at = self._room
        whole, broken, stack = 0, 0, b""
        for kind, value in zip(types, given, strict=True):
            if isinstance(value, Tensor):
                memory = value.untyped_storage()
                if memory.data_ptr() not in places:
                    raw = torch.tensor([], dtype=torch.uint8).set_(memory)
                    cpu.mem_write(at, raw.numpy().tobytes())
                    places[memory.data_ptr()] = raw, at
                    at += (len(raw) + 2 * PAGE) // PAGE * PAGE
                value = places[memory.data_ptr()][1] + value.data_ptr() - memory.data_ptr()
            if kind.__name__ == "c_float":
                cpu.reg_write(arm.UC_ARM64_REG_V0 + broken, int.from_bytes(struct.pack("<f", value), "little"))
                broken += 1
            elif whole < 8:
                cpu.reg_write(arm.UC_ARM64_REG_X0 + whole, int(value or 0))
                whole += 1
            else:
                stack += int(value or 0).to_bytes(8, "little")
        top = self._stack + (1 << 22) - 2 * PAGE
        cpu.mem_write(top, stack)
        cpu.reg_write(arm.UC_ARM64_REG_SP, top)
        cpu.reg_write(arm.UC_ARM64_REG_LR, self._back)
        cpu.emu_start(self._symbols[name], self._back)
        for raw, place in places.values():
            raw.copy_(torch.frombuffer(cpu.mem_read(place, len(raw)), dtype=torch.uint8))
        return int(cpu.reg_read(arm.UC_ARM64_REG_X0)) & 0xFFFFFFFF


class Function:
    """A function of an emulated library, which takes what a function of ctypes takes."""

    def __init__(self, library: Emulated, name: str) -> None:
        self._library, self._name = library, name
        self.argtypes: tuple[Any, ...] = ()
        self.restype: Any = c_int

    def __call__(self, *given: Any) -> int | None:
        if self._name != "strop_begin":
            self._library.call("strop_begin", (), ())
        found = self._library.call(self._name, self.argtypes, given)
        return None if self.restype is None else found


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    folder = tmp_path_factory.mktemp("arm")
    (folder / "runtime.c").write_text(RUNTIME)
    sources = [*native._SOURCES, *fused_forward._SOURCES, folder / "runtime.c"]
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        "aarch64-linux-musl",
        "-static",
        "-w",
        "-Wl,--no-gc-sections",
    ]
    flags = [flag for flag in compiled._COMPILE if flag not in ("-march=native", "-fPIC")]
    where = [f"-I{compiled._HEADER.parent}", "-o", str(folder / "kernels"), *map(str, sources), "-lm"]
    subprocess.run([*command, *flags, "-fno-builtin-malloc", *where], check=True)
    return Emulated(folder / "kernels")


@pytest.fixture(scope="module")
def sides(arm: Any) -> tuple[LayerKernels, LayerKernels]:
    """The layers' kernels of this CPU and of ARM."""
    here = native.load()
    if here is None:
        pytest.skip("no C compiler here")
    return here, LayerKernels(arm)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def close(found: Tensor, wanted: Tensor) -> None:
    half = torch.bfloat16 in (found.dtype, wanted.dtype)
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2**-7 if half else 1e-5, atol=3e-2 if half else 2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 64, 48), (7, 96, 50), (13, 130, 34)])
def test_products(sides: tuple[LayerKernels, LayerKernels], dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    rows, inputs, outputs = shape
    products = sides[1].products
    assert products.multiplies(dtype) and products.widens
    x, weight, grad = drawn(rows, inputs, dtype=dtype), drawn(outputs, inputs, dtype=dtype), drawn(rows, outputs)
    grad = grad.to(dtype)
    bias = drawn(outputs)
    wanted = x.float() @ weight.float().t() + bias
    found = products.forward(x, weight, bias, torch.float32)
    close(found, wanted)
    assert torch.equal(products.multiply(x, products.pack([weight], bias), True), found)
    close(products.grad_input(grad, weight), grad.float() @ weight.float())
    close(products.grad_weight(grad, x, torch.float32), grad.float().t() @ x.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers(sides: tuple[LayerKernels, LayerKernels], dtype: torch.dtype) -> None:
    angles = torch.arange(5)[:, None] / torch.arange(1, 33).repeat(2)
    turned = (angles.cos().to(dtype), angles.sin().to(dtype))
    parts = [drawn(5, heads, 64, dtype=dtype) for heads in (4, 2, 2)]
    ends, groups = torch.tensor([0, 2, 3, 5]), torch.tensor([0, 3])
    results = []
    for kernels in sides:
        x, gate = (drawn(size, 64, dtype=dtype).requires_grad_() for size in (5, 6))
        weight = drawn(64, dtype=dtype).requires_grad_()
        states = [part.clone().requires_grad_() for part in parts]
        given = [kernels.rms_norm(x, weight, 1e-6, plus=True), kernels.rotary(states[0], weight, *turned, 1e-6)]
        given += [kernels.gated(gate[:3], gate[3:], activation) for activation in Activation]
        given.append(kernels.attention(states[0], states[1], states[2], ends, groups, 0.125))
        sum((one.float().square().sum() for one in given), torch.zeros(())).backward()
        results.append([*given, *(leaf.grad for leaf in (x, gate, weight, *states))])
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None and theirs is not None
        scale = float(ours.detach().abs().max())
        close(theirs.detach() / scale, ours.detach() / scale)


def test_softmax(sides: tuple[LayerKernels, LayerKernels]) -> None:
    target = torch.tensor([3, 0, 99])
    results = []
    for kernels in sides:
        z, out = drawn(3, 100), (torch.empty(3), torch.empty(3), torch.empty(3))
        kernels.softmax(z, target, out)
        ups = (torch.ones(3), torch.full((3,), 0.5))
        results.append([*out, kernels.softmax_backward(z, target, out[2], out[1], ups, torch.float32, 1.0, 0.0)])
    for ours, theirs in zip(*results, strict=True):
        close(theirs, ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_of_decoding(arm: Any, dtype: torch.dtype) -> None:
    here = fused_forward.load()
    assert here is not None
    results = []
    for kernels in (here, DecodeKernels(arm)):
        x, weight, states = drawn(3, 64, dtype=dtype), drawn(64, dtype=dtype), drawn(3, 8, 64, dtype=dtype)
        normed = kernels.add_norm(x, drawn(3, 64, dtype=dtype) / 2, weight, 1e-6, plus=True, inner=weight)
        tables = (torch.cos(drawn(9, 64)).to(dtype), torch.sin(drawn(9, 64)).to(dtype))
        kernels.rotate(states.view(3, -1), (weight, weight), tables, torch.tensor([1, 8, 4]), 4, 2, 64, 1e-6)
        keys, values = (drawn(3, 2, 64, 64, dtype=dtype) for _ in range(2))
        lengths, out = torch.tensor([2, 40, 0]), torch.empty(3, 4, 64, dtype=dtype)
        kernels.decode(states[:, :4], states[:, 4:6], states[:, 6:], keys, values, lengths, None, 0.125, out)
        gate = kernels.gate(drawn(3, 128, dtype=dtype), Activation.GELU)
        drawing = kernels.draw(
            drawn(3, 1000), torch.tensor([1.0, 0.7, 1.0]), torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64),
            torch.tensor([False, False, True]),
        )  # fmt: skip
        results.append([x, normed, states, keys, out, gate, *drawing])
    for ours, theirs in zip(*results, strict=True):
        close(theirs, ours)
