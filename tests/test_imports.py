"""Imports point one way, and the loop knows nothing of ray, vllm, multiprocessing or the terminal."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import strop

ROOT = Path(strop.__file__).parent

# Lower layers first; a module imports, at import time, from its own layer or those below it.
LAYERS = (
    {"types", "pieces", "metrics", "seeds", "clock", "extras", "files", "hub", "interrupt", "console",
     "model_settings", "near"},
    {"algorithms", "data", "policy", "attention", "head", "lora", "model_files", "byte_tokenizer", "metrics_file",
     "kernels"},
    {"verifiers", "rollout_table", "samples", "plots"},
    {"compute", "diagnostics", "engines", "evaluation", "live_view", "orchestration", "run_folder", "supervision",
     "trainer"},
    {"scaling", "serving", "states"},
    {"config_edit", "config_checks", "config", "tracking", "embedded"},
    {"loop", "learner", "gang_learner", "sharded_learner", "curriculum", "assembly", "recipes", "tiny"},
    {
        "run", "run_validation", "endpoint_engine", "fine_tuning", "tasks", "quickstart", "doctor", "benchmarking",
        "planning", "prepare", "report", "serve_model",
    },  # fmt: skip
    {"ablation"},
    {"cli", "__main__"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def module_imports(tree: ast.Module) -> list[str]:
    """strop's modules that are imported when the module is."""
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [f"strop.{a.name}" for a in node.names] if node.module == "strop" else [node.module]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name.split(".")[1] for name in found if name.startswith("strop.")]


def test_imports_point_one_way() -> None:
    for file in ROOT.rglob("*.py"):
        part = file.relative_to(ROOT).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for imported in module_imports(ast.parse(file.read_text())):
            if imported != "__version__":
                assert RANK[imported] <= RANK[part], f"{file.relative_to(ROOT)} imports strop.{imported}"


def test_the_loop_imports_nothing_it_must_not_know() -> None:
    code = (
        "import sys, strop.loop\n"
        "print(*[m for m in ('ray', 'vllm', 'rich', 'typer', 'matplotlib', 'datasets', 'wandb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
    assert "multiprocessing" not in (ROOT / "loop.py").read_text()
