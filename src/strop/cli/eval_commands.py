"""Commands that measure: eval and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strop.cli.options import (
    Imports,
    Json,
    Plain,
    Recipe,
    Sets,
    allow,
    print_json,
    print_markdown,
    print_table,
    show,
    viewing,
)

if TYPE_CHECKING:
    from strop.run.models import NamedModel

Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        help="Run folders, model folders, hub names; NAME=MODEL names one, RUN@STEP and RUN@all take checkpoints.",
        show_default=False,
    ),
]
Benchmarks = Annotated[
    str | None,
    typer.Option(
        "--benchmark", metavar="NAME,…", help="What to measure on: names of --list, held_out, or files of problems."
    ),
]
ProtocolName = Annotated[
    str | None, typer.Option("--protocol", metavar="NAME", help="Measure as a paper does; see strop eval --list.")
]
EvalOut = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="Where samples and report are kept; the same again goes on with it."),
]
Samples = Annotated[
    int | None, typer.Option(metavar="N", help="Completions of each problem; by default 4, or the protocol's.", min=1)
]
Limit = Annotated[int | None, typer.Option(help="The first so many problems only.", min=1)]
EndpointUrl = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        help="Ask models behind an OpenAI-compatible endpoint (http://HOST:PORT/v1); MODEL is a name there.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Of the samples; by default 0, or the run's on its problems.", min=0)]
List = Annotated[bool, typer.Option("--list", help="List benchmarks and protocols, and end.")]
Metrics = Annotated[
    str | None,
    typer.Option("--metric", metavar="NAME,…", help="Columns of the table: avg, pass, maj, pass@K, maj@K."),
]

RATES = ("pass_rate", "interval", "pass_at", "majority_rate", "unparsed_rate", "truncation_rate")
LABELS = {"interval": "95 % interval", "trained_on": "problems seen in training", "mean_length": "mean tokens"}
DEFAULT_SAMPLES = 4


def evaluate(
    models: Models = None,
    benchmark: Benchmarks = None,
    protocol: ProtocolName = None,
    recipe: Recipe = None,
    sets: Sets = [],  # noqa: B006  (typer copies it)
    samples: Samples = None,
    limit: Limit = None,
    seed: Seed = None,
    out: EvalOut = None,
    endpoint: EndpointUrl = None,
    metric: Metrics = None,
    imports: Imports = [],  # noqa: B006
    show_list: List = False,
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Measure models on problems with checkable answers: the problems a run held out, or benchmarks.

    A run is measured on the problems it held out, unless --set data.source names others. With --benchmark, --protocol
    or --out, several models are measured on the same terms, by default on what the first run held out; every sample is
    kept, and the same command goes on after an interruption. --set changes sampling, template and verifier. Progress
    goes to standard error, so that --json leaves standard output to the result.

    \b
    strop eval runs/quickstart
    strop eval runs/first --set data.source=test.jsonl --samples 8
    strop eval Qwen/Qwen3-0.6B --set data.source=reasoning-gym:chain_sum --limit 200 --json
    strop eval base=Qwen/Qwen3-0.6B runs/first --benchmark aime24,math500 --protocol skywork --out evals/first
    strop eval runs/first@all --benchmark math500 --samples 4 --out evals/steps
    strop eval Qwen/Qwen3-0.6B --benchmark exam.jsonl --set @few-shot.toml --set sampling.temperature=0
    strop eval Qwen/Qwen3-8B --endpoint http://127.0.0.1:8000/v1 --benchmark math500
    strop eval --list
    """
    if show_list:
        _list(as_json)
        return
    from strop.base.types import InputError
    from strop.run.folder import free_folder

    allow(imports, sets)
    if not models:
        raise InputError("name what to measure: a run folder, a model folder or a hub name (see strop eval --help)")
    from strop.run.models import parse_models, usable

    named = parse_models(models)
    if len(named) == 1 and (benchmark, protocol, out, endpoint, metric) == (None,) * 5:
        _on_own_problems(named[0], limit, recipe, sets, samples, seed, plain, as_json)
        return
    from strop.evaluation import protocols
    from strop.evaluation.benchmarks import HELD_OUT, benchmarks_named
    from strop.report.evaluation_report import write_report

    if recipe is not None or any(text.strip().startswith("data.source") for text in sets):
        raise InputError(
            "--recipe and data.source are for one model without --out; otherwise name problems by --benchmark (a file "
            "too), and settings by --set @FILE"
        )
    base = protocols.protocol(protocol)
    measured = benchmarks_named(_parts(benchmark) or base.benchmarks or (HELD_OUT,))
    chosen = protocols.changed(base, samples, _parts(metric))
    if endpoint is None:
        for model in named:
            usable(model, sets=sets)
    from strop.run.measuring import BenchmarkPlan, measure

    folder = out if out is not None else free_folder("eval")
    plan = BenchmarkPlan(named, measured, chosen, folder, limit, seed or 0, tuple(sets), endpoint)
    stopped = f"stopped; what was sampled is kept, go on with the same command and --out {folder}"
    with viewing(plain, f"strop · eval · {folder}", stopped, to_stderr=True) as view:
        grid = measure(plan, view)
    _finish(write_report(grid, folder, chosen.metrics), folder, as_json)


