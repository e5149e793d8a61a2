"""A tournament of policy losses: equal completions, equal tuning, paired seeds, the power stated before the final.

    python bench/tournament.py --out runs/tournament --jobs 2            # tuning, the plan, the final
    python bench/tournament.py --out runs/tournament --tell --docs docs  # no runs: write what is there into docs

Every loss is tried as its recipe sets it, in the recipe's tiny form; the others are compared with GRPO. Learning rates
are chosen on seeds that are not those of the final. What is finished is not run again. See docs/claims.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.claims.analysis import Result, Verdict
from bench.claims.arms import Arm
from bench.claims.claim import Claim
from bench.claims.execute import Curve, Job, execute, load, missing
from bench.claims.figure import panel
from bench.claims.report import between, markdown

from bench.claims import measures as m
from strop.base.files import cache_folder, replacing
from strop.base.types import StropError
from strop.base.view import SilentView
from strop.lab.ablation.collect import mean, paired
from strop.lab.ablation.power import PROBABILITY, power
from strop.report.drawing import write_figure
from strop.training.embedded_base import EmbeddedBase, embedded_base

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINE = "PpoClip"  # GRPO's
RATES = (3e-5, 1e-4, 3e-4)
TUNING, PILOT, FINAL = 100, 101, tuple(range(8))  # seeds
ERROR = 0.05  # of any false verdict
# Of completions of problems that are asked for the first time, the same for all; the last quarter of the steps.
PASSED, ENTROPY = m.last_quarter("pass_rate"), m.last_quarter("entropy")
STEP = 0.005  # of pass rate, in which the plan looks for what it can see
WORDS: Mapping[Verdict, str] = {"agrees": "**better**", "disagrees": "**worse**", "undecided": "cannot be told apart"}


class Entrant(NamedTuple):
    """A loss: the recipe that sets it, what is changed of that, and its updates a step."""

    recipe: str
    sets: tuple[str, ...] = ()
    updates: int = 8

    @property
    def rates(self) -> tuple[float, ...]:
        """One update of a whole batch has √8 times the rate of eight of its parts (OPEFO, footnote 2)."""
        return tuple(float(f"{rate * math.sqrt(8 / self.updates):.2g}") for rate in RATES)

    def arm(self, rate: float) -> Arm:
        """What is run."""
        base = cache_folder() / EmbeddedBase(seed=0).key()  # one for all seeds
        run = ("steps=12", "evaluation.every=none", "engine.slots=128", f"model.path={base}", f"optim.lr={rate:g}")
        return Arm(self.recipe, (*self.sets, *run), self.recipe)


def _loss(text: str, *sets: str) -> Entrant:
    return Entrant("opefo.grpo", (f"algorithm.loss={{{text}}}", *sets))


ENTRANTS: dict[str, Entrant] = {
    "PpoClip": Entrant("opefo.grpo"),
    "Reinforce": Entrant("grpo_on_policy", updates=1),
    "Opefo": Entrant("opefo.qwen25_math_7b", updates=1),
    "Cispo": _loss('piece="Cispo", max_ratio=5.0', "algorithm.aggregation=PromptMean"),
    "Gspo": _loss('piece="Gspo"', "algorithm.aggregation=SampleMean"),
    "Gmpo": Entrant("field.gmpo"),
    "Sapo": Entrant("field.sapo"),
    "Vespo": Entrant("field.vespo"),
    "Dppo": Entrant("field.dppo"),
    "OffPolicySequenceMask": Entrant("field.deepseek_v32"),
    "ClipCov": Entrant("clip_cov"),
    "KlCov": Entrant("kl_cov"),
    "ArcherClip": _loss(
        'piece="ArcherClip", dual_clip="none", log_ratio_limit="none"', "algorithm.token_types=EntropyQuantile",
        'algorithm.regularizers=[{piece="KlPenalty", beta=0.001, beta_reasoning=0.0, clamp="none"}]',
    ),
    "LowEntropyMask": _loss(
        'piece="LowEntropyMask", loss={piece="PpoClip", clip_high=0.28}',
        'algorithm.token_types={piece="EntropyQuantile", scope="batch"}',
    ),
}  # fmt: skip


def named(entrant: str, rate: float) -> str:
    """The arm of an entrant at a rate."""
    return f"{entrant}@{rate:g}"


def arms() -> dict[str, Arm]:
    """Every entrant at each of its rates."""
    return {named(name, rate): each.arm(rate) for name, each in ENTRANTS.items() for rate in each.rates}


def curves(out: Path, entrant: str, rate: float, seeds: Sequence[int]) -> dict[int, Curve]:
    """By seed, of the seeds that are run."""
    arm = ENTRANTS[entrant].arm(rate)
    found = ((seed, load(out, named(entrant, rate), seed, arm.config(seed))) for seed in seeds)
    return {seed: curve for seed, curve in found if curve is not None}


def by_seed(measure: m.Measure, found: Mapping[int, Curve]) -> dict[int, float]:
    """A measure of each curve."""
    return {seed: value for seed, curve in found.items() if (value := measure(curve)) is not None}


def level() -> float:
    """Of intervals that hold all differences together with a probability of 1 − `ERROR` (Bonferroni)."""
    return 1.0 - ERROR / (len(ENTRANTS) - 1)


def tuned(out: Path) -> dict[str, dict[float, float]]:
    """What every entrant passes at each of its rates on the tuning seed."""
    return {
        name: {rate: by_seed(PASSED, curves(out, name, rate, [TUNING]))[TUNING] for rate in each.rates}
        for name, each in ENTRANTS.items()
    }


def chosen(out: Path) -> dict[str, float]:
    """The rate of each entrant that passes most on the tuning seed; the lower of two alike."""
    return {name: max(found, key=lambda rate: found[rate]) for name, found in tuned(out).items()}


def plan(out: Path) -> dict[str, Any]:
    """The rates of the final and the difference that it can see, by tuning and pilot; written once and kept."""
    path = out / "plan.json"
    if path.is_file():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    rates, seeds = chosen(out), [TUNING, PILOT]
    both = {name: by_seed(PASSED, curves(out, name, rate, seeds)) for name, rate in rates.items()}
    base = both.pop(BASELINE)
    deviation = pooled([[found[seed] - base[seed] for seed in seeds] for found in both.values()])
    made = {
        "made": date.today().isoformat(), "seeds": list(FINAL), "rates": rates, "deviation": round(deviation, 4),
        "level": round(level(), 5),
        "sees": {str(n): sees(deviation, len(both) + 1, n) for n in range(3, len(FINAL) + 1)},
        "tuning": {name: {f"{rate:g}": v for rate, v in found.items()} for name, found in tuned(out).items()},
    }  # fmt: skip
    _write(path, made)
    return made


def pooled(samples: Sequence[Sequence[float]]) -> float:
    """The deviation within samples of equal size: that of two seeds would be known from two values."""
    errors = [found.stderr or 0.0 for sample in samples if (found := mean(sample)) is not None]
    return math.sqrt(sum(error**2 for error in errors) / len(errors) * len(samples[0]))


def sees(deviation: float, pairs: int, seeds: int) -> float:
    """The smallest difference that so many seeds tell from 0 with a probability of 80 %, all comparisons corrected."""
    sizes = [round(STEP * step, 3) for step in range(1, int(1 / STEP) + 1)]

    def tells(size: float) -> float:
        return float(power(size, deviation, pairs, 0.0, level()).once[seeds - 1])

    return sizes[bisect_left(sizes, PROBABILITY, hi=len(sizes) - 1, key=tells)]


def holm(chances: Mapping[str, float]) -> dict[str, float]:
    """The p-values corrected for their number (Holm 1979): each against those that are not smaller."""
    found: dict[str, float] = {}
    for place, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        found[name] = min(max([(len(chances) - place) * chances[name], *found.values()]), 1.0)
    return found


def chance(differences: Sequence[float]) -> float:
    """The two-sided p-value of a mean of 0 by Student's t; 1 where one value says nothing."""
    from scipy.special import stdtr

    found = mean(differences)
    if found is None or found.stderr is None:
        return 1.0
    return 2.0 * float(stdtr(found.n - 1, -abs(found.value) / max(found.stderr, 1e-12)))


