"""`strop env`: your own environments."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strop.cli.options import Imports, Json, allow, from_here, print_json, print_table, set_option

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
