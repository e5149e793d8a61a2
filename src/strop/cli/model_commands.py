"""Commands on models: eval, compare, sample, export, serve."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from strop.cli.options import (
    Checkpoint,
    Imports,
    Json,
    Model,
    Plain,
    Recipe,
    Sets,
    allow,
    print_json,
    print_markdown,
    print_table,
    recipe_option,
    show,
    viewing,
    waiting,
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

RATES = ("pass_rate", "interval", "pass_at", "majority_rate", "unparsed_rate", "undecided_rate", "truncation_rate")
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
    kept, and the same command goes on after an interruption. Sampling, template and verifier are those of --recipe, a
    recipe or the file of a run, else of the protocol; --set changes them. Progress goes to standard error, so that
    --json leaves standard output to the result.

    \b
    strop eval runs/quickstart
    strop eval runs/first --set data.source=test.jsonl --samples 8
    strop eval Qwen/Qwen3-0.6B --set data.source=reasoning-gym:chain_sum --limit 200 --json
    strop eval base=Qwen/Qwen3-0.6B runs/first --benchmark aime24,math500 --protocol skywork --out evals/first
    strop eval runs/first@all --benchmark math500 --samples 4 --out evals/steps
    strop eval Qwen/Qwen3-0.6B --benchmark exam.jsonl --recipe few-shot.toml --set sampling.temperature=0
    strop eval Qwen/Qwen3-8B --endpoint http://127.0.0.1:8000/v1 --benchmark math500
    strop eval --list
    """
    if show_list:
        _list(as_json)
        return
    from strop.base.types import InputError
    from strop.run.folder import free_folder
    from strop.run.models import parse_models, usable

    allow(imports, sets)
    if not models:
        raise InputError("name what to measure: a run folder, a model folder or a hub name (see strop eval --help)")
    named = parse_models(models)
    if len(named) == 1 and (benchmark, protocol, out, endpoint, metric) == (None,) * 5:
        _on_own_problems(named[0], limit, recipe, sets, samples, seed, plain, as_json)
        return
    from strop.evaluation import protocols
    from strop.evaluation.benchmarks import HELD_OUT, benchmarks_named
    from strop.report.evaluation_report import write_report

    if any(text.strip().startswith("data.source") for text in sets):
        raise InputError(
            "data.source is for one model without --out; else name problems by --benchmark (a file too, its columns by "
            "--set evaluation.benchmark_columns.prompt=COLUMN)"
        )
    base = protocols.protocol(protocol)
    measured = benchmarks_named(_parts(benchmark) or base.benchmarks or (HELD_OUT,))
    chosen = protocols.changed(base, samples, _parts(metric))
    protocols.refuse_few_samples(chosen, measured)
    for model in named if endpoint is None else ():
        usable(model, recipe, sets)
    from strop.lab.benchmarking import BenchmarkPlan, measure

    folder = out if out is not None else free_folder("eval")
    plan = BenchmarkPlan(named, measured, chosen, folder, limit, seed or 0, tuple(sets), endpoint, recipe)
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

    target = folders[0] if out is None else out
    with waiting("comparing"):
        value = write_report(load_grid(folders), target, _parts(metric) or ("avg",), baseline)
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


