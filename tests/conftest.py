"""What all tests share: no network, and markers that skip with the reason."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from strop.model.kernels.native import LayerKernels

# How long an example takes says more of the machine's other work than of the code; pytest-timeout watches for hangs.
# With CI set the examples are the same every time: new ones are looked for where somebody reads what they show.
hypothesis.settings.register_profile("strop", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("strop")

# Set before anything of Hugging Face is imported: a test that asks the hub for something is wrong.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"


def _missing(item: pytest.Item) -> Iterator[str]:
    """Why the item cannot run here."""
    if item.get_closest_marker("ray") is not None and importlib.util.find_spec("ray") is None:
        yield 'needs the extra ray: pip install "strop[ray]"'
    if item.get_closest_marker("vllm") is not None and not os.environ.get("STROP_VLLM_PYTHON"):
        yield "needs STROP_VLLM_PYTHON, the interpreter of an environment with vLLM"
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            yield "needs a CUDA device"


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Ctrl-C is heard. Who starts the tests in the background ignores it, as would every program that a test starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def kernels() -> LayerKernels:
    """The layers in C, compiled here."""
    from strop.model.kernels import native

    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    found = native.load()
    assert found is not None
    return found


@pytest.fixture
def forked() -> Iterator[None]:
    """For tests that are not about how workers start: they are forked from the test, without seconds of imports."""
    from tests.forks import forking

    with forking():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for reason in _missing(item):
            item.add_marker(pytest.mark.skip(reason=reason))
