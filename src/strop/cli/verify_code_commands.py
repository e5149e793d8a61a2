"""`strop verify code`: judge programs by their tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.options import Json, Plain, print_json, print_table, viewing


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
