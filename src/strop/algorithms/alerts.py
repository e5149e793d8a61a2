"""Alerts: warnings during a run, given when a condition begins to hold and not at every step.

One forecasts how far the entropy will fall, by the first quarter of the run. Entropy has collapsed when its mean over
a tenth of the steps lies below a share of its start, at any time after that quarter. The logarithm of the least such
mean, relative to the start, is taken to be linear in how far log entropy fell within the quarter and in how the fall
bends. Weights and residuals are those of a bank of small runs (`bench/forecast.py`, which fits them and counts false
and missed alarms); an interval leaves 10 % of residuals out at each end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from strop.base.pieces import Settings

Row = Mapping[str, float | None]
Memory = dict[str, Any]

QUARTER = 0.25  # of a run, by which the entropy of the rest is forecast
STEPS_OF_CALM = 10  # without them an alert that comes back is the old one, at its limit, and is not said again
Share = Annotated[float, Field(ge=0, le=1)]


class AlertLimits(Settings):
    """The thresholds of the alerts.

    Fields:
        truncation: share of truncated completions; 10 to 15 % typically destabilised training (ScaleRL, A.16).
        no_room: share of trajectories whose environment answered, and that had no room left for another turn.
        verifier_failures: share of completions that the verifier itself failed on.
        entropy: nats a token below which the policy hardly explores.
        collapse: share of its start below which the entropy will fall, as the first quarter of the run forecasts it.
        mismatch: KL(generator ‖ trainer) by k3, nats a token; staleness counts in it, so that it holds for lag too.
        repetition: share of completions in which 20 tokens in a row recur (collapse of GRPO as ORZ saw it).
        pass_rate_drop: share of its best that the pass rate may lose, both as means over `window` steps.
        window: see there.
    """

    truncation: Share = 0.10
    no_room: Share = 0.25
    verifier_failures: Share = 0.01
    entropy: Annotated[float, Field(ge=0)] = 0.01
    collapse: Share = 0.2
    mismatch: Annotated[float, Field(gt=0)] = 0.05
    repetition: Share = 0.25
    pass_rate_drop: Share = 0.5
    window: Annotated[int, Field(ge=1)] = 10


def alerts(
    row: Row, memory: Memory, limits: AlertLimits | None = None, progress: float = 0.0
) -> tuple[list[str], Memory]:
    """The alerts that begin with a step.

    Args:
        row: the step's metrics; what a metric without a value would say is left as it was.
        memory: what this function returned after the step before; `{}` at first. JSON-able.
        limits: the defaults of `AlertLimits` where None.
        progress: this step over the steps of the run.

    Returns:
        A line for each alert that begins, and the memory for the next step.
    """
    limits = limits or AlertLimits()
    pass_rates, best = _remember_pass_rate(row, memory, limits.window)
    entropies, collapse = _forecast(row.get("entropy"), memory.get("entropies", []), limits.collapse, progress)
    found = _by_limit(row, limits) | {"pass rate": _pass_rate_line(pass_rates, best, limits), "collapse": collapse}
    calm: dict[str, int] = {}  # by alert that has begun: steps since it last held
    lines = []
    for name, line in found.items():
        before = memory.get("calm", {}).get(name)
        if line:
            calm[name] = 0
            if before is None:
                lines.append(line)
        elif before is not None and before + 1 < STEPS_OF_CALM:
            calm[name] = before + 1
    return lines, {"calm": calm, "pass_rates": pass_rates, "best_pass_rate": best, "entropies": entropies}


def _by_limit(row: Row, limits: AlertLimits) -> dict[str, str]:
    """A line for each alert that this row raises without its history; an empty line for the others."""

    above = (
        ("truncation", "truncation_rate", limits.truncation,
         "{:.0%} of the completions were cut at the token limit (sampling.max_new_tokens); above {:.0%} training tends "
         "to become unstable"),
        ("no room", "environment/no_room_share", limits.no_room,
         "in {:.0%} of the trajectories the environment answered and no token was left for another turn: "
         "sampling.max_new_tokens is of the whole trajectory, what the environment says included; raise it, or lower "
         "environment.turn_tokens"),
        ("verifier", "verifier/failure_share", limits.verifier_failures,
         "the verifier itself failed on {:.1%} of the completions, above {:.0%}; these leave the loss, see "
         "verifier/failures"),
        ("mismatch", "mismatch/k3", limits.mismatch,
         "generator and trainer differ by a KL of {:.3g} nats a token, above {:.3g}: lower optim.lr or the lag, or "
         "compute the head in float32 on both sides"),
        ("repetition", "repetition/share", limits.repetition,
         "{:.0%} of the completions repeat 20 tokens in a row, above {:.0%}: a sign of collapse; look at them in the "
         "rollouts of the run folder"),
    )  # fmt: skip
    found = {name: "" for name, *_ in above} | {"entropy": "", "zero variance": ""}
    for name, metric, limit, text in above:
        value = row.get(metric)
        if value is not None and value > limit:
            found[name] = text.format(value, limit)
    entropy = row.get("entropy")
    if entropy is not None and entropy < limits.entropy:
        found["entropy"] = (
            f"the entropy is {entropy:.3g} nats a token, below {limits.entropy:.3g}: the policy hardly explores; "
            "an entropy bonus, a higher upper clip or an earlier checkpoint may help"
        )
    # Advantages of turns, a critic or a shaped reward may teach from groups of one outcome all the same.
    if row.get("groups/zero_variance_share") == 1 and not row.get("effective_batch/completions"):
        found["zero variance"] = (
            f"pass rate {row.get('pass_rate') or 0.0:.1%}, and no group had rollouts of different outcome: such a "
            "step teaches nothing; take easier or harder problems, or a better starting model"
        )
    return found


def _forecast(
    entropy: float | None, before: list[float] | None, limit: float, progress: float
) -> tuple[list[float] | None, str]:
    """The entropies of the first quarter, None after it; at its end a line if the entropy will collapse."""
    if before is None:
        return None, ""
    entropies = [*before, *([] if entropy is None else [entropy])]
    if progress < QUARTER:
        return entropies, ""
    found = least_share(entropies)
    if found is None or found[1] >= limit:
        return None, ""
    return None, (
        f"the entropy, {entropies[-1]:.3g} nats a token after a quarter of the run, is expected to fall to "
        f"{found[0]:.0%} to {found[1]:.0%} of its start: fewer updates a step, a lower optim.lr or a higher upper clip "
        "may help"
    )


def _remember_pass_rate(row: Row, memory: Memory, window: int) -> tuple[list[float], float | None]:
    """The last `window` pass rates, and the best mean of so many."""
    pass_rate = row.get("pass_rate")
    recent = [*memory.get("pass_rates", []), *([] if pass_rate is None else [pass_rate])][-window:]
    best: float | None = memory.get("best_pass_rate")
    if len(recent) == window:
        best = max(sum(recent) / window, best or 0.0)
    return recent, best


def _pass_rate_line(recent: list[float], best: float | None, limits: AlertLimits) -> str:
    if best is None or len(recent) < limits.window:
        return ""
    now = sum(recent) / limits.window
    if now >= best * (1 - limits.pass_rate_drop):
        return ""
    return (
        f"the pass rate fell to {now:.1%} over {limits.window} steps, from {best:.1%} at its best: where the problems "
        "did not become harder, training has broken the policy (optim.lr too high?); go back to an earlier checkpoint"
    )


# ---------------------------------------------------------------------- how far the entropy will fall


LEAST = 3  # steps of a quarter: fewer have no bend


class Coefficients(NamedTuple):
    """Of the fall, of its bend, of 1; and the residuals at the ends of the interval."""

    fall: float
    bend: float
    constant: float
    low: float
    high: float


BANK = Coefficients(1.917, 1.489, -0.501, -0.833, 0.865)


def shape(entropies: Sequence[float]) -> tuple[float, float]:
    """The fall of log entropy from the first third of these to the last, and how it bends: below 0 it speeds up."""
    logs = np.log(np.maximum(entropies, 1e-12))
    third = round(len(logs) / 3)
    first, middle, last = (float(part.mean()) for part in (logs[:third], logs[third:-third], logs[-third:]))
    return last - first, last - 2 * middle + first


def least_share(entropies: Sequence[float], weights: Coefficients = BANK) -> tuple[float, float] | None:
    """The interval of the least entropy to come over that of the start; None where the quarter is too short."""
    if len(entropies) < LEAST:
        return None
    fall, bend = shape(entropies)
    expected = weights.fall * fall + weights.bend * bend + weights.constant
    return math.exp(expected + weights.low), math.exp(expected + weights.high)
