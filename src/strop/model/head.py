"""The language-model head: log-prob and entropy of chosen tokens without the logits of all of them.

    z = f(hidden · weightᵀ) / temperature
    logprob = z[target] − logsumexp(z),   entropy = −Σ softmax(z) · log softmax(z)

with f as `LogitForm` says: the identity of most models, a scale (Cohere, Granite) or a soft cap (Gemma 2).

Rows are taken in chunks, and computed again in backward, so that at most [chunk, V] logits exist at a time.

Shapes: M rows, E hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

from strop.base.types import InputError

_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class LogitForm:
    """What a model makes of its head's product x: cap · tanh(scale · x / cap), or scale · x without a cap."""

    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, config: PreTrainedConfig) -> LogitForm:
        """The form of a model, by its configuration.

        Raises:
            InputError: it is no number.
        """
        given = {name: vars(config).get(name) for name in ("logit_scale", "logits_scaling", "final_logit_softcapping")}
        for name, number in given.items():
            if number is not None and (not isinstance(number, (int, float)) or number <= 0):
                raise InputError(f"a model of type {config.model_type} has {name} = {number!r}; strop applies numbers")
        times, over, cap = given.values()
        return cls(float(times or 1) / float(over or 1), None if cap is None else float(cap))

    def __call__(self, product: Tensor) -> Tensor:
        """The logits of the head's product, of any shape, in place."""
        if self.scale != 1:
            product = product.mul_(self.scale)
        return product if self.cap is None else product.div_(self.cap).tanh_().mul_(self.cap)

    def slope(self, z: Tensor, temperature: float) -> Tensor | float:
        """∂logit / ∂product where the logits over temperature are z: scale · (1 − (logit / cap)²)."""
        return self.scale if self.cap is None else (1 - (z * (temperature / self.cap)) ** 2).mul_(self.scale)


PLAIN = LogitForm()


