"""Settings of the embedded engine, which are what every engine knows; imports neither torch nor transformers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from strop.base.pieces import Piece
from strop.engines.protocol import Sampling
from strop.model.settings import DTypeName


class EngineSettings(Piece):
    """Which engine, how many sequences it runs at once, and within what bounds. This one is `Torch`, the embedded one.

    Attributes:
        slots: sequences that run at once; at least 16, below which a float32 matrix product computes a row differently
            with the number of rows, so that completions would depend on their neighbours.
        cache: where keys and values lie: in a row for each slot, or in pages, which sequences take as they grow and a
            prompt's samples share (docs/gpu.md). `auto` takes pages on a GPU where the model allows it.
        page_tokens: tokens of a page, a power of two.
        cache_memory: the part of the memory free at the start that pages may take (no more than all slots can use);
            on a GPU shared with a trainer, of what its optimizer will leave.
        cache_pages: exactly so many pages instead.
        max_tokens: longest prompt + completion; None takes the model's own limit.
        dtype: of the engine's own copy of the parameters; None keeps the policy's.
        share_parameters: read the trainer's own parameters (after an update the owner calls `set_version`), or own
            a copy that `update_weights` fills.
        prefill_tokens: prompt tokens computed in one forward pass at most (a longer prompt goes alone).
        shrink: decode only as many rows as there are running sequences (a multiple of 16); False always decodes all
            slots, for machines whose matrix products change with the number of rows.
        native: on a CPU, compute attention, norms and the draw with kernels that the machine's own compiler makes when
            they are first wanted; without a compiler, or if False, with torch's operators: the same, only slower.
    """

    modules: ClassVar[tuple[str, ...]] = ("strop.engines.vllm.settings",)

    slots: Annotated[int, Field(ge=16)] = 64
    cache: Literal["auto", "slots", "paged"] = "auto"
    page_tokens: Annotated[int, Field(ge=16, le=256)] = 64
    cache_memory: Annotated[float, Field(gt=0, lt=1)] = 0.5
    cache_pages: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=2)] | None = None
    dtype: DTypeName | None = None
    share_parameters: bool = True
    prefill_tokens: Annotated[int, Field(ge=16)] = 8192
    shrink: bool = True
    native: bool = True

    @field_validator("page_tokens")
    @classmethod
    def _power_of_two(cls, tokens: int) -> int:
        if tokens & (tokens - 1):
            raise ValueError(f"page_tokens={tokens} must be a power of two: 16, 32, 64, 128 or 256")
        return tokens

    def refuse_unable(self, sampling: Sampling) -> None:
        """Refuse, before an engine is started, sampling that none of these settings could do.

        Raises:
            InputError: naming the setting.
        """

    @classmethod
    def piece_name(cls) -> str:
        """`Torch`; other engines go by their own name."""
        return "Torch" if cls is EngineSettings else super().piece_name()
