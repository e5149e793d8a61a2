"""The result of an evaluation, and paired comparisons of two. Shapes: P problems, N samples a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from strop.base.types import BoolArray, FloatArray, InputError, IntArray
from strop.evaluation.intervals import (
    Array,
    Interval,
    difference_interval,
    majority_at_k,
    pass_at_k,
    rate_interval,
    sign_flip_p,
)


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """The judged samples of every problem.

    Samples whose verifier failed are not `usable`: they count in no rate, and are reported by number.

    Attributes:
        dataset: the name of the problems' source.
        problem_ids: [P].
        scores: float32 [P, N], the verifier's; 0 where not usable.
        correct: bool [P, N], score 1.
        usable: bool [P, N], the verifier did not fail.
        unparsed: bool [P, N], the verifier found no answer in the completion.
        undecided: bool [P, N], the verifier could prove the answer neither right nor wrong; it counts as wrong.
        truncated: bool [P, N], the budget ended the completion.
        lengths: int32 [P, N], completion tokens.
        answers: [P][N], the answer that the verifier extracts, for majority votes; None if there is none.
        version: the oldest weight version that drew a token; the engine's where that is not known.
        seconds: wall time.
        surprise: float64 [P, N], Σ −log π over the sampled tokens of a completion, nats, at the sampling temperature;
            None where the tokens were not drawn from that distribution (greedy, top-p, top-k), or it was not kept.
        sampled: int32 [P, N], the number of sampled tokens, without injected ones; None with `surprise`.
        newest: the newest weight version that drew a token; None: `version`.
        first_failure: the error of the verifier or the environment on the first sample that was not usable, if known.
    """

    dataset: str
    problem_ids: tuple[str, ...]
    scores: FloatArray
    correct: BoolArray
    usable: BoolArray
    unparsed: BoolArray
    undecided: BoolArray
    truncated: BoolArray
    lengths: IntArray
    answers: tuple[tuple[str | None, ...], ...]
    version: int
    seconds: float
    surprise: Array | None = None
    sampled: IntArray | None = None
    newest: int | None = None
    first_failure: str = ""

    @property
    def samples_per_problem(self) -> int:
        """N."""
        return int(self.scores.shape[1])

    @property
    def failures(self) -> int:
        """Samples that the verifier could not judge."""
        return int((~self.usable).sum())

    @property
    def judged(self) -> BoolArray:
        """bool [P]: problems with at least a usable sample; the others count in no rate."""
        return self.usable.sum(axis=1) > 0

    @property
    def pass_rates(self) -> Array:
        """float64 [P]: the share of each problem's usable samples that is correct; NaN where there is none."""
        usable = self.usable.sum(axis=1)
        return np.where(usable > 0, (self.correct & self.usable).sum(axis=1) / np.maximum(usable, 1), np.nan)

    @property
    def pass_rate(self) -> float:
        """avg@N: the mean of `pass_rates` over problems."""
        return float(self._judged_rates().mean())

    @property
    def stderr(self) -> float:
        """The standard error of `pass_rate` over problems; 0 for a single problem."""
        rates = self._judged_rates()
        return float(rates.std(ddof=1) / np.sqrt(len(rates))) if len(rates) > 1 else 0.0

    @property
    def mean_score(self) -> float:
        """The mean over problems of the mean score of their usable samples, with partial credit."""
        self._judged_rates()
        usable = self.usable[self.judged]
        return float((np.where(usable, self.scores[self.judged], 0.0).sum(axis=1) / usable.sum(axis=1)).mean())

    @property
    def mean_length(self) -> float:
        """Completion tokens of a sample."""
        return float(self.lengths.mean())

    @property
    def mean_correct_length(self) -> float | None:
        """Completion tokens of a correct sample; None where there is none."""
        lengths = self.lengths[self.correct & self.usable]
        return float(lengths.mean()) if len(lengths) else None

    @property
    def truncation_rate(self) -> float:
        """The share of samples that the budget ended."""
        return float(self.truncated.mean())

    @property
    def unparsed_rate(self) -> float:
        """The share of usable samples in which the verifier found no answer."""
        self._judged_rates()
        return float(self.unparsed[self.usable].mean())

    @property
    def undecided_rate(self) -> float:
        """The share of usable samples whose answer the verifier did not decide."""
        self._judged_rates()
        return float(self.undecided[self.usable].mean())

    @property
    def entropy(self) -> float | None:
        """Entropy of the policy on these problems, nats a token at the sampling temperature; None without `surprise`.

        The mean of −log π(token) over all sampled tokens. Its expectation is the mean over tokens of the
        whole-vocabulary entropy, since each token was drawn from the distribution whose log-probability it carries.
        """
        if self.surprise is None or self.sampled is None or not self.sampled.sum():
            return None
        return float(self.surprise.sum() / self.sampled.sum())

    def subset(self, indices: Sequence[int]) -> EvaluationResult:
        """The evaluation of the problems at `indices`, in that order."""
        places = list(indices)
        chosen: dict[str, Any] = {
            name: value[places] if isinstance(value, np.ndarray) else tuple(value[place] for place in places)
            for name, value in vars(self).items() if isinstance(value, np.ndarray | tuple)
        }  # fmt: skip
        return replace(self, **chosen)

    def interval(self) -> Interval:
        """The 95 % interval of `pass_rate` over problems, see `rate_interval`."""
        return rate_interval(self._judged_rates())

    def judged_at_least(self, k: int | None) -> BoolArray:
        """bool [P]: problems with `k` usable samples or more, of which pass@k and maj@k are; None: with any."""
        return self.judged if k is None else self.usable.sum(axis=1) >= k

    def pass_values(self, k: int | None = None) -> Array:
        """Unbiased pass@k of each problem with at least k usable samples; by default of all usable samples of each.

        Raises:
            InputError: no problem has that many.
        """
        self._judged_rates()
        usable = self.usable.sum(axis=1).astype(np.int64)
        enough = self.judged_at_least(k)
        if (k is not None and k < 1) or not enough.any():
            raise InputError(f"pass@{k} cannot be estimated from {self.samples_per_problem} samples a problem")
        correct = (self.correct & self.usable).sum(axis=1).astype(np.int64)
        if k is None:
            return (correct[enough] > 0).astype(np.float64)
        return pass_at_k(correct[enough], usable[enough], k)

    def pass_at(self, k: int) -> float:
        """pass@k, unbiased, over problems with at least k usable samples.

        Raises:
            InputError: no problem has that many.
        """
        return float(self.pass_values(k).mean())

    def majority_values(self, k: int | None = None) -> Array:
        """maj@k of each problem with at least k usable samples; by default of all usable samples of each.

        Empty if samples are correct but the verifier returns no answers (programs, user functions).

        Raises:
            InputError: no problem has that many.
        """
        self._judged_rates()
        enough = self.judged_at_least(k)
        if (k is not None and k < 1) or not enough.any():
            raise InputError(f"maj@{k} cannot be estimated from {self.samples_per_problem} samples a problem")
        votes: list[float] = []
        told = any(answer is not None for answers in self.answers for answer in answers)
        if not told and (self.correct & self.usable).any():
            return np.array(votes, dtype=np.float64)
        for index in np.flatnonzero(enough).tolist():
            mask = self.usable[index]
            answers = tuple(answer for answer, kept in zip(self.answers[index], mask, strict=True) if kept)
            votes.append(majority_at_k(answers, self.correct[index][mask], len(answers) if k is None else k))
        return np.array(votes, dtype=np.float64)

    def majority_rate(self) -> float | None:
        """The share of problems whose most frequent answer is correct; ties count by their share.

        None if the verifier returns no answers (`majority_values`).
        """
        values = self.majority_values()
        return float(values.mean()) if len(values) else None

    @property
    def powers(self) -> list[int]:
        """The powers of two up to N for which there is a pass@k."""
        powers = (2**power for power in range(self.samples_per_problem.bit_length()))
        return [k for k in powers if self.judged_at_least(k).any()]

    def failed(self, of: str, counts: Mapping[str, int]) -> str:
        """A line on the samples `of` a model or set that the verifier could not judge; empty without any.

        It says which rates are over fewer problems for them; `counts` are metrics of k samples, such as pass@k, with k.
        """
        if not self.failures:
            return ""
        problems, judged = len(self.problem_ids), int(self.judged.sum())
        over = {"rates are": judged} if judged < problems else {}
        least = {name: int(self.judged_at_least(k).sum()) for name, k in counts.items()}
        over |= {f"{name} is": count for name, count in least.items() if count < judged}
        few = "".join(f"; {name} over {count} of {problems} problems" for name, count in over.items())
        why = f"; {self.first_failure}" if self.first_failure else ""
        share = f"{self.failures:,} of {self.usable.size:,} samples of {of}"
        return f"the verifier failed on {share}, which count in no rate{few}{why}"

    def summary(self) -> dict[str, Any]:
        """The result as JSON-able numbers; pass@k for the powers of two up to N."""
        return {
            "dataset": self.dataset,
            "problems": len(self.problem_ids),
            "samples_per_problem": self.samples_per_problem,
            "pass_rate": self.pass_rate,
            "interval": list(self.interval()),
            "pass_at": {str(k): self.pass_at(k) for k in self.powers},
            "majority_rate": self.majority_rate(),
            "mean_score": self.mean_score,
            "mean_length": self.mean_length,
            "unparsed_rate": self.unparsed_rate,
            "undecided_rate": self.undecided_rate,
            "truncation_rate": self.truncation_rate,
            "verifier_failures": self.failures,
            "weight_version": self.version,
            "seconds": self.seconds,
        }

    def _judged_rates(self) -> Array:
        rates = self.pass_rates[self.judged]
        if not len(rates):
            why = f" ({self.first_failure})" if self.first_failure else ""
            raise InputError(f"{self.dataset}: the verifier failed on every sample{why}, so there is no pass rate")
        return rates


