"""What the picture of a run shows in a test: axes take longer to lay out than a small run takes to train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from strop.report import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _blank(axes: Axes, rows: plots.Rows) -> None:
    axes.set_axis_off()


ALL = plots.PANELS
# Of a run and of a fine-tuning: one panel with nothing in it.
BLANK: tuple[plots.Panel, ...] = ((_blank, ("pass_rate", "evaluation/pass_rate", "loss")),)


@contextmanager
def drawn(panels: tuple[plots.Panel, ...]) -> Iterator[None]:
    """Pictures of runs have these panels inside, as far as the run has their metrics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "PANELS", panels)
        yield
