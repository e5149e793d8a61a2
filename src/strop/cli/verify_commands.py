"""`strop verify`: verifiers without a model, over files of cases and finished rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from strop.cli.options import (
    Imports,
    Json,
    allow,
    from_here,
    print_json,
    print_table,
    set_option,
    show,
)

verify_app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""Run verifiers over files: cases with known answers, or the rollouts of a run.

    \b
    strop verify math cases.jsonl --out verdicts.jsonl --extract any
    strop verify code programs.jsonl --out verdicts.jsonl
    strop verify compare runs/grpo --verifier Answer --verifier MathVerifier
    """,
)
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@verify_app.command("math", short_help="Judge mathematical answers.", context_settings=PASSED_ON, add_help_option=False)
def math(context: typer.Context) -> None:
    """Judge mathematical answers with the command `strop-verify math`."""
    _strop_verify("math", context.args)


@verify_app.command("code", short_help="Judge programs by tests.", context_settings=PASSED_ON, add_help_option=False)
def code(context: typer.Context) -> None:
    """Judge programs by their tests, in the sandbox, with the command `strop-verify code`."""
    _strop_verify("code", context.args)


def _strop_verify(domain: str, arguments: list[str]) -> None:
    from strop_verify.__main__ import main

    raise typer.Exit(main([domain, *arguments]))


@verify_app.command("compare", short_help="Hold verifiers against each other on the same rollouts.")
def compare(
    rollouts: Annotated[
        Path,
        typer.Argument(metavar="RUN_OR_JSONL", help="A run folder, or lines of problem_id, reference, completion."),
    ],
    verifiers: Annotated[
        list[str], typer.Option("--verifier", metavar="PIECE", help="A verifier, by name or as JSON; give two or more.")
    ],
    imports: Imports = [],  # noqa: B006  (typer copies it)
    as_json: Json = False,
) -> None:
    """How many problems each verifier counts as solved 0, 1, 2 … times, and where they disagree (Skywork-OR1, Fig. 27).

    A verifier with settings is written as JSON: '{"piece": "MathVerifier", "extract": "any"}'.
    """
    from strop.verifiers.comparison import compare_verifiers, named_verifier, read_rollouts

    allow(imports)
    found = compare_verifiers([named_verifier(text) for text in verifiers], read_rollouts(rollouts))
    value = {
        "problems": found.problems,
        "rollouts": found.rollouts,
        "histograms": {name: list(counts) for name, counts in zip(found.names, found.histograms, strict=True)},
        "failures": dict(zip(found.names, found.failures, strict=True)),
        "disagreements": found.disagreements,
    }

    def table() -> None:
        widest = max(len(counts) for counts in found.histograms)
        rows = [
            (str(solved), *(str(counts[solved]) for counts in found.histograms)) for solved in range(widest)
        ]  # fmt: skip
        print_table(("solved", *found.names), rows)
        failed = ", ".join(f"{name} {count}" for name, count in zip(found.names, found.failures, strict=True))
        print(f"{found.rollouts} rollouts of {found.problems} problems; verdicts differ on {found.disagreements}")
        print(f"could not be judged: {failed}")

    show(as_json, value, table)


env_app = typer.Typer(no_args_is_help=True, help="Environments of several turns: check one of your own.")


@env_app.command("check", short_help="Play an environment with scripted replies, and say what is wrong with it.")
def check(
    name: Annotated[
        str,
        typer.Argument(metavar="MODULE:CLASS", help="An environment, or a class in TRL's shape; or a name."),
    ],
    prompt: Annotated[str, typer.Option(help="The prompt of the problem that is played.")] = "3+5=",
    reference: Annotated[str, typer.Option(help="Its reference.")] = "8",
    seeds: Annotated[int, typer.Option(help="Sessions, each of which is played twice.", min=1)] = 4,
    sets: Annotated[list[str], set_option("environment.max_turns=4")] = [],  # noqa: B006  (typer copies it)
    imports: Imports = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Play an environment with replies from a script, twice from each seed.

    It complains of answers that differ the second time, of steps that are slow, of scores outside [0, 1], and of
    whatever the environment raises. Ends with 1 where it complains.

    \b
    strop env check Calculator
    strop env check Calculator --prompt 'What is 3+5?' --reference 8
    strop env check Search --set environment.corpus=passages.txt
    strop env check my_games:HigherLower --reference 7
    """
    from strop.base.types import Problem
    from strop.environments import check as checking

    allow(imports, sets)
    from_here()
    environment = checking.environment_of(_edited(checking.written(name), sets))
    found = checking.check(environment, Problem("checked", prompt, reference), seeds)
    if as_json:
        print_json(found._asdict())
    else:
        rows = [("tools", ", ".join(tool.name for tool in environment.tools) or "none")]
        rows += [("sessions", str(found.sessions)), ("turns", str(found.turns))]
        rows += [("slowest step", f"{found.slowest:.3f} s")]
        rows += [(f"ended: {end}", str(count)) for end, count in found.ends.items()]
        print_table(("", environment.piece_name()), rows)
        for complaint in found.complaints:
            print(f"- {complaint}")
    if found.complaints:
        raise typer.Exit(1)


def _edited(given: dict[str, Any], sets: list[str]) -> dict[str, Any]:
    """An environment, as a configuration has it, with settings changed."""
    if not sets:
        return given
    from strop.base.types import InputError
    from strop.config.edits import apply_edits, parse_set
    from strop.config.schema import RunConfig

    config = {"environment": given}
    for text in sets:
        edit = parse_set(text)
        if edit.keys() != {"environment"}:
            raise InputError(f"--set {text}: here only the environment is set: environment.KEY=VALUE")
        config = apply_edits(config, edit, RunConfig)
    return config["environment"]
