"""`strop verify`: verifiers without a model, over files of cases and finished rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.options import Imports, Json, allow, print_table, show

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