def sample(
    model: Model,
    prompt: Annotated[str | None, typer.Option(help="What to ask; by default the model's problems.")] = None,
    count: Annotated[int, typer.Option("--n", "-n", "--samples", help="Completions of each prompt.", min=1)] = 1,
    limit: Annotated[int, typer.Option(help="How many problems to ask.", min=1)] = 4,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; by default the run's.", min=0)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="By default the run's.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.", min=0)] = 0,
    recipe: Recipe = None,
    sets: Sets = [],  # noqa: B006
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Sample answers to a prompt or to problems, and verify them if there is a reference.

    Without --prompt the problems are those that the run held out, or those of --set data.source=….

    \b
    strop sample runs/quickstart --prompt '3+5-2='
    strop sample runs/first --limit 2 --n 4
    strop sample runs/first --set data.source=test.jsonl
    strop sample Qwen/Qwen3-0.6B --prompt 'What is 17 * 23?' --max-new-tokens 200
    """
    from strop.run.models import parse_model, refuse_without_problems, usable

    allow(imports, sets)
    named = parse_model(model)
    setup = usable(named, recipe, sets, limit, reads_problems=prompt is None)
    if prompt is None:
        refuse_without_problems(named, recipe, sets)
    from strop.run.answering import sample_model

    prompts = None if prompt is None else [prompt]
    with viewing(True, "strop · sample", "stopped", to_stderr=True) as view:
        answers = sample_model(setup, prompts, count, temperature, max_new_tokens, seed, view, named)
    if as_json:
        print_json(answers)
        return
    for answer in answers:
        verdict = "" if answer["status"] is None else f" · {answer['status']}, the answer is {answer['reference']}"
        print(f"── {answer['prompt']}")
        print(answer["completion"])
        print(f"   {answer['tokens']} tokens, ended by {answer['finish_reason']}{verdict}\n")


Written = Literal["float32", "bfloat16", "float16"]


def export(
    run: Checkpoint,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write; by default RUN/model.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="The checkpoint to export; by default the newest one.", min=0)
    ] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="only LoRA's adapters, for peft; by default merged. To RUN/adapter.")
    ] = False,
    dtype: Annotated[Written | None, typer.Option(help="Of the weights; by default as they were trained.")] = None,
    imports: Imports = [],  # noqa: B006
) -> None:
    """Write a checkpoint as a Hugging Face folder, which transformers and other engines load.

    \b
    strop export runs/first
    strop export runs/first@40 --out my-model
    strop export runs/first --out half --dtype bfloat16
    strop export runs/first --adapter
    """
    from strop.base.types import InputError
    from strop.run.folder import RunFolder
    from strop.run.models import export_checkpoint, stored_steps

    allow(imports)
    place, _, named = (run, "", "") if Path(run).exists() else run.rpartition("@")
    if place and named and step is not None:
        raise InputError(f"{run} names a checkpoint, and --step {step} too; leave one out")
    folder = RunFolder.open(place or run)
    known = stored_steps(folder, named or step)
    taken = int(named) if named else known[-1] if step is None else step
    from strop.model.location import asks_plainly

    with waiting(f"exporting step {taken}"):
        written = export_checkpoint(folder.path, out, taken, adapter, dtype)
    print(f"step {taken} of {folder.path}:", file=sys.stderr)
    if out is not None and asks_plainly(folder.path):
        print("its prompts asked for no form of the answer; use it with data.template.instruct=false", file=sys.stderr)
    print(written)


Served = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run folder, a model folder, a hub name or embedded; RUN@STEP takes a checkpoint, NAME=MODEL names it.",
        show_default=False,
    ),
]
Host = Annotated[str, typer.Option(help="The address to listen on; addresses that other machines reach require a key.")]
Port = Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)]
KeyEnv = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="NAME", help="The environment variable with the key that clients must send."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow other machines without a key.")]
Requests = Annotated[int, typer.Option(help="Requests open at once; further ones get 429.", min=1)]
Tokens = Annotated[
    int | None,
    typer.Option("--max-new-tokens", help="Of a completion; by default what the context has room for.", min=1),
]


def serve(
    model: Served,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key_env: KeyEnv = None,
    insecure: Insecure = False,
    max_requests: Requests = 256,
    max_new_tokens: Tokens = None,
    recipe: Annotated[str | None, recipe_option("engine and arguments of the chat template")] = None,
    sets: Sets = [],  # noqa: B006
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Serve a model at an OpenAI-compatible endpoint: /v1/models, /v1/completions, /v1/chat/completions.

    It listens on this machine only unless --host names another address. Ctrl-C lets open requests finish, a second one
    does not. --json prints the address and limits as one line of JSON once it listens. The name of a model for clients
    is the last part of its folder (`first` for runs/first) or its hub name; NAME=MODEL gives it another.

    \b
    strop serve runs/quickstart
    strop serve Qwen/Qwen3-0.6B --set model.dtype=bfloat16 --set engine.slots=128
    STROP_KEY=... strop serve ours=runs/first@40 --host 0.0.0.0 --api-key-env STROP_KEY
    strop serve embedded --port 0 --json
    """
    from strop.run.models import parse_model, usable

    key = None if api_key_env is None else _key(api_key_env)
    allow(imports, sets)
    named = parse_model(model)
    config = usable(named, recipe, sets).config  # before torch takes its seconds to load
    from strop.base.progress import CURRENT
    from strop.run.models import open_engine, open_model
    from strop.serving import ServeLimits
    from strop.serving.driver import ServedEngine
    from strop.serving.http import is_loopback, listen
    from strop.serving.server import ModelServer, Served

    limits = ServeLimits(requests=max_requests, new_tokens=max_new_tokens)
    with (
        viewing(True, "strop · serve", "stopped at once; open requests were cut off", to_stderr=True) as view,
        listen(host, port, key, insecure) as listening,  # a port that is taken is known before the model is loaded
    ):
        policy, tokenizer = open_model(config, view, named)
        engine = open_engine(config, policy, tokenizer, named)
        assert isinstance(engine, ServedEngine)
        arguments = getattr(config.data.template, "arguments", {})  # as in training; the messages are the clients' own
        local = key is None and is_loopback(host)
        served = Served(client_name(model, named), limits, key, local, arguments)
        server = ModelServer(engine, tokenizer, served, listening)
        facts = {
            "url": server.url, "model": served.model, "context": engine.capabilities.max_tokens,
            "slots": config.engine.slots, "weight_version": engine.weight_version, "key": key is not None,
            "limits": limits.model_dump(mode="json"),
        }  # fmt: skip
        text = f"{served.model} at {server.url}{' (requires the key)' if key else ''}; Ctrl-C ends it\n"
        text += f"{facts['context']} tokens of context, {facts['slots']} sequences at once, {max_requests} requests"
        print(json.dumps(facts) if as_json else text, flush=True)
        with CURRENT.quiet():
            server.run()
    print(f"stopped; {server.answered} requests were answered", file=sys.stderr)


def client_name(given: str, model: NamedModel) -> str:
    """The name of a model for clients: the one it was `given` (NAME=MODEL), else the last part of its folder.

    `RUN/model` is called after the run; a hub name stays whole.
    """
    from strop.run.folder import RunFolder, is_run

    folder = Path(os.path.abspath(Path(model.place).expanduser()))  # which ends in a name also for `.` and `..`
    if model.label not in (given, f"{model.place}@{model.step}") or not folder.is_dir():
        return model.label
    own = folder.parent if is_run(folder.parent) and folder == RunFolder(folder.parent).model else folder
    return own.name if model.step is None else f"{own.name}@{model.step}"


def _key(name: str) -> str:
    from strop.base.types import InputError

    key = os.environ.get(name, "")
    if not key or not key.isascii() or not key.isprintable():
        raise InputError(f"--api-key-env {name}: this variable is not set to a key of printable ASCII; export it first")
    return key
