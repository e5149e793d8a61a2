"""Estimates the memory of a run before its model is loaded: "needs about 61 of 80 GiB".

    need = need_of(config, "cuda", 80 * GIB)            # bytes by what takes them
    found = fitting(need, 80 * GIB, WAYS_OUT)           # a finding: `ok`, or an error

A forward and a backward of one micro-batch run as they do in training, operator by operator, on torch's meta device,
where tensors have no data; the bytes of all tensors that live at the same time are added up. Weights, float32 masters,
accumulated gradients and the optimizer's moments are computed from the parameters.

Shapes: N packed tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

import functools
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedTokenizerBase

from strop.base import machine
from strop.base.machine import GIB
from strop.base.types import StropError, first_line
from strop.config.schema import RunConfig
from strop.engines.settings import Vllm
from strop.model.attention import AttentionContext
from strop.model.attention_kinds import PLAIN, AttentionKind, longest_sequence
from strop.model.head import logprob_entropy
from strop.model.kernels import native
from strop.model.kernels.modules import fuse
from strop.model.kernels.native import LayerKernels, Products
from strop.model.lora import AdaptedLinear
from strop.model.policy import Policy, meta_policy
from strop.model.settings import ModelSettings
from strop.run.devices import seen_gpus
from strop.run.finding import Finding
from strop.training.embedded_base import named_base
from strop.training.sharding import decoder_layers

Device = Literal["cpu", "cuda"]
_MOMENTS = 8  # bytes a trained parameter: two moments in float32
_MASTER = 4


@dataclass(frozen=True)
class Need:
    """Bytes that an update needs on each device.

    Attributes:
        weights: parameters and their float32 masters.
        gradients: kept from one micro-batch to the next, float32.
        optimizer: the moments.
        activations: what lives in addition at the peak of a micro-batch: activations, the head's logits,
            gradients on their way, and layers gathered whole where they are sharded.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.weights + self.gradients + self.optimizer + self.activations


class LiveBytes(TorchDispatchMode):
    """Adds up the bytes of the meta tensors that are created inside it and live at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        if func is torch.ops.aten._grouped_mm.default and args[0].is_meta:
            found = _grouped(*args[:3])
        else:
            found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and tensor.is_meta:
                storage = tensor.untyped_storage()
                if storage._cdata not in before:
                    self._note(storage)
        return found

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def gone(_: Any) -> None:
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


def _grouped(a: Tensor, b: Tensor, offsets: Tensor | None) -> Tensor:
    """The products of a mixture's experts, in any type: torch's function on the meta device knows only bfloat16.

    Rows of a that lie in groups by matrices b [groups, ..], or, where both have as many dimensions, one per group.
    """
    groups: tuple[int, ...] = ()
    if a.dim() == b.dim():
        groups = (a.shape[0],) if offsets is None else (len(offsets),)
    return a.new_empty(*groups, a.shape[-2], b.shape[-1])


class _NoKernels(LayerKernels):
    """Stands in for the CPU kernels: allocates their tensors and computes nothing."""

    device = "meta"

    def __init__(self) -> None:
        """Nothing is loaded."""
        self.products = _NoProducts()

    def call(self, name: str, *given: Any) -> None:
        """Compute nothing."""


class _NoProducts(Products):
    """Stands in for the matrix products, for the types that this processor multiplies."""

    device = "meta"

    def __init__(self) -> None:
        """Nothing is loaded."""
        kernels = native.load()
        if kernels is None:
            self._panel, self._dots, self._tuned = 0, False, True
        else:
            vars(self).update({name: vars(kernels.products)[name] for name in ("_panel", "_dots", "_tuned")})

    def call(self, name: str, *given: Any) -> None:
        """Compute nothing."""


@functools.cache
def _no_kernels() -> _NoKernels:
    return _NoKernels()


class _Context:
    """Attention that saves what attention without [N, N] scores saves for its backward, if there is one."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = list(lengths)
        self._ends = torch.empty(len(lengths) + 1, dtype=torch.int64, device="meta")

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: AttentionKind = PLAIN
    ) -> Tensor:
        if query.shape[-1] == value.shape[-1]:
            return _no_kernels().attention(query, key, value, self._ends, self._ends, scale)
        # Latent attention has value heads of another size: torch computes it with all scores of a sequence.
        alike = [(length, len(list(group))) for length, group in groupby(self._lengths)]
        cut = [states.split([length * count for length, count in alike]) for states in (query, key, value)]
        found = []
        for (length, count), *parts in zip(alike, *cut, strict=True):
            q, k, v = (part.reshape(count, length, *part.shape[1:]).transpose(1, 2) for part in parts)
            output = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
            found.append(output.transpose(1, 2).reshape(-1, *output.shape[1::2]))
        return torch.cat(found)


