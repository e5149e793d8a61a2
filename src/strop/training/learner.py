"""The learner: from a batch of judged groups to new parameters.

    groups ─▶ candidates ─▶ scored once a batch ─▶ advantages ─▶ samples ─┬─▶ critic: its updates
                            (old policy, reference,                       └─▶ policy: its updates
                             critic: what the pieces need)

What a paper adds (a critic, a reference policy, recomputed anchors, token types) is an optional piece or module; the
order is always the same. The scores that pieces need are computed once a batch, before its first update; scores of the
policy at each update are computed by the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.objective import Objective, UpdateContext
from strop.algorithms.settings import AlgorithmSettings
from strop.base.interrupt import breakable
from strop.base.metrics import Metrics, Total, merge
from strop.base.sample import Sample
from strop.base.seeds import derive
from strop.base.types import FloatArray, Group, InputError, IntArray, StropError
from strop.model.attention_kinds import longest_sequence
from strop.model.critic import Critic
from strop.model.policy import Policy, copy_parameters
from strop.model.tensor_file import Groups
from strop.training import checkpoint
from strop.training.compute import devices_of, peak_of
from strop.training.optimizer import own_part
from strop.training.packing import Update, pack, split_into_updates
from strop.training.samples import (
    Candidate,
    Sizes,
    TrainResult,
    as_samples,
    at_end,
    make_candidates,
    make_samples,
)
from strop.training.settings import CriticSettings, LearnerSettings
from strop.training.step import NonFiniteLoss, Trainer, by_sample, score_samples
from strop.training.storage import Storage

Stored = TypeVar("Stored", covariant=True)


class WeightSink(Protocol[Stored]):
    """A store that weights are published to."""

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> Stored:
        """Store every parameter under its name in the model; returns what a reader needs to find them."""
        ...


def objective_of(algorithm: AlgorithmSettings) -> Objective:
    """The policy's objective; regularizers find their states under their paths in the configuration."""
    regularizers = {f"algorithm.regularizers.{index}": piece for index, piece in enumerate(algorithm.regularizers)}
    return Objective(algorithm.loss, regularizers, algorithm.token_types if algorithm.needs_token_types else None)


