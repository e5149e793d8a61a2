"""What the files of a Hugging Face folder say of a model, without loading it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from strop.base.types import InputError
from strop.engines.protocol import WeightSource
from strop.engines.requests import Limits

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class ModelFolder:
    """A folder with config.json and safetensors files.

    Attributes:
        shapes: every parameter by the name it has in the files.
        tied: further names under which a parameter may be given, each with its name in `shapes`.
        dtypes: of the parameters.
    """

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    shapes: dict[str, torch.Size]
    tied: dict[str, str]
    dtypes: frozenset[torch.dtype]

    @classmethod
    def read(cls, path: Path) -> ModelFolder:
        """The facts of a folder.

        Raises:
            InputError: it is not a model's folder, or its weights are of a type that is not trained.
        """
        config = _json(path / "config.json")
        generation_path = path / "generation_config.json"
        generation = _json(generation_path) if generation_path.is_file() else {}
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise InputError(f"{path}: holds no safetensors files; export the model with strop or save_pretrained")
        found = {name: facts for file in files for name, facts in _header(file).items() if name != "__metadata__"}
        strange = sorted({facts["dtype"] for facts in found.values()} - _DTYPES.keys())
        if strange:
            raise InputError(f"{path}: weights of type {', '.join(strange)}; an engine is given plain floats only")
        shapes = {name: torch.Size(facts["shape"]) for name, facts in found.items()}
        tied = {}
        if config.get("tie_word_embeddings") and _EMBEDDING in shapes:
            shapes.pop(_HEAD, None)
            tied = {_HEAD: _EMBEDDING}
        return cls(path, config, generation, shapes, tied, frozenset(_DTYPES[f["dtype"]] for f in found.values()))

    def in_files(self, source: WeightSource) -> Iterator[tuple[str, Tensor]]:
        """The weights by the names that the files have: experts that transformers keeps as one tensor come apart."""
        for name, tensor in source.items() if isinstance(source, Mapping) else source:
            block, _, last = name.rpartition(".")
            if name in self.shapes or tensor.ndim != 3 or last not in _FUSED:
                yield name, tensor
                continue
            for expert, matrix in enumerate(tensor):  # [E, rows, columns]
                parts = matrix.chunk(len(_FUSED[last]))
                for projection, part in zip(_FUSED[last], parts, strict=True):
                    yield f"{block}.{expert}.{projection}.weight", part

    def limits(self, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None) -> Limits:
        """The limits of this model, whose own longest sequence `max_tokens` may shorten.

        Raises:
            InputError: the model cannot do as many tokens, or does not say how many it can do.
        """
        longest = self.config.get("max_position_embeddings")
        if max_tokens is None and not isinstance(longest, int):
            raise InputError("the model does not say how long a sequence may be: set engine.max_tokens")
        if max_tokens is not None and isinstance(longest, int) and max_tokens > longest:
            raise InputError(f"engine.max_tokens {max_tokens} is beyond the model's {longest} positions")
        given = self.generation.get("eos_token_id")
        ends = {int(one) for one in (given if isinstance(given, list) else [given]) if one is not None}
        if isinstance(tokenizer.eos_token_id, int):
            ends.add(tokenizer.eos_token_id)
        return Limits(max_tokens or int(longest or 0), int(self.config["vocab_size"]), tuple(sorted(ends)))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; name the folder of a Hugging Face model") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    assert isinstance(found, dict)
    return found


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            found = json.loads(file.read(length))
    except ValueError as error:
        raise InputError(f"{path}: not a safetensors file: {error}") from error
    assert isinstance(found, dict)
    return found
