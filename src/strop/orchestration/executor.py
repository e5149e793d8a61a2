"""What the loop sees of generation and training: the protocols `Executor` and `Learning`.

The executor of one process, `InProcess`, is here too; `fleet.Fleet` is the executor of worker processes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from strop.base import progress
from strop.base.interrupt import breakable
from strop.base.types import Completion, FloatArray, IntArray
from strop.engines.protocol import Engine, KvMode, OpenRequests, Request

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from strop.base.types import Group
    from strop.model.policy import Policy
    from strop.model.tensor_file import Groups
    from strop.orchestration.messages import StoredWeights
    from strop.orchestration.weight_store import WeightFile
    from strop.training import checkpoint
    from strop.training.samples import Sizes, TrainResult
    from strop.training.settings import LearnerSettings


PROBE_TOLERANCE = 0.1  # nats a token, mean; bfloat16 against float32 stays well below, stale weights do not


@dataclass(frozen=True)
class Lost:
    """A request whose generator died before all completions arrived; it must be submitted again."""

    request_id: str
    reason: str


Event: TypeAlias = Completion | Lost


@dataclass(frozen=True)
class Publication:
    """Weights handed to every generator.

    Attributes:
        seconds: how long it took.
        probed: log-probs [L - 1] of the probe by generator, to be compared with the trainer's.
        idle: share of the time since the publication before in which generators had nothing to do; None where they
            take turns with the trainer, so that there is no such time.
    """

    version: int
    seconds: float
    probed: Mapping[int, FloatArray]
    idle: float | None = None


class Executor(Protocol):
    """Runs generators. Every completion of a request is reported once, by `poll`."""

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported."""
        ...

    def start(self, folder: Path) -> None:
        """Start for the run in `folder`. Generators serve after the first `publish`."""
        ...

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        """Queue a request. Its generator depends only on the ticket and the attempt of its group."""
        ...

    def cancel(self, request_id: str) -> None:
        """Cancel a request. Its running samples may be reported as aborted; an unknown id is ignored."""
        ...

    def poll(self, patience: float) -> list[Event]:
        """The events since the last call; waits up to `patience` seconds if there are none.

        Raises:
            StropError: the generators cannot go on.
        """
        ...

    def publish(self, version: int, probe: IntArray) -> Publication:
        """Bring the trainer's current parameters to every generator as `version`, all or nothing.

        Args:
            probe: tokens [L], L > 1, whose log-probs every generator computes under the new weights.

        Raises:
            StropError: there is no room for them, or the generators cannot go on.
        """
        ...

    def close(self) -> None:
        """End every generator; may be called twice."""
        ...


class Learning(Protocol):
    """A learner in this process (`Learner`), or one in several others (`RankGroupLearner`)."""

    def start(self, folder: Path) -> None:
        """Begin, for the run in `folder`; no other method is called before."""
        ...

    def sizes(self) -> Sizes:
        """The policy's size, and the number of devices that train it."""
        ...

    def enter(self, settings: LearnerSettings, updates: int) -> None:
        """Go on with the settings of a new stage; a changed optimizer restarts its schedule, of `updates`."""
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

    def publish(self, file: WeightFile, version: int, /) -> StoredWeights:
        """Write them into a file.

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


_STEPS_PER_POLL = 16


class InProcess:
    """The executor of one process: an engine next to the trainer, stepped by the loop itself.

    With max_lag > 0 generation and training still take turns, so no time is gained; what is trained on is as stale as
    on a cluster: completions are in flight while weights change, and each token carries the version that sampled it.
    Publication is nearly free where the engine computes with the very tensors the optimizer changes.
    """

    def __init__(self, engine: Engine, policy: Policy, kv: KvMode = "keep") -> None:
        self.engine = engine
        self._policy = policy
        self._kv: KvMode = kv
        self._open = OpenRequests()

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not yet reported."""
        return self.engine.unfinished

    def start(self, folder: Path) -> None:
        """Nothing to start."""

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        """Queue a request with the engine."""
        self.engine.submit(request)
        self._open.begin(request)

    def cancel(self, request_id: str) -> None:
        """Cancel a request, if the engine still has it."""
        if request_id in self._open:
            self.engine.cancel(request_id)

    def poll(self, patience: float) -> list[Event]:
        """Sample a few tokens for every running sequence; the completions that finished."""
        found: list[Event] = []
        for _ in range(_STEPS_PER_POLL):
            if not self.engine.unfinished:
                break
            with breakable():  # of a large model on a CPU one step takes seconds
                completions = self.engine.step()
            self._open.reported(completions)
            found += completions
            progress.made("tokens")
        return found

    def publish(self, version: int, probe: IntArray) -> Publication:
        """Give the engine the policy's parameters; where it shares them only their version is new."""
        begin = time.perf_counter()
        self.engine.update_weights(self._policy.weights().items(), version, self._kv)
        return Publication(version, time.perf_counter() - begin, {0: self.engine.verify_weights(probe)})

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
