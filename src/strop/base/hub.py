"""The Hugging Face hub: whether it is reachable, by one quick request, and where its cache has a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strop.base.types import first_line

SECONDS = 5.0  # for one small request; downloads afterwards use the libraries' timeouts


def silence() -> str | None:
    """Why the hub cannot be reached; None if it answers, with any status.

    The libraries try each file six times over half a minute, which is right for a download that breaks and wrong for a
    machine without network or a mistyped name. Cached files are loaded anyway.
    """
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set"
    except HTTPError as error:  # of the httpx that it is built on: no such host, no connection, no answer in time
        return f"{constants.ENDPOINT} does not answer: {first_line(error)}"
    return None


def cached_only(path: str) -> bool:
    """Whether what `path` names must come from the hub's cache: it is no folder, and the hub cannot be asked."""
    return not Path(path).is_dir() and silence() is not None


def has_cached(name: str, revision: str | None = None) -> bool:
    """Whether the hub's cache has the model `name`, as far as its configuration shows."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
    except HFValidationError:  # not a name that the hub could have
        return False


# What transformers and vLLM read of a model: not the same weights in other formats, nor what lies in folders.
_MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py")
_OTHER_FILES = ("*/*", "consolidated*")


def folder_of(name: str, revision: str | None, cached_only: bool) -> Path:
    """The folder of a model in the hub's cache, where it is put first if it may be fetched.

    Raises:
        OSError, ValueError: it is not there and cannot be fetched.
    """
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(
        name, revision=revision, local_files_only=cached_only, allow_patterns=list(_MODEL_FILES),
        ignore_patterns=list(_OTHER_FILES),
    ))  # fmt: skip


@contextmanager
def offline_data(datasets: Any) -> Iterator[None]:
    """Make the package `datasets` use only its cache. Its switch is global, so it is set back afterwards."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