class _Cached:
    """Attention that computes nothing and counts the bytes of its keys and values."""

    def __init__(self) -> None:
        self.bytes = 0

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: AttentionKind = PLAIN
    ) -> Tensor:
        self.bytes += key.nbytes + value.nbytes
        return query.new_empty(*query.shape[:2], value.shape[-1])


@torch.no_grad()
def cached_bytes(policy: Policy) -> int:
    """Bytes of the keys and values of a token in all layers of a policy on the meta device."""
    context = _Cached()
    with torch.device("meta"), LiveBytes():
        token = torch.empty(1, dtype=torch.int64)
        policy.hidden(token, token, context)
    return context.bytes


def update_need(policy: Policy, lengths: Sequence[int], device: Device, ranks: int = 1) -> Need:
    """The memory of an update of a policy on the meta device; `lengths` are those of its largest micro-batch.

    Args:
        policy: `meta_policy`; its settings say how it computes.
        lengths: tokens of each sequence of a micro-batch, all of them scored.
        device: the device that it will run on.
        ranks: the number of ranks that shard the parameters.
    """
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    every = {id(t): t for t in (*policy.parameters(), *policy.buffers())}.values()
    lowered = [parameter for parameter in trained if parameter.element_size() < _MASTER]
    elements = sum(parameter.numel() for parameter in trained)
    weights = sum(tensor.nbytes for tensor in every) + _MASTER * sum(parameter.numel() for parameter in lowered)
    live = _live_bytes(policy, lengths, device, ranks)
    return Need(
        weights=weights // ranks,
        gradients=_MASTER * elements // ranks,
        optimizer=_MOMENTS * elements // ranks,
        activations=live + (_gathered(policy) if ranks > 1 else 0),
    )


def _forget(parameter: Tensor) -> None:
    parameter.grad = None


def _live_bytes(policy: Policy, lengths: Sequence[int], device: Device, ranks: int) -> int:
    """Peak bytes of forward and backward, without the tensors that exist before them."""
    tokens = sum(lengths)
    context = _Context(lengths)
    if _computes_in_c(policy, device):
        fuse(policy.model, _no_kernels())
    for parameter in policy.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.element_size() >= _MASTER:  # gradients so far, which are counted apart
            parameter.grad = torch.empty_like(parameter)
        elif ranks == 1:  # each is added to its master's as soon as it is there
            parameter.register_post_accumulate_grad_hook(_forget)
    with torch.device("meta"), LiveBytes() as live:
        ids = torch.empty(tokens, dtype=torch.int64)
        logprob, _ = _forward(policy, ids, context, device)
        logprob.sum().backward()
    return live.peak


def _forward(policy: Policy, ids: Tensor, context: AttentionContext, device: Device) -> tuple[Tensor, Tensor]:
    """`Policy.forward` at temperature 1 with every token scored."""
    settings, head = policy.settings, policy.model.get_output_embeddings()
    if policy.checkpoints_layers:
        policy.model.train()
    hidden = policy.hidden(ids, ids, context)
    weight = head.weight_with_gradient() if isinstance(head, AdaptedLinear) else policy.head_weight
    fp32, kernels = settings.trainer_fp32_head, _no_kernels() if _computes_in_c(policy, device) else None
    if device == "cpu" and fp32 and (kernels is None or not kernels.products.fits(weight)):
        weight = weight.float()  # as the head does there, from its forward to the end of its backward
    chunk, form = settings.chunk_tokens, policy.logit_form
    return logprob_entropy(hidden, weight, policy.head_bias, ids, 1.0, chunk, fp32, form, kernels)


