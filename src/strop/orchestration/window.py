"""How far generators may run ahead of the trainer: as far as keeps it from waiting, and no further.

k bounds how stale a token may be; nothing is learned from staleness that buys no time. Generators that are quicker than
the trainer would fill whatever room they are given, and all of it would be trained on k versions late. So the groups
that may be open are counted in batches, from 2 (one that is trained, one that is generated meanwhile) to k + 1:

    the trainer has waited for groups     → one batch more
    k + 1 steps in a row it has not       → half of what lay ready beyond the batch at each of them less

The least of k + 1 steps is what none of them needed: stragglers admitted before the first of them are trained by then.
Times are the caller's, so that a simulated run adapts as a real one does.
"""

from __future__ import annotations

from typing import Any

WAITED = 0.05  # share of the trainer's own time from which it counts as having waited


class Window:
    """The batches' worth of groups that may be open.

    Args:
        max_lag: k.
        adaptive: False keeps it at k + 1: `orchestration.window=full`, and where generation and training take turns on
            the same devices, so that the trainer always waits.
    """

    def __init__(self, max_lag: int, adaptive: bool) -> None:
        self.most = max_lag + 1.0
        self.least = min(2.0, self.most) if adaptive else self.most
        self.batches = self.least
        self._surplus: list[float] = []
        self._began: float | None = None  # when the trainer took its last batch
        self._free: float | None = None  # when it had done with that one
        self._lacking = False  # groups, when it last looked
        self._short = 0.0  # until when it did

    def begins(self, now: float, surplus: float) -> None:
        """The trainer takes a batch; `surplus` batches' worth of resolved groups lie ready besides."""
        self.looks(now, lacking=False)
        if self._began is not None and self._free is not None:
            self._adapt(self._short - self._free > WAITED * (self._free - self._began), surplus)
        self._began, self._free = now, None

    def looks(self, now: float, lacking: bool) -> None:
        """It looks for a batch, and there are too few resolved groups for one (`lacking`), or not."""
        if self._lacking:
            self._short = now
        self._lacking = lacking

    def done(self, now: float) -> None:
        """It is done with its batch, and looks for the next."""
        self._free = now

    def _adapt(self, waited: bool, surplus: float) -> None:
        if waited:
            self.batches = min(self.batches + 1, self.most)
            self._surplus = []
            return
        self._surplus.append(surplus)
        if len(self._surplus) >= self.most:
            self.batches = max(self.batches - min(self._surplus) / 2, self.least)
            self._surplus = []

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return {"batches": self.batches}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`, before a first step: that one waits for its batch in any case, which says nothing."""
        self.batches = min(max(state["batches"], self.least), self.most)