def judged(differences: Mapping[str, Mapping[int, float]]) -> dict[str, tuple[Result, float]]:
    """Of each entrant the difference from the baseline by seed, its verdict and its corrected p-value."""
    chances = holm({name: chance(list(found.values())) for name, found in differences.items()})
    results = {}
    for name, found in differences.items():
        effect = paired(list(found.values()), level())
        verdict: Verdict = "undecided"
        if effect is not None and chances[name] <= ERROR:
            verdict = "agrees" if effect.value > 0 else "disagrees"
        results[name] = Result(dict(found), effect, verdict), chances[name]
    return results


def gaps(passed: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """Of each other entrant what it passes less what the baseline does, by seed."""
    base = passed[BASELINE]
    others = {name: found for name, found in passed.items() if name != BASELINE}
    return {name: {seed: rate - base[seed] for seed, rate in found.items()} for name, found in others.items()}


def told(out: Path) -> list[dict[str, Any]]:
    """A line an entrant, the best first, of the seeds that all have run."""
    rates = plan(out)["rates"]
    final = {name: curves(out, name, rates[name], FINAL) for name in ENTRANTS}
    whole = set.intersection(*map(set, final.values()))
    final = {name: {seed: found[seed] for seed in sorted(whole)} for name, found in final.items()}
    rows = {name: by_seed(PASSED, found) for name, found in final.items()}
    results = judged(gaps(rows))
    lines = []
    for name, entrant in ENTRANTS.items():
        result, p = results.get(name, (None, None))
        effect = None if result is None else result.effect
        means = {
            "pass_rate": PASSED, "entropy": ENTROPY, "tokens": m.total("tokens/generated"),
            "clipped": m.mean("ratio/clipped_share"),
        }  # fmt: skip
        shown = {key: _mean(by_seed(measure, final[name])) for key, measure in means.items()}
        lines.append(
            {"entrant": name, "recipe": entrant.recipe, "sets": entrant.sets, "rate": rates[name], **shown}
            | {"effect": None if effect is None else round(effect.value, 5), "p": p and float(f"{p:.3g}")}
            | {"interval": None if not (effect and effect.interval) else [round(end, 5) for end in effect.interval]}
            | {"verdict": result and result.verdict, "values": rows[name]}
        )
    return sorted(lines, key=lambda line: -(line["pass_rate"] or 0.0))


def _mean(values: Mapping[int, float]) -> float | None:
    found = mean(list(values.values()))
    return None if found is None else float(f"{found.value:.5g}")


def table(lines: Sequence[Mapping[str, Any]], planned: Mapping[str, Any]) -> str:
    """What came out, in Markdown; what was not run has no numbers."""
    rows = []
    for line in lines:
        found = planned["tuning"][line["entrant"]]
        tuning = ", ".join(
            f"{_points(v)} at {rate}" if float(rate) == line["rate"] else _points(v) for rate, v in found.items()
        )
        ends = line["interval"]
        against = f"{_points(line['effect'], '+')} ({_points(ends[0], '+')} to {_points(ends[1], '+')})" if ends else ""
        rows.append((
            f"`{line['entrant']}`", f"`{line['recipe']}`", tuning, _points(line["pass_rate"]), against,
            f"{line['p']:.2g}" if ends else "", WORDS.get(line["verdict"], "") if ends else "",
            "" if line["entropy"] is None else f"{line['entropy']:.3f}", _points(line["clipped"]),
        ))  # fmt: skip
    head = ("loss", "recipe", "tuning", "pass rate", "less GRPO's", "p", "verdict", "entropy", "clipped, %")
    seen = ", ".join(f"{n} seeds {_points(size)}" for n, size in planned["sees"].items())
    said = (
        f"Stated before the final: with a deviation of {_points(planned['deviation'])} points between differences, a\n"
        f"loss is told from GRPO with a probability of 80 % where it differs by so many points: {seen}.\n"
        f"Seeds of the final so far: {len(lines[0]['values'])} of {len(planned['seeds'])}.\n\n"
    )
    picture = "![Differences from GRPO with their intervals](claims/tournament.png)\n\n"
    return said + (picture if any(line["interval"] for line in lines) else "") + markdown(head, rows)


def _points(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{100 * value:{sign}.1f}"


def draw(lines: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Every loss's difference from the baseline with its interval and every seed."""
    results = judged(gaps({line["entrant"]: line["values"] for line in lines}))
    rows = [Claim(name, "", "", (), "", lambda curves: None, margin=0.0) for name in results]
    title = "Pass rate less GRPO's, points; beyond ±10 the axis is logarithmic"

    def fill(figure: Figure) -> None:
        panel(figure.add_subplot(), title, rows, {name: result for name, (result, _) in results.items()}, 100.0)

    write_figure(target, (8.6, 0.26 * len(rows) + 0.9), fill, dpi=110)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run(out: Path, workers: int) -> None:
    """Tuning, pilot, plan, and the final, seed by seed, of what is missing."""
    embedded_base(EmbeddedBase(seed=0), SilentView())
    stages: Sequence[Callable[[], list[Job]]] = (
        lambda: [(arm, TUNING) for arm in arms()],
        lambda: [(named(name, rate), PILOT) for name, rate in chosen(out).items()],
        lambda: [(named(name, rate), seed) for seed in FINAL for name, rate in plan(out)["rates"].items()],
    )
    for stage in stages:
        jobs = stage()
        left = len(missing(out, jobs, arms()))
        for done, curve in enumerate(execute(out, jobs, workers, keep=True, arms=arms()), 1):
            rate, took = PASSED(curve), f"{curve.seconds:.0f} s"
            print(f"{done}/{left} {curve.arm}, seed {curve.seed}: {rate:.3f} in {took}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and tell; the exit code."""
    parser = argparse.ArgumentParser(description="A tournament of policy losses.")
    parser.add_argument("--out", type=Path, default=Path("runs/tournament"), help="where runs are kept")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (1)")
    parser.add_argument("--tell", action="store_true", help="run nothing, judge what is there")
    parser.add_argument("--docs", type=Path, help="a folder whose claims.md gets the table and the figure")
    asked = parser.parse_args(arguments)
    try:
        if not asked.tell:
            run(asked.out, asked.jobs)
    except StropError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    planned, lines = plan(asked.out), told(asked.out)
    text = table(lines, planned)
    print(text)
    if asked.docs is not None:
        page = asked.docs / "claims.md"
        _write(asked.docs / "claims" / "tournament.json", {"plan": planned, "final": lines})
        if any(line["interval"] for line in lines):
            draw(lines, asked.docs / "claims" / "tournament.png")
        with replacing(page) as temporary:
            temporary.write_text(between(page.read_text(encoding="utf-8"), "tournament", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
