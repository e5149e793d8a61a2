"""strop plan: how long a step will take, who will stand idle, and how to split the devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from strop.cli.options import Imports, Json, Sets, allow, bar, print_table, show


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
        str | None, typer.Option(metavar="k=0,1,4,8", help="Lags to lay side by side, with PPO-off-policy-k.")
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
    placement: Annotated[
        str | None, typer.Option(metavar="GPUS", help="Say who gets which GPU of hosts with so many: 8, or 8,8.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(metavar="GIB", help="Say what training needs of a GPU with so much memory.", min=1)
    ] = None,
    figure: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it as a PNG.")] = None,
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Simulate a run by discrete events: step time, idle shares, and the best split of the devices.

    Without --cost and --lengths it takes those of a 7B model on H800s, calibrated on published times, and says so.
    Costs are seconds: a decode step takes decode_step + decode_sequence × (running sequences) + decode_context ×
    (their tokens); an update takes train_update + train_token × tokens / trainers; publish, swap, verdict,
    record_step and others are listed by a wrong --cost. `bound` is what no schedule of these completions beats. Without
    --devices, --generators and --trainers the run is planned in one process, which generates and trains in turn.

    \b
    strop plan scalerl --devices 64 --compare k=0,1,4,8
    strop plan --from runs/grpo
    strop plan --from runs/grpo --set batch.prompts_per_step=64 --max-lag 4 --devices 8
    strop plan scalerl --placement 8,8 --set engine=Vllm --set engine.tensor_parallel=2 \\
        --set orchestration.executor=ray --set orchestration.generators=5 --set orchestration.trainers=4
    strop plan grpo --memory 80 --set model.path=Qwen/Qwen3-0.6B
    strop plan scalerl --devices 80 --compare k=0,1,4,8 --lengths lognormal:7000,0.6 --plot plan.png \\
        --cost decode_step=0.0102 --cost decode_sequence=0.00069 --cost train_token=9.5e-5 --cost train_update=4.8
    """
    if memory is not None:
        allow(imports, sets)
        return _remember(target, sets, memory, as_json)
    if placement is not None:
        allow(imports)
        return _place(target, sets, placement, as_json)
    from strop.lab.planning.question import Question, answer, parse_lags
    from strop.lab.planning.question import as_json as plain_values

    allow(imports, sets)
    changes = {
        "generators": generators, "trainers": trainers, "slots": slots, "max_lag": max_lag,
        "prompt_tokens": prompt_tokens, "drop": drop, "devices_per_generator": per_generator,
    }  # fmt: skip
    question = Question.of(target, measured, sets, costs, lengths).reshaped(changes)
    lags = None if compare is None else parse_lags(compare)
    with bar("planning") as tell:
        plans = answer(question, lags, devices, steps, seed, lambda what: tell(what=f"planning {what}"))
    value = plain_values(question, plans)
    show(as_json, value, lambda: _print(value))
    if figure is not None:
        from strop.report.figures.planning import plot_plans

        plot_plans(plans, [row["bound_seconds_per_update"] for row in value["plans"]], figure)


def _place(target: str | None, sets: list[str], gpus: str, as_json: bool) -> None:
    """Print which GPUs each process of a run would be given on hosts with so many."""
    from strop.base.types import InputError
    from strop.recipes.resolve import resolve
    from strop.run.devices import placement_of

    counts = gpus.split(",")
    if target is None or not all(count.strip().isdecimal() for count in counts):
        raise InputError(f"--placement {gpus}: give a recipe or a file, and the GPUs of each host, such as 8 or 8,8")
    found = placement_of(resolve(target, sets), [int(count) for count in counts])
    rows = [
        (one.role, str(one.host), ", ".join(map(str, one.gpus)) or "none", "shared" if one.shared else "")
        for one in found.shares
    ]
    show(as_json, found.as_json(), lambda: print_table(("process", "host", "GPUs", ""), rows))


def _remember(target: str | None, sets: list[str], gib: float, as_json: bool) -> None:
    """Print how much of a GPU's memory training needs, found without loading the model."""
    from strop.base.machine import GIB
    from strop.base.types import InputError
    from strop.recipes.resolve import resolve
    from strop.run.memory import fitting, need_of
    from strop.run.preflight import named

    if target is None:
        raise InputError(f"--memory {gib:g}: give a recipe or a file whose model is looked at")
    config = resolve(target, sets)
    named(config)
    room = int(gib * GIB)
    line = fitting(config, "cuda", room)
    show(as_json, {"room_bytes": room, "needed_bytes": need_of(config, "cuda", room)}, lambda: print(line))


def _print(value: dict[str, Any]) -> None:
    from strop.base.view import number, percent
    from strop.lab.planning.costs import DEFAULTS_ARE

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
    print_table(COLUMNS, [_row(row) for row in value["plans"]], right={*COLUMNS} - {"", "split", "set by"})
    print("split: generators + trainers; s/update: seconds an optimizer update; p50, p95: seconds a step; idle: shares")
    print("bound: seconds an update that no schedule beats on these completions, and what sets it")
    print("behind: updates between the weights that sampled a token and the update that it is trained in, on average")


COLUMNS = ("", "split", "s/update", "bound", "set by", "p50", "p95", "idle gen", "idle train", "tokens/s", "behind")


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
        f"{row['updates_behind']:.2f}",
    ]