class Learner:
    """Trains the policy, and the critic where there is one.

    Args:
        settings: of the run; `enter` changes them at the start of a stage.
        trainer: of the policy.
        critic: the critic's trainer; its module gives (value, zeros) of packed tokens.
        references: the reference policies of KL terms, called as the policy is, without gradients: of the problems of a
            domain, and under None of all others.
        storage: writes all of them to disk.

    With sharded modules the trainers know the ranks, and every rank makes each call with the same arguments.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        trainer: Trainer,
        critic: Trainer | None = None,
        references: Mapping[str | None, nn.Module] = MappingProxyType({}),
        storage: Storage | None = None,
    ) -> None:
        self.settings = settings
        self.trainer = trainer
        self.critic = critic
        self.references = references
        self.reference = references.get(None)
        self.storage = Storage() if storage is None else storage
        self._reference_moved = False
        self.before_update: Callable[[Update, UpdateContext], None] = lambda update, context: None  # of the policy

    def start(self, folder: Path) -> None:
        """Nothing to start."""

    @property
    def policy(self) -> Policy:
        """The policy that is trained."""
        policy = self.trainer.policy
        assert isinstance(policy, Policy)
        return policy

    def sizes(self) -> Sizes:
        """The size of the policy, and the number of devices of all ranks."""
        policy = self.policy
        devices = sum(self.trainer.ranks.gather(devices_of(policy.device)))
        peak = peak_of(policy.device, policy.head_weight.dtype)
        return Sizes(policy.parameter_count, policy.computing_parameters, devices, policy.attention_width, peak)

    def enter(self, settings: LearnerSettings, updates: int) -> None:
        """Apply the settings of a new stage; a changed optimizer restarts its schedule, over `updates` updates."""
        self.trainer.objective = objective_of(settings.algorithm)
        self.trainer.temperature = settings.temperature
        if settings.optim != self.settings.optim or self.trainer.updates == 0:
            self.trainer.begin_schedule(settings.optim, updates)
        self.settings = settings

    def replan(self, updates_left: int, steps_left: int) -> None:
        """After `load_state_dict` with another configuration: let the schedules end with the new plan."""
        self.trainer.replan(updates_left)
        if self.critic is not None:
            settings = self._critic_settings
            self.critic.replan(steps_left * settings.updates_per_step * settings.passes_per_batch)

    def learn(
        self, groups: Sequence[Group], survivors: Collection[int], step: int, states: Mapping[str, Mapping[str, Any]]
    ) -> TrainResult | None:
        """Train on a batch; None, with nothing changed, if no completion of it can be trained on.

        Args:
            groups: every group of the step.
            survivors: tickets of those that passed selection.
            step: training steps done before this one.
            states: of stateful pieces, by path.
        """
        with breakable():  # until the first optimizer step, see `Trainer.update`
            return self._learn(groups, survivors, step, states)

    def _learn(
        self, groups: Sequence[Group], survivors: Collection[int], step: int, states: Mapping[str, Mapping[str, Any]]
    ) -> TrainResult | None:
        samples = self.samples(groups, survivors)
        if samples is None:
            return None
        metrics: list[Metrics] = []
        try:
            if self.critic is not None:
                metrics.append(self._teach_critic(samples, step))
            if self.critic is None or step >= self._critic_settings.warmup_steps:
                taught, columns = self._teach_policy(samples, step, states)
                metrics.append(taught)
                samples = [_fill(sample, columns.get(sample.id, {})) for sample in samples]
        except NonFiniteLoss as error:
            raise NonFiniteLoss(f"step {step + 1}, {error}") from error
        self._reset_reference(step + 1)
        return TrainResult(tuple(samples), merge(metrics))

    @property
    def _critic_settings(self) -> CriticSettings:
        settings = self.settings.critic
        if settings is None:
            raise StropError("this run has no critic")
        return settings

    # ------------------------------------------------------------------ once a batch

    def samples(self, groups: Sequence[Group], survivors: Collection[int]) -> list[Sample] | None:
        """What a batch trains on, with advantages; None if no completion of it can be trained on. See `learn`."""
        candidates = make_candidates(groups, survivors, self.settings.algorithm.truncation_mask)
        if not any(candidate.trains for candidate in candidates):
            return None
        candidates = self._scored(candidates)
        token_rewards = [[self._token_rewards(sample) for sample in candidate.samples] for candidate in candidates]
        algorithm = self.settings.algorithm
        return self._corrected(make_samples(candidates, algorithm.advantage, token_rewards, algorithm.shaping))

    def _scored(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates with the scores that the pieces need before the first update."""
        algorithm = self.settings.algorithm
        # Groups that are not trained on matter only to the statistics of KL in the reward.
        every = algorithm.kl_in_reward is not None
        wanted = [s for c in candidates if c.survives or every for s in c.samples if s.trained_tokens > 0]
        columns: dict[str, list[FloatArray]] = {}
        if algorithm.needs_old_scores:
            logprobs, entropies = self._score(self.trainer.policy, wanted)
            columns["old_entropies"] = entropies
            if algorithm.anchor == "recomputed":
                columns["anchors"] = logprobs
        if algorithm.needs_reference:
            if self.reference is None:
                raise StropError("a piece reads the reference policy, and this run has none")
            columns |= self._reference_columns(self.reference, wanted, columns.get("anchors"), candidates)
        if self.critic is not None:
            columns["values"], _ = self._score(self.critic.policy, wanted)
        if not columns:
            return list(candidates)
        scored = {id(s): {name: column[place] for name, column in columns.items()} for place, s in enumerate(wanted)}
        blank = dict.fromkeys(columns)
        return [replace(c, samples=tuple(_fill(s, scored.get(id(s), blank)) for s in c.samples)) for c in candidates]

    def _score(self, module: torch.nn.Module, samples: Sequence[Sample], top: int = 0) -> tuple[list[Any], ...]:
        budget = self.settings.batch.tokens_per_microbatch
        return score_samples(module, samples, self.settings.temperature, budget, self.trainer.ranks, top)

    def _reference_columns(
        self, reference: nn.Module, wanted: Sequence[Sample], anchors: list[FloatArray] | None,
        candidates: Sequence[Candidate],
    ) -> dict[str, list[Any]]:  # fmt: skip
        """What the reference policy says of the samples, behind the prompts that it reads.

        One that it is not asked about has its own log-probs, so that the KL is 0.
        """
        heads = [one.vocabulary for one in (self.policy, *self.references.values()) if isinstance(one, Policy)]
        top = min(self.settings.algorithm.reference_top, *heads)
        asked = {id(sample): sample for sample in wanted}
        if self.settings.algorithm.reference.prompt is not None:
            rollouts = {id(one.samples[0]): one.rollout for one in candidates}
            asked = {
                key: as_samples(replace(one.completion, prompt_ids=ids, routed_experts=None), 0)[0]
                for key, one in rollouts.items() if (ids := one.teacher_prompt_ids) is not None and key in asked
            }  # fmt: skip
        modules = {
            id(sample): self.references.get(one.rollout.problem.domain, reference)
            for one in candidates for sample in one.samples
        }  # fmt: skip
        answers: dict[int, tuple[Any, ...]] = {}
        for module in dict.fromkeys(modules[key] for key in asked):
            keys = [key for key in asked if modules[key] is module]
            _refuse_too_long(module, {key: asked[key] for key in keys}, candidates)
            scored = self._score(module, [asked[key] for key in keys], top)
            answers |= dict(zip(keys, zip(*scored, strict=True), strict=True))
        names = ("reference_logprobs", "entropies", "reference_top_ids", "reference_top_logprobs")[: 4 if top else 2]
        rows: list[list[Any]] = []
        for place, sample in enumerate(wanted):
            own, size = sample.logprobs if anchors is None else anchors[place], (len(sample), top)
            unknown = own, own, np.zeros(size, np.int32), np.full(size, -np.inf, np.float32)
            answer = answers.get(id(sample), unknown[: len(names)])
            rows.append([at_end(column, len(sample)) for column in answer])
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        del columns["entropies"]
        for ids, logprobs in zip(*(columns.get(name, ()) for name in names[2:]), strict=True):
            absent = ids >= self.policy.vocabulary  # rows that only pad the head of a larger teacher
            ids[absent], logprobs[absent] = 0, -np.inf
        return columns

    def _token_rewards(self, sample: Sample) -> FloatArray | None:
        """The KL reward of each token, float32 [L]; None without that piece, or if this sample was not scored."""
        piece = self.settings.algorithm.kl_in_reward
        if piece is None or sample.reference_logprobs is None:
            return None
        own = sample.logprobs if sample.anchors is None else sample.anchors
        return np.where(sample.trained, piece(own, sample.reference_logprobs), 0.0).astype(np.float32)

    def _corrected(self, samples: list[Sample]) -> list[Sample]:
        """The samples with their correction factors for π_anchor / π_generator."""
        correction = self.settings.algorithm.correction
        if correction is None:
            return samples
        gaps = [s.anchors[s.trained] - s.logprobs[s.trained] for s in samples if s.anchors is not None]
        sequence = np.repeat(np.arange(len(samples)), [len(gap) for gap in gaps])
        factors = correction(torch.from_numpy(np.concatenate(gaps)), torch.from_numpy(sequence)).numpy()
        parts = np.split(factors, np.cumsum([len(gap) for gap in gaps])[:-1])
        corrected: list[Sample] = []
        for sample, part in zip(samples, parts, strict=True):
            column = np.zeros(len(sample), dtype=np.float32)
            column[sample.trained] = part
            corrected.append(replace(sample, corrections=column))
        return corrected

    # ------------------------------------------------------------------ updates

    def _teach_policy(
        self, samples: list[Sample], step: int, states: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Metrics, dict[int, dict[str, FloatArray | None]]]:
        """All updates of the policy in one step; returns metrics, and columns of each sample from its last update."""
        parts: list[Metrics] = []
        columns: dict[int, dict[str, FloatArray | None]] = {}
        for chosen, update, context in self.updates(samples, step, states):
            self.before_update(update, context)
            parts.append(self.trainer.update(update, context))
            logprobs, entropies = (by_sample(update, part, chosen) for part in zip(*self.trainer.outputs, strict=True))
            for sample, logprob, entropy in zip(chosen, logprobs, entropies, strict=True):
                columns[sample.id] = {"trainer_logprobs": logprob, "trainer_entropies": entropy}
        return merge(parts) | {"updates": Total(len(parts))}, columns

    def updates(
        self, samples: list[Sample], step: int, states: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[list[Sample], Update, UpdateContext]]:
        """The policy's updates in one step: the samples of each, those packed, and what else the update needs."""
        batch = self.settings.batch
        groups = len({sample.group for sample in samples})
        seed = derive(self.settings.seed, "split", step)
        sampled = -float(np.concatenate([sample.logprobs[sample.trained] for sample in samples]).mean(dtype=np.float64))
        parts = split_into_updates(samples, min(batch.updates_per_step, groups), batch.passes_per_batch, seed)
        for number, chosen in enumerate(parts):
            ranks = self.trainer.ranks.teams
            update = pack(chosen, self.settings.algorithm.aggregation, batch.tokens_per_microbatch, ranks)
            yield chosen, update, UpdateContext(derive(self.settings.seed, "update", step, number), states, sampled)

    def _teach_critic(self, samples: list[Sample], step: int) -> Metrics:
        """All updates of the critic in one training step, its metrics under `critic/`."""
        assert self.critic is not None
        settings = self._critic_settings
        separate = [replace(sample, group=index) for index, sample in enumerate(samples)]
        updates = split_into_updates(
            separate,
            min(settings.updates_per_step, len(separate)),
            settings.passes_per_batch,
            derive(self.settings.seed, "critic split", step),
        )
        budget = self.settings.batch.tokens_per_microbatch
        ranks = self.critic.ranks.teams
        merged = merge([self.critic.update(pack(chosen, TokenMean(), budget, ranks)) for chosen in updates])
        kept = {f"critic/{name}": merged[name] for name in ("loss", "lr", "grad_norm", "tokens", "pairs")}
        values = {name: stat for name, stat in merged.items() if name.startswith("value/")}
        return kept | values | {"critic/updates": Total(len(updates))}

    def _reset_reference(self, done: int) -> None:
        every = self.settings.algorithm.reference.reset_every
        if self.reference is not None and every is not None and done % every == 0:
            assert isinstance(self.reference, Policy)
            self.reference.load_weights(self.policy.weights())
            self._reference_moved = True

    # ------------------------------------------------------------------ weights

    def probe(self, token_ids: IntArray) -> FloatArray:
        """The policy's log-probs [L - 1] of `token_ids` [L], at temperature 1."""
        return self.policy.probe(token_ids)

    def weights(self) -> Mapping[str, Tensor]:
        """The policy's parameters, the live ones; over several ranks, copies on the first rank and none on others."""
        return self.storage.whole(self.policy.weights())

    def publish(self, store: WeightSink[Stored], version: int) -> Stored:
        """Write the weights into a store; the modules must not be sharded."""
        return store.write(version, self.weights().items())

    def broken(self) -> str | None:
        """The name of a parameter that is not finite; None where all are."""
        own = next((n for n, w in self.policy.weights().items() if not torch.isfinite(own_part(w)).all()), None)
        return next((name for name in self.trainer.ranks.gather(own) if name is not None), None)

    def digest(self) -> str:
        """A digest of all that the optimizers change, bit for bit, on all ranks."""
        found = blake2b(digest_size=8)
        for trainer in (self.trainer, self.critic):
            if trainer is not None:
                shares = trainer.ranks.gather(trainer.optimizer.checksums())
                whole = {name: sum(share[name] for share in shares) % 2**64 for name in sorted(shares[0])}
                found.update(repr(whole).encode())
        return found.hexdigest()

    def export(self, tokenizer: PreTrainedTokenizerBase, model: Path, critic: Path) -> None:
        """Write the policy to `model`, and the critic, where there is one, to `critic`."""
        self.storage.export_policy(self.policy, tokenizer, model)
        if self.critic is not None:
            assert isinstance(self.critic.policy, Critic)
            self.storage.export_critic(self.critic.policy, tokenizer, critic)

    # ------------------------------------------------------------------ checkpoints

    def save(self, entry: checkpoint.CheckpointEntry, extra: Groups) -> None:
        """Begin a checkpoint; the entries of `state_dict` that are not tensors go into its state as `learner`."""
        tensors, own = self.state_dict()
        self.storage.begin(replace(entry, state={**entry.state, "learner": own}), tensors, extra)

    def settle(self, wait: bool) -> bool:
        """Whether no save is unfinished; with `wait`, wait for it. Raises the error of a failed save."""
        return self.storage.settle(wait)

    def load(self, root: Path, step: int) -> None:
        """Restore a checkpoint."""
        found = checkpoint.load(root, step, self.storage.layout, check=False)
        self.load_state_dict(found.tensors, found.state["learner"])

    def close(self) -> None:
        """Finish the current save."""
        self.settle(wait=True)

    def state_dict(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Named tensors by group, and a JSON-able state: policy, optimizer, and critic and reference if there."""
        optimizer, counters = self.trainer.state_dict()
        tensors: dict[str, dict[str, Tensor]] = {"policy": self.policy.saved_weights(), "optimizer": optimizer}
        state: dict[str, Any] = {"policy": counters}
        if self.critic is not None:
            critic = self.critic.policy
            tensors["critic"] = {name: value.detach() for name, value in critic.named_parameters()}
            tensors["critic-optimizer"], state["critic"] = self.critic.state_dict()
        if isinstance(self.reference, Policy) and self._reference_moved:
            tensors["reference"] = self.reference.weights()
        return tensors, state

    def load_state_dict(self, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`.

        Raises:
            StropError: it was saved by a run with other modules.
        """
        self.policy.load_weights(tensors["policy"])
        self.trainer.load_state_dict(tensors["optimizer"], state["policy"])
        if (self.critic is None) != ("critic" not in tensors):
            raise StropError("only one of the checkpoint and the configuration has a critic; resume with the same")
        if self.critic is not None:
            copy_parameters(self.critic.policy, tensors["critic"])
            self.critic.load_state_dict(tensors["critic-optimizer"], state["critic"])
        if self.reference is not None and "reference" in tensors:
            if not isinstance(self.reference, Policy):
                raise StropError(
                    "the checkpoint's reference policy was reset, and algorithm.reference.reset_every is not set; "
                    "resume with the same value"
                )
            self.reference.load_weights(tensors["reference"])
            self._reference_moved = True


def _fill(sample: Sample, columns: Mapping[str, FloatArray | None]) -> Sample:
    """The sample with the given columns, except those that are None."""
    present: dict[str, Any] = {name: column for name, column in columns.items() if column is not None}
    return replace(sample, **present)


def _refuse_too_long(module: nn.Module, asked: Mapping[int, Sample], candidates: Sequence[Candidate]) -> None:
    """Refuse a completion that is longer, behind the prompt that a teacher reads, than the teacher's context.

    Raises:
        InputError: naming its problem.
    """
    policy = next((each for each in module.modules() if isinstance(each, Policy)), None)
    room = None if policy is None else longest_sequence(policy.model.config.to_dict())
    key, longest = max(((key, len(sample)) for key, sample in asked.items()), key=lambda each: each[1])
    if room is not None and longest > room:
        problem = next(one.rollout.problem for one in candidates for sample in one.samples if id(sample) == key)
        raise InputError(
            f"problem {problem.id}: a completion and the prompt that the teacher reads have {longest} tokens, and the "
            f"teacher has room for {room}; shorten algorithm.reference.prompt or sampling.max_new_tokens"
        )
