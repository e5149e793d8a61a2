"""Several sources as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Self

from pydantic import Field, SerializeAsAny, model_validator

from strop.base.types import Problem
from strop.data.source import ProblemSource


class Mixture(ProblemSource):
    """The problems of several sources, one source after the other; `data.weights` says how often each domain is drawn.

    Fields:
        sources: at least one.
        repeats: how often each source is listed, so that its problems come so many times an epoch; none lists each
            once. The ids of a repetition end in `#2`, `#3` …
        domains: what the problems of each source are called; none keeps the domains the sources give. With them the ids
            are `DOMAIN/ID`, so that sources which number their problems alike can be mixed.
    """

    sources: Annotated[tuple[SerializeAsAny[ProblemSource], ...], Field(min_length=1)]
    repeats: tuple[Annotated[int, Field(ge=1)], ...] = ()
    domains: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_domain_a_source(self) -> Self:
        if self.domains and len(self.domains) != len(self.sources):
            raise ValueError(f"{len(self.sources)} sources and {len(self.domains)} domains; name one for each, or none")
        if self.repeats and len(self.repeats) != len(self.sources):
            raise ValueError(f"{len(self.sources)} sources and {len(self.repeats)} repeats; give one for each, or none")
        return self

    @property
    def label(self) -> str:
        """The labels of the sources."""
        return " + ".join(source.label for source in self.sources)

    def problems(self) -> Iterator[Problem]:
        """The problems of the first source, then those of the next."""
        for number, source in enumerate(self.sources):
            domain = self.domains[number] if self.domains else None
            for time in range(1, (self.repeats[number] if self.repeats else 1) + 1):
                for problem in source.problems():
                    identity = problem.id if domain is None else f"{domain}/{problem.id}"
                    again = f"#{time}" if time > 1 else ""
                    yield replace(problem, id=f"{identity}{again}", domain=domain or problem.domain)
