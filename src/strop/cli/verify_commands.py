"""`strop verify`: verifiers without a model, over files of cases and finished rollouts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from strop.cli.options import INTERRUPTED, Imports, Json, allow, print_table, show

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

    A case has `gold` and `response`, and may have `form` (raw: the gold has delimiters or a box of its own; bare: it is
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
