"""The models of a run that are still at hand: its start, its checkpoints, its end. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from strop.base.files import cache_folder
from strop.base.imports import command
from strop.base.seeds import derive
from strop.base.types import InputError, StropError
from strop.model.critic import HEAD_FILE, Critic
from strop.model.files import load_tokenizer
from strop.model.policy import Policy, load_policy
from strop.model.settings import ModelSettings
from strop.report.runs import RunData
from strop.training import checkpoint
from strop.training.embedded_base import named_base

Weights = dict[str, Tensor]
START = "start"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The policy's weights at one moment.

    Attributes:
        name: what the page calls it.
        step: training steps done.
        version: its weight version; None where the metrics do not say.
        source: the file or folder that holds it.
    """

    name: str
    step: int
    version: int | None
    source: Path | None


class Models:
    """The models of one run: a single policy on the CPU that takes on the weights of whichever snapshot is asked for.

    Attributes:
        snapshots: by step, the start first; none where no model is at hand.
        reasons: why something is not, a line each.
        tokenizer: of the model.
    """

    def __init__(self, run: RunData) -> None:
        """Find what is there; only the tokenizer and one model are loaded.

        Raises:
            InputError: the run has no usable configuration, or neither its start nor its end can be loaded.
        """
        self._run = run
        self.reasons: list[str] = []
        self.snapshots: list[Snapshot] = []
        settings = _cpu_settings(run)
        start = self._start(settings)
        final = run.folder.model if run.folder.model.is_dir() else None
        if final is None:
            self.reasons.append(f"{run.name}: there is no exported model; write one with {command('export', run.path)}")
        if final is None and start is None:
            raise InputError("no model of it is at hand")
        first = start if start is not None else settings.model_copy(update={"fresh": None, "path": str(final)})
        self._first, self._seed = first, derive(int(run.raw.get("seed", 0)), "model")
        self.policy, self.tokenizer = load_policy(first.model_copy(update={"lora": None}), seed=self._seed)
        self.policy.requires_grad_(False)
        self._now = START if start is not None else str(final)
        # Of the start alone a copy is kept: a fresh model is in no file.
        self._weights = {self._now: {name: value.clone() for name, value in self.policy.weights().items()}}
        self._list(start is not None, final)

    def _start(self, settings: ModelSettings) -> ModelSettings | None:
        try:
            return starting_model(self._run, settings)
        except InputError as error:
            self.reasons.append(f"{self._run.name}: the starting model is not at hand: {error}")
            return None

    def _list(self, has_start: bool, final: Path | None) -> None:
        run = self._run
        if has_start:
            self.snapshots.append(Snapshot("the starting model", 0, 0, None))
        for step in run.folder.checkpoint_steps():
            if step < run.last_step or final is None:
                folder = run.folder.checkpoints / f"step-{step:08d}"
                self.snapshots.append(
                    Snapshot(f"the checkpoint of step {step}", step, run.version_after.get(step), folder)
                )
        if final is not None:
            version = run.version_after.get(run.last_step)
            self.snapshots.append(Snapshot("the final model", run.last_step, version, final))

    @property
    def start(self) -> Snapshot | None:
        """The starting model, where it is at hand."""
        return self.snapshots[0] if self.snapshots and self.snapshots[0].step == 0 else None

    @property
    def last(self) -> Snapshot:
        """The latest there is."""
        return self.snapshots[-1]

    def drop_start(self, reason: str) -> None:
        """Do without the starting model: it is not what the run began with."""
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot.step > 0]
        self.reasons.append(f"{self._run.name}: {reason}")

    def become(self, snapshot: Snapshot) -> Policy:
        """The policy with the weights of `snapshot`.

        Raises:
            StropError: the file is damaged, or of another model.
        """
        key = START if snapshot.source is None else str(snapshot.source)
        if key != self._now:
            self.policy.load_weights(self._read(key, snapshot))
            self._now = key
        return self.policy

    def _read(self, key: str, snapshot: Snapshot) -> Weights:
        if key in self._weights:
            return self._weights[key]
        assert snapshot.source is not None
        if (snapshot.source / "manifest.json").is_file():
            try:
                kept = checkpoint.read_group(snapshot.source, "policy")
            except Exception as error:  # each format raises errors of its own for each kind of damage
                raise StropError(f"{snapshot.source}: the policy in it cannot be read: {error}") from error
            return self._with_adapters(kept) if self._first.lora is not None else kept
        settings = self.policy.settings.model_copy(update={"fresh": None, "path": str(snapshot.source)})
        exported, _ = load_policy(settings)
        return exported.weights()

    def _with_adapters(self, kept: Weights) -> Weights:
        """The weights of the starting model with the adapters of a checkpoint."""
        if START not in self._weights:
            raise StropError(f"{self._run.name}: a checkpoint holds adapters alone, and their model is not at hand")
        adapted, _ = load_policy(self._first, seed=self._seed)
        adapted.load_weights(kept)
        return adapted.weights()

    def critic(self) -> Critic | None:
        """The exported critic of the run's end; None where it has none."""
        folder = self._run.path / "critic"
        if not (folder / HEAD_FILE).is_file():
            return None
        return Critic.load(folder, self.policy.settings).requires_grad_(False)


def _cpu_settings(run: RunData) -> ModelSettings:
    if run.config is None:
        raise InputError(run.unread)
    return run.config.model.model_copy(update={"gradient_checkpointing": False})


def starting_model(run: RunData, settings: ModelSettings) -> ModelSettings:
    """The settings that load the model the run began with from this machine alone.

    Raises:
        InputError: it is not here.
    """
    if settings.path is None:
        return settings
    base = named_base(settings.path, int(run.raw.get("seed", 0)))
    if base is not None:
        folder = cache_folder() / base.key()
        if not folder.is_dir():
            raise InputError(f"the embedded base is not in {folder.parent} (STROP_CACHE)")
        return settings.model_copy(update={"path": str(folder)})
    local = Path(settings.path).expanduser()
    if local.is_dir():
        return settings
    return settings.model_copy(update={"path": _cached(settings)})


def _cached(settings: ModelSettings) -> str:
    """The folder of a hub model that was downloaded before."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    assert settings.path is not None
    try:
        return snapshot_download(settings.path, revision=settings.revision, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise InputError(f"{settings.path} is neither a folder here nor in the cache of the hub") from error


def tokenizer_of(run: RunData) -> PreTrainedTokenizerBase | None:
    """The tokenizer alone, of the exported model or the starting one; None where neither is here."""
    places = [run.folder.model]
    if run.config is not None:
        try:
            path = starting_model(run, run.config.model).path
            places += [] if path is None else [Path(path)]
        except InputError:
            pass  # the exported model's is as good
    for place in places:
        if place.is_dir():
            try:
                return load_tokenizer(str(place))
            except (OSError, ValueError):
                continue  # the next place; a page without tokens is drawn where there is none
    return None
