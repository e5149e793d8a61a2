"""Estimates the memory of a run before its model is loaded: "needs about 61 of 80 GiB".

    need = need_of(config, "cuda", 80 * GIB)            # bytes by what takes them
    found = fitting(need, 80 * GIB, WAYS_OUT)           # a finding: `ok`, or an error

Weights, float32 masters, accumulated gradients and the optimizer's moments follow from the parameters. The activations
of a micro-batch follow from the sizes of a layer's matrices and of the head:

    layers = number · SAVED · computed tokens · Σ (inputs + outputs of a layer's matrices)
    head = up to 3 chunks of logits + the gradient in float32
    activations = layers + head, or tokens · E · number + the larger of one layer and head where they are checkpointed

Shapes: E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from strop.base import machine
from strop.base.machine import GIB
from strop.config.schema import RunConfig
from strop.engines.settings import Vllm
from strop.engines.torch import fused_forward
from strop.model.attention_kinds import longest_sequence
from strop.model.kernels import native
from strop.model.location import RESERVED, found_config
from strop.model.policy import Policy, meta_policy
from strop.model.settings import ModelSettings
from strop.run.devices import seen_gpus
from strop.run.finding import Finding
from strop.training.embedded_base import EmbeddedBase, named_base

Device = Literal["cpu", "cuda"]
_MOMENTS = 8  # bytes a trained parameter: two moments in float32
_MASTER = 4
# Values kept for the backward of a layer, as a multiple of the inputs and outputs of its matrices: with the C kernels,
# with PyTorch's operators, and with these where norms compute half precision in float32.
SAVED = {"kernels": 0.95, "plain": 1.35, "half": 1.55}
SAVED_BY_EXPERTS = 1.35  # of the experts that a token is sent to
FROZEN_NORMS = 0.25  # by how much that is less with adapters, except with the C kernels
BLOCK = 32  # tokens by which the embedded engine's cache grows, by half as much again each time
COPY = "a checkpoint's copy"
MOST_OVER = 1.15  # how far above the peak an estimate may be: its bar, and 1.05 is what was measured
PROGRAM = GIB * 6 // 10  # of a process with its libraries, on a CPU
COMPLETION_BYTES = 1024  # of Python's objects for a completion, at least
WAYS_OUT = (
    "set model.gradient_checkpointing=true, lower batch.tokens_per_microbatch or engine.slots, train adapters "
    "(model.lora.rank=32) or take a smaller model"
)
TUNING_WAYS_OUT = "lower training.tokens_per_microbatch, train adapters (model.lora.rank=32) or take a smaller model"


def outline(model: ModelSettings, tokenizer: PreTrainedTokenizerBase | None = None) -> Policy:
    """Build a model on torch's meta device, without weights; a fresh model takes its vocabulary from `tokenizer`.

    Raises:
        InputError: no such model, or a model the policy cannot compute.
    """
    base = None if model.path is None else named_base(model.path, 0)
    settings = model if base is None else model.model_copy(update={"path": None, "fresh": base.model})
    return meta_policy(settings, tokenizer)


# ---------------------------------------------------------------------- an update


class MicroBatch(NamedTuple):
    """The largest micro-batch of an update.

    Attributes:
        lengths: tokens of each sequence.
        computed: tokens that pass through the layers; fewer than the sequences have where these share a prompt.
        scored: tokens that the head predicts.
    """

    lengths: tuple[int, ...]
    computed: int
    scored: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> MicroBatch:
        """Sequences that share nothing and are scored whole."""
        return cls(tuple(lengths), sum(lengths), sum(lengths))


def update_need(policy: Policy, batch: MicroBatch, device: Device, ranks: int = 1) -> dict[str, int]:
    """Bytes that an update needs on each device: weights with masters, gradients, optimizer, activations.

    Args:
        policy: see `outline`; its settings say how it computes.
        batch: its largest micro-batch.
        device: the device that it will run on.
        ranks: the number of ranks that shard the parameters.
    """
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    every = {id(t): t for t in (*policy.parameters(), *policy.buffers())}.values()
    elements = sum(parameter.numel() for parameter in trained)
    lowered = sum(parameter.numel() for parameter in trained if parameter.element_size() < _MASTER)
    weights = sum(tensor.nbytes for tensor in every) + _MASTER * lowered
    return {
        "weights": weights // ranks,
        "gradients": _MASTER * elements // ranks,
        "optimizer": _MOMENTS * elements // ranks,
        "activations": _activations(policy, batch, device, ranks),
    }


def _activations(policy: Policy, batch: MicroBatch, device: Device, ranks: int) -> int:
    """Bytes at the peak of a micro-batch, with what ranks gather for it."""
    model, config = policy.model, policy.model.config.get_text_config()
    size = policy.head_weight.element_size()
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    experts_per_token = getattr(config, "num_experts_per_tok", None) or 1
    widths, experts = [0], [0]
    for layer in layers:
        shapes = [parameter.shape for name, parameter in layer.named_parameters() if "lora" not in name]
        widths.append(sum(sum(shape) for shape in shapes if len(shape) == 2))
        experts.append(sum(experts_per_token * sum(shape[1:]) for shape in shapes if len(shape) == 3))
    in_c = _computes_in_c(policy, device) and any(type(each).__name__.endswith("RMSNorm") for each in model.modules())
    saved = SAVED["kernels" if in_c else "plain" if size >= _MASTER else "half"]
    if policy.adapters is not None and not in_c:
        saved -= FROZEN_NORMS
    tokens = batch.computed
    head = _head_bytes(policy, batch.scored, device)
    keys, values = _head_widths(config)
    scores = 2 * config.num_attention_heads * sum(length**2 for length in batch.lengths) if keys != values else 0
    each = [
        int(size * (tokens * (saved * width + SAVED_BY_EXPERTS * more) + scores))
        for width, more in zip(widths, experts, strict=True)
    ]
    # Where layers are computed again, no layer's values are there when the head's are.
    kept = len(layers) * tokens * config.hidden_size * size if policy.checkpoints_layers else sum(each)
    again = max(each) if policy.checkpoints_layers else 0
    if ranks == 1:
        return kept + max(head, again)
    return _sharded_peak(policy, layers, kept, max(each), head)


def _sharded_peak(policy: Policy, layers: Sequence[torch.nn.Module], kept: int, one: int, head: int) -> int:
    """Bytes at the peak where FSDP2 gathers a layer at a time, and all that is in none for the whole micro-batch.

    Args:
        policy: its layers are `layers`.
        kept: of all layers, for the backward.
        one: of one layer, in its backward.
        head: of the head's logits and products.
    """
    own = {id(parameter) for layer in layers for parameter in layer.parameters()}
    rest = [parameter for parameter in policy.parameters() if id(parameter) not in own]
    layer = max((list(layer.parameters()) for layer in layers), key=_bytes, default=[])
    whole, trained = _bytes(rest), [parameter for parameter in layer if parameter.requires_grad]
    # Gradients are summed over the ranks in float32: what goes into that is as large as the group in float32.
    reduced = _MASTER * sum(parameter.numel() for parameter in trained)
    weight = policy.head_weight
    above = weight.nbytes if weight.requires_grad else 0  # the head's gradient, while layers compute theirs
    in_head = kept + whole + head
    # A layer, the next one as it arrives, and its gradients; what is reduced is that of the layer before.
    of_layer = whole + above + 2 * _bytes(layer) + _bytes(trained)
    in_layer = kept + of_layer + (one + reduced if policy.checkpoints_layers else max(reduced - one, 0))
    ends = [parameter for parameter in rest if parameter.requires_grad]
    at_end = _bytes(ends) + _MASTER * sum(parameter.numel() for parameter in ends)
    return max(in_head, in_layer, at_end)


def _bytes(parameters: Sequence[torch.Tensor]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def _head_bytes(policy: Policy, tokens: int, device: Device) -> int:
    """Bytes of a chunk of logits and of what is made of it, of the head's gradient, and of its copy in float32."""
    weight, settings = policy.head_weight, policy.settings
    kernels = native.load() if _computes_in_c(policy, device) else None
    logits = min(tokens, settings.chunk_tokens) * weight.shape[0] * 4
    whole, several = weight.numel() * 4, tokens > settings.chunk_tokens
    peak = (several + (2 if kernels is None else 1)) * logits
    if weight.requires_grad:  # chunks are summed, each after its product
        peak = max(peak + several * whole, logits + (1 + several) * whole)
    if weight.requires_grad and weight is policy.model.get_input_embeddings().weight:  # its two gradients and their sum
        peak = max(peak, 3 * weight.nbytes)
    multiplies = kernels is not None and kernels.products.multiplies(weight.dtype)
    copied = device == "cpu" and settings.trainer_fp32_head and weight.element_size() < _MASTER and not multiplies
    return peak + copied * whole


