"""The question of `strop plan` and its answer: a simulation of each setup, or of its best split of the devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.base.types import InputError
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig
from strop.lab.planning.bound import pipeline_bound, settled_bound
from strop.lab.planning.costs import Costs, Setup, default_lengths, scalerl_costs, setup_of
from strop.lab.planning.lengths import Empirical, Lengths, parse_lengths
from strop.lab.planning.simulate import Generator, Simulation, simulate
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder

LEAST_STEPS = 4
Floats = NDArray[np.float64]
Rollouts = Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class FitQuality:
    """How well a cost formula describes the steps: R², and the root mean square residual over the mean."""

    what: str
    steps: int
    r_squared: float
    relative_error: float


@dataclass(frozen=True)
class MeasuredCosts:
    """The costs of a run, measured from its folder.

    Attributes:
        config: the run's.
        setup: its shape, with the share of dropped groups and the mean prompt length that were seen.
        lengths: of its completions, by group.
        costs, fits: least squares, and their quality.
        step_seconds: mean of the steps that were fitted, evaluation left out.
        notes: what a reader must know to trust it.
    """

    config: RunConfig
    setup: Setup
    lengths: Empirical
    costs: Costs
    fits: tuple[FitQuality, ...]
    step_seconds: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Step:
    """A step's seconds, and what was computed in it."""

    seconds: Mapping[str, float]
    updates: float
    tokens: float
    tickets: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    kept: float
    prompt: float

    @property
    def generated(self) -> int:
        return sum(map(sum, self.groups))


def measure(folders: Sequence[RunFolder]) -> MeasuredCosts:
    """Measure the costs of runs of at least a few steps each; the first step of each, which warms up, is left out.

    Configuration and shape are the first run's; the others add steps to the fits and groups to the lengths.

    Raises:
        InputError: a run has too few steps, its rollouts were removed, or its steps cannot be told apart (max_lag > 0).
    """
    runs = [_read(folder) for folder in folders]
    steps = [step for _, _, found in runs for step in found]
    decode, generation = _decoding([(step, setup) for _, setup, found in runs for step in found])
    train, update = _least_squares(
        "update", [step.seconds["update"] for step in steps],
        {"train_update": [step.updates for step in steps], "train_token": [step.tokens for step in steps]},
    )  # fmt: skip
    record, rest = _least_squares(
        "everything else", [step.seconds["rest"] for step in steps],
        {"record_step": [1.0] * len(steps), "record_token": [float(step.generated) for step in steps]},
    )  # fmt: skip
    publish = float(np.mean([step.seconds["publish"] for step in steps]))
    costs = Costs.model_validate(decode | train | record | {"publish": publish})
    config, setup, own = runs[0]
    groups = tuple(group for step in steps for group in step.groups)
    dropped = 1 - sum(step.kept for step in own) / sum(len(step.groups) for step in own)
    prompt = float(np.mean([step.prompt for step in own]))
    setup = replace(setup, drop=min(max(dropped, 0.0), 0.99), prompt_tokens=prompt)
    whole = float(np.mean([step.seconds["step"] for step in own]))
    fits = (generation, update, rest)
    return MeasuredCosts(config, setup, Empirical(groups), costs, fits, whole, _notes(config, steps))


def _read(folder: RunFolder) -> tuple[RunConfig, Setup, list[_Step]]:
    config = parse(folder.read_json("config.json"), str(folder.config_path), to_run=False)
    setup = setup_of(config)
    if setup.max_lag > 0:
        raise InputError(
            f"{folder.path}: with orchestration.max_lag={setup.max_lag} a step's seconds are of several steps' groups; "
            "measure a run of a few steps with orchestration.max_lag=0, then plan with --max-lag"
        )
    rows = {int(row["step"] or 0): row for row in folder.read_metrics() if row.get("seconds/step") is not None}
    at = [step for step in folder.rollout_steps() if step in rows]
    if len(at) <= LEAST_STEPS:
        raise InputError(f"{folder.path}: costs need more than {LEAST_STEPS} steps with rollouts, it has {len(at)}")
    return config, setup, [_step(rows[step], folder.read_rollouts(step)) for step in at[1:]]


def _step(row: Mapping[str, float | None], rollouts: Rollouts) -> _Step:
    groups: dict[int, list[int]] = {}
    prompts = []
    for rollout in sorted(rollouts, key=lambda rollout: (_integer(rollout["ticket"]), _integer(rollout["sample"]))):
        groups.setdefault(_integer(rollout["ticket"]), []).append(_size(rollout["token_ids"]))
        prompts.append(_size(rollout["prompt_ids"]))
    seconds = {name: row.get(f"seconds/{name}") or 0.0 for name in ("rollout", "update", "publish")}
    whole = (row["seconds/step"] or 0.0) - (row.get("seconds/evaluation") or 0.0)
    seconds |= {"step": whole, "rest": max(whole - sum(seconds.values()), 0.0)}
    lengths = tuple(tuple(group) for group in groups.values())
    kept = row.get("groups/trained")
    return _Step(
        seconds=seconds,
        updates=row.get("updates") or 1.0,
        tokens=row.get("tokens") or 0.0,
        tickets=tuple(groups),
        groups=lengths,
        kept=float(len(lengths)) if kept is None else kept,
        prompt=float(np.mean(prompts)),
    )


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


def _size(value: object) -> int:
    assert isinstance(value, list)
    return len(value)


def decode_steps(groups: Sequence[Sequence[int]], slots: int) -> int:
    """Decode steps of one engine until all sequences are done, `slots` at once, a free slot filled at once."""
    engine = Generator(Costs(decode_step=1.0), slots, 0.0)
    engine.submit(0.0, 0, [length for group in groups for length in group])
    while engine.next_end < float("inf"):
        engine.finish()
    return engine.steps


