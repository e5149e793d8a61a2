"""The commands of `strop plan`: how long a run takes, and how many seeds decide a difference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from strop.cli.lab_commands import Over
from strop.cli.options import Imports, Json, Sets, allow, numbers, print_table, show, waiting

if TYPE_CHECKING:
    from strop.config.schema import RunConfig
    from strop.lab.planning import Costs, Lengths, Simulation
    from strop.run.memory import MemoryPlan

class _TimeByDefault(TyperGroup):
    """`strop plan RECIPE` is `strop plan time RECIPE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        named = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if named else ["time", *args])


plan_app = typer.Typer(
    cls=_TimeByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Plan runs before they are made: their time, or the seeds that a comparison needs.

    \b
    strop plan scalerl                     the same as: strop plan time scalerl
    strop plan power --deviation 0.03
    strop plan allocate 8=runs/a 32=runs/b 128=runs/c
    """,
)


@plan_app.command("time", short_help="Simulate a run: step times, idle shares, a bound.")
def time(
    target: Annotated[
        str, typer.Argument(metavar="RECIPE|FILE|RUN", help="The run to simulate; RUN gives its measured costs too.")
    ],
    sets: Sets = [],  # noqa: B006  (typer copies it)
    compare: Annotated[
        str | None, typer.Option(metavar="0,1,4,8", help="Compare these lags, with PPO-off-policy-k too.")
    ] = None,
    costs: Annotated[
        list[str],
        typer.Option("--cost", metavar="NAME=SECONDS", help="A cost, such as decode_step=0.01; may be repeated."),
    ] = [],  # noqa: B006
    lengths: Annotated[
        str | None,
        typer.Option(metavar="LENGTHS", help="constant:TOKENS, lognormal:MEDIAN,SIGMA, +0.05x30 for stragglers."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="8,32", help="Compare how so many GPUs can be shared out, by memory too.")
    ] = None,
    gpu_gib: Annotated[int, typer.Option(help="GiB of a GPU, with --gpus.", min=1)] = 80,
    host_gib: Annotated[int, typer.Option(help="GiB of the memory of a host of 8 GPUs, with --gpus.", min=1)] = 1024,
    drop: Annotated[float, typer.Option(help="Share of groups that selection drops.", min=0, max=0.99)] = 0.0,
    steps: Annotated[int, typer.Option(help="Steps to simulate.", min=1)] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the drawn lengths.", min=0)] = 0,
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Simulate a run by discrete events: step time, idle shares, and the bound of any schedule.

    Batch, lag, generators, trainers and slots are those of the recipe; change them with --set. Costs and lengths are
    those measured in a RUN, those of --cost and --lengths, else those of a 7B model on H800s, from published times;
    the output says which. Costs are seconds: a decode step takes decode_step + decode_sequence × (running sequences) +
    decode_context × (their tokens); an update takes train_update + train_token × tokens / trainers; an unknown --cost
    lists the others.

    \b
    strop plan scalerl --compare 0,1,4,8 --set orchestration.generators=64 --set orchestration.trainers=16
    strop plan scalerl --gpus 8,32 --set engine=Vllm --set model.path=Qwen/Qwen3-8B
    strop plan grpo --lengths lognormal:700,0.6 --cost decode_step=0.02 --cost train_token=2e-5
    strop plan runs/first --compare 0,1,4
    """
    from dataclasses import replace

    from strop.base.progress import part
    from strop.lab.planning import simulate
    from strop.lab.planning.bound import plan_values
    from strop.lab.planning.costs import setup_of

    allow(imports, sets)
    config, seconds, sources, drawn = _priced(target, sets, costs, lengths)
    lags = None if compare is None else numbers("--compare", compare, "0,1,4,8")
    memory = [] if gpus is None else _fitting_splits(config, gpus, gpu_gib, host_gib)
    shapes = [replace(setup_of(each), drop=drop) for each in ([one.config for one in memory] or [config])]
    setups = shapes if lags is None else [schedule for shape in shapes for schedule in shape.schedules(lags)]
    with waiting("simulating"):
        plans: list[Simulation] = []
        for each in setups:
            part("schedules", len(plans), len(setups))
            # As many updates of each: the batches of PPO-off-policy-k are k times as large.
            count = max(1, steps * shapes[0].updates_per_step // each.updates_per_step)
            plans.append(simulate(each, seconds, drawn, count, seed))
    value: dict[str, Any] = {
        "costs": seconds.model_dump(),
        "sources": sources,
        "lengths": str(drawn),
        "plans": [plan_values(each, seconds) for each in plans],
        "memory": [_memory(each, plans[place * len(plans) // len(memory)]) for place, each in enumerate(memory)],
    }
    show(as_json, value, lambda: _print_plans(value))


def _priced(
    target: str, sets: list[str], costs: list[str], lengths: str | None
) -> tuple[RunConfig, Costs, dict[str, str], Lengths]:
    """The run to simulate, its costs, where those that nobody gave come from, and its lengths.

    Raises:
        InputError: no such recipe, file or run; no such cost or length.
    """
    from strop.lab.planning.costs import CONSTANTS, costs_of, default_lengths, measured, parse_lengths
    from strop.recipes.resolve import resolve
    from strop.run.folder import RunFolder, is_run

    run = RunFolder.open(target) if "/" in target and is_run(Path(target)) else None
    config = resolve(target if run is None else str(run.config_path), sets)
    limit = config.sampling.max_new_tokens
    constants, drawn = (CONSTANTS, default_lengths(limit)) if run is None else measured(run)
    seconds = costs_of({} if costs and run is None else constants).edited(costs)
    given = {pair.partition("=")[0].strip() for pair in costs}
    sources = {name: constants[name].source for name, value in seconds if value and name not in given}
    return config, seconds, sources, drawn if lengths is None else parse_lengths(lengths, limit)


def _fitting_splits(config: RunConfig, counts: str, gpu_gib: int, host_gib: int) -> list[MemoryPlan]:
    """The splits of each number of GPUs that fit.

    Raises:
        InputError: no numbers, or the model fits in no way.
    """
    from strop.base.machine import GIB
    from strop.base.types import InputError
    from strop.lab.planning.costs import splits
    from strop.run.memory import Room

    room = Room(gpu_gib * GIB, host_gib * GIB)
    found = [each for count in numbers("--gpus", counts, "8,32", 2) for each in splits(config, count, room)]
    if not found:
        raise InputError(
            f"--gpus {counts}: in no split does the run fit into {gpu_gib} GiB a GPU and {host_gib} GiB a host; take "
            "more GPUs, engine=Vllm, or adapters (model.lora.rank=32)"
        )
    return found


def _memory(split: MemoryPlan, plan: Simulation) -> dict[str, Any]:
    from strop.run.devices import width_of

    shape = split.config.orchestration
    gpus = shape.generators * width_of(split.config) + shape.trainers
    return {
        "tokens_per_second_a_gpu": plan.tokens_per_second / gpus,
        "generators": shape.generators, "trainers": shape.trainers, "tensor_parallel": width_of(split.config),
        "found": split.finding.found,
    }  # fmt: skip


def _print_plans(value: dict[str, Any]) -> None:
    from strop.base.text import number

    print("costs in seconds:")
    for name, seconds in value["costs"].items():
        if seconds:
            print(f"  {name}={number(seconds)} ({value['sources'].get(name, 'as given')})")
    print(f"lengths: {value['lengths']}")
    print_table(COLUMNS, [_row(row) for row in value["plans"]], right={*COLUMNS} - {"", "split"})
    for split in value["memory"]:
        wide = f", {split['tensor_parallel']} GPUs each" if split["tensor_parallel"] > 1 else ""
        speed = f"{number(split['tokens_per_second_a_gpu'])} tokens/s a GPU"
        print(f"{split['generators']} + {split['trainers']}{wide}: {speed}; {split['found']}")
    print("split: generators + trainers; s/update: seconds an optimizer update; idle: shares")
    print("bound: seconds an update that no schedule beats on these completions")
    print("behind: updates between the weights that sampled a token and the update that it is trained in, on average")


COLUMNS = ("", "split", "s/update", "bound", "idle gen", "idle train", "tokens/s", "behind")


def _row(row: dict[str, Any]) -> list[str]:
    from strop.base.text import number

    setup = row["setup"]
    return [
        row["name"],
        "shared" if setup["colocated"] else f"{setup['generators']} + {setup['trainers']}",
        number(row["seconds_per_update"]),
        number(row["bound_seconds_per_update"]),
        f"{row['generators_idle']:.0%}",
        f"{row['trainer_idle']:.0%}",
        number(row["tokens_per_second"]),
        f"{row['updates_behind']:.2f}",
    ]


@plan_app.command("power", short_help="How many seeds decide a difference.")
def power(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[ABLATION]", help="A finished ablation.", show_default=False)
    ] = None,
    deviation: Annotated[
        float | None,
        typer.Option(help="Standard deviation of the difference over seeds, if known.", min=0, max=1),
    ] = None,
    difference: Annotated[
        float | None, typer.Option(help="The difference to be seen; by default twice the margin.", min=0, max=1)
    ] = None,
    margin: Annotated[float, typer.Option(help="That of the verdicts, as in strop ablate.", min=0, max=1)] = 0.02,
    level: Annotated[float, typer.Option(help="That of the verdicts, as in strop ablate.", min=0.5, max=0.999)] = 0.95,
    as_json: Json = False,
) -> None:
    """How many paired seeds decide a difference in pass rate with a probability of 80 %.

    The deviation of the difference over seeds is that of each variant of an ABLATION, after every evaluated step, and
    it counts how uncertain so few seeds leave it; or it is given. Two numbers come out: seeds for one verdict at the
    end, and the most seeds to allow with `strop ablate --until-decided`, with those it takes in the mean.

    \b
    strop plan power --deviation 0.03
    strop plan power runs/ablate-scalerl --difference 0.05
    """
    from statistics import stdev

    from strop.base.types import InputError
    from strop.lab.ablation.collect import pairs_by_step
    from strop.lab.ablation.power import needed

    wanted = 2 * margin if difference is None else difference
    if (folder is None) == (deviation is None):
        raise InputError("strop plan power takes a finished ABLATION or --deviation 0.03, one of them")
    if wanted <= margin:
        raise InputError(f"--difference {wanted:g} does not exceed --margin {margin:g}, so no seeds decide it")
    rows: list[dict[str, Any]] = []
    if deviation is not None:
        rows.append({"variant": "", "step": None, **needed(wanted, deviation, None, margin, level)._asdict()})
    else:
        assert folder is not None
        with waiting("simulating"):
            for variant, steps in pairs_by_step(folder).items():
                for step, pairs in sorted(steps.items()):
                    if len(pairs) > 1:
                        found = needed(wanted, stdev(pairs), len(pairs), margin, level)
                        rows.append({"variant": variant, "step": step, **found._asdict()})
        if not rows:
            raise InputError(f"{folder}: no variant has two finished seeds, of which to tell the deviation")
    show(as_json, rows, lambda: _print_power(rows, wanted, margin))


def _print_power(rows: list[dict[str, Any]], difference: float, margin: float) -> None:
    from strop.lab.ablation.power import MOST

    columns = ("variant", "step", "pairs", "deviation", "seeds", "until decided", "training steps")
    cells = []
    for row in rows:
        once, most, step = row["once"], row["until_decided"], row["step"]
        until = "" if most is None else f"{row['mean']:.0f}, at most {most}"
        spent = "" if step is None or once is None else f"{2 * step * once:,}"
        own = (row["variant"], str(step or ""), str(row["pairs"] or ""), f"{100 * row['deviation']:.1f}")
        cells.append((*own, str(once or f"> {MOST}"), until or f"> {MOST}", spent))
    kept = [place for place in range(len(columns)) if any(row[place] for row in cells)]
    print_table([columns[place] for place in kept], [[row[place] for place in kept] for row in cells])
    print(
        f"Seeds that call a difference of {100 * difference:g} points better (margin {100 * margin:g}) with a "
        "probability of 80 %. until decided: in the mean, and N of strop ablate --until-decided N."
    )


@plan_app.command("allocate", short_help="How many samples per prompt suit a budget.")
def allocate(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="N=PATH...", help="Runs or CSV files by their samples per prompt, with any seeds."),
    ],
    budgets: Annotated[
        str, typer.Option("--budget", metavar="C1,C2", help="Budgets in the unit of --x; by default nine.")
    ] = "",
    x: Over = "tokens",
    as_json: Json = False,
) -> None:
    """Which number of samples per prompt is best at each budget (IsoCompute, arXiv 2603.12151).

    The runs differ only in samples per prompt. Each gets its curve, as by strop fit; the highest curve at a budget is
    the best, and bootstrap samples say how surely. The scatter of seeds is in them where an N has several runs. The
    steps are what the budget leaves. No curve is extrapolated.

    \b
    strop plan allocate 8=runs/a 32=runs/b 128=runs/c
    strop plan allocate 8=a.csv 32=b.csv --budget 1e6,1e7
    """
    from dataclasses import asdict

    from strop.base.text import number
    from strop.lab.scaling import study
    from strop.lab.scaling.compare import allocate as best_at
    from strop.lab.scaling.curves import PASS_RATE, read_sources
    from strop.lab.scaling.fitting import FitSettings

    recipes = read_sources(sources, x, None, PASS_RATE)
    with waiting("fitting"):
        found = best_at(recipes, FitSettings(), study.computes("--budget", budgets))

    def printed() -> None:
        print_table(
            (x.replace("_", "-"), "best n", "in samples", "next", "pass rate"),
            [(number(b.compute), str(b.n), f"{b.sure:.0%}", str(b.next_best or ""), f"{b.pass_rate:.3f}")
             for b in found.best],
        )  # fmt: skip
        print(found.verdict + ".")
        for name, reason in refused.items():
            print(f"{name}: left out, {reason}")

    refused = {each.name: each.refused for fits in found.fits.values() for each in fits if each.refused is not None}
    value = {"best": [asdict(each) for each in found.best], "verdict": found.verdict, "refused": refused}
    show(as_json, value, printed)
