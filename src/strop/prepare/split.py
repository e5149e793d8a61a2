"""A held-out validation set of the same distribution, disjoint from the training problems by question text."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from strop.base.seeds import derive
from strop.base.types import InputError
from strop.prepare.candidates import mix
from strop.prepare.deduplicate import Deduplicate, Original, pair_of
from strop.prepare.stage import Dropped, Stage, Step


class Split(Step):
    """Draws `count` problems with different questions into validation.parquet (ScaleRL: 1,000).

    What `Deduplicate` calls typed differently only (case, space, punctuation) is the same question: a training problem
    that asks a held-out one is dropped.

    Fields:
        seed: which are drawn; None follows the preparation's seed.
    """

    count: Annotated[int, Field(ge=1)] = 1000
    seed: Annotated[int, Field(ge=0)] | None = None

    def run(self, stage: Stage) -> None:
        """As `Deduplicate` without near duplicates: keys, the texts of candidates, the split.

        Raises:
            InputError: nothing would be left to train on.
        """
        distinct, duplicates, _ = Deduplicate(near="none").find(stage)
        if len(distinct) <= self.count:
            came = f"different questions that came in: {len(distinct)}"
            raise InputError(f"Split.count={self.count} leaves nothing to train on: {came}")
        seed = derive(stage.seed if self.seed is None else self.seed, "split")
        chosen = _drawn(distinct, self.count, seed)
        held_out: dict[int, Original] = {}
        for row, problem in enumerate(stage.problems(f"{stage.name}: writing")):
            duplicate = duplicates.get(row)
            if row in chosen:
                stage.hold_out(problem)
                held_out[row] = Original.of(problem)
            elif duplicate is not None and duplicate.row in chosen:
                first = held_out[duplicate.row]
                dropped = Dropped("asks a held-out question", f"of {first.id}", first.id)
                stage.drop(problem, dropped, pair_of(problem, first, duplicate.overlap))
            else:
                stage.keep(problem)


def _drawn(questions: dict[int, int], count: int, seed: int) -> set[int]:
    """`count` rows, in an order that follows from their text and the seed, not from what else is in the set."""
    keys = np.array(list(questions.values()), dtype=np.uint64)
    order = np.argsort(mix(mix(keys ^ np.uint64(seed)) + np.uint64(seed)), kind="stable")
    return set(np.array(list(questions), dtype=np.int64)[order[:count]].tolist())
