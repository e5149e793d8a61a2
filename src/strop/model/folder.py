"""Hugging Face folders as files: what they say of a model without loading it; weights written for others to load."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from strop.base.files import writing
from strop.base.types import InputError, first_line
from strop.model import tensor_file

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class ModelFolder:
    """A folder with config.json and safetensors files.

    Attributes:
        shapes: every parameter by the name that it has in the files.
        tied: further names under which a parameter may be given, each with its name in `shapes`.
        dtypes: of the parameters.
        stored_in: the file of each parameter.
    """

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    shapes: dict[str, torch.Size]
    tied: dict[str, str]
    dtypes: frozenset[torch.dtype]
    stored_in: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> ModelFolder:
        """The facts of a folder.

        Raises:
            InputError: it is not a model's folder, or its weights are of a type that is not trained.
        """
        config = _json(folder / "config.json")
        generation = _json(folder / "generation_config.json") if (folder / "generation_config.json").is_file() else {}
        shapes: dict[str, torch.Size] = {}
        types: set[str] = set()
        stored_in: dict[str, str] = {}
        for file in sorted(folder.glob("*.safetensors")):
            try:
                with safe_open(file, framework="pt") as content:
                    for name in content.keys():  # noqa: SIM118 (not a dictionary)
                        part = content.get_slice(name)
                        shapes[name], stored_in[name] = torch.Size(part.get_shape()), file.name
                        types.add(part.get_dtype())
            except SafetensorError as error:
                raise InputError(f"{file}: not a safetensors file: {first_line(error)}") from error
        if not shapes:
            raise InputError(f"{folder}: holds no safetensors files; export the model with strop or save_pretrained")
        strange = sorted(types - _DTYPES.keys())
        if strange:
            raise InputError(f"{folder}: weights of type {', '.join(strange)}; an engine is given plain floats only")
        tied = {}
        if config.get("tie_word_embeddings") and EMBEDDING in shapes:
            shapes.pop(HEAD, None)
            tied = {HEAD: EMBEDDING}
        dtypes = frozenset(_DTYPES[name] for name in types)
        return cls(folder, config, generation, shapes, tied, dtypes, stored_in)

    @property
    def layers_with_experts(self) -> list[int]:
        """The numbers of the decoder layers that are mixtures of experts."""
        found = (re.search(r"\.layers\.(\d+)\..*\.experts\.", name) for name in self.shapes)
        return sorted({int(match[1]) for match in found if match})

    @contextmanager
    def with_head(self, place: Path | None) -> Iterator[Path]:
        """A folder of the same model in which a tied head is a weight of its own, as vLLM is told to load it.

        It lies in `place` (None: where temporary files do), and is gone at the end.
        """
        if not self.tied or HEAD in self.stored_in:
            yield self.path
            return
        with writing(place or Path(tempfile.gettempdir())):
            made = tempfile.TemporaryDirectory(prefix="strop-vllm-", dir=place)
            folder = Path(made.name)
            for file in self.path.resolve().iterdir():
                (folder / file.name).symlink_to(file)
            with safe_open(self.path / self.stored_in[EMBEDDING], framework="pt") as content:
                save_file({HEAD: content.get_tensor(EMBEDDING)}, folder / "strop-head.safetensors")
            (folder / _INDEX).unlink(missing_ok=True)
            index = {"weight_map": self.stored_in | {HEAD: "strop-head.safetensors"}}
            (folder / _INDEX).write_text(json.dumps(index))
        with made:
            yield folder

    def in_files(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The weights by the names that the files have: experts that transformers keeps as one tensor come apart."""
        for name, tensor in weights:
            block, _, last = name.rpartition(".")
            if name in self.shapes or tensor.ndim != 3 or last not in _FUSED:
                yield name, tensor
                continue
            for expert, matrix in enumerate(tensor):  # [E, rows, columns]
                parts = matrix.chunk(len(_FUSED[last]))
                for projection, part in zip(_FUSED[last], parts, strict=True):
                    yield f"{block}.{expert}.{projection}.weight", part


@contextmanager
def written(version: Mapping[str, Tensor], place: Path | None) -> Iterator[Path]:
    """A folder in `place` with these weights, gone at the end.

    Without a place it holds no more than a link to a file in this process's memory: that needs no tmpfs of a certain
    size (a container's /dev/shm has 64 MiB), and no death leaves it behind.

    Raises:
        StropError: there is no room, or `place` cannot be written to.
    """
    memory = os.memfd_create("strop-weights") if place is None else None
    try:
        with writing(place or Path(tempfile.gettempdir())):
            folder = Path(tempfile.mkdtemp(prefix="strop-vllm-", dir=place))
        try:
            with writing(folder):
                if memory is not None:
                    (folder / "model.safetensors").symlink_to(f"/proc/{os.getpid()}/fd/{memory}")
                with (folder / "model.safetensors").open("wb") as file:
                    for part in tensor_file.parts(version):
                        file.write(part)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if memory is not None:
            os.close(memory)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; name the folder of a Hugging Face model") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    assert isinstance(found, dict)
    return found
