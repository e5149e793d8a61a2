"""Where a model is and what its configuration says, found out without torch and without loading its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from strop.base import hub
from strop.base.files import nearest_folder, read_json
from strop.base.imports import MARKER
from strop.base.types import InputError, first_line
from strop.data.templates import Auto, PromptTemplate
from strop.model.settings import (
    EMBEDDED,
    EMBEDDED_CALLER,
    EMBEDDED_EXPERTS,
    EMBEDDED_HINTED,
    EMBEDDED_TEACHER,
    DTypeName,
    ModelSettings,
)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
RESERVED = (EMBEDDED, EMBEDDED_EXPERTS, EMBEDDED_CALLER, EMBEDDED_TEACHER, EMBEDDED_HINTED)


class Located(NamedTuple):
    """A folder or a name on the hub, and whether it must come from the hub's cache."""

    source: str
    cached_only: bool


def asked_with(template: PromptTemplate, settings: ModelSettings) -> PromptTemplate:
    """The template for this model: `Auto`, where it does not say, asks strop's own bases for no form of their answer,
    because they continue a question and never learned to read a sentence; nor the model of a run that did not."""
    if not isinstance(template, Auto) or template.instruct is not None or settings.path is None:
        return template
    if settings.path in RESERVED or asks_plainly(Path(settings.path).expanduser().absolute().parent):
        return template.model_copy(update={"instruct": False})
    return template


def asks_plainly(run: Path) -> bool:
    """Whether the folder is a run, of RL or of fine-tuning, whose prompts asked for no form of the answer."""
    try:
        stored = read_json(run / "config.json") if (run / MARKER).is_file() else {}
        template = stored["template"] if "demonstrations" in stored else stored["data"]["template"]
        return template["piece"] == Auto.piece_name() and template["instruct"] is False
    except (InputError, LookupError, TypeError):  # it is no run, or broken, which whoever reads the run says
        return False


def locate(settings: ModelSettings, key: str = "model.path", made: str | None = EMBEDDED) -> Located:
    """Where the model of `settings.path`, which errors call by `key`, is to be loaded from.

    `made` is the name of one that is made on the spot, which would be taken in its place.

    Raises:
        InputError: no path is set, there is no such folder or hub name, or the folder lacks what a model must have.
    """
    path = settings.path
    if path is None:
        raise InputError(f"{key} is not set; name a hub model or a folder")
    local = Path(path).expanduser()
    if not local.is_dir() and not on_hub(path):
        way_out = nearest_folder(local) or "; name a folder with config.json, or a hub model"
        raise InputError(f"{key} {path}: no such folder{way_out}")
    if local.is_dir():
        _check_folder(local, f"{key} {path}")
        return Located(str(local), False)
    silent = hub.silence()
    if silent is not None and not hub.has_cached(path, settings.revision):
        raise InputError(
            f"{key} {path}: there is no folder of this name, and the hub cannot be asked for such a model "
            f"({silent}); name a folder with config.json{'' if made is None else f', or {made}'}"
        )
    return Located(path, silent is not None)


def in_folder(settings: ModelSettings, key: str = "model.path") -> ModelSettings:
    """`settings` with a name on the hub replaced by the folder in the hub's cache, which processes of a host share.

    Errors call the path by `key`.

    Raises:
        InputError: there is no such model.
    """
    if settings.path is None or settings.path in RESERVED or Path(settings.path).expanduser().is_dir():
        return settings
    source, cached_only = locate(settings, key)
    try:
        folder = hub.folder_of(source, settings.revision, cached_only)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{key} {settings.path}: there is no folder of this name, and as a hub model it cannot be loaded: "
            f"{first_line(error)}"
        ) from error
    _check_folder(folder, f"{key} {settings.path}")
    return settings.model_copy(update={"path": str(folder), "revision": None})


def on_hub(path: str) -> bool:
    """Whether what is no folder can be a name on the hub; OWNER/NAME is one unless OWNER is a folder here."""
    parent = Path(path).parent
    beside_a_folder = parent != Path(".") and parent.is_dir()
    return not (path.startswith((".", "/", "~")) or path.count("/") > 1 or beside_a_folder)


def _check_folder(local: Path, what: str) -> None:
    if (local / MARKER).is_file():
        raise InputError(f"{what}: this is a run; its model is {local / 'model'}")
    if not (local / "config.json").is_file():
        raise InputError(f"{what}: holds no config.json; name the folder of a Hugging Face model")
    # Without any of these transformers would make up a tokenizer of a few special tokens.
    if not any((local / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(f"{what}: holds no tokenizer; copy tokenizer.json and its config into it")
    if next(local.glob("*.safetensors"), None) is None:
        raise InputError(f"{what}: holds no weights in safetensors; convert them: pickles are not loaded")


def stored_config(settings: ModelSettings) -> dict[str, Any]:
    """The config.json of a model in a folder; empty for any other, whose configuration is not at hand.

    Raises:
        InputError: it is not readable as JSON.
    """
    file = None if settings.path is None else Path(settings.path).expanduser() / "config.json"
    if file is None or not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"model.path {settings.path}: its config.json is not readable as JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"model.path {settings.path}: its config.json holds no JSON object")
    return found


def refuse_kind(what: str, stored: Mapping[str, Any]) -> None:
    """Refuse a model whose configuration says that its weights are quantized, or that it classifies.

    Raises:
        InputError: naming `what` and the model that is wanted.
    """
    quantized = stored.get("quantization_config")
    if quantized:
        method = quantized.get("quant_method", "an unnamed method") if isinstance(quantized, Mapping) else quantized
        raise InputError(
            f"{what}: its weights are quantized ({method}), and whole ones are trained and sampled from; name the "
            "model that it was made from"
        )
    names = stored.get("architectures") or ()
    classifies = [name for name in names if isinstance(name, str) and ("Classification" in name or "Reward" in name)]
    if classifies:
        raise InputError(f"{what}: {classifies[0]} judges texts and writes none; name a causal language model")


def dtype_name(settings: ModelSettings) -> DTypeName:
    """The type in which a model computes and is exported: the one that is set, else that of its stored weights.

    Raises:
        InputError: its config.json is not readable.
    """
    if settings.dtype != "auto":
        return settings.dtype
    config = found_config(settings)
    stored = str(config.get("dtype") or config.get("torch_dtype"))
    return "bfloat16" if stored.removeprefix("torch.") == "bfloat16" else "float32"


def found_config(settings: ModelSettings) -> dict[str, Any]:
    """The config.json of a model in a folder or on the hub, which is asked for it; empty for strop's own models.

    Raises:
        InputError: there is no such model, or it is not readable as JSON.
    """
    config = stored_config(settings)
    if config or settings.path is None or settings.path in RESERVED:
        return config
    from transformers import PretrainedConfig

    place = locate(settings)  # reading its text runs none of the code that may lie next to it
    config, _ = PretrainedConfig.get_config_dict(
        place.source, revision=settings.revision, local_files_only=place.cached_only
    )
    return config
