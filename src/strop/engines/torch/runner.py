"""The device's share of a step: one forward pass over decoding rows and prompts, then the draw.

Shapes: W decoding rows, R prompt tokens that ride along, E hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.base.types import ExpertArray, FloatArray, IntArray
from strop.engines.protocol import Scores
from strop.engines.sampling import Draw, draw, uniforms
from strop.engines.slots import Slots
from strop.engines.torch.fused_forward import FusedForward
from strop.engines.torch.kv import Ids, Prefill, PrefillJob, SlotCache, SlotContext, blocks
from strop.engines.torch.scheduler import LEAST_ROWS
from strop.model.attention import AttentionContext, PackedContext
from strop.model.policy import Packed, Policy


class Runner:
    """Runs a policy over the slots; `prefill_tokens` bounds the prompt tokens of one forward pass.

    `fused` computes in the place of the policy's modules where it can.
    """

    def __init__(
        self, policy: Policy, slots: Slots, cache: SlotCache, prefill_tokens: int, fused: FusedForward | None
    ) -> None:
        self.policy = policy
        self.fused = fused
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

    def probe(self, token_ids: IntArray) -> FloatArray:
        """Log-probs [L - 1] of `token_ids` [L] after the first at temperature 1."""
        device = self.policy.device
        ids = torch.from_numpy(token_ids.astype(np.int64)).to(device)
        positions = torch.arange(len(ids), device=device)
        hidden = self._hidden(ids, positions, PackedContext((len(ids),), device))
        logprobs = self._logits(hidden[:-1]).log_softmax(-1)
        found: FloatArray = logprobs.gather(1, ids[1:, None])[:, 0].float().cpu().numpy()
        return found

    def score(self, sequences: Sequence[IntArray], temperature: float, top: int) -> list[Scores]:
        """Scores of every sequence [L] under logits / temperature, with the `top` most probable tokens."""
        found: list[Scores] = []
        start = 0
        while start < len(sequences):
            end, tokens = start + 1, len(sequences[start])
            while end < len(sequences) and tokens + len(sequences[end]) <= self.prefill_tokens:
                tokens, end = tokens + len(sequences[end]), end + 1
            found += self._score_packed(sequences[start:end], temperature, top)
            start = end
        return found

    def _score_packed(self, sequences: Sequence[IntArray], temperature: float, top: int) -> list[Scores]:
        device = self.policy.device
        packed = Packed.whole([ids.tolist() for ids in sequences]).to(device)
        hidden = self._hidden(packed.token_ids, packed.positions, PackedContext(packed.lengths, device))
        columns: list[tuple[Tensor, Tensor, Tensor]] = []
        for part in packed.rows.split(self.policy.settings.chunk_tokens):  # [chunk, V] logits at a time
            logprobs = (self._logits(hidden[part]) / temperature).log_softmax(-1)
            best = logprobs.topk(top, dim=-1)
            columns.append((logprobs.gather(1, packed.token_ids[part + 1, None])[:, 0], best.indices, best.values))
        own, ids, best_logprobs = (torch.cat(column).cpu().numpy() for column in zip(*columns, strict=True))
        cuts = np.cumsum([length - 1 for length in packed.lengths])[:-1]
        return [
            Scores(one.astype(np.float32), top_ids.astype(np.int32), top_logprobs.astype(np.float32))
            for one, top_ids, top_logprobs in zip(
                np.split(own, cuts), np.split(ids, cuts), np.split(best_logprobs, cuts), strict=True
            )
        ]

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
        longest = int(lengths.max()) if width else 0
        if prefill is not None:
            longest = max(longest, int(prefill.positions.max()) + 1)
        self.cache.reserve(blocks(longest))
        # A free slot may stand just beyond the cache; what it writes in the last place is behind any prompt it lends.
        positions = np.minimum(positions, self.cache.capacity - 1)
        decoding = _sent(positions, device)
        if prefill is not None:
            ids = np.concatenate((ids, prefill.token_ids))
            positions = np.concatenate((positions, prefill.positions))
        rows = self.cache.spans(lengths) if width else ()
        context = SlotContext(self.cache, decoding, rows, prefill, _sent(slots.active[:width], device))
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
        slots, kernels = self.slots, None if self.fused is None else self.fused.kernels
        if kernels is None or slots.truncated[:width].any():
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
