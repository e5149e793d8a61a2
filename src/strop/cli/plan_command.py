"""strop plan: how long a step will take, who will stand idle, and how to split the devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strop.cli.options import Imports, Json, Sets, allow, show

if TYPE_CHECKING:
    from strop.lab.planning import Costs, Lengths, Setup, Simulation
    from strop.lab.planning.measure import Measured


def plan(
    target: Annotated[
        str | None, typer.Argument(metavar="RECIPE|FILE", help="What would be trained; with --from it is that run.")
    ] = None,
    measured: Annotated[
        list[Path],
        typer.Option("--from", metavar="RUN", help="Measure costs and lengths from a run folder; may be repeated."),
    ] = [],  # noqa: B006  (typer copies it)
    sets: Sets = [],  # noqa: B006
    devices: Annotated[int | None, typer.Option(help="Find the best split of so many devices.", min=2)] = None,
    generators: Annotated[int | None, typer.Option(help="Engines that generate.", min=1)] = None,
    trainers: Annotated[int | None, typer.Option(help="Ranks that train.", min=1)] = None,
    per_generator: Annotated[int, typer.Option("--devices-per-generator", help="Devices of one engine.", min=1)] = 1,
    slots: Annotated[int | None, typer.Option(help="Sequences an engine runs at once.", min=1)] = None,
    max_lag: Annotated[int | None, typer.Option(help="k of PipelineRL-k, instead of the recipe's.", min=0)] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="k=0,1,4,8", help="Lags to lay beside each other, with PPO-off-policy-k.")
    ] = None,
    costs: Annotated[
        list[str],
        typer.Option("--cost", metavar="NAME=SECONDS", help="A cost, such as decode_step=0.01; may be repeated."),
    ] = [],  # noqa: B006
    lengths: Annotated[
        str | None,
        typer.Option(metavar="LENGTHS", help="constant:TOKENS, lognormal:MEDIAN,SIGMA, +0.05x30 for stragglers."),
    ] = None,
    prompt_tokens: Annotated[float | None, typer.Option(help="Mean tokens of a prompt.", min=0)] = None,
    drop: Annotated[float | None, typer.Option(help="Share of groups that selection drops.", min=0, max=0.99)] = None,
    steps: Annotated[int, typer.Option(help="Steps to simulate.", min=1)] = 40,
    seed: Annotated[int, typer.Option(help="Of the lengths drawn.", min=0)] = 0,
    figure: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it as a PNG.")] = None,
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Simulate a run by discrete events: step time, idle shares, and the best split of the devices.

    Without --cost and --lengths it takes those of a 7B model on H800s, calibrated on published times, and says so.
    Costs are seconds: a decode step takes decode_step + decode_sequence × (running sequences) + decode_context ×
    (their tokens); an update takes train_update + train_token × tokens / trainers; publish, swap, verdict,
    record_step and others are listed by a wrong --cost. `bound` is what no schedule beats on average. Without
    --devices, --generators and --trainers the run is planned in one process, which generates and trains in turn.

    \b
    strop plan scalerl --devices 64 --compare k=0,1,4,8
    strop plan --from runs/grpo
    strop plan --from runs/grpo --set batch.prompts_per_step=64 --max-lag 4 --devices 8
    strop plan scalerl --devices 80 --compare k=0,1,4,8 --lengths lognormal:7000,0.6 --plot plan.png \\
        --cost decode_step=0.0102 --cost decode_sequence=0.00069 --cost train_token=9.5e-5 --cost train_update=4.8
    """
    from strop.lab.planning.search import alternatives

    allow(imports)
    setup, known, drawn, found = _inputs(target, measured, sets, costs, lengths)
    assumed = [] if found is not None else [n for n, given in (("costs", costs), ("lengths", lengths)) if not given]
    setup = _shape(setup, generators, trainers, per_generator, slots, max_lag, prompt_tokens, drop)
    setups = [setup] if compare is None else alternatives(setup, _lags(compare))
    split = None if generators is not None or trainers is not None else devices
    plans = _simulate(setups, known, drawn, split, steps, seed)
    value = _value(plans, known, drawn, found, seed) | {"defaults": assumed}
    show(as_json, value, lambda: _print(value))
    if figure is not None:
        from strop.report.figures.planning import plot_plans

        plot_plans(plans, [row["bound_seconds_per_update"] for row in value["plans"]], figure)


def _inputs(
    target: str | None, runs: list[Path], sets: list[str], costs: list[str], lengths: str | None
) -> tuple[Setup, Costs, Lengths, Measured | None]:
    """What is planned, from a recipe and options, or from runs that were measured."""
    from dataclasses import replace

    from strop.base.types import InputError
    from strop.config.parse import edit
    from strop.lab.planning import Costs
    from strop.lab.planning.lengths import parse_lengths
    from strop.lab.planning.measure import measure
    from strop.lab.planning.published import default_lengths, scalerl_costs
    from strop.lab.planning.setup import setup_of
    from strop.recipes.resolve import resolve
    from strop.run.folder import RunFolder

    if (target is None) == (not runs):
        raise InputError("name what to plan: a recipe or file, or --from RUN")
    if runs:
        found = measure([RunFolder.open(run) for run in runs])
        config = edit(found.config, sets) if sets else found.config
        setup = replace(setup_of(config), drop=found.setup.drop, prompt_tokens=found.setup.prompt_tokens)
        limit = config.sampling.max_new_tokens
        drawn: Lengths = found.lengths.cut(limit) if lengths is None else parse_lengths(lengths, limit)
        return setup, found.costs.edited(costs), drawn, found
    assert target is not None
    config = resolve(target, sets)
    limit = config.sampling.max_new_tokens
    chosen = Costs().edited(costs) if costs else scalerl_costs()
    drawn = default_lengths(limit) if lengths is None else parse_lengths(lengths, limit)
    return setup_of(config), chosen, drawn, None


