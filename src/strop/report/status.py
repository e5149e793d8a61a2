"""The status of a run, read from its folder: its state, progress and processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from strop.base.imports import MARKER, command
from strop.base.metrics_file import by_step
from strop.base.types import InputError
from strop.base.view import benchmark_rates
from strop.orchestration.process_registry import RegisteredWorker, read_processes
from strop.run.folder import SUMMARY, RunFolder
from strop.run.watchdog import STATUS
from strop_verify.child_process import process_state

State = Literal[
    "new", "running", "stalled", "finished", "interrupted", "failed", "stuck", "dead", "unknown", "unreadable"
]
Rows = Sequence[dict[str, float | None]]
STALE_SECONDS = 30.0  # without a heartbeat, which comes every second
PACE_STEPS = 20


@dataclass(frozen=True)
class ProcessStatus:
    """A process of the run. `alive` is None on another host."""

    role: str
    pid: int
    host: str
    alive: bool | None


@dataclass(frozen=True)
class RunStatus:
    """The status of a run; unknown values are None.

    Attributes:
        state: `new`: nothing has been trained yet; `running`; `stalled`: alive without a heartbeat; `finished`;
            `interrupted` by Ctrl-C; `failed` with `error`; `stuck`: ended by the watchdog; `dead`: its driver ended
            without an error; `unknown`: no heartbeat was written, or its host cannot be asked; `unreadable`: a file
            of it is broken.
        explanation: the state in words, where it takes some.
        step: the last known step, from the metrics or, if they are missing, from other files.
        doing: the part of the step that is under way, how much of it is done, and how much there is.
        pass_rates: the last pass rate in training, on the held-out problems and on each benchmark, each with its step:
            evaluations during training lag behind `step`.
        step_seconds: the mean of the last steps.
        eta: seconds left at that pace.
        progress: what was made last, and how many seconds ago.
    """

    run: str
    state: State
    explanation: str
    began: str = ""
    recipe: str | None = None
    stage: str | None = None
    step: int = 0
    steps: int | None = None
    doing: tuple[str, int, int] | None = None
    pass_rates: dict[str, tuple[float, int]] = field(default_factory=dict)
    step_seconds: float | None = None
    eta: float | None = None
    progress: tuple[str, float] | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()
    processes: tuple[ProcessStatus, ...] = ()

    @property
    def going_on(self) -> bool:
        """Whether the run is still alive."""
        return self.state in ("running", "stalled")

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def read_status(folder: RunFolder) -> RunStatus:
    """Read the status of a run from its files.

    Raises:
        InputError: the folder's files are broken.
    """
    said = folder.read_json(STATUS) if (folder.path / STATUS).exists() else None
    config = folder.read_json("config.json")
    rows = folder.read_metrics()
    step = int(rows[-1]["step"] or 0) if rows else _step_without_metrics(folder, said)
    steps = config.get("steps") if said is None or said["steps"] is None else said["steps"]
    driver = None if said is None else RegisteredWorker("driver", said["pid"], said["started"], said["host"])
    age = None if said is None else max(time.time() - said["time"], 0.0)
    kind = "sft" if "demonstrations" in config else "train"
    state, explanation = _state(folder, said, driver, age, command(f"{kind} --resume", folder.path), step)
    if step and not rows:
        gone = f"its {folder.metrics_path.name} is missing, and so are its metrics"
        explanation = f"{explanation}; {gone}" if explanation else gone
    going = state in ("running", "stalled")
    pace = _mean(rows[-PACE_STEPS:], "seconds/step")
    progress = None
    if said is not None:
        progress = (said["progress"]["what"], said["progress"]["age"] + (age or 0.0 if going else 0.0))
    return RunStatus(
        run=str(folder.path),
        state=state,
        explanation=explanation,
        began=str(folder.read_json(MARKER).get("began", "")),
        recipe=config.get("recipe"),
        stage=None if said is None else said["stage"],
        step=step,
        steps=steps,
        doing=None if said is None or said["doing"] is None or not going else tuple(said["doing"]),
        pass_rates=_pass_rates(rows),
        step_seconds=pace,
        eta=pace * max(steps - step, 0) if going and pace is not None and steps is not None else None,
        progress=progress,
        error=None if said is None else said["error"],
        notes=() if said is None else tuple(note["text"] for note in said["notes"]),
        processes=_processes(driver if going or state == "dead" else None, read_processes(folder.path)),
    )


def _state(
    folder: RunFolder,
    said: dict[str, Any] | None,
    driver: RegisteredWorker | None,
    age: float | None,
    command: str,
    step: int,
) -> tuple[State, str]:
    go_on = f"go on with: {command}"
    if said is None or driver is None or age is None:
        if (folder.path / SUMMARY).exists():
            return "finished", ""
        if step == 0:
            return "new", f"nothing has been trained yet; begin with: {command}"
        return "unknown", f"it has no {STATUS}: an earlier strop wrote it, or the file was lost"
    if said["state"] == "interrupted":
        return "interrupted", go_on
    if said["state"] in ("failed", "stuck"):
        return said["state"], "" if "--resume" in (said["error"] or "") else go_on
    if said["state"] == "finished":
        return "finished", ""
    if not driver.here:
        where = f"it runs on {driver.host}, whose processes cannot be seen from here"
        if age < STALE_SECONDS:
            return "running", where
        return "unknown", f"{where}, and its last heartbeat is {age:.0f} s old"
    if not driver.alive:
        return "dead", f"its driver (process {driver.pid}) ended without an error, about {age:.0f} s ago; {go_on}"
    if age >= STALE_SECONDS:
        lives = f"its driver lives (state {process_state(driver.pid)})"
        return "stalled", f"{lives} and has had no heartbeat for {age:.0f} s"
    return "running", ""


def _step_without_metrics(folder: RunFolder, said: dict[str, Any] | None) -> int:
    """The last step of a run without metrics, from other files; 0 if nothing was trained."""
    known = [folder.read_summary().get("steps"), None if said is None else said["step"], *folder.checkpoint_steps()]
    return max((step for step in known if step is not None), default=0)


def _pass_rates(rows: Rows) -> dict[str, tuple[float, int]]:
    found: dict[str, tuple[float, int]] = {}
    for name, metric in (("training", "pass_rate"), ("held-out", "evaluation/pass_rate")):
        if measured := by_step(rows, metric):
            step, rate = measured.popitem()
            found[name] = rate, step
    for row in rows:
        found |= {name: (rate, int(row["step"] or 0)) for name, rate in benchmark_rates(row).items()}
    return found


def _mean(rows: Rows, name: str) -> float | None:
    found = by_step(rows, name).values()
    return sum(found) / len(found) if found else None


def _processes(driver: RegisteredWorker | None, registry: Sequence[RegisteredWorker]) -> tuple[ProcessStatus, ...]:
    known = list(registry)
    if driver is not None and driver.pid not in [worker.pid for worker in registry]:
        known.insert(0, driver)
    return tuple(
        ProcessStatus(worker.role, worker.pid, worker.host, worker.alive if worker.here else None) for worker in known
    )


def listed(run: Path) -> RunStatus:
    """As `read_status`; a run whose files are broken is `unreadable`, and the explanation says why."""
    try:
        return read_status(RunFolder.open(run))
    except InputError as error:
        return RunStatus(run=str(run), state="unreadable", explanation=str(error))
