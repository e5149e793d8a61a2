"""The command line: each command reads arguments, calls one function and prints the result.

Nothing heavy is imported until a command runs, so that `strop --help` answers at once.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import sys
from typing import Annotated, Any

import typer

from strop.base.progress import heartbeat
from strop.cli import (
    lab_commands,
    model_commands,
    plan_commands,
    run_commands,
    setup_commands,
)
from strop_verify.child_process import wait_politely

__all__ = ["app", "main"]

USAGE: Any = typer.BadParameter.__bases__[0]  # of every wrong option and argument; typer does not export it

app = typer.Typer(
    name="strop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the plain help keeps paragraphs and examples as they are written, and is quicker
    help="""Reinforcement learning from verifiable rewards for reasoning models.

    Begin with `strop quickstart`: it makes a small model, fine-tunes it on demonstrations, then trains it by
    reinforcement learning, in minutes and on any machine.

    \b
    strop quickstart                                   see it work
    strop recipes                                      what can be trained
    strop recipes show grpo                            every setting of one
    strop train grpo --tiny --set optim.lr=2e-4        train, with a setting changed
    strop train --resume runs/grpo-tiny                go on after an interruption
    strop eval runs/grpo-tiny                          measure the result
    strop-verify math cases.jsonl --out out.jsonl      judge answers without a model
    strop doctor                                       check this machine
    strop smoke                                        whether training works on it

    Every command explains itself: strop train --help.
    """,
)

app.command("quickstart", short_help="Watch a small model learn to reason, from nothing.")(run_commands.quickstart)
app.command("train", short_help="Train by reinforcement learning.")(run_commands.train)
app.command("sft", short_help="Fine-tune a model on demonstrations.")(run_commands.sft)
app.command("eval", short_help="Measure models on held-out problems or benchmarks.")(model_commands.evaluate)
app.command("compare", short_help="Table, comparison and pictures of kept evaluations.")(model_commands.compare)
app.command("sample", short_help="Sample answers to a prompt or to some problems.")(model_commands.sample)
app.add_typer(setup_commands.recipes_app, name="recipes", short_help="List what can be trained, or show it.")
app.command("settings", short_help="Print every setting, or those of a part.")(setup_commands.settings)
app.add_typer(setup_commands.pieces_app, name="pieces", short_help="Print every piece of an algorithm, or draw losses.")
app.add_typer(lab_commands.verify_app, name="verify", short_help="Compare verifiers on rollouts.")
app.add_typer(setup_commands.data_app, name="data", short_help="Prepare problems for training, and look at them.")
app.command("plot", short_help="Draw the curves of a run as a PNG.")(run_commands.plot)
app.command("fit", short_help="Fit compute-performance curves, predict, compare recipes.")(lab_commands.fit)
app.command("ablate", short_help="Run variants of a recipe with paired seeds.")(lab_commands.ablate)
app.command("audit", short_help="Estimate how often a run's verifier was wrong.")(lab_commands.audit)
app.command("report", short_help="Write one HTML page about a run, or comparing several.")(run_commands.report)
app.command("serve", short_help="Serve a model at an OpenAI-compatible endpoint.")(model_commands.serve)
app.command("status", short_help="Show the state of a run.")(run_commands.status)
app.command("dashboard", short_help="Follow runs in a browser.")(run_commands.dashboard)
app.command("replay", short_help="Train again from a run's rollouts, and compare.")(lab_commands.replay)
app.command("rejudge", short_help="Judge a run's completions otherwise, and count.")(lab_commands.rejudge)
app.command("runs", short_help="List runs, the newest first.")(run_commands.runs)
app.add_typer(plan_commands.plan_app, name="plan", short_help="Plan a run's time, or the seeds of a comparison.")
app.command("export", short_help="Write a checkpoint as a Hugging Face folder.")(model_commands.export)
app.command("doctor", short_help="Check this machine, a run or a recipe.")(setup_commands.doctor)
app.command("smoke", short_help="Test whether training works on this machine.")(setup_commands.smoke)


@app.callback(invoke_without_command=True)
def root(
    allowed: Annotated[
        list[str],
        typer.Option(
            "--allow",
            metavar="KEY",
            help="A setting that runs code, such as engine.python, which a file or run folder may contain; may be "
            "repeated. --set of the same key allows it too.",
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
def main() -> None:
    """Run the command line. An error that the user can fix becomes one line on standard error and its exit code."""
    # Loading a model announces itself in several lines and bars, which would tear the live view.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    wait_politely()
    atexit.register(gc.freeze)  # else the end of the process searches all that torch has imported, for 1.5 s
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of ASCII shows ? for other signs
    try:
        with heartbeat():
            code = app(prog_name="strop", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # what it tells is the whole help
            app(prog_name="strop")
        line, code = _told(error)
        if line is None:
            raise
        shown = "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in line)
        print(f"strop: {shown}", file=sys.stderr)
        sys.exit(code)


def _told(error: Exception) -> tuple[str | None, int]:
    """The message of an error and the exit code; None for a bug of strop, which shows its traceback."""
    from strop.base.imports import blamed
    from strop.base.types import InputError, StropError

    if isinstance(error, StropError):
        return str(error), error.exit_code
    if isinstance(error, USAGE):
        said, context = error.format_message(), error.ctx
        hint = "" if context is None else f" ({context.command_path} --help)"
        takes_settings = context is None or context.command_path != "strop quickstart"
        if not takes_settings and not isinstance(error, typer.BadParameter):
            hint = f"; its settings are changed by: strop train quickstart --set KEY=VALUE{hint}"
        return said[:1].lower() + said[1:].rstrip(".") + hint, error.exit_code
    if isinstance(error, typer.Abort):
        return "not confirmed, nothing was done", 1
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        said = " ".join(str(error).split())[:200]
        return f"memory ran out ({said}); lower batch.tokens_per_microbatch, engine.slots or the model", 1
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be flushed has nowhere to go
        return f"cannot write the output: {error.strerror}", 1
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}", 1
    if isinstance(error, RecursionError) and blamed(error) is None:
        return "a file is nested too deeply; is it one that strop has written?", InputError.exit_code
    return blamed(error), InputError.exit_code
