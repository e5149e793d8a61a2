"""C kernels for the CPU, compiled by the machine's own compiler and kept in strop's cache.

    library = compiled("step", sources)      # None where there is no compiler: plain torch computes the same then
    functions = declared(library, {"gate": (Address, Address, c_long)})     # strop_gate(float *x, float *y, long n)
    functions["gate"](x, y, x.numel())

Parallel loops run on the threads of torch: a library is not linked against OpenMP, and finds torch's own when it is
loaded.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from strop.base.files import cache_folder
from strop.base.progress import doing

_HEADER = Path(__file__).with_name("vectors.h")
_COMPILE = (
    "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-Wno-psabi",
)  # fmt: skip
_LOG = logging.getLogger(__name__)
# Of Gemma 3 270M on one thread with AVX-512: docs/benchmarks.md.
LOST = "on a CPU decoding is 1.4 times slower in float32 and up to 10 times in bfloat16, an update 1.6 to 1.8 times"
INSTALL = "apt-get install gcc libc6-dev"


class Address(ctypes.c_void_p):
    """The type of an argument that is given as a tensor, contiguous, and read by its address; None is NULL."""

    @classmethod
    def from_param(cls, tensor: Tensor | None) -> Self:
        """What ctypes passes on for a tensor."""
        return cls(None if tensor is None else tensor.data_ptr())


def declared(
    library: ctypes.CDLL, arguments: Mapping[str, tuple[Any, ...]], result: Any = None
) -> dict[str, Callable[..., Any]]:
    """The functions of a library with the types of their arguments, by their names without `strop_`."""
    functions: dict[str, Callable[..., Any]] = {}
    for name, types in arguments.items():
        function = library[f"strop_{name}"]
        function.argtypes, function.restype = types, result
        functions[name] = function
    return functions


def compiled(name: str, sources: Sequence[Path]) -> ctypes.CDLL | None:
    """The library of some C sources, which may include `vectors.h`; None where it cannot be made.

    It is compiled where the cache has none for this machine.
    """
    compiler = os.environ.get("CC", "cc")
    try:
        folder = cache_folder() / "native"
        target = folder / f"{name}-{_key(compiler, sources)}.so"
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _compile(compiler, sources, target)
        return ctypes.CDLL(str(target))
    except (OSError, subprocess.SubprocessError) as error:
        # No compiler, no place to keep its output, a library that does not load: torch's own operators do as well.
        printed = (getattr(error, "stderr", None) or b"").decode(errors="replace").splitlines()
        said = printed[0] if printed else str(error) if isinstance(error, OSError) else type(error).__name__
        _tell(f"no C compiler {compiler}" if shutil.which(compiler) is None else f"{compiler}: {said}")
        return None


@functools.cache
def _tell(why: str) -> None:
    """Say once why there are no kernels, what that costs, and the way out."""
    _LOG.warning("computing without C kernels (%s): %s; with gcc there are some: %s", why, LOST, INSTALL)


@doing("compiling the CPU kernels")
def _compile(compiler: str, sources: Sequence[Path], target: Path) -> None:
    """Compile to `target`; another process that does the same at the same time makes the same file."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        parts = [Path(scratch) / f"{source.stem}.o" for source in sources]
        whole = Path(scratch) / "whole.so"
        commands: list[tuple[str, ...]] = [
            (compiler, *_COMPILE, "-fopenmp", f"-I{_HEADER.parent}", "-c", str(source), "-o", str(part))
            for source, part in zip(sources, parts, strict=True)
        ]
        # Not linked against OpenMP, of which torch has brought its own.
        commands.append((compiler, "-shared", *map(str, parts), "-o", str(whole), "-lm"))
        for command in commands:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        whole.replace(target)


def _key(compiler: str, sources: Sequence[Path]) -> str:
    """A digest of what the library depends on: sources, compiler, and what the processor can do."""
    made = hashlib.blake2b(b"".join(source.read_bytes() for source in (_HEADER, *sources)), digest_size=8)
    for part in (compiler, *_COMPILE, torch.__version__, processor()):
        made.update(part.encode() + b"\0")
    return made.hexdigest()


def processor() -> str:
    """The lines by which Linux tells a processor's instructions (where there are none, its name), and what torch uses
    of them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    told = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}) or lines
    return "\n".join((platform.machine(), torch.backends.cpu.get_cpu_capability(), *told))
