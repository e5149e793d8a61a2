"""The embedded engine with paged keys and values, whose steps run on the device without waiting for the host.

    submit → waiting samples ─┐ a free slot and pages          set aside ←─ no page left
                              v                                    │
    step:  admit → prompts → queue a step on the device → read the one queued `LAG` steps ago → record → report

The device draws, stops at a stop id or a spent budget, and goes on by itself; the host reads what was drawn a few steps
later, so that it never keeps the device waiting. What the host alone can see, stop strings and the end of thinking,
makes it read every step at once while such a sequence runs. Whatever must know the present (a change of weights, a
cancelled request, a look at running samples) first reads all that was queued.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from strop.base.types import FinishReason, InputError, StropError
from strop.engines.protocol import Drawn, Health, KvMode
from strop.engines.settings import EngineSettings
from strop.engines.torch.decoder import Decoder, heads_of, unsupported
from strop.engines.torch.device_rows import DeviceRows, Landing, Steps
from strop.engines.torch.engine import TorchEngine
from strop.engines.torch.kernels import Kernels, kernels_for, plan
from strop.engines.torch.paged_scheduler import PagedScheduler
from strop.engines.torch.pages import PagedCache, PagedJob, PagedPrefill, page_bytes, sent
from strop.engines.torch.scheduler import LEAST_ROWS
from strop.model.attention import PackedContext, current
from strop.model.policy import Policy

# Steps that are queued before the host reads the first of them.
LAG = 2
# Multiprocessors that plans are made for where there is no GPU.
_PROCESSORS = 8


class PagedEngine(TorchEngine):
    """An `Engine` with paged keys and values, on a GPU or (for tests) on a CPU.

    Raises:
        InputError: settings that the policy cannot honour, a model that the decoder does not know, or no room for a
            single sequence of the longest kind.
        StropError: a step differs from the policy's own forward pass.
    """

    _records_entropies = False

    def __init__(
        self,
        policy: Policy,
        tokenizer: PreTrainedTokenizerBase,
        settings: EngineSettings,
        version: int = 0,
        kernels: Kernels | None = None,
        graphs: bool = True,
    ) -> None:
        """As `TorchEngine`; `kernels` None are those for the device, `graphs` False runs every step as it is."""
        reason = unsupported(policy)
        if reason is not None:
            raise InputError(f'engine.cache = "paged" cannot compute this model: {reason}; use "slots"')
        super().__init__(policy, tokenizer, settings, version)
        device, heads = self.policy.device, heads_of(self.policy)
        longest = self._limits.max_tokens
        layers, dtype = self.policy.model.config.num_hidden_layers, self.policy.head_weight.dtype
        decoder = Decoder(
            self.policy, kernels or kernels_for(device, heads), longest, own=not settings.share_parameters
        )
        size = page_bytes(layers, settings.page_tokens, heads, dtype)
        pages = _page_count(settings, size, longest, device, _trainers_share(self.policy, settings))
        self._cache = PagedCache(layers, pages, settings.page_tokens, heads, dtype, device)
        self._decoder = decoder
        self._pages = PagedScheduler(self._slots, self._scheduler.waiting, self._cache, longest)
        self._device = DeviceRows(settings.slots, self._pages.table.shape[1], decoder, self._cache)
        self._steps = Steps(self._device, graphs)
        self._flying: deque[Landing] = deque()
        self._processors = (
            torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else _PROCESSORS
        )

        with self._on_device():
            self._refuse_by_probe()

    @torch.inference_mode()
    def _refuse_by_probe(self) -> None:
        """Hold a step's hidden states against those of the policy's own forward pass, before anything depends on them.

        Raises:
            StropError: they differ by more than rounding: the kernels do not work here.
        """
        pages, device = self._pages, self.policy.device
        count = min(pages.page + 3, self._limits.max_tokens)
        ids = (np.arange(count) * 7919 + 1) % self.policy.vocabulary
        own = pages.pool.take(pages.pages_of(count))
        job = PagedJob(ids[:-1])
        job.write(own, pages.page)
        if count > 1:
            self._prefill([job])
        table = np.zeros((LEAST_ROWS, len(own)), np.int32)
        table[0] = own
        tokens, lengths = np.zeros(LEAST_ROWS, np.int64), np.zeros(LEAST_ROWS, np.int32)
        tokens[0], lengths[0] = ids[-1], count
        how = plan(LEAST_ROWS, self._decoder.heads, count, pages.page, self._processors)
        found = self._decoder.hidden(
            sent(tokens, device), sent(lengths, device), sent(table, device), self._cache, how
        )[0].float()
        pages.pool.drop(own)
        whole = sent(ids, device)
        wanted = self.policy.hidden(whole, torch.arange(count, device=device), PackedContext((count,), device))[-1]
        gap = float((found - wanted.float()).norm() / wanted.float().norm())
        if not gap < (1e-3 if wanted.dtype == torch.float32 else 0.1):
            raise StropError(
                f"{type(self.policy.model).__name__}: a decoding step over pages differs by {gap:.3g} from the model's "
                'own forward pass; set engine.cache = "slots", and report this'
            )

    @property
    def cache_pages(self) -> int:
        """Pages of the cache, page 0 aside."""
        return self._cache.pages - 1

    @property
    def free_pages(self) -> int:
        """Pages that nobody owns."""
        return self._pages.pool.available

    def cancel(self, request_id: str) -> None:
        """As `TorchEngine.cancel`, after reading what was queued."""
        self._land_all()
        before = self._slots.running()
        for entry in [entry for entry in self._scheduler.waiting if entry.request.id == request_id]:
            self._pages.forget(entry)
        super().cancel(request_id)
        for parked in [one for one in self._pages.parked if one.sequence.entry.request.id == request_id]:
            self._pages.parked.remove(parked)
            self._reports.append(self._completion(parked.sequence, parked.drawn, parked.logprobs, None, "abort"))
        self._put([slot for slot in before if not self._slots.active[slot]])

    @torch.inference_mode()
    def set_version(self, version: int, kv: KvMode = "keep") -> None:
        """As `TorchEngine.set_version`, after reading what was queued."""
        self._refuse_version(version)
        self._land_all()
        super().set_version(version, "keep")
        if self._decoder.refresh():
            self._steps.forget()
        self._pages.weights_changed()
        if kv == "recompute":
            with self._on_device():
                self._prefill(self._pages.recompute())

    def drawn(self, since: Mapping[tuple[str, int], int]) -> list[Drawn]:
        """What running samples drew since, after reading what was queued; see `strop.engines.protocol.Streaming`."""
        self._land_all()
        return super().drawn(since)

    def health(self) -> Health:
        found = super().health()
        return Health(found.ok, found.detail, found.running, found.waiting + len(self._pages.parked))

    def close(self) -> None:
        """Drop the caches; the engine cannot be used any more."""
        super().close()
        self._flying.clear()
        self._pages.parked.clear()
        self._steps.forget()
        self._cache.clear()

    # ------------------------------------------------------------------ a step

    def _advance(self) -> None:
        with self._on_device():
            self._run()

    def _on_device(self) -> AbstractContextManager[object]:
        return current(self.policy.device)

    def _run(self) -> None:
        if self.policy.model.training:
            self.policy.model.eval()
        taken, jobs = self._pages.admit(self._version)
        self._prefill(jobs)
        self._put(taken)
        self._gather()
        lag = LAG if self._launch() and not self._watched() else 0
        while len(self._flying) > lag:
            self._land()

    def _launch(self) -> bool:
        """Queue a step, if any row may still draw a token."""
        self._cover()
        pages, slots = self._pages, self._slots
        rows = pages.running()
        if not len(rows):
            return False
        width = _bucket(int(rows[-1]) + 1, slots.count) if self.settings.shrink else slots.count
        longest = int(pages.sent[rows].max()) + 1
        how = plan(width, self._decoder.heads, longest, pages.page, self._processors)
        self._flying.append(self._steps.run(width, how, bool(slots.truncated[rows].any())))
        pages.sent[rows] += 1
        return True

    def _cover(self) -> None:
        """Give pages to the rows that need them, if need be those of the sequences that came last."""
        pages = self._pages
        while True:
            grown = pages.cover(pages.running())
            if grown is not None:
                if grown:
                    self._device.put_tables(grown, pages.table)
                return
            if self._flying:
                self._land_all()  # some may have ended
            else:
                self._put([pages.park()])

    def _land(self) -> None:
        """Read the oldest step that was queued."""
        landing = self._flying.popleft()
        tokens, logprobs, ran = landing.read()
        slots, width = self._slots, landing.width
        assert not (ran & ~slots.active[:width]).any(), "the device runs a row that the host believes free"
        watched = np.flatnonzero(ran & (slots.has_strings | slots.thinks)[:width])
        drew, budgets = tokens[watched], slots.budget[watched]
        self._record(width, tokens, logprobs, ran=ran)
        # The host may have seen an end, put a token of its own, or allowed more or fewer; the others are as the device
        # believes.
        seen = ~slots.active[watched] | (slots.token[watched] != drew) | (slots.budget[watched] != budgets)
        changed = watched[seen]
        self._pages.sent[changed] = slots.position[changed]
        self._put(changed.tolist())

    def _land_all(self) -> None:
        while self._flying:
            self._land()

    def _watched(self) -> bool:
        """Whether a sequence runs of which the device does not see the end."""
        slots = self._slots
        return bool((slots.active & (slots.has_strings | slots.thinks)).any())

    def _gather(self) -> None:
        """When nobody waits, move the last sequences to the front where that makes a step narrower."""
        slots, pages = self._slots, self._pages
        if self._scheduler.waiting or pages.parked or not self.settings.shrink:
            return
        running = slots.running()
        if not running or _bucket(running[-1] + 1, slots.count) <= _bucket(len(running), slots.count):
            return
        self._land_all()
        self._put(pages.gather(_bucket(len(slots.running()), slots.count)))

    @torch.inference_mode()  # as every step: what was made in one cannot be written to outside
    def _put(self, rows: Sequence[int]) -> None:
        if self._device.put(rows, self._slots, self._pages.table):
            self._steps.forget()

    def _prefill(self, jobs: Sequence[PagedJob]) -> None:
        """Compute the keys and values of `jobs`, at most `prefill_tokens` tokens or one longer job at a time."""
        start = 0
        while start < len(jobs):
            end, tokens = start + 1, len(jobs[start].token_ids)
            while end < len(jobs) and tokens + len(jobs[end].token_ids) <= self.settings.prefill_tokens:
                tokens, end = tokens + len(jobs[end].token_ids), end + 1
            portion = PagedPrefill(self._cache, jobs[start:end], LEAST_ROWS)
            self.policy.hidden(portion.token_ids, portion.positions, portion)
            start = end

    def _finish(self, slot: int, reason: FinishReason) -> None:
        super()._finish(slot, reason)
        self._pages.release(slot)


def _bucket(rows: int, most: int) -> int:
    """Rows of a step that serves `rows`: few sizes, so that each is worth a graph, and at most about a third idle."""
    unit = 16 if rows <= 128 else 64 if rows <= 512 else 128
    return min(-(-rows // unit) * unit, most)


def _trainers_share(policy: Policy, settings: EngineSettings) -> int:
    """Bytes that the optimizer of a trainer on these parameters takes sooner or later: float32 masters of lower
    precision, two moments, and gradients in both types."""
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad and settings.share_parameters]
    return sum(parameter.numel() * (12 if parameter.dtype == torch.float32 else 18) for parameter in trained)


def _page_count(settings: EngineSettings, size: int, longest: int, device: torch.device, others: int = 0) -> int:
    """Pages of `size` bytes that the settings allow, page 0 included; `others` bytes of a GPU are spoken for.

    Raises:
        InputError: not even a single sequence of `longest` tokens would fit.
    """
    each = -(-longest // settings.page_tokens)
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + kept
        free = max(free - others, free // 2)
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    allowed = int(free * settings.cache_memory) // size
    # A page more for each slot: the last one of a prompt that waiting samples copy.
    count = min(allowed, settings.slots * (each + 1) + 1)
    if settings.cache_pages is not None:
        count = settings.cache_pages + 1
    # A prompt's own last page beside those of its only sample.
    least = each + 2
    if count < least:
        raise InputError(
            f"the cache holds {(count - 1) * settings.page_tokens} tokens, too few for a sequence of {longest}: lower "
            "engine.max_tokens, or raise engine.cache_memory or engine.cache_pages"
        )
    return count
