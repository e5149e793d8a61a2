"""From settings to an engine: which one is a matter of `engine.piece`, for everything that generates."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from strop.engines.base import Engine, Sampling
from strop.engines.torch_engine import TorchEngine
from strop.engines.torch_engine.settings import EngineSettings
from strop.engines.vllm_engine.settings import Vllm
from strop.model_files import export
from strop.model_settings import ModelSettings
from strop.policy import Policy, load_policy

_MEMORY = Path("/dev/shm")


def build_engine(
    settings: EngineSettings,
    model: ModelSettings,
    tokenizer: PreTrainedTokenizerBase,
    policy: Policy | None = None,
    version: int = 0,
    seed: int = 0,
    sampling: Sampling | None = None,
) -> Engine:
    """The engine that `settings` name, with the weights of `policy`, else of the model that `model` names.

    `model.path` must be a folder or a hub name (`embedded` is located before); `seed` is that of a fresh model;
    `sampling`, where given, is refused before anything is started if no request with it could be honoured.

    Raises:
        InputError: settings that the model cannot honour, an engine that is not installed, or sampling it lacks.
        StropError: the engine does not start.
    """
    if not isinstance(settings, Vllm):
        policy = load_policy(model, tokenizer, seed)[0] if policy is None else policy
        engine = TorchEngine(policy, tokenizer, settings, version)
        if sampling is not None:
            engine.check(sampling)
        return engine
    from strop.engines.vllm_engine import VllmEngine

    if sampling is not None:
        VllmEngine.refuse_unable(sampling)
    with _folder(model, tokenizer, policy, seed) as folder:
        return VllmEngine(folder, tokenizer, settings, model, version)


def generating_engine(settings: EngineSettings, model: ModelSettings, seed: int, device: str) -> Engine:
    """The engine of a generator, which shares nothing with a trainer; on `device` where it is the embedded one.

    Raises:
        InputError: see `build_engine`.
    """
    policy, tokenizer = load_policy(model, seed=seed)
    policy.requires_grad_(False)
    if not isinstance(settings, Vllm):
        policy.to(torch.device(device))
    return build_engine(settings.model_copy(update={"share_parameters": False}), model, tokenizer, policy)


def embedded_settings(settings: EngineSettings) -> EngineSettings:
    """Settings of the embedded engine with the bounds of `settings`, for what needs no other engine."""
    if not isinstance(settings, Vllm):
        return settings
    return EngineSettings(slots=settings.slots, max_tokens=settings.max_tokens, prefill_tokens=settings.prefill_tokens)


@contextmanager
def _folder(
    model: ModelSettings, tokenizer: PreTrainedTokenizerBase, policy: Policy | None, seed: int
) -> Iterator[Path]:
    """A folder of the model in files; what is written for it is gone when the engine has read it."""
    local = None if model.path is None else Path(model.path).expanduser()
    if policy is None and local is not None and local.is_dir():
        yield local
        return
    policy = load_policy(model, tokenizer, seed)[0] if policy is None else policy
    size = sum(weight.numel() * weight.element_size() for weight in policy.weights().values())
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 * size
    with tempfile.TemporaryDirectory(prefix="strop-model-", dir=_MEMORY if roomy else None) as folder:
        export(policy.model, tokenizer, Path(folder) / "model")
        yield Path(folder) / "model"
