"""The loop: problems → completions → verdicts → groups → filter → advantages → batch → update → publish weights.

There is one loop for strict on-policy training and for PipelineRL-k; only the lag gate's k and the executor differ.

    controller (this file, the single writer)                     generators (behind the executor)
    ─────────────────────────────────────────                     ────────────────────────────────
    admit    gate opens groups, sampler names problems ──request──▶ sample tokens, each with its
                                                                      log-prob and weight version
    collect  completion ◀──────────────────────────────completion──── (n a request, as they finish)
             └─▶ judge (verifier or environment, while others generate) ─▶ verdict
                 └─▶ or an observation, and the turn behind it ──request──▶ as any other
    resolve  the last verdict of a group: selection keeps or drops it; the gate hears of it
    train    gate.batch() names the P oldest resolved groups, once the rest can still be in time
             learner: scores ─▶ advantages ─▶ samples ─▶ updates ─▶ optimizer
    publish  a new version ──────────────────────────────weights────▶ taken when each can, between two tokens
    record   metrics, rollouts, checkpoint; an evaluation begins, here or in a worker (`run`), and comes in later

At k = 0 the gate lets nothing stay open over a step, so each arrow is followed by the next; with k > 0 the left and the
right column run at the same time, and nothing in this file changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.algorithms.alerts import Memory, alerts
from strop.algorithms.pass_rates import Seen, predicted_rates
from strop.algorithms.step_diagnostics import group_metrics, lag_metrics, step_diagnostics, verifier_failures
from strop.base import progress
from strop.base.metrics import merge, values
from strop.base.pieces import States
from strop.base.sample import Sample
from strop.base.seeds import derive
from strop.base.types import Completion, Group, Observation, StropError, Verdict
from strop.engines.protocol import Request
from strop.environments.turns import counted, next_turn, out_of_room, unspoken, within
from strop.orchestration.executor import Executor, Lost, Probe, Publication
from strop.orchestration.lag_gate import BatchTickets, LagGate, Ledger, LedgerGroup
from strop.run.curriculum import Curriculum
from strop.training.samples import TrainResult, is_trained_on
from strop.verifiers.protocol import Responder

if TYPE_CHECKING:
    from strop.base.view import View
    from strop.config.schema import RunConfig
    from strop.data.dataset import Dataset
    from strop.run.learners import Learning


class NothingToLearn(StropError):
    """Many batches in a row had no group to train on; `groups` are the groups of those batches."""

    def __init__(self, message: str, groups: Sequence[Group]) -> None:
        super().__init__(message)
        self.groups = tuple(groups)


def nothing_to_learn(config: RunConfig, step: int, groups: Sequence[Group], batches: int) -> NothingToLearn:
    """The error after `batches` batches without a group to train on; `step` steps of the run are done."""
    said = f"step {step + 1}: {batches} batches' worth of groups in a row"
    mask, selection = config.algorithm.truncation_mask, config.algorithm.selection
    if mask.startswith("drop") and all(one.completion.truncated for group in groups for one in group.usable):
        budget = config.sampling.max_new_tokens
        return NothingToLearn(
            f"{said} had only cut-off completions, which algorithm.truncation_mask={mask} leaves out; raise "
            f"sampling.max_new_tokens (it is {budget}), or train on them with algorithm.truncation_mask=none",
            groups,
        )
    rate = values(group_metrics(groups, ()))["pass_rate"]
    passed = "unknown" if rate is None else f"{rate:.1%}"
    broken = ", or training has broken it (optim.lr too high?)" if step else ""
    refill = "algorithm.selection.refill=false and " if selection.refill else ""
    return NothingToLearn(
        f"{said} had no rollouts of different outcome (pass rate of the last ones: {passed}): the problems are too "
        f"hard or too easy for this model{broken}; take others or a better starting model, or train on all groups with "
        f"{refill}algorithm.selection.zero_variance=keep",
        groups,
    )


class Clock:
    """Seconds by section since the last `lap`. Sections do not nest; time outside every section is `other`."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._sections: dict[str, float] = {}

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Count the block towards `name`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._sections[name] = self._sections.get(name, 0.0) + time.perf_counter() - begin

    def lap(self) -> dict[str, float]:
        """Seconds of each section, `other` and `step` (their sum) since the last lap; starts the next."""
        now = time.perf_counter()
        whole = now - self._begin
        spent = {name: self._sections.get(name, 0.0) for name in ("rollout", "verify", "update")}
        spent |= self._sections
        lap = {**spent, "other": max(whole - sum(spent.values()), 0.0), "step": whole}
        self._begin, self._sections = now, {}
        return lap


