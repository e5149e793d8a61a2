"""The performance benches run at tiny sizes, and their lines say what they should; figures are not judged here."""

from __future__ import annotations

import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from strop import pieces

BENCH = Path(__file__).parent.parent / "bench"
FIELDS = ("bench", "case", "ours", "peer", "peer_name", "ratio", "unit", "limit", "of_limit")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a bench with arguments: its lines."""
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "common", raising=False)

    def run(name: str, *arguments: str) -> list[dict[str, object]]:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--repeats", "1", *arguments])
        runpy.run_path(str(BENCH / f"{name}.py"), run_name="__main__")
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines and all(line["bench"] == name and set(FIELDS) <= line.keys() for line in lines)
        return lines

    monkeypatch.setattr(pieces, "_allowed_modules", set(pieces._allowed_modules))  # a bench may allow one of its own
    yield run
    for name in ("common", "step", "gpu_verdict"):
        sys.modules.pop(name, None)


def test_rollout_beside_generate(bench):
    tail = ("--model", "tiny", "--sequences", "20", "--slots", "16", "--longest", "24")
    full, half, between = bench("rollout", *tail)
    for line in (full, half):
        assert line["peer_name"] == "generate" and line["unit"] == "tokens/s"
        assert line["ratio"] == pytest.approx(line["ours"] / line["peer"], rel=1e-2)
        assert line["of_limit"] == pytest.approx(line["ours"] / line["limit"], rel=1e-2)
    assert between["ours"] == half["ours"] and between["peer"] == full["ours"]


def test_decoding_at_a_fixed_context(bench):
    (line,) = bench("rollout", "--case", "decode", "--model", "tiny", "--shapes", "16x40", "--steps", "2",
                    "--dtype", "float32")  # fmt: skip
    assert line["unit"] == "ms a step" and line["of_limit"] == pytest.approx(line["limit"] / line["ours"], rel=1e-2)


def test_decoding_with_pages(bench):
    attention, forward, step = bench("decode", "--models", "tiny", "--shapes", "16x40", "--steps", "2", "--page", "16")
    assert attention["ours"] < attention["limit"] and forward["unit"] == "nats" and forward["worst"] < 0.5
    assert step["unit"] == "ms a step" and step["running"] == step["asked"] == 16
    assert step["of_limit"] == pytest.approx(step["limit"] / step["ours"], rel=1e-2)


def test_the_generator_beside_the_trainer(bench):
    rounded, exact = bench("mismatch", "--model", "tiny", "--sequences", "16", "--tokens", "8", "--cache", "paged")
    for line in (rounded, exact):
        assert line["unit"] == "nats" and line["limit"] < 1e-5 < line["ours"] <= line["p99"] <= line["worst"] < 1
        assert 0 < line["entropy"] < 5.77 and line["tokens"] == 128  # ln 320
    assert exact["peer"] == rounded["ours"]


def test_publication_within_a_process(bench):
    (line,) = bench("publication", "--model", "tiny", "--context", "32", "--running", "16")
    assert line["unit"] == "ms" and 0 < line["limit"] < line["ours"] and line["engine"] == "TorchEngine"


def test_update_beside_padded_rows(bench):
    lines = bench("update", "--model", "tiny", "--sequences", "40", "--longest", "64", "--tokens", "128")
    assert [line["case"].split()[-1] for line in lines] == ["float32", "bfloat16"]
    assert all(line["packing_efficiency"] > 0.9 and line["micro_batches"] > 10 for line in lines)


def test_a_whole_step_alone(bench):
    (line,) = bench("step", "--model", "tiny", "--prompts", "4", "--mean", "6", "--longest", "24", "--peer", "none")
    # 32 completions, twice: the mean of geometric lengths, within four standard errors.
    assert line["unit"] == "s" and line["peer"] is None and 6 - 3 < line["ours_tokens"] / 32 < 6 + 3


def test_memory_beside_all_logits(bench):
    # 64 MiB of logits, so that what an interpreter takes by the way does not count.
    (line,) = bench("memory", "--tokens", "1024", "--vocabulary", "16384", "--hidden", "16", "--chunk", "64")
    assert line["unit"] == "MiB" and line["ratio"] > 3


def test_a_peer_that_is_not_there_is_one_line(bench):
    with pytest.raises(SystemExit, match="--vllm-python"):
        bench("rollout", "--model", "tiny", "--peer", "vllm")
    with pytest.raises(SystemExit, match="--trl-python"):
        bench("step", "--model", "tiny")


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


def test_growth_gives_points_and_their_exponent(bench):
    low, high, exponent = bench("growth", "--axes", "batch", "--kinds", "decode", "--most", "256", "--steps", "1")
    assert low["case"] == "decode, batch 64" and high["unit"] == "ms a step" and high["mib"] > 0
    assert exponent["unit"] == "exponent" and exponent["case"] == "decode against batch"
    ratio = math.log(high["ours"] / low["ours"]) / math.log(4)
    assert exponent["ours"] == pytest.approx(ratio, abs=0.02) and exponent["last"] == exponent["ours"]
