"""Hugging Face folders as files: what they say of a model without loading it; weights written for others to load."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from strop.base.files import writing
from strop.base.types import InputError, first_line
from strop.model import tensor_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class ModelFolder:
    """A folder with config.json and safetensors files; once read, the folder may go.

    Attributes:
        shapes: every tensor that an update must have, by its name in the files. Where transformers knows the model,
            those are its parameters and buffers, without what else is stored (layers for speculative decoding).
        tied: further names under which a parameter may be given, each with its name in `shapes`.
        dtypes: of the stored tensors.
        stored_in: the file of each stored tensor.
        buffers: those among `shapes`, which are never trained: the bias by which some routers choose experts.
            Each has the type that it has there, where parameters have that of the model.
        renamed: the model without memory where transformers has parameters of other names or shapes, else None.
    """

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    shapes: dict[str, torch.Size]
    tied: dict[str, str]
    dtypes: frozenset[torch.dtype]
    stored_in: dict[str, str]
    buffers: dict[str, Tensor]
    renamed: PreTrainedModel | None

    @classmethod
    def read(cls, folder: Path, trust_remote_code: bool = False) -> ModelFolder:
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
        found = cls(folder, config, generation, shapes, tied, dtypes, stored_in, {}, None)
        with suppress(InputError):  # a model that transformers cannot build is served as it is, and never trained
            return found._of_transformers(trust_remote_code)
        return found

    def _of_transformers(self, trust_remote_code: bool) -> ModelFolder:
        """These facts with what the model of transformers adds to them; raises `InputError` where there is none."""
        from strop.model.files import stored_model
        from strop.model.settings import ModelSettings

        model = stored_model(ModelSettings(path=str(self.path), trust_remote_code=trust_remote_code))
        parameters = dict(model.named_parameters())
        found = self if self._has(parameters) else replace(self, renamed=model)
        buffers = {name: self._stored(name) for name, _ in model.named_buffers() if name in self.shapes}
        needed = found.in_files(parameters).keys() | buffers.keys()
        if needed <= self.shapes.keys() | self.tied.keys():  # else the names of an update are refused
            found = replace(found, shapes={name: shape for name, shape in self.shapes.items() if name in needed})
        return replace(found, buffers=buffers)

    @property
    def layers_with_experts(self) -> list[int]:
        """The numbers of the decoder layers that are mixtures of experts."""
        found = (re.search(r"\.layers\.(\d+)\..*\.experts\.", name) for name in self.shapes)
        return sorted({int(match[1]) for match in found if match})

    @contextmanager
    def with_head(self, place: Path | None) -> Iterator[Path]:
        """A folder of the same model in which a tied head is a separate weight, which vLLM then loads.

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
            save_file({HEAD: self._stored(EMBEDDING)}, folder / "strop-head.safetensors")
            (folder / _INDEX).unlink(missing_ok=True)
            index = {"weight_map": self.stored_in | {HEAD: "strop-head.safetensors"}}
            (folder / _INDEX).write_text(json.dumps(index))
        with made:
            yield folder

    def in_files(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The weights by the names and in the shapes that the files have, as `save_pretrained` writes them.

        transformers keeps those of some families otherwise, the experts of a layer as one tensor above all.
        """
        if self.renamed is None:
            return weights
        from transformers.core_model_loading import revert_weight_conversion

        found: dict[str, Tensor] = revert_weight_conversion(self.renamed, dict(weights))
        return found

    def _has(self, parameters: Mapping[str, Tensor]) -> bool:
        """Whether the files have these by the same names, in the same shapes."""
        return all(name in self.tied or one.shape == self.shapes.get(name) for name, one in parameters.items())

    def _stored(self, name: str) -> Tensor:
        with safe_open(self.path / self.stored_in[name], framework="pt") as content:
            tensor: Tensor = content.get_tensor(name)
        return tensor


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
