"""The quickstart: from nothing to a model that reasons better, with the evidence, in minutes on two cores.

    make the embedded base (SFT on a fallible demonstrator) ─▶ measure ─▶ ScaleRL with k = 0 ─▶ measure ─▶ summary.json
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strop.base.view import View
from strop.evaluation.result import paired_test
from strop.recipes.resolve import resolve
from strop.run.folder import SUMMARY, RunFolder
from strop.run.run import RunOutcome, train
from strop.training.embedded_base import located


@dataclass(frozen=True)
class QuickstartSummary:
    """The result of the quickstart. Rates and gain are fractions, the interval is 95 % over problems.

    `model` is the path of the trained model relative to the run folder; `seconds` has sft, evaluation (all of them
    together), rl, other (loading and saving) and total, the sum of these.
    """

    model: str
    seed: int
    parameters: int
    pass_rate_before: float
    pass_rate_after: float
    pass_at_8_before: float
    gain: float
    gain_interval: tuple[float, float]
    seconds: dict[str, float]


def run(seed: int, out: Path, view: View, environment: bool = False) -> QuickstartSummary:
    """Make the base, train it, and write summary.json into the run folder `out`.

    With `environment` the quickstart has several turns, and the model learns to call a calculator.
    """
    begin = time.perf_counter()
    config = resolve("quickstart.calculator" if environment else "quickstart", [f"seed={seed}"])
    base = located(config.model, seed, view).path
    sft_seconds = time.perf_counter() - begin
    view.note(f"base model: {base}")
    outcome = train(config, out, view)
    summary = _summary(outcome, seed, sft_seconds, time.perf_counter() - begin)
    folder = RunFolder.open(out)
    folder.write_json(SUMMARY, folder.read_summary() | as_json(summary))
    return summary


def as_json(summary: QuickstartSummary) -> dict[str, Any]:
    """The summary as it is written."""
    return asdict(summary) | {"gain_interval": list(summary.gain_interval)}


def _summary(outcome: RunOutcome, seed: int, sft_seconds: float, total: float) -> QuickstartSummary:
    first, last = min(outcome.evaluations), max(outcome.evaluations)
    before, after = outcome.evaluations[first], outcome.evaluations[last]
    gain = paired_test(before, after)
    evaluation = sum(result.seconds for result in outcome.evaluations.values())
    seconds = {
        "sft": sft_seconds,
        "evaluation": evaluation,
        "rl": outcome.seconds - evaluation,
        "other": total - sft_seconds - outcome.seconds,
        "total": total,
    }
    return QuickstartSummary(
        model=outcome.summary.model,
        seed=seed,
        parameters=outcome.parameters,
        pass_rate_before=before.pass_rate,
        pass_rate_after=after.pass_rate,
        pass_at_8_before=before.pass_at(8),
        gain=gain.gain,
        gain_interval=(gain.interval[0], gain.interval[1]),
        seconds={name: round(value, 2) for name, value in seconds.items()},
    )
