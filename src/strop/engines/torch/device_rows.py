"""The state of running sequences on the device, and the step that advances it there without the host.

One step feeds every running row its last token, draws the next one and decides whether the row goes on; tokens, flags
and log-probs are left in `out`, which the host copies and reads some steps later. Nothing in a step waits for the
device or depends on a value there, so that a GPU replays it as a CUDA graph; a CPU runs the same code.

Shapes: Q rows, B of them in a step, F fields, E stop ids, W pages of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.base.types import BoolArray, FloatArray
from strop.engines.sampling import Draw, draw
from strop.engines.slots import Slots
from strop.engines.torch.decoder import Decoder
from strop.engines.torch.kernels import Plan
from strop.engines.torch.kv import Ids
from strop.engines.torch.pages import PagedCache, sent

_GOLDEN, _MIX = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_STOPS = 8
# Rows that are sorted at a time for top-k and top-p: of Qwen3's vocabulary, 0.8 GB.
_SORTED = 64


class Field(IntEnum):
    """Rows of the state's matrix; reals are stored as the bits of a float64."""

    TOKEN = 0
    POSITION = 1
    ACTIVE = 2
    FIRST = 3
    BUDGET = 4
    KEY = 5
    GREEDY = 6
    TEMPERATURE = 7
    TOP_K = 8
    TOP_P = 9


_FIELDS = len(Field)


def device_uniforms(keys: Tensor, counts: Tensor) -> Tensor:
    """`sampling.uniforms` on the device: float64 [B] of keys and counts int64 [B], keys being the bits of uint64.

    Products of int64 wrap like those of uint64; shifts are made logical with a mask.
    """
    z = keys + (counts + 1) * _signed(_GOLDEN)
    z = (z ^ _shifted(z, 30)) * _signed(_MIX[0])
    z = (z ^ _shifted(z, 27)) * _signed(_MIX[1])
    z = z ^ _shifted(z, 31)
    return _shifted(z, 11).double() * 2.0**-53


def _signed(constant: int) -> int:
    return constant - (1 << 64)


