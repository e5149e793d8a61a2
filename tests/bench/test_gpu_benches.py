"""The benches of training on a GPU run at tiny sizes on a CPU, and their lines say what they should."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from strop.base import pieces

BENCH = Path(__file__).parents[2] / "bench"
HELPERS = ("common", "step", "gpu_verdict")  # modules of that folder that benches import


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a bench with arguments: its lines."""
    monkeypatch.syspath_prepend(str(BENCH))
    for helper in HELPERS:
        sys.modules.pop(helper, None)
    monkeypatch.setattr(pieces, "_allowed_modules", set(pieces._allowed_modules))  # a bench may allow one of its own

    def run(name: str, *arguments: str) -> list[dict[str, object]]:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--repeats", "1", *arguments])
        runpy.run_path(str(BENCH / f"{name}.py"), run_name="__main__")
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines and all(line["bench"] == name and line["unit"] for line in lines)
        return lines

    yield run
    for helper in HELPERS:
        sys.modules.pop(helper, None)


def test_training_beside_the_machines_matrix_rate(bench):
    lines = bench("mfu", "--models", "tiny", "--tokens", "256", "--longest", "96")
    assert [line["case"].split()[0] for line in lines] == ["update", "score", "prefill", "shares", "shares"]
    for line in lines[:3]:
        assert line["unit"] == "tokens/s" and 0 < line["of_limit"] < 1 and line["micro_batches"] == 1
        assert line["limit"] == pytest.approx(256 * line["matrix_rate"] / line["operations"], rel=1e-2)
    assert lines[0]["operations"] == pytest.approx(3 * lines[1]["operations"], rel=1e-3)
    spent = lines[3]
    kinds = ("head", "attention", "optimizer", "layers", "products", "copies", "elementwise", "idle")
    assert sum(spent[kind] for kind in kinds) >= 0.99 * spent["whole"]


def test_kernels_of_training_are_timed_after_a_check(bench):
    pytest.importorskip("triton")
    lines = bench("gpu_kernels", "--tokens", "17", "--vocabulary", "300", "--widths", "32", "--tiling", "0")
    assert [line["case"] for line in lines[:3]] == [
        f"head {what}, hidden 32" for what in ("forward", "gradient of logits", "backward")
    ]
    assert len(lines) == 9 and all(max(line["errors"]) < 1e-2 for line in lines[:3])


@pytest.mark.slow
def test_kernels_of_training_compile_for_hopper():
    """Without a GPU, in a process in which Triton does not interpret; tensor cores are used and little is spilled."""
    pytest.importorskip("triton")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, str(BENCH / "gpu_kernels.py"), "--compile", "--few", "--widths", "1024"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 8
    for line in lines:
        assert line["shared"] <= 227 * 1024 and line["stack_bytes"] <= 256
        assert (line["products"] > 0) == ("Tiling" in line["case"])  # the head's


def test_a_whole_step_of_scalerl_and_its_shares(bench):
    (line,) = bench("gpu_step", "--model", "tiny", "--prompts", "4", "--samples", "4", "--mean", "8", "--longest", "24",
                    "--tokens", "512", "--dtype", "float32")  # fmt: skip
    shares = [line[f"{name}_share"] for name in ("rollout", "verify", "update", "other")]
    assert sum(shares) == pytest.approx(1, abs=1e-2) and line["unit"] == "s" and line["steps"] == 1
    assert 16 <= line["completion_tokens"] <= 16 * 24 and line["update_tokens"] > line["completion_tokens"]
    assert 0 <= line["mismatch"] < 1e-4  # float32 on both sides
