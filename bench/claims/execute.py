"""Run arms and keep their curves: one small JSON file an arm and seed; what is there is not run again.

DIR/curves/ARM-seed0.json    the curve: configuration, and of every step the metrics that claims read
DIR/runs/ARM-seed0/          the run's folder while it runs; removed afterwards unless it is to be kept
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.claims.arms import ARMS, Arm

from strop.base.files import replacing
from strop.base.metrics_file import read_metrics
from strop.base.types import InputError
from strop.base.view import SilentView
from strop.config.parse import parse
from strop.config.schema import RunConfig
from strop.run.folder import RunFolder
from strop.run.run import train
from strop.training.embedded_base import named_base

TIMES = ("seconds/", "compute/", "idle/", "evaluation/seconds", "tokens_per_second")
DIGITS = 6


@dataclass(frozen=True)
class Curve:
    """What is kept of a run: the numbers of metrics.jsonl, without those of time; `seconds` of wall time.

    `base` is the model it began with: only curves of one base are a pair. `made` is the day of the run.
    """

    arm: str
    seed: int
    base: str | None
    seconds: float
    rows: tuple[dict[str, float | None], ...]
    made: str = ""

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of every step that has the metric."""
        found = ((int(row["step"] or 0), row.get(name)) for row in self.rows)
        return [(step, value) for step, value in found if value is not None]


def is_of(stored: dict[str, Any], config: RunConfig) -> bool:
    """Whether a stored curve is that of `config`; another one under the same name is not taken for it.

    The configuration is kept as it was resolved then, and read as any other: settings that were added since have their
    defaults in it, which are chosen so that nothing changes. What today's settings cannot read was something else, and
    so is what began with another base: the embedded one of a seed changes with its format.
    """
    try:
        return (
            stored["base"] == base_of(config)
            and parse(stored["config"], f"{stored['arm']}, seed {stored['seed']}") == config
        )
    except InputError:
        return False


def base_of(config: RunConfig) -> str | None:
    """The model a run begins with: the embedded base by its name in the cache, which says how it is made."""
    path = config.model.path
    base = None if path is None else named_base(path, config.seed)
    return path if base is None else base.key()


def curve_path(out: Path, arm: str, seed: int) -> Path:
    """Where a curve is kept."""
    return out / "curves" / f"{arm}-seed{seed}.json"


def load(out: Path, arm: str, seed: int, config: RunConfig | None = None) -> Curve | None:
    """The curve of a finished run; None where there is none, or none of `config`."""
    path = curve_path(out, arm, seed)
    if not path.is_file():
        return None
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if config is not None and not is_of(stored, config):
        return None
    return Curve(arm, seed, stored["base"], stored["seconds"], tuple(stored["rows"]), stored["made"])


def run_one(out: Path, name: str, seed: int, arm: Arm, keep: bool = False) -> Curve:
    """Train, and keep the curve. A run that was cut off begins anew: it takes less than a minute."""
    config = arm.config(seed)
    folder = out / "runs" / f"{name}-seed{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.perf_counter()
    train(config, folder, SilentView())
    seconds = time.perf_counter() - begin
    made = date.today().isoformat()
    rows = [_cut(row) for row in read_metrics(RunFolder.open(folder).metrics_path)]
    head = json.dumps({
        "arm": name, "seed": seed, "base": base_of(config), "seconds": round(seconds, 1), "made": made,
        "config": config.model_dump(mode="json"),
    })  # fmt: skip
    path = curve_path(out, name, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        lines = ",\n".join(json.dumps(row) for row in rows)
        temporary.write_text(f'{head[:-1]}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    if not keep:
        shutil.rmtree(folder)
    return Curve(name, seed, base_of(config), seconds, tuple(rows), made)


def _cut(row: dict[str, Any]) -> dict[str, float | None]:
    kept = {name: value for name, value in row.items() if isinstance(value, int | float) and not name.startswith(TIMES)}
    return {"step": row["step"]} | {name: float(f"{value:.{DIGITS}g}") for name, value in kept.items()}


Job = tuple[str, int]


def missing(out: Path, jobs: Iterable[Job], arms: Mapping[str, Arm] = ARMS) -> list[Job]:
    """The jobs that have no curve of their present configuration yet."""
    return [job for job in jobs if load(out, *job, arms[job[0]].config(job[1])) is None]


def execute(
    out: Path, jobs: Sequence[Job], workers: int = 1, keep: bool = False, arms: Mapping[str, Arm] = ARMS
) -> Iterator[Curve]:
    """The curves of the jobs that are not finished yet, as they come; with `workers` processes at once."""
    waiting = missing(out, jobs, arms)
    if workers == 1:
        for job in waiting:
            if missing(out, [job], arms):  # another process may have made it in the meantime
                yield run_one(out, *job, arms[job[0]], keep)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        made = [pool.submit(run_one, out, *job, arms[job[0]], keep) for job in waiting]
        for done in as_completed(made):
            yield done.result()
