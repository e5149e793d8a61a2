"""The configuration of a fine-tuning run, as settings; imports neither torch nor transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, ValidationError

from strop.base.imports import command, refuse_code
from strop.base.pieces import Settings
from strop.base.types import InputError
from strop.config.edits import apply_edits, explain, parse_set
from strop.data.columns import Columns
from strop.data.demonstrations import COMPLETION, Demonstrations
from strop.data.rows import FileSource
from strop.data.source import SUFFIXES
from strop.data.templates import Auto, PromptTemplate
from strop.model.location import RESERVED
from strop.model.settings import FreshModel, ModelSettings
from strop.run.checks import of_model_named
from strop.run.finding import refuse
from strop.run.folder import RunFolder, check_free
from strop.training.settings import SftSettings

FRESH = "fresh"


class SftConfig(Settings):
    """The configuration of a fine-tuning run, written as config.json into the run folder.

    Fields:
        model: the model to fine-tune.
        demonstrations: a file (JSON lines, a list in JSON, Parquet, CSV); `columns` says which entries are the prompt
            and the completion. Rows without the latter are chats in `messages` (or in `columns.prompt`) that end with
            what is learned.
        template: how a prompt is put to the model; the same one belongs into the RL run that follows.
        training: ScaleRL's settings but for the batch, which suits a file of thousands rather than millions.
        trainers: ranks that the model, its gradients and its optimizer are sharded over, in processes of this host: a
            GPU each if there are enough, else processor cores; 1 trains in the process of the command.
        checkpoint_every: updates between checkpoints.
    """

    model: ModelSettings
    demonstrations: str
    columns: Columns = Columns(answer=COMPLETION)
    template: SerializeAsAny[PromptTemplate] = Auto()
    training: SftSettings = SftSettings(epochs=4, tokens_per_batch=65_536)
    seed: Annotated[int, Field(ge=0)] = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    trainers: Annotated[int, Field(ge=1)] = 1
    checkpoint_every: Annotated[int, Field(ge=1)] = 100
    trackers: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()

    @property
    def source(self) -> Demonstrations:
        """The demonstrations, as prompts with the completion for an answer."""
        piece = next((SUFFIXES[suffix] for suffix in SUFFIXES if self.demonstrations.endswith(suffix)), "JsonLines")
        settings = {"piece": piece, "path": self.demonstrations, "columns": self.columns}
        return Demonstrations(FileSource.model_validate(settings))


def configure(model: str, demonstrations: Path, sets: Sequence[str] = ()) -> SftConfig:
    """The configuration of `strop sft`; `model` is a folder, a hub name or `fresh`.

    Raises:
        InputError: an unknown or impossible setting.
    """
    source = ModelSettings(fresh=FreshModel()) if model == FRESH else ModelSettings(path=model)
    data: dict[str, Any] = SftConfig(model=source, demonstrations=str(demonstrations)).model_dump(mode="json")
    for text in sets:
        data = apply_edits(data, parse_set(text), SftConfig)
    return _parse(data, "--set")


def checked_config(model: str, demonstrations: Path, sets: Sequence[str], out: Path) -> SftConfig:
    """The configuration of `strop sft` after checking its model, demonstrations and folder, without loading torch.

    Raises:
        InputError: one of them, or a setting, cannot be used.
    """
    if model in RESERVED:
        raise InputError(f"{model} is made for reinforcement learning; name a folder, a hub name, or fresh")
    config = configure(model, demonstrations, sets)
    check_free(out)
    next(config.source.problems(), None)
    refuse(of_model_named(config.model, config.device, made=FRESH))
    return config


def stored_config(folder: RunFolder) -> SftConfig:
    """The configuration of a fine-tuning run.

    Raises:
        InputError: it is a run of another kind, or would run code that the user has not named.
    """
    if not folder.fine_tunes:
        going_on = command("train --resume", folder.path)
        raise InputError(f"{folder.path} is no fine-tuning run; go on with it by: {going_on}")
    config = _parse(folder.read_json("config.json"), str(folder.config_path))
    refuse_code(config.model_dump(mode="json"), str(folder.config_path))
    return config


def _parse(data: dict[str, Any], origin: str) -> SftConfig:
    try:
        return SftConfig.model_validate(json.loads(json.dumps(data)))
    except ValidationError as error:
        raise InputError(f"{origin}: {explain(error)}") from error
