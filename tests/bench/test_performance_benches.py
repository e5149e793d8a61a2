"""The performance benches run at tiny sizes, and their lines say what they should; figures are not judged here."""

from __future__ import annotations

import json
import math
import runpy
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
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

    yield run
    sys.modules.pop("common", None)


def test_rollout_beside_generate(bench):
    tail = ("--model", "tiny", "--sequences", "20", "--slots", "16", "--longest", "24")
    full, half, between = bench("rollout", *tail)
    for line in (full, half):
        assert line["peer_name"] == "generate" and line["unit"] == "tokens/s"
        assert line["ratio"] == pytest.approx(line["ours"] / line["peer"], rel=1e-2)
        assert line["of_limit"] == pytest.approx(line["ours"] / line["limit"], rel=1e-2)
    assert between["ratio"] == pytest.approx(between["ours"] / between["peer"], rel=1e-2) and between["runs"] >= 1


def test_decoding_at_a_fixed_context(bench):
    (line,) = bench("rollout", "--case", "decode", "--model", "tiny", "--shapes", "16x40", "--steps", "2",
                    "--dtype", "float32")  # fmt: skip
    assert line["unit"] == "ms a step" and line["of_limit"] == pytest.approx(line["limit"] / line["ours"], rel=1e-2)


def test_update_beside_padded_rows(bench):
    lines = bench("update", "--model", "tiny", "--sequences", "40", "--longest", "64", "--tokens", "128")
    assert [line["case"].split()[-1] for line in lines] == ["float32", "bfloat16"]
    assert all(line["packing_efficiency"] == 1 and line["micro_batches"] > 10 for line in lines)
    assert all(0.9 < line["fill"] <= line["fill_at_best"] <= 1 and 0 <= line["peer_padding"] < 1 for line in lines)


def test_update_beside_itself_without_kernels(bench):
    (line,) = bench("update", "--model", "tiny", "--sequences", "16", "--equal", "5+7", "--tokens", "128", "--peer",
                    "operators", "--dtype", "float32")  # fmt: skip
    assert line["peer_name"] == "ours without kernels" and "5+7" in line["case"] and line["fill"] == 192 / 256


def test_a_whole_step_alone(bench):
    (line,) = bench("step", "--model", "tiny", "--prompts", "4", "--mean", "6", "--longest", "24", "--peer", "none")
    # 32 completions, twice: the mean of geometric lengths, within four standard errors.
    assert line["unit"] == "s" and line["peer"] is None and 6 - 3 < line["ours_tokens"] / 32 < 6 + 3


def test_memory_beside_all_logits(bench):
    # 64 MiB of logits, so that what an interpreter takes by the way does not count.
    (line,) = bench("memory", "--tokens", "1024", "--vocabulary", "16384", "--hidden", "16", "--chunk", "64")
    assert line["unit"] == "MiB" and line["ratio"] > 3


def test_a_peer_that_is_not_there_is_one_line(bench):
    with pytest.raises(SystemExit, match="--peer-python"):
        bench("rollout", "--model", "tiny", "--peer", "vllm")
    with pytest.raises(SystemExit, match="--trl-python"):
        bench("step", "--model", "tiny")


def test_growth_gives_points_and_their_exponent(bench):
    low, high, exponent = bench("growth", "--axes", "batch", "--values", "4,16", "--kinds", "decode", "--steps", "1",
                                "--threads", "1")  # fmt: skip
    assert low["case"] == "decode, batch 4" and high["unit"] == "ms a step" and high["mib"] > 0
    assert exponent["unit"] == "exponent" and exponent["case"] == "decode against batch"
    ratio = math.log(high["ours"] / low["ours"]) / math.log(4)
    assert exponent["ours"] == pytest.approx(ratio, abs=0.02) and exponent["last"] == exponent["ours"]


def test_the_window_beside_an_open_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["window.py", "--fleets", "4", "--steps", "20", "--seed", "5"])
    runpy.run_path(str(BENCH / "window.py"), run_name="__main__")
    line = json.loads(capsys.readouterr().out)
    assert 0.5 < line["time_least"] <= line["time_mean"] <= line["time_most"] < 2
    assert 0 < line["mean_lag"] < line["mean_lag_open"] < 8


def test_several_turns_beside_one(bench):
    (line,) = bench("environments", "--model", "tiny", "--trajectories", "32", "--slots", "32", "--turns", "2",
                    "--tokens", "16", "--seconds", "0.01")  # fmt: skip
    assert line["peer_name"] == "one turn" and line["unit"] == "tokens/s"
    assert line["ratio"] == pytest.approx(line["ours"] / line["peer"], rel=1e-2)


@pytest.mark.slow
def test_a_controller_of_generators_that_compute_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench import controller

    few = ["--tokens", "40", "--prompts", "4", "--samples", "2", "--lag", "1", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", ["controller.py", "--generators", "3", *few])
    controller.main()
    line = json.loads(capsys.readouterr().out)
    assert line["tokens_per_second"] == pytest.approx(40 * line["completions_per_second"], rel=0.01)
    parts = line["wall_ms_a_completion"]
    assert parts.pop("step") == pytest.approx(sum(parts.values()), rel=0.01) and parts["record"] > 0
