"""Variants of a layer's causal attention: how far back a token sees, a cap on scores, sinks.

    kind = Kind(Reach(window=4096), cap=50.0)      # Gemma 2; Kind() is plain causal attention
    reaches = layer_reaches(model.config)          # of every layer, by the configuration

    score = cap · tanh(q·k scale / cap),   weight_j = exp(score_j) / (Σ exp(score) + exp(sink))

with the sum over the keys that are seen: all up to the token itself, the last `window` of them, or those of the
token's own chunk of positions.

Shapes: N tokens, L keys, B sequences, T tokens of each, H query heads, K key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from strop.base.types import InputError

# Model types whose windows, chunks, caps and sinks are held to transformers' own attention (tests/kit/test_windows.py).
# Any other model that has some is refused: its mask may follow another rule.
KNOWN = frozenset({
    "cohere2", "exaone4", "gemma2", "gemma3_text", "gpt_oss", "llama4_text", "ministral", "mistral", "mixtral", "olmo3",
    "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "starcoder2",
})  # fmt: skip


@dataclass(frozen=True)
class Reach:
    """How far back a token sees.

    Attributes:
        window: it sees so many tokens, the last of which is itself; None sees all before it.
        chunk: it sees the tokens of its chunk of so many positions, up to itself; None sees all.
    """

    window: int | None = None
    chunk: int | None = None

    def covers(self, tokens: int) -> bool:
        """Whether every token of a sequence of so many sees all tokens before it."""
        return all(size is None or tokens <= size for size in (self.window, self.chunk))

    def first(self, positions: Tensor) -> Tensor:
        """The first position that is seen from each of `positions` int64 [N], int64 [N]."""
        seen = torch.zeros_like(positions)
        if self.window is not None:
            seen = (positions - self.window + 1).clamp_(min=0)
        if self.chunk is not None:
            seen = seen.maximum(positions // self.chunk * self.chunk)
        return seen

    def seen(self, positions: Tensor, keys: int) -> Tensor:
        """Which of the first `keys` positions are seen from each of `positions` int64 [N], bool [N, keys]."""
        places = torch.arange(keys, device=positions.device)
        causal = places <= positions[:, None]
        return causal if self == EVERYTHING else causal & (places >= self.first(positions)[:, None])


EVERYTHING = Reach()


@dataclass(frozen=True, eq=False)
class AttentionKind:
    """The attention of a layer.

    Attributes:
        reach: how far back its tokens see.
        cap: scores are bent to stay within ± cap; None leaves them.
        sinks: a score of each query head [H] that takes its part of the weight and gives no value; None: no sinks.
    """

    reach: Reach = EVERYTHING
    cap: float | None = None
    sinks: Tensor | None = None

    @property
    def softmax(self) -> bool:
        """Whether weights are the softmax of the scores: no cap and no sinks."""
        return self.cap is None and self.sinks is None

    def weights(self, scores: Tensor, seen: Tensor) -> Tensor:
        """Weights float32 [B, H, T, L] of scores [B, H, T, L], already scaled, and `seen` bool, broadcast to them."""
        scores = scores.float()
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        scores = scores.masked_fill(~seen, -torch.inf)
        if self.sinks is None:
            return scores.softmax(-1)
        sink = self.sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]


PLAIN = AttentionKind()


def explicit(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scale: float, kind: AttentionKind) -> Tensor:
    """Attention [B, H, T, D] of query [B, H, T, D] over key, value [B, K, L, D], by its definition.

    All weights [B, H, T, L] exist at once; `seen` bool is broadcast to them.
    """
    b, h, t, d = query.shape
    kv = key.shape[1]
    grouped = query.reshape(b, kv, h // kv * t, d)
    scores = (grouped @ key.transpose(2, 3)).view(b, h, t, -1) * scale
    weights = kind.weights(scores, seen).to(value.dtype)
    return (weights.view(b, kv, h // kv * t, -1) @ value).view(b, h, t, -1)


def layer_reaches(config: PreTrainedConfig) -> tuple[Reach, ...]:
    """The reach of every layer of a model, by its configuration.

    Raises:
        InputError: layers of a kind that strop does not compute, windows in a model that is not of `KNOWN`, or a text
            model within another one.
    """
    if config.get_text_config() is not config:
        raise InputError(
            f"a model of type {config.model_type} keeps its text model within one for pictures or sound; save the text "
            "model with its head as a separate folder and name that"
        )
    return tuple(reach_of(config, layer) for layer in range(config.num_hidden_layers))


def reach_of(config: PreTrainedConfig, layer: int) -> Reach:
    """The reach of a layer; see `layer_reaches`."""
    given = vars(config)
    types, window, chunk = (given.get(key) for key in ("layer_types", "sliding_window", "attention_chunk_size"))
    known = config.model_type in KNOWN
    # Where a configuration does not say it of each layer, a window is every layer's; others keep one without using it.
    every = "sliding_attention" if known and window is not None else "full_attention"
    kind = types[layer] if types else every
    if kind == "full_attention" or (kind == "sliding_attention" and sees_all(given, window)):
        return EVERYTHING
    if known and kind == "sliding_attention" and isinstance(window, int) and window > 0:
        return Reach(window=window)
    if known and kind == "chunked_attention" and isinstance(chunk, int) and chunk > 0:
        return Reach(chunk=chunk)
    raise InputError(
        f"a model of type {config.model_type} has {kind} layers (sliding_window {window}, attention_chunk_size "
        f"{chunk}), which strop does not compute; it computes windows and chunks of {', '.join(sorted(KNOWN))}"
    )


def sees_all(config: Mapping[str, object], window: object) -> bool:
    """Whether a sliding window, in tokens, is as long as the longest sequence of a model's configuration."""
    longest = longest_sequence(config)
    return isinstance(window, int) and longest is not None and window >= longest


def longest_sequence(config: Mapping[str, object]) -> int | None:
    """The positions that a model has, by its configuration; None where it does not say.

    A model with two rotary embeddings, one for short sequences and one for long ones (`longrope`: Phi-3 and 4 mini),
    has those of the short one: in a batch with longer sequences, or once it has grown longer itself, a sequence would
    get other log-probs.
    """
    given = config.get("max_position_embeddings", config.get("n_positions"))
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type")) in ("longrope", "su"):
        # Where a configuration and its rotary embedding say different things, transformers goes by the former.
        given = config.get("original_max_position_embeddings", rope.get("original_max_position_embeddings", given))
    return given if isinstance(given, int) else None
