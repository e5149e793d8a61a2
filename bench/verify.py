"""The math verifier and math-verify over a file of cases, and the verifier over copies of references; JSON lines.

    python bench/verify.py --cases CASES.jsonl
    python bench/verify.py --mutations --references math500.json olympiadbench.jsonl
    python bench/verify.py --solutions example_model_solutions.jsonl

Over cases three parts: agreement with the file's labels (those marked `contested` left out); throughput on one core,
over the cases repeated in random order and once, through the worker pool; inputs that ask for more than there is. Plain
math-verify gets the gold in a box where it is bare, its default settings, and its own time limits.

Mutations (see mutations.py): of each reference of the benchmark files copies that are wrong for sure, and itself and
copies that are right for sure, by kind: how many of the first are rewarded, how many of the second are refused, and how
many are not decided: undecided, unparsed, or of a reference that cannot be read. Solutions:
agreement with the labels of the model solutions in openai/grade-school-math.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mutations

from strop.evaluation.benchmarks import benchmark, load_problems
from strop_verify.__main__ import Row, parser, read_row
from strop_verify.math import MathSettings, verify, verify_all
from strop_verify.math.verifier import begin, verdict_of
from strop_verify.pool import WorkerLimits
from strop_verify.verdict import Status, Verdict

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
    "nested braces": r"\boxed{" + "{" * 15 + "1" + "}" * 16,
    "nested roots": r"\boxed{" + r"\sqrt{2+" * 14 + "x" + "}" * 15,
    "sum of 10^5 terms": r"\boxed{\sum_{k=1}^{100000} \frac{1}{k^{2}}}",
    "set of 1000": rf"\boxed{{\{{{','.join(map(str, range(1000)))}\}}}}",
    "many dollars": "$" * 20_001,
    "many answers": "answer " * 20_000,
}
GOLDS = ("3", r"(a+b+c+d+e+f)^{399}(a+b+c+d+e+f)+1", r"\int_0^1 \frac{\sin(x^5+e^x)}{\ln(x+\cos x)} dx")


def show(part: str, ours: dict[str, Any], plain: dict[str, Any] | None = None) -> None:
    """One line of results."""
    line: dict[str, Any] = {"bench": "verify", "part": part, "ours": ours}
    print(json.dumps(line if plain is None else {**line, "math_verify": plain}), flush=True)


def read_cases(path: Path) -> list[Row]:
    """The cases of a file, as `strop-verify math --extract any` reads them."""
    options = parser().parse_args(["math", str(path), "--extract", "any"])
    return [read_row(options, line, f"{path}:{number}") for number, line in enumerate(path.open(), 1)]


def plain_verdict(case: Row) -> bool:
    """What math-verify says, its gold in a box."""
    from math_verify import parse, verify

    settings = case.settings or MathSettings()
    boxed = case.reference if settings.gold_form == "raw" else rf"\boxed{{{case.reference}}}"
    return bool(verify(parse(boxed), parse(case.response)))


def agreement(cases: list[Row]) -> None:
    """How many labels each side agrees with; by kind of label, as rewarding a wrong answer is the worse error."""
    ours = dict(verify_all((case.reference, case.response, case.settings) for case in cases))
    labelled = [(place, case) for place, case in enumerate(cases) if case.expected is not None]
    mistakes = [(place + 1, case.expected) for place, case in labelled if ours[place].passed != case.expected]
    others = [place + 1 for place, case in labelled if plain_verdict(case) != case.expected]
    size = len(labelled)
    found = {
        "cases": size, "agreement": round(1 - len(mistakes) / size, 4),
        "refused": [line for line, expected in mistakes if expected],
        "rewarded": [line for line, expected in mistakes if not expected],
    }  # fmt: skip
    show("agreement", found, {"agreement": round(1 - len(others) / size, 4), "differs_on_lines": others})


def throughput(cases: list[Row], repeats: int) -> None:
    """Verdicts a second on one core, the pool's single worker and everything else on it; quantiles in the worker."""
    order = cases * repeats
    random.Random(0).shuffle(order)
    limits = WorkerLimits(workers=1)
    verify("1", r"\boxed{1}", limits=limits)
    start = time.perf_counter()
    begun = [begin(case.reference, case.response, case.settings, limits) for case in order]
    times = sorted(reply.result().milliseconds for reply in begun)
    rate = len(order) / (time.perf_counter() - start)
    show(f"throughput, each case {repeats} times", quantiles(rate, times))


