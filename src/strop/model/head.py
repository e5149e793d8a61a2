"""The language-model head: log-prob and entropy of chosen tokens without the logits of all of them.

    z = f(hidden · weightᵀ) / temperature
    logprob = z[target] − logsumexp(z),   entropy = −Σ softmax(z) · log softmax(z)

with f as `LogitForm` says: the identity of most models, a scale (Cohere, Granite) or a soft cap (Gemma 2).

Rows are taken in chunks, and computed again in backward, so that at most [chunk, V] logits exist at a time; those of
the last chunk wait for it.

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
from strop.model.kernels.native import LayerKernels

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


def project(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, fp32: bool, kernels: LayerKernels | None = None
) -> Tensor:
    """Logits [M, V] in float32 (float64 for float64 weights) of hidden [M, E], weight [V, E], bias [V].

    With `fp32` the product is accumulated and returned in float32 even where hidden and weight are bfloat16; without,
    it is rounded to their type first, as a plain model would. Weights are read as they are now, never from a copy:
    on a CPU `kernels` multiply bfloat16 without one in float32.
    """
    if kernels is not None and kernels.products.fits(weight) and len(hidden):
        dtype = torch.float32 if fp32 else weight.dtype
        return _at_least_float(kernels.products.forward(hidden, weight, bias, dtype))
    if fp32 and weight.dtype in _HALF:
        logits = _product(hidden, weight.t()) if _on_gpu(weight) else hidden.float() @ weight.float().t()
        return logits if bias is None else logits + bias.float()
    return _at_least_float(F.linear(hidden, weight, bias))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left · right; on CUDA in half precision accumulated and returned in float32, at tensor-core speed."""
    if _on_gpu(left) and left.dtype in _HALF:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left @ right


