"""How many panels the picture of a run has in a test: nine take longer to draw than a small run takes to train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from strop import plots

ALL = plots.PANELS
# Of a run and of a fine-tuning.
FEW = tuple(panel for panel in ALL if {"pass_rate", "loss"} & set(panel[1]))


@contextmanager
def drawn(panels: tuple[plots.Panel, ...]) -> Iterator[None]:
    """Pictures of runs have these panels inside, as far as the run has their metrics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "PANELS", panels)
        yield
