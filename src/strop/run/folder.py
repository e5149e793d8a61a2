"""The folder of a run: everything that a run writes, in one place, readable without strop.

    run.json                     marks the folder as a run: layout format, version of strop, its id, when it began, and
                                 the user's own modules that its configuration names
    config.json                  the resolved configuration; a run can be started from this file only
    changes.json                 after which steps a resume changed the configuration, what of it, and all of it before
    metrics.jsonl                a line a step: {"step": 12, "time": 1760000000.0, "pass_rate": 0.41, …}; evaluations
                                 during training have separate lines, once they are done
    rollouts/step_000012.parquet one row a completion (see `rollout_table.py`), and what else the step was given
                                 (`base/batch_record.py`)
    problems.json                digests of the questions that it trains on, of those that it holds out, and of those
                                 that its model had been trained on
    untrained.json               the pass rate of each held-out problem before training, and how it was measured
    pass_rates.jsonl             the pass rate of every training problem so far, at the last checkpoint
    checkpoints/                 to resume from
    model/                       the exported model, a Hugging Face folder
    critic/                      the exported critic, if there is one
    plots/                       pictures
    report/                      written by `strop report`
    evaluations/                 samples of benchmarks that were measured from Python
    summary.json                 its result: steps, pass rates, the model
    status.json                  the driver's heartbeat, every second (`run/watchdog.py`)
    processes.json, logs/, stacks/   the run's processes, what they print, and their stacks where they were asked for
    weights/                     published weights, where memory has no room for them
    weights-evaluated/           weights of steps that are being evaluated

Whole files are written under a temporary name and renamed (`base/files.py`); only metrics.jsonl grows in place
(`base/metrics_file.py`).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import strop
from strop.base import imports
from strop.base.batch_record import BatchRecord, inputs_of
from strop.base.files import TEMPORARY, nearest_folder, read_json, replacing, write_json, write_text, writing
from strop.base.imports import MARKER
from strop.base.metrics_file import MetricsFile, read_metrics
from strop.base.sample import Sample
from strop.base.types import Group, InputError, StropError
from strop.config.edits import differing
from strop.data.history import PASS_RATES
from strop.data.loading import PROBLEMS, ProblemRecord, Seen
from strop.data.source import question_digest

FORMAT = 2
LOCK = ".lock"
SUMMARY = "summary.json"
UNTRAINED = "untrained.json"
CHANGES = "changes.json"
_STEP_FILE = re.compile(r"step_(\d+)\.parquet")


class RunFolder:
    """A run on disk. `create` starts one, `resume` continues one, `open` reads one."""

    def __init__(self, path: Path) -> None:
        """Use the class methods instead, which check and lock the folder."""
        self.path = path
        self._metrics = MetricsFile(self.metrics_path)
        self._lock: TextIO | None = None

    @classmethod
    def create(cls, path: Path | str, config: Mapping[str, Any]) -> RunFolder:
        """Start a run in a new or empty folder and write its configuration (plain JSON values).

        Raises:
            InputError: the folder holds a run or anything else.
        """
        target = Path(path)
        check_free(target)
        imports.allow_settings(key for key, *_ in imports.code_settings(config))  # this user's own
        began = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        marker = {
            "format": FORMAT, "strop": strop.__version__, "id": secrets.token_hex(8), "began": began,
            "imports": imports.to_record(json.dumps(config)),
        }  # fmt: skip
        # Filled next to it and renamed, so that a kill leaves a run with its configuration, or none.
        run = cls(target.with_name(f".{target.name}.{os.getpid()}{TEMPORARY}"))
        try:
            with writing(target):
                run.path.mkdir(parents=True, exist_ok=True)
            run.lock()
            run.write_json("config.json", config)
            run.write_json(MARKER, marker)
            with writing(target):
                run.path.rename(target)
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)  # the error that matters is on its way up
            raise
        moved = cls(target)
        moved._lock = run._lock
        return moved

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """A run to read.

        Raises:
            InputError: there is no such folder, it is not a run, or a later strop wrote it.
        """
        run = cls(Path(path))
        imports.recorded(run.path)  # for what refuses a piece of the user's
        if not run.path.is_dir():
            raise InputError(f"there is no run folder {run.path}{near_run(run.path)}")
        if not is_run(run.path):
            raise InputError(f"{run.path} is not a run of strop (it has no {MARKER})")
        layout = run.read_json(MARKER).get("format")
        if layout != FORMAT:
            raise InputError(f"{run.path} has layout format {layout}; this strop ({strop.__version__}) reads {FORMAT}")
        return run

    @classmethod
    def resume(cls, path: Path | str) -> RunFolder:
        """A run to continue: locked against a second process, with the left-overs of a crash removed.

        Call `truncate(step)` next, with the step of the checkpoint.

        Raises:
            InputError: as `open`; or another process is writing to it.
        """
        run = cls.open(path)
        run.lock()
        for left_over in run.path.rglob(f"*{TEMPORARY}"):
            if left_over.is_file():
                left_over.unlink()
        return run

    # ------------------------------------------------------------------ where things are

    @property
    def fine_tunes(self) -> bool:
        """Whether the run is one of supervised fine-tuning rather than of RL."""
        return "demonstrations" in self.read_json("config.json")

    @property
    def identity(self) -> str:
        """The id of the run, which does not change if its folder is moved.

        Raises:
            InputError: see `read_json`.
        """
        return str(self.read_json(MARKER)["id"])

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    def rollouts_path(self, step: int) -> Path:
        return self.path / "rollouts" / f"step_{step:06d}.parquet"

    # ------------------------------------------------------------------ whole files

    def write_json(self, name: str, value: Mapping[str, Any]) -> Path:
        """Write `name` as JSON, in place of what was there; NaN and infinity are refused (ValueError)."""
        write_json(self.path / name, value)
        return self.path / name

    def read_summary(self) -> dict[str, Any]:
        """The summary that the run wrote at its end; empty if it has not ended.

        Raises:
            InputError: the file is broken.
        """
        return self.read_json(SUMMARY) if (self.path / SUMMARY).is_file() else {}

    def checkpoint_steps(self) -> list[int]:
        """The steps that have a whole checkpoint, in order."""
        found = [path.parent.name.removeprefix("step-") for path in self.checkpoints.glob("step-*/manifest.json")]
        return sorted(int(step) for step in found if step.isdigit())

    def read_json(self, name: str) -> dict[str, Any]:
        """Read back a JSON object.

        Raises:
            InputError: the file is missing or broken.
        """
        return read_json(self.path / name)

    def read_problems(self) -> ProblemRecord | None:
        """Which problems the run trains on and holds out; None if it ended before it wrote the record.

        Raises:
            InputError: the file is broken.
        """
        if not (self.path / PROBLEMS).exists():
            return None
        try:
            return ProblemRecord.from_json(self.read_json(PROBLEMS))
        except (KeyError, TypeError) as error:
            raise InputError(f"{self.path / PROBLEMS} is not a record of problems: {error}") from error

    def write_pass_rates(self, lines: Iterable[str]) -> Path:
        """Write the pass-rate history of the training problems, a JSON line each."""
        target = self.path / PASS_RATES
        write_text(target, "".join(f"{line}\n" for line in lines))
        return target

    def write_rollouts(
        self, step: int, groups: Sequence[Group], samples: Sequence[Sample] = (), record: BatchRecord | None = None
    ) -> Path:
        """Write the completions of a step, one row each, with the training values of those in `samples`.

        With the `record` of the batch the file is read back, and must hold what was trained on.
        """
        from strop.base import rollout_table

        target = self.rollouts_path(step)
        with replacing(target) as temporary:
            rollout_table.write(temporary, step, groups, samples, record)
            taken = [] if record is None else rollout_table.read_groups(temporary)[record.skipped :]
            if record is not None and inputs_of(taken) != record.inputs:
                raise StropError(f"{target} does not hold what step {step} was trained on: check the disk, then resume")
        return target

    def read_rollouts(self, step: int) -> list[dict[str, Any]]:
        """The rows of a step, as dictionaries by column.

        Raises:
            InputError: the run has no rollouts of that step.
        """
        from strop.base import rollout_table

        target = self.rollouts_path(step)
        if not target.is_file():
            raise InputError(f"{self.path} has no rollouts of step {step}")
        return rollout_table.read(target).to_pylist()

    def rollout_steps(self) -> list[int]:
        """The steps whose rollouts are there, in order."""
        found = (_STEP_FILE.fullmatch(file.name) for file in (self.path / "rollouts").glob("step_*.parquet"))
        return sorted(int(match[1]) for match in found if match)

    # ------------------------------------------------------------------ metrics

    def append_metrics(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Append one line to metrics.jsonl, flushed at once."""
        self._metrics.append(step, metrics)

    def read_metrics(self) -> list[dict[str, float | None]]:
        """The rows of metrics.jsonl by step, in order; empty if there are none yet. A torn last line is left out.

        Raises:
            InputError: a line before the last is broken; it is named by its number.
        """
        return read_metrics(self.metrics_path)

    def truncate(self, step: int) -> None:
        """Remove the metric lines and rollouts after `step`."""
        self._metrics.truncate(step)
        for later in self.rollout_steps():
            if later > step:
                self.rollouts_path(later).unlink()

    def close(self) -> None:
        """Close the files and release the lock; may be called twice."""
        self._metrics.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # ------------------------------------------------------------------ inside

    def lock(self) -> None:
        """Hold the folder for this process until `close`; the lock dies with it, so a crash leaves none behind.

        Raises:
            InputError: another process holds it.
        """
        if self._lock is not None:
            return
        with writing(self.path):
            lock = (self.path / LOCK).open("a")
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise InputError(f"{self.path} is being written by another process; wait for it or end it") from error
        self._lock = lock


