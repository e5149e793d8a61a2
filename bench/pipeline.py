"""Orchestration, measured. One JSON object a line.

    python bench/pipeline.py pipeline      # PipelineRL-8 against synchronous training, with stragglers
    python bench/pipeline.py publication   # 100 MB of weights to two generators
    python bench/pipeline.py death         # from kill -9 to its detection
    python bench/pipeline.py quality       # the embedded model: k = 8 against k = 0 at equal steps (half an hour)

`pipeline` runs the real loop over the real fleet of processes; only engine and learner wait instead of computing
(`bench/simulated.py`), so that the cores of the machine do not decide. An engine's step takes one token's time however
many sequences run; an update takes as long as the generators need for its tokens with all slots busy.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from bench.simulated import SimulatedLearner, Simulation

from strop.base.view import SilentView
from strop.config.parse import edit
from strop.data.loading import load_data
from strop.model.files import byte_tokenizer
from strop.orchestration.executor import Probe, ProbeCheck
from strop.orchestration.fleet import Fleet
from strop.orchestration.messages import StoredWeights
from strop.orchestration.processes import Processes
from strop.orchestration.weight_store import WeightFile, WeightStore
from strop.orchestration.workers import Supervision, WorkerSpec, end
from strop.recipes.resolve import resolve
from strop.run.loop import Loop
from strop.verifiers.protocol import InlineJudge

SPEEDUP_BAR, BOUND_BAR, PUBLICATION_BAR, DEATH_BAR = 2.0, 0.8, 0.25, 0.1
PIPELINE, SEEDS = 8, 3
STUDENT = 4.303  # 95 %, two degrees of freedom


def say(row: dict[str, Any]) -> None:
    """Print a result."""
    print(json.dumps(row), flush=True)


# ---------------------------------------------------------------------- stragglers


@dataclass(frozen=True)
class Shape:
    """A run of the simulation; `lag` is k."""

    prompts: int
    samples: int
    lag: int
    generators: int
    simulation: Simulation
    train_token: float

    @property
    def slots(self) -> int:
        return self.generators * self.simulation.slots


def train(shape: Shape, steps: int) -> tuple[float, dict[str, float]]:
    """Seconds for `steps` steps, and means of their metrics."""
    config = edit(
        resolve("grpo"),
        [
            f"steps={steps}", f"batch.prompts_per_step={shape.prompts}", f"batch.samples_per_prompt={shape.samples}",
            "sampling.max_new_tokens=100000", "algorithm.selection.zero_variance=keep", "evaluation.every=none",
            "verifier.extract=last_number", f"orchestration.max_lag={shape.lag}", "orchestration.executor=embedded",
            f"orchestration.generators={shape.generators}",
        ],
    )  # fmt: skip
    learner, silent = SimulatedLearner(shape.train_token), SilentView()
    fleet = Fleet(
        launcher=Processes(),
        specs=[WorkerSpec(f"generator-{n}", "bench.simulated:main", shape.simulation) for n in range(shape.generators)],
        source=lambda file, version: file.write(version, learner.weights()),
        store=WeightStore(1 << 16, silent.note),
        supervision=Supervision(),
        note=lambda line: None,
        check=ProbeCheck(),
    )
    data = load_data(config.data, byte_tokenizer()).train
    loop = Loop(config, data, fleet, InlineJudge(config.verifier), learner, silent)  # type: ignore[arg-type]
    rows: list[dict[str, float | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            fleet.start(Path(folder))
            loop.reopen()
            begin = time.perf_counter()
            while len(rows) < steps:
                record = loop.next_step()
                assert record is not None
                rows.append(record.metrics)
            seconds = time.perf_counter() - begin
        finally:
            fleet.close()
    assert len(set(learner.trained)) == len(learner.trained) == steps * shape.prompts
    means = {name: statistics.mean(row[name] or 0.0 for row in rows) for name in ("seconds/publish", "idle/generators")}
    means["lag/max"] = max(row["lag/max"] or 0.0 for row in rows)
    return seconds, means


def bound(shape: Shape) -> tuple[float, str]:
    """The least mean step time that any run of this shape can have, and by which formula."""
    simulation = shape.simulation
    count = shape.prompts * shape.samples
    share, factor, usual = simulation.straggler_share, simulation.straggler_factor, simulation.tokens
    tokens = count * usual * (1 - share + share * factor)
    update = tokens * shape.train_token
    generation = tokens * simulation.token_seconds / shape.slots
    none = (1 - share) ** count
    longest = usual * (none + factor * (1 - none)) * simulation.token_seconds
    if shape.lag == 0:
        return max(generation, longest) + update, "max(C, D) + U"
    return max(update, generation, (longest + update) / (shape.lag + 1)), "max(U, C, (D + U) / (k + 1))"


def pipeline(arguments: argparse.Namespace) -> None:
    """Synchronous, and PipelineRL-8."""
    simulation = Simulation(arguments.slots, arguments.token_seconds, arguments.tokens, 0.05, 30)
    train_token = simulation.token_seconds / (2 * simulation.slots)
    seconds = {}
    for name, lag in (("synchronous", 0), ("pipeline-8", 8)):
        shape = Shape(arguments.prompts, arguments.samples, lag, 2, simulation, train_token)
        seconds[name], means = train(shape, arguments.steps)
        least, formula = bound(shape)
        row = {
            "bench": "pipeline", "run": name, "steps": arguments.steps, "seconds": round(seconds[name], 2),
            "seconds_a_step": round(seconds[name] / arguments.steps, 4), "bound_a_step": round(least, 4),
            "share_of_bound": round(least * arguments.steps / seconds[name], 3),
            "bound": formula,  # of runs that train every group
            "speedup": round(seconds["synchronous"] / seconds[name], 2),
            **{key: round(value, 4) for key, value in means.items()},
        }  # fmt: skip
        if name == "pipeline-8":
            row |= {"ok": row["speedup"] >= SPEEDUP_BAR and row["share_of_bound"] >= BOUND_BAR}
        say(row)


# ---------------------------------------------------------------------- weights


def publication(arguments: argparse.Namespace) -> None:
    """Real engines of a model of 100 MB: write and hash, map and check, swap, acknowledge, probe."""
    from strop.engines.settings import EngineSettings
    from strop.model.policy import load_policy
    from strop.model.settings import FreshModel, ModelSettings
    from strop.orchestration.fleet import GeneratorSettings

    fresh = FreshModel(hidden_size=512, layers=8, heads=8, kv_heads=4, head_dim=64, intermediate_size=1408)
    model = ModelSettings(fresh=fresh)
    policy, _ = load_policy(model, seed=1)
    size = sum(weight.nbytes for weight in policy.weights().values())
    settings = GeneratorSettings(model, EngineSettings(slots=16, max_tokens=64), seed=1)

    def write(file: WeightFile, version: int) -> StoredWeights:
        return file.write(version, policy.weights().items())

    fleet = Fleet(
        launcher=Processes(),
        specs=[WorkerSpec(f"generator-{n}", "strop.orchestration.fleet:main", settings) for n in range(2)],
        source=write,
        store=WeightStore(size if arguments.weights == "memory" else 1 << 62, print),
        supervision=Supervision(),
        note=lambda line: None,
        check=lambda *probed: None,  # type: ignore[arg-type]
    )
    probe = Probe(np.arange(8, dtype=np.int32), 0, np.zeros(7, np.float32))
    with tempfile.TemporaryDirectory() as folder:
        try:
            fleet.start(Path(folder))
            fleet.publish(0, probe)
            held, seconds = [], []
            pids = [os.getpid(), *(one.worker.pid for one in fleet.generators if one.worker.pid is not None)]
            spent = processor_seconds(pids)
            for version in range(1, arguments.repeats + 1):
                with torch.no_grad():
                    for weight in policy.parameters():
                        weight.add_(0.001)
                begin = time.perf_counter()
                held.append(fleet.publish(version, probe).seconds)
                while any(one.pending is not None for one in fleet.generators):
                    fleet.poll(0.001)
                seconds.append(time.perf_counter() - begin)
            spent = processor_seconds(pids) - spent
        finally:
            fleet.close()
    row = {"bench": "publication", "weights": arguments.weights, "megabytes": round(size / 1e6, 1), "generators": 2,
           "repeats": len(seconds), "held": round(statistics.median(held), 3),
           "processor_seconds": round(spent / len(seconds), 3)}  # fmt: skip
    median = statistics.median(seconds)
    say(row | {"median": round(median, 3), "least": round(min(seconds), 3), "most": round(max(seconds), 3),
               "ok": median <= PUBLICATION_BAR})  # fmt: skip


def processor_seconds(pids: list[int]) -> float:
    """That these processes have spent so far, user and system."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------- deaths


