"""Estimates the memory of an update before its model is loaded, on a GPU, on a CPU, and of one rank of many.

    policy = outline(config.model)                                    # shapes only
    update_need(policy, BatchSizes.of([16384]), "cuda", ranks=8)      # bytes by what takes them

Weights, float32 masters, accumulated gradients and the optimizer's moments follow from the parameters. The activations
of a micro-batch follow from the sizes of a layer's matrices and of the head:

    layers = number · SAVED · computed tokens · Σ (inputs + outputs of a layer's matrices)
    head = up to 3 chunks of logits + the gradient in float32
    activations = layers + head, or tokens · E · number + the larger of one layer and head where they are checkpointed

Ranks add what FSDP2 gathers and reduces, see `_sharded_peak`. Shapes: E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from strop.model.kernels import native
from strop.model.policy import Policy, meta_policy
from strop.model.settings import ModelSettings
from strop.training.embedded_base import named_base

Device = Literal["cpu", "cuda"]
MOMENTS = 8  # bytes a trained parameter: two moments in float32
MASTER = 4
# Values kept for the backward of a layer, as a multiple of the inputs and outputs of its matrices: with the C kernels,
# with PyTorch's operators, and with these where norms compute half precision in float32.
SAVED = {"kernels": 0.95, "plain": 1.35, "half": 1.55}
SAVED_BY_EXPERTS = 1.35  # of the experts that a token is sent to
FROZEN_NORMS = 0.25  # by how much that is less with adapters, except with the C kernels


def outline(model: ModelSettings, tokenizer: PreTrainedTokenizerBase | None = None) -> Policy:
    """Build a model on torch's meta device, without weights; a fresh model takes its vocabulary from `tokenizer`.

    Raises:
        InputError: no such model, or a model the policy cannot compute.
    """
    base = None if model.path is None else named_base(model.path, 0)
    settings = model if base is None else model.model_copy(update={"path": None, "fresh": base.model})
    return meta_policy(settings, tokenizer)


# ---------------------------------------------------------------------- an update


class BatchSizes(NamedTuple):
    """The sizes of the largest micro-batch of an update.

    Attributes:
        lengths: tokens of each sequence.
        computed: tokens that pass through the layers; fewer than the sequences have where these share a prompt.
        scored: tokens that the head predicts.
    """

    lengths: tuple[int, ...]
    computed: int
    scored: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> BatchSizes:
        """Sequences that share nothing and are scored whole."""
        return cls(tuple(lengths), sum(lengths), sum(lengths))


class Offload(NamedTuple):
    """What an update on a GPU leaves in the host's memory.

    Attributes:
        state: masters, gradients and optimizer.
        activations: what layers that are computed again begin with.
    """

    state: bool = False
    activations: bool = False


NOTHING = Offload()


def update_need(
    policy: Policy, batch: BatchSizes, device: Device, ranks: int = 1, offload: Offload = NOTHING
) -> dict[str, int]:
    """Bytes that an update needs on each device: weights with masters, gradients, optimizer, activations.

    Args:
        policy: see `outline`; its settings say how it computes.
        batch: its largest micro-batch.
        device: the device that it will run on.
        ranks: the number of ranks that shard the parameters.
        offload: what is in the host's memory instead (`offloaded`).
    """
    every = {id(t): t for t in (*policy.parameters(), *policy.buffers())}.values()
    weights, activations = _bytes(list(every)), _activations(policy, batch, ranks, device, offload.activations)
    if offload.state:
        return {"weights": weights // ranks, "activations": activations}
    elements, lowered = _trained(policy)
    return {
        "weights": (weights + MASTER * lowered) // ranks,
        "gradients": MASTER * elements // ranks,
        "optimizer": MOMENTS * elements // ranks,
        "activations": activations,
    }


def offloaded(policy: Policy, batch: BatchSizes, ranks: int, offload: Offload) -> int:
    """Bytes that an update of a rank on a GPU needs of the host's memory."""
    state = (2 * MASTER + MOMENTS) * _trained(policy)[0] // ranks if offload.state else 0
    return state + (_kept(policy, batch.computed) if offload.activations and policy.checkpoints_layers else 0)


def _trained(policy: Policy) -> tuple[int, int]:
    """How many numbers are trained, and how many of them in half precision."""
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    lowered = [parameter.numel() for parameter in trained if parameter.element_size() < MASTER]
    return sum(parameter.numel() for parameter in trained), sum(lowered)


