"""`strop verify`: verifiers without a model, over files of cases and finished rollouts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from strop.cli.options import (
    INTERRUPTED,
    Imports,
    Json,
    Plain,
    allow,
    from_here,
    print_json,
    print_table,
    set_option,
    show,
    viewing,
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
T = TypeVar("T")
Extract = Literal["boxed", "answer_tag", "any"]
Out = Annotated[Path, typer.Option("--out", metavar="OUT.jsonl", help="The file of verdicts to write.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Worker processes; by default one less than there are cores.")
]


@verify_app.command("math", short_help="Judge mathematical answers.")
def math(
    cases: Annotated[Path, typer.Argument(metavar="CASES.jsonl", help="One case a line: gold, response.")],
    out: Out,
    extract: Annotated[Extract, typer.Option("--extract", help="Where a response states its answer.")] = "boxed",
    workers: Workers = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say kinds, forms and the proof of each.")] = False,
    as_json: Json = False,
) -> None:
    """Judge the responses of a file of cases; write one line a case, in order: score, status, milliseconds, detail.

    A case has `gold` and `response`, and may have `form` (raw: the gold has its own delimiters or box; bare: it is
    the answer), `match_types`, `precision`, `strict` and `allow_set_relation_comp`. Where cases have `expected`, the
    summary says how many verdicts agree (those marked `contested` left out). With --explain the detail names what kind
    each side is, how it was read, and the proof or the separating point; it is printed too.
    """
    from strop.base.files import replacing
    from strop.verifiers.base import Isolation
    from strop.verifiers.cases import Judged, judge_cases, read_math_cases
    from strop.verifiers.math_verifier import MathVerifier
    from strop.verifiers.process_pool import VerifierPool

    base = MathVerifier(extract=extract, explain=explain, isolation=Isolation(workers=workers))
    found = read_math_cases(cases, base)
    judged: list[Judged | None] = [None] * len(found)
    pool = VerifierPool(base)
    try:
        for place, each in tracked(judge_cases(found, pool), len(found), "verify math"):
            judged[place] = each
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        pool.close()
    results = [done for done in judged if done is not None]
    with replacing(out) as temporary, temporary.open("w") as lines:
        for each in results:
            verdict = each.verdict
            line = {"score": verdict.score, "status": str(verdict.status), "milliseconds": round(each.milliseconds, 3)}
            lines.write(json.dumps({**line, "detail": verdict.detail}, ensure_ascii=False) + "\n")
            if explain and not as_json:
                print(f"{each.verdict.status}: {verdict.detail}")
    expected = [case.expected if not case.contested else None for case in found]
    summary = summarise(results, expected) | {"out": str(out)}
    cells = [(name, _cell(name, value)) for name, value in summary.items()]
    show(as_json, summary, lambda: print_table(("", ""), cells))


def tracked(items: Iterable[T], total: int, title: str) -> Iterator[T]:
    """`items` with a progress bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return iter(track(items, title, total, console=console, transient=True, disable=not console.is_terminal))


def summarise(results: list[Any], expected: list[bool | None]) -> dict[str, Any]:
    """How many verdicts of each status, how long they took, and how many agree with what was expected."""
    import numpy as np

    statuses = [str(each.verdict.status) for each in results]
    median, slow = np.quantile([each.milliseconds for each in results], (0.5, 0.99)).tolist()
    pairs = [(each.verdict.passed, label) for each, label in zip(results, expected, strict=True)]
    known = [correct == label for correct, label in pairs if label is not None]
    summary: dict[str, Any] = {"cases": len(results)}
    summary |= {status: statuses.count(status) for status in ("correct", "wrong", "unparsed", "timeout", "error")}
    summary |= {"ms/p50": round(median, 2), "ms/p99": round(slow, 2)}
    if known:
        summary |= {"expected": len(known), "agreement": round(sum(known) / len(known), 4)}
    return summary


def _cell(name: str, value: Any) -> str:
    return f"{value:.1%}" if name == "agreement" else str(value)


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


def code(
    cases: Annotated[Path, typer.Argument(metavar="CASES.jsonl", help="One JSON object a line: program, tests.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the verdicts go, one line a case.")],
    test_seconds: Annotated[float, typer.Option(help="Wall clock of one test.", min=0.01)] = 6.0,
    total_seconds: Annotated[
        float | None, typer.Option(help="Wall clock of all tests of a case; by default min(7 n + 5, 300).", min=0.01)
    ] = None,
    memory_mib: Annotated[int, typer.Option(help="Memory of a program and what it starts.", min=32)] = 1024,
    float_tolerance: Annotated[float | None, typer.Option(help="Numbers may differ by so much.", min=0.0)] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Compare outputs word by word.")] = False,
    workers: Annotated[int | None, typer.Option(help="Programs at once; by default the usable cores.", min=1)] = None,
    allow_unsafe_sandbox: Annotated[
        bool, typer.Option("--allow-unsafe-sandbox", help="Run them even where nothing can confine them.")
    ] = False,
    plain: Plain = False,
    as_json: Json = False,
) -> None:
    """Judge programs by their tests, in the sandbox.

    Each line holds a program and its tests (stdin and stdout, calls of a function, or assertions). The file of verdicts
    has a line for each in the same order: id (or its place), verdict, milliseconds, detail.

    \b
    {"program": "print(int(input()) + 1)", "tests": {"inputs": ["41"], "outputs": ["42"]}}
    {"program": "def add(a, b): return a + b", "tests": {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}}
    {"program": "def add(a, b): return a + b", "tests": {"asserts": ["assert add(1, 2) == 3"]}}

    \b
    strop verify code cases.jsonl --out verdicts.jsonl
    strop verify code cases.jsonl --out verdicts.jsonl --test-seconds 2 --json
    """
    from strop.verifiers.cases import read_code_cases, summary, verify_cases, write_results
    from strop.verifiers.code_verifier import CodeVerifier

    read = read_code_cases(str(cases))
    verifier = CodeVerifier(
        test_seconds=test_seconds, total_seconds=total_seconds, memory_mib=memory_mib, tokens=tokens, workers=workers,
        float_tolerance=float_tolerance or None, allow_unsafe_sandbox=allow_unsafe_sandbox,
    )  # fmt: skip
    with viewing(plain, f"strop · verify code · {cases}", "stopped; nothing was written", to_stderr=True) as view:
        results = verify_cases(read, verifier, view)
    write_results(out, read, results)
    report = {**summary(results), "out": str(out)}
    if as_json:
        print_json(report)
        return
    rows = [(verdict, str(count)) for verdict, count in report["verdicts"].items()]
    print_table(("verdict", "cases"), rows)
    print(f"{report['cases']} cases; verdicts in {out}")
