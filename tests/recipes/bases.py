"""Smaller embedded bases made in seconds, put where the full ones would be: the tiny forms run on them unchanged.

One dense base that works most sums out and gets one in six right; one mixture of experts that only guesses; one teacher
that works everything out; one that does so where the prompt has the answer.
"""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path

import pytest

from strop.base.files import cache_folder
from strop.base.view import SilentView
from strop.model.settings import EMBEDDED, EMBEDDED_EXPERTS, EMBEDDED_HINTED, EMBEDDED_TEACHER
from strop.training.embedded_base import (
    EmbeddedBase,
    FallibleDemonstrator,
    HintedDemonstrator,
    embedded_base,
    named_base,
)

STEPS = {EMBEDDED: 450, EMBEDDED_EXPERTS: 60, EMBEDDED_TEACHER: 450, EMBEDDED_HINTED: 450}
TEACHERS = {
    EMBEDDED: FallibleDemonstrator(guess=0.15, partial=0.1),
    EMBEDDED_EXPERTS: FallibleDemonstrator(guess=1.0, partial=0.0),
    EMBEDDED_TEACHER: FallibleDemonstrator(guess=0.0, partial=0.0),
    EMBEDDED_HINTED: HintedDemonstrator(),
}


def quick(name: str) -> EmbeddedBase:
    """The settings of the quick base that stands in for `name`."""
    full = named_base(name, seed=0)
    assert full is not None
    optimizer = full.training.optimizer.model_copy(update={"lr": 6e-3, "warmup_steps": 20})
    training = full.training.model_copy(update={"steps": STEPS[name], "optimizer": optimizer})
    smaller = {"hidden_size": 96, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate_size": 192}
    model = full.model.model_copy(update=smaller)
    return full.model_copy(
        update={
            "demonstrations": 10_000, "demonstrator": TEACHERS[name], "training": training, "model": model,
        }
    )  # fmt: skip


def make(name: str, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the cache at a folder of this test session, with the base in it; one worker makes it, the others wait."""
    cache = shared / "bases"
    cache.mkdir(exist_ok=True)
    kernels = cache_folder() / "native"
    if not (cache / "native").exists():  # what is compiled for this machine need not be compiled again
        kernels.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another worker was quicker
            (cache / "native").symlink_to(kernels)
    monkeypatch.setenv("STROP_CACHE", str(cache))
    full = named_base(name, seed=0)
    assert full is not None
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / full.key()).is_dir():
            embedded_base(quick(name), SilentView()).rename(cache / full.key())