def check_free(path: Path) -> None:
    """Refuse a folder that `RunFolder.create` could not use, before any work is done for it.

    Raises:
        InputError: it holds a run, or anything else.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; choose another folder with --out")
    if not path.name or path.resolve() == Path.cwd():
        raise InputError(f"{path} is the folder you are in; choose another with --out")
    if is_run(path):
        raise InputError(
            f"{path} already holds a run: go on with it by {imports.command('train --resume', path)}, or choose "
            "another folder with --out"
        )
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path} is not empty and not a run of strop; choose another folder with --out")


def holds_out(model: str) -> bool:
    """Whether `model` is a training run, which knows what it was trained on and what it held out."""
    return is_run(Path(model)) and not RunFolder.open(model).fine_tunes


def is_run(path: Path) -> bool:
    """Whether the folder was written by strop."""
    return (path / MARKER).is_file()


def free_folder(name: str) -> Path:
    """`runs/NAME`, or `runs/NAME-2`, `-3` … where that is taken."""
    folder = Path("runs") / name
    count = 1
    while folder.exists() and any(folder.iterdir()):
        count += 1
        folder = Path("runs") / f"{name}-{count}"
    return folder


def runs_in(root: Path) -> list[Path]:
    """The run folders below `root`, itself included, the ones begun last first; runs within runs are not looked for.

    Raises:
        InputError: there is no such folder.
    """
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; name the one that holds your runs")
    found: list[Path] = []
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        if is_run(folder):
            found.append(folder)
        else:
            waiting += [each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")]
    return sorted(found, key=lambda run: (run / "run.json").stat().st_mtime, reverse=True)


def near_run(path: Path) -> str:
    """The end of an error about a missing run: the run that was probably meant, else the command that lists runs."""
    return nearest_folder(path) or nearest_folder(Path("runs") / path.name) or "; strop runs lists those that there are"


SHOWN = 4  # settings of a change in its line


class SettingChange(NamedTuple):
    """The settings that changed after `step`: (setting, value before, value after) each."""

    step: int
    settings: list[tuple[str, ...]]

    @classmethod
    def between(cls, step: int, before: Mapping[str, Any], now: Mapping[str, Any]) -> SettingChange:
        """The difference of two configurations."""
        return cls(step, differing(dict(before), dict(now)))

    def said(self) -> str:
        """`after step 4: optim.lr 1e-06 → 2e-06`, and how many more there are."""
        shown = [f"{key} {before} → {now}" for key, before, now in self.settings[:SHOWN]]
        more = len(self.settings) - SHOWN
        return f"after step {self.step}: {', '.join([*shown, f'and {more} more'] if more > 0 else shown)}"


def read_changes(folder: RunFolder) -> list[SettingChange]:
    """Every change of the run's settings, in order."""
    return [SettingChange(row["step"], [tuple(found) for found in row["settings"]]) for row in _change_rows(folder)]


