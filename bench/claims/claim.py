"""A claim: what a paper says, and what of our runs would show it."""

from __future__ import annotations

from typing import NamedTuple

from bench.claims.analysis import LOG_MARGIN, PASS_MARGIN, Says
from bench.claims.measures import ENTROPY, PASS, Effect
from bench.claims.mechanisms import Check, checks_of

from bench.claims import measures as m

LATE_PASS, LATE_ENTROPY = m.late(PASS), m.late(ENTROPY)


class Choice(NamedTuple):
    """One thing that a paper compares and that takes several settings to choose: a method, a schedule.

    Fields:
        what: the thing, in words.
        settings: the only ones in which the arms may differ.
    """

    what: str
    settings: frozenset[str]


class Claim(NamedTuple):
    """A claim and its test.

    Fields:
        name: on the command line and in tables.
        paper: and its section.
        quote: what it says.
        arms: those it needs.
        measured: the effect, in words.
        effect: of the curves of one seed; None where it cannot be told.
        says: what the claim says of the effect.
        margin: the smallest effect of interest.
        unit: `pass rate`, `log ratio` or another word.
        choice: what the arms differ in, where it is not one setting.
        compared: what the arms must show beside one another; what each must show by itself is in `mechanisms`.
    """

    name: str
    paper: str
    quote: str
    arms: tuple[str, ...]
    measured: str
    effect: Effect
    says: Says = "above"
    margin: float = PASS_MARGIN
    unit: str = "pass rate"
    choice: Choice | None = None
    compared: tuple[Check, ...] = ()

    @property
    def checks(self) -> list[Check]:
        """What the arms must show in their own metrics, else the claim is not tried."""
        return [*checks_of(self.arms), *self.compared]


def passes(name: str, paper: str, quote: str, one: str, other: str, says: Says = "above") -> Claim:
    """Late held-out pass rate of one arm less the other's."""
    words = f"late pass rate, `{one}` − `{other}`"
    return Claim(name, paper, quote, (one, other), words, m.minus(LATE_PASS, one, other), says)


def entropies(name: str, paper: str, quote: str, one: str, other: str, says: Says = "above") -> Claim:
    """Late held-out entropy of one arm over the other's."""
    words = f"log of late held-out entropy, `{one}` / `{other}`"
    effect = m.log_ratio(LATE_ENTROPY, one, other)
    return Claim(name, paper, quote, (one, other), words, effect, says, LOG_MARGIN, "log ratio")
