"""Helpers of the tests of the paged engine."""

from __future__ import annotations

from tests.tiny import byte_tokenizer

from strop.engines.settings import EngineSettings
from strop.engines.torch.kernels import Kernels
from strop.engines.torch.paged_engine import PagedEngine
from strop.model.policy import Policy


def paged_engine(policy: Policy, kernels: Kernels | None = None, **settings: object) -> PagedEngine:
    """An engine of 16 slots and pages of 16 tokens unless told otherwise."""
    given = EngineSettings.model_validate({"slots": 16, "page_tokens": 16, "cache": "paged", **settings})
    return PagedEngine(policy, byte_tokenizer(), given, kernels=kernels)
