"""Costs measured from a run folder: least squares over its steps, and how well they fit.

    seconds/rollout         = decode_step·(decode steps) + decode_sequence·(generated tokens)
    seconds/update          = train_update·(updates) + train_token·(tokens) / ranks
    verify, other − publish = record_step + record_token·(generated tokens)

No coefficient is below zero. The decode steps are counted by putting the lengths of the step's rollouts, in the order
of their tickets, into as many slots as the engine has. Where all steps are alike the two terms of a line cannot be told
apart: measure a run whose lengths change, or several runs of other batch sizes together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from strop.base.types import InputError
from strop.config.parse import parse
from strop.config.schema import RunConfig
from strop.lab.planning.costs import Costs
from strop.lab.planning.generator import Generator
from strop.lab.planning.lengths import Empirical
from strop.lab.planning.setup import Setup, setup_of
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
class Measured:
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


def measure(folders: Sequence[RunFolder]) -> Measured:
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
    return Measured(config, setup, Empirical(groups), costs, fits, whole, _notes(config, steps))


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