Baseline = Annotated[
    str | None, typer.Option(metavar="MODEL", help="What the others are compared with; by default the first.")
]

def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER…", help="Folders that strop eval --out wrote.")],
    metric: Metrics = None,
    baseline: Baseline = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write; by default the first folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Table, paired comparison, best model and pictures of kept evaluations, from their files.

    Several folders are put together. Pictures: avg@N against the response budget, transfer between domains, and pass
    rates problem by problem against the baseline.

    \b
    strop compare evals/first
    strop compare evals/base evals/ours --baseline base --metric avg,pass@8
    strop compare evals/steps
    """
    from strop.evaluation.grid import load_grid
    from strop.report.evaluation_report import write_report

    grid = load_grid(folders)
    target = folders[0] if out is None else out
    value = write_report(grid, target, _parts(metric) or ("avg",), baseline)
    _finish(value, target, as_json)


def _on_own_problems(
    named: NamedModel, limit: int | None, recipe: str | None, sets: list[str], samples: int | None, seed: int | None,
    plain: bool, as_json: bool,
) -> None:  # fmt: skip
    """One model on the problems that its run held out, or on those of the source that its configuration names."""
    from strop.run.models import refuse_without_problems, usable

    setup = usable(named, recipe, sets, limit=limit, reads_problems=True)
    refuse_without_problems(named, recipe, sets)
    from strop.run.measuring import evaluate_model

    count = DEFAULT_SAMPLES if samples is None else samples
    with viewing(plain, f"strop · eval · {named.label}", "stopped; nothing was measured", to_stderr=True) as view:
        found = evaluate_model(setup, count, view, named, seed)
    shown = {LABELS.get(name, name.replace("_", " ")): (name, value) for name, value in found.items()}
    rows = [(label, _readable(*of)) for label, of in shown.items() if of[0] != "weight_version"]
    show(as_json, found, lambda: print_table(("", named.label), rows))


def _finish(value: dict[str, Any], folder: Path, as_json: bool) -> None:
    if as_json:
        print_json(value)
        return
    from strop.report.evaluation_report import REPORT

    print_markdown((folder / REPORT).read_text("utf-8"))
    print(f"report   {folder / REPORT}")
    for path in value["pictures"]:
        print(f"picture  {path}")
    print(f"samples  {folder}")


def _list(as_json: bool) -> None:
    from strop.evaluation.benchmarks import CATALOGUE, FORMS, benchmark
    from strop.evaluation.protocols import PROTOCOLS

    known = [(found.name, found.title, found.kind, "" if found.hub is None else found.hub.dataset)
             for found in CATALOGUE.values()]  # fmt: skip
    value = {
        "benchmarks": [dict(zip(("name", "title", "kind", "hub"), row, strict=True)) for row in known],
        "protocols": [found.model_dump(mode="json") for found in PROTOCOLS.values()],
    }

    def lines() -> None:
        print_table(("benchmark", "in tables", "kind", "on the hub"), [*known, *((form, "", "", "") for form in FORMS)])
        for found in PROTOCOLS.values():
            print(f"--protocol {found.name}\n  {found.paper}")
            counts = ", ".join(f"{name} {found.samples_of(benchmark(name))}" for name in found.benchmarks)
            sampling = f"temperature {found.temperature:g}, top-p {found.top_p:g}, {found.budget} tokens"
            print(f"  {sampling}; samples: {counts}")
            if found.unstated:
                print(f"  not stated, ours: {found.unstated}")

    show(as_json, value, lines)


def _parts(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def _readable(name: str, value: object) -> str:
    """A value of the report for people: rates as percentages."""
    if value is None:
        return "not known"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_readable(name, entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return " to ".join(_readable(name, entry) for entry in value)
    if not isinstance(value, float):
        return str(value)
    return f"{100 * value:.1f}%" if name in RATES else f"{value:.4g}"
