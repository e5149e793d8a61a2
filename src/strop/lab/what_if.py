"""What the gradients of a run would have been under other settings of the algorithm, on the rollouts that it stored.

    other = Alternative("cispo", ("algorithm.loss=Cispo",))
    for comparisons in what_if(RunFolder.open("runs/first"), [other], view):
        ...                                         # one a step and alternative

The run is replayed; before each of its updates the gradient is taken under every alternative too, at the same weights,
before clipping and before the optimizer. That is exact for this update and says nothing about the run that would have
followed: its weights, and then its rollouts, would have been others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from strop.algorithms.objective import UpdateContext
from strop.base.metrics import Metrics, merge
from strop.base.pieces import States
from strop.base.text import number, percent
from strop.base.types import InputError, StropError
from strop.base.view import View
from strop.config.edits import differing
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig
from strop.lab.replay import StoredStep, TrainingProcess, stored_steps
from strop.run.folder import RunFolder, config_of_step
from strop.training.learner import Learner, objective_of
from strop.training.packing import Update
from strop.training.samples import is_trained_on
from strop.training.step import Outputs, Trainer, TrainingObjective

LEAST = 0.5  # of the sequences: a gradient that fewer effective ones carry is not compared


class Alternative(NamedTuple):
    """Settings to compare with, as `--set` takes them, under a name."""

    name: str
    sets: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """The gradients of a step under an alternative and as recorded; None where the effective sample is too small.

    Fields:
        cosine: between the two, the mean over the step's updates; None also where one of them is 0.
        norm: of the alternative's, before clipping, the mean over the updates; `recorded_norm` likewise.
        clipped: the share of trained tokens whose gradient its loss cuts; None if it cuts none by a ratio.
        trained_tokens: over all updates.
        effective: (Σ w)² / (n Σ w²) of the update's n sequences, w = π / π_generator of all its trained tokens; the
            least of the updates.
    """

    step: int
    alternative: str
    effective: float
    cosine: float | None = None
    norm: float | None = None
    recorded_norm: float | None = None
    clipped: float | None = None
    recorded_clipped: float | None = None
    trained_tokens: int | None = None
    recorded_trained_tokens: int | None = None


def what_if(
    folder: RunFolder, alternatives: Sequence[Alternative], view: View, begin: int = 0, end: int | None = None
) -> Iterator[list[Comparison]]:
    """The comparisons of each step after `begin` (see `replay`) up to `end`; none for a step that taught only a critic.

    Raises:
        InputError: an alternative changes what stored rollouts cannot answer.
        StropError: a step cannot be replayed, or not to what was recorded.
    """
    for alternative in alternatives:
        changed(parse(config_of_step(folder, begin + 1), "config.json"), alternative)
    for process, stored in stored_steps(folder, view, begin, end):
        yield _compared(process, stored, alternatives)


def changed(config: RunConfig, alternative: Alternative) -> RunConfig:
    """The configuration with an alternative's settings.

    Raises:
        InputError: they change nothing, or something other than how a gradient is made of rewards.
    """
    found = edit(config, alternative.sets)
    keys = [key for key, *_ in differing(config.model_dump(mode="json"), found.model_dump(mode="json"))]
    if not keys:
        raise InputError(f"{alternative.name}: these are the settings of the run; name others")
    for key in keys:
        if key.startswith(("algorithm.reward", "algorithm.shaping", "verifier")):
            raise InputError(f"--set {key}: that changes rewards; compare them with strop rejudge RUN --set {key}=…")
        if not key.startswith("algorithm.") or key.startswith("algorithm.reference"):
            raise InputError(f"--set {key}: stored rollouts answer only for settings of the algorithm, algorithm.…")
    return found


@dataclass
class _Side:
    """The gradients of a step's updates under one configuration."""

    objective: TrainingObjective
    updates: Iterator[tuple[Update, UpdateContext]]
    metrics: list[Metrics] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    effective: float = 1.0
    tokens: int = 0

    def take(self, trainer: Trainer) -> dict[str, Tensor]:
        """The gradient of the next update by parameter name; nothing where there is none."""
        given = next(self.updates, None)
        if given is None:
            self.norms.append(0.0)
            return {}
        trainer.objective = self.objective
        metrics, norm = trainer.gradient(*given)
        self.metrics.append(metrics)
        self.norms.append(float(norm))
        self.tokens += given[0].trained_tokens
        self.effective = min(self.effective, effective_share(given[0], trainer.outputs))
        return trainer.optimizer.gradients()

    def clipped(self) -> float | None:
        """The share of its trained tokens that the loss clips."""
        found = merge(self.metrics).get("ratio/clipped_share") if self.metrics else None
        return None if found is None else found.value


def _compared(process: TrainingProcess, stored: StoredStep, alternatives: Sequence[Alternative]) -> list[Comparison]:
    """Replay a step, and compare its gradients with those under every alternative."""
    learner = process.learner
    if not isinstance(learner, Learner):
        raise InputError("orchestration.trainers: gradients are compared in one process, and this run used several")
    others = [_other(process, learner, stored, alternative) for alternative in alternatives]
    recorded = _Side(learner.trainer.objective, iter(()))

    def before(update: Update, context: UpdateContext) -> None:
        trainer = learner.trainer
        recorded.updates = iter([(update, context)])
        own = {name: gradient.clone() for name, gradient in recorded.take(trainer).items()}
        for other in others:
            theirs, norms = other.take(trainer), other.norms[-1] * recorded.norms[-1]
            if norms > 0:
                other.cosines.append(max(-1.0, min(1.0, _dot(own, theirs) / norms)))  # but for rounding
        trainer.objective = recorded.objective

    learner.before_update = before
    done = process.replayed(stored)
    if done.difference is not None:
        raise StropError(f"step {done.step} does not replay, so that its gradients are not known: {done.difference}")
    return [
        _comparison(stored.step, alternative.name, recorded, other)
        for alternative, other in zip(alternatives, others, strict=True)
        if recorded.norms
    ]