def _computes_in_c(policy: Policy, device: Device) -> bool:
    """Whether the C kernels compute on this device."""
    return device == "cpu" and policy.settings.cpu_kernels and native.load() is not None


# ---------------------------------------------------------------------- a run


def need_of(
    config: RunConfig, device: Device, room: int, policy: Policy | None = None, prompt: int | None = None
) -> dict[str, int]:
    """Bytes on the training device by purpose; on a CPU, those of all processes of the run.

    Args:
        config: the configuration of the run.
        device: the kind of device.
        room: its bytes of memory; a vLLM server on the same device takes a share of them.
        policy: its `outline`; None makes one.
        prompt: tokens of the longest prompt; None: as many as may be.
    """
    policy = outline(config.model) if policy is None else policy
    orchestration = config.orchestration
    ranks = orchestration.trainers
    batch = _micro_batch(config, policy, prompt, device)
    found = update_need(policy, batch, device, ranks)
    own = sum(parameter.nbytes for parameter in policy.model.parameters())
    if config.critic is not None:
        found["critic"] = found["weights"] + found["gradients"] + found["optimizer"]
    if any(stage.algorithm.needs_reference for stage in config.stage_configs()) and policy.adapters is None:
        found["reference policy"] = own // ranks
    if device == "cpu":
        found = {name: size * ranks for name, size in found.items()}
        found["completions"] = COMPLETION_BYTES * (orchestration.max_lag + 1) * _samples(config)
        # Written while training goes on, when the activations are gone; `Storage.begin` does without where there is no
        # room.
        found[COPY] = max(found["optimizer"] * (_MOMENTS + _MASTER) // _MOMENTS - found["activations"], 0)
        found["Python"] = PROGRAM * (ranks + (0 if orchestration.in_process else orchestration.generators))
    if isinstance(config.engine, Vllm):
        if orchestration.in_process and not config.engine.urls and device == "cuda":
            found["vLLM's server"] = int(config.engine.memory_fraction * room)
        return found
    longest = _longest(config, policy, prompt)
    in_driver = orchestration.in_process or (ranks == 1 and not config.evaluates_apart)
    engines = int(in_driver) + (orchestration.generators if device == "cpu" and not orchestration.in_process else 0)
    copies = engines - int(in_driver and config.engine.share_parameters)
    if device == "cpu" and config.engine.native and fused_forward.copies(own):
        copies += engines  # joined and packed for its products
    return found | ({"engines": engines * _cache_bytes(config, policy, longest) + copies * own} if engines else {})


def of_memory(
    config: RunConfig, policy: Policy | None = None, trains: bool = True, prompt: int | None = None
) -> Finding:
    """Whether this machine has the memory that a run needs; of a model that is only measured, that of its weights.

    `policy` and `prompt` are as in `need_of`.

    Raises:
        InputError: no such model, or one that cannot be trained so on any device.
    """
    policy = outline(config.model) if policy is None else policy
    device: Device = "cuda" if seen_gpus(config) else "cpu"
    room = room_of(device)
    if trains:
        return fitting(need_of(config, device, room, policy, prompt), room, WAYS_OUT)
    weights = sum(parameter.nbytes for parameter in policy.model.parameters())
    return fitting({"weights": weights}, room, "take a smaller model")


def fitting(need: Mapping[str, int], room: int, ways_out: str) -> Finding:
    """Whether `need` (bytes by purpose) fits into `room` bytes: `ok`, a warning where it may, or else an error."""
    whole = sum(need.values())
    largest = sorted(need.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in largest if size >= 0.01 * whole)
    found = f"needs about {_gib(whole)} of {_gib(room)} GiB ({parts})"
    least = whole - need.get(COPY, 0)
    if least <= room:
        return Finding("memory", "ok", "memory", found)
    if least <= MOST_OVER * room:
        found = f"this run {found}, unless the estimate is too high, as it may be by 15 %"
        return Finding("memory", "warning", "memory", found, ways_out)
    return Finding("memory", "error", "memory", f"this run {found}", ways_out)


def of_tuning(
    model: ModelSettings, tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], device: Device, ranks: int
) -> Finding:
    """Whether this machine has the memory that fine-tuning needs.

    Args:
        model: the model to tune.
        tokenizer: the tokenizer, which a fresh model takes its vocabulary from.
        lengths: tokens of each sequence of the largest micro-batch, all of them scored.
        device: the kind of device.
        ranks: the number of ranks that shard the model.

    Raises:
        InputError: no such model, or one that cannot be trained so on any device.
    """
    update = update_need(outline(model, tokenizer), MicroBatch.of(lengths), device, ranks)
    need = {name: size * (ranks if device == "cpu" else 1) for name, size in update.items()}
    return fitting(need, room_of(device), TUNING_WAYS_OUT)


