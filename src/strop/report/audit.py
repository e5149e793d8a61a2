"""How often a run's verifier was wrong, by a sample of its completions that something or somebody else judges too.

    drawn = draw(RunFolder.open("runs/grpo"), 200, seed=0)      # stratified by verdict and domain
    found = audited(drawn, judge(drawn, MathVerifier()))        # rates, intervals, whether they change over steps

Rates are of all stored completions: a stratum weighs as much as it has. What was judged is known; the share of right
answers among the rest of a stratum has Jeffreys' posterior, Beta(k + ½, n − k + ½); an interval is between quantiles of
the rates that follow from draws of it, and holds the estimate.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from strop_verify.verdict import Status

AUDIT = "audit.json"
DRAWS, PERMUTATIONS = 20_000, 2_000
WIDENS = 0.01  # p below which the share of wrong answers among accepted ones counts as rising


class Stratum(NamedTuple):
    """Completions with one kind of verdict on problems of one domain."""

    verdict: str
    domain: str

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
    """About `count` stored completions, as many of each stratum as far as it has them, at random.

    Completions that the run's verifier failed on or did not decide are left out.

    Raises:
        InputError: the run has stored none.
    """
    places: dict[Stratum, list[tuple[int, int]]] = defaultdict(list)  # step and row
    for step in run.rollout_steps():
        table = rollout_table.read(run.rollouts_path(step), ("domain", "status", "score"))
        for place, row in enumerate(table.to_pylist()):
            if row["score"] is not None:
                places[Stratum(row["status"], row["domain"])].append((step, place))
    if not places:
        raise InputError(f"{run.path}: it has stored no judged completions")
    rng, left = np.random.default_rng(seed), count
    chosen: dict[int, dict[int, Stratum]] = defaultdict(dict)
    for number, stratum in enumerate(sorted(places, key=lambda each: (len(places[each]), each))):
        take = min(len(places[stratum]), -(-left // (len(places) - number)))
        left -= take
        for one in rng.choice(len(places[stratum]), take, replace=False).tolist():
            step, place = places[stratum][one]
            chosen[step][place] = stratum
    opened = openings(run)
    completions = [
        _completion(run, row, of[place], opened) for step, of in sorted(chosen.items())
        for place, row in enumerate(run.read_rollouts(step)) if place in of
    ]  # fmt: skip
    return AuditSample(completions, {stratum: len(found) for stratum, found in places.items()})


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
        answers among accepted ones in the halves of the steps, and `p`, of a permutation of steps within strata;
        `widens` is whether it is below `WIDENS`.

    Raises:
        InputError: no completion of the sample was judged.
    """
    known = [one for one in drawn.completions if one.id in right]
    if not known:
        raise InputError("none of the judged completions is in this sample; draw it with the same --count and --seed")
    n = Counter(one.stratum for one in known)
    k = Counter(one.stratum for one in known if right[one.id])
    rng = np.random.default_rng(seed)
    shares = {each: rng.beta(k[each] + 0.5, n[each] - k[each] + 0.5, DRAWS) for each in sorted(drawn.sizes)}
    rights = {each: k[each] + (drawn.sizes[each] - n[each]) * shares[each] for each in shares}
    points = {each: np.array([drawn.sizes[each] * (k[each] / n[each] if n[each] else 0.5)]) for each in shares}
    return {
        "judged": len(known),
        "stored": sum(drawn.sizes.values()),
        "false_positives": _rate(points, rights, _mistaken(drawn.sizes, accepted=True)),
        "false_negatives": _rate(points, rights, _mistaken(drawn.sizes, accepted=False)),
        "agreement": _rate(points, rights, _agreed(drawn.sizes)),
        "strata": [
            {**each._asdict(), "stored": drawn.sizes[each], "judged": n[each], "right": k[each]} for each in shares
        ],
        "rise": _rise([one for one in known if one.stratum.accepted], right, drawn.sizes, rng),
    }  # fmt: skip


Amounts = Mapping[Stratum, NDArray[np.float64]]


Share = Callable[[Amounts], NDArray[np.float64]]  # of the numbers of right answers in the strata


def _mistaken(sizes: Mapping[Stratum, int], accepted: bool) -> Share:
    """Of all wrong answers the accepted ones, or of all right answers the refused ones."""

    def share(rights: Amounts) -> NDArray[np.float64]:
        of = {each: sizes[each] - rights[each] if accepted else rights[each] for each in rights}
        part = sum((of[each] for each in of if each.accepted == accepted), np.zeros(1))
        whole = sum(of.values(), np.zeros(1))
        return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)

    return share


def _agreed(sizes: Mapping[Stratum, int]) -> Share:
    """Of all answers those that are accepted and right, or refused and wrong."""

    def share(rights: Amounts) -> NDArray[np.float64]:
        alike = (rights[each] if each.accepted else sizes[each] - rights[each] for each in rights)
        return sum(alike, np.zeros(1)) / sum(sizes.values())

    return share


def _rate(points: Amounts, draws: Amounts, share: Share) -> dict[str, Any]:
    (point,) = share(points)
    if np.isnan(point):
        return {"rate": None, "interval": None}
    low, high = np.nanquantile(share(draws), (0.025, 0.975)).tolist()
    return {"rate": float(point), "interval": Interval(min(low, float(point)), max(high, float(point)))}


def _rise(
    accepted: Sequence[AuditItem], right: Mapping[str, bool], sizes: Mapping[Stratum, int], rng: np.random.Generator
) -> dict[str, Any]:
    """Whether wrong answers among accepted ones become more frequent over the steps."""
    if len({one.step for one in accepted}) < 2:
        return {"early": None, "late": None, "p": None, "widens": False}
    step = np.array([one.step for one in accepted], np.float64)
    wrong = np.array([not right[one.id] for one in accepted], np.float64)
    _, stratum, counts = np.unique([one.stratum.domain for one in accepted], return_inverse=True, return_counts=True)
    weight = np.array([sizes[one.stratum] for one in accepted]) / counts[stratum]
    seen, mixed = 0.0, np.zeros(PERMUTATIONS)
    for number in range(len(counts)):
        part = stratum == number
        lever = weight[part] * (step[part] - step[part].mean())
        seen += float(lever @ wrong[part])
        mixed += rng.permuted(np.tile(wrong[part], (PERMUTATIONS, 1)), axis=1) @ lever
    p = (1 + int((mixed >= seen - 1e-9).sum())) / (1 + PERMUTATIONS)
    late = step > np.median(step)
    early, later = (float(np.average(wrong[part], weights=weight[part])) for part in (~late, late | ~late.any()))
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
