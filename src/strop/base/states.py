"""The states of a run's stateful pieces: made, updated after each step, checkpointed under the piece's path.

A piece is frozen; what it learns during a run (an entropy coefficient, a pass-rate history) is a JSON-able value beside
it. `algorithm.reward` is the path of the piece of that setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from strop.base.pieces import State, StatefulPiece
from strop.base.types import InputError


def stateful_pieces(settings: BaseModel, path: str = "") -> Iterator[tuple[str, StatefulPiece]]:
    """Every stateful piece of a configuration with its path, in the order of the fields."""
    for name in type(settings).model_fields:
        value = settings.__dict__[name]
        members = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for index, member in members:
            if not isinstance(member, BaseModel):
                continue
            place = f"{path}{name}" if index is None else f"{path}{name}.{index}"
            if isinstance(member, StatefulPiece):
                yield place, member
            yield from stateful_pieces(member, f"{place}.")


class States:
    """The present states by path."""

    def __init__(self, settings: BaseModel) -> None:
        self._pieces = dict(stateful_pieces(settings))
        self.values: dict[str, State] = {path: piece.initial() for path, piece in self._pieces.items()}

    def update(self, statistics: Mapping[str, float | None]) -> None:
        """Let every piece see the metrics of a finished step."""
        for path, piece in self._pieces.items():
            self.values[path] = piece.update(self.values[path], statistics)

    def enter(self, settings: BaseModel) -> None:
        """Go on with the pieces of another configuration: a piece that stays keeps its state, a new one begins."""
        fresh = States(settings)
        kept = {path: self.values[path] for path, piece in fresh._pieces.items() if self._pieces.get(path) == piece}
        self._pieces, self.values = fresh._pieces, fresh.values | kept

    def load(self, values: Mapping[str, State]) -> None:
        """Take back checkpointed states.

        Raises:
            InputError: they are of other pieces than the configuration has.
        """
        if values.keys() != self._pieces.keys():
            raise InputError(
                f"the checkpoint holds states of {sorted(values)}, the configuration has {sorted(self._pieces)}: "
                "resume with the configuration it was saved with"
            )
        self.values = dict(values)

    def numbers(self) -> dict[str, float | None]:
        """Their values for a log line: every plain number as `state/PATH.KEY`."""
        return {
            f"state/{path}.{key}": float(value)
            for path, state in self.values.items()
            for key, value in state.items()
            if isinstance(value, int | float)
        }