def positions(model: ModelSettings) -> int | None:
    """The longest sequence of a model that is not loaded; None where it does not say."""
    if model.fresh is not None:
        return model.fresh.max_positions
    if model.path in RESERVED:
        return EmbeddedBase().model.max_positions
    return longest_sequence(found_config(model))


def room_of(device: Device) -> int:
    """Total bytes of memory of a device of this machine."""
    return machine.memory()[0] if device == "cpu" else torch.cuda.get_device_properties(0).total_memory


def _longest(config: RunConfig, policy: Policy, prompt: int | None) -> int:
    """Tokens of the longest possible sequence."""
    limits = (longest_sequence(policy.model.config.to_dict()), config.engine.max_tokens)
    whole = (config.data.max_prompt_tokens if prompt is None else prompt) + config.longest_budget
    return min([whole, *(limit for limit in limits if limit is not None)])


def _samples(config: RunConfig) -> int:
    """The most completions of a step."""
    return max(stage.batch.prompts_per_step * stage.batch.samples_per_prompt for stage in config.stage_configs())


def _micro_batch(config: RunConfig, policy: Policy, prompt: int | None, device: Device) -> MicroBatch:
    """The largest one of a step, of the longest completions."""
    budget = max(stage.batch.tokens_per_microbatch for stage in config.stage_configs())
    longest, parts = _longest(config, policy, prompt), config.orchestration.sequence_parallel
    lengths = [-(-length // parts) for length in largest_microbatch(longest, _samples(config), budget)]
    if prompt is None or config.environment is not None:
        return MicroBatch.of(lengths)
    asked = -(-min(prompt, longest - 1) // parts)
    scored = sum(max(length - asked, 0) for length in lengths)
    together = config.batch.samples_per_prompt if _computes_in_c(policy, device) and parts == 1 else 1
    return MicroBatch(tuple(lengths), scored + asked * -(-len(lengths) // together), scored)


def largest_microbatch(longest: int, count: int, budget: int) -> list[int]:
    """Lengths of the sequences in a micro-batch: up to `count` of `longest` tokens within the budget, at least one."""
    tokens = max(longest, min(budget, count * longest))
    whole, rest = divmod(tokens, longest)
    return [longest] * whole + ([rest] if rest else [])


def _cache_bytes(config: RunConfig, policy: Policy, longest: int) -> int:
    """Bytes of the embedded engine's keys and values after sequences of the greatest length."""
    capacity = BLOCK
    while capacity < longest:
        capacity = -(-(capacity * 3 // 2) // BLOCK) * BLOCK
    shape = policy.model.config.get_text_config()
    token = shape.num_hidden_layers * sum(_head_widths(shape)) * policy.head_weight.element_size()
    return config.engine.slots * capacity * token


def _head_widths(config: PreTrainedConfig) -> tuple[int, int]:
    """Values of a token's key and of its value in a layer."""
    heads: int = config.num_attention_heads
    if getattr(config, "v_head_dim", None):  # latent attention: keys and values of all heads are made from it
        return heads * (config.qk_nope_head_dim + config.qk_rope_head_dim), heads * config.v_head_dim
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    both = (getattr(config, "num_key_value_heads", None) or heads) * width
    return both, both


def _gib(size: int) -> str:
    return f"{size / GIB:.0f}" if size >= 10 * GIB else f"{size / GIB:.2g}"
