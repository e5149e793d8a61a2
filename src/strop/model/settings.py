"""Which model a run trains, as settings; imports neither torch nor transformers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from strop.base.pieces import OneOrMore, Settings

Positive = Annotated[int, Field(ge=1)]
DTypeName = Literal["float32", "bfloat16"]
AUTO: Final = "auto"


class FreshModel(Settings):
    """A new small Qwen3; its vocabulary is the tokenizer's.

    Attributes:
        intermediate_size: width of the feed-forward layers.
        experts: experts of each feed-forward layer; None makes a dense model, a number a Qwen3-MoE. No auxiliary loss
            balances them: an update minimises only the run's objective.
        experts_per_token: how many of them compute a token. Each is `intermediate_size // experts_per_token` wide, so
            that a token costs what it would in the dense model.
    """

    hidden_size: Positive = 128
    layers: Positive = 4
    heads: Positive = 4
    kv_heads: Positive = 2
    head_dim: Positive = 32
    intermediate_size: Positive = 384
    tie_embeddings: bool = True
    max_positions: Positive = 4096
    rope_theta: Annotated[float, Field(gt=1)] = 10_000.0
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    experts: Positive | None = None
    experts_per_token: Positive = 2

    @model_validator(mode="after")
    def _enough_experts(self) -> Self:
        if self.experts is None:
            return self
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token={self.experts_per_token} exceeds experts={self.experts}; lower it")
        if self.experts_per_token > self.intermediate_size:
            raise ValueError(
                f"intermediate_size={self.intermediate_size} cannot be divided among "
                f"experts_per_token={self.experts_per_token}; raise it"
            )
        return self


ALL_LINEAR = "all-linear"
# Reserved paths: the base that is made on the spot, the same with mixtures of experts as feed-forward layers, one that
# now and then calls a calculator, a teacher of the base, and one that can make use of an answer in its prompt.
EMBEDDED, EMBEDDED_EXPERTS, EMBEDDED_CALLER = "embedded", "embedded-moe", "embedded-caller"
EMBEDDED_TEACHER, EMBEDDED_HINTED = "embedded-teacher", "embedded-hinted"


class Lora(Settings):
    """Low-rank adapters: the model stays as it is, and B A of rank `rank` on each chosen layer learns.

    W = W₀ + alpha / rank · B A. There is no dropout: the trainer's log-probs must be the generator's.

    Attributes:
        rank: of the adapters.
        alpha: their weight, over the rank.
        target_modules: names of linear layers, or ends of names (`q_proj`, `layers.0.mlp.up_proj`); `all-linear` is
            every linear layer but the head.
    """

    rank: Positive = 32
    alpha: Annotated[float, Field(gt=0)] = 64.0
    target_modules: Annotated[OneOrMore[str], Field(min_length=1)] = (ALL_LINEAR,)


class ModelSettings(Settings):
    """Which model, and how it computes.

    Attributes:
        path: a hub name or a folder; or else `fresh`. `embedded` (and `embedded-moe`) is a base made on the spot. A
            recipe may leave both open; a run may not.
        mixture_of_experts: the model is one; said by a recipe, so that its tiny form trains one too.
        dtype: type of the parameters, of the activations and of what is exported; the optimizer's copies are float32
            whatever it is. `auto` is the type of the stored weights (float32 for float16, which is not trained in, and
            for a fresh model).
        trainer_fp32_head: logits of `Policy.forward` accumulated and kept in float32, whatever `dtype`.
        generator_fp32_head: the same for an engine on this policy (ScaleRL wants both).
        chunk_tokens: rows of logits that exist at once.
        cpu_kernels: on a CPU layers and head compute with kernels that the machine's own compiler makes, once a machine
            in a second or two; off, or without a compiler, with PyTorch's operators.
        gradient_checkpointing: compute layers again in backward instead of keeping their activations; `auto` does so
            from a billion parameters on.
        offload_activations: keep what layers that are computed again begin with in the host's memory; `auto` does so
            where a GPU would not hold it.
        flash_attention: the version of FlashAttention on a GPU in half precision. 2 is torch's own; 3 (Hopper) and 4
            (Blackwell) are packages of their authors', which torch calls where they are installed.
        replay_routing: of a mixture of experts, train every token through the experts that the generator chose for it
            (docs/orchestration.md); the embedded engine and vLLM's record them.
        lora: train adapters instead of the model itself (docs/lora.md); None trains every parameter.
    """

    alternatives: ClassVar[tuple[str, ...]] = ("path", "fresh")

    path: str | None = None
    fresh: FreshModel | None = None
    mixture_of_experts: bool = False
    dtype: DTypeName | Literal["auto"] = AUTO
    trainer_fp32_head: bool = True
    generator_fp32_head: bool = True
    chunk_tokens: Positive = 1024
    cpu_kernels: bool = True
    gradient_checkpointing: bool | Literal["auto"] = AUTO
    offload_activations: bool | Literal["auto"] = AUTO
    flash_attention: Literal[2, 3, 4] = 2
    replay_routing: bool = False
    lora: Lora | None = None
    revision: str | None = None
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path is not None and self.fresh is not None:
            raise ValueError("set either path (a hub name or a folder) or fresh (a new small model)")
        return self
