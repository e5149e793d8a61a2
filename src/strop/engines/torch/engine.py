"""The embedded engine: continuous batching over the module that is trained.

    submit → waiting samples ─┐ a free slot
                              v
    step:  admit → one forward of [decoding rows | prompts of the admitted] → draw → record → report the finished

A step feeds every running sequence its last token, one row each. The first token that is fed is the last one of the
prompt, so all drawing happens in one place. Prompts, except their last tokens, are computed in the same forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from strop.base.types import Completion, ExpertArray, FinishReason, FloatArray, InputError, IntArray, StropError
from strop.engines import weights
from strop.engines.base import BaseEngine, RequestLimits, Row, RunningSequence, SlotEntry
from strop.engines.continuation import Ending
from strop.engines.protocol import Health, KvMode, WeightSource
from strop.engines.sampling import Draw, draw, uniforms
from strop.engines.settings import EngineSettings
from strop.engines.torch import fused_forward
from strop.engines.torch.fused_forward import DecodeKernels, FusedForward
from strop.engines.torch.kv import Ids, KeptKeys, Prefill, PrefillJob, SlotCache, SlotContext, blocks
from strop.engines.torch.scheduler import LEAST_ROWS, Scheduler, Slots
from strop.model.attention import AttentionContext, PackedContext
from strop.model.files import DTYPES, cast_parameters
from strop.model.policy import PackedInputs, Policy


class ModelRunner:
    """Runs a policy over the slots; `prefill_tokens` bounds the prompt tokens of one forward pass.

    `fused`, if given, computes instead of the policy's modules; `drawing` draws tokens on a CPU.
    """

    def __init__(
        self, policy: Policy, slots: Slots, cache: SlotCache, prefill_tokens: int, fused: FusedForward | None,
        drawing: DecodeKernels | None,
    ) -> None:  # fmt: skip
        self.policy = policy
        self.fused = fused
        self.drawing = drawing
        self.slots = slots
        self.cache = cache
        self.prefill_tokens = prefill_tokens

    def step(self, width: int, jobs: Sequence[PrefillJob]) -> tuple[Ids, FloatArray, FloatArray]:
        """Compute the prompts of `jobs`, then a token for each of the first `width` slots.

        Returns:
            Tokens, their log-probs, and the entropies of the distributions they were drawn from, [W] each.
        """
        portions = self._portions(jobs)
        last = portions.pop() if portions else []
        self._prefill(portions)
        hidden = self._forward(width, Prefill(last, self.policy.device, 0) if last else None)
        tokens, logprobs, entropies = self._draw(self._logits(hidden[:width]), width)
        return tokens.cpu().numpy(), logprobs.cpu().numpy(), entropies.cpu().numpy()

    def prefill(self, jobs: Sequence[PrefillJob]) -> None:
        """Compute the keys and values of `jobs`, and nothing else."""
        self._prefill(self._portions(jobs))

    def logprobs(self, ids: IntArray) -> FloatArray:
        """Log-probs [L - 1] of the tokens of a sequence [L] after the first."""
        packed = PackedInputs.whole([ids.tolist()]).to(self.policy.device)
        hidden = self._hidden(packed.token_ids, packed.positions, PackedContext(packed.lengths, self.policy.device))
        found = [
            self._logits(hidden[part]).log_softmax(-1).gather(1, packed.token_ids[part + 1, None])[:, 0]
            for part in packed.rows.split(self.policy.settings.chunk_tokens)  # [chunk, V] logits at a time
        ]
        return torch.cat(found).cpu().numpy().astype(np.float32)

    def _prefill(self, portions: Sequence[Sequence[PrefillJob]]) -> None:
        for portion in portions:
            self._forward(0, Prefill(portion, self.policy.device, LEAST_ROWS))

    def _portions(self, jobs: Sequence[PrefillJob]) -> list[list[PrefillJob]]:
        """The jobs in portions of at most `prefill_tokens` tokens, or of one longer job."""
        portions: list[list[PrefillJob]] = []
        room = 0
        for job in jobs:
            if not portions or len(job.token_ids) > room:
                portions.append([])
                room = self.prefill_tokens
            portions[-1].append(job)
            room -= len(job.token_ids)
        return portions

    def _forward(self, width: int, prefill: Prefill | None) -> Tensor:
        """Last hidden states [W + R, E]; keys and values go to the cache."""
        slots, device = self.slots, self.policy.device
        ids, positions = slots.token[:width], slots.position[:width]
        lengths = slots.lengths(width)
        longest = blocks(int(lengths.max())) if width else 0
        self.cache.reserve(longest if prefill is None else max(longest, blocks(int(prefill.positions.max()) + 1)))
        # A free slot may stand just beyond the cache; what it writes in the last place is behind any prompt it lends.
        positions = np.minimum(positions, self.cache.capacity - 1)
        decoding = _sent(positions, device)
        if prefill is not None:
            ids = np.concatenate((ids, prefill.token_ids))
            positions = np.concatenate((positions, prefill.positions))
        context = SlotContext(self.cache, decoding, prefill, _sent(slots.active[:width], device), longest)
        hidden = self._hidden(_sent(ids, device), _sent(positions, device), context)
        if self.policy.routing is not None:
            for layer, chosen in enumerate(self.policy.routing.chosen):
                context.keep(_experts_of(layer), chosen[:, None].to(torch.int16))
        return hidden

    def experts(self, slot: int, tokens: int) -> ExpertArray | None:
        """The experts of the first tokens of the slot's sequence, [tokens, L, k]; None where they are not recorded."""
        routing = self.policy.routing
        if routing is None:
            return None
        layers = [self.cache.kept(_experts_of(layer))[slot, 0, :tokens] for layer in range(routing.layers)]
        found: ExpertArray = torch.stack(layers, dim=1).cpu().numpy()
        return found

    def _hidden(self, token_ids: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        if self.policy.routing is not None:
            self.policy.routing.replayed = None
        return (self.policy if self.fused is None else self.fused).hidden(token_ids, positions, context)

    def _logits(self, hidden: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused.logits(hidden)
        return self.policy.logits(hidden, self.policy.settings.generator_fp32_head)

    def _draw(self, logits: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, log-probs and entropies [W]; by the compiled kernel unless a row has a top-k or top-p."""
        slots, kernels = self.slots, self.drawing
        if kernels is None or logits.dtype != torch.float32 or slots.truncated[:width].any():
            return draw(logits, self._how(width))
        part = slice(0, width)
        uniform = torch.from_numpy(uniforms(slots.key[part], slots.position[part] - slots.first[part]))
        temperature, greedy = torch.from_numpy(slots.temperature[part]), torch.from_numpy(slots.greedy[part])
        return kernels.draw(logits, temperature, uniform, greedy)

    def _how(self, width: int) -> Draw:
        """How the next token of each row is drawn."""
        slots, device = self.slots, self.policy.device
        part = slice(0, width)
        uniform = _sent(uniforms(slots.key[part], slots.position[part] - slots.first[part]), device)
        temperature = slots.temperature[part]
        greedy, truncated = slots.greedy[part], np.flatnonzero(slots.truncated[part])
        some = len(truncated) > 0
        top_k = np.where(slots.top_k[truncated] > 0, slots.top_k[truncated], self.policy.vocabulary)
        return Draw(
            uniform=uniform,
            temperature=_sent(temperature[:, None], device) if (temperature != 1).any() else None,
            greedy=_sent(greedy, device) if greedy.any() else None,
            truncated=_sent(truncated, device) if some else None,
            top_k=_sent(top_k, device) if some else None,
            top_p=_sent(slots.top_p[truncated], device) if some else None,
        )


def _experts_of(layer: int) -> int:
    """The place in the cache of the experts chosen in a layer; those of keys and values are not negative."""
    return -1 - layer


def _sent(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """An array as a tensor on the device; on a CPU the same memory."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


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
        limits = RequestLimits.of_policy(policy, tokenizer, settings.max_tokens)
        super().__init__(limits, settings.slots, tokenizer, version)
        self.policy = policy
        self.settings = settings
        self._dtypes = frozenset((own, wanted))
        self._slots = Slots(settings.slots, self._limits.max_tokens)
        self._fused = FusedForward.of(policy, settings.native)
        if self._fused is None:
            policy.use_kernels()
        cache = SlotCache(settings.slots, policy.device, None if self._fused is None else self._fused.kernels)
        apart = self._fused is not None and self._fused.rows_apart
        self._kept = KeptKeys(cache, settings.kept_mib)
        self._scheduler = Scheduler(self._slots, cache, self._kept, settings.shrink, apart)
        drawing = fused_forward.load() if settings.native and policy.device.type == "cpu" else None
        self._runner = ModelRunner(policy, self._slots, cache, settings.prefill_tokens, self._fused, drawing)

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Advance every running sequence by a token; the completions that finished.

        Raises:
            InputError: an earlier step failed.
            StropError: a log-prob is not finite.
        """
        self._refuse_if_failed()
        try:
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
        """Log-probs [L - 1] of `probe_ids` [L] after the first; see `BaseEngine.verify_weights`."""
        self._limits.refuse_sequence(probe_ids)
        return self._runner.logprobs(probe_ids)

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

    def _in_flight(self) -> Iterator[tuple[SlotEntry, int, Row, Row]]:
        slots = self._slots
        for slot in slots.running():
            sequence, done = self._sequence(slot), int(slots.position[slot] - slots.first[slot])
            yield sequence.entry, sequence.index, slots.drawn[slot, :done], slots.logprobs[slot, :done]

    def _enqueue(self, entry: SlotEntry) -> None:
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
        jobs = self._scheduler.admit()
        self._scheduler.shrink({slot for job in jobs for slot in job.slots})
        width = self._scheduler.width()
        if width:
            drawn = int(self._slots.active.sum())
            self._record(width, *self._runner.step(width, jobs))
            self._drew(drawn)

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
                self._end_phase(row, len(token_ids), ending or "budget")

    def _sequence(self, slot: int) -> RunningSequence:
        sequence = self._slots.sequences[slot]
        assert sequence is not None
        return sequence

    def _injected(self, slot: int, done: int) -> int:
        """The token that is injected after the first `done` ones.

        A token a step, so that a cache, a change of weights or of slots, and an abort find nothing unusual.
        """
        chain = self._sequence(slot).chain
        return chain.phase.inject[done - chain.sampled_from]

    def _end_phase(self, slot: int, done: int, ending: Ending) -> None:
        """Go over to the sequence's next phase, or finish it."""
        reason = self._sequence(slot).chain.follow(done, ending)
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

    def _keep(self, slot: int, sequence: RunningSequence) -> None:
        """Keep the keys and values of a finished sequence: of all its tokens but the last, which no step was fed."""
        position = int(self._slots.position[slot])
        ids = np.concatenate((sequence.entry.ids, self._slots.drawn[slot, : position - self._slots.first[slot]]))
        self._kept.keep(sequence.entry.request.trajectory(sequence.index), slot, ids[:position], self._version)