class PairedTest(NamedTuple):
    """A difference of pass rates on the same problems (fractions).

    Attributes:
        gain: pass rate after minus pass rate before.
        interval: its bootstrap interval over problems.
        p_value: of the hypothesis that neither side is better, by sign flips.
        problems: how many were judged in both.
    """

    gain: float
    interval: Interval
    p_value: float
    problems: int


def on_common_problems(before: EvaluationResult, after: EvaluationResult) -> tuple[EvaluationResult, EvaluationResult]:
    """Both evaluations on the problems that they share, in the order of `before`.

    Models with less room leave out problems whose prompts are too long, and a limit may leave out more.

    Raises:
        InputError: they share none.
    """
    place = {name: index for index, name in enumerate(after.problem_ids)}
    shared = [index for index, name in enumerate(before.problem_ids) if name in place]
    if not shared:
        raise InputError(f"{before.dataset}: the two evaluations have no problem in common")
    return before.subset(shared), after.subset([place[before.problem_ids[index]] for index in shared])


def paired_test(before: EvaluationResult, after: EvaluationResult) -> PairedTest:
    """The gain in pass rate on the same problems, with its interval and p-value (see `sign_flip_p`).

    Pairing takes out how hard the problems are: only the difference on each problem varies.

    Raises:
        InputError: the results are of different problems.
    """
    differences = paired_differences(before, after)
    gain, interval = float(differences.mean()), difference_interval(differences)
    return PairedTest(gain, interval, sign_flip_p(differences), len(differences))


def paired_differences(before: EvaluationResult, after: EvaluationResult) -> Array:
    """`after` minus `before` of each problem's pass rate, over the problems that both judged.

    Raises:
        InputError: the results are of different problems, or none was judged in both.
    """
    if before.problem_ids != after.problem_ids:
        raise InputError("a gain takes two evaluations of the same problems in the same order")
    both = before.judged & after.judged
    if not both.any():
        raise InputError("no problem was judged in both evaluations")
    return after.pass_rates[both] - before.pass_rates[both]
