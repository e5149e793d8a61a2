"""No command is silent for longer than `progress.SILENCE` seconds: each one runs with a part that lasts two lines."""

from __future__ import annotations

import ctypes
import importlib
import io
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.runs import SMALL
from tests.watching import until

from strop.base import progress
from strop.base.progress import heartbeat
from strop.base.view import SilentView
from strop.cli import main
from strop.config.parse import edit
from strop.model.kernels import compiled
from strop.recipes.resolve import resolve
from strop.run.run import train

LIMIT = 0.4  # seconds of silence in these tests
LONG = 10 * LIMIT  # for two lines: on a busy machine a thread comes late
STEP = "strop.engines.torch.engine:ModelRunner.step"
BACKWARD = "strop.training.step:Trainer._backward"


class Heard(io.StringIO):
    """A stream that keeps in `said` what was written."""

    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self.said = said

    def write(self, text: str) -> int:
        if text.strip():
            self.said.append(text)
        return super().write(text)


class SlowPart:
    """Stands in for a function, one call of which takes until `said` has two lines more, at most `LONG` seconds."""

    def __init__(self, function: Callable[..., Any], slow_call: int) -> None:
        self.function, self.slow_call = function, slow_call
        self.calls = 0
        self.said: list[str] = []
        self.heard: list[str] | None = None  # in that call

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        return lambda *given, **named: self(instance, *given, **named)

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == self.slow_call:
            before = len(self.said)
            until(lambda: len(self.said) >= before + 2, LONG)
            self.heard = self.said[before:]
        return self.function(*given, **named)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("silence") / "run"
    train(edit(resolve("grpo"), [*SMALL, "steps=1", "evaluation.every=none"]), folder, SilentView())
    (folder.parent / "curve.csv").write_text("compute,pass_rate\n" + "".join(f"{c},{c / 99}\n" for c in range(1, 30)))
    (folder.parent / "taught.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n' * 8)
    (folder.parent / "raw.jsonl").write_text(
        '{"question": "1+1=", "answer": "2"}\n{"question": "2+1=", "answer": "3"}\n'
    )
    (folder.parent / "prepare.toml").write_text(
        f'out = "{folder.parent}/prepared"\n[[sources]]\npath = "{folder.parent}/raw.jsonl"\n'
        '[[steps]]\npiece = "Verifiable"\n'
    )
    return folder


def slowed(target: str, slow_call: int, monkeypatch: pytest.MonkeyPatch) -> SlowPart:
    """`module:name`, one call of which takes long from now on."""
    module, _, name = target.partition(":")
    *owners, attribute = name.split(".")
    holder = importlib.import_module(module)
    for each in owners:
        holder = getattr(holder, each)
    slow = SlowPart(getattr(holder, attribute), slow_call)
    monkeypatch.setattr(holder, attribute, slow)
    return slow


def heard(work: Callable[[], object], slow: Sequence[SlowPart], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was said in each of the slow parts of `work`, which ends in an exception."""
    said: list[str] = []
    out, error = Heard(said), Heard(said)
    for part in slow:
        part.said = said
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setattr(progress, "SILENCE", LIMIT)
    with pytest.raises((SystemExit, OSError)):
        work()
    if "--json" in sys.argv:
        json.loads(out.getvalue())
    for part in slow:
        assert part.heard is not None and len(part.heard) >= 2, error.getvalue()
    return [part.heard or [] for part in slow]


def training(out: Path, *sets: str) -> list[str]:
    """The arguments of a command that trains a small model for a step."""
    given = [*SMALL, "steps=1", "evaluation.every=none", *sets]
    return ["strop", "train", "grpo", "--out", str(out), *(part for text in given for part in ("--set", text))]


@pytest.mark.parametrize(
    ("command", "target", "slow_call", "words"),
    [
        ("eval RUN --json", STEP, 4, "evaluate 0/32 · tokens 72 of at most 384 for"),
        ("eval RUN --benchmark held_out --out OUT --json", STEP, 4, "held_out 0/32 · tokens 72 of at most"),
        ("sample RUN --prompt 1+1= --json", STEP, 4, "tokens 3 of at most 12 for"),
        ("doctor RUN --ask 4 --json", STEP, 4, "evaluate 0/16 · tokens 48 of at most 192 for"),
        (
            "sft RUN/model --data DIR/taught.jsonl --out OUT --set training.epochs=1",
            BACKWARD,
            1,
            "sft 0/1 · micro-batches 0/1",
        ),
        ("serve RUN --port 0 --json", "strop.model.policy:load_pretrained", 1, "loading the model"),
        ("export RUN --out OUT", "strop.model.files:replacing_folder", 1, "writing the model"),
        ("report RUN --out OUT", "strop.report.build:recorded_answers", 1, "reading and drawing, rollouts of runs 0/1"),
        ("plot RUN --out OUT.png", "strop.report.training_figures:plot_run", 1, "drawing for"),
        (
            "verify compare RUN --verifier Answer --verifier ExactMatch",
            "strop.verifiers.answer:Answer.judge",
            4,
            "judging, verdicts of Answer 3/24",
        ),
        ("fit DIR/curve.csv --r0 0 --json", "strop.lab.scaling.study:fit", 1, "fitting, curves 0/1"),
        ("plan grpo --compare 0,1 --json", "strop.lab.planning:simulate", 2, "simulating, schedules 1/2"),
        ("data prepare DIR/prepare.toml --json", "strop.prepare.stage:Stage.keep", 1, "verifiable 0/2 · still at work"),
        ("doctor --json", "strop.run.doctor:examine", 1, "looking at the machine"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) and " " in value else "",
)
def test_what_takes_long_is_shown(
    command: str, target: str, slow_call: int, words: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"RUN": str(run), "DIR": str(run.parent), "OUT": str(tmp_path / "out")}
    argv = [re.sub("RUN|DIR|OUT", lambda found: places[found[0]], each) for each in command.split()]
    # What takes seconds without being slow on purpose.
    monkeypatch.setattr("strop.serving.server.ModelServer.run", lambda self: None)
    monkeypatch.setattr("strop.report.training_figures.plot_run", lambda *given: "drawn")
    monkeypatch.setattr("strop.report.build.training_charts", lambda runs: ())
    monkeypatch.setattr(sys, "argv", ["strop", *argv])
    (said,) = heard(main, [slowed(target, slow_call, monkeypatch)], monkeypatch)
    assert words in said[-1], said


def test_every_part_of_training_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        ("strop.data.loading:split_by_question", 1): "reading the problems",
        ("strop.model.policy:fresh_model", 2): "loading the model",
        (STEP, 4): "rl 0/1 · tokens 72 of at most 288",
        (BACKWARD, 2): "rl 0/1 · the update of step 1, micro-batches 1/",
        ("strop.training.checkpoint:save", 1): "writing the checkpoint",
        ("strop.report.training_figures:plot_run", 1): "drawing the curves",
    }
    monkeypatch.setattr("strop.report.training_figures.plot_run", lambda *given: "drawn")
    slow = [slowed(target, call, monkeypatch) for target, call in parts]
    monkeypatch.setattr(sys, "argv", training(tmp_path / "run", "batch.tokens_per_microbatch=64"))
    for said, words in zip(heard(main, slow, monkeypatch), parts.values(), strict=True):
        assert words in said[-1], said


def test_a_thread_that_holds_the_interpreter_leaves_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[float] = []
    monkeypatch.setattr(progress, "SILENCE", 2.0)
    monkeypatch.setattr(progress.CURRENT, "show", lambda text: shown.append(time.monotonic()))
    began = time.monotonic()
    with heartbeat():
        for _ in range(3):
            ctypes.PyDLL(None).usleep(700_000)  # unlike those of CDLL, its functions keep the interpreter's lock
    assert shown and shown[0] - began < 2.0


@pytest.mark.usefixtures("forked")
def test_starting_workers_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = slowed("strop.orchestration.fleet:Fleet._wait", 1, monkeypatch)
    monkeypatch.setattr("strop.cli.run_commands.report_run", lambda folder: None)
    monkeypatch.setattr(sys, "argv", training(tmp_path / "run", "orchestration.executor=embedded"))
    (said,) = heard(main, [slow], monkeypatch)
    assert "starting 1 generator for" in said[-1]


def test_compiling_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", lambda *given, **named: None)
    slow = slowed("subprocess:run", 1, monkeypatch)

    def compiles() -> None:
        with heartbeat():
            compiled._compile("cc", [tmp_path / "a.c"], tmp_path / "a.so")

    (said,) = heard(compiles, [slow], monkeypatch)
    assert "strop: compiling the CPU kernels for" in said[-1]


def test_smoke_says_what_it_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.run.doctor._run", lambda *given: ("ok", "done"))
    monkeypatch.setattr(sys, "argv", ["strop", "smoke", "--only", "update", "--json"])
    (said,) = heard(main, [slowed("strop.run.doctor:_run", 1, monkeypatch)], monkeypatch)
    assert "update: trainer and engine in one process for" in said[-1]
