"""The math verifier over a file of cases, beside plain math-verify, and over copies of references; JSON lines.

    python bench/verify.py --cases CASES.jsonl
    python bench/verify.py --mutations --references math500.json olympiadbench.jsonl
    python bench/verify.py --solutions example_model_solutions.jsonl

Over cases three parts: agreement with the file's labels (those marked `contested` left out); throughput on one core,
over the cases repeated in random order, through the worker pool; inputs that ask for more than there is. Plain
math-verify gets the gold in a box where it is bare, its default settings, and its own time limits.

Mutations (see mutations.py): of each reference of the benchmark files copies that are wrong for sure and copies that
are right for sure, by kind: how many of the first are rewarded, how many of the second are refused. Solutions:
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

from strop.base.types import Problem, Verdict
from strop.evaluation.benchmarks import benchmark, load_problems
from strop.verifiers.base import Isolation
from strop.verifiers.cases import MathCase, judge_cases, read_math_cases
from strop.verifiers.math_verifier import MathVerifier
from strop.verifiers.process_pool import VerifierPool

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
    "determinant": r"\boxed{\begin{vmatrix}" + r"\\".join(["&".join("123456789")] * 9) + r"\end{vmatrix}}",
    "set of 1000": rf"\boxed{{\{{{','.join(map(str, range(1000)))}\}}}}",
    "many dollars": "$" * 20_001,
    "many answers": "answer " * 20_000,
}
GOLDS = ("3", r"(a+b+c+d+e+f)^{399}(a+b+c+d+e+f)+1", r"\int_0^1 \frac{\sin(x^5+e^x)}{\ln(x+\cos x)} dx")


def show(part: str, ours: dict[str, Any], plain: dict[str, Any] | None = None) -> None:
    """One line of results."""
    line: dict[str, Any] = {"bench": "verify", "part": part, "ours": ours}
    print(json.dumps(line if plain is None else {**line, "math_verify": plain}), flush=True)


def plain_verdict(case: MathCase) -> bool:
    """What math-verify says, its gold in a box."""
    from math_verify import parse, verify

    gold = str(case.problem.reference)
    boxed = gold if case.verifier.gold_form == "raw" else rf"\boxed{{{gold}}}"
    return bool(verify(parse(boxed), parse(case.response)))


def agreement(cases: list[MathCase]) -> None:
    """How many labels each side agrees with."""
    labelled = [case for case in cases if case.expected is not None and not case.contested]
    pool = VerifierPool(MathVerifier())
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


def throughput(cases: list[MathCase], repeats: int, remember: bool) -> None:
    """Verdicts a second on one core, the pool's single worker and everything else on it; quantiles in the worker."""
    order = cases * repeats
    random.Random(0).shuffle(order)
    order = [case._replace(verifier=case.verifier.model_copy(update={"remember": remember})) for case in order]
    pool = VerifierPool(MathVerifier(), Isolation(workers=1))
    list(judge_cases(order[:1], pool))
    begin = time.perf_counter()
    times = sorted(judged.milliseconds for _, judged in judge_cases(order, pool))
    rate = len(order) / (time.perf_counter() - begin)
    pool.close()
    show(f"throughput, {'as set by default' if remember else 'remember=false'}", quantiles(rate, times))


def plain_throughput(cases: list[MathCase], repeats: int) -> None:
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


def judged(pairs: Iterable[tuple[str, str]], extract: str) -> list[Verdict]:
    """The verdicts on pairs of a reference and a response."""
    verifier = MathVerifier.model_validate({"extract": extract})
    cases = [MathCase(verifier, Problem(str(number), "", gold), text) for number, (gold, text) in enumerate(pairs)]
    pool = VerifierPool(verifier)
    verdicts = {place: each.verdict for place, each in judge_cases(cases, pool)}
    pool.close()
    return [verdicts[place] for place in range(len(cases))]


def mutated(files: list[Path], count: int, seed: int, most: int) -> None:
    """False rewards of wrong copies and refusals of right ones, by kind; the first few of each."""
    references = dict.fromkeys(
        str(problem.reference).rpartition("####")[2].strip()
        for file in files
        for problem in load_problems(benchmark(str(file)), limit=most)
    )
    for name, make, expected in (("wrong", mutations.wrong, 0.0), ("right", mutations.right, 1.0)):
        drawn = [(gold, copy) for gold in references for copy in mutations.copies(gold, make, count, seed)]
        verdicts = judged([(gold, rf"\boxed{{{copy.text}}}") for gold, copy in drawn], "boxed")
        copies, failed, unknown = Counter[str](), Counter[str](), 0
        examples = []
        for (gold, copy), verdict in zip(drawn, verdicts, strict=True):
            kind = mutations.kind(mutations.bare(gold))
            copies[kind] += 1
            unknown += verdict.undecided
            if verdict.score != expected:
                failed[kind] += 1
                examples.append((gold, copy.text, copy.rule, verdict.detail))
        what = "rewarded" if name == "wrong" else "refused"
        for kind in sorted(copies):
            show(f"{name} copies: {kind}", {"copies": copies[kind], what: failed[kind]})
        total = {"references": len(references), "copies": len(drawn), what: len(examples), "unknown": unknown}
        share = round(len(examples) / max(len(drawn), 1), 6)
        show(f"{name} copies", {**total, "share": share, "examples": examples[:10]})


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
    verdicts = judged(pairs, "any")
    joined = zip(pairs, labels, verdicts, strict=True)
    differs = [pair for pair, label, verdict in joined if (verdict.score == 1) != label]
    shown = [(gold, text[-60:]) for gold, text in differs[:20]]
    agreement = round(1 - len(differs) / len(pairs), 5)
    show("solutions", {"solutions": len(pairs), "agreement": agreement, "differs": shown})


def main() -> None:
    """Run all parts; what is timed runs in processes of its own, bound to one core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--part", choices=("agreement", "ours", "unremembered", "plain", "hangs"))
    parser.add_argument("--mutations", action="store_true")
    parser.add_argument("--references", type=Path, nargs="+", default=[])
    parser.add_argument("--copies", type=int, default=20, help="of each reference and kind")
    parser.add_argument("--most", type=int, default=1000, help="references of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--solutions", type=Path)
    arguments = parser.parse_args()
    if arguments.mutations:
        mutated(arguments.references, arguments.copies, arguments.seed, arguments.most)
    if arguments.solutions is not None:
        solutions(arguments.solutions)
    if arguments.cases is None:
        return
    cases = read_math_cases(arguments.cases, MathVerifier(extract="any"))
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
