"""Commands on a finished model: sample, export, serve."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strop.cli.options import (
    Checkpoint,
    Imports,
    Json,
    Model,
    Recipe,
    Sets,
    allow,
    print_json,
    viewing,
)

if TYPE_CHECKING:
    from strop.run.models import NamedModel


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
    imports: Imports = [],  # noqa: B006
) -> None:
    """Write a checkpoint as a Hugging Face folder, which transformers and other engines load.

    \b
    strop export runs/first
    strop export runs/first@40 --out my-model
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

    written = export_checkpoint(folder.path, out, taken, adapter)
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
    recipe: Recipe = None,
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
        view.note(f"loading {named.label}")
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
