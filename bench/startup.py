"""How long a new process takes to answer: `import strop` and `strop --help`. One JSON object a line.

python bench/startup.py --runs 9
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

CASES = {
    "import strop": ([sys.executable, "-c", "import strop"], 0.2),
    "strop --help": ([sys.executable, "-m", "strop", "--help"], 0.3),
}


def seconds(command: list[str]) -> float:
    """Wall time of one run of `command`."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    """Time every case, after one run to warm the file cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    for case, (command, limit) in CASES.items():
        seconds(command)
        median = statistics.median(seconds(command) for _ in range(runs))
        print(json.dumps({"bench": "startup", "case": case, "ours": round(median, 4), "unit": "s", "limit": limit}))


if __name__ == "__main__":
    main()
