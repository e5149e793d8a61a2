"""The protocol of learners, which train in this process or in ranks in other processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from strop.base.types import FloatArray, Group, IntArray
    from strop.model.tensor_file import Groups
    from strop.orchestration.messages import StoredWeights
    from strop.orchestration.weight_store import WeightStore
    from strop.training import checkpoint
    from strop.training.samples import Sizes, TrainResult
    from strop.training.settings import LearnerSettings


class Learning(Protocol):
    """A learner in this process (`Learner`), or one in several others (`RankGroupLearner`)."""

    def start(self, folder: Path) -> None:
        """Begin, for the run in `folder`; no other method is called before."""
        ...

    def sizes(self) -> Sizes:
        """The policy's size, and the number of devices that train it."""
        ...

    def enter(self, settings: LearnerSettings, updates: int) -> None:
        """Go on with the settings of a new stage; a changed optimizer starts its schedule, of `updates`, anew."""
        ...

    def replan(self, updates_left: int, steps_left: int) -> None:
        """After `load` with another configuration: learning rates end with the run that is planned now."""
        ...

    def learn(
        self, groups: Sequence[Group], survivors: Collection[int], step: int, states: Mapping[str, Mapping[str, Any]]
    ) -> TrainResult | None:
        """Train on a batch; None, and nothing changed, where no completion of it can be trained on."""
        ...

    def probe(self, token_ids: IntArray) -> FloatArray:
        """The policy's log-probs [L - 1] of `token_ids` [L], at temperature 1."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Every parameter of the policy whole, by its name in the model; perhaps the live ones: read them at once."""
        ...

    def publish(self, store: WeightStore, version: int) -> StoredWeights:
        """Write them into a store.

        Raises:
            DiskFull: there is no room for them.
        """
        ...

    def broken(self) -> str | None:
        """The name of a parameter of the policy that is not finite; None where all are."""
        ...

    def save(self, entry: checkpoint.CheckpointEntry, extra: Groups) -> None:
        """Begin a checkpoint of everything that is trained, and of `extra` groups; training may go on at once.

        Raises:
            StropError: what went wrong with the save before, which is waited for.
        """
        ...

    def settle(self, wait: bool) -> bool:
        """Whether no save is under way; with `wait`, once that is so. Raises what went wrong with it."""
        ...

    def load(self, root: Path, step: int) -> None:
        """Take back a checkpoint, whatever number of ranks saved it; its files have been checked.

        Raises:
            StropError: it was saved by a run with other modules.
        """
        ...

    def export(self, tokenizer: PreTrainedTokenizerBase, model: Path, critic: Path) -> None:
        """Write the policy as a Hugging Face folder, and the critic where there is one.

        Raises:
            StropError: it cannot be written.
        """
        ...

    def close(self) -> None:
        """Finish a save under way where that is possible, and release all resources."""
        ...
