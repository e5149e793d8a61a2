"""How long a new process takes to answer: seconds to its end, or to a certain line. One JSON object a line.

python bench/startup.py --runs 9

The base model of `strop train` is in the cache, or is made in a first run, which does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple


class Case(NamedTuple):
    """What is timed; it ends with `line`, or with the process, whose exit status is `status`."""

    arguments: tuple[str, ...]
    limit: float
    line: str | None = None
    status: int = 0


STROP = ("-m", "strop")
TRAIN = (*STROP, "train", "quickstart", "--plain", "--set", "evaluation.every=none", "--set", "steps=1")
CASES = {
    "import strop": Case(("-c", "import strop"), 0.2),
    "strop --help": Case((*STROP, "--help"), 0.3),
    "a misspelt setting": Case((*STROP, "train", "grpo", "--set", "optim.rl=1"), 0.5, status=2),
    "the first step of strop train": Case(TRAIN, 4.0, "rl 1/1"),
}
# Compiled modules are kept between starts, as Python does unless told otherwise; the first run writes them.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds(case: Case) -> float:
    """Wall time of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *case.arguments, *(("--out", f"{folder}/run") if case.line else ())]
        begin = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT
        ) as process:
            assert process.stdout is not None
            if case.line is not None:
                assert any(line.startswith(case.line) for line in process.stdout), "the line never came"
                found = time.perf_counter() - begin
                process.communicate()
                return found
            process.communicate()
        assert process.returncode == case.status, command
        return time.perf_counter() - begin


def main() -> None:
    """Time every case, after one run to warm the file cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    for name, case in CASES.items():
        seconds(case)
        median = statistics.median(seconds(case) for _ in range(runs))
        line = {"bench": "startup", "case": name, "ours": round(median, 4), "unit": "s", "limit": case.limit}
        print(json.dumps(line))


if __name__ == "__main__":
    main()
