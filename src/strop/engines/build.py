"""Builds the engine that `engine.piece` names, for everything that generates."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from strop.engines.protocol import Engine, Sampling
from strop.engines.settings import EngineSettings, Vllm
from strop.engines.torch.engine import TorchEngine
from strop.model.device import pick_device
from strop.model.files import export, load_tokenizer
from strop.model.location import in_folder
from strop.model.policy import Policy, load_policy
from strop.model.settings import ModelSettings

_MEMORY = Path("/dev/shm")


def build_engine(
    settings: EngineSettings,
    model: ModelSettings,
    tokenizer: PreTrainedTokenizerBase,
    policy: Policy | None = None,
    version: int = 0,
    sampling: Sampling | None = None,
    gpus: Sequence[int] | None = None,
) -> Engine:
    """The engine that `settings` name, with the weights of `policy`, else of the model that `model` names.

    `model.path` must be a folder or a hub name (`embedded` is located before). `sampling`, where given, is refused
    before anything is started if no request with it could be honoured. A server of vLLM is started on `gpus`, or on
    what this process may see.

    Raises:
        InputError: settings that the model cannot honour, an engine that is not installed, or sampling it lacks.
        StropError: the engine does not start.
    """
    if not isinstance(settings, Vllm):
        policy = load_policy(model, tokenizer)[0] if policy is None else policy
        engine = TorchEngine(policy, tokenizer, settings, version)
        if sampling is not None:
            engine.check(sampling)
        return engine
    from strop.engines.vllm.engine import VllmEngine

    if sampling is not None:
        settings.refuse_unable(sampling)
    with _folder(model, tokenizer, policy) as folder:
        return VllmEngine(folder, tokenizer, settings, model, version, gpus)


def own_engine(settings: EngineSettings, model: ModelSettings, seed: int = 0, device: str = "cpu") -> Engine:
    """An engine with its own parameters and tokenizer, for a process without a trainer: a generator, a server.

    `device` is where it computes; a server of vLLM takes the GPUs that this process sees.

    Raises:
        InputError, StropError: see `build_engine`; or there is no such model.
    """
    model = in_folder(model)
    if isinstance(settings, Vllm):
        folder = _local(model)
        if folder is not None:
            return build_engine(settings, model, load_tokenizer(str(folder), None, model.trust_remote_code))
        policy, tokenizer = load_policy(model, seed=seed)
        return build_engine(settings, model, tokenizer, policy)
    policy, tokenizer = load_policy(model, seed=seed)
    policy.to(pick_device(device)).requires_grad_(False)
    return TorchEngine(policy, tokenizer, settings.model_copy(update={"share_parameters": False}))


def _local(model: ModelSettings) -> Path | None:
    """The model's folder, where it has one on this machine."""
    folder = None if model.path is None else Path(model.path).expanduser()
    return folder if folder is not None and folder.is_dir() else None


@contextmanager
def _folder(model: ModelSettings, tokenizer: PreTrainedTokenizerBase, policy: Policy | None) -> Iterator[Path]:
    """A folder with the model's files; a temporary one is removed when the engine has read it."""
    local = _local(model)
    if policy is None and local is not None:
        yield local
        return
    policy = load_policy(model, tokenizer)[0] if policy is None else policy
    size = sum(weight.numel() * weight.element_size() for weight in policy.weights().values())
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 * size
    with tempfile.TemporaryDirectory(prefix="strop-model-", dir=_MEMORY if roomy else None) as folder:
        export(policy.model, tokenizer, Path(folder) / "model")
        yield Path(folder) / "model"
