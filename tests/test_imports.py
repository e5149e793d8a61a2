"""Rooms stand on floors and imports point down, those inside functions too; loop and configuration stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Container
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import strop
import strop_verify

ROOT = Path(strop.__file__).parent

# From the ground up: a room imports from itself and from those before it.
ROOMS = (
    "base", "algorithms", "data", "verifiers", "model", "engines", "serving", "environments", "training", "evaluation",
    "orchestration", "prepare", "config", "recipes", "run", "lab", "report", "dashboard", "python", "cli",
    "__main__",
)  # fmt: skip


def room_imports(tree: ast.Module) -> set[str]:
    """The rooms whose modules are imported anywhere in the file."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [f"strop.{a.name}" for a in node.names] if node.module == "strop" else [node.module]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in found if name.startswith("strop.")} - {"__version__"}


def test_nothing_but_rooms_lies_at_the_top() -> None:
    assert {file.stem for file in ROOT.glob("*.py")} == {"__init__", "__main__"}
    assert {folder.name for folder in ROOT.iterdir() if folder.is_dir()} - {"__pycache__"} == set(ROOMS) - {"__main__"}


def test_imports_point_down() -> None:
    up = []
    for file in sorted(ROOT.rglob("*.py")):
        part = file.relative_to(ROOT).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for imported in room_imports(ast.parse(file.read_text())):
            if ROOMS.index(imported) > ROOMS.index(part):
                up.append(f"{file.relative_to(ROOT)} imports strop.{imported}")
    assert not up, "\n".join(up)


def test_strop_verify_imports_nothing_of_strop_and_no_torch() -> None:
    for file in sorted(Path(strop_verify.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {name.partition(".")[0] for name in names} & {"strop", "torch", "pydantic"}, file


def module_names() -> dict[str, Path]:
    """Every module of strop by its dotted name."""
    found = {}
    for file in ROOT.rglob("*.py"):
        parts = ("strop", *file.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported_modules(tree: ast.Module, known: Container[str], deep: bool) -> set[str]:
    """The modules of strop that a file imports when it is imported, with their packages; or, if `deep`, ever."""
    names: set[str] = set()
    for node in ast.walk(tree) if deep else tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    packages = {".".join(name.split(".")[:end]) for name in names for end in range(1, name.count(".") + 2)}
    return {name for name in packages if name in known}


def closure_lines(start: str) -> int:
    """How many lines are imported with a module, its own included."""
    files = module_names()
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imported_modules(ast.parse(files[name].read_text()), files, deep=False)
    return sum(len(files[name].read_text().splitlines()) for name in seen)


def test_no_module_imports_itself_through_others() -> None:
    files = module_names()
    leaves = {name: file for name, file in files.items() if file.name != "__init__.py"}
    graph = {
        name: imported_modules(ast.parse(file.read_text()), leaves, deep=True) - {name}
        for name, file in leaves.items()
    }
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"modules import each other in a circle: {' -> '.join(error.args[1])}")


def test_a_configuration_is_read_without_torch() -> None:
    code = (
        "import sys\nfrom strop.recipes.resolve import resolve\n"
        "resolve('archer.math', ['optim.lr=2e-6', 'algorithm.loss=Cispo'])\n"
        "print(*[m for m in ('torch', 'transformers', 'sympy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
    assert closure_lines("strop.config.schema") <= 5_700


def test_the_loop_imports_nothing_it_must_not_know() -> None:
    code = (
        "import sys, strop.run.loop\n"
        "print(*[m for m in ('ray', 'vllm', 'rich', 'typer', 'matplotlib', 'datasets', 'wandb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
    assert closure_lines("strop.run.loop") <= 8_000
    assert "multiprocessing" not in (ROOT / "run" / "loop.py").read_text()
