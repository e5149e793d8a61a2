"""The commands, in the order in which a new user meets them."""

from __future__ import annotations

from typing import Annotated

import typer

from strop.cli import (
    data_commands,
    eval_commands,
    inspect_commands,
    lab_commands,
    model_commands,
    run_commands,
    runs_commands,
    verify_commands,
)

app = typer.Typer(
    name="strop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the plain help keeps paragraphs and examples as they are written, and is quicker
    help="""Reinforcement learning from verifiable rewards for reasoning models.

    Begin with `strop quickstart`: it makes a small model, teaches it to imitate, then lets it find out by
    reinforcement learning what works, in minutes and on any machine.

    \b
    strop quickstart                                   see it work
    strop recipes                                      what can be trained
    strop recipes show grpo                            every setting of one
    strop train grpo --tiny --set optim.lr=2e-4        train, with a setting changed
    strop train --resume runs/grpo-tiny                go on after an interruption
    strop eval runs/grpo-tiny                          measure the result
    strop verify math cases.jsonl --out out.jsonl      judge answers without a model
    strop doctor                                       what this machine has and lacks
    strop smoke                                        whether training works on it

    Every command explains itself: strop train --help.
    """,
)

app.command("quickstart", short_help="Watch a small model learn to reason, from nothing.")(run_commands.quickstart)
app.command("train", short_help="Train by reinforcement learning.")(run_commands.train)
app.command("sft", short_help="Fine-tune a model on demonstrations.")(run_commands.sft)
app.command("eval", short_help="Measure models on held-out problems or benchmarks.")(eval_commands.evaluate)
app.command("compare", short_help="Table, comparison and pictures of kept evaluations.")(eval_commands.compare)
app.command("sample", short_help="Let a model answer a prompt or some problems.")(model_commands.sample)
app.add_typer(inspect_commands.recipes_app, name="recipes", short_help="List what can be trained, or show it.")
app.command("settings", short_help="Print every setting, or those of a part.")(inspect_commands.settings)
app.add_typer(verify_commands.verify_app, name="verify", short_help="Run verifiers over files of cases.")
verify_commands.verify_app.command("code", short_help="Judge programs by their tests, in the sandbox.")(
    verify_commands.code
)
app.add_typer(verify_commands.env_app, name="env", short_help="Check an environment of several turns.")
app.add_typer(data_commands.data_app, name="data", short_help="Prepare problems for training, and look at them.")
app.command("plot", short_help="Draw the curves of a run as a PNG.")(inspect_commands.plot)
app.command("fit", short_help="Fit compute-performance curves, predict, compare recipes.")(lab_commands.fit)
app.command("ablate", short_help="Run variants of a recipe with paired seeds.")(lab_commands.ablate)
app.command("report", short_help="Write one HTML page on a run, or on several compared.")(runs_commands.report)
app.command("serve", short_help="Serve a model at an OpenAI-compatible endpoint.")(model_commands.serve)
app.command("status", short_help="Say what a run is doing, from its folder.")(runs_commands.status)
app.command("dashboard", short_help="Follow runs in a browser.")(runs_commands.dashboard)
app.add_typer(runs_commands.runs_app, name="runs", short_help="List and compare runs.")
app.command("plan", short_help="Simulate a run: step time, idle shares, best split of devices.")(lab_commands.plan)
app.command("export", short_help="Write a checkpoint as a Hugging Face folder.")(model_commands.export)
app.command("doctor", short_help="Say what this machine has and lacks.")(inspect_commands.doctor)
app.command("smoke", short_help="Try what training here rests on: pass or fail.")(inspect_commands.smoke)


@app.callback(invoke_without_command=True)
def root(
    allowed: Annotated[
        list[str],
        typer.Option(
            "--allow",
            metavar="KEY",
            help="A setting that runs code and that a file or run folder may have, such as engine.python; may be "
            "repeated. A --set of it says the same.",
            show_default=False,
        ),
    ] = [],  # noqa: B006  (typer copies it)
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Options of strop itself."""
    if allowed:
        from strop.base.imports import allow_settings

        allow_settings(allowed)
    if version:
        from strop import __version__

        print(__version__)
        raise typer.Exit
