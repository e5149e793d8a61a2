"""How often `strop audit` raises its alert on a stored run, without and with a drift of its verifier.

    python bench/audit.py RUN --audits 500

Every audit draws another sample. The second verdict is the run's, with a share of the accepted and of the refused
answers turned around by a hash: 5 % at every step, or, of the accepted ones, rising from 5 % to a share at the last.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

from strop.report.audit import audited, draw
from strop.run.folder import RunFolder

FLAT = 0.05


def chance(*key: object) -> float:
    """A number in [0, 1) that depends only on the key."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=6).digest(), "big") / 2**48


def alerts(run: RunFolder, late: float, count: int, audits: int) -> int:
    """How many of the audits, of `count` completions each, find a drift."""
    last, found = run.rollout_steps()[-1], 0
    for seed in range(audits):
        drawn, right = draw(run, count, seed), {}
        for one in drawn.completions:
            share = FLAT + (late - FLAT) * one.step / last if one.stratum.accepted else FLAT
            right[one.id] = one.stratum.accepted != (chance(seed, one.id) < share)
        found += audited(drawn, right, seed)["rise"]["widens"]
    return found


def main() -> None:
    """Print a line for each drift."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--audits", type=int, default=500)
    parser.add_argument("--count", type=int, default=200)
    asked = parser.parse_args()
    run = RunFolder.open(asked.run)
    for late in (FLAT, 0.2, 0.35, 0.5):
        found = alerts(run, late, asked.count, asked.audits)
        print(json.dumps({"late": late, "alerts": found, "audits": asked.audits, "count": asked.count}), flush=True)


if __name__ == "__main__":
    main()
