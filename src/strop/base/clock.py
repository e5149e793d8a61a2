"""Where the seconds of a step go: t_R (rollout), t_T (update), and the rest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds by section since the last `lap`; sections do not nest, what no section claims is `other`."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._sections: dict[str, float] = {}

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Count the block towards `name`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._sections[name] = self._sections.get(name, 0.0) + time.perf_counter() - begin

    def lap(self) -> dict[str, float]:
        """Seconds of each section, `other` and `step` (their sum) since the last lap; starts the next."""
        now = time.perf_counter()
        whole = now - self._begin
        spent = {name: self._sections.get(name, 0.0) for name in ("rollout", "verify", "update")}
        spent |= self._sections
        lap = {**spent, "other": max(whole - sum(spent.values()), 0.0), "step": whole}
        self._begin, self._sections = now, {}
        return lap