def _shifted(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


class DeviceRows:
    """Q rows on the device of `cache`; `width` is W."""

    def __init__(self, count: int, width: int, decoder: Decoder, cache: PagedCache) -> None:
        device = cache.device
        self.count = count
        self.decoder = decoder
        self.cache = cache
        self.table = torch.zeros(count, width, dtype=torch.int32, device=device)
        self.out = torch.zeros(count, 3, dtype=torch.int32, device=device)
        self.state = torch.zeros(_FIELDS, count, dtype=torch.int64, device=device)
        self.state[Field.TEMPERATURE] = torch.ones((), dtype=torch.float64).view(torch.int64).item()
        self.stops = torch.full((_STOPS, count), -1, dtype=torch.int64, device=device)

    def put(self, rows: Sequence[int], slots: Slots, table: NDArray[np.int32]) -> bool:
        """Bring `rows` to what the host says of them; whether the state's tensors were made anew for it.

        `table` int32 [Q, W] is the host's.
        """
        if not rows:
            return False
        where = np.array(rows, np.int64)
        grown = self._grow(slots.stop_ids.shape[1])
        fields = np.zeros((_FIELDS, len(rows)), np.int64)
        for field, values in (
            (Field.TOKEN, slots.token), (Field.POSITION, slots.position), (Field.ACTIVE, slots.active),
            (Field.FIRST, slots.first), (Field.BUDGET, slots.budget), (Field.KEY, slots.key.view(np.int64)),
            (Field.GREEDY, slots.greedy), (Field.TOP_K, np.where(slots.top_k > 0, slots.top_k, np.int64(1) << 40)),
            (Field.TEMPERATURE, slots.temperature.astype(np.float64).view(np.int64)),
            (Field.TOP_P, slots.top_p.view(np.int64)),
        ):  # fmt: skip
            fields[field] = values[where]
        stops = np.full((len(self.stops), len(rows)), -1, np.int64)
        stops[: slots.stop_ids.shape[1]] = slots.stop_ids[where].T
        to = sent(where, self.cache.device)
        self.state[:, to] = sent(fields, self.cache.device)
        self.stops[:, to] = sent(stops, self.cache.device)
        self.table[to] = sent(table[where], self.cache.device)
        return grown

    def put_tables(self, rows: Sequence[int], table: NDArray[np.int32]) -> None:
        """Bring the pages of `rows` to what the host says of them."""
        where = np.array(rows, np.int64)
        self.table[sent(where, self.cache.device)] = sent(table[where], self.cache.device)

    def step(self, rows: int, how: Plan, truncated: bool) -> None:
        """Advance the first `rows` rows by a token; `truncated`: some of them have a top-k or top-p."""
        state, stops = self.state[:, :rows], self.stops[:, :rows]
        active = state[Field.ACTIVE] > 0
        lengths = torch.where(active, state[Field.POSITION] + 1, 0).int()
        hidden = self.decoder.hidden(state[Field.TOKEN], lengths, self.table[:rows], self.cache, how)
        policy = self.decoder.policy
        logits = policy.logits(hidden, policy.settings.generator_fp32_head)
        done = state[Field.POSITION] - state[Field.FIRST]
        uniform = device_uniforms(state[Field.KEY], done)
        temperature = state[Field.TEMPERATURE].view(torch.float64).float()
        greedy = state[Field.GREEDY] > 0
        if truncated:
            top_p = state[Field.TOP_P].view(torch.float64)
            tokens, logprobs = _sorted_draw(logits, uniform, temperature, greedy, state[Field.TOP_K], top_p)
        else:
            tokens, logprobs = self.decoder.kernels.draw(logits, uniform, temperature, greedy)
        out = self.out[:rows]
        out[:, 0] = tokens
        out[:, 1] = logprobs.float().view(torch.int32)
        out[:, 2] = active
        ended = (stops == tokens).any(0) | (done + 1 >= state[Field.BUDGET])
        state[Field.TOKEN] = tokens
        state[Field.POSITION] += active
        state[Field.ACTIVE] *= ~ended

    def _grow(self, stop_ids: int) -> bool:
        """Make room for as many stop ids."""
        if stop_ids <= len(self.stops):
            return False
        bigger = self.stops.new_full((2 * stop_ids, self.count), -1)
        bigger[: len(self.stops)] = self.stops
        self.stops = bigger
        return True


def _sorted_draw(
    logits: Tensor, uniform: Tensor, temperature: Tensor, greedy: Tensor, top_k: Tensor, top_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens and log-probs [B] with top-k and top-p in every row, a portion of the rows at a time: sorting takes some
    ten times the memory of the logits, and a graph keeps what it has needed."""
    drawn = []
    for start in range(0, len(logits), _SORTED):
        part = slice(start, start + _SORTED)
        every = torch.arange(len(logits[part]), device=logits.device)
        how = Draw(uniform[part], temperature[part, None], greedy[part], every, top_k[part], top_p[part])
        drawn.append(draw(logits[part], how)[:2])
    tokens, logprobs = (torch.cat(column) for column in zip(*drawn, strict=True))
    return tokens, logprobs


class Landing:
    """What a step left in `out`, on its way to the host."""

    def __init__(self, rows: DeviceRows, width: int) -> None:
        out = rows.out[:width]
        self.width = width
        self._event: torch.cuda.Event | None = None
        if out.is_cuda:
            self._out = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
            self._out.copy_(out, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._out = out.clone()

    def read(self) -> tuple[Ids, FloatArray, BoolArray]:
        """Tokens, log-probs and which rows ran, each [B]; waits for the step."""
        if self._event is not None:
            self._event.synchronize()
        out = self._out.numpy()
        return out[:, 0].astype(np.int64), out[:, 1].copy().view(np.float32), out[:, 2] > 0


class Steps:
    """Runs steps of a `DeviceRows`: on a GPU as CUDA graphs, one for each form of a step.

    A form runs as it is the first time, which compiles kernels and lets libraries prepare themselves; it is captured,
    which computes nothing, and replayed from the second time on. All graphs share their memory: none runs beside
    another, and nothing but `out` and the state outlives a step.
    """

    _MOST = 128

    def __init__(self, rows: DeviceRows, graphs: bool) -> None:
        self.rows = rows
        self._use_graphs = graphs and rows.cache.device.type == "cuda"
        self._graphs: dict[tuple[int, Plan, bool], torch.cuda.CUDAGraph | None] = {}
        self._pool: Any = None

    def forget(self) -> None:
        """Drop the graphs: tensors that they read were made anew, or they are too many."""
        if self._pool is not None:
            torch.cuda.synchronize(self.rows.cache.device)  # one may still run
        self._graphs.clear()
        # A pool whose last graph is gone takes no new one: PyTorch asserts that somebody still uses it.
        self._pool = None

    def run(self, width: int, how: Plan, truncated: bool) -> Landing:
        """Queue a step of the first `width` rows; what it gives is on its way."""
        form = width, how, truncated
        if not self._use_graphs or form not in self._graphs:
            if len(self._graphs) >= self._MOST:
                self.forget()
            self._graphs[form] = None
            self.rows.step(width, how, truncated)
            return Landing(self.rows, width)
        graph = self._graphs[form]
        if graph is None:
            graph = self._graphs[form] = self._captured(width, how, truncated)
        graph.replay()
        return Landing(self.rows, width)

    def _captured(self, width: int, how: Plan, truncated: bool) -> torch.cuda.CUDAGraph:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads of this process may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self.rows.step(width, how, truncated)
        return graph
