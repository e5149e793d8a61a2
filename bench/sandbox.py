"""Small stdin/stdout tests a second in the sandbox, by every way of running them. One JSON object a line.

    python bench/sandbox.py --programs 400

The ways: the warm fork server with all layers, a cold
interpreter without isolation, and the naive runner that many use: `subprocess.run` of the program with the usual
imports. With `--cases FILE` the cases of a file are judged too, and compared with their field `expected`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from strop_verify.code.runners import ProgramSettings, difference
from strop_verify.code.tests import Tests
from strop_verify.code.verifier import run, run_tests
from strop_verify.sandbox import Limits, Sandbox, probe
from strop_verify.sandbox.launchers import interpreter

PROGRAM = "n = int(input())\nprint(sum(map(int, input().split())) + n)\n"
IMPORTS = "import collections, heapq, bisect, math, itertools, functools, string, re, random, decimal, fractions\n"
BAR = 120.0
# What a judge may call each expected label; a pass never counts as a failure.
ACCEPTED = {"pass": ("pass",), "fail": ("wrong", "runtime_error", "syntax_error", "memory", "timeout", "killed")}


def test(number: int) -> tuple[str, str]:
    """Input and output of one small test."""
    return f"{number}\n1 2 3\n", f"{number + 6}\n"


def sandboxed(sandbox: Sandbox) -> Callable[[int], bool]:
    """A runner through the whole path of the code verifier."""
    settings = ProgramSettings(sandbox.limits)

    def run(number: int) -> bool:
        given, expected = test(number)
        return run_tests(sandbox, PROGRAM, Tests("stdio", (given,), (expected,)), settings).outcome == "pass"

    return run


def bare(program: str) -> Callable[[int], bool]:
    """A runner without any isolation."""

    def run(number: int) -> bool:
        given, expected = test(number)
        done = subprocess.run(
            [interpreter(), "-c", program], input=given, capture_output=True, text=True, timeout=10, check=False
        )
        return done.returncode == 0 and not difference(expected, done.stdout)

    return run


def measure(way: str, run: Callable[[int], bool], programs: int, workers: int, bar: float | None = None) -> None:
    """Run `programs` tests over `workers` threads and print a line."""

    def timed(number: int) -> tuple[bool, float]:
        began = time.perf_counter()
        right = run(number)
        return right, (time.perf_counter() - began) * 1000

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(run, range(workers * 2)))  # warm
        began = time.perf_counter()
        results = list(threads.map(timed, range(programs)))
        seconds = time.perf_counter() - began
    times = sorted(milliseconds for _, milliseconds in results)
    line = {
        "bench": "sandbox", "way": way, "workers": workers, "programs": programs,
        "right": sum(right for right, _ in results), "per_second": round(programs / seconds, 1),
        "ms_p50": round(times[len(times) // 2], 2), "ms_p99": round(times[int(len(times) * 0.99)], 2),
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    print(json.dumps(line if bar is None else {**line, "bar": bar}), flush=True)


def judge(path: Path) -> None:
    """Judge a file of cases and print how many verdicts are as the file expects."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    results = [run(row["program"], row["tests"]) for row in rows]
    accepted = {**ACCEPTED, "killed": ACCEPTED["fail"]}
    right = [
        result.outcome.value in (*accepted[row["expected"]], *row.get("also_ok", ()))
        for row, result in zip(rows, results, strict=True)
    ]
    wrong = [row.get("id", place) for place, (row, fine) in enumerate(zip(rows, right, strict=True)) if not fine]
    print(json.dumps({"bench": "sandbox cases", "cases": len(rows), "right": sum(right), "not": wrong}))


def main() -> None:
    """Measure every way in the same run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cases", type=Path)
    arguments = parser.parse_args()
    found = probe()
    print(json.dumps({"bench": "sandbox", "mode": found.plan.mode, "missing": found.missing, "uid": os.getuid()}))
    few = max(arguments.programs // 8, 8)
    if found.isolated:
        with Sandbox(Limits(), arguments.workers) as sandbox:
            measure(f"{found.plan.mode} fork server", sandboxed(sandbox), arguments.programs, arguments.workers, BAR)
    measure("cold interpreter, no isolation", bare(PROGRAM), few, arguments.workers)
    measure("naive subprocess.run, usual imports, no isolation", bare(IMPORTS + PROGRAM), few, arguments.workers)
    if arguments.cases is not None:
        judge(arguments.cases)


if __name__ == "__main__":
    main()
