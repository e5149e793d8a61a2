"""What the diagnostics of one step cost in processor time, by part. One JSON object a line.

    python bench/diagnostics.py --completions 256 --characters 4096 --runs 5

Cases: `prose`, words drawn from a vocabulary by Zipf's law, four characters a token; `loops`, of which the second half
repeats 60 characters; `short`, answers of some 30 characters, mostly different, as in the quickstart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.step_diagnostics import (
    credit_metrics,
    length_metrics,
    reflection_metrics,
    repetition_metrics,
    step_diagnostics,
)
from strop.base.types import Completion, Group, Problem, Rollout, Verdict, VersionSpan
from strop.training.samples import make_samples
from strop_verify.verdict import Status

LIMIT = 0.5  # seconds of a step of 256 completions of 4,096 characters
GROUP = 16


def text(rng: np.random.Generator, case: str, characters: int, words: list[str]) -> str:
    """A completion of the case."""
    if case == "short":
        return " ".join(str(n) for n in rng.integers(0, 100, 11))
    picks = np.minimum(rng.zipf(1.3, characters // 3), len(words)) - 1
    prose = " ".join(words[pick] for pick in picks)[:characters]
    if case == "prose":
        return prose
    half = prose[: characters // 2]
    return (half + half[:60] * (characters // 60))[:characters]


def groups_of(rng: np.random.Generator, case: str, completions: int, characters: int) -> list[Group]:
    """A step's groups, correct by the toss of a coin."""
    words = ["".join(rng.choice(list("etaoinshrdlucmfw"), rng.integers(2, 9))) for _ in range(2000)]
    problem = Problem("p", "1+1=", "2")
    made = []
    for number in range(completions):
        content = text(rng, case, characters, words)
        size = max(len(content) // 4, 1)
        known: dict[str, int] = {}
        ids = [known.setdefault(content[at : at + 4], len(known)) for at in range(0, size * 4, 4)]
        completion = Completion(
            request_id=f"r{number // GROUP}",
            index=number % GROUP,
            prompt_ids=np.arange(100, dtype=np.int32),
            token_ids=np.array(ids, dtype=np.int32),
            logprobs=np.zeros(size, dtype=np.float32),
            versions=(VersionSpan(0, 0, size),),
            injected=np.zeros(size, dtype=np.bool_),
            text=content,
            finish_reason="stop",
        )
        score = float(rng.integers(0, 2))
        status = Status.CORRECT if score else Status.WRONG
        made.append(Rollout(problem, completion, Verdict(score, status), score))
    return [Group(at // GROUP, problem, tuple(made[at : at + GROUP])) for at in range(0, completions, GROUP)]


def median_seconds(work: Callable[[], object], runs: int) -> float:
    """The median of some runs, after one to warm up; of processor time, so that a busy machine tells the same."""
    taken = []
    for _ in range(runs + 1):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return statistics.median(taken[1:])


def main() -> None:
    """Time every case, whole and by part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completions", type=int, default=256)
    parser.add_argument("--characters", type=int, default=4096)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    for case in ("prose", "loops", "short"):
        groups = groups_of(np.random.default_rng(0), case, args.completions, args.characters)
        tickets = {group.ticket for group in groups}
        samples = make_samples(groups, tickets, GroupRelative(), "none")
        parts: dict[str, Callable[[], object]] = {
            "all": lambda: step_diagnostics(groups, samples, tickets),  # noqa: B023 (called before the next case)
            "repetition": lambda: repetition_metrics(groups),  # noqa: B023
            "credit": lambda: credit_metrics(groups, samples),  # noqa: B023
            "length and reflection": lambda: (length_metrics(groups), reflection_metrics(groups)),  # noqa: B023
        }
        for part, work in parts.items():
            row = {"bench": "diagnostics", "case": case, "part": part}
            seconds = round(median_seconds(work, args.runs), 4)
            print(json.dumps(row | {"ours": seconds, "unit": "s", "limit": LIMIT}))


if __name__ == "__main__":
    main()
