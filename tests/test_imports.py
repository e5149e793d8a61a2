"""Rooms stand on floors and imports point down, those inside functions too; loop and configuration stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import strop

ROOT = Path(strop.__file__).parent

# From the ground up: a room imports from itself and from those before it.
ROOMS = (
    "base", "algorithms", "data", "verifiers", "model", "engines", "training", "evaluation", "orchestration", "prepare",
    "config", "recipes", "run", "lab", "report", "serving", "cli", "__main__",
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


def test_the_loop_imports_nothing_it_must_not_know() -> None:
    code = (
        "import sys, strop.run.loop\n"
        "print(*[m for m in ('ray', 'vllm', 'rich', 'typer', 'matplotlib', 'datasets', 'wandb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
    assert "multiprocessing" not in (ROOT / "run" / "loop.py").read_text()
