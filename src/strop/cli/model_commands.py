"""Commands on a finished model: sample, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from strop.cli.options import (
    Checkpoint,
    Imports,
    Json,
    Model,
    Recipe,
    Sets,
    Source,
    SourcePath,
    allow,
    print_json,
    viewing,
)  # fmt: skip


def sample(
    model: Model,
    prompt: Annotated[str | None, typer.Option(help="What to ask.")] = None,
    source: Source = None,
    path: SourcePath = None,
    count: Annotated[int, typer.Option("--n", "-n", "--samples", help="Completions of each prompt.", min=1)] = 1,
    limit: Annotated[int, typer.Option(help="Problems of --source to ask.", min=1)] = 4,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; by default the run's own.", min=0)] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="By default the run's own.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.", min=0)] = 0,
    recipe: Recipe = None,
    sets: Sets = [],  # noqa: B006
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Let a model answer a prompt, or some problems of a source, and judge the answers where there is a reference.

    \b
    strop sample runs/quickstart --prompt '3+5-2='
    strop sample runs/first --source gsm8k --path test.jsonl --n 4
    strop sample Qwen/Qwen3-0.6B --prompt 'What is 17 * 23?' --max-new-tokens 200
    """
    from strop.base.types import InputError

    if (prompt is None) == (source is None):
        raise InputError("say what to ask: --prompt TEXT, or --source SOURCE for problems of a source")
    from strop.run import preflight

    allow(imports, sets)
    preflight.using(model, recipe, sets, source, path)  # says what is wrong before torch takes its seconds to load
    from strop.run import tasks
    from strop.run.benchmark_plan import parse_model

    named = parse_model(model)
    asked = tasks.configure(named.place, recipe, sets, source, path, limit, named.step)
    prompts = None if prompt is None else [prompt]
    with viewing(True, "strop · sample", "stopped", to_stderr=True) as view:
        answers = tasks.sample_model(asked, prompts, count, temperature, max_new_tokens, seed, view, named.stored)
    if as_json:
        print_json(answers)
        return
    for answer in answers:
        verdict = "" if answer["status"] is None else f" · {answer['status']}, the answer is {answer['reference']}"
        print(f"── {answer['prompt']}")
        print(answer["completion"])
        print(f"   {answer['tokens']} tokens, ended by {answer['finish_reason']}{verdict}\n")


def export(
    run: Checkpoint,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write; by default RUN/model.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="The checkpoint to export; by default the newest one.", min=0)
    ] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="LoRA's adapters alone, for peft; by default merged. To RUN/adapter.")
    ] = False,
    imports: Imports = [],  # noqa: B006
) -> None:
    """Write a checkpoint as a Hugging Face folder, which transformers and other engines load.

    \b
    strop export runs/first
    strop export runs/first@40 --out my-model
    strop export runs/first --adapter
    """
    from strop.base.types import InputError
    from strop.run import preflight
    from strop.run.folder import RunFolder

    allow(imports)
    place, _, named = (run, "", "") if Path(run).exists() else run.rpartition("@")
    if place and named and step is not None:
        raise InputError(f"{run} names a checkpoint, and --step {step} too; leave one out")
    folder = RunFolder.open(place or run)
    preflight.checkpoint(folder, named or step)
    taken = int(named) if named else folder.checkpoint_steps()[-1] if step is None else step
    from strop.model.location import asks_plainly
    from strop.run import tasks

    written = tasks.export_checkpoint(folder.path, out, taken, adapter)
    print(f"step {taken} of {folder.path}:", file=sys.stderr)
    if out is not None and asks_plainly(folder.path):
        print("its prompts asked for no form of the answer; use it with data.template.instruct=false", file=sys.stderr)
    print(written)
