"""How often a run's verifier was wrong, by a sample of its completions that something or somebody else judges too.

    drawn = draw(RunFolder.open("runs/grpo"), 200, seed=0)      # stratified by verdict and kind
    found = audited(drawn, judge(drawn, MathVerifier()))        # rates, intervals, whether they change over steps

Rates are of all stored completions: a verdict weighs as much as it has. What was judged is known; of the rest of a
verdict the share of right answers has Jeffreys' posterior, Beta(k + ½, n − k + ½), in which each kind counts for what
was drawn of it; an interval is between quantiles of the rates that follow from draws of it, and holds the estimate. A
posterior for each kind would rest on its prior where a kind is rare.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.base import rollout_table
from strop.base.text import percent
from strop.base.types import InputError
from strop.data.templates import opening
from strop.evaluation.intervals import Interval
from strop.lab.agreement import Sampled, sampled
from strop.report.runs import read_runs
from strop.report.samples import prompt_of, tokenizer_of
from strop.run.folder import RunFolder
from strop.verifiers.base import Verifier
from strop.verifiers.judges import judged
from strop_verify.math.verifier import kind_of
from strop_verify.verdict import Status

AUDIT = "audit.json"
DRAWS, PERMUTATIONS = 20_000, 2_000
WIDENS = 0.01  # p below which the share of wrong answers among accepted ones counts as rising


class Stratum(NamedTuple):
    """Completions with one verdict on problems of one kind: what a math reference is, else the domain."""

    verdict: str
    kind: str

    @property
    def accepted(self) -> bool:
        """Whether the run's verifier called them right."""
        return self.verdict == Status.CORRECT


class AuditItem(NamedTuple):
    """A completion to judge; `id` is its step, ticket and sample."""

    id: str
    step: int
    stratum: Stratum
    sampled: Sampled


@dataclass(frozen=True)
class AuditSample:
    """The sample, and how many completions of each stratum the run has stored."""

    completions: list[AuditItem]
    sizes: dict[Stratum, int]