def death(arguments: argparse.Namespace) -> None:
    """kill -9 of a worker while this process computes, until its death is known."""
    launcher = Processes()
    seconds = []
    matrix = torch.randn(512, 512)
    for number in range(arguments.repeats):
        handle = launcher.launch(WorkerSpec(f"generator-{number}", "bench.simulated:main", Simulation()))
        while not handle.receive():
            launcher.wait([handle], 10)
        os.kill(handle.pid, signal.SIGKILL)
        begin = time.perf_counter()
        while handle.death is None:
            matrix @ matrix
        seconds.append(time.perf_counter() - begin)
        end(launcher, [handle])
    say({"bench": "death", "repeats": len(seconds), "median": round(statistics.median(seconds), 4),
         "most": round(max(seconds), 4), "ok": max(seconds) < DEATH_BAR})  # fmt: skip


# ---------------------------------------------------------------------- quality


def quality(arguments: argparse.Namespace) -> None:
    """The quickstart under both, at equal steps, three seeds each: does the second lie in the interval of the first?"""
    steps = arguments.quality_steps
    rates: dict[int, list[float]] = {0: [], PIPELINE: []}
    lags = []
    cases = [(seed, lag) for seed in range(SEEDS) for lag in rates]
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(arguments.jobs, mp_context=spawn, max_tasks_per_child=1) as pool,
    ):
        found = [pool.submit(held_out_rate, *case, steps, Path(folder) / f"{case}") for case in cases]
        for (seed, lag), future in zip(cases, found, strict=True):
            rate, row = future.result()
            rates[lag].append(rate)
            lags += [row["lag/mean"]] if lag else []
            say({"bench": "quality", "max_lag": lag, "seed": seed, "steps": steps, **row})
    mean, half = statistics.mean(rates[0]), STUDENT * statistics.stdev(rates[0]) / math.sqrt(SEEDS)
    pipelined = statistics.mean(rates[PIPELINE])
    gaps = [other - one for one, other in zip(*rates.values(), strict=True)]
    say({"bench": "quality", "steps": steps, "synchronous": round(mean, 4),
         "interval": [round(mean - half, 4), round(mean + half, 4)], f"pipeline-{PIPELINE}": round(pipelined, 4),
         "gap": round(statistics.mean(gaps), 4),
         "gap_half_width": round(STUDENT * statistics.stdev(gaps) / math.sqrt(SEEDS), 4),
         "lag_mean": round(statistics.mean(lags), 2), "ok": abs(pipelined - mean) <= half})  # fmt: skip


