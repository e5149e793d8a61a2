"""An environment in which vLLM's CPU build finds Triton: Triton's interpreter in the place of a compiler for CPUs.

vLLM records experts in its second model runner alone, whose kernels are Triton's. The CPU build uses that runner where
Triton has a backend for CPUs, which the package of Triton does not have; its interpreter computes the same, slowly.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

VARIABLES = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
_PACKAGE = "triton_on_cpu"
_FILES = {
    f"{_PACKAGE}/__init__.py": "",
    # Classes that Triton can list as a backend. Nothing is compiled, so that none of their methods is called.
    f"{_PACKAGE}/compiler.py": (
        "from triton.backends.compiler import BaseBackend\n\n"
        "class Compiler(BaseBackend):\n    pass\n\n"
        "Compiler.__abstractmethods__ = frozenset()\n"
    ),
    f"{_PACKAGE}/driver.py": (
        "from triton.backends.driver import DriverBase\n\n"
        "class Driver(DriverBase):\n    @classmethod\n    def is_active(cls):\n        return True\n\n"
        "Driver.__abstractmethods__ = frozenset()\n"
    ),
    f"{_PACKAGE}-1.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: 1\n",
    f"{_PACKAGE}-1.dist-info/entry_points.txt": f"[triton.backends]\ncpu = {_PACKAGE}\n",
}


def is_cpu_build(python: str) -> bool:
    """Whether the vLLM of an interpreter is for CPUs."""
    return "cpu" in _said(python, "import importlib.metadata as m; print(m.version('vllm'))")


def with_triton(python: str, folder: Path) -> str:
    """The interpreter of a new environment in `folder`, which has what that of `python` has and the backend."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    new, where = str(folder / "bin" / "python"), "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(_said(new, where))
    (packages / "vllm.pth").write_text(_said(python, where) + "\n")
    for name, text in _FILES.items():
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(text)
    return new


def _said(python: str, script: str) -> str:
    return subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, check=True).stdout.strip()
