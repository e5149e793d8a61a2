"""How often the forecast of entropy collapse is wrong, over a bank of runs. One JSON object a line.

    python bench/forecast.py                                    # over bench/forecast.json; seconds
    python bench/forecast.py --make runs/forecast               # train the bank again, 16 CPU minutes, and write it
    python bench/forecast.py --others RUN CURVES.json …         # write down other runs instead of those of the file

Collapse is the definition of `strop.algorithms.alerts`, for three shares of the start. The bank is GRPO's tiny form
and what the arms below change of it, 32 steps of 8 prompts × 8 completions, two seeds. Each arm is forecast with
weights that all other arms give. `others` are forecast with the weights of the whole bank: runs of bench/claims (its
arms, and losses at several learning rates; 8 to 16 steps), of bench/scaling.py (four sizes, 48 steps), and a few more.

`silent` is the share of runs of which nothing is said; `false` are alarms of runs that do not collapse, `missed`
collapses of runs said not to. Next to it: `always` and `never` an alarm; `now`, an alarm where the share is reached
already; `line`, an alarm where the quarter's slope of log entropy, gone on with, reaches it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from strop.algorithms.alerts import BANK, Coefficients, least_share, shape
from strop.base.metrics_file import read_metrics
from strop.base.view import SilentView
from strop.recipes.resolve import resolve
from strop.run.folder import is_run
from strop.run.run import resume, train

STORED = Path(__file__).with_suffix(".json")
SHARES = (0.1, 0.2, 0.3)
TAIL = 0.1  # of the residuals that an interval leaves out at each end
COMMON = (
    "steps=32", "model.dtype=float32", "checkpoint.every=1000", "checkpoint.keep_best=false", "evaluation.every=none",
    "batch.prompts_per_step=8",
)  # fmt: skip


def _loss(piece: str) -> str:
    return f'algorithm.loss={{piece="{piece}"}}'


def _term(text: str) -> str:
    return f"algorithm.regularizers=[{{{text}}}]"


def _bonus(coefficient: float) -> str:
    return _term(f'piece="EntropyBonus", coefficient={coefficient}')


def _kl(beta: float) -> str:
    return _term(f'piece="KlPenalty", beta={beta}')


FOUR = "batch.updates_per_step=4"
ARMS: dict[str, tuple[str, ...]] = {
    "base": ("grpo",),
    **{f"lr{rate}": ("grpo", f"optim.lr={rate}") for rate in ("3e-5", "1e-4", "6e-4", "1e-3", "2e-3")},
    "up2": ("grpo", "batch.updates_per_step=2"),
    "up4": ("grpo", FOUR),
    "up8_split": ("grpo", "batch.updates_per_step=8", "optim.lr=1.06e-4"),
    "bonus.3": ("grpo", _bonus(0.3)),
    "bonus1_up4": ("grpo", FOUR, _bonus(1.0)),
    "bonus3": ("grpo", _bonus(3.0)),
    "kl.1": ("grpo", _kl(0.1)),
    "kl1": ("grpo", _kl(1.0)),
    "opefo": ("grpo", _loss("Opefo")),
    "opefo_lr1e-3": ("grpo", _loss("Opefo"), "optim.lr=1e-3"),
    "klcov": ("grpo", FOUR, _loss("KlCov")),
    "temp.6": ("grpo", "sampling.temperature=0.6"),
    "temp1.3": ("grpo", "sampling.temperature=1.3"),
    "archer": ("archer.math",),
    "orz": ("open_reasoner_zero.7b",),
    "scalerl": ("scalerl", "orchestration.max_lag=0", "orchestration.executor=in_process"),
    "hard": ("grpo", "data.source.terms=4", "data.source.digits=2", "sampling.max_new_tokens=60"),
    "few": ("grpo", "data.source.count=16"),
    "no_std": ("grpo", "algorithm.advantage.normalization=none"),
    "adaptive": ("grpo", FOUR, _term('piece="AdaptiveEntropy", target=0.1, delta=0.2, maximum=5.0')),
    "group4": ("grpo", "batch.samples_per_prompt=4", "batch.prompts_per_step=16"),
}


class Run(NamedTuple):
    """A run's entropy at every step."""

    arm: str
    seed: int
    entropy: list[float]

    @property
    def quarter(self) -> list[float]:
        return self.entropy[: -(-len(self.entropy) // 4)]

    @property
    def least(self) -> float:
        """The least mean over a tenth of the steps after the quarter, over that of the first tenth."""
        width = max(2, len(self.entropy) // 10)
        means = np.convolve(self.entropy, np.ones(width) / width, "valid")
        return float(means[len(self.quarter) :].min() / means[0])


def read_run(path: Path, arm: str, seed: int) -> Run:
    """The run of a folder, or of a file of bench/claims."""
    rows = json.loads(path.read_text())["rows"] if path.is_file() else read_metrics(path / "metrics.jsonl")
    return Run(arm, seed, [float(f"{row['entropy']:.4g}") for row in rows if row.get("entropy") is not None])


def write(**found: Sequence[Run]) -> None:
    """The stored runs, some of them anew."""
    runs = stored() if STORED.exists() else {}
    text = {name: ",\n".join(json.dumps(run._asdict()) for run in each) for name, each in (runs | found).items()}
    STORED.write_text("{" + ",\n".join(f'"{name}": [\n{rows}\n]' for name, rows in text.items()) + "}\n")


def stored() -> dict[str, list[Run]]:
    """`bank` and `others`."""
    return {name: [Run(**row) for row in rows] for name, rows in json.loads(STORED.read_text()).items()}


def make(folder: Path) -> list[Run]:
    """The bank, trained; finished runs are not made again."""
    for seed in (0, 1):
        for arm, (recipe, *sets) in ARMS.items():
            path = folder / arm / f"seed{seed}"
            if not is_run(path):
                train(resolve(recipe, [*COMMON, *sets, f"seed={seed}"], small=True), path, SilentView())
            elif not (path / "summary.json").is_file():
                resume(path, SilentView())
    return [read_run(folder / arm / f"seed{seed}", arm, seed) for arm in ARMS for seed in (0, 1)]


def fitted(bank: Sequence[Run]) -> Coefficients:
    """Least squares over a bank, and the ends of its residuals, as wide as they would be without three parameters."""
    design = np.array([[*shape(run.quarter), 1.0] for run in bank])
    least = np.log([run.least for run in bank])
    weights = np.linalg.lstsq(design, least, rcond=None)[0]
    residuals = (least - design @ weights) * np.sqrt(len(bank) / (len(bank) - 3))
    return Coefficients(*(float(each) for each in (*weights, *np.quantile(residuals, (TAIL, 1 - TAIL)))))


def line_share(run: Run) -> float:
    """Where the least-squares line of the quarter's log entropy is at the end, over the first two steps."""
    slope, start = np.polyfit(np.arange(len(run.quarter)), np.log(run.quarter), 1)
    return float(np.exp(start + slope * (len(run.entropy) - 1)) / np.mean(run.entropy[:2]))


def score(case: str, share: float, runs: Sequence[Run], says: Callable[[Run], bool | None]) -> dict[str, object]:
    """What is said of each run (None: nothing) against what came."""
    pairs = [(says(run), run.least < share) for run in runs]
    return {
        "bench": "forecast", "case": case, "share": share, "runs": len(pairs), "collapsed": sum(c for _, c in pairs),
        "alarms": sum(said is True for said, _ in pairs), "false": pairs.count((True, False)),
        "denials": sum(said is False for said, _ in pairs), "missed": pairs.count((False, True)),
        "silent": round(sum(said is None for said, _ in pairs) / len(pairs), 2),
    }  # fmt: skip


def said(run: Run, weights: Coefficients, share: float) -> bool | None:
    """Collapse, none, or nothing where the interval holds the share."""
    found = least_share(run.quarter, weights)
    if found is None or found[0] <= share <= found[1]:
        return None
    return found[1] < share


def measure(of: str, runs: Sequence[Run], weights: Callable[[Run], Coefficients]) -> None:
    """A line for each share and case."""
    for share in SHARES:
        cases: dict[str, Callable[[Run], bool | None]] = {
            "forecast": lambda run: said(run, weights(run), share),  # noqa: B023
            "always": lambda run: True,
            "never": lambda run: False,
            "now": lambda run: min(run.quarter) < share * sum(run.quarter[:2]) / 2,  # noqa: B023
            "line": lambda run: line_share(run) < share,  # noqa: B023
        }
        for case, says in cases.items():
            print(json.dumps({"of": of} | score(case, share, runs, says)))


def main() -> None:
    """Measure what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, metavar="FOLDER")
    parser.add_argument("--others", type=Path, nargs="+", metavar="RUN")
    options = parser.parse_args()
    if options.make is not None:
        write(bank=make(options.make))
    if options.others is not None:
        write(others=[read_run(path, f"{path.parent.name}/{path.stem}", 0) for path in options.others])
    bank, others = (stored()[name] for name in ("bank", "others"))
    weights = {arm: fitted([run for run in bank if run.arm != arm]) for arm in {run.arm for run in bank}}
    measure("bank", bank, lambda run: weights[run.arm])
    measure("others", others, lambda run: BANK)
    print(json.dumps({"bench": "forecast", "case": "weights of the whole bank", **fitted(bank)._asdict()}))


if __name__ == "__main__":
    main()
