"""Records and finds the questions that a model was trained on, for runs, exported models and their copies.

    seen = trained_before(config.model.path)       # seen(problem), for what is held out
    write_questions(folder, run)                   # next to an exported model, with which it is copied and renamed

A question is known by its digest (`data/loading.py`).
"""

from __future__ import annotations

from pathlib import Path

from strop.base.files import read_json, write_json
from strop.base.types import InputError
from strop.data.loading import Seen
from strop.data.source import question_digest
from strop.run.folder import RunFolder, is_run

QUESTIONS = "strop_trained_on.json"  # in the folder of a model


def questions_of(model: str | None) -> frozenset[str] | None:
    """Digests of the questions that a model was trained on, by its run and the runs before it.

    Args:
        model: a run, a folder that strop exported, or any other model.

    Returns:
        The digests; None if strop did not train the model or kept no record.

    Raises:
        InputError: a record is broken.
    """
    place = None if model is None else Path(model).expanduser().absolute()
    if place is None:
        return None
    if (place / QUESTIONS).is_file():
        try:
            return frozenset(read_json(place / QUESTIONS)["questions"])
        except (KeyError, TypeError) as error:
            raise InputError(f"{place / QUESTIONS} is not a record of questions: {error}") from error
    run = next((path for path in (place, place.parent) if is_run(path)), None)
    return None if run is None else _of_run(RunFolder.open(run))


def _of_run(folder: RunFolder) -> frozenset[str] | None:
    record = folder.read_problems()
    return None if record is None else record.trained | record.before


def trained_before(model: str | None) -> Seen:
    """Return a function that says whether a model was trained on a problem; see `questions_of`."""
    trained = questions_of(model) or frozenset()
    return lambda problem: question_digest(problem) in trained


def write_questions(model: Path, run: RunFolder) -> None:
    """Write the questions that a model exported from `run` was trained on next to it, if they are known."""
    questions = _of_run(run)
    if questions is not None:
        write_json(model / QUESTIONS, {"questions": sorted(questions)})
