"""The curriculum: which stage of training the run is in, which problem comes next, and the history of each.

    stages = Stages(config)                         # without the problems: all that a replay needs
    curriculum = Curriculum(config, dataset.problems)
    index = curriculum.next()                       # the problem of the next group
    curriculum.visited(index, group, step)          # its pass rate; a problem mastered may be retired
    if curriculum.advance(step): ...                # a new stage has begun; curriculum.config is its configuration

A stage is a list of differences against the one before (`config.Stage`). State is JSON-able.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strop.base.types import Group, Problem, StropError
from strop.data.history import History, Visit
from strop.data.sampler import make_sampler
from strop.data.source import problem_key

if TYPE_CHECKING:
    from strop.config.schema import RunConfig
    from strop.run.learners import Learning


class Stages:
    """The stages of a run: which one it is in, and what the learner takes from it."""

    def __init__(self, config: RunConfig) -> None:
        self._stages = config.stages
        self._configs = config.stage_configs()
        self.steps = config.steps
        self.stage = 0
        self._began = 0  # the step after which the stage began

    @property
    def config(self) -> RunConfig:
        """The configuration of the present stage."""
        return self._configs[self.stage]

    def steps_left(self, step: int) -> int:
        """How many steps the present stage still has at most, `step` steps of the run being done."""
        return self._steps_of(self.stage, self._began) - (step - self._began)

    def updates_left(self, step: int) -> int:
        """How many policy updates are planned until the learning-rate schedule ends: with the run, or where a later
        stage changes `optim`; `step` steps of the run are done.
        """
        total, done = 0, step
        for number in range(self.stage, len(self._configs)):
            config = self._configs[number]
            if number > self.stage and config.optim != self._configs[number - 1].optim:
                break
            end = done + (self.steps_left(step) if number == self.stage else self._steps_of(number, done))
            first = done if config.critic is None else max(done, config.critic.warmup_steps)
            total += max(end - first, 0) * config.batch.updates_per_step * config.batch.passes_per_batch
            done = end
        return total

    def enter(self, learner: Learning, step: int) -> None:
        """Have the learner train by the settings of the present stage; `step` steps of the run are done."""
        learner.enter(self.config.learner, self.updates_left(step))

    def replan(self, learner: Learning, step: int) -> None:
        """After a resume with other settings: let the learner's schedules end with the new plan."""
        learner.replan(self.updates_left(step), self.steps - step)

    def advance(self, step: int) -> bool:
        """Begin a new stage if one is due after `step` steps; return whether it is."""
        if self.stage == len(self._configs) - 1 or self.steps_left(step) > 0:
            return False
        self.stage, self._began = self.stage + 1, step
        return True

    def _steps_of(self, number: int, began: int) -> int:
        """The most steps of a stage that begins after `began` of the run."""
        left = self.steps - began
        given = self._stages[number].steps if number < len(self._configs) - 1 else None
        return left if given is None else min(given, left)

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return {"stage": self.stage, "began": self._began}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self.stage, self._began = state["stage"], state["began"]


class Curriculum(Stages):
    """Draws the problems of a run and keeps their history. Not thread-safe: only the controller draws.

    Args:
        config: of the run.
        problems: those it trains on.
    """

    def __init__(self, config: RunConfig, problems: Sequence[Problem]) -> None:
        super().__init__(config)
        self._size = len(problems)
        self._places: dict[tuple[str, str], list[int]] = {}  # a mixture lists problems as often as it repeats
        self._keys = [problem_key(problem) for problem in problems]
        for index, key in enumerate(self._keys):
            self._places.setdefault(key, []).append(index)
        self.sampler = make_sampler(config.data, problems, config.seed)
        self.history = History()

    def next(self) -> int:
        """The problem to ask next, by its index."""
        return self.sampler.next()

    def visited(self, index: int, group: Group, step: int) -> None:
        """Record a group that has left the ledger, trained or not. An open group is not recorded, because a resume
        generates it again. With No-Positive-Resampling a mastered problem is never asked again.
        """
        usable = group.usable
        visit = Visit(step, self.stage, len(usable), sum(rollout.verdict.passed for rollout in usable))
        self.history.add(index, visit)
        mastered = self.config.algorithm.selection.no_positive_resampling
        if usable and mastered is not None and visit.pass_rate >= mastered:
            self.retire([index])

    def retire(self, indices: Iterable[int]) -> None:
        """Never ask these problems again, including their copies in a mixture."""
        self.sampler.retire(copy for index in indices for copy in self._places[self._keys[index]])

    def advance(self, step: int) -> bool:
        """Begin a new stage if one is due after `step` steps; return whether it is.

        Raises:
            StropError: the new stage keeps no problem.
        """
        begins = super().advance(step)
        if begins:
            self._filter()
        return begins

    def _filter(self) -> None:
        keeps = self._stages[self.stage].problems
        if keeps is None:
            return
        self.sampler.retire(i for i in range(self._size) if not keeps(self.history.visits(i), self.stage))
        if self.sampler.left == 0:
            raise StropError(
                f"stages.{self.stage}.problems ({keeps.piece_name()}) keeps none of {self._size} problems; "
                "loosen it, or end the run before that stage"
            )

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return {"sampler": dict(self.sampler.state), "history": self.history.state(), **super().state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        super().load(state)
        self.sampler.restore(state["sampler"])
        self.history.load(state["history"])
