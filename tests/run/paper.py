"""A GPU machine on paper: torch reports its GPUs, and models have shapes but no weights.

    machine = PaperMachine(monkeypatch, gpus=8, gib=80)
    parts = machine.assembled(config, folder)        # the real `assemble` and start-up
    machine.launched["generator-0"].environment      # of every process that would have been started
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.tracked import shape
from tests.tiny import byte_tokenizer
from transformers import PreTrainedTokenizerBase

from strop.base.machine import GIB
from strop.base.view import SilentView
from strop.config.schema import RunConfig
from strop.engines.settings import PYTHON_VARIABLE
from strop.model.policy import Policy, meta_policy
from strop.model.settings import ModelSettings
from strop.orchestration.processes import Processes
from strop.orchestration.workers import WorkerHandle, WorkerSpec
from strop.recipes.resolve import resolve
from strop.run import assembly
from strop.run.memory import MemoryPlan, planned


@dataclass(frozen=True)
class _Properties:
    total_memory: int


class PaperMachine:
    """Sees to it that this process finds so many GPUs of `gib` GiB each.

    Attributes:
        launched: what each worker would have been started with, by its role.
        driver: the device of the driver's policy.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int, gib: int = 80, host_gib: int = 1024) -> None:
        self.launched: dict[str, WorkerSpec] = {}
        self.driver = ""
        self._monkeypatch = monkeypatch
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setenv(PYTHON_VARIABLE, sys.executable)
        for name, value in {
            "is_available": lambda: gpus > 0,
            "device_count": lambda: gpus,
            "get_device_properties": lambda number: _Properties(gib * GIB),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr("strop.base.machine.memory", lambda: (host_gib * GIB, host_gib * GIB))
        monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)

    def planned(self, config: RunConfig) -> MemoryPlan:
        """What the run takes of it."""
        return planned(config)

    def assembled(self, config: RunConfig, folder: Path) -> assembly.Parts:
        """Assemble a run and start its workers, as far as the launcher; no weights are there."""
        patch = self._monkeypatch.setattr
        patch(assembly, "load_policy", _without_weights)
        patch(Policy, "to", lambda policy, device: self._moved(policy, device))
        patch(Processes, "launch", lambda launcher, spec: self._launch(spec))
        parts = assembly.assemble(config, SilentView())
        parts.start(folder, SilentView())
        return parts

    def _moved(self, policy: Policy, device: Any) -> Policy:
        self.driver = str(device)
        return policy

    def _launch(self, spec: WorkerSpec) -> WorkerHandle:
        self.launched[spec.role] = spec
        return _NoWorker(spec.role)


class _NoWorker(WorkerHandle):
    pid = 0

    def send(self, message: object) -> None: ...

    def dismiss(self) -> None: ...

    def kill(self, reason: str) -> None: ...


def _without_weights(settings: ModelSettings, seed: int = 0) -> tuple[Policy, PreTrainedTokenizerBase]:
    return meta_policy(settings), byte_tokenizer()


def on_paper(folder: Path, model: str, *sets: str, recipe: str = "scalerl") -> RunConfig:
    """A recipe on a model of which the folder has only the configuration and a tokenizer, with a few problems."""
    byte_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(shape(model).to_json_string(use_diff=False))
    (folder / "model.safetensors").touch()
    rows = (json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in range(64))
    (folder / "rows.jsonl").write_text("\n".join(rows))
    data = (f"data.source={folder / 'rows.jsonl'}", "data.held_out.count=8", "data.template=Plain")
    return resolve(recipe, (f"model.path={folder}", "model.dtype=bfloat16", *data, *sets))
