"""The command line of the claims: what to run, how often, and where it is told."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.claims.analysis import LOOKS, Result
from bench.claims.catalogue import CLAIMS
from bench.claims.claim import Claim
from bench.claims.execute import Curve, Job, execute, missing
from bench.claims.verdicts import judged

from bench.claims import record, report
from strop.base.types import StropError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, judge, tell; the exit code."""
    asked = _parser().parse_args(arguments)
    unknown = [name for name in asked.names if name not in CLAIMS]
    if unknown:
        print(f"no such claim: {', '.join(unknown)}; --list names them", file=sys.stderr)
        return 2
    if asked.list:
        for claim in CLAIMS.values():
            print(f"{claim.name}: {claim.paper}; {', '.join(claim.arms)}")
        return 0
    chosen = [CLAIMS[name] for name in asked.names] or list(CLAIMS.values())
    try:
        if not asked.tell:
            for size in [size for size in LOOKS if size <= asked.seeds] or [asked.seeds]:
                _run(asked, chosen, size)
    except StropError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; the same command goes on with what is left", file=sys.stderr)
        return 130
    told = chosen if asked.docs is None else list(CLAIMS.values())
    results = _results(asked, told)
    for line in record.lines(told, results):
        print(json.dumps(line), flush=True)
    report.write(asked.out, told, results, asked.docs)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The papers' claims, tried on the embedded model.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims; all by default")
    parser.add_argument(
        "--seeds", type=int, default=max(LOOKS), metavar="N",
        help=f"most seeds of a claim ({max(LOOKS)}): looks are at {', '.join(map(str, LOOKS))} until one decides",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("runs/claims"), help="where curves are kept (runs/claims)")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (1)")
    parser.add_argument("--keep", action="store_true", help="keep the run folders")
    parser.add_argument("--tell", action="store_true", help="run nothing, judge what is there")
    parser.add_argument("--docs", type=Path, help="a folder whose record is carried on and whose claims.md is written")
    parser.add_argument("--list", action="store_true", help="list the claims")
    return parser


def _results(asked: argparse.Namespace, claims: Sequence[Claim]) -> dict[str, Result]:
    """What came of the claims by the curves that are there and, with `--docs`, by the record."""
    results = {claim.name: judged(asked.out, claim) for claim in claims}
    return results if asked.docs is None else record.completed(results, claims, asked.docs)


def _run(asked: argparse.Namespace, claims: Sequence[Claim], seeds: int) -> None:
    """The runs that undecided claims lack, seed by seed, so that what is finished can be compared."""
    results = _results(asked, claims)
    undecided = [claim for claim in claims if results[claim.name].verdict == "undecided"]
    lacking = (
        (arm, seed) for seed in range(seeds) for claim in undecided if seed not in results[claim.name].values
        for arm in claim.arms
    )  # fmt: skip
    jobs: list[Job] = list(dict.fromkeys(lacking))
    left = len(missing(asked.out, jobs))
    begin = time.monotonic()
    for done, curve in enumerate(execute(asked.out, jobs, asked.jobs, asked.keep), 1):
        print(_progress(curve, done, left, time.monotonic() - begin), file=sys.stderr, flush=True)


def _progress(curve: Curve, done: int, left: int, seconds: float) -> str:
    rates = [rate for _, rate in curve.series("evaluation/pass_rate")]
    to = f"{rates[0]:.3f} to {rates[-1]:.3f}" if rates else "not measured"
    minutes = seconds / done * (left - done) / 60
    return f"{done}/{left} {curve.arm}, seed {curve.seed}: {to} in {curve.seconds:.0f} s; {minutes:.0f} min left"
