"""The embedded engine: continuous batching over the module that is trained.

    submit → waiting samples ─┐ a free slot
                              v
    step:  admit → one forward of [decoding rows | prompts of the admitted] → draw → record → report the finished

A step feeds every running sequence its last token at its own row; the first one fed is the last token of the prompt, so
that all drawing happens in one place, and prompts (all but their last token) ride along in the same forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Sequence_

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from strop.base.types import Completion, FinishReason, FloatArray, InputError, IntArray, StropError
from strop.engines import weights
from strop.engines.protocol import (
    Capabilities,
    Drawn,
    Health,
    KvMode,
    OpenRequests,
    PauseMode,
    Request,
    Sampling,
    Scores,
    WeightSource,
)
from strop.engines.requests import Limits, checked
from strop.engines.settings import EngineSettings
from strop.engines.slots import Entry, Slots
from strop.engines.stops import StopStrings
from strop.engines.thinking import Thinking
from strop.engines.torch.fused_forward import Lean
from strop.engines.torch.kv import Ids, PrefillJob, SlotCache
from strop.engines.torch.runner import Runner
from strop.engines.torch.scheduler import LEAST_ROWS, ROWS_APART, Scheduler
from strop.model.files import DTYPES, cast_parameters
from strop.model.policy import Policy


class TorchEngine:
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
        self.policy = policy
        self.settings = settings
        self._tokenizer = tokenizer
        self._dtypes = frozenset((own, wanted))
        self._limits = Limits.of(policy, tokenizer, settings.max_tokens)
        self._version = version
        self._paused = False
        self._failure: str | None = None
        self._slots = Slots(settings.slots, self._limits.max_tokens)
        self._lean = Lean.of(policy, settings.native)
        cache = SlotCache(settings.slots, policy.device, None if self._lean is None else self._lean.kernels)
        unit = ROWS_APART if self._lean is not None and self._lean.rows_apart else LEAST_ROWS
        self._scheduler = Scheduler(self._slots, cache, settings.shrink, unit)
        self._runner = Runner(policy, self._slots, cache, settings.prefill_tokens, self._lean)
        self._strings = StopStrings(tokenizer)
        self._open = OpenRequests()
        self._reports: list[Completion] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(max_tokens=self._limits.max_tokens, interruptions=True)

    @property
    def weight_version(self) -> int:
        return self._version

    @property
    def unfinished(self) -> int:
        return sum(self._open.values())

    def check(self, sampling: Sampling) -> None:
        """Refuse sampling that no request could have here, before there is one.

        Raises:
            InputError: see `Thinking.of`.
        """
        Thinking.of(sampling, self._tokenizer, self._limits.stop_ids(sampling))

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InputError: the engine is paused or failed, the id is in use, or the request is outside its limits.
        """
        self._refuse_if_failed()
        if self._paused:
            raise InputError(f"request {request.id}: the engine is paused; resume() first")
        if request.id in self._open:
            raise InputError(f"request {request.id}: a request of this id is unfinished; use another id")
        self._scheduler.waiting.append(checked(request, self._limits, self._tokenizer))
        self._open.begin(request)

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
            self._failure = f"{type(error).__name__}: {error}"
            raise
        reports, self._reports = self._reports, []
        self._open.reported(reports)
        return reports

    def cancel(self, request_id: str) -> None:
        """Forget a request; the next `step` reports its samples, finish_reason `abort`, those never started empty.

        Raises:
            InputError: no unfinished request has this id.
        """
        if request_id not in self._open:
            raise InputError(f"cancel: no unfinished request {request_id!r}")
        for slot in self._slots.running():
            sequence = self._slots.sequences[slot]
            if sequence is not None and sequence.entry.request.id == request_id:
                self._finish(slot, "abort")
        for entry in [entry for entry in self._scheduler.waiting if entry.request.id == request_id]:
            self._scheduler.waiting.remove(entry)
            self._reports.extend(_never_started(entry, index) for index in range(entry.next_index, entry.request.n))

    def pause(self, mode: PauseMode = "keep") -> None:
        """Stop stepping; `abort` cancels everything, which the next `step` still reports."""
        self._paused = True
        if mode == "abort":
            for request_id in list(self._open):
                self.cancel(request_id)

    def resume(self) -> None:
        self._paused = False

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        """Swap in every parameter, or none; see the protocol and `weights.stage`.

        Raises:
            InputError: weights that do not fit, a version below the present one, or parameters that are the trainer's.
        """
        staged = weights.stage(self.policy, source, self._dtypes)
        self._refuse_version(version)
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
        self._refuse_version(version)
        if self._lean is not None:
            self._lean.refresh()
        self._version = version
        self._scheduler.epoch += 1
        slots = self._slots
        jobs: list[PrefillJob] = []
        for slot in slots.running():
            sequence = slots.sequences[slot]
            assert sequence is not None
            done = int(slots.position[slot] - slots.first[slot])
            sequence.versions.append((version, done))
            if kv == "recompute":
                ids = np.concatenate((sequence.entry.ids, slots.drawn[slot, :done]))[:-1]
                slots.prompt_epoch[slot] = self._scheduler.epoch
                if len(ids):
                    jobs.append(PrefillJob(ids, (slot,)))
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

    def drawn(self, since: Mapping[tuple[str, int], int]) -> list[Drawn]:
        """What running samples drew since; see `strop.engines.protocol.Streaming`."""
        slots, found = self._slots, []
        for slot in slots.running():
            sequence = slots.sequences[slot]
            assert sequence is not None
            name, index = sequence.entry.request.id, sequence.index
            start, end = since.get((name, index)), int(slots.position[slot] - slots.first[slot])
            if start is not None and start < end:
                token_ids = slots.drawn[slot, start:end].astype(np.int32)
                found.append(Drawn(name, index, token_ids, slots.logprobs[slot, start:end].copy()))
        return found

    def health(self) -> Health:
        running = int(self._slots.active.sum())
        waiting = sum(entry.waiting for entry in self._scheduler.waiting)
        return Health(self._failure is None, self._failure or "ok", running, waiting)

    def close(self) -> None:
        """Drop the caches; the engine cannot be used any more."""
        self._failure = "closed"
        self._scheduler.waiting.clear()
        self._scheduler.cache.clear()

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise InputError(f"this engine cannot go on ({self._failure}); make a new one")

    def _refuse_version(self, version: int) -> None:
        if version < self._version:
            raise InputError(f"weights of version {version} are older than the engine's {self._version}")

    def _advance(self) -> None:
        """One token for every running sequence, after giving free slots to waiting samples."""
        if self.policy.model.training:
            self.policy.model.eval()
        self._scheduler.sort()
        jobs = self._scheduler.admit(self._version)
        self._scheduler.shrink()
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
        forced = active & (done >= slots.inject_at[part])
        if forced.any():
            self._inject(np.flatnonzero(forced), done, tokens, logprobs)
            entropies[forced] = 0.0
        slots.drawn[rows, done[rows]] = tokens[rows]
        slots.logprobs[rows, done[rows]] = logprobs[rows]
        slots.entropies[rows, done[rows]] = entropies[rows]
        slots.position[part] += active
        slots.token[rows] = tokens[rows]
        sampled = active & ~forced
        stopped = sampled & (slots.stop_ids[part] == tokens[:, None]).any(-1)
        for row in np.flatnonzero(sampled & slots.has_strings[part] & ~stopped):
            stopped[row] = self._string_found(int(row), int(done[row]) + 1)
        for row in np.flatnonzero(sampled & slots.thinks[part] & ~stopped):
            self._look_for_end_of_thinking(int(row), int(done[row]) + 1)
        full = active & ~stopped & (done + 1 >= slots.budget[part])
        for row in np.flatnonzero(stopped | full):
            self._finish(int(row), "stop" if stopped[row] else "length")

    def _string_found(self, slot: int, drawn: int) -> bool:
        sequence = self._slots.sequences[slot]
        assert sequence is not None
        stops = sequence.entry.request.sampling.stop
        if not self._strings.may_end(stops, int(self._slots.drawn[slot, drawn - 1])):
            return False
        start = max(sequence.resumed_at, drawn - self._strings.window(stops))
        return self._strings.found(stops, self._slots.drawn[slot, start:drawn].tolist())

    def _look_for_end_of_thinking(self, slot: int, drawn: int) -> None:
        """Go over to the budget of the answer where the marker ends with the last token drawn."""
        slots = self._slots
        sequence = slots.sequences[slot]
        assert sequence is not None and sequence.entry.thinking is not None
        thinking = sequence.entry.thinking
        if not self._strings.may_end(thinking.marker, int(slots.drawn[slot, drawn - 1])):
            return
        start = max(0, drawn - self._strings.window(thinking.marker))
        if self._strings.found(thinking.marker, slots.drawn[slot, start:drawn].tolist()):
            slots.budget[slot] = thinking.budget_after(drawn)
            slots.end_thinking(slot)

    def _inject(self, rows: NDArray[np.intp], done: NDArray[np.int64], tokens: Ids, logprobs: FloatArray) -> None:
        """Put the next token of an interruption's phrase in the place of what was drawn, in `tokens` and `logprobs`.

        A token a step, so that a cache, a change of weights or of slots, and an abort find nothing unusual.
        """
        slots = self._slots
        for row in map(int, rows):
            sequence = slots.sequences[row]
            assert sequence is not None and sequence.entry.thinking is not None
            thinking = sequence.entry.thinking
            if sequence.interrupted_at is None:
                sequence.interrupted_at = int(done[row])
                slots.budget[row] = thinking.budget_after(sequence.resumed_at)
            place = int(done[row]) - sequence.interrupted_at
            tokens[row], logprobs[row] = thinking.phrase[place], 0.0
            if place + 1 == len(thinking.phrase):
                slots.end_thinking(row)

    def _finish(self, slot: int, reason: FinishReason) -> None:
        """Turn a running sequence into a completion to report, and free its slot."""
        slots = self._slots
        sequence = slots.sequences[slot]
        assert sequence is not None
        length = int(slots.position[slot] - slots.first[slot])
        token_ids = slots.drawn[slot, :length].astype(np.int32)
        self._reports.append(
            Completion(
                request_id=sequence.entry.request.id,
                index=sequence.index,
                prompt_ids=sequence.entry.request.prompt_ids,
                token_ids=token_ids,
                logprobs=slots.logprobs[slot, :length].copy(),
                versions=sequence.spans(length),
                injected=sequence.injected(length),
                text=self._text(token_ids),
                finish_reason=reason,
                interrupted_at=sequence.interrupted_at,
                entropies=slots.entropies[slot, :length].copy(),
            )
        )
        slots.release(slot)

    def _text(self, token_ids: IntArray) -> str:
        text = self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


def _never_started(entry: Entry, index: int) -> Completion:
    return Completion(
        request_id=entry.request.id,
        index=index,
        prompt_ids=entry.request.prompt_ids,
        token_ids=np.zeros(0, np.int32),
        logprobs=np.zeros(0, np.float32),
        versions=(),
        injected=np.zeros(0, np.bool_),
        text="",
        finish_reason="abort",
    )
