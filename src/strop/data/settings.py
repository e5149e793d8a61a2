"""The `data` section of a run's configuration."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, SerializeAsAny, model_validator

from strop.base.pieces import Settings
from strop.data.source import ProblemSource
from strop.data.templates import Auto, PromptTemplate

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]


def _chain_sums() -> ProblemSource:
    """The default source; a run with another source does not import it."""
    return ProblemSource.model_validate({"piece": "ChainSum"})


class HeldOutSettings(Settings):
    """Problems to evaluate on, never trained on: no training problem may ask the same question.

    Fields:
        count: number of problems; None takes all of `source`.
        source: their source; None draws `count` from the training source.
        seed: seed of the draw from the training source. Use the same one for runs that are compared.
    """

    count: Count | None = None
    source: SerializeAsAny[ProblemSource] | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _say_how_many(self) -> Self:
        if self.count is None and self.source is None:
            raise ValueError("set held_out.count, held_out.source, or both")
        return self


class DataSettings(Settings):
    """The problems of a run and their prompts.

    Fields:
        source: a source, or its short name: `gsm8k`, `chain_sum`, `reasoning-gym:TASK`, a `.jsonl`, `.json`, `.csv`
            or `.parquet` file, `OWNER/NAME` or `hub:NAME` for a data set of the hub.
        template: how a problem becomes a prompt.
        max_prompt_tokens: problems with longer prompts are left out and counted.
        limit: use only the first so many problems of the source.
        weights: relative sampling weight of each domain; None draws from all problems alike.
        shuffle_seed: seed of the order of training problems; None uses the run's seed.
        held_out: problems to evaluate on; None for none.
    """

    source: SerializeAsAny[ProblemSource] = Field(default_factory=_chain_sums)
    template: SerializeAsAny[PromptTemplate] = Auto()
    max_prompt_tokens: Count = 1024
    limit: Count | None = None
    weights: dict[str, Annotated[float, Field(gt=0)]] | None = None
    shuffle_seed: Seed | None = None
    held_out: HeldOutSettings | None = None
