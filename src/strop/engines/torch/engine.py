"""The embedded engine: continuous batching over the module that is trained.

    submit → waiting samples ─┐ a free slot
                              v
    step:  admit → one forward of [decoding rows | prompts of the admitted] → draw → record → report the finished

A step feeds every running sequence its last token at its own row; the first one fed is the last token of the prompt, so
that all drawing happens in one place, and prompts (all but their last token) ride along in the same forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Sequence_

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from strop.base.types import Completion, FinishReason, FloatArray, InputError, IntArray, StropError
from strop.engines import weights
from strop.engines.base import BaseEngine, Row
from strop.engines.continuation import Ending
from strop.engines.protocol import Health, KvMode, Scores, WeightSource
from strop.engines.requests import Limits
from strop.engines.settings import EngineSettings
from strop.engines.slots import Entry, Sequence, Slots
from strop.engines.torch.fused_forward import FusedForward
from strop.engines.torch.kept import KeptKeys
from strop.engines.torch.kv import Ids, PrefillJob, SlotCache
from strop.engines.torch.runner import Runner
from strop.engines.torch.scheduler import LEAST_ROWS, ROWS_APART, Scheduler
from strop.model.files import DTYPES, cast_parameters
from strop.model.policy import Policy


class TorchEngine(BaseEngine):
    """An `Engine` on the device of `policy`. See `strop.engines.protocol.Engine` for the methods of the protocol.

    Raises:
        InputError: settings that the policy cannot honour.
    """

    def __init__(
        self, policy: Policy, tokenizer: PreTrainedTokenizerBase, settings: EngineSettings, version: int = 0
    ) -> None:
        """An engine on the policy's own parameters, or on a copy; `version` is what they are."""
        own = next(policy.parameters()).dtype
        wanted = own if settings.dtype is None else DTYPES[settings.dtype]
        if settings.share_parameters and wanted != own:
            raise InputError(
                f"engine.dtype {settings.dtype} differs from the policy's {own}: set engine.share_parameters = false"
            )
        if not settings.share_parameters:
            policy = policy.frozen_copy()
            cast_parameters(policy, wanted)
        generation = policy.model.generation_config
        end_ids = None if generation is None else generation.eos_token_id
        config = policy.model.config.to_dict()
        limits = Limits.of(config, policy.vocabulary, end_ids, tokenizer, settings.max_tokens)
        super().__init__(limits, settings.slots, tokenizer, version)
        self.policy = policy
        self.settings = settings
        self._dtypes = frozenset((own, wanted))
        self._slots = Slots(settings.slots, self._limits.max_tokens)
        self._fused = FusedForward.of(policy, settings.native)
        if self._fused is None:
            policy.use_kernels()
        cache = SlotCache(settings.slots, policy.device, None if self._fused is None else self._fused.kernels)
        unit = ROWS_APART if self._fused is not None and self._fused.rows_apart else LEAST_ROWS
        self._kept = KeptKeys(cache, settings.kept_mib)
        self._scheduler = Scheduler(self._slots, cache, self._kept, settings.shrink, unit)
        self._runner = Runner(policy, self._slots, cache, settings.prefill_tokens, self._fused)

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Advance every running sequence by a token; the completions that finished (paused: what was cancelled).

        Raises:
            InputError: an earlier step failed.
            StropError: a log-prob is not finite.
        """
        self._refuse_if_failed()
        try:
            if not self._paused:
                self._advance()
        except BaseException as error:  # an interrupt too leaves slots half prepared
            self._failure = StropError(f"{type(error).__name__}: {error}")
            raise
        return self._reported()

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        """Swap in every parameter, or none; see the protocol and `weights.stage`.

        Raises:
            InputError: weights that do not fit, a version below the present one, or parameters that are the trainer's.
        """
        staged = weights.stage(self.policy, source, self._dtypes)
        self._refuse_older(version)
        if not self.settings.share_parameters:
            weights.swap(self.policy, staged)
        elif not weights.same_storage(self.policy, staged):
            raise InputError("this engine reads the trainer's own parameters: update those, then call set_version")
        self.set_version(version, kv)

    @torch.inference_mode()
    def set_version(self, version: int, kv: KvMode = "keep") -> None:
        """Say that the parameters are now version `version`: for an engine on the trainer's own parameters.

        Raises:
            InputError: the version is below the present one.
        """
        self._refuse_older(version)
        if self._fused is not None:
            self._fused.refresh()
        self._scheduler.epoch += 1
        slots = self._slots
        jobs: list[PrefillJob] = []
        for slot in slots.running():
            sequence = self._sequence(slot)
            done = int(slots.position[slot] - slots.first[slot])
            sequence.chain.drawn_by(self._version, done)
            if kv == "recompute":
                ids = np.concatenate((sequence.entry.ids, slots.drawn[slot, :done]))[:-1]
                slots.prompt_epoch[slot] = self._scheduler.epoch
                if len(ids):
                    jobs.append(PrefillJob(ids, (slot,)))
        if kv == "recompute":
            self._kept.clear()
        else:
            self._kept.forget_before(self._version)
        self._version = version
        self._runner.prefill(jobs)

    @torch.inference_mode()
    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        """Log-probs [L - 1] of `probe_ids` [L] after the first, temperature 1, from this engine's weights and head."""
        return self._runner.probe(probe_ids)

    @torch.inference_mode()
    def score(self, sequences: Sequence_[IntArray], temperature: float = 1.0, top: int = 0) -> list[Scores]:
        """Log-probs of given tokens, packed into few forward passes; see `strop.engines.protocol.Scoring`."""
        for ids in sequences:
            self._limits.refuse_sequence(ids)
        return self._runner.score(sequences, temperature or 1.0, min(top, self.policy.vocabulary))

    def health(self) -> Health:
        running = int(self._slots.active.sum())
        waiting = sum(entry.waiting for entry in self._scheduler.waiting)
        return Health(self._failure is None, str(self._failure or "ok"), running, waiting)

    def close(self) -> None:
        """Drop the caches; the engine cannot be used any more."""
        self._failure = InputError("closed")
        self._scheduler.waiting.clear()
        self._scheduler.cache.clear()
        self._kept.clear()

    def _in_flight(self) -> Iterator[tuple[Entry, int, Row, Row]]:
        slots = self._slots
        for slot in slots.running():
            sequence, done = self._sequence(slot), int(slots.position[slot] - slots.first[slot])
            yield sequence.entry, sequence.index, slots.drawn[slot, :done], slots.logprobs[slot, :done]

    def _enqueue(self, entry: Entry) -> None:
        self._scheduler.enqueue(entry)

    def _abort(self, request_id: str) -> None:
        for slot in self._slots.running():
            if self._sequence(slot).entry.request.id == request_id:
                self._finish(slot, "abort")
        nothing = np.zeros(0, np.int64), np.zeros(0, np.float32)
        for entry in [entry for entry in self._scheduler.waiting if entry.request.id == request_id]:
            self._scheduler.waiting.remove(entry)
            for index in range(entry.next_index, entry.request.n):
                self._report(entry, index, None, *nothing, "abort", nothing[1])

    def _advance(self) -> None:
        """One token for every running sequence, after giving free slots to waiting samples."""
        if self.policy.model.training:
            self.policy.model.eval()
        self._scheduler.sort()
        jobs = self._scheduler.admit()
        self._scheduler.shrink({slot for job in jobs for slot in job.slots})
        width = self._scheduler.width()
        if width:
            self._record(width, *self._runner.step(width, jobs))

    def _record(self, width: int, tokens: Ids, logprobs: FloatArray, entropies: FloatArray) -> None:
        """Note what was drawn [width] for the running sequences, and finish those that end with it."""
        slots = self._slots
        part = slice(0, width)
        active = slots.active[part]
        done = slots.position[part] - slots.first[part]
        if not np.isfinite(logprobs[active]).all():
            raise StropError(
                f"a sampled log-prob is not finite: weights of version {self._version} have overflowed; go back to an "
                "earlier checkpoint with a lower optim.lr"
            )
        rows = np.flatnonzero(active)
        forced = active & (done < slots.sampled_from[part])
        for row in map(int, np.flatnonzero(forced)):
            tokens[row], logprobs[row] = self._injected(row, int(done[row])), 0.0
        entropies[forced] = 0.0
        slots.drawn[rows, done[rows]] = tokens[rows]
        slots.logprobs[rows, done[rows]] = logprobs[rows]
        slots.entropies[rows, done[rows]] = entropies[rows]
        slots.position[part] += active
        slots.token[rows] = tokens[rows]
        sampled = active & ~forced
        stopped = sampled & (slots.stop_ids[part] == tokens[:, None]).any(-1)
        spent = sampled & (done + 1 >= slots.phase_end[part])
        for row in map(int, np.flatnonzero(stopped | spent | (sampled & slots.watched[part]))):
            token_ids = slots.drawn[row, : done[row] + 1]
            ending: Ending | None = "stop" if stopped[row] else self._sequence(row).chain.text_ending(token_ids)
            if ending or spent[row]:
                self._end_phase(row, token_ids.tolist(), ending or "budget")

    def _sequence(self, slot: int) -> Sequence:
        sequence = self._slots.sequences[slot]
        assert sequence is not None
        return sequence

    def _injected(self, slot: int, done: int) -> int:
        """The token that is injected after the first `done` ones.

        A token a step, so that a cache, a change of weights or of slots, and an abort find nothing unusual.
        """
        chain = self._sequence(slot).chain
        return chain.phase.inject[done - chain.sampled_from]

    def _end_phase(self, slot: int, token_ids: list[int], ending: Ending) -> None:
        """Go over to the sequence's next phase, or finish it."""
        reason = self._sequence(slot).chain.follow(token_ids, ending)
        if reason is None:
            self._slots.follow(slot)
        else:
            self._finish(slot, reason)

    def _finish(self, slot: int, reason: FinishReason) -> None:
        """Turn a running sequence into a completion to report, and free its slot."""
        slots, sequence = self._slots, self._sequence(slot)
        length = int(slots.position[slot] - slots.first[slot])
        drawn, logprobs = slots.drawn[slot, :length], slots.logprobs[slot, :length]
        entropies = slots.entropies[slot, :length].copy()
        experts = self._runner.experts(slot, int(slots.position[slot]))
        self._report(sequence.entry, sequence.index, sequence.chain, drawn, logprobs, reason, entropies, experts)
        slots.release(slot)
        if sequence.entry.request.keeps and reason != "abort":
            self._keep(slot, sequence)

    def _keep(self, slot: int, sequence: Sequence) -> None:
        """Keep the keys and values of a finished sequence: of all its tokens but the last, which no step was fed."""
        position = int(self._slots.position[slot])
        ids = np.concatenate((sequence.entry.ids, self._slots.drawn[slot, : position - self._slots.first[slot]]))
        self._kept.keep(sequence.entry.request.trajectory(sequence.index), slot, ids[:position], self._version)