def _add_product(onto: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """onto += left · right, within the product where that sums in the type of `onto`."""
    if _on_gpu(left) and left.dtype in _HALF and onto.dtype == torch.float32:
        return torch.addmm(onto, left, right, out_dtype=torch.float32, out=onto)
    return onto.addmm_(left, right) if onto.dtype == left.dtype else onto.add_(left @ right)


def _on_gpu(tensor: Tensor) -> bool:
    """Whether torch multiplies half precision and returns float32; a tensor without data stands for one there."""
    return tensor.is_cuda or tensor.is_meta


def _at_least_float(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@dataclass(frozen=True)
class _Options:
    """How logits are computed: the arguments of `logprob_entropy` that are not tensors."""

    temperature: float
    chunk: int
    fp32: bool
    form: LogitForm
    kernels: LayerKernels | None

    def parts(self, rows: int) -> list[slice]:
        """The chunks of so many rows."""
        return [slice(start, start + self.chunk) for start in range(0, rows, self.chunk)]

    def multiplies(self, weight: Tensor) -> bool:
        """Whether the kernels multiply by this weight."""
        return self.kernels is not None and self.kernels.products.fits(weight)

    def upcast_once(self, weight: Tensor) -> Tensor:
        """Where nothing sums half precision in float32, one copy for all chunks of a call, gone when it returns."""
        sums = _on_gpu(weight) or self.multiplies(weight) or weight.dtype == torch.float64
        return weight.float() if self.fp32 and not sums else weight

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Those over the temperature [M, V] of hidden [M, E] and of a weight that was upcast."""
        if weight.dtype != hidden.dtype:
            hidden, bias = hidden.to(weight.dtype), None if bias is None else bias.to(weight.dtype)
        logits = self.form(project(hidden, weight, bias, self.fp32, self.kernels))
        return logits if self.temperature == 1 else logits.div_(self.temperature)

    def times(self, grad_z: Tensor, weight: Tensor) -> Tensor:
        """grad_z [m, V] · weight [V, E] in their type."""
        if self.kernels is not None and self.multiplies(weight):
            return self.kernels.products.grad_input(grad_z, weight)
        return grad_z @ weight

    def outer(self, grad_z: Tensor, hidden: Tensor, weight: Tensor, dtype: torch.dtype, onto: Tensor | None) -> Tensor:
        """onto [V, E] += grad_zᵀ [V, m] · hidden [m, E]; without `onto` only the product, in `dtype`."""
        if self.kernels is not None and self.multiplies(weight):
            return self.kernels.products.grad_weight(grad_z, hidden, dtype, onto)
        if onto is None:
            return _product(grad_z.t(), hidden).to(dtype)
        return _add_product(onto, grad_z.t(), hidden)


class _LogprobEntropy(torch.autograd.Function):
    """(logprob [M], entropy [M]); the backward begins with the last chunk of logits, and computes the others again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, options: _Options
    ) -> tuple[Tensor, Tensor]:
        kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        rows = hidden.shape[0]
        logprob = torch.empty(target.shape, dtype=kind, device=hidden.device)
        entropy, normaliser = (torch.empty(rows, dtype=kind, device=hidden.device) for _ in range(2))
        weight_up = options.upcast_once(weight)
        z: Tensor | None = None
        for part in options.parts(rows):
            z = None  # one chunk at a time
            z = options.logits(hidden[part], weight_up, bias)
            _softmax(z, target[part], (logprob[part], entropy[part], normaliser[part]), options.kernels)
        ctx.save_for_backward(hidden, weight, bias, target, normaliser, entropy)
        ctx.options, ctx.last = options, z
        ctx.set_materialize_grads(False)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprob: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, normaliser, entropy = ctx.saved_tensors
        options: _Options = ctx.options
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight: Tensor | None = None
        grad_bias = torch.zeros(bias.shape, dtype=entropy.dtype, device=bias.device) if need_bias else None
        weight_up = options.upcast_once(weight)
        # Chunks are summed in float32, then rounded once.
        summed = weight.dtype if len(hidden) <= options.chunk else entropy.dtype
        z, ctx.last = ctx.last, None  # which is overwritten: another backward computes it too
        for part in reversed(options.parts(len(hidden))):
            z = options.logits(hidden[part], weight_up, bias) if z is None else z
            ups = (_rows(grad_logprob, part), _rows(grad_entropy, part))
            kind = z.dtype if need_bias else weight_up.dtype
            grad_z = _grad_product(z, target[part], normaliser[part], entropy[part], ups, kind, options)
            z = None  # one chunk at a time
            if grad_bias is not None:
                grad_bias += grad_z.sum(0)
            # The products run in the weights' type, as a plain model's do (float32 where they had to be upcast).
            grad_z = grad_z.to(weight_up.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = options.times(grad_z, weight_up)
            if need_weight:
                grad_weight = options.outer(grad_z, hidden[part].to(grad_z.dtype), weight_up, summed, grad_weight)
        if need_weight:
            grad_weight = torch.zeros_like(weight) if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None if grad_bias is None else grad_bias.to(bias.dtype), None, None


def _softmax(z: Tensor, target: Tensor, out: tuple[Tensor, Tensor, Tensor], kernels: LayerKernels | None) -> None:
    """Write log-prob of target [m] or [m, C], entropy and log Σ e^z of logits z [m, V] to `out`."""
    if kernels is not None and target.dim() == 1 and kernels.reads_logits(z):
        kernels.softmax(z, target, out)
        return
    logprob, entropy, normaliser = out
    norm = z.logsumexp(-1)
    normaliser.copy_(norm)
    logprob.copy_((z.gather(1, target.view(len(z), -1)) - norm[:, None]).view_as(logprob))
    p = (z - norm[:, None]).exp_()
    entropy.copy_(norm - p.mul_(z).sum(-1))


def _grad_product(
    z: Tensor, target: Tensor, norm: Tensor, entropy: Tensor, ups: tuple[Tensor | None, Tensor | None],
    dtype: torch.dtype, options: _Options,
) -> Tensor:  # fmt: skip
    """The gradient [m, V] in `dtype` of the head's product, of which z [m, V] was made; z is overwritten."""
    form, temperature, kernels = options.form, options.temperature, options.kernels
    if kernels is not None and target.dim() == 1 and kernels.reads_logits(z):
        over = 0.0 if form.cap is None else temperature / form.cap
        return kernels.softmax_backward(z, target, norm, entropy, ups, dtype, form.scale / temperature, over)
    slope = form.slope(z, temperature)
    columns = (None if up is None else up.reshape(len(z), -1) for up in ups)
    grad_z = _grad_logits(z, target.view(len(z), -1), norm, entropy, *columns)
    return grad_z.mul_(slope / temperature).to(dtype)


def _rows(grad: Tensor | None, part: slice) -> Tensor | None:
    return None if grad is None else grad[part]


def _grad_logits(
    z: Tensor, target: Tensor, norm: Tensor, entropy: Tensor, grad_logprob: Tensor | None, grad_entropy: Tensor | None
) -> Tensor:
    """∂/∂z of Σ grad_logprob · logprob + grad_entropy · entropy, [rows, V], of the log-probs of target [rows, C]:

    ∂logprob/∂z_j = 1[j = target] − p_j,   ∂entropy/∂z_j = −p_j (log p_j + entropy).
    """
    log_p = z.sub_(norm[:, None])
    p = log_p.exp()
    whole = None if grad_logprob is None else grad_logprob.sum(-1, keepdim=True)
    if grad_entropy is None:
        grad = p.zero_() if whole is None else p.mul_(-whole)
    else:
        grad = log_p.add_(entropy[:, None]).mul_(p).mul_(-grad_entropy)
        if whole is not None:
            grad.sub_(p.mul_(whole))
    if grad_logprob is not None:
        grad.scatter_add_(1, target, grad_logprob.to(grad.dtype))
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
    kernels: LayerKernels | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-prob [M] of target [M] and entropy [M], nats, float32, of form(hidden [M, E] · weightᵀ [E, V]) / temperature.

    Of several targets a row, [M, C], there are as many log-probs. Gradients flow to hidden, weight and bias from both
    outputs; `chunk` rows of logits exist at a time. With `kernels` a CPU computes as CUDA does: products of bfloat16,
    forward and backward, summed in float32.

    Raises:
        ValueError: a temperature or chunk that is not positive.
    """
    if temperature <= 0 or chunk < 1:
        raise ValueError(f"temperature {temperature} and chunk {chunk} must be positive")
    options = _Options(temperature, chunk, fp32, form, kernels)
    found: tuple[Tensor, Tensor] = _LogprobEntropy.apply(hidden, weight, bias, target, options)
    return found


@torch.no_grad()
def collision(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, chunk: int, fp32: bool,
    form: LogitForm = PLAIN, kernels: LayerKernels | None = None,
) -> Tensor:  # fmt: skip
    """C = Σ_j p_j² (log p_j + H), float32 [M], of form(hidden [M, E] · weightᵀ [E, V]) / temperature; no gradient.

    With it the entropy change of a policy-gradient step is exact to first order (`statistics.exact_entropy_flow`): the
    sampled token's probability and the entropy do not determine it.
    """
    kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    found = torch.empty(hidden.shape[0], dtype=kind, device=hidden.device)
    options = _Options(temperature, chunk, fp32, form, kernels)
    weight_up = options.upcast_once(weight)
    for part in options.parts(len(hidden)):
        log_p = options.logits(hidden[part], weight_up, bias).log_softmax(-1)
        p = log_p.exp()
        entropy = -(p * log_p).sum(-1, keepdim=True)
        found[part] = log_p.add_(entropy).mul_(p).mul_(p).sum(-1)
    return found


@torch.no_grad()
def most_probable(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, count: int, temperature: float, chunk: int, fp32: bool,
    form: LogitForm = PLAIN, kernels: LayerKernels | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The `count` most probable tokens of each row, int64 [M, count], and their log-probs; no gradient."""
    options = _Options(temperature, chunk, fp32, form, kernels)
    weight_up = options.upcast_once(weight)
    ids = torch.empty(len(hidden), count, dtype=torch.int64, device=hidden.device)
    logprobs = torch.empty(ids.shape, device=hidden.device)
    for part in options.parts(len(hidden)):
        found = options.logits(hidden[part], weight_up, bias).log_softmax(-1).topk(count)
        ids[part], logprobs[part] = found.indices, found.values
    return ids, logprobs
