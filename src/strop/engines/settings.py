"""Settings of the embedded engine, which are what every engine knows; imports neither torch nor transformers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from strop.base.pieces import Piece
from strop.engines.protocol import Sampling
from strop.model.settings import DTypeName


class EngineSettings(Piece):
    """Which engine, how many sequences it runs at once, and within what bounds. This one is `Torch`, the embedded one.

    Attributes:
        slots: sequences that run at once; at least 16, below which a float32 matrix product computes a row differently
            with the number of rows, so that completions would depend on their neighbours.
        max_tokens: longest prompt + completion; None takes the model's own limit.
        dtype: of the engine's own copy of the parameters; None keeps the policy's.
        share_parameters: read the trainer's own parameters (after an update the owner calls `set_version`), or own
            a copy that `update_weights` fills.
        prefill_tokens: prompt tokens computed in one forward pass at most (a longer prompt goes by itself).
        kept_mib: memory for copies of the keys and values of trajectories that wait for their environment, made when
            others want their slots; those that find no room are computed again, by which log-probs differ in their
            last digits. 0 computes all of them again.
        shrink: decode only as many rows as there are running sequences (a multiple of 16); False always decodes all
            slots, for machines whose matrix products change with the number of rows.
        native: on a CPU, compute attention, norms and the draw with kernels that the machine's own compiler makes when
            they are first wanted; without a compiler, or if False, with the model's modules: the same, only slower.
    """

    modules: ClassVar[tuple[str, ...]] = ("strop.engines.vllm.settings",)

    slots: Annotated[int, Field(ge=16)] = 64
    max_tokens: Annotated[int, Field(ge=2)] | None = None
    dtype: DTypeName | None = None
    share_parameters: bool = True
    prefill_tokens: Annotated[int, Field(ge=16)] = 8192
    kept_mib: Annotated[int, Field(ge=0)] = 1024
    shrink: bool = True
    native: bool = True

    def refuse_unable(self, sampling: Sampling) -> None:
        """Refuse, before an engine is started, sampling that none of these settings could do.

        Raises:
            InputError: naming the setting.
        """

    @classmethod
    def piece_name(cls) -> str:
        """`Torch`; other engines go by their own name."""
        return "Torch" if cls is EngineSettings else super().piece_name()