def _change_rows(folder: RunFolder) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = folder.read_json(CHANGES)["changes"] if (folder.path / CHANGES).exists() else []
    return rows


def write_change(folder: RunFolder, step: int, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Record a change of the configuration after `step`, if it is one, and remove those of steps that are repeated."""
    change, known = SettingChange.between(step, before, now), _change_rows(folder)
    rows = [row for row in known if row["step"] < step]
    if change.settings:
        rows.append({"step": step, "settings": [list(each) for each in change.settings], "before": before})
    if rows != known:
        folder.write_json(CHANGES, {"changes": rows})


def config_of_step(folder: RunFolder, step: int) -> dict[str, Any]:
    """The configuration that `step` was trained with.

    Raises:
        InputError: it was changed later, and an earlier strop did not keep it.
    """
    later = next((row for row in _change_rows(folder) if row["step"] >= step), None)
    if later is None:
        return folder.read_json("config.json")
    if "before" not in later:
        raise InputError(f"{folder.path}: the settings of step {step} were not kept when they were changed")
    before: dict[str, Any] = later["before"]
    return before


QUESTIONS = "strop_trained_on.json"  # in the folder of a model


def questions_of(model: str | None) -> frozenset[str] | None:
    """Digests of the questions that a model was trained on, by its run and the runs before it.

    Args:
        model: a run, a folder that strop exported, or any other model.

    Returns:
        The digests; None if strop did not train the model or kept no record.

    Raises:
        InputError: a record is broken.
    """
    place = None if model is None else Path(model).expanduser().absolute()
    if place is None:
        return None
    if (place / QUESTIONS).is_file():
        try:
            return frozenset(read_json(place / QUESTIONS)["questions"])
        except (KeyError, TypeError) as error:
            raise InputError(f"{place / QUESTIONS} is not a record of questions: {error}") from error
    run = next((path for path in (place, place.parent) if is_run(path)), None)
    return None if run is None else _of_run(RunFolder.open(run))


def _of_run(folder: RunFolder) -> frozenset[str] | None:
    record = folder.read_problems()
    return None if record is None else record.trained | record.before


def trained_before(model: str | None) -> Seen:
    """Return a function that says whether a model was trained on a problem; see `questions_of`."""
    trained = questions_of(model) or frozenset()
    return lambda problem: question_digest(problem) in trained


def write_questions(model: Path, run: RunFolder) -> None:
    """Write the questions that a model exported from `run` was trained on next to it, if they are known."""
    questions = _of_run(run)
    if questions is not None:
        write_json(model / QUESTIONS, {"questions": sorted(questions)})
