"""What a step costs beside other programs, by how long OpenMP's threads spin before they sleep.

    python bench/spinning.py                  0, 1 and 2 other programs, each of which wants a core
    python bench/spinning.py --seconds 20

Milliseconds of a step (forward, backward and AdamW of eight small layers over 1,024 rows), the median.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from strop.base.text import markdown_table

STEP = """
import statistics, sys, time
import torch
from torch import nn
torch.set_num_threads(2)
block = lambda: nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128), nn.LayerNorm(128))
model = nn.Sequential(*(block() for _ in range(8)))
optimizer, rows, times = torch.optim.AdamW(model.parameters()), torch.randn(1024, 128), []
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end or len(times) < 3:
    begin = time.monotonic()
    model(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(1000 * (time.monotonic() - begin))
print(statistics.median(times))
"""
WAYS = {
    "OpenMP's default": {},
    "`GOMP_SPINCOUNT=1000` (strop's)": {"GOMP_SPINCOUNT": "1000"},
    "`OMP_WAIT_POLICY=PASSIVE`": {"OMP_WAIT_POLICY": "PASSIVE"},
}


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many other programs that want a core each."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def milliseconds(environment: dict[str, str], seconds: float) -> float:
    """The median step in a process with these variables and no others of the kind."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(seconds)], env=clean | environment, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    seconds = parser.parse_args().seconds
    rows = []
    for way, environment in WAYS.items():
        found = []
        for count in (0, 1, 2):
            with busy(count):
                found.append(f"{milliseconds(environment, seconds):,.0f}")
        rows.append([way, *found])
    columns = ("threads wait by", "alone", "beside one", "beside two")
    print(markdown_table(columns, rows, numbers=columns[1:]))


if __name__ == "__main__":
    main()