def _kept(policy: Policy, tokens: int) -> int:
    """Bytes of what all layers begin with."""
    config = policy.model.config.get_text_config()
    return int(config.num_hidden_layers * tokens * config.hidden_size * policy.head_weight.element_size())


def _activations(policy: Policy, batch: BatchSizes, ranks: int, device: Device, offload: bool) -> int:
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
    in_c = computes_in_c(policy, device) and any(type(each).__name__.endswith("RMSNorm") for each in model.modules())
    saved = SAVED["kernels" if in_c else "plain" if size >= MASTER else "half"]
    if policy.adapters is not None and not in_c:
        saved -= FROZEN_NORMS
    tokens = batch.computed
    head = _head_bytes(policy, batch.scored, device)
    keys, values = head_widths(config)
    scores = 2 * config.num_attention_heads * sum(length**2 for length in batch.lengths) if keys != values else 0
    each = [
        int(size * (tokens * (saved * width + SAVED_BY_EXPERTS * more) + scores))
        for width, more in zip(widths, experts, strict=True)
    ]
    # Where layers are computed again, no layer's values are there when the head's are.
    kept = _kept(policy, tokens) if policy.checkpoints_layers else sum(each)
    if offload and policy.checkpoints_layers:
        kept = 2 * kept // len(layers)  # one that leaves and one that computes
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
    reduced = MASTER * sum(parameter.numel() for parameter in trained)
    weight = policy.head_weight
    above = weight.nbytes if weight.requires_grad else 0  # the head's gradient, while layers compute theirs
    in_head = kept + whole + head
    # A layer, the next one as it arrives, and its gradients; what is reduced is that of the layer before.
    of_layer = whole + above + 2 * _bytes(layer) + _bytes(trained)
    in_layer = kept + of_layer + (one + reduced if policy.checkpoints_layers else max(reduced - one, 0))
    ends = [parameter for parameter in rest if parameter.requires_grad]
    at_end = _bytes(ends) + MASTER * sum(parameter.numel() for parameter in ends)
    return max(in_head, in_layer, at_end)


def _bytes(parameters: Sequence[torch.Tensor]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def _head_bytes(policy: Policy, tokens: int, device: Device) -> int:
    """Bytes of a chunk of logits and of what is made of it, of the head's gradient, and of its copy in float32."""
    weight, settings = policy.head_weight, policy.settings
    kernels = native.load() if computes_in_c(policy, device) else None
    logits = min(tokens, settings.chunk_tokens) * weight.shape[0] * 4
    whole, several = weight.numel() * 4, tokens > settings.chunk_tokens
    peak = (several + (2 if kernels is None else 1)) * logits
    if weight.requires_grad:  # chunks are summed, each after its product
        peak = max(peak + several * whole, logits + (1 + several) * whole)
    if weight.requires_grad and weight is policy.model.get_input_embeddings().weight:  # its two gradients and their sum
        peak = max(peak, 3 * weight.nbytes)
    multiplies = kernels is not None and kernels.products.multiplies(weight.dtype)
    copied = device == "cpu" and settings.trainer_fp32_head and weight.element_size() < MASTER and not multiplies
    return peak + copied * whole


def computes_in_c(policy: Policy, device: Device) -> bool:
    """Whether the C kernels compute on this device."""
    return device == "cpu" and policy.settings.cpu_kernels and native.load() is not None


def largest_microbatch(longest: int, count: int, budget: int) -> list[int]:
    """Lengths of the sequences in a micro-batch: up to `count` of `longest` tokens within the budget, at least one."""
    tokens = max(longest, min(budget, count * longest))
    whole, rest = divmod(tokens, longest)
    return [longest] * whole + ([rest] if rest else [])


def head_widths(config: PreTrainedConfig) -> tuple[int, int]:
    """Values of a token's key and of its value in a layer."""
    heads: int = config.num_attention_heads
    if getattr(config, "v_head_dim", None):  # latent attention: keys and values of all heads are made from it
        return heads * (config.qk_nope_head_dim + config.qk_rope_head_dim), heads * config.v_head_dim
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    both = (getattr(config, "num_key_value_heads", None) or heads) * width
    return both, both