def _computes_in_c(policy: Policy, device: Device) -> bool:
    """Whether the C kernels compute on this device."""
    return device == "cpu" and policy.settings.cpu_kernels and native.load() is not None


def _gathered(policy: Policy) -> int:
    """Bytes of the two largest parameter groups that ranks gather whole, and of the gradients of one."""
    each = [sum(parameter.nbytes for parameter in layer.parameters()) for layer in decoder_layers(policy.model)]
    rest = sum(parameter.nbytes for parameter in policy.model.parameters()) - sum(each)
    return rest * 2 + 2 * max(each) + max(each)


BLOCK = 32  # tokens by which the embedded engine's cache grows, by half as much again each time
COMPLETION_BYTES = 1024  # of Python's objects for a completion, at least
WAYS_OUT = (
    "set model.gradient_checkpointing=true, lower batch.tokens_per_microbatch or engine.slots, train adapters "
    "(model.lora.rank=32) or take a smaller model"
)
TUNING_WAYS_OUT = "lower training.tokens_per_microbatch, train adapters (model.lora.rank=32) or take a smaller model"
_STROP = Path(__file__).parents[1]


class NotKnownBeforehand(StropError):
    """The memory of a model is known only after loading it."""


def need_of(config: RunConfig, device: Device, room: int, policy: Policy | None = None) -> dict[str, int]:
    """Bytes on the training device by purpose; on a CPU, those of all processes of the run.

    Args:
        config: the configuration of the run.
        device: the kind of device.
        room: its bytes of memory; a vLLM server on the same device takes a share of them.
        policy: its `outline`, which is used up; None makes one.

    Raises:
        NotKnownBeforehand: the model's code cannot be gone through without its weights.
    """
    with _without_data():
        return _need_of(config, device, room, outline(config.model) if policy is None else policy)


def outline(model: ModelSettings, tokenizer: PreTrainedTokenizerBase | None = None) -> Policy:
    """Build a model on torch's meta device, without weights; a fresh model takes its vocabulary from `tokenizer`.

    Raises:
        InputError: no such model, or a model the policy cannot compute.
        NotKnownBeforehand: see `need_of`.
    """
    with _without_data():
        return meta_policy(_settings(model), tokenizer)


@contextmanager
def _without_data() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:  # of a model's code, on tensors without data
        if _raised_here(error):
            raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise NotKnownBeforehand(
            "the need is not known before the model is loaded, because its code cannot run without "
            f"its weights ({reason}); watch the memory of a run of a few steps (steps=3)"
        ) from error