def held_out_rate(seed: int, lag: int, steps: int, out: Path) -> tuple[float, dict[str, float]]:
    """The final pass rate of 256 held-out problems x 8 samples, and what to report of the run."""
    from strop.recipes.quickstart import recipe
    from strop.run.folder import RunFolder
    from strop.run.run import train as train_run
    from strop.training.embedded_base import located

    torch.set_num_threads(1)
    config = edit(recipe(), [
        f"seed={seed}", f"steps={steps}", f"orchestration.max_lag={lag}", f"evaluation.every={steps}",
        f"checkpoint.every={steps}",
    ])  # fmt: skip
    located(config.model, config.seed, SilentView())  # the base is made once a seed, and is no part of the run
    processor, begun = sum(os.times()[:4]), time.monotonic()
    found = train_run(config, out, SilentView())
    rows = list(RunFolder.open(out).read_metrics())[-steps:]
    before, after = (found.evaluations[step].pass_rate for step in (0, steps))
    return after, {
        "pass_rate_before": round(before, 4), "pass_rate": round(after, 4),
        "lag/mean": round(statistics.mean(row["lag/mean"] or 0.0 for row in rows), 2),
        "lag/max": max(row["lag/max"] or 0.0 for row in rows),
        "seconds": round(time.monotonic() - begun, 1),
        "processor_seconds": round(sum(os.times()[:4]) - processor, 1),
    }  # fmt: skip


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"pipeline": pipeline, "publication": publication, "death": death, "quality": quality}
    parser.add_argument("parts", nargs="+", choices=list(parts))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--quality-steps", type=int, default=96)
    parser.add_argument("--jobs", type=int, default=1, help="runs of `quality` at once")
    parser.add_argument("--repeats", type=int, default=20)
    ways = ("memory", "files")
    parser.add_argument("--weights", choices=ways, default="memory", help="how `publication` goes")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=6, help="of a usual completion")
    parser.add_argument("--slots", type=int, default=96, help="of each of two generators")
    parser.add_argument("--token-seconds", type=float, default=0.004)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    for name in arguments.parts:
        parts[name](arguments)


if __name__ == "__main__":
    main()
