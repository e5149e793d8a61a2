"""How well `strop plan` predicts: published step times, published schedules, and runs of the embedded model here.

    python bench/plan.py                      all of it; a JSON object a line
    python bench/plan.py --clock cpu          count the process's processor seconds, on a machine that does other work
    python bench/plan.py --only fleet         the real loop and fleet with engines that sleep, on any machine
    python bench/plan.py --only embedded      generation in a process beside training: needs two idle cores

The prediction: costs are measured from one run, or from two of different batch sizes, of the quickstart's recipe; then
the step time of settings that were not measured is planned, run, and compared. Lengths are held by a learning rate of
almost nothing, for a planner does not know how they will grow.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MEASURED = {
    "32 x 8": (),
    "8 x 8": ("batch.prompts_per_step=8",),
}
PREDICTED = {
    "16 x 8": ("batch.prompts_per_step=16",),
    "32 x 4": ("batch.samples_per_prompt=4",),
    "16 x 16": ("batch.prompts_per_step=16", "batch.samples_per_prompt=16"),
    "48 x 8": ("batch.prompts_per_step=48",),
    "32 x 8, at most 24 tokens": ("sampling.max_new_tokens=24",),
    "32 x 8, two updates": ("batch.updates_per_step=2",),
}
BESIDE = "orchestration.executor=embedded"
EMBEDDED = {"k = 0, 16 x 8": (0, 16), "k = 1": (1, 32), "k = 1, 16 x 8": (1, 16), "k = 4, 16 x 8": (4, 16)}
BASE = ("optim.lr=1e-9", "evaluation.every=none", "checkpoint.every=1000", "algorithm.selection.zero_variance=keep")


def table_9() -> None:
    """Skywork-OR1, Table 9."""
    from strop.lab.planning import simulate
    from strop.lab.planning.costs import SKYWORK_LENGTHS, SKYWORK_ROLLOUT_SECONDS, skywork_table_9

    for devices, published in SKYWORK_ROLLOUT_SECONDS.items():
        found = simulate(*skywork_table_9(devices), SKYWORK_LENGTHS, steps=20).mean
        show(bench="table 9", devices=devices, published=published, simulated=found, error=found / published - 1)


def schedules() -> None:
    """ScaleRL's split of 80 devices, under PipelineRL-k and PPO-off-policy-k."""
    from strop.lab.planning import settled_bound, simulate
    from strop.lab.planning.costs import SCALERL, SCALERL_LENGTHS, scalerl_costs
    from strop.lab.planning.question import alternatives

    for setup in alternatives(SCALERL, (0, 1, 4, 8)):
        found = simulate(setup, scalerl_costs(), SCALERL_LENGTHS, steps=max(6, 40 // setup.updates_per_step))
        bound = settled_bound(found, scalerl_costs()).seconds / setup.updates_per_step
        show(
            bench="schedules", setting=setup.name, seconds_per_update=found.update_seconds, bound=bound,
            trainer_idle=found.trainer_idle, generators_idle=found.generators_idle,
            updates_behind=found.updates_behind,
        )  # fmt: skip


def predictions(steps: int, clock: str, folder: Path) -> None:
    """Runs here against what was planned from others."""
    from strop.lab.planning.question import measure
    from strop.run.folder import RunFolder

    runs = {
        name: train(folder / str(number), sets, steps, clock) for number, (name, sets) in enumerate(MEASURED.items())
    }
    for sources in (["32 x 8"], list(MEASURED)):
        known = measure([RunFolder.open(runs[name]) for name in sources])
        show(bench="costs", sources=sources, costs={k: v for k, v in known.costs.model_dump().items() if v},
             fits=[vars(fit) for fit in known.fits])  # fmt: skip
    for number, (name, sets) in enumerate(PREDICTED.items()):
        target = train(folder / f"target-{number}", sets, steps, clock)
        for sources in (["32 x 8"], list(MEASURED)):
            predict(name, [runs[source] for source in sources], target)


def embedded(steps: int, folder: Path) -> None:
    """The same with a generator process, from a synchronous run to others and to runs with lag."""
    source = train(folder / "source", (BESIDE,), steps, "wall")
    for number, (name, (lag, prompts)) in enumerate(EMBEDDED.items()):
        sets = (BESIDE, f"orchestration.max_lag={lag}", f"batch.prompts_per_step={prompts}")
        # `predict` leaves out the first k steps and the last: as many are left with lag as without.
        target = train(folder / f"embedded-{number}", sets, steps + 2 * lag, "wall")
        predict(f"embedded, {name}", [source], target)


def predict(name: str, sources: list[Path], target: Path) -> None:
    """Plan the run `target` from the costs of `sources`, and say how far off that is."""
    from strop.config.parse import parse
    from strop.lab.planning import Empirical, simulate
    from strop.lab.planning.costs import setup_of
    from strop.lab.planning.question import measure
    from strop.run.folder import RunFolder

    known = measure([RunFolder.open(source) for source in sources])
    run = RunFolder.open(target)
    config = parse(run.read_json("config.json"), name)
    setup = replace(setup_of(config), prompt_tokens=known.setup.prompt_tokens)
    lengths = Empirical(known.lengths.groups, config.sampling.max_new_tokens)
    planned = simulate(setup, known.costs, lengths, 60).mean
    # As the simulation does: the first step warms up, and the last k are trained while generation runs dry.
    steps = [row["seconds/step"] or 0.0 for row in run.read_metrics()][1 + setup.max_lag : config.steps - setup.max_lag]
    measured = sum(steps) / len(steps)
    show(
        bench="prediction", runs=len(sources), setting=name, planned=planned, measured=measured,
        error=planned / measured - 1,
    )  # fmt: skip


def fleet() -> None:
    """The loop over two generator processes whose engines sleep (`bench/pipeline.py`), with stragglers, by lag."""
    import statistics
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from bench.pipeline import Shape
    from bench.pipeline import train as run
    from bench.simulated import Simulation as Engines

    from strop.lab.planning import ConstantLength, Costs, Setup, Straggling, simulate

    engines = Engines(slots=16, token_seconds=0.03, tokens=5, straggler_share=0.05, straggler_factor=30)
    for lag, steps in ((0, 5), (1, 7), (8, 18)):
        shape = Shape(prompts=8, samples=4, lag=lag, generators=2, simulation=engines, train_token=0.03 / 32)
        measured, means = run(shape, steps, "wait")
        setup = Setup(8, 4, max_lag=lag, generators=2, slots=16)
        costs = Costs(decode_step=0.03, train_token=0.03 / 32, publish=means["seconds/publish"])
        lengths = Straggling(ConstantLength(5), 0.05, 30)
        planned = statistics.mean(simulate(setup, costs, lengths, steps, seed).total for seed in range(20))
        show(bench="fleet", lag=lag, steps=steps, planned=planned, measured=measured, error=planned / measured - 1)


def train(out: Path, sets: tuple[str, ...], steps: int, clock: str) -> Path:
    """A run of the quickstart's recipe in this process."""
    import torch

    import strop.run.loop
    from strop.base.view import SilentView
    from strop.recipes.resolve import resolve
    from strop.run.run import train as run

    torch.set_num_threads(1)
    if clock == "cpu":
        strop.run.loop.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
    run(resolve("quickstart", [*BASE, f"steps={steps}", *sets]), out, SilentView())
    return out


def show(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10, help="steps of each run here")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="what a second is")
    parts = ("table 9", "schedules", "predictions", "fleet", "embedded")
    parser.add_argument("--only", choices=parts, help="one part of it")
    arguments = parser.parse_args()
    if arguments.only in (None, "table 9"):
        table_9()
    if arguments.only in (None, "schedules"):
        schedules()
    if arguments.only in (None, "predictions"):
        with tempfile.TemporaryDirectory() as temporary:
            predictions(arguments.steps, arguments.clock, Path(temporary))
    if arguments.only in (None, "fleet"):
        fleet()
    if arguments.only in (None, "embedded"):
        with tempfile.TemporaryDirectory() as temporary:
            embedded(2 * arguments.steps, Path(temporary))