def _raised_here(error: Exception) -> bool:
    """Whether strop's code raised the error, rather than the model's code or a library."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return Path(last.filename).is_relative_to(_STROP)


def _need_of(config: RunConfig, device: Device, room: int, policy: Policy) -> dict[str, int]:
    ranks = config.orchestration.trainers
    shared = config.orchestration.sequence_parallel
    update = update_need(policy, [-(-length // shared) for length in _lengths(config, policy)], device, ranks)
    found: dict[str, int] = asdict(update)
    own = sum(parameter.nbytes for parameter in policy.model.parameters())
    if config.critic is not None:
        found["critic"] = update.weights + update.gradients + update.optimizer
    if any(stage.algorithm.needs_reference for stage in config.stage_configs()) and policy.adapters is None:
        found["reference policy"] = own // ranks
    orchestration = config.orchestration
    if device == "cpu":
        found = {name: size * ranks for name, size in found.items()}
        found["completions"] = COMPLETION_BYTES * (orchestration.max_lag + 1) * _samples(config)
    if isinstance(config.engine, Vllm):
        if orchestration.in_process and not config.engine.urls and device == "cuda":
            found["vLLM's server"] = int(config.engine.memory_fraction * room)
        return found
    cache = _cache_bytes(config, policy)
    in_driver = orchestration.in_process or (ranks == 1 and not config.evaluates_apart)
    engines = int(in_driver) + (orchestration.generators if device == "cpu" and not orchestration.in_process else 0)
    copies = engines - int(in_driver and config.engine.share_parameters)
    return found | ({"engines": engines * cache + copies * own} if engines else {})


def of_memory(config: RunConfig, policy: Policy | None = None, trains: bool = True) -> Finding:
    """Whether this machine has the memory that a run needs; of a model that is only measured, that of its weights.

    `policy` is its `outline`, which is used up; None makes one.

    Raises:
        InputError: no such model, or one that cannot be trained so on any device.
    """
    device: Device = "cuda" if seen_gpus(config) else "cpu"
    room = room_of(device)
    try:
        if trains:
            return fitting(need_of(config, device, room, policy), room, WAYS_OUT)
        model = (outline(config.model) if policy is None else policy).model
        weights = sum(parameter.nbytes for parameter in model.parameters())
        return fitting({"weights": weights}, room, "take a smaller model")
    except NotKnownBeforehand as error:
        return Finding("memory-unknown", "note", "memory", str(error))


def fitting(need: Mapping[str, int], room: int, ways_out: str) -> Finding:
    """Whether `need` (bytes by purpose) fits into `room` bytes: `ok`, or an error with the ways out."""
    whole = sum(need.values())
    largest = sorted(need.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in largest if size >= 0.01 * whole)
    found = f"needs about {_gib(whole)} of {_gib(room)} GiB ({parts})"
    if whole <= room:
        return Finding("memory", "ok", "memory", found)
    return Finding("memory", "error", "memory", f"this run {found}", ways_out)


def of_tuning(
    model: ModelSettings, tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], device: Device, ranks: int
) -> Finding:
    """Whether this machine has the memory that fine-tuning needs.

    Args:
        model: the model to tune.
        tokenizer: the tokenizer, which a fresh model takes its vocabulary from.
        lengths: tokens of each sequence of the largest micro-batch.
        device: the kind of device.
        ranks: the number of ranks that shard the model.

    Raises:
        InputError: no such model, or one that cannot be trained so on any device.
    """
    try:
        with _without_data():
            update = update_need(outline(model, tokenizer), lengths, device, ranks)
    except NotKnownBeforehand as error:
        return Finding("memory-unknown", "note", "memory", str(error))
    need = {name: size * (ranks if device == "cpu" else 1) for name, size in asdict(update).items()}
    return fitting(need, room_of(device), TUNING_WAYS_OUT)


def room_of(device: Device) -> int:
    """Total bytes of memory of a device of this machine."""
    if device == "cpu":
        return machine.memory()[0]
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def _settings(model: ModelSettings) -> ModelSettings:
    """Replace the name of an embedded base by its shape."""
    base = None if model.path is None else named_base(model.path, 0)
    return model if base is None else model.model_copy(update={"path": None, "fresh": base.model})


def _longest(config: RunConfig, policy: Policy) -> int:
    """Tokens of the longest possible sequence."""
    budget = config.longest_budget
    limits = (longest_sequence(policy.model.config.to_dict()), config.engine.max_tokens)
    return min([config.data.max_prompt_tokens + budget, *(limit for limit in limits if limit is not None)])


def _samples(config: RunConfig) -> int:
    """The most completions of a step."""
    return max(stage.batch.prompts_per_step * stage.batch.samples_per_prompt for stage in config.stage_configs())


def _lengths(config: RunConfig, policy: Policy) -> list[int]:
    """The sequences of the largest micro-batch."""
    most = _samples(config)
    budget = max(stage.batch.tokens_per_microbatch for stage in config.stage_configs())
    return largest_microbatch(_longest(config, policy), most, budget)


def largest_microbatch(longest: int, count: int, budget: int) -> list[int]:
    """Lengths of the sequences in a micro-batch: up to `count` of `longest` tokens within the budget, at least one."""
    tokens = max(longest, min(budget, count * longest))
    whole, rest = divmod(tokens, longest)
    return [longest] * whole + ([rest] if rest else [])


def _cache_bytes(config: RunConfig, policy: Policy) -> int:
    """Bytes of the embedded engine's keys and values after sequences of the greatest length."""
    capacity = BLOCK
    while capacity < _longest(config, policy):
        capacity = -(-(capacity * 3 // 2) // BLOCK) * BLOCK
    return config.engine.slots * capacity * cached_bytes(policy)


def _gib(size: int) -> str:
    return f"{size / GIB:.0f}" if size >= 10 * GIB else f"{size / GIB:.2g}"
