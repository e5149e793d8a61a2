"""The command `strop-verify`: one pair on the command line, or files of pairs as lines of JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from strop_verify import __version__, code, math
from strop_verify.code import ProgramSettings
from strop_verify.math import MathSettings
from strop_verify.math.settings import stated_form, stated_settings
from strop_verify.pool import WorkerLimits
from strop_verify.verdict import Verdict, VerifyError

BATCH = 4096  # rows that are in memory at once
EXAMPLES = r"""examples:
  strop-verify math '\frac{1}{2}' 'so it is \boxed{0.5}'
  strop-verify math rows.jsonl --out verdicts.jsonl --gold answer
  strop-verify code @tests.json @response.md
  strop-verify code programs.jsonl --out verdicts.jsonl

A row has the reference under "gold" (math) or "tests" (code) and the response under "response"; a row of code may have
a bare program under "program" instead. Where rows have "expected", the summary says how many verdicts agree. A row of
math may have "form" (raw: the gold has its own delimiters or box), "match_types", "precision", "strict" and
"allow_set_relation_comp", and OlympiadBench's "question", "unit", "error" and "is_multiple_answer". An argument that
begins with @ names a file to read. For one pair the exit status is 0 if the response is correct and 1 if it is not.
"""
ROW_SETTINGS = ("match_types", "precision", "strict", "allow_set_relation_comp")


@dataclass(frozen=True)
class Row:
    """A pair to verify.

    Attributes:
        reference: the answer, or the tests.
        response: the text of a model.
        settings: of mathematics; None for code.
        expected: whether the response is right, where the file says so and does not mark the row `contested`.
    """

    reference: Any
    response: str
    settings: MathSettings | None = None
    expected: bool | None = None


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    command = argparse.ArgumentParser(
        "strop-verify", description="Verify mathematical answers and programs.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("domain", choices=("math", "code"))
    command.add_argument("given", nargs="+", help="ROWS.jsonl, or a reference (or tests as JSON) and a response")
    command.add_argument("--out", type=Path, metavar="VERDICTS.jsonl", help="write verdicts here; default: stdout")
    command.add_argument("--gold", metavar="KEY", help="the key of a row's reference; default: gold, or tests for code")
    command.add_argument("--response-key", metavar="KEY", default="response", help="the key of a row's response")
    command.add_argument("--extract", choices=("boxed", "answer_tag", "any"), default="boxed", help="where answers are")
    command.add_argument("--explain", action="store_true", help="say kinds, normal forms and the proof (math)")
    command.add_argument("--workers", type=int, help="worker processes (math); default: one less than the cores")
    command.add_argument("--seconds", type=float, help="seconds of one answer (default 2), or of one test (default 6)")
    command.add_argument("--unsafe-sandbox", action="store_true", help="run programs even without isolation")
    command.add_argument("--json", action="store_true", help="print the verdict, or the summary, as JSON")
    command.add_argument("--version", action="version", version=f"strop-verify {__version__}")
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    command = parser()
    options = command.parse_args(arguments)
    if len(options.given) > 2:
        command.error("give a file of rows, or a reference and a response")
    try:
        return _one(options) if len(options.given) == 2 else _file(options, Path(options.given[0]))
    except (VerifyError, OSError) as error:
        print(f"strop-verify: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _one(options: argparse.Namespace) -> int:
    reference, response = (Path(text[1:]).read_text() if text.startswith("@") else text for text in options.given)
    _, verdict = next(verify_rows(options, [Row(reference, response, _settings(options))]))
    print(json.dumps(_fields(verdict)) if options.json else f"{verdict.status}: {verdict.detail}")
    return 0 if verdict.passed else 1


def _file(options: argparse.Namespace, path: Path) -> int:
    counts: Counter[str] = Counter()
    with path.open() as lines, options.out.open("w") if options.out else nullcontext(sys.stdout) as out:
        rows = (read_row(options, line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip())
        while batch := list(islice(rows, BATCH)):
            verdicts = dict(verify_rows(options, batch))
            for row, verdict in ((row, verdicts[place]) for place, row in enumerate(batch)):
                out.write(json.dumps(_fields(verdict), ensure_ascii=False) + "\n")
                counts[verdict.status] += 1
                counts["expected"] += row.expected is not None
                counts["as expected"] += row.expected is verdict.passed
            if sys.stderr.isatty():
                print(f"\r{counts.total()} rows", end="", file=sys.stderr, flush=True)
    expected = {name: counts.pop(name) for name in ("expected", "as expected")}
    summary = {"rows": counts.total(), **counts, **(expected if expected["expected"] else {})}
    if options.json and options.out:
        print(json.dumps(summary))
    else:
        print("\r" + ", ".join(f"{name} {count}" for name, count in summary.items()), file=sys.stderr)
    return 0


def read_row(options: argparse.Namespace, line: str, where: str) -> Row:
    """The row of a line.

    Raises:
        VerifyError: it is not a row; the message names the line.
    """
    try:
        row = json.loads(line)
        gold = row[options.gold or ("gold" if options.domain == "math" else "tests")]
        if options.domain == "code" and "program" in row:
            response = f"```python\n{row['program']}\n```"
        else:
            response = str(row[options.response_key])
        expected = None if "contested" in row or not isinstance(row.get("expected"), bool) else row["expected"]
        if options.domain == "code":
            return Row(gold, response, None, expected)
        return Row(str(gold), response, _settings(options, row), expected)
    except (ValueError, TypeError) as error:
        raise VerifyError(f"{where}: not a usable row ({error})") from error
    except KeyError as error:
        raise VerifyError(f"{where}: no key {error}") from error


def _settings(options: argparse.Namespace, row: Mapping[str, Any] | None = None) -> MathSettings | None:
    if options.domain == "code":
        return None
    given = {name: value for name, value in (row or {}).items() if name in ROW_SETTINGS and value is not None}
    if "match_types" in given:
        given["match_types"] = tuple(given["match_types"])
    form = (row or {}).get("form", "bare")
    settings = MathSettings(extract=options.extract, explain=options.explain, gold_form=form, **given)
    return stated_settings(settings, str((row or {}).get("question", "")), stated_form(row or {}))


def verify_rows(options: argparse.Namespace, rows: Sequence[Row]) -> Iterator[tuple[int, Verdict]]:
    """The verdicts on rows as they come, each with the place of its row."""
    if options.domain == "math":
        limits = WorkerLimits(workers=options.workers)
        if options.seconds:
            limits = replace(limits, seconds=options.seconds)
        return math.verify_all(((row.reference, row.response, row.settings) for row in rows), limits=limits)
    settings = ProgramSettings()
    if options.seconds:
        settings = replace(settings, test_seconds=options.seconds)
    pairs = ((row.reference, row.response) for row in rows)
    return code.verify_all(pairs, settings, allow_unsafe_sandbox=options.unsafe_sandbox)


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {"score": verdict.score, "status": str(verdict.status), "detail": verdict.detail}


if __name__ == "__main__":
    sys.exit(main())