def _other(process: TrainingProcess, learner: Learner, stored: StoredStep, alternative: Alternative) -> _Side:
    """What an alternative trains on in a step, computed with the weights before it."""
    before, record, step = process.stages.config, stored.record, stored.step - 1
    after = changed(before, alternative)
    algorithm, groups = after.algorithm, stored.groups()
    if algorithm.needs_reference and learner.reference is None:
        raise InputError(f"{alternative.name}: it reads a reference policy, and this run kept none")
    settings = learner.settings.model_copy(update={"algorithm": algorithm})
    own = Learner(settings, learner.trainer, learner.critic, learner.references, learner.storage)
    states = States(before)
    states.load({path: dict(state) for path, state in record.states.items()})
    states.enter(after)
    left_out = {g.ticket for g in groups if g.ticket not in record.kept and is_trained_on(g, before.algorithm)}
    kept = {group.ticket for group in groups if is_trained_on(group, algorithm)} - left_out
    samples = own.samples(groups, kept)
    updates: Any = () if samples is None else own.updates(samples, step, states.values)
    return _Side(objective_of(algorithm), ((update, context) for _, update, context in updates))


def _comparison(step: int, name: str, recorded: _Side, other: _Side) -> Comparison:
    effective = min(recorded.effective, other.effective)
    if effective < LEAST:
        return Comparison(step, name, effective)
    return Comparison(
        step, name, effective,
        cosine=sum(other.cosines) / len(other.cosines) if other.cosines else None,
        norm=sum(other.norms) / len(other.norms), recorded_norm=sum(recorded.norms) / len(recorded.norms),
        clipped=other.clipped(), recorded_clipped=recorded.clipped(),
        trained_tokens=other.tokens, recorded_trained_tokens=recorded.tokens,
    )  # fmt: skip


def effective_share(update: Update, outputs: Sequence[Outputs]) -> float:
    """(Σ w)² / (n Σ w²) over the n sequences of an update, w = π / π_generator; 1 where all weigh the same."""
    logs = []
    for batch, (logprob, _) in zip(update.micro_batches, outputs, strict=True):
        gap = logprob.double().cpu() - batch.tokens.generator_logprob.double().cpu()
        _, place = torch.unique_consecutive(batch.tokens.sequence.cpu(), return_inverse=True)
        logs.append(torch.zeros(int(place.max()) + 1, dtype=torch.float64).index_add(0, place, gap))
    log = torch.cat(logs)
    weight = (log - log.max()).exp()
    return float(weight.sum() ** 2 / (len(weight) * (weight**2).sum()))


def _dot(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """The inner product of two gradients; a parameter that one of them lacks has none in it."""
    shared = first.keys() & second.keys()
    return sum(float(torch.dot(first[name].flatten(), second[name].flatten())) for name in shared)


# ---------------------------------------------------------------------- as text


COLUMNS = ("settings", "steps", "cosine", "least", "norm", "recorded", "clipped", "recorded", "effective, least")
REFUSED = f"not compared: the effective sample is below {percent(LEAST)} of the sequences"


def said(one: Comparison) -> str:
    """A comparison as a line."""
    begin = f"step {one.step}, {one.alternative}: "
    if one.norm is None:
        return f"{begin}{REFUSED} ({percent(one.effective)})"
    cosine = "one gradient is 0" if one.cosine is None else f"cosine {one.cosine:.3f}"
    return (
        f"{begin}{cosine}, norm {number(one.norm)} for {number(one.recorded_norm or 0.0)}, clipped "
        f"{_share(one.clipped)} for {_share(one.recorded_clipped)}, effective sample {percent(one.effective)}"
    )


def table(found: Sequence[Comparison]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and a row for each alternative: means over the steps that could be compared, of how many."""
    rows = []
    for name in dict.fromkeys(one.alternative for one in found):
        own = [one for one in found if one.alternative == name]
        cosines = _known(own, lambda one: one.cosine)
        means = [_mean(own, lambda one: one.norm), _mean(own, lambda one: one.recorded_norm)]
        shares = [_mean(own, lambda one: one.clipped), _mean(own, lambda one: one.recorded_clipped)]
        rows.append((
            name, f"{sum(one.norm is not None for one in own)} of {len(own)}",
            *((f"{fmean(cosines):.3f}", f"{min(cosines):.3f}") if cosines else ("-", "-")),
            *("-" if mean is None else number(mean) for mean in means), *map(_share, shares),
            percent(min(one.effective for one in own)),
        ))  # fmt: skip
    return COLUMNS, rows


def _known(found: Sequence[Comparison], value: Callable[[Comparison], float | None]) -> list[float]:
    return [known for one in found if (known := value(one)) is not None]


def _mean(found: Sequence[Comparison], value: Callable[[Comparison], float | None]) -> float | None:
    known = _known(found, value)
    return fmean(known) if known else None


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)