def project(hidden: Tensor, weight: Tensor, bias: Tensor | None, fp32: bool) -> Tensor:
    """Logits [M, V] in float32 (float64 for float64 weights) of hidden [M, E], weight [V, E], bias [V].

    With `fp32` the product is accumulated and returned in float32 even where hidden and weight are bfloat16; without,
    it is rounded to their type first, as a plain model would. Weights are read as they are now, never from a copy.
    """
    if fp32 and weight.dtype in _HALF:
        logits = _product(hidden, weight.t()) if _sums_in_float32(weight) else hidden.float() @ weight.float().t()
        return logits if bias is None else logits + bias.float()
    return _at_least_float(F.linear(hidden, weight, bias))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left · right; on CUDA in half precision accumulated and returned in float32, at tensor-core speed."""
    if _sums_in_float32(left) and left.dtype in _HALF:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left @ right


def _sums_in_float32(tensor: Tensor) -> bool:
    """Whether the device multiplies half precision and returns float32; a tensor without data stands for one there."""
    return tensor.is_cuda or tensor.is_meta


def _at_least_float(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


class _LogprobEntropy(torch.autograd.Function):
    """(logprob [M], entropy [M]); the backward computes each chunk of logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        temperature: float,
        chunk: int,
        fp32: bool,
        form: LogitForm,
    ) -> tuple[Tensor, Tensor]:
        kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        rows = hidden.shape[0]
        logprob, entropy, normaliser = (torch.empty(rows, dtype=kind, device=hidden.device) for _ in range(3))
        weight_up = _upcast_once(weight, fp32)
        for start in range(0, rows, chunk):
            part = slice(start, start + chunk)
            z = _scaled(hidden[part], weight_up, bias, temperature, fp32, form)
            norm = z.logsumexp(-1)
            normaliser[part] = norm
            logprob[part] = z.gather(1, target[part, None])[:, 0] - norm
            p = (z - norm[:, None]).exp_()
            entropy[part] = norm - p.mul_(z).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, target, normaliser, entropy)
        ctx.options = (temperature, chunk, fp32, form)
        ctx.set_materialize_grads(False)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprob: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, normaliser, entropy = ctx.saved_tensors
        temperature, chunk, fp32, form = ctx.options
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        # Chunks are summed in float32, then rounded once.
        grad_weight = torch.zeros(weight.shape, dtype=entropy.dtype, device=weight.device) if need_weight else None
        grad_bias = torch.zeros(bias.shape, dtype=entropy.dtype, device=bias.device) if need_bias else None
        weight_up = _upcast_once(weight, fp32)
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            z = _scaled(hidden[part], weight_up, bias, temperature, fp32, form)
            slope = form.slope(z, temperature)
            grad_z = _grad_logits(z, target[part], normaliser[part], entropy[part], _rows(grad_logprob, part),
                                  _rows(grad_entropy, part))  # fmt: skip
            grad_z.mul_(slope / temperature)
            if grad_bias is not None:
                grad_bias += grad_z.sum(0)
            # The products run in the weights' type, as a plain model's do (float32 off CUDA with the fp32 head).
            grad_z = grad_z.to(weight_up.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad_z @ weight_up
            if grad_weight is not None:
                grad_weight += _product(grad_z.t(), hidden[part].to(grad_z.dtype))
        cast_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        cast_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, cast_weight, cast_bias, None, None, None, None, None


def _upcast_once(weight: Tensor, fp32: bool) -> Tensor:
    """Off CUDA a float32 product needs float32 operands: one copy for all chunks of this call, gone when it returns."""
    return weight.float() if fp32 and not _sums_in_float32(weight) and weight.dtype != torch.float64 else weight


def _scaled(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, fp32: bool, form: LogitForm
) -> Tensor:
    if weight.dtype != hidden.dtype:  # the weight was upcast for the whole call
        hidden, bias = hidden.to(weight.dtype), None if bias is None else bias.to(weight.dtype)
    return form(project(hidden, weight, bias, fp32)).div_(temperature)


def _rows(grad: Tensor | None, part: slice) -> Tensor | None:
    return None if grad is None else grad[part, None]


def _grad_logits(
    z: Tensor, target: Tensor, norm: Tensor, entropy: Tensor, grad_logprob: Tensor | None, grad_entropy: Tensor | None
) -> Tensor:
    """∂/∂z of Σ grad_logprob · logprob + grad_entropy · entropy, [rows, V]:

    ∂logprob/∂z_j = 1[j = target] − p_j,   ∂entropy/∂z_j = −p_j (log p_j + entropy).
    """
    log_p = z.sub_(norm[:, None])
    p = log_p.exp()
    if grad_entropy is None:
        grad = p.zero_() if grad_logprob is None else p.mul_(-grad_logprob)
    else:
        grad = log_p.add_(entropy[:, None]).mul_(p).mul_(-grad_entropy)
        if grad_logprob is not None:
            grad.sub_(p.mul_(grad_logprob))
    if grad_logprob is not None:
        grad.scatter_add_(1, target[:, None], grad_logprob.to(grad.dtype))
    return grad


def logprob_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    temperature: float,
    chunk: int,
    fp32: bool,
    form: LogitForm = PLAIN,
) -> tuple[Tensor, Tensor]:
    """Log-prob [M] of target [M] and entropy [M], nats, float32, of form(hidden [M, E] · weightᵀ [E, V]) / temperature.

    Gradients flow to hidden, weight and bias from both outputs; `chunk` rows of logits exist at a time.

    Raises:
        ValueError: a temperature or chunk that is not positive.
    """
    if temperature <= 0 or chunk < 1:
        raise ValueError(f"temperature {temperature} and chunk {chunk} must be positive")
    logprob, entropy = _LogprobEntropy.apply(hidden, weight, bias, target, temperature, chunk, fp32, form)
    return logprob, entropy


@torch.no_grad()
def collision(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, chunk: int, fp32: bool,
    form: LogitForm = PLAIN,
) -> Tensor:  # fmt: skip
    """C = Σ_j p_j² (log p_j + H), float32 [M], of form(hidden [M, E] · weightᵀ [E, V]) / temperature; no gradient.

    With it the entropy change of a policy-gradient step is exact to first order (`statistics.exact_entropy_flow`): the
    sampled token's probability and the entropy alone do not determine it.
    """
    kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    found = torch.empty(hidden.shape[0], dtype=kind, device=hidden.device)
    weight_up = _upcast_once(weight, fp32)
    for start in range(0, hidden.shape[0], chunk):
        part = slice(start, start + chunk)
        log_p = _scaled(hidden[part], weight_up, bias, temperature, fp32, form).log_softmax(-1)
        p = log_p.exp()
        entropy = -(p * log_p).sum(-1, keepdim=True)
        found[part] = log_p.add_(entropy).mul_(p).mul_(p).sum(-1)
    return found
