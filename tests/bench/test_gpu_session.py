"""The session of a borrowed GPU: a step that fails or hangs stops nobody; what was found is kept and held to bars."""

from __future__ import annotations

import argparse
import importlib
import json
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCH = Path(__file__).parents[2] / "bench"
HELPERS = ("common", "step", "gpu_verdict", "gpu_session")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch):
    """The module of bench/gpu_session.py."""
    monkeypatch.syspath_prepend(str(BENCH))
    for helper in HELPERS:
        sys.modules.pop(helper, None)
    yield importlib.import_module("gpu_session")
    for helper in HELPERS:
        sys.modules.pop(helper, None)


def code(text: str) -> tuple[str, str]:
    return ("-c", text)


def test_a_step_that_hangs_is_ended_and_keeps_its_lines(session: ModuleType) -> None:
    text = 'print(\'{"a": 1}\'); print("{no json"); import subprocess, sys; sys.stdout.flush(); ' + (
        'subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])'
    )
    began = time.monotonic()
    found = session.run(code(text), 1.5, {})
    assert (found.rc, found.lines) == (None, [{"a": 1}]) and "{no json" in found.tail
    assert time.monotonic() - began < 30


def test_steps_go_on_after_failures_and_are_not_repeated(session: ModuleType, tmp_path: Path) -> None:
    bar = session.Bar("speed", "ms", "ours", 5.0, "fast", below=True)
    line = json.dumps({"bench": "x", "case": "fast enough", "unit": "ms", "ours": 4.0})
    # The second step fails until the first has run twice.
    every = [
        session.Step("good", (), code(f"print({line!r})"), 30, [bar]),
        session.Step("bad", (), code("import sys; print('why', file=sys.stderr); sys.exit(3)"), 30, [bar]),
        session.Step("silent", (), code("pass"), 30),
    ]
    given = argparse.Namespace(out=tmp_path / "out", device="cpu", seconds=100.0, steps=None)
    said: list[str] = []
    whole = session.session(given, every, said.append)
    assert [text.split(":")[0] for text in said] == ["good", "bad", "silent"]
    rows = [row.split(maxsplit=2) for row in whole.splitlines()]
    assert rows[0][:2] == ["good", "met"] and "4 (<= 5)  fast enough" in rows[0][2]
    assert rows[1][:2] == ["bad", "FAILED"] and rows[2][:2] == ["bad", "not"] and rows[3][:2] == ["silent", "ok"]
    assert "why" in (given.out / "log.txt").read_text() and (given.out / "verdict.txt").read_text() == whole + "\n"
    again: list[str] = []
    session.session(given, every, again.append)  # only what has not been done
    given.steps = "silent"
    session.session(given, every, again.append)  # or what is asked for
    assert [text.split(":")[0] for text in again] == ["bad", "silent"]
    given.steps, given.seconds = "good", 10.0
    assert "4 (<= 5)" in session.session(given, every, again.append) and len(again) == 2  # no time left for any


def test_bars_are_held_against_every_line_that_fits(session: ModuleType) -> None:
    bar = session.Bar("decoding", "ms a step", "of_limit", 0.7)
    head = session.Bar("head", "s", "ratio", 3.0, peer="plain PyTorch")
    every = [session.Step("d", (), (), 1, [bar]), session.Step("h", (), (), 1, [head]), session.Step("n", (), (), 1)]
    lines = {
        "d": [
            {"unit": "ms a step", "case": "a", "of_limit": 0.71}, {"unit": "ms a step", "case": "b", "of_limit": 0.69},
            {"unit": "nats", "case": "c", "of_limit": 0.1}, {"step": "d", "rc": None, "seconds": 9.0},
        ],
        "h": [
            {"unit": "s", "case": "x", "ratio": 2.9, "peer_name": "plain PyTorch"},
            {"unit": "s", "case": "x", "ratio": 9.0, "peer_name": "chunked head"}, {"step": "h", "rc": 0, "seconds": 1},
        ],
    }  # fmt: skip
    found = session.verdicts(every, lines)
    assert [(row[0], row[3]) for row in found] == [
        ("d", "outlasted its limit"), ("d", "met"), ("d", "MISSED"), ("h", "MISSED"), ("n", "not run"),
    ]  # fmt: skip
    assert found[1][2].startswith("0.71 (>= 0.7)")


@pytest.mark.slow
def test_the_benches_know_the_arguments_of_every_step(session: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """They get as far as to look for a GPU."""
    if torch.cuda.is_available():
        pytest.skip("here they would run")
    ours = [step for step in session.steps() if step.gpu[0].startswith(str(BENCH)) and step.name != "facts"]
    assert len(ours) > 10
    for step in ours:
        monkeypatch.setattr(sys, "argv", list(step.gpu))
        with pytest.raises(SystemExit, match="sees no GPU"):
            runpy.run_path(step.gpu[0], run_name="__main__")
    for step in session.steps():
        assert all(Path(part).exists() for part in (*step.gpu, *step.cpu) if part.startswith(str(BENCH.parent)))
