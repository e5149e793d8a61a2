"""Messages between the controller and its workers: small frozen values, for any transport.

Nothing here needs torch, so that a worker which computes nothing starts in a moment. Weights never travel as messages:
`StoredWeights` says where they are stored.

    controller ──Submit, Cancel, WeightUpdate──▶ generator
               ◀──Starting, Ready, Finished, Updated──
    controller ──Evaluate──▶ evaluator
               ◀──Ready, Evaluating, Evaluated──
    every worker ──Heartbeat, Failed──▶ (its handle reads them)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strop.base.types import Completion, FloatArray, IntArray

if TYPE_CHECKING:
    from strop.engines.protocol import KvMode, Request
    from strop.evaluation.result import EvaluationResult

# ---------------------------------------------------------------------- of any worker


@dataclass(frozen=True)
class Heartbeat:
    """The worker's process runs; its work has stood still for `stalled` seconds."""

    stalled: float


@dataclass(frozen=True)
class Failed:
    """The last message of a worker that fails. `fatal`: another worker would fail the same way."""

    error: str
    fatal: bool


# ---------------------------------------------------------------------- weights


@dataclass(frozen=True)
class StoredWeights:
    """A version in the weight store: a safetensors file of `bytes` bytes and its digest (see `weight_store`)."""

    version: int
    path: str
    digest: str
    bytes: int


@dataclass(frozen=True)
class Work:
    """A generator's work since it started: seconds of engine steps, and seconds of waiting."""

    busy: float = 0.0
    idle: float = 0.0


# ---------------------------------------------------------------------- to a generator


@dataclass(frozen=True)
class Submit:
    """Requests to generate, in this order; those of one message are given to the engine before its next step."""

    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Cancel:
    """Stop this request; its tokens so far are reported with finish_reason `abort`."""

    request_id: str


@dataclass(frozen=True, eq=False)
class WeightUpdate:
    """Load these weights: staged whole, hash checked, swapped between two tokens, probed, acknowledged by `Updated`.

    `probe` are tokens [L] whose log-probs are computed under the new weights.
    """

    weights: StoredWeights
    kv: KvMode
    probe: IntArray


# ---------------------------------------------------------------------- from a generator


@dataclass(frozen=True)
class Starting:
    """The engine is being built; `what`, `done` and `total` as `strop.base.progress.part` has them."""

    what: str
    done: int
    total: int


@dataclass(frozen=True)
class Ready:
    """The engine is built and waits for its first weights."""


@dataclass(frozen=True)
class Finished:
    """Completions, each reported once; aborted ones too. `work` is what the generator has done by now."""

    completions: tuple[Completion, ...]
    work: Work


@dataclass(frozen=True, eq=False)
class Updated:
    """The engine computes with `version` from its next token on; `logprobs` [L - 1] are those of the probe."""

    version: int
    logprobs: FloatArray
    work: Work


# ---------------------------------------------------------------------- to an evaluator, and from it


@dataclass(frozen=True)
class Evaluate:
    """Measure the sets of these names on the weights after training step `step`."""

    weights: StoredWeights
    step: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Evaluating:
    """`done` of `total` samples of the set `name` are judged."""

    step: int
    name: str
    done: int
    total: int


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The results of an `Evaluate`, by the set's name; `seconds` is its wall time."""

    step: int
    results: Mapping[str, EvaluationResult]
    seconds: float