def _shape(
    setup: Setup, generators: int | None, trainers: int | None, per_generator: int, slots: int | None,
    max_lag: int | None, prompt_tokens: float | None, drop: float | None,
) -> Setup:  # fmt: skip
    from dataclasses import replace

    changes: dict[str, Any] = {
        "generators": generators, "trainers": trainers, "slots": slots, "max_lag": max_lag,
        "prompt_tokens": prompt_tokens, "drop": drop,
    }  # fmt: skip
    changes = {name: value for name, value in changes.items() if value is not None}
    if generators is not None or trainers is not None:
        changes["colocated"] = False
    return replace(setup, devices_per_generator=per_generator, **changes)


def _lags(text: str) -> list[int]:
    from strop.base.types import InputError

    try:
        lags = [int(part) for part in text.removeprefix("k=").split(",")]
    except ValueError:
        lags = []
    if not lags or min(lags) < 0:
        raise InputError(f"--compare {text}: write lags as k=0,1,4,8")
    return lags


def _simulate(
    setups: list[Setup], costs: Costs, lengths: Lengths, devices: int | None, steps: int, seed: int
) -> list[Simulation]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from strop.lab.planning import simulate
    from strop.lab.planning.search import best_split

    console = Console(stderr=True)
    columns = (TextColumn("planning"), BarColumn(), TextColumn("{task.description}"))
    found = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(setups))

        def tell(what: str) -> None:
            bar.update(task, description=what)

        for setup in setups:
            # As many updates of each: the batches of PPO-off-policy-k are k times as large.
            count = max(1, steps * setups[0].updates_per_step // setup.updates_per_step)
            tell(setup.name)
            if devices is None:
                found.append(simulate(setup, costs, lengths, count, seed))
            else:
                found.append(best_split(setup, costs, lengths, devices, count, seed, tell))
            bar.advance(task)
    return found


def _value(
    plans: list[Simulation], costs: Costs, lengths: Lengths, found: Measured | None, seed: int
) -> dict[str, Any]:
    from dataclasses import asdict

    from strop.lab.planning import pipeline_bound

    rows = []
    for plan in plans:
        bound = pipeline_bound(plan.setup, costs, lengths, seed=seed)
        updates = plan.setup.updates_per_step * plan.setup.passes_per_batch
        rows.append(
            {
                "name": plan.setup.name,
                "setup": asdict(plan.setup),
                "seconds_per_update": plan.update_seconds,
                "bound_seconds_per_update": bound.seconds / updates,
                "bound_by": bound.limit,
                "step_seconds": {
                    "mean": plan.mean, "p50": plan.quantile(0.5), "p95": plan.quantile(0.95), "total": plan.total,
                },
                "trainer_idle": plan.trainer_idle,
                "generators_idle": plan.generators_idle,
                "running_sequences": plan.running,
                "tokens_per_second": plan.tokens_per_second,
                "mean_lag": plan.mean_lag,
                "max_lag": plan.max_lag,
            }
        )  # fmt: skip
    value: dict[str, Any] = {"costs": costs.model_dump(), "plans": rows}
    if found is not None:
        value["measured"] = {
            "step_seconds": found.step_seconds,
            "fits": [asdict(fit) for fit in found.fits],
            "notes": list(found.notes),
        }
    return value


def _print(value: dict[str, Any]) -> None:
    from strop.base.view import number, percent
    from strop.lab.planning.published import DEFAULTS_ARE

    measured = value.get("measured")
    if measured is not None:
        fits = "; ".join(
            f"{fit['what']} ±{percent(fit['relative_error'])} (R² {fit['r_squared']:.2f})" for fit in measured["fits"]
        )
        print(f"measured: {number(measured['step_seconds'])} s a step; fits: {fits}")
        for note in measured["notes"]:
            print(f"note: {note}")
    known = ", ".join(f"{name}={number(seconds)}" for name, seconds in value["costs"].items() if seconds)
    print(f"costs in seconds: {known or 'none'}")
    if value["defaults"]:
        print(f"note: {' and '.join(value['defaults'])} are defaults, {DEFAULTS_ARE}")
    _table([_row(row) for row in value["plans"]])
    print("split: generators + trainers; s/update: seconds an optimizer update; p50, p95: seconds a step; idle: shares")
    print("bound: seconds an update that no schedule beats on average, and what sets it")


COLUMNS = ("", "split", "s/update", "bound", "set by", "p50", "p95", "idle gen", "train", "tokens/s", "lag")
WIDTH = 200  # wider than its widest: a cell that is cut says nothing


def _table(rows: list[list[str]]) -> None:
    """Eleven columns, which run over the edge of a narrow terminal rather than fold."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=True, justify="left" if name in ("", "split", "set by") else "right")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    console.print(table)


def _row(row: dict[str, Any]) -> list[str]:
    from strop.base.view import number

    setup, step = row["setup"], row["step_seconds"]
    return [
        row["name"],
        "shared" if setup["colocated"] else f"{setup['generators']} + {setup['trainers']}",
        number(row["seconds_per_update"]),
        number(row["bound_seconds_per_update"]),
        row["bound_by"],
        number(step["p50"]),
        number(step["p95"]),
        f"{row['generators_idle']:.0%}",
        f"{row['trainer_idle']:.0%}",
        number(row["tokens_per_second"]),
        f"{row['mean_lag']:.2f}",
    ]
