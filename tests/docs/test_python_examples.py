"""The scripts and the notebook of examples/ that import strop run as they are, on a model of two layers."""

from __future__ import annotations

import ast
import importlib.util
import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import tiny_qwen3

import strop
from strop.base import session
from strop.model.files import byte_tokenizer, export

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if "\nimport strop\n" in path.read_text())
SMALL = {
    "batch.prompts_per_step": 4, "batch.samples_per_prompt": 4, "batch.updates_per_step": 1, "engine.slots": 16,
    "sampling.max_new_tokens": 12, "evaluation.samples_per_problem": 1, "algorithm.selection.zero_variance": "keep",
    "algorithm.selection.refill": False, "model.dtype": "float32",
}  # fmt: skip


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., strop.Run]]:
    """`strop.train` with the embedded model's place taken by a random one, and every size smaller."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STROP_CACHE", str(tmp_path / "cache"))
    export(tiny_qwen3().model, byte_tokenizer(), tmp_path / "model")
    train = strop.train

    def smaller(model: str, *given: Any, **named: Any) -> strop.Run:
        assert model == "embedded"
        settings = {**(named.pop("settings", None) or {}), **SMALL}
        named |= {"steps": 2, "settings": settings, "quiet": True}
        return train(str(tmp_path / "model"), *given, **named)

    monkeypatch.setattr(strop, "train", smaller)
    yield smaller
    session.forget()


def test_the_first_ones_are_short() -> None:
    assert len(SCRIPTS) > 8
    for name in ("own_reward.py", "trl_reward.py"):
        lines = [line for line in (EXAMPLES / name).read_text().splitlines() if line.strip()]
        assert len(lines) <= 12, f"{name} is the script of twelve lines"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(
    name: str, small: Callable[..., strop.Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "import optuna" in (EXAMPLES / name).read_text():
        pytest.importorskip("optuna", reason="needs optuna")
    arguments = [name]
    if "sys.argv" in (EXAMPLES / name).read_text():
        arguments.append(str(small("embedded", recipe="quickstart").path))
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out


def test_the_weighted_rewards_are_shown_of_different_completions(
    small: Callable[..., strop.Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a model that answers a problem always alike, as a trained one nearly does."""
    monkeypatch.setitem(SMALL, "sampling.temperature", 1e-3)
    monkeypatch.setitem(SMALL, "algorithm.truncation_mask", "none")
    runpy.run_path(str(EXAMPLES / "several_rewards.py"), run_name="__main__")
    rows = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert 1 < len(rows) <= 5 and len({row["completion"] for row in rows}) == len(rows)


def test_the_sweep_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit, match="pip install optuna"):
        runpy.run_path(str(EXAMPLES / "sweep.py"))


def test_a_drawn_curve_at_an_end_of_its_axis_is_not_hidden_by_the_frame(
    small: Callable[..., strop.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small("embedded", recipe="quickstart")
    monkeypatch.setattr(sys, "argv", ["draw_curves.py", str(run.path), "curves.png", "truncation_rate", "updates"])
    for axes in runpy.run_path(str(EXAMPLES / "draw_curves.py"))["figure"].axes:
        (low, high), values = axes.get_ylim(), [value for line in axes.get_lines() for value in line.get_ydata()]
        clear = 0.02 * (high - low)
        assert low <= -clear and low + clear <= min(values) <= max(values) <= high - clear


def cells(notebook: Path) -> list[str]:
    """The code of a notebook, a cell each."""
    every = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in every if cell["cell_type"] == "code"]


def test_the_notebook_runs(small: Callable[..., strop.Run]) -> None:
    """Its cells one after the other, in one namespace, as a kernel runs them."""
    found = cells(EXAMPLES / "own_reward.ipynb")
    scope: dict[str, Any] = {"__name__": "__main__"}
    for cell in found:
        exec(compile(cell, "own_reward.ipynb", "exec"), scope)
    assert scope["run"].summary["steps"] == 2
    assert json.loads((EXAMPLES / "own_reward.ipynb").read_text())["cells"][-1]["outputs"] == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nbclient") is None, reason="needs nbclient and ipykernel")
def test_the_notebook_runs_in_jupyter(small: Callable[..., strop.Run], tmp_path: Path) -> None:
    """The same in a kernel of its own, without a browser; its picture and its tables come back."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "own_reward.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace('"embedded"', repr(str(tmp_path / "model")))
        cell.source = cell.source.replace("steps=24)", f"steps=2, quiet=True, settings={SMALL!r})")
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("completion" in output.get("data", {}).get("text/html", "") for output in outputs)
