"""The status of a run, read from its folder: its state, progress, speed and processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from strop.base.imports import command
from strop.base.metrics_file import by_step
from strop.base.types import InputError
from strop.base.view import benchmark_rates
from strop.config.edits import flatten
from strop.orchestration.process_registry import RegisteredWorker, read_processes
from strop.run.folder import PLACEMENT, SUMMARY, RunFolder, is_run
from strop.run.watchdog import STATUS
from strop_verify.child_process import process_state

State = Literal["new", "running", "stalled", "finished", "interrupted", "failed", "stuck", "dead", "unknown"]
Rows = Sequence[dict[str, float | None]]
STALE_SECONDS = 30.0  # without a heartbeat, which comes every second
PACE_STEPS = 20
SAMPLE_SECONDS = 0.2
SHARES = ("rollout", "verify", "update", "other", "evaluation")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessStatus:
    """A process of the run. `alive` is None on another host; `cpu` is in cores, `memory` the resident bytes.

    `gpus` are the numbers of those that it, or its server, computes on, as the driver counts them.
    """

    role: str
    pid: int
    host: str
    alive: bool | None
    state: str | None
    cpu: float | None
    memory: int | None
    heartbeat_age: float | None
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunStatus:
    """The status of a run; unknown values are None.

    Attributes:
        state: `new`: nothing has been trained yet; `running`; `stalled`: alive without a heartbeat; `finished`;
            `interrupted` by Ctrl-C; `failed` with `error`; `stuck`: ended by the watchdog; `dead`: its driver ended
            without an error; `unknown`: no heartbeat was written, or its host cannot be asked.
        explanation: the state in words, where it takes some.
        step: the last known step, from the metrics or, if they are missing, from other files.
        held_out_step: after which the held-out pass rate was measured; evaluations during training lag behind `step`.
        held_out_sampling: how it was sampled, such as `avg@4` or `greedy`: rates compare where this is the same.
        benchmarks: of each benchmark measured in training, the last pass rate and after which step it was.
        eta: seconds left at the pace of the last steps.
        shares: of the seconds of the last steps.
        progress: what was made last, and how many seconds ago.
    """

    run: str
    state: State
    explanation: str
    recipe: str | None
    stage: str | None
    step: int
    steps: int | None
    doing: tuple[str, int, int] | None
    eta: float | None
    pass_rate: float | None
    held_out_pass_rate: float | None
    held_out_step: int | None
    held_out_sampling: str | None
    benchmarks: dict[str, tuple[float, int]]
    step_seconds: float | None
    shares: dict[str, float]
    tokens_per_second: float | None
    lag_mean: float | None
    lag_max: float | None
    heartbeat_age: float | None
    progress: tuple[str, float] | None
    error: str | None
    notes: tuple[str, ...]
    processes: tuple[ProcessStatus, ...]

    @property
    def going_on(self) -> bool:
        """Whether the run is still alive."""
        return self.state in ("running", "stalled")

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def read_status(folder: RunFolder, now: float | None = None) -> RunStatus:
    """Read the status of a run; takes a fraction of a second, because the processors' use is sampled.

    Raises:
        InputError: the folder's files are broken.
    """
    now = time.time() if now is None else now
    said = folder.read_json(STATUS) if (folder.path / STATUS).exists() else None
    config = folder.read_json("config.json")
    rows = folder.read_metrics()
    step = int(rows[-1]["step"] or 0) if rows else _step_without_metrics(folder, said)
    steps = config.get("steps") if said is None or said["steps"] is None else said["steps"]
    driver = None if said is None else RegisteredWorker("driver", said["pid"], said["started"], said["host"])
    age = None if said is None else max(now - said["time"], 0.0)
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
        recipe=config.get("recipe"),
        stage=None if said is None else said["stage"],
        step=step,
        steps=steps,
        doing=None if said is None or said["doing"] is None or not going else tuple(said["doing"]),
        eta=pace * max(steps - step, 0) if going and pace is not None and steps is not None else None,
        pass_rate=_last(rows, "pass_rate"),
        held_out_pass_rate=_last(rows, "evaluation/pass_rate"),
        held_out_step=next(reversed(by_step(rows, "evaluation/pass_rate")), None),
        held_out_sampling=_sampling(config.get("evaluation")),
        benchmarks=_benchmarks(rows),
        step_seconds=pace,
        shares=_shares(rows[-PACE_STEPS:]),
        tokens_per_second=_speed(rows[-PACE_STEPS:]),
        lag_mean=_last(rows, "lag/mean"),
        lag_max=_last(rows, "lag/max"),
        heartbeat_age=age if going else None,
        progress=progress,
        error=None if said is None else said["error"],
        notes=() if said is None else tuple(note["text"] for note in said["notes"]),
        processes=_processes(
            driver if going or state == "dead" else None, read_processes(folder.path), age, _placed(folder)
        ),
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


def _sampling(evaluation: Mapping[str, Any] | None) -> str | None:
    """`avg@4`, `avg@4 T=0.6 p=0.95`, `greedy`: how a run samples its held-out problems; None of fine-tuning."""
    if evaluation is None:
        return None
    if evaluation["temperature"] == 0:
        return "greedy"
    marks = {"T": evaluation["temperature"], "p": evaluation["top_p"]}
    other = [f"{mark}={value:g}" for mark, value in marks.items() if value != 1]
    return " ".join([f"avg@{evaluation['samples_per_problem']}", *other])


def _step_without_metrics(folder: RunFolder, said: dict[str, Any] | None) -> int:
    """The last step of a run without metrics, from other files; 0 if nothing was trained."""
    known = [folder.read_summary().get("steps"), None if said is None else said["step"], *folder.checkpoint_steps()]
    return max((step for step in known if step is not None), default=0)


def _last(rows: Rows, name: str) -> float | None:
    """The latest value of a metric that is not at every step."""
    return next(reversed(by_step(rows, name).values()), None)


def _benchmarks(rows: Rows) -> dict[str, tuple[float, int]]:
    found: dict[str, tuple[float, int]] = {}
    for row in rows:
        found |= {name: (rate, int(row["step"] or 0)) for name, rate in benchmark_rates(row).items()}
    return found


def _mean(rows: Rows, name: str) -> float | None:
    found = by_step(rows, name).values()
    return sum(found) / len(found) if found else None


def _speed(rows: Rows) -> float | None:
    """Tokens over the seconds of the same steps, evaluations left out; of fine-tuning the mean of its steps."""
    tokens, seconds = by_step(rows, "tokens/generated"), by_step(rows, "seconds/step")
    evaluation = by_step(rows, "seconds/evaluation")
    steps = tokens.keys() & seconds.keys()
    spent = sum(seconds[step] - evaluation.get(step, 0.0) for step in steps)
    return sum(tokens[step] for step in steps) / spent if spent > 0 else _mean(rows, "tokens_per_second")


def _shares(rows: Rows) -> dict[str, float]:
    """Each section's share of the steps' seconds, without what was measured before the first step."""
    steps = by_step(rows, "seconds/step")
    whole = sum(steps.values())
    spent = {name: by_step(rows, f"seconds/{name}") for name in SHARES} if whole else {}
    inside = {name: [value for step, value in values.items() if step in steps] for name, values in spent.items()}
    return {name: sum(values) / whole for name, values in inside.items() if values}


# ---------------------------------------------------------------------- processes


def _placed(folder: RunFolder) -> dict[str, tuple[int, ...]]:
    """The GPUs of each role; none where the run has no GPUs, or Ray has placed its workers."""
    said = folder.read_json(PLACEMENT) if (folder.path / PLACEMENT).exists() else {}
    return {share["role"]: tuple(share["gpus"]) for share in said.get("shares", ())}


def _processes(
    driver: RegisteredWorker | None,
    registry: Sequence[RegisteredWorker],
    age: float | None,
    placed: Mapping[str, tuple[int, ...]],
) -> tuple[ProcessStatus, ...]:
    known = list(registry)
    if driver is not None and driver.pid not in [worker.pid for worker in registry]:
        known.insert(0, driver)
    before = {worker.pid: _cpu_seconds(worker) for worker in known}
    begin = time.monotonic()
    if any(value is not None for value in before.values()):
        time.sleep(SAMPLE_SECONDS)
    passed = time.monotonic() - begin
    found = []
    for worker in known:
        first, last = before[worker.pid], _cpu_seconds(worker)
        found.append(
            ProcessStatus(
                role=worker.role,
                pid=worker.pid,
                host=worker.host,
                alive=worker.alive if worker.here else None,
                state=process_state(worker.pid) if worker.alive else None,
                cpu=None if first is None or last is None else (last - first) / passed,
                memory=_memory(worker),
                heartbeat_age=age if worker.role == "driver" else None,
                gpus=placed.get(worker.role, ()),
            )
        )
    return tuple(found)


def _cpu_seconds(worker: RegisteredWorker) -> float | None:
    """Processor seconds so far; None if the process is dead or on another host."""
    if worker.alive:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
            fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / _TICKS
    return None


def _memory(worker: RegisteredWorker) -> int | None:
    if worker.alive:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return int(Path(f"/proc/{worker.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


ABSENT = "-"


@dataclass(frozen=True)
class ListedRun:
    """A run as it is listed: its status, when it began, and the bytes of its folder; or why it cannot be read."""

    path: Path
    status: RunStatus | None
    began: str
    size: int
    unread: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        found = {"run": str(self.path), "began": self.began, "bytes": self.size, "unread": self.unread}
        if self.status is None:
            return found
        kept = (
            "state", "recipe", "step", "steps", "pass_rate", "held_out_pass_rate", "held_out_step",
            "held_out_sampling", "eta", "error",
        )  # fmt: skip
        return found | {name: value for name, value in self.status.as_json().items() if name in kept}


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


def listed(run: Path) -> ListedRun:
    """A run for a list; `unread` says why its files cannot be read."""
    size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file() and not file.is_symlink())
    try:
        folder = RunFolder.open(run)
        return ListedRun(run, read_status(folder), str(folder.read_json("run.json").get("began", "")), size)
    except InputError as error:
        return ListedRun(run, None, "", size, str(error))


def differences(runs: Sequence[Path]) -> list[tuple[str, tuple[str, ...]]]:
    """Every setting in which the runs' configurations differ, with its value in each; `-` where one has none.

    Raises:
        InputError: a folder is no run, or has no configuration.
    """
    sides = [dict(flatten(RunFolder.open(run).read_json("config.json"))) for run in runs]
    keys = dict.fromkeys(key for side in sides for key in side)
    rows = [(key, tuple(side.get(key, ABSENT) for side in sides)) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]
