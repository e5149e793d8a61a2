"""The policy: a transformers causal LM that gives log-probs and entropies of packed tokens.

    policy, tokenizer = load_policy(ModelSettings(path="Qwen/Qwen3-0.6B", dtype="bfloat16"))
    logprob, entropy = policy(packed, temperature=1.0)        # float32 [M] each, differentiable

Shapes: S sequences, N packed tokens, M targets, E hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from strop.algorithms.tokens import send
from strop.base import progress
from strop.base.types import FloatArray, InputError, IntArray
from strop.model.attention import NAME, AttentionContext, PackedContext, leave_rows_to_strop, use_flash_attention
from strop.model.attention_kinds import PLAIN, AttentionKind, layer_reaches
from strop.model.files import byte_tokenizer, checkpoint_layers, export, fresh_model, load_pretrained, stored_model
from strop.model.head import LogitForm, collision, logprob_entropy, most_probable, project
from strop.model.kernels import native
from strop.model.kernels.modules import SharedContext, SharedLayout, fuse, in_float32, unfuse
from strop.model.kernels.native import LayerKernels
from strop.model.location import dtype_name
from strop.model.lora import AdaptedLinear, Adapters, attach, without_adapters
from strop.model.routing import RecordedExperts, Routing
from strop.model.sequence_parallel import SequenceParallel
from strop.model.settings import FreshModel, Lora, ModelSettings

__all__ = [
    "FreshModel", "Lora", "ModelSettings", "PackedInputs", "Policy", "WithoutAdapters", "export", "load_policy",
    "meta_policy",
]  # fmt: skip

_LOG = logging.getLogger(__name__)
_PROBE_LENGTHS = (9, 7)
# What a model is compared on: text of several kinds, as its tokenizer begins it.
_PROBE_TEXTS = (
    "Question: A farmer has 17 sheep and buys 25 more. How many sheep are there now?\nAnswer: 17 + 25 = 42",
    "The derivative of x^2 is 2x. Die Ableitung von sin(x) ist cos(x).",
)
_NO_FURTHER = 1.5  # times as far from float32 as without kernels; rounding elsewhere moves the distance that much
_ROUNDING = 1e-4  # ‖with kernels − without‖ / ‖without‖ of hidden states in float32


@dataclass(frozen=True, eq=False)
class PackedInputs:
    """S packed sequences, and which of their tokens are scored.

    Example (sequences [5, 9, 17] and [5, 2], scoring 17 and 2): `token_ids=[5, 9, 17, 5, 2]`,
    `positions=[0, 1, 2, 0, 1]`, `lengths=(3, 2)`, `rows=[1, 3]`, `targets=[17, 2]`.

    Attributes:
        token_ids: int64 [N].
        positions: int64 [N]; they start again at 0 in every sequence.
        lengths: tokens of each sequence, summing to N.
        rows: int64 [M], indices into N of the hidden states that predict the targets.
        targets: int64 [M].
        candidates: int64 [M, K], further tokens whose log-probs are wanted where each target is predicted, or None.
        experts: those that each token goes through, where they are known; None: as the routers choose.
    """

    token_ids: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    rows: Tensor
    targets: Tensor
    experts: RecordedExperts | None = None
    candidates: Tensor | None = None

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"packed sequences must have at least a token each, not {self.lengths}")
        if sum(self.lengths) != n or len(self.positions) != n or len(self.rows) != len(self.targets):
            raise ValueError(
                f"packed fields disagree: {n} tokens, {len(self.positions)} positions, lengths of sum "
                f"{sum(self.lengths)}, {len(self.rows)} rows, {len(self.targets)} targets"
            )

    @property
    def sequences(self) -> tuple[Tensor, Tensor, tuple[int, ...], Tensor, Tensor, RecordedExperts | None]:
        """All but the candidates, as ranks share it (`SequenceParallel.part`)."""
        return self.token_ids, self.positions, self.lengths, self.rows, self.targets, self.experts

    @classmethod
    def whole(cls, sequences: Sequence[Sequence[int]]) -> PackedInputs:
        """Every token but the first of each sequence as a target, in order."""
        lengths = tuple(len(ids) for ids in sequences)
        token_ids = torch.tensor([token for ids in sequences for token in ids], dtype=torch.int64)
        positions = torch.cat([torch.arange(length) for length in lengths])
        rows = (positions[1:] > 0).nonzero()[:, 0]
        return cls(token_ids, positions, lengths, rows, token_ids[rows + 1])

    def to(self, device: torch.device) -> PackedInputs:
        """The same tokens on another device."""
        return replace(
            self,
            token_ids=send(self.token_ids, device),
            positions=send(self.positions, device),
            rows=send(self.rows, device),
            targets=send(self.targets, device),
            candidates=None if self.candidates is None else send(self.candidates, device),
        )


class Policy(nn.Module):
    """A causal LM of transformers with strop's attention and head; `policy.model` is the model itself, to save or wrap.

    With `adapters` (see `lora`) only these are trained; the model's parameters are frozen and hold the merged weights.

    Raises:
        InputError: the model computes something the policy does not: linear layers, or windows with an unknown rule.
    """

    def __init__(
        self, model: PreTrainedModel, settings: ModelSettings, probe: Sequence[Sequence[int]] | None = None
    ) -> None:
        """`probe` are sequences of tokens that the model is compared with itself on; by default any tokens."""
        super().__init__()
        self.settings = settings
        words = model.get_input_embeddings().weight.shape[0]
        self._probe = probe or [[(7919 * t + 1) % words for t in range(n)] for n in _PROBE_LENGTHS]
        layer_reaches(model.config)
        use_flash_attention(settings.flash_attention)
        self.logit_form = LogitForm.of(model.config)
        self._plain_tokens = sys.maxsize  # longest sequence with plain causal attention in every layer
        switch_off_dropout(model)
        leave_rows_to_strop(model)
        if model.config._attn_implementation != NAME:
            model.set_attn_implementation(NAME)
        self.checkpoints_layers = checkpoint_layers(model, settings)
        self.model = model
        self.adapters: Adapters | None = None
        self.sequence: SequenceParallel | None = None
        self.routing = Routing(model) if settings.replay_routing else None
        self._kernels_tried = False
        self._exact: Tensor | None = None  # hidden states of the probe in float32
        self._limit = 0.0  # how far from them others may be
        self._shares = False  # beginnings of sequences, see `sharing`
        self.eval()
        if self.device.type != "meta":
            _refuse_by_probe(self)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    @property
    def vocabulary(self) -> int:
        """V, the rows of the head."""
        return int(self.head_weight.shape[0])

    @property
    def parameter_count(self) -> int:
        """All parameters, tied ones once, adapters left out."""
        return sum(weight.numel() for weight in self.weights().values())

    @property
    def attention_width(self) -> int:
        """What a query and a key are multiplied over, summed over heads and layers."""
        config = self.model.config
        size = self._head_dim or int(config.to_dict()["v_head_dim"])
        return int(config.num_hidden_layers * config.num_attention_heads * size)

    @property
    def computing_parameters(self) -> int:
        """Parameters that a token is multiplied with: all but the embedding, the head's own counted once.

        Of the experts of a mixture those that a token is sent to, on average over the experts.
        """
        embedding = self.model.get_input_embeddings().weight
        every = {id(parameter): parameter.numel() for parameter in self.model.parameters()}
        tied = embedding is self.head_weight
        return sum(every.values()) - (0 if tied else embedding.numel()) - self._idle_experts()

    def _idle_experts(self) -> int:
        """Parameters of the experts that a token is not sent to; 0 where the configuration does not say how many."""
        chosen = self.model.config.get_text_config().to_dict().get("num_experts_per_tok")
        if not isinstance(chosen, int):
            return 0
        idle = 0
        for name, module in self.model.named_modules():
            if name.endswith(".experts"):
                sizes = [parameter.numel() for parameter in module.parameters()]
                experts = len(module) if isinstance(module, nn.ModuleList) else len(next(module.parameters()))
                idle += sum(sizes) * (experts - chosen) // experts
        return idle

    @property
    def head_weight(self) -> Tensor:
        """The head's own parameter [V, E], which is the embedding's where they are tied."""
        weight = self._head.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def head_bias(self) -> Tensor | None:
        """The head's bias [V], where it has one."""
        bias = self._head.bias
        assert bias is None or isinstance(bias, Tensor)
        return bias

    @property
    def _head(self) -> nn.Module:
        head = self.model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise InputError(f"{type(self.model).__name__} has no linear language-model head; use a causal LM")
        return head

    def weights(self) -> dict[str, Tensor]:
        """Every parameter once, by its name in `policy.model` (a tied head under its embedding's name), detached.

        Adapters are merged into them: this is what engines are given.
        """
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def saved_weights(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint: `weights`, or only the adapters where there are any."""
        return self.weights() if self.adapters is None else self.adapters.weights()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Restore the tensors of `saved_weights`.

        Raises:
            InputError: names or shapes are those of another model.
        """
        if self.adapters is None:
            copy_parameters(self.model, weights)
        else:
            self.adapters.load(weights)

    def adapt(self, lora: Lora, seed: int) -> None:
        """From now on train adapters, which start at zero, and none of the model's parameters.

        Raises:
            InputError: see `lora.attach`.
        """
        self.adapters = attach(self.model, lora, seed)

    def merge(self) -> None:
        """Merge the adapters into the model's weights; the trainer calls it after each optimizer step."""
        if self.adapters is not None:
            self.adapters.merge()

    def frozen_copy(self) -> Policy:
        """A copy of the policy as it is now: a plain model without gradients."""
        copied = copy.deepcopy(self).requires_grad_(False)
        copied.adapters = None
        without_adapters(copied.model)
        return copied

    def hidden(
        self, token_ids: Tensor, positions: Tensor, context: AttentionContext, experts: Tensor | None = None
    ) -> Tensor:
        """Last hidden states [N, E] of token_ids, positions int64 [N], attending as `context` says.

        `experts` [N, L, k] stay in force until the next call, for layers computed again in backward.
        """
        if self.routing is not None:
            self.routing.replayed = experts
        return last_hidden(base_of(self.model), token_ids, positions, context)

    def logits(self, hidden: Tensor, fp32: bool) -> Tensor:
        """float32 logits [M, V] of hidden [M, E], at temperature 1."""
        return self.logit_form(project(hidden, self.head_weight, self.head_bias, fp32, self._kernels))

    @property
    def _kernels(self) -> LayerKernels | None:
        """The C kernels of the head on a CPU, for the trainer and for an engine on this policy."""
        return native.load() if self.settings.cpu_kernels and self.device.type == "cpu" else None

    @property
    def shares_beginnings(self) -> bool:
        """Whether sequences of a micro-batch that begin alike compute their beginning once; known after the first."""
        return self._shares

    def use_kernels(self) -> None:
        """On a CPU use the C kernels where there are any, and compare the results with and without.

        The first forward pass does it, and so does an engine that computes with the layers: the bits of both must not
        depend on which of them came first. Kernels that bring the hidden states further from those in float32 than the
        model's own modules do are not used, which a warning says.
        """
        if self._kernels_tried:
            return
        self._kernels_tried = True
        from torch.distributed.tensor import DTensor

        # Sharded parameters are whole only inside their layer's own forward, where nothing can be compared.
        sharded = any(isinstance(parameter, DTensor) for parameter in self.parameters())
        if sharded or self.device.type != "cpu" or not self.settings.cpu_kernels:
            return
        kernels = native.load()
        if kernels is None:
            return
        packed = _probe(self)
        with progress.doing("comparing the kernels with the model"), torch.no_grad():
            plain = self._predicting(packed)
            with in_float32(self.model):
                exact = self._predicting(packed)
            self._shares = True
            fuse(self.model, kernels)
            fused = self._predicting(packed)
        self._exact = exact
        gap, self._limit = _distance(fused, exact), max(_NO_FURTHER * _distance(plain, exact), _ROUNDING)
        if not gap < self._limit:
            self._shares = False
            unfuse(self.model)
            _LOG.warning(
                "%s computes without the layers' C kernels, which would be further from float32 (%.3g) than its own "
                "modules (%.3g)", type(self.model).__name__, gap, _distance(plain, exact),
            )  # fmt: skip

    @torch.no_grad()
    def agrees(self, hidden: Callable[[Tensor, Tensor, AttentionContext], Tensor]) -> bool:
        """Whether another way to the hidden states stays as near to float32 as the policy's kernels must; see `hidden`
        for what it is given, and `use_kernels`."""
        packed = _probe(self)
        found = hidden(packed.token_ids, packed.positions, PackedContext(packed.lengths, self.device))[packed.rows]
        return self._exact is not None and _distance(found, self._exact) < self._limit

    def _predicting(self, packed: PackedInputs) -> Tensor:
        """Hidden states [M, E] that predict the targets."""
        kernels = native.load() if self._shares and self.device.type == "cpu" else None
        size = self._head_dim
        plain = max(packed.lengths) <= self._plain_tokens
        if packed.experts is not None:
            kernels = None  # a shared beginning would go through the experts of only one of its sequences
        if kernels is None or size is None or not plain or not kernels.attends(self.head_weight.dtype, size):
            context = PackedContext(packed.lengths, packed.token_ids.device)
            experts = None if packed.experts is None else packed.experts.to(packed.token_ids.device)
            return self.hidden(packed.token_ids, packed.positions, context, experts)[packed.rows]
        layout = SharedLayout.of(packed.token_ids, packed.positions, packed.lengths, packed.rows)
        hidden = self.hidden(layout.token_ids, layout.positions, SharedContext(layout, kernels))
        # Rows are shared too, and unlike indexing's, this gradient is summed in the same order by any threads.
        return F.embedding(layout.rows, hidden)

    @cached_property
    def _head_dim(self) -> int | None:
        """Size of a head's queries, keys and values; None where values differ (multi-head latent attention)."""
        config = self.model.config
        if "v_head_dim" in config.to_dict():
            return None
        return int(config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads)

    def _keeping(self) -> AbstractContextManager[Any]:
        """Inside, what layers keep for backward is kept where `model.offload_activations` says."""
        offloads = self.checkpoints_layers and self.settings.offload_activations is True
        return save_on_cpu(pin_memory=self.head_weight.is_cuda) if offloads else nullcontext()

    @torch.no_grad()
    def probe(self, token_ids: IntArray) -> FloatArray:
        """The log-probs [L - 1] of `token_ids` [L] after the first, at temperature 1."""
        packed = PackedInputs.whole([token_ids.tolist()]).to(self.device)
        found: FloatArray = self(packed, 1.0)[0].float().cpu().numpy()
        return found

    def forward(
        self, packed: PackedInputs, temperature: float, with_collision: bool = False, top: int = 0
    ) -> tuple[Tensor, ...]:
        """Log-prob [M] of each target and entropy [M] of what predicts it, float32, nats, of logits / temperature.

        `with_collision` gives `head.collision` [M] as a third (no gradient); `top` ids and log-probs [M, top] of the
        most probable tokens (no gradient). Each costs the head's product once more. The log-probs [M, K] of the
        candidates of `packed` come last, with gradient.

        Raises:
            ValueError: the temperature is not positive.
        """
        if self.checkpoints_layers and self.model.training != torch.is_grad_enabled():
            self.model.train(torch.is_grad_enabled())  # transformers checkpoints in training mode only
        self.use_kernels()
        part = None if self.sequence is None else self.sequence.part(*packed.sequences)
        with self._keeping():
            if part is None:
                hidden, targets = self._predicting(packed), packed.targets
            else:
                hidden = self.hidden(part.token_ids, part.positions, part.context, part.experts)[part.rows]
                targets = part.targets
        head = self._head
        weight = head.weight_with_gradient() if isinstance(head, AdaptedLinear) else self.head_weight
        bias, chunk, fp32 = self.head_bias, self.settings.chunk_tokens, self.settings.trainer_fp32_head
        more = (temperature, chunk, fp32, self.logit_form, self._kernels)
        if packed.candidates is not None:
            targets = torch.cat((targets[:, None], packed.candidates), 1)
        found: tuple[Tensor, ...] = logprob_entropy(hidden, weight, bias, targets, *more)
        if with_collision:
            found = *found, collision(hidden, weight, bias, *more)
        if top:
            found = *found, *most_probable(hidden, weight, bias, top, *more)
        if packed.candidates is not None:
            found = found[0][:, 0], *found[1:], found[0][:, 1:]
        return found if part is None else tuple(part.whole(column) for column in found)


class WithoutAdapters(nn.Module):
    """The policy without its adapters, on the same parameters."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, packed: PackedInputs, temperature: float, top: int = 0) -> tuple[Tensor, ...]:
        """As `Policy.forward`."""
        adapters = self.policy.adapters
        if adapters is None:
            raise ValueError("the policy has no adapters to do without")
        with adapters.off():
            found: tuple[Tensor, ...] = self.policy(packed, temperature, top=top)
        return found


@progress.doing("loading the model")
def load_policy(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerBase | None = None, seed: int = 0
) -> tuple[Policy, PreTrainedTokenizerBase]:
    """The policy and tokenizer of `settings`: a stored model, or a fresh one for `tokenizer` (None: one token a byte).

    Raises:
        InputError: no such model, or a model the policy cannot compute.
    """
    if settings.fresh is not None:
        tokenizer = byte_tokenizer() if tokenizer is None else tokenizer
        policy = Policy(fresh_model(settings.fresh, tokenizer, seed, dtype_name(settings)), settings)
    else:
        model, stored = load_pretrained(settings)
        policy = Policy(model, settings, [stored(text)["input_ids"] for text in _PROBE_TEXTS])
        tokenizer = stored if tokenizer is None else tokenizer
    if settings.lora is not None:
        policy.adapt(settings.lora, seed)
    return policy, tokenizer


def meta_policy(settings: ModelSettings, tokenizer: PreTrainedTokenizerBase | None = None) -> Policy:
    """The policy of `settings` on the meta device: all shapes and types, no memory; no weights are read.

    `tokenizer` is that of a fresh model, see `load_policy`.

    Raises:
        InputError: no such model, or a model the policy cannot compute.
    """
    if settings.fresh is None:
        model = stored_model(settings)
    else:
        with torch.device("meta"):
            words = byte_tokenizer() if tokenizer is None else tokenizer
            model = fresh_model(settings.fresh, words, 0, dtype_name(settings))
    policy = Policy(model, settings)
    if settings.lora is not None:
        policy.adapt(settings.lora, 0)
    return policy


def last_hidden(model: nn.Module, token_ids: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
    """Last hidden states [N, E] of a transformers base model with strop's attention; see `Policy.hidden`."""
    output = model(**_inputs(token_ids, positions, context))
    states = output.last_hidden_state
    assert isinstance(states, Tensor)
    return states.squeeze(0)


def _inputs(token_ids: Tensor, positions: Tensor, context: AttentionContext) -> dict[str, Any]:
    """The keyword arguments of a transformers model, including those that it passes on to `strop_attention`."""
    given = {"input_ids": token_ids[None], "position_ids": positions[None], "use_cache": False}
    return given | {"strop_context": context, "strop_positions": positions}


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """The part of a causal LM before its head; Llama 4's does not say where it is."""
    base = model.get_submodule("model") if model.base_model is model else model.base_model
    assert isinstance(base, PreTrainedModel)
    return base


@torch.no_grad()
def copy_parameters(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write `weights` into the parameters of `module`, all of them by name.

    Raises:
        InputError: names or shapes are those of another model.
    """
    own = dict(module.named_parameters())
    if own.keys() != weights.keys() or any(own[name].shape != value.shape for name, value in weights.items()):
        raise InputError("these weights belong to another model; resume with the configuration they were saved with")
    for name, value in weights.items():
        own[name].copy_(value)


def switch_off_dropout(model: nn.Module) -> None:
    """Set every dropout of a model to 0, whatever its configuration says: log-probs must be reproducible."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, given in vars(module).items():
            if "dropout" in name and isinstance(given, float):
                setattr(module, name, 0.0)


class _Counting:
    """A packed context that notes which layers call it, and the longest sequence that has plain attention in all."""

    def __init__(self, inner: PackedContext) -> None:
        self.inner = inner
        self.layers: set[int] = set()
        self.plain_tokens = sys.maxsize

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: AttentionKind = PLAIN
    ) -> Tensor:
        self.layers.add(layer)
        limits = (kind.reach.window, kind.reach.chunk, None if kind.softmax else 0)
        self.plain_tokens = min([self.plain_tokens, *(limit for limit in limits if limit is not None)])
        return self.inner.attend(layer, query, key, value, scale, kind)


def _probe(policy: Policy) -> PackedInputs:
    """A few tokens for a comparison."""
    return PackedInputs.whole(policy._probe).to(policy.device)


def _distance(found: Tensor, exact: Tensor) -> float:
    """‖found − exact‖ / ‖exact‖."""
    return float((found.float() - exact).norm() / exact.norm())


@torch.no_grad()
def _refuse_by_probe(policy: Policy) -> None:
    """Compare the policy's log-probs with the model's logits on a few tokens."""
    model, name = policy.model, type(policy.model).__name__
    packed = _probe(policy)
    context = _Counting(PackedContext(packed.lengths, policy.device))
    try:
        own = model(**_inputs(packed.token_ids, packed.positions, context)).logits[0]
        ours = policy.logits(policy.hidden(packed.token_ids, packed.positions, context), fp32=False)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} cannot run with strop's attention: {error}") from error
    layers = model.config.num_hidden_layers
    if len(context.layers) != layers:
        raise InputError(
            f"{name}: {len(context.layers)} of {layers} layers use plain attention; strop needs all of them"
        )
    policy._plain_tokens = context.plain_tokens
    gap = (own.float().log_softmax(-1) - ours.log_softmax(-1)).abs().max().item()
    # The model's own logits are rounded to its type, ours are not: of 55 families in bfloat16 Gemma 2 has the largest
    # gap, 0.75 of a rounding of the largest logit. A scale that is missed would be many.
    if not gap < (1e-3 if own.dtype == torch.float32 else 4 * 2.0**-7 * float(own.abs().max())):
        raise InputError(
            f"{name}: log-probs differ from the model's own by {gap:.3g}; does it scale or cap its logits?"
        )
