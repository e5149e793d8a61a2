"""The command `strop-verify`: one pair on the command line, or files of pairs as lines of JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from strop_verify import __version__, code, math
from strop_verify.code import ProgramSettings
from strop_verify.math import MathSettings
from strop_verify.pool import WorkerLimits
from strop_verify.verdict import Verdict, VerifyError

BATCH = 4096  # rows that are in memory at once
EXAMPLES = r"""examples:
  strop-verify math '\frac{1}{2}' 'so it is \boxed{0.5}'
  strop-verify math --file rows.jsonl --out verdicts.jsonl --gold answer
  strop-verify code @tests.json @response.md
  strop-verify code --file programs.jsonl --out verdicts.jsonl

A row has the reference under "gold" (math) or "tests" (code) and the response under "response". An argument that begins
with @ names a file to read. For one pair the exit status is 0 if the response is correct and 1 if it is not.
"""


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    command = argparse.ArgumentParser(
        "strop-verify", description="Verify mathematical answers and programs.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("domain", choices=("math", "code"))
    command.add_argument("reference", nargs="?", help="the reference answer, or the tests as JSON")
    command.add_argument("response", nargs="?", help="the response of a model")
    command.add_argument("--file", type=Path, metavar="ROWS.jsonl", help="verify every row of this file")
    command.add_argument("--out", type=Path, metavar="VERDICTS.jsonl", help="write verdicts here; default: stdout")
    command.add_argument("--gold", metavar="KEY", help="the key of a row's reference; default: gold, or tests for code")
    command.add_argument("--response-key", metavar="KEY", default="response", help="the key of a row's response")
    command.add_argument("--extract", choices=("boxed", "answer_tag", "any"), default="boxed", help="where answers are")
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
    one = options.reference is not None and options.response is not None
    if one == (options.file is not None) or (options.file is not None and options.reference is not None):
        command.error("give a reference and a response, or --file")
    try:
        return _one(options) if one else _file(options)
    except (VerifyError, OSError) as error:
        print(f"strop-verify: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _one(options: argparse.Namespace) -> int:
    pair = _argument(options.reference), _argument(options.response)
    _, verdict = next(_verify(options, [pair]))
    print(json.dumps(_fields(verdict)) if options.json else f"{verdict.status}: {verdict.detail}")
    return 0 if verdict.passed else 1


def _argument(given: str) -> str:
    return Path(given[1:]).read_text() if given.startswith("@") else given


def _file(options: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    with (
        options.file.open() as lines,
        options.out.open("w") if options.out else nullcontext(sys.stdout) as out,
    ):
        rows = _rows(options, lines)
        while batch := list(islice(rows, BATCH)):
            verdicts: list[Verdict | None] = [None] * len(batch)
            for place, verdict in _verify(options, batch):
                verdicts[place] = verdict
                counts[verdict.status] += 1
                _progress(counts)
            for each in verdicts:
                if each is not None:
                    out.write(json.dumps(_fields(each), ensure_ascii=False) + "\n")
    summary = {"rows": counts.total(), **counts}
    if options.json and options.out:
        print(json.dumps(summary))
    else:
        print("\r" + ", ".join(f"{name} {count}" for name, count in summary.items()), file=sys.stderr)
    return 0


def _rows(options: argparse.Namespace, lines: Iterable[str]) -> Iterator[tuple[Any, str]]:
    gold = options.gold or ("gold" if options.domain == "math" else "tests")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            reference = row[gold]
            yield (str(reference) if options.domain == "math" else reference), str(row[options.response_key])
        except (ValueError, TypeError) as error:
            raise VerifyError(f"{options.file}, line {number}: not a JSON object ({error})") from error
        except KeyError as error:
            raise VerifyError(f"{options.file}, line {number}: no key {error}") from error


def _verify(options: argparse.Namespace, pairs: list[tuple[Any, str]]) -> Iterator[tuple[int, Verdict]]:
    if options.domain == "math":
        limits = WorkerLimits(workers=options.workers)
        if options.seconds:
            limits = replace(limits, seconds=options.seconds)
        return math.verify_all(pairs, MathSettings(extract=options.extract), limits)
    settings = ProgramSettings()
    if options.seconds:
        settings = replace(settings, test_seconds=options.seconds)
    return code.verify_all(pairs, settings, allow_unsafe_sandbox=options.unsafe_sandbox)


def _progress(counts: Counter[str]) -> None:
    if sys.stderr.isatty() and counts.total() % 50 == 0:
        print(f"\r{counts.total()} rows", end="", file=sys.stderr, flush=True)


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {"score": verdict.score, "status": str(verdict.status), "detail": verdict.detail}


if __name__ == "__main__":
    sys.exit(main())