def draw(run: RunFolder, count: int, seed: int) -> AuditSample:
    """`count` stored completions at random, as many of each verdict as far as it has them.

    Each kind has its share of a verdict, rounded up or down by chance. Completions that the run's verifier failed on or
    did not decide are left out.

    Raises:
        InputError: the run has stored none.
    """
    places: dict[str, list[tuple[Stratum, int, int]]] = defaultdict(list)  # step and row
    for step in run.rollout_steps():
        table = rollout_table.read(run.rollouts_path(step), ("domain", "reference", "status", "score"))
        for place, row in enumerate(table.to_pylist()):
            if row["score"] is not None:
                kind = kind_of(row["reference"]) if row["domain"] == "math" else None
                places[row["status"]].append((Stratum(row["status"], kind or row["domain"]), step, place))
    if not places:
        raise InputError(f"{run.path}: it has stored no judged completions")
    rng, left = np.random.default_rng(seed), count
    chosen: dict[int, dict[int, Stratum]] = defaultdict(dict)
    for number, (_, found) in enumerate(sorted(places.items(), key=lambda each: (len(each[1]), each[0]))):
        take = min(len(found), -(-left // (len(places) - number)))
        left -= take
        mixed = sorted((found[one] for one in rng.permutation(len(found))), key=lambda each: each[0].kind)
        start = int(rng.integers(len(found)))
        for one in range(take):  # evenly spaced, so that all are as likely
            stratum, step, place = mixed[(start + one * len(found)) // take]
            chosen[step][place] = stratum
    opened = openings(run)
    completions = [
        _completion(run, row, of[place], opened) for step, of in sorted(chosen.items())
        for place, row in enumerate(run.read_rollouts(step)) if place in of
    ]  # fmt: skip
    return AuditSample(completions, Counter(stratum for found in places.values() for stratum, _, _ in found))


def openings(run: RunFolder) -> Callable[[Mapping[str, Any]], str]:
    """What the prompt of a row wrote of the response; nothing where the tokenizer is not on this machine."""
    tokenizer = tokenizer_of(read_runs([run.path])[0])
    return lambda row: "" if tokenizer is None else opening(prompt_of(tokenizer, row))


def _completion(
    run: RunFolder, row: Mapping[str, Any], stratum: Stratum, opened: Callable[[Mapping[str, Any]], str]
) -> AuditItem:
    one = sampled(str(run.path), row)
    if not row["turns"]:  # else the text is that of the last turn
        one = one._replace(problem=replace(one.problem, extra={"opening": opened(row)}))
    return AuditItem(f"{row['step']}-{row['ticket']}-{row['sample']}", row["step"], stratum, one)


def judge(drawn: AuditSample, second: Verifier) -> dict[str, bool]:
    """Whether a second verifier calls each completion right, by id; those that it fails on or cannot decide are absent.

    Raises:
        InputError: it cannot judge any of the problems.
    """
    verdicts = judged(second, [one.sampled for one in drawn.completions])
    found = {
        one.id: verdict.passed for one, verdict in zip(drawn.completions, verdicts, strict=True)
        if verdict.usable
    }  # fmt: skip
    if not found:
        raise InputError(f"{second.piece_name()} judged none of {len(verdicts)} completions: {verdicts[0].detail}")
    return found


def read_labels(path: Path) -> dict[str, bool]:
    """What somebody clicked in the page, by id.

    Raises:
        InputError: it is no such file.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--labels {path}: not a file that the page saved ({error})") from error
    if not isinstance(found, dict) or not found or not all(isinstance(label, bool) for label in found.values()):
        raise InputError(f"--labels {path}: not a file that the page saved: an object of true and false by id")
    return found


def audited(drawn: AuditSample, right: Mapping[str, bool], seed: int = 0) -> dict[str, Any]:
    """The verifier's rates, as JSON holds them.

    Args:
        right: whether a completion is right, by id; those that nobody judged are absent.
        seed: of the draws behind the intervals.

    Returns:
        `false_positives`: of the wrong answers, how many were accepted; `false_negatives`: of the right ones, how many
        were refused; `agreement`: of all answers, how many both judge alike; each with `rate` and `interval` (95 %),
        None where there is none of these answers. `strata`: the counts. `rise`: `early` and `late`, the share of wrong
        answers among accepted ones in the halves of the steps, and `p`, of a permutation of steps within kinds;
        `widens` is whether it is below `WIDENS`.

    Raises:
        InputError: no completion of the sample was judged.
    """
    known = [one for one in drawn.completions if one.id in right]
    if not known:
        raise InputError("none of the judged completions is in this sample; draw it with the same --count and --seed")
    taken = Counter(one.stratum for one in drawn.completions)
    n = Counter(one.stratum for one in known)
    k = Counter(one.stratum for one in known if right[one.id])
    rng, strata = np.random.default_rng(seed), sorted(drawn.sizes)
    amounts = {accepted: np.zeros((2, 1 + DRAWS)) for accepted in (True, False)}
    for verdict, own in groupby(strata, key=lambda each: each.verdict):
        counts = np.array([(drawn.sizes[each], taken[each], n[each], k[each]) for each in own])
        amounts[verdict == Status.CORRECT] += _right_and_wrong(counts, rng)
    (accepted_right, accepted_wrong), (refused_right, refused_wrong) = amounts[True], amounts[False]
    stored = sum(drawn.sizes.values())
    return {
        "judged": len(known),
        "stored": stored,
        "false_positives": _rate(accepted_wrong, accepted_wrong + refused_wrong),
        "false_negatives": _rate(refused_right, accepted_right + refused_right),
        "agreement": _rate(accepted_right + refused_wrong, np.full(1 + DRAWS, stored)),
        "strata": [
            {**each._asdict(), "stored": drawn.sizes[each], "judged": n[each], "right": k[each]} for each in strata
        ],
        "rise": _rise([one for one in known if one.stratum.accepted], right, rng),
    }  # fmt: skip


def _right_and_wrong(counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """How many answers with a verdict are right and wrong, [2, 1 + DRAWS]: by the estimate, then by each draw.

    Args:
        counts: of each kind, how many answers are stored, drawn, judged, and right of these; int [kinds, 4].
    """
    stored, drawn, judged, right = counts.T
    size, share, effective = stored.sum(), 0.5, 0.0
    rest = np.where(judged > 0, drawn * size / max(drawn.sum(), 1) - judged, 0.0)
    if rest.any():
        there = rest > 0
        weight = rest[there] / rest.sum()
        share = weight @ (right[there] / judged[there])
        effective = (judged[there] / weight).min()  # as if all were judged as seldom as the kind judged least
    shares = np.append(share, rng.beta(share * effective + 0.5, (1 - share) * effective + 0.5, DRAWS))
    rights = right.sum() + (size - judged.sum()) * shares
    return np.array([rights, size - rights])


def _rate(part: NDArray[np.float64], whole: NDArray[np.float64]) -> dict[str, Any]:
    """The share that the first entries give, and the interval from the others."""
    rates = np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)
    rate = float(rates[0])
    if math.isnan(rate):
        return {"rate": None, "interval": None}
    low, high = np.nanquantile(rates[1:], (0.025, 0.975)).tolist()
    return {"rate": rate, "interval": Interval(min(low, rate), max(high, rate))}


def _rise(accepted: Sequence[AuditItem], right: Mapping[str, bool], rng: np.random.Generator) -> dict[str, Any]:
    """Whether wrong answers among accepted ones become more frequent over the steps."""
    if len({one.step for one in accepted}) < 2:
        return {"early": None, "late": None, "p": None, "widens": False}
    step = np.array([one.step for one in accepted], np.float64)
    wrong = np.array([not right[one.id] for one in accepted], np.float64)
    kind = np.array([one.stratum.kind for one in accepted])
    seen, mixed = 0.0, np.zeros(PERMUTATIONS)
    for each in np.unique(kind):
        part = kind == each
        lever = step[part] - step[part].mean()
        seen += float(lever @ wrong[part])
        mixed += rng.permuted(np.tile(wrong[part], (PERMUTATIONS, 1)), axis=1) @ lever
    p = (1 + int((mixed >= seen - 1e-9).sum())) / (1 + PERMUTATIONS)
    late = step > np.median(step)
    early, later = (float(wrong[part].mean()) for part in (~late, late | ~late.any()))
    return {"early": early, "late": later, "p": p, "widens": p < WIDENS}


def rates(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The rows of a table of what `audited` returned: what, rate, interval."""
    named = {
        "wrong answers accepted": found["false_positives"], "right answers refused": found["false_negatives"],
        "judged alike": found["agreement"],
    }  # fmt: skip
    return [
        (name, "none seen", "")
        if one["rate"] is None
        else (name, percent(one["rate"]), f"{percent(one['interval'][0])} to {percent(one['interval'][1])}")
        for name, one in named.items()
    ]


def alert(found: Mapping[str, Any]) -> str:
    """A line on how many were judged, and whether accepted answers become wrong more often."""
    rise, judged = found["rise"], f"{found['judged']:,} of {found['stored']:,} completions were judged"
    if rise["p"] is None:
        return judged
    course = f"of accepted answers {percent(rise['early'])} were wrong in the first half of the steps, "
    course += f"{percent(rise['late'])} in the second (p = {rise['p']:.2g})"
    warning = "ALERT: the reward drifts away from right answers; " if rise["widens"] else ""
    return f"{judged}; {warning}{course}"
