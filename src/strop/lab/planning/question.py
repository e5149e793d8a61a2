"""The question of `strop plan` and its answer: a simulation of each setup, or of its best split of the devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from strop.base.types import InputError
from strop.config.parse import edit
from strop.lab.planning.bound import settled_bound
from strop.lab.planning.costs import Costs
from strop.lab.planning.lengths import Lengths, parse_lengths
from strop.lab.planning.measure import Measured, measure
from strop.lab.planning.published import default_lengths, scalerl_costs
from strop.lab.planning.search import alternatives, best_split
from strop.lab.planning.setup import Setup, setup_of
from strop.lab.planning.simulate import Simulation, simulate
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder


@dataclass(frozen=True)
class Question:
    """A run to plan.

    Attributes:
        setup: batch, lag, generators and trainers.
        costs: seconds of everything.
        lengths: of completions.
        measured: where costs and lengths come from; None where they were given.
        assumed: which of "costs" and "lengths" were not given, so that they are those of published runs.
        split: whether the split of the devices is given.
    """

    setup: Setup
    costs: Costs
    lengths: Lengths
    measured: Measured | None
    split: bool = False
    assumed: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, target: str | None, runs: Sequence[Path], sets: Sequence[str], costs: Sequence[str], lengths: str | None
    ) -> Question:
        """A recipe or file with its costs and lengths, or runs that are measured.

        Args:
            target: the recipe; None with `runs`.
            sets: changes of settings.
            costs: NAME=SECONDS, instead of those measured.
            lengths: see `parse_lengths`; None with `runs` are those measured.

        What neither a run nor an argument says is taken from published runs (`published`).

        Raises:
            InputError: neither or both of recipe and runs are given, or what is given cannot be read.
        """
        if (target is None) == (not runs):
            raise InputError("name one thing to plan: a recipe or file, or --from RUN without a recipe")
        if target is None:
            found = measure([RunFolder.open(run) for run in runs])
            config = edit(found.config, list(sets)) if sets else found.config
            setup = replace(setup_of(config), drop=found.setup.drop, prompt_tokens=found.setup.prompt_tokens)
            limit = config.sampling.max_new_tokens
            drawn: Lengths = found.lengths.cut(limit) if lengths is None else parse_lengths(lengths, limit)
            return cls(setup, found.costs.edited(costs), drawn, found)
        config = resolve(target, list(sets))
        limit = config.sampling.max_new_tokens
        chosen = Costs().edited(costs) if costs else scalerl_costs()
        drawn = default_lengths(limit) if lengths is None else parse_lengths(lengths, limit)
        assumed = [name for name, given in (("costs", costs), ("lengths", lengths)) if not given]
        return cls(setup_of(config), chosen, drawn, None, assumed=tuple(assumed))

    def reshaped(self, changes: Mapping[str, Any]) -> Question:
        """The same with the fields of the setup that are not None; given generators or trainers share no devices."""
        given = {name: value for name, value in changes.items() if value is not None}
        split = "generators" in given or "trainers" in given
        if split:
            given["colocated"] = False
        return replace(self, setup=replace(self.setup, **given), split=split)


def parse_lags(text: str) -> list[int]:
    """`k=0,1,4,8` as numbers.

    Raises:
        InputError: it is not written so.
    """
    try:
        lags = [int(part) for part in text.removeprefix("k=").split(",")]
    except ValueError:
        lags = []
    if not lags or min(lags) < 0:
        raise InputError(f"--compare {text}: write lags as k=0,1,4,8")
    return lags


def answer(
    question: Question, lags: Sequence[int] | None, devices: int | None, steps: int, seed: int,
    tell: Callable[[str], None] = lambda what: None,
) -> list[Simulation]:  # fmt: skip
    """Simulate the setup, or with `lags` its alternatives, each with the best split of `devices` unless one is given.

    Args:
        steps: to simulate.
        seed: of the lengths drawn.
        tell: called with what is being simulated.
    """
    setups = [question.setup] if lags is None else alternatives(question.setup, lags)
    found = []
    for setup in setups:
        # As many updates of each: the batches of PPO-off-policy-k are k times as large.
        count = max(1, steps * setups[0].updates_per_step // setup.updates_per_step)
        tell(setup.name)
        if devices is None or question.split:
            found.append(simulate(setup, question.costs, question.lengths, count, seed))
        else:
            found.append(best_split(setup, question.costs, question.lengths, devices, count, seed, tell))
    return found


def as_json(question: Question, plans: Sequence[Simulation]) -> dict[str, Any]:
    """Costs, every plan with its bound, and what was measured, as plain values."""
    value: dict[str, Any] = {
        "costs": question.costs.model_dump(),
        "plans": [_plan(plan, question) for plan in plans],
        "defaults": list(question.assumed),
    }
    if question.measured is not None:
        value["measured"] = {
            "step_seconds": question.measured.step_seconds,
            "fits": [asdict(fit) for fit in question.measured.fits],
            "notes": list(question.measured.notes),
        }
    return value


def _plan(plan: Simulation, question: Question) -> dict[str, Any]:
    bound = settled_bound(plan, question.costs)
    updates = plan.setup.updates_per_step * plan.setup.passes_per_batch
    return {
        "name": plan.setup.name,
        "setup": asdict(plan.setup),
        "seconds_per_update": plan.update_seconds,
        "bound_seconds_per_update": bound.seconds / updates,
        "bound_by": bound.limit,
        "step_seconds": {
            "mean": plan.mean, "p50": plan.quantile(0.5), "p95": plan.quantile(0.95), "total": plan.total,
        },
        "trainer_idle": plan.trainer_idle,
        "generators_idle": plan.generators_idle,
        "running_sequences": plan.running,
        "tokens_per_second": plan.tokens_per_second,
        "mean_lag": plan.mean_lag,
        "updates_behind": plan.updates_behind,
        "max_lag": plan.max_lag,
    }  # fmt: skip
