"""The math verifier over a file of cases, beside plain math-verify. One JSON object a line.

    python bench/verify.py --cases CASES.jsonl

Three parts: agreement with the file's labels (those marked `contested` left out); throughput on one core, over the
cases repeated in random order, through the worker pool; inputs that ask for more than there is. Plain math-verify gets
the gold in a box where it is bare, its default settings, and its own time limits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from strop.verifiers.isolation import Isolation
from strop.verifiers.math import MathVerifier
from strop.verifiers.math.cases import Case, judge_cases, read_cases
from strop.verifiers.process_pool import ProcessPool

HANGS = {
    "tower": r"\boxed{9^{9^{9^{9}}}}",
    "bare tower": "The answer is 9^9^9^9",
    "factorial": r"\boxed{(10^{9})!}",
    "factorial of a factorial": r"\boxed{((100!)!)!}",
    "binomial": r"\boxed{\binom{10^{12}}{10^{6}}}",
    "sum of 10^7 terms": r"\boxed{\sum_{k=1}^{10000000} \frac{1}{k^{2}}}",
    "product of 10^7 terms": r"\boxed{\prod_{k=1}^{10000000} (k+1)}",
    "400 parentheses": rf"\boxed{{{'(' * 400}1{')' * 400}}}",
    "400 open braces": r"\boxed{" + "{" * 400 + "1" + "}" * 401,
    "100000 digits": rf"\boxed{{{'7' * 100_000}}}",
    "100000 bare digits": f"The answer is {'7' * 100_000}",
    "1 + 1 + 1 ...": f"The answer is {'1 + ' * 20_000}1",
    "expansion": r"\boxed{(a+b+c+d+e+f)^{400}}",
    "powers of powers": r"\boxed{((7^{9999})^{9999})^{9999}}",
    "integral": r"\boxed{\int_0^1 \frac{\sin(x^5+e^x)}{\ln(x+\sin x)} dx}",
    "many signs": rf"\boxed{{{chr(92)}pm 1{(chr(92) + 'pm 1') * 30}}}",
    "many dollars": "$" * 20_001,
    "many answers": "answer " * 20_000,
}
GOLDS = ("3", r"(a+b+c+d+e+f)^{399}(a+b+c+d+e+f)+1", r"\int_0^1 \frac{\sin(x^5+e^x)}{\ln(x+\cos x)} dx")


def show(part: str, ours: dict[str, Any], plain: dict[str, Any] | None = None) -> None:
    """One line of results."""
    line: dict[str, Any] = {"bench": "verify", "part": part, "ours": ours}
    print(json.dumps(line if plain is None else {**line, "math_verify": plain}), flush=True)


def plain_verdict(case: Case) -> bool:
    """What math-verify says, its gold in a box."""
    from math_verify import parse, verify

    gold = str(case.problem.reference)
    boxed = gold if case.verifier.gold_form == "raw" else rf"\boxed{{{gold}}}"
    return bool(verify(parse(boxed), parse(case.response)))


def agreement(cases: list[Case]) -> None:
    """How many labels each side agrees with."""
    labelled = [case for case in cases if case.expected is not None and not case.contested]
    pool = ProcessPool(MathVerifier())
    ours = {place: judged.verdict for place, judged in judge_cases(labelled, pool)}
    pool.close()
    mistakes = [case.problem.id for place, case in enumerate(labelled) if (ours[place].score == 1) != case.expected]
    others = [case.problem.id for case in labelled if plain_verdict(case) != case.expected]
    size = len(labelled)
    show(
        "agreement",
        {"cases": size, "agreement": round(1 - len(mistakes) / size, 4), "differs_on_lines": mistakes},
        {"agreement": round(1 - len(others) / size, 4), "differs_on_lines": others},
    )


def throughput(cases: list[Case], repeats: int, remember: bool) -> None:
    """Verdicts a second on one core, the pool's single worker and everything else on it; quantiles in the worker."""
    order = cases * repeats
    random.Random(0).shuffle(order)
    order = [case._replace(verifier=case.verifier.model_copy(update={"remember": remember})) for case in order]
    pool = ProcessPool(MathVerifier(), Isolation(workers=1))
    list(judge_cases(order[:1], pool))
    begin = time.perf_counter()
    times = sorted(judged.milliseconds for _, judged in judge_cases(order, pool))
    rate = len(order) / (time.perf_counter() - begin)
    pool.close()
    show(f"throughput, {'as set by default' if remember else 'remember=false'}", quantiles(rate, times))


def plain_throughput(cases: list[Case], repeats: int) -> None:
    """The same for plain math-verify, in this process."""
    order = cases * repeats
    random.Random(0).shuffle(order)
    plain_verdict(order[0])
    times = []
    begin = time.perf_counter()
    for case in order:
        start = time.perf_counter()
        plain_verdict(case)
        times.append(1000 * (time.perf_counter() - start))
    rate = len(order) / (time.perf_counter() - begin)
    show("throughput, plain math-verify", {}, quantiles(rate, sorted(times)))


def quantiles(rate: float, times: list[float]) -> dict[str, Any]:
    """Verdicts a second, and the middle and the 99th percentile of their times in milliseconds."""
    return {
        "per_second": round(rate, 1),
        "ms_p50": round(times[len(times) // 2], 3),
        "ms_p99": round(times[int(0.99 * len(times))], 2),
        "ms_max": round(times[-1], 1),
    }


def hangs() -> None:
    """Inputs that ask for more than there is, against three golds: how long the caller waits, at most."""
    from strop.base.types import Problem

    begin = time.perf_counter()
    verifier = MathVerifier(extract="any")
    verifier(Problem("warm", "", "1"), r"\boxed{1}")
    show("start of the pool", {"seconds": round(time.perf_counter() - begin, 2)})
    for name, text in HANGS.items():
        waits, statuses = [], []
        for gold in GOLDS:
            start = time.perf_counter()
            verdict = verifier(Problem(name, "", gold), text)
            waits.append(time.perf_counter() - start)
            statuses.append(str(verdict.status))
        show(f"hang: {name}", {"seconds_max": round(max(waits), 3), "statuses": statuses})


def main() -> None:
    """Run all parts; what is timed runs in processes of its own, bound to one core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--part", choices=("agreement", "ours", "unremembered", "plain", "hangs"))
    arguments = parser.parse_args()
    cases = read_cases(arguments.cases, MathVerifier(extract="any"))
    if arguments.part is None:
        for part in ("agreement", "ours", "unremembered", "plain", "hangs"):
            subprocess.run([sys.executable, *sys.argv, "--part", part], check=True)
        return
    if arguments.part in ("ours", "unremembered", "plain"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if arguments.part == "agreement":
        agreement(cases)
    elif arguments.part == "hangs":
        hangs()
    elif arguments.part == "plain":
        plain_throughput(cases, arguments.repeats)
    else:
        throughput(cases, arguments.repeats, arguments.part == "ours")


if __name__ == "__main__":
    main()