def _decoding(steps: Sequence[tuple[_Step, Setup]]) -> tuple[dict[str, float], FitQuality]:
    terms: dict[str, list[float]] = {"decode_step": [], "decode_sequence": []}
    for step, setup in steps:
        lengths = [length for group in _slowest(step, setup.generators) for length in group]
        terms["decode_step"].append(float(decode_steps([lengths], setup.slots)))
        terms["decode_sequence"].append(float(sum(lengths)))
    return _least_squares("generation", [step.seconds["rollout"] for step, _ in steps], terms)


def _slowest(step: _Step, generators: int) -> list[tuple[int, ...]]:
    """The groups of the generator with the most tokens: the step waits for it."""
    shares: list[list[tuple[int, ...]]] = [[] for _ in range(generators)]
    for ticket, group in zip(step.tickets, step.groups, strict=True):
        shares[ticket % generators].append(group)
    return max(shares, key=lambda share: sum(map(sum, share)))


def _least_squares(
    what: str, seconds: Sequence[float], terms: Mapping[str, Sequence[float]]
) -> tuple[dict[str, float], FitQuality]:
    """Coefficients of at least 0 of the named terms, with the least squares of relative residuals."""
    from scipy.optimize import nnls

    target = np.array(seconds, np.float64)
    columns = np.array(list(terms.values()), np.float64).T
    # Columns of like size, or nnls takes the small ones for rounding.
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    found, _ = nnls(columns / scale, target)
    predicted = columns / scale @ found
    spread = float(((target - target.mean()) ** 2).sum())
    unexplained = float(((target - predicted) ** 2).sum())
    quality = FitQuality(
        what,
        len(target),
        r_squared=1 - unexplained / spread if spread > 0 else 1.0,
        relative_error=float(np.sqrt(np.mean((predicted - target) ** 2)) / max(target.mean(), 1e-300)),
    )
    return dict(zip(terms, (float(value) for value in found / scale), strict=True)), quality


def _notes(config: RunConfig, steps: Sequence[_Step]) -> tuple[str, ...]:
    notes = []
    means = [step.generated / sum(map(len, step.groups)) for step in steps]
    first, last = float(np.mean(means[: len(means) // 2])), float(np.mean(means[len(means) // 2 :]))
    if abs(last / first - 1) > 0.2:
        notes.append(f"mean length changed from {first:.0f} to {last:.0f} tokens during the run; both are drawn from")
    longest = max(length for step in steps for group in step.groups for length in group)
    if longest >= config.sampling.max_new_tokens:
        notes.append(f"some completions were cut at {longest} tokens: what a larger budget would cost is not known")
    return tuple(notes)


COARSE = 12
BOUND_DRAWS = 400
SEARCH_STEPS = 12  # settled ones, on top of those that fill and drain the pipeline
Split = tuple[int, int]  # generators, trainers


def splits(devices: int, devices_per_generator: int) -> list[Split]:
    """Every (generators, trainers) that uses all of `devices`.

    Raises:
        InputError: there are too few devices for one generator and one trainer.
    """
    most = (devices - 1) // devices_per_generator
    if most < 1:
        raise InputError(
            f"{devices} devices are too few for a generator of {devices_per_generator} and a trainer; give more devices"
        )
    return [(count, devices - count * devices_per_generator) for count in range(1, most + 1)]


def best_split(
    setup: Setup,
    costs: Costs,
    lengths: Lengths,
    devices: int,
    steps: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda what: None,
) -> Simulation:
    """The split of `devices` with the least simulated seconds per update.

    A coarse grid of splits is tried on few steps, then those between the neighbours of its best; a split whose bound
    already is worse than what was found is not simulated. The best is simulated for all `steps`.

    Raises:
        InputError: too few devices.
    """
    found: dict[Split, Simulation] = {}
    every = splits(devices, setup.devices_per_generator)
    few = min(steps, max(SEARCH_STEPS // setup.updates_per_step, 3) + 2 * setup.max_lag)

    def try_all(candidates: Sequence[Split]) -> None:
        chosen = [_with(setup, split) for split in candidates if split not in found]
        bounds = {id(each): pipeline_bound(each, costs, lengths, BOUND_DRAWS, seed).seconds for each in chosen}
        for each in sorted(chosen, key=lambda each: bounds[id(each)]):
            updates = each.updates_per_step * each.passes_per_batch
            best = min((result.update_seconds for result in found.values()), default=float("inf"))
            if bounds[id(each)] / updates < best:
                progress(f"{each.name}: {each.generators} generators, {each.trainers} trainers")
                found[(each.generators, each.trainers)] = simulate(each, costs, lengths, few, seed)

    stride = max(1, len(every) // COARSE)
    try_all([*every[::stride], every[-1]])
    while stride > 1:
        at = every.index(_best(found))
        stride = max(1, stride // 2)
        try_all([every[place] for place in (at - stride, at + stride) if 0 <= place < len(every)])
    return simulate(_with(setup, _best(found)), costs, lengths, steps, seed)


def _with(setup: Setup, split: Split) -> Setup:
    return replace(setup, generators=split[0], trainers=split[1], colocated=False)


def _best(found: dict[Split, Simulation]) -> Split:
    return min(found, key=lambda split: (found[split].update_seconds, split[1]))


def alternatives(setup: Setup, lags: Sequence[int]) -> list[Setup]:
    """For each k PipelineRL-k (k = 0: synchronous), and for k ≥ 2 also PPO-off-policy-k."""
    found: list[Setup] = []
    for k in lags:
        found.append(setup.pipeline(k))
        if k >= 2:
            found.append(setup.alternating(k))
    return found


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
    measured: MeasuredCosts | None
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
