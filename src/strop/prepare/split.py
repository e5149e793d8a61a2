"""A held-out validation set of the same distribution, disjoint from the training problems by question text."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from strop.base.seeds import derive
from strop.base.types import InputError
from strop.prepare.stage import Dropped, Stage, Step
from strop.prepare.text import normalize


class Split(Step):
    """Draws `count` problems with different questions into validation.parquet (ScaleRL: 1,000).

    Questions that are typed differently only (case, space, punctuation) are the same question: a training problem that
    asks a held-out one is dropped.

    Fields:
        seed: which are drawn; None follows the preparation's seed.
    """

    count: Annotated[int, Field(ge=1)] = 1000
    seed: Annotated[int, Field(ge=0)] | None = None

    def run(self, stage: Stage) -> None:
        """Two passes: the questions, then the split.

        Raises:
            InputError: nothing would be left to train on.
        """
        texts = (normalize(problem.question) for problem in stage.problems(f"{stage.name}: reading"))
        loose, bare = np.zeros(stage.total, dtype=np.uint64), np.zeros(stage.total, dtype=np.uint64)
        for row, found in enumerate(texts):
            loose[row], bare[row] = found.loose, found.bare
        _, first, question = np.unique(bare, return_index=True, return_inverse=True)
        if len(first) <= self.count:
            raise InputError(
                f"Split.count={self.count} leaves nothing to train on: different questions that came in: {len(first)}"
            )
        seed = derive(stage.seed if self.seed is None else self.seed, "split")
        order = np.argsort(_scrambled(bare[first], seed), kind="stable")
        chosen = set(first[order[: self.count]].tolist())
        held_questions = set(question[sorted(chosen)].tolist())
        held_loose = set(loose[sorted(chosen)].tolist())
        for row, problem in enumerate(stage.problems(f"{stage.name}: writing")):
            if row in chosen:
                stage.hold_out(problem)
            elif int(question[row]) in held_questions or int(loose[row]) in held_loose:
                stage.drop(problem, Dropped("asks a held-out question"))
            else:
                stage.keep(problem)


def _scrambled(
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]], seed: int
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """An order of questions that follows from their text and the seed, not from what else is in the set."""
    from strop.prepare.candidates import mix

    return mix(mix(keys ^ np.uint64(seed)) + np.uint64(seed))