EMPTY_BATCHES_BEFORE_GIVING_UP = 50
JUDGE_SECONDS = 0.2
PROBE_TOKENS = 64  # of a prompt, and as many of a completion
BRIEFLY, PATIENCE = 0.002, 0.1  # seconds to wait for generators: with verdicts due, and with nothing due


@dataclass(frozen=True)
class StepRecord:
    """A finished training step.

    Fields:
        metrics: of the step.
        groups: all of it; the first `skipped` are of batches without a trained group, which the learner did not take.
        samples: those that were trained on.
        kept: tickets of the groups that passed selection.
        states: of stateful pieces when the learner took the batch.
    """

    step: int
    metrics: dict[str, float | None]
    groups: tuple[Group, ...]
    samples: tuple[Sample, ...]
    skipped: int
    kept: tuple[int, ...]
    states: dict[str, Any]


class Loop:
    """The controller. `next_step` trains one step and returns its record, which the caller writes to disk.

    `prompted` gives each group that is trained on the prompts that a teacher reads (`run.reference.teacher_prompts`).
    """

    def __init__(
        self, config: RunConfig, dataset: Dataset, executor: Executor, judge: Responder, learner: Learning, view: View,
        prompted: Callable[[Group], Group] = lambda group: group,
    ) -> None:  # fmt: skip
        self.dataset = dataset
        self.executor = executor
        self.judge = judge
        self.learner = learner
        self.view = view
        self.clock = Clock()
        self.step = 0
        self.interrupted = False
        self.curriculum = Curriculum(config, dataset.problems)
        self.config = self.curriculum.config
        orchestration = config.orchestration
        self._prompted = prompted
        self.gate = LagGate(
            config.batch.prompts_per_step, orchestration.max_lag, refill=False, adaptive=orchestration.adapts_window
        )
        self.ledger = Ledger()
        self.states = States(self.config)
        self._resolved: dict[int, Group] = {}
        self._refilled: list[Group] = []  # dropped and replaced since the last trained step
        self._skipped: list[Group] = []  # of batches without a trained group since then
        self._empty_batches = 0
        self._open: list[dict[str, Any]] = []  # groups that were open at the loaded checkpoint
        self._alerts: Memory = {}
        self._told_of_scale = False
        self._reported = 0  # the progress count at the last report
        self._enter_stage()

    # ------------------------------------------------------------------ one step

    def next_step(self) -> StepRecord | None:
        """Generate, judge and train until one more step is trained; None when interrupted before that."""
        self.gate.trained(time.perf_counter())
        while not self.interrupted:
            self._admit()
            self._collect()
            batch = self.gate.batch()
            if batch is not None:
                self.gate.trains(batch, time.perf_counter())
                record = self._train(batch)
                if record is not None:
                    return record
                continue
            self.gate.waits(time.perf_counter())
            if not self.executor.unfinished and not self.judge.pending and not self._may_admit():
                raise StropError(f"step {self.step + 1}: nothing is being generated and no batch can be formed")
        return None

    def _may_admit(self) -> bool:
        # Not beyond the stage: groups are trained under the settings they were generated with.
        return self.gate.admits(self.curriculum.steps_left(self.step))

    def _admit(self) -> None:
        drawn: list[tuple[int, int]] = []  # ticket and problem
        while self._may_admit():
            drawn.append((self.gate.admit(), self.curriculum.next()))
        for (ticket, index), samples in zip(drawn, self._sizes([index for _, index in drawn]), strict=True):
            self._request(self.ledger.admit(ticket, index, self.dataset[index].problem, samples))

    def _sizes(self, indices: Sequence[int]) -> list[int]:
        """How many completions each of these problems gets, which were drawn together."""
        samples, allocation = self.config.batch.samples_per_prompt, self.config.algorithm.allocation
        if allocation is None or not indices:
            return [samples] * len(indices)
        latest = self.curriculum.history.latest(indices)
        seen = (Seen(self.dataset[index].prompt_ids, visit.samples, visit.passed) for index, visit in latest)
        return allocation(predicted_rates([self.dataset[index].prompt_ids for index in indices], seen), samples)

    def _request(self, entry: LedgerGroup) -> None:
        if self.judge.speaks_first:
            for sample in range(entry.samples):
                self.judge.begin((entry.request_id, sample), entry.problem, self._seed(entry))
            return
        prompt_ids = self.dataset[entry.index].prompt_ids
        sampling = within(self.config.sampling, self.judge.turn_tokens)
        request = Request(
            entry.request_id, prompt_ids, sampling, self._seed(entry), entry.samples, keeps=self.judge.several_turns
        )
        self.executor.submit(request, entry.ticket, entry.attempt)

    def _seed(self, entry: LedgerGroup) -> int:
        """The group's seed. It does not depend on the attempt, so a lost group is regenerated identically."""
        return derive(self.config.seed, "request", entry.ticket)

    def _collect(self) -> None:
        with self.clock.section("rollout"):
            events = self.executor.poll(self._patience())
        for event in events:
            if isinstance(event, Lost):
                self._regenerate(event)
            else:
                self._hand_to_judge(event)
        self._report()
        with self.clock.section("verify"):
            if not self.executor.unfinished:
                self.judge.wait(JUDGE_SECONDS)  # nothing else to do
            answers = self.judge.poll()
        if answers:
            progress.made("a verdict")
        for (request_id, sample), answer in answers:
            if isinstance(answer, Observation):
                self._go_on(request_id, sample, answer)
            else:
                self._write_down(request_id, sample, answer)

    def _report(self) -> None:
        """Show the progress of the rollout, if there was any since the last report."""
        if progress.CURRENT.count > self._reported:
            made, wanted = self.ledger.completions
            if self.judge.pending and not self.executor.unfinished:
                progress.part("verdicts", wanted - self.judge.pending, wanted)
            else:
                progress.part("completions", made, wanted)
            self._reported = progress.CURRENT.count

    def _patience(self) -> float:
        if self.gate.batch() is not None:
            return 0.0
        return BRIEFLY if self.judge.pending else PATIENCE

    def _regenerate(self, lost: Lost) -> None:
        old = self.ledger.find(lost.request_id)
        if old is None:
            return
        self.judge.forget(old.request_id)
        for request_id in old.request_ids:
            self.executor.cancel(request_id)
        entry = self.ledger.retry(lost.request_id)
        self.gate.restart(entry.ticket)
        self.view.note(f"group {entry.ticket} is generated again (attempt {entry.attempt + 1}): {lost.reason}")
        self._request(entry)

    def _hand_to_judge(self, completion: Completion) -> None:
        if completion.finish_reason == "abort":
            self._regenerate(Lost(completion.request_id, "its generation was cancelled"))
            return
        entry = self.ledger.find(completion.request_id)
        if entry is not None:
            turn = counted(completion, self.config.sampling, self.judge.turn_tokens)
            sample = self.ledger.record(entry, turn)
            self.judge.submit((entry.request_id, sample), entry.problem, turn, self._seed(entry))

    def _go_on(self, request_id: str, sample: int, observation: Observation) -> None:
        """Request the next turn of a sample whose environment has answered with an observation."""
        entry = self.ledger.find(request_id)
        if entry is None:
            return
        whole, limit = entry.completions.get(sample), self.judge.turn_tokens
        key, seed = (request_id, sample), self._seed(entry)
        request = next_turn(key, whole, observation, self.config.sampling, limit, seed)
        if request is None:
            assert whole is not None, "a first turn has room"
            entry.completions[sample], turn = out_of_room(whole)
            self.judge.submit(key, entry.problem, turn, seed)
            return
        self.ledger.take_turn(entry, request.id, sample, observation)
        self.executor.submit(request, entry.ticket, entry.attempt)

    def _write_down(self, request_id: str, sample: int, verdict: Verdict) -> None:
        entry = self.ledger.find(request_id)
        if entry is None:
            return
        if sample not in entry.completions:
            prompt_ids = self.dataset[entry.index].prompt_ids
            entry.completions[sample] = unspoken(request_id, sample, prompt_ids)
        reward = 0.0
        if verdict.usable:
            reward = self.config.algorithm.reward_of(entry.completions[sample], verdict)
        group = self.ledger.judge(entry, sample, verdict, reward)
        if group is None:
            return
        keep = is_trained_on(group, self.config.algorithm)
        self.gate.resolve(group.ticket, keep)
        if keep or not self.config.algorithm.selection.refill:
            self._resolved[group.ticket] = group
        else:
            self._refilled.append(group)
            self._forget(group)
            if len(self._refilled) >= self.config.batch.prompts_per_step:
                self._refuse_unjudged(self._refilled)
            if len(self._refilled) >= EMPTY_BATCHES_BEFORE_GIVING_UP * self.config.batch.prompts_per_step:
                raise nothing_to_learn(self.config, self.step, self._refilled, EMPTY_BATCHES_BEFORE_GIVING_UP)

    def _forget(self, group: Group) -> None:
        """Mark the group as finished: a resume will not regenerate it."""
        self.curriculum.visited(self.ledger.forget(group.ticket).index, group, self.step + 1)

    # ------------------------------------------------------------------ training

    def _train(self, batch: BatchTickets) -> StepRecord | None:
        """Train on a batch; None where no group of it is trained on, which makes no step."""
        version = self.gate.version
        chosen = [self._resolved.pop(ticket) for ticket in (*batch.kept, *batch.dropped)]
        groups = sorted(map(self._prompted, [*chosen, *self._refilled]), key=lambda group: group.ticket)
        self._refilled = []
        with self.clock.section("update"), progress.doing(f"the update of step {self.step + 1}"):
            result = self.learner.learn(groups, set(batch.kept), self.step, self.states.values)
        progress.made(f"the update of step {self.step + 1}")
        for group in chosen:
            self._forget(group)
        self.gate.close(batch, trained=result is not None)
        if result is None:
            self._refuse_unjudged(groups)
            self._skipped += groups
            self._empty_batches += 1
            if self._empty_batches >= EMPTY_BATCHES_BEFORE_GIVING_UP:
                raise nothing_to_learn(self.config, self.step, self._skipped, self._empty_batches)
            return None
        self.step += 1
        return self._finish_step(groups, batch, result, version)

    def _finish_step(self, taken: list[Group], batch: BatchTickets, result: TrainResult, version: int) -> StepRecord:
        """Publish the new weights and collect the metrics of the step, in which the learner took these groups."""
        groups, skipped = [*self._skipped, *taken], len(self._skipped)
        self._skipped, self._empty_batches, states = [], 0, dict(self.states.values)
        publication = self._publish(groups[0].rollouts[0].completion)
        progress.made(f"the publication of version {self.gate.version}")
        parts = [
            result.metrics,
            step_diagnostics(groups, result.samples, batch.kept),
            lag_metrics(result.samples, version, self.gate.max_lag),
        ]
        row = values(merge(parts)) | {"version": float(self.gate.version), "seconds/publish": publication.seconds}
        if self.gate.max_lag:
            row["lag/window"] = self.gate.window.batches
        row |= {"stage": float(self.curriculum.stage), "problems/left": float(self.curriculum.sampler.left)}
        if publication.idle is not None:
            row["idle/generators"] = publication.idle
        self.states.update(row)
        row |= self.states.numbers()
        self._warn(groups, row)
        if self.curriculum.advance(self.step):
            self.config = self.curriculum.config
            self._enter_stage()
            stage, left = self.curriculum.stage, self.curriculum.sampler.left
            self.view.note(f"step {self.step}: stage {stage} begins, with {left} of {len(self.dataset)} problems")
        return StepRecord(self.step, row, tuple(groups), result.samples, skipped, batch.kept, states)

    def _enter_stage(self) -> None:
        """Apply the configuration of the current stage to every part."""
        self.gate.prompts_per_step = self.config.batch.prompts_per_step
        self.gate.refill = self.config.algorithm.selection.refill
        self.states.enter(self.config)
        self.curriculum.enter(self.learner, self.step)

    def _publish(self, drawn: Completion | None = None) -> Publication:
        """Publish the weights, with a probe of which each generator computes the log-probs.

        No other check notices a generator that kept an old output head. The probe ends with tokens of `drawn`: what
        was sampled is what is trained on.
        """
        prompt = (self.dataset[0] if drawn is None else drawn).prompt_ids[-PROBE_TOKENS:]
        sampled = prompt[:0] if drawn is None else drawn.token_ids[:-1][:PROBE_TOKENS]  # never longer than `drawn` was
        token_ids = np.concatenate([prompt, sampled])
        token_ids = np.resize(token_ids, max(len(token_ids), 2))
        probe = Probe(token_ids, min(len(sampled), len(token_ids) - 1), self.learner.probe(token_ids))
        return self.executor.publish(self.gate.version, probe)

    def _refuse_unjudged(self, groups: list[Group]) -> None:
        """End a run whose verifier failed on a whole batch."""
        if all(rollout.verdict.failed for group in groups for rollout in group.rollouts):
            raise StropError(f"step {self.step + 1}: no completion could be judged: {verifier_failures(groups)[0]}")

    def _warn(self, groups: list[Group], row: Mapping[str, float | None]) -> None:
        for line in verifier_failures(groups):
            self.view.note(f"step {self.step}: {line}; the sample left the loss")
        self._warn_of_rewards_without_scale(groups)
        if self.config.batch.samples_per_prompt == 1:
            row = {**row, "groups/zero_variance_share": None}  # always 1 for groups of one
        lines, self._alerts = alerts(row, self._alerts, self.config.alerts, self.step / self.config.steps)
        for line in lines:
            self.view.note(f"step {self.step}: {line}")

    def _warn_of_rewards_without_scale(self, groups: list[Group]) -> None:
        """Warn once if the reward functions do not say which answers are right."""
        verdicts = (rollout.verdict for group in groups for rollout in group.rollouts)
        found = next((one.detail for one in verdicts if one.undecided and one.reward is not None), None)
        if found is not None and not self._told_of_scale:
            self._told_of_scale = True
            self.view.note(
                f"step {self.step}: {found}: nothing says which answers are right, and pass "
                "rates count none of these; let the function that knows return True or False, and weigh it: "
                "reward={right: 2.0, brief: 0.5}"
            )

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """The state that the next step depends on, without tensors, after the last finished step; JSON-able."""
        return {
            "step": self.step,
            "gate": self.gate.state(),
            "curriculum": self.curriculum.state(),
            "states": dict(self.states.values),
            "open": self.ledger.state(),
            "empty_batches": self._empty_batches,
            "alerts": self._alerts,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a `state()`. Call `reopen` once the learner has its weights."""
        self.step = state["step"]
        self.gate.load(state["gate"])
        self.curriculum.load(state["curriculum"])
        self.config = self.curriculum.config
        self._enter_stage()
        self.states.load(state["states"])
        self._empty_batches = state["empty_batches"]
        self._alerts = state["alerts"]
        self._open = state["open"]

    def reopen(self) -> None:
        """Start, or continue after `load`: publish the weights and regenerate the groups that were open."""
        self._publish()
        for row in self._open:
            self.gate.restart(row["ticket"])
            problem = self.dataset[row["index"]].problem
            entry = self.ledger.admit(row["ticket"], row["index"], problem, row["samples"], row["attempt"] + 1)
            self._request(entry)
        self._open = []
