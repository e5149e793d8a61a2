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
        domains: what the problems of each source are called; none keeps the domains the sources give. With them the ids
            are `DOMAIN/ID`, so that sources which number their problems alike can be mixed.
    """

    sources: Annotated[tuple[SerializeAsAny[ProblemSource], ...], Field(min_length=1)]
    domains: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_domain_a_source(self) -> Self:
        if self.domains and len(self.domains) != len(self.sources):
            raise ValueError(f"{len(self.sources)} sources and {len(self.domains)} domains; name one for each, or none")
        return self

    @property
    def label(self) -> str:
        """The labels of the sources."""
        return " + ".join(source.label for source in self.sources)

    def problems(self) -> Iterator[Problem]:
        """The problems of the first source, then those of the next."""
        for number, source in enumerate(self.sources):
            for problem in source.problems():
                if self.domains:
                    domain = self.domains[number]
                    problem = replace(problem, id=f"{domain}/{problem.id}", domain=domain)
                yield problem
