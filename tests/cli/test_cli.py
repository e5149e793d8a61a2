"""The command line: quick to answer, one line for an error, JSON on standard output alone."""

import json
import os
import resource
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from strop.config.edits import flatten
from strop.run import doctor
from strop.run.folder import RunFolder, free_folder

COMMANDS = (
    "quickstart", "train", "sft", "eval", "compare", "sample", "recipes", "settings", "verify", "data", "plot",
    "report", "fit", "ablate", "serve", "status", "dashboard", "runs", "plan", "export", "doctor", "smoke",
)  # fmt: skip


def strop(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strop", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False)


def loaded_modules(program: str) -> set[str]:
    """The top-level modules in memory after `program`."""
    text = f"{program}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def quickest(command: Sequence[str], tries: int = 5) -> float:
    """Seconds of processor time of the quickest of some tries: other programs on the machine do not count."""
    times = []
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(times)


def usual() -> float:
    """What an interpreter takes that imports a large module of its library: another time on every machine."""
    return quickest([sys.executable, "-c", "import asyncio"])


def test_import_strop_loads_nothing_heavy_and_is_quick() -> None:
    assert not {"torch", "transformers", "numpy", "pydantic", "rich"} & loaded_modules("import strop")
    assert quickest([sys.executable, "-c", "import strop"]) < 2 * usual()


def test_help_loads_nothing_heavy_and_is_quick() -> None:
    program = "import sys; from strop.cli import main\nsys.argv = ['', '--help']\ntry: main()\nexcept SystemExit: 0"
    assert not {"torch", "transformers", "numpy", "pydantic", "matplotlib"} & loaded_modules(program)
    assert quickest([sys.executable, "-m", "strop", "--help"]) < 4 * usual()


def test_help_lists_every_command() -> None:
    done = strop("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"  {command} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(command: str) -> None:
    from typer.testing import CliRunner

    from strop.cli import app

    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert command in ("doctor", "plot") or f"strop {command}" in result.stdout


@pytest.mark.parametrize("group", ["recipes", "data", "verify"])
def test_the_help_of_a_group_cuts_no_line(group: str) -> None:
    from typer.testing import CliRunner

    from strop.cli import app

    listed = CliRunner().invoke(app, [group, "--help"]).stdout.partition("Commands:")[2]
    assert listed.strip() and "..." not in listed


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("train",), "name what to train"),
        (("train", "--resume", "nowhere"), "there is no run folder nowhere"),
        (("train", "grpo", "--step", "3"), "--step says which checkpoint"),
        (("train", "grpo", "--resume", "nowhere"), "leave out the recipe"),
        (("plot", "nowhere"), "there is no run folder nowhere"),
        (("trian",), "no such command 'trian'. Did you mean 'train'? (strop --help)"),
        (("train", "grpo", "--foo"), "no such option: --foo"),
        (("eval", "model", "--limit", "-1"), "(strop eval --help)"),
        (("quickstart", "--set", "optim.lr=1"), "settings are changed by: strop train quickstart --set KEY=VALUE"),
        (("quickstart", "--seed", "-1"), "equal to 0 (strop quickstart --help)"),
    ],
)
def test_an_error_is_one_line_with_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    done = strop(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("strop: ") and done.stderr.count("\n") == 1 and expected in done.stderr
    assert done.stdout == ""


def test_a_dry_run_shows_the_prompt() -> None:
    from typer.testing import CliRunner

    from strop.cli import app

    command = ["train", "grpo", "--tiny", "--dry-run"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0 and "first prompt, " in shown.stdout and len(shown.stdout.splitlines()) < 15
    long = CliRunner().invoke(app, ["train", "grpo", "--set", "model.path=embedded", "--dry-run"])
    assert "completions end at" in long.stdout


def test_plot_prints_the_path(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {})
    run.append_metrics(1, {"loss": 1.0})
    run.close()
    done = strop("plot", str(run.path))
    assert done.returncode == 0 and Path(done.stdout.strip()).is_file()


def test_doctor_as_json_has_every_topic() -> None:
    done = strop("doctor", "--json")
    findings = json.loads(done.stdout)
    subjects = {finding["subject"] for finding in findings}
    assert {"Python", "torch", "CPU cores", "memory", "disk", "C compiler", "sandbox"} <= subjects
    assert done.returncode == int(any(finding["level"] == "error" for finding in findings))


def test_doctor_says_when_a_shell_leaves_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert "unset OMP_NUM_THREADS" in doctor._cores().way_out


def test_settings_are_listed_as_set_reads_them() -> None:
    config = {
        "steps": 3,
        "optim": {"piece": "AdamW", "lr": 2e-6},
        "model": {"path": None},
        "trackers": [],
        "data": {"path": "1e3", "prefix": " "},
    }
    assert dict(flatten(config)) == {
        "steps": "3",
        "optim.piece": "AdamW",
        "optim.lr": "2e-06",
        "model.path": "none",
        "trackers": "[]",
        "data.path": '"1e3"',
        "data.prefix": '" "',
    }


def test_default_folders_never_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert free_folder("grpo") == Path("runs/grpo")
    for taken in ("grpo", "grpo-2"):
        (tmp_path / "runs" / taken).mkdir(parents=True)
        (tmp_path / "runs" / taken / "run.json").touch()
    assert free_folder("grpo") == Path("runs/grpo-3")


INTERRUPTS = """
import sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize("way", ["command", "module"])
def test_a_ctrl_c_while_the_command_line_is_imported_ends_without_a_traceback(way: str) -> None:
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["strop"].partition(":")
    command = f"from {module} import {function}\n{function}()"
    start = command if way == "command" else "import runpy\nrunpy.run_module('strop', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", INTERRUPTS + start], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