def plain_throughput(cases: list[Row], repeats: int) -> None:
    """The same for plain math-verify, in this process."""
    order = cases * repeats
    random.Random(0).shuffle(order)
    plain_verdict(order[0])
    times = []
    begun = time.perf_counter()
    for case in order:
        start = time.perf_counter()
        plain_verdict(case)
        times.append(1000 * (time.perf_counter() - start))
    rate = len(order) / (time.perf_counter() - begun)
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
    settings, start = MathSettings(extract="any"), time.perf_counter()
    verify("1", r"\boxed{1}", settings)
    show("start of the pool", {"seconds": round(time.perf_counter() - start, 2)})
    for name, text in HANGS.items():
        waits, statuses = [], []
        for gold in GOLDS:
            start = time.perf_counter()
            verdict = verify(gold, text, settings)
            waits.append(time.perf_counter() - start)
            statuses.append(str(verdict.status))
        show(f"hang: {name}", {"seconds_max": round(max(waits), 3), "statuses": statuses})


def judged(pairs: Iterable[tuple[str, str]], settings: MathSettings) -> list[Verdict]:
    """The verdicts on pairs of a reference and a response, in their order."""
    return [verdict_of(reply.result()) for reply in [begin(*pair, settings, None) for pair in pairs]]


def mutated(files: list[Path], count: int, seed: int, most: int) -> None:
    """False rewards of wrong copies and refusals of right ones, by kind; the first few of each."""
    references = dict.fromkeys(
        str(problem.reference).rpartition("####")[2].strip()
        for file in files
        for problem in load_problems(benchmark(str(file)), limit=most)
    )
    for name, make, expected in (("wrong", mutations.wrong, 0.0), ("right", mutations.right, 1.0)):
        own = [mutations.Copy("", "itself")] if expected else []
        drawn = [
            (gold, copy._replace(text=copy.text or mutations.bare(gold)))
            for gold in references
            for copy in [*own, *mutations.copies(gold, make, count, seed)]
        ]
        verdicts = judged([(gold, rf"\boxed{{{copy.text}}}") for gold, copy in drawn], MathSettings())
        copies, failed, open_ = Counter[str](), Counter[str](), 0
        examples = []
        for (gold, copy), verdict in zip(drawn, verdicts, strict=True):
            kind = mutations.kind(mutations.bare(gold))
            copies[kind] += 1
            open_ += verdict.status not in (Status.CORRECT, Status.WRONG)
            if verdict.score != expected:
                failed[kind] += 1
                examples.append((gold, copy.text, copy.rule, verdict.detail))
        what = "rewarded" if name == "wrong" else "refused"
        for kind in sorted(copies):
            show(f"{name} copies: {kind}", {"copies": copies[kind], what: failed[kind]})
        size = max(len(drawn), 1)
        total = {"references": len(references), "copies": len(drawn), what: len(examples), "not_decided": open_}
        shares = {"share": round(len(examples) / size, 6), "not_decided_share": round(open_ / size, 6)}
        show(f"{name} copies", {**total, **shares, "examples": examples[:10]})


def solutions(path: Path) -> None:
    """Agreement with the labels of model solutions of GSM8K problems."""
    pairs, labels = [], []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        gold = row["ground_truth"].rpartition("\nA:")[2].strip()
        for column in row.values():
            if isinstance(column, dict):
                pairs.append((gold, column["solution"]))
                labels.append(column["is_correct"])
    verdicts = judged(pairs, MathSettings(extract="any"))
    joined = zip(pairs, labels, verdicts, strict=True)
    differs = [pair for pair, label, verdict in joined if (verdict.score == 1) != label]
    shown = [(gold, text[-60:]) for gold, text in differs[:20]]
    agreement = round(1 - len(differs) / len(pairs), 5)
    show("solutions", {"solutions": len(pairs), "agreement": agreement, "differs": shown})


def main() -> None:
    """Run all parts; what is timed runs in a separate process, bound to one core."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cases", type=Path)
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument("--part", choices=("agreement", "ours", "once", "plain", "hangs"))
    options.add_argument("--mutations", action="store_true")
    options.add_argument("--references", type=Path, nargs="+", default=[])
    options.add_argument("--copies", type=int, default=20, help="of each reference and kind")
    options.add_argument("--most", type=int, default=1000, help="references of each file")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--solutions", type=Path)
    arguments = options.parse_args()
    if arguments.mutations:
        mutated(arguments.references, arguments.copies, arguments.seed, arguments.most)
    if arguments.solutions is not None:
        solutions(arguments.solutions)
    if arguments.cases is None:
        return
    cases = read_cases(arguments.cases)
    if arguments.part is None:
        for part in ("agreement", "ours", "once", "plain", "hangs"):
            subprocess.run([sys.executable, *sys.argv, "--part", part], check=True)
        return
    if arguments.part in ("ours", "once", "plain"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if arguments.part == "agreement":
        agreement(cases)
    elif arguments.part == "hangs":
        hangs()
    elif arguments.part == "plain":
        plain_throughput(cases, arguments.repeats)
    else:
        throughput(cases, arguments.repeats if arguments.part == "ours" else 1)


if __name__ == "__main__":
    main()
