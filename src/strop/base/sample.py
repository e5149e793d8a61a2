"""A training sequence: prompt and completion with every per-token field aligned, and the numbers of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strop.base.types import MAX_SAMPLES, BoolArray, ExpertArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Sample:
    """One training sequence, prompt then completion, every per-token field aligned over its L tokens.

    Example (prompt of 2, completion of 3, the last token EOS): `token_ids=[5, 9, 17, 4, 2]`,
    `trained=[F, F, T, T, T]`, `logprobs=[0, 0, -.1, -1.2, -.01]`, `advantages=[0, 0, .7, .7, .7]`.

    A mask says what is trained; nothing is ever inferred from token ids, so pad = EOS cannot matter. Fields that only
    some recipes need are None until something has filled them; they are 0 where nothing is trained.

    Attributes:
        token_ids: int32 [L].
        trained: bool [L]; the first token can never be trained (nothing predicts it).
        logprobs: float32 [L], the generator's; 0 outside the completion.
        advantages: float32 [L]; 0 outside the completion.
        versions: int32 [L], the weight version that sampled each token; -1 on the prompt.
        group: index of the sample's prompt group, for prompt-level aggregation.
        id: the sample's number in the run, the same however a batch is split (see `sample_id`).
        whole: the number of the completion that it is one of several sequences of; None: it is the whole of one.
        anchors: float32 [L], what importance ratios are taken against; None: `logprobs`.
        corrections: float32 [L], a constant factor on each token's policy loss; None: 1.
        old_entropies: float32 [L], nats, the policy's when the batch began.
        reference_logprobs: float32 [L], the reference policy's.
        reference_top_ids: int32 [L, K], its most probable tokens there.
        reference_top_logprobs: float32 [L, K], its log-probs of these; −∞ where it was not asked.
        values: float32 [L], the critic's when the batch began, of the state in which the token was chosen.
        returns: float32 [L], what the critic learns.
        trainer_logprobs: float32 [L], the policy's when it learned from the token, in the last pass of several.
        trainer_entropies: float32 [L], nats, likewise.
        routed_experts: [up to L, layers, k], see `Completion`; of the tokens after those they are not known.
    """

    token_ids: IntArray
    trained: BoolArray
    logprobs: FloatArray
    advantages: FloatArray
    versions: IntArray
    group: int
    id: int = 0
    whole: int | None = None
    anchors: FloatArray | None = None
    corrections: FloatArray | None = None
    old_entropies: FloatArray | None = None
    reference_logprobs: FloatArray | None = None
    reference_top_ids: IntArray | None = None
    reference_top_logprobs: FloatArray | None = None
    values: FloatArray | None = None
    returns: FloatArray | None = None
    trainer_logprobs: FloatArray | None = None
    trainer_entropies: FloatArray | None = None
    routed_experts: ExpertArray | None = None

    def __post_init__(self) -> None:
        columns = {name: column for name, column in vars(self).items() if isinstance(column, np.ndarray)}
        experts = columns.pop("routed_experts", ())
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1:
            raise ValueError(f"sample of group {self.group}: per-token fields of different lengths {sorted(lengths)}")
        if len(experts) > len(self.token_ids):
            raise ValueError(f"sample of group {self.group}: experts of {len(experts)} tokens, which has {len(self)}")
        if len(self.trained) and self.trained[0]:
            raise ValueError(f"sample of group {self.group}: the first token of a sequence cannot be trained")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def trained_tokens(self) -> int:
        """How many tokens carry loss."""
        return int(self.trained.sum())

    @property
    def completion(self) -> int:
        """The number of its completion, see `sample_id`."""
        return self.id if self.whole is None else self.whole


_SAMPLE_BITS, _PART_BITS = MAX_SAMPLES.bit_length() - 1, 52


def sample_id(ticket: int, index: int, part: int = 0) -> int:
    """The number of sample `index` (below `MAX_SAMPLES`) of the group with this ticket, unique in a run.

    `part` is the place of one of several sequences of the same completion.
    """
    return (part << _PART_BITS) | (ticket << _SAMPLE_BITS) | index


def completions_of(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """For each of S samples the place of its completion among theirs, int64 [S], in order of first appearance."""
    places: dict[tuple[bool, int], int] = {}
    keys = [(one.whole is None, index if one.whole is None else one.whole) for index, one in enumerate(samples)]
    return np.array([places.setdefault(key, len(places)) for key in keys], dtype=np.int64)
