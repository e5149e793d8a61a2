"""`strop env`: environments of one's own."""

from __future__ import annotations

from typing import Annotated

import typer

from strop.cli.options import Json, print_json, print_table

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
    as_json: Json = False,
) -> None:
    """Play an environment with replies from a script, twice from each seed.

    It complains of answers that differ the second time, of steps that are slow, of scores outside [0, 1], and of
    whatever the environment raises. Ends with 1 where it complains.

    \b
    strop env check Calculator
    strop env check Calculator --prompt 'What is 3+5?' --reference 8
    """
    from strop.base.types import Problem, Status
    from strop.environments import check as checking

    environment = checking.environment_named(name)
    found = checking.check(environment, Problem("checked", prompt, reference), seeds)
    if as_json:
        print_json(found._asdict())
    else:
        rows = [("tools", ", ".join(tool.name for tool in environment.tools) or "none")]
        rows += [("sessions", str(found.sessions)), ("turns", str(found.turns))]
        rows += [("slowest step", f"{found.slowest:.3f} s")]
        said = {
            checking.UNJUDGED: "left to the run's verifier", checking.UNFINISHED: "not over after all turns",
            Status.ERROR.value: "failed",
        }  # fmt: skip
        rows += [(said.get(end, f"judged {end}"), str(count)) for end, count in found.ends.items()]
        print_table(("", environment.piece_name()), rows)
        for complaint in found.complaints:
            print(f"- {complaint}")
    if found.complaints:
        raise typer.Exit(1)
