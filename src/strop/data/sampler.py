"""The order of training problems: epochs without replacement, weighted domains, retired problems.

    sampler = Sampler(len(problems), seed=0)                                      # all problems alike
    sampler = Sampler(len(problems), 0, domains=[…], weights={"math": 3, "code": 1})
    index = sampler.next();  sampler.retire([index])

Its state is JSON-able; a restored sampler continues with the same next problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from strop.base.seeds import derive, permutation
from strop.base.types import InputError, Problem, StropError
from strop.data.settings import DataSettings


class SamplerState(TypedDict):
    """The state of a sampler: epoch and cursor of every domain, number of draws, retired problems, size and seed."""

    places: list[tuple[int, int]]
    drawn: int
    retired: list[int]
    size: int
    seed: int


class NoProblemsLeft(StropError):
    """Every problem has been retired."""


@dataclass
class _Domain:
    """One domain's endless order: `members[order[cursor]]` comes next, a new order every epoch."""

    members: NDArray[np.intp]
    entropy: list[int]
    left: int  # members not retired
    epoch: int = 0
    cursor: int = 0

    def __post_init__(self) -> None:
        self.order = permutation([*self.entropy, self.epoch], len(self.members))

    def next(self) -> int:
        index = int(self.members[self.order[self.cursor]])
        self.go_to(*((self.epoch, self.cursor + 1) if self.cursor + 1 < len(self.members) else (self.epoch + 1, 0)))
        return index

    def go_to(self, epoch: int, cursor: int) -> None:
        if epoch != self.epoch:
            self.order = permutation([*self.entropy, epoch], len(self.members))
        self.epoch, self.cursor = epoch, cursor


class Sampler:
    """Indices 0 … size - 1, each once per epoch, in a new order every epoch; never ends.

    The order depends only on (seed, epoch, size), not on numpy's version. With `weights` every draw first picks a
    domain in proportion to its weight, and each domain has its own epochs. A retired problem is never drawn again.
    Not thread-safe: only the controller draws.

    Args:
        size: number of problems.
        seed: seed of the order.
        domains: the domain of each problem; needed with `weights`.
        weights: relative weight of each domain; None draws from all problems alike.
    """

    def __init__(
        self, size: int, seed: int, domains: Sequence[str] = (), weights: Mapping[str, float] | None = None
    ) -> None:
        if size < 1:
            raise InputError("no problems to draw from")
        self._size, self._seed = size, seed
        self._drawn = 0
        self._retired: set[int] = set()
        if weights is None:
            self._domains = [_Domain(np.arange(size), [seed], size)]
            self._weights = np.ones(1)
        else:
            members = _by_domain(domains, weights)
            self._domains = [
                _Domain(np.asarray(places), [seed, number + 1], len(places)) for number, places in enumerate(members)
            ]
            self._weights = np.array([weights[name] for name in sorted(weights)], dtype=np.float64)
        self._domain_of = {int(i): number for number, d in enumerate(self._domains) for i in d.members}

    @property
    def left(self) -> int:
        """The number of problems that are not retired."""
        return sum(domain.left for domain in self._domains)

    @property
    def retired(self) -> frozenset[int]:
        """The retired problems."""
        return frozenset(self._retired)

    @property
    def state(self) -> SamplerState:
        """The state for a checkpoint."""
        return SamplerState(
            places=[(domain.epoch, domain.cursor) for domain in self._domains],
            drawn=self._drawn,
            retired=sorted(self._retired),
            size=self._size,
            seed=self._seed,
        )

    def next(self) -> int:
        """The next index; a new epoch follows the end of the last one.

        Raises:
            NoProblemsLeft: all are retired.
        """
        if self.left == 0:
            raise NoProblemsLeft(f"all {self._size} training problems are retired; nothing is left to train on")
        domain = self._pick()
        self._drawn += 1
        index = domain.next()
        while index in self._retired:
            index = domain.next()
        return index

    def retire(self, indices: Iterable[int]) -> None:
        """Never draw these problems again."""
        for index in set(indices) - self._retired:
            self._domains[self._domain_of[index]].left -= 1
            self._retired.add(index)

    def restore(self, state: SamplerState) -> None:
        """Continue from `state`.

        Raises:
            InputError: it belongs to another data set, mixture or seed.
        """
        before, now = (state["size"], state["seed"], len(state["places"])), (self._size, self._seed, len(self._domains))
        if before != now:
            raise InputError(
                f"the checkpoint's data order is of {before[0]} problems with seed {before[1]} in {before[2]} domains, "
                f"this run's of {now[0]} with seed {now[1]} in {now[2]}: resume with the same data settings"
            )
        for domain, (epoch, cursor) in zip(self._domains, state["places"], strict=True):
            domain.go_to(epoch, cursor)
            domain.left = len(domain.members)
        self._drawn = state["drawn"]
        self._retired.clear()
        self.retire(state["retired"])

    def _pick(self) -> _Domain:
        if len(self._domains) == 1:
            return self._domains[0]
        weights = np.where([domain.left > 0 for domain in self._domains], self._weights, 0.0)
        place = derive(self._seed, "domain", self._drawn) / 2**63 * weights.sum()
        return self._domains[int(np.searchsorted(np.cumsum(weights), place, side="right"))]


def _by_domain(domains: Sequence[str], weights: Mapping[str, float]) -> list[list[int]]:
    """The problems of each domain, domains in the order of their names.

    Raises:
        InputError: a domain without a weight, or a weight without a problem.
    """
    found: dict[str, list[int]] = {}
    for index, name in enumerate(domains):
        found.setdefault(name, []).append(index)
    if found.keys() != weights.keys():
        raise InputError(
            f"data.weights names the domains {', '.join(sorted(weights))}, the problems are of "
            f"{', '.join(sorted(found))}; give each of these a weight, and no other"
        )
    return [found[name] for name in sorted(found)]


def make_sampler(settings: DataSettings, problems: Sequence[Problem], run_seed: int) -> Sampler:
    """The sampler of a run with seed `run_seed` over its training problems."""
    seed = run_seed if settings.shuffle_seed is None else settings.shuffle_seed
    return Sampler(len(problems), seed, [problem.domain for problem in problems], settings.weights)
