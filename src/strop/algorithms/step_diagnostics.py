"""Diagnostics of a training step: outcomes of its groups, lengths, reflection, repetition and credit.

They are computed from completions, verdicts and advantages, each as a mergeable statistic. Statistics of the update's
tensors (ratios, entropies, clipping) are computed in `statistics`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from strop.algorithms.advantages import GroupRelative, Outcomes
from strop.base.metrics import Maximum, Mean, Metrics, Total
from strop.base.sample import Sample, completions_of, sample_id
from strop.base.types import Completion, Group, IntArray, Rollout
from strop_verify.verdict import Status

_LAST_BIN = 8


def group_metrics(groups: Sequence[Group], survivors: Collection[int]) -> Metrics:
    """Metrics over every completion of the step, dropped groups included; `survivors` are the tickets trained on."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    usable = [rollout for group in groups for rollout in group.usable]
    return {
        "reward/mean": Mean(sum(r.reward for r in usable), len(usable)),
        **_pass_rates(usable),
        "truncation_rate": _share([r.completion.truncated for r in rollouts]),
        "unparsed_rate": _share([r.verdict.status is Status.UNPARSED for r in rollouts]),
        **_undecided(rollouts),
        "well_formed_rate": _share([r.verdict.status is not Status.UNPARSED for r in usable]),
        "verifier/failures": Total(sum(r.verdict.failed for r in rollouts)),
        "verifier/failure_share": _share([r.verdict.failed for r in rollouts]),
        "groups/zero_variance_share": _share([len({r.verdict.value for r in g.usable}) <= 1 for g in groups]),
        "groups/zero_variance_reward_share": _share([len({r.reward for r in g.usable}) <= 1 for g in groups]),
        "groups/without_baseline": Total(sum(len(g.usable) == 1 < len(g.rollouts) for g in groups)),
        "groups/trained": Total(len(survivors)),
        "groups/largest": Maximum(max((len(g.rollouts) for g in groups), default=None)),
        "tokens/generated": Total(sum(r.completion.sampled_tokens for r in rollouts)),
        "pairs/generated": Total(sum(_pairs(r.completion) for r in rollouts)),
    }


def _pairs(completion: Completion) -> int:
    """Pairs of one of its tokens and a token that this one attends to, itself among them."""
    prompt, own = len(completion.prompt_ids), len(completion.token_ids)
    return own * prompt + own * (own + 1) // 2


def _undecided(rollouts: Sequence[Rollout]) -> Metrics:
    """The share that the verifier proved neither right nor wrong: of all, and by the kind of reference."""
    kinds = Counter(r.verdict.undecided for r in rollouts if r.verdict.undecided)
    by_kind = {f"undecided_rate/{kind}": Mean(count, len(rollouts)) for kind, count in sorted(kinds.items())}
    return {"undecided_rate": Mean(kinds.total(), len(rollouts)), **by_kind}


def _pass_rates(usable: Sequence[Rollout]) -> Metrics:
    """The share that is right: of all, of those not truncated, and of each domain."""
    rates: Metrics = {
        "pass_rate": _share([r.verdict.passed for r in usable]),
        "pass_rate/whole": _share([r.verdict.passed for r in usable if not r.completion.truncated]),
    }
    domains: dict[str, list[bool]] = {}
    for rollout in usable:
        domains.setdefault(rollout.problem.domain, []).append(rollout.verdict.passed)
    for domain, passed in sorted(domains.items()):
        # The name of a domain is the user's; it must not hide the rate of whole completions.
        rates.setdefault(f"pass_rate/{domain}", _share(passed))
    return rates


def solved_metrics(groups: Sequence[Group]) -> Metrics:
    """A histogram of the groups by the share of their usable rollouts that are correct; its shares add up to 1.

    The bins are the same for every group size: none, up to ¼, ½ and ¾, the rest, all.
    """
    solved = np.array([np.mean([r.verdict.passed for r in g.usable]) for g in groups if g.usable], dtype=np.float64)
    return {
        "groups/solved_none_share": _share(solved == 0),
        "groups/solved_to_25_share": _share((solved > 0) & (solved <= 0.25)),
        "groups/solved_to_50_share": _share((solved > 0.25) & (solved <= 0.5)),
        "groups/solved_to_75_share": _share((solved > 0.5) & (solved <= 0.75)),
        "groups/solved_most_share": _share((solved > 0.75) & (solved < 1)),
        "groups/solved_all_share": _share(solved == 1),
    }


def effective_metrics(groups: Sequence[Group], samples: Sequence[Sample]) -> Metrics:
    """The effective batch: completions with an advantage other than 0 on a trained token, and their groups."""
    effective = [sample for sample in samples if np.any(sample.advantages[sample.trained])]
    prompts = len({sample.group for sample in effective})
    completions = sum(len(group.rollouts) for group in groups)
    counted = len(set(completions_of(effective)))
    return {
        "effective_batch/prompts": Total(prompts),
        "effective_batch/prompts_share": Mean(prompts, len(groups)),
        "effective_batch/completions": Total(counted),
        "effective_batch/completions_share": Mean(counted, completions),
    }


def interruption_metrics(groups: Sequence[Group]) -> Metrics:
    """Forced interruptions of thinking: how many completions, where, with which result."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    positions = [r.completion.interrupted_at for r in rollouts if r.completion.interrupted_at is not None]
    passed = [r.verdict.passed for group in groups for r in group.usable if r.completion.interrupted_at is not None]
    return {
        "interruption/share": Mean(len(positions), len(rollouts)),
        "interruption/position": Mean(sum(positions), len(positions)),
        "interruption/pass_rate": _share(passed),
        "tokens/injected": Total(sum(int(r.completion.injected.sum()) for r in rollouts)),
    }


def environment_metrics(groups: Sequence[Group]) -> Metrics:
    """Of trajectories of several turns, or that should have several: how many turns one has, malformed calls of tools,
    and how many had no room for another turn; else nothing."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    malformed = sum(rollout.verdict.malformed_calls for rollout in rollouts)
    no_room = sum(rollout.completion.had_no_room for rollout in rollouts)
    if not (malformed or no_room or any(rollout.completion.turns for rollout in rollouts)):
        return {}
    return {
        "environment/turns": Mean(sum(len(r.completion.turns) + 1 for r in rollouts), len(rollouts)),
        "environment/malformed_calls": Mean(malformed, len(rollouts)),
        "environment/no_room_share": Mean(no_room, len(rollouts)),
    }


def lag_metrics(samples: Sequence[Sample], version: int, max_lag: int = 0) -> Metrics:
    """Version trained minus version that sampled, per trained token; with max_lag > 0 its histogram besides.

    The shares of lag 0, 1, … 8 and of more, as far as max_lag lets them be, add up to 1.
    """
    lags = [version - sample.versions[sample.trained] for sample in samples]
    flat = np.concatenate(lags) if lags else np.zeros(0, dtype=np.int32)
    largest = float(flat.max()) if len(flat) else None
    found: Metrics = {"lag/mean": Mean(float(flat.sum()), len(flat)), "lag/max": Maximum(largest)}
    if max_lag > 0:
        bins = min(max_lag, _LAST_BIN) + 1
        found |= {f"lag/share_{lag}": _share(flat == lag) for lag in range(bins)}
    if max_lag > _LAST_BIN:
        found["lag/share_more"] = _share(flat > _LAST_BIN)
    return found


def verifier_failures(groups: Sequence[Group]) -> list[str]:
    """A line for each kind of failure of the verifier itself, with the first detail."""
    first: dict[Status, str] = {}
    for group in groups:
        for rollout in group.rollouts:
            if rollout.verdict.failed:
                first.setdefault(rollout.verdict.status, f"problem {group.problem.id}: {rollout.verdict.detail}")
    return [f"verifier {status}: {detail}" for status, detail in first.items()]


def _share(holds: Sequence[bool] | np.ndarray) -> Mean:
    return Mean(int(np.count_nonzero(holds)), len(holds))


GRPO = GroupRelative(normalization="prompt_std", ddof=1)


def credit_metrics(groups: Sequence[Group], samples: Sequence[Sample]) -> Metrics:
    """Advantages over trained tokens from the first repetition on (see `first_repetition`).

    Args:
        groups: those that the samples were made of; a group's usable rollouts and shaped rewards make GRPO's
            advantage, (r − mean) / (std + 1e-6) with ddof 1.
        samples: with the advantages they are trained with, whatever estimator, whitening or mask made these.

    Returns:
        The mean advantage of these tokens as trained and under GRPO, their share of the trained tokens, and over all
        completions the share that repeats and where repetition begins, in tokens of the completion.
    """
    completions = [rollout.completion for group in groups for rollout in group.rollouts]
    starts = [first_repetition(completion.token_ids) for completion in completions]
    tickets = [group.ticket for group in groups for _ in group.rollouts]
    onset = {
        sample_id(ticket, completion.index, part): len(own.prompt_ids) + max(start - own.start, 0)
        for ticket, completion, start in zip(tickets, completions, starts, strict=True)
        if start is not None
        for part, own in enumerate(completion.sequences)
        if start < own.end
    }
    found = [start for start in starts if start is not None]
    grpo = _grpo_advantages(groups)
    tokens, trained, given, otherwise = 0, 0, 0.0, 0.0
    for sample in samples:
        trained += sample.trained_tokens
        if sample.id in onset:
            start = onset[sample.id]
            advantages = sample.advantages[start:][sample.trained[start:]]
            tokens += len(advantages)
            given += float(advantages.sum(dtype=np.float64))
            otherwise += grpo[sample.completion] * len(advantages)
    return {
        "repetition/share": Mean(len(found), len(starts)),
        "repetition/first_token": Mean(sum(found), len(found)),
        "repetition/token_share": Mean(tokens, trained),
        "repetition/advantage": Mean(given, tokens),
        "repetition/advantage_grpo": Mean(otherwise, tokens),
    }


def _grpo_advantages(groups: Sequence[Group]) -> dict[int, float]:
    """GRPO's advantage of every usable rollout, by the number of its sample."""
    counted = [(index, group.ticket, rollout) for index, group in enumerate(groups) for rollout in group.usable]
    if not counted:
        return {}
    outcomes = Outcomes(
        rewards=np.array([rollout.reward for _, _, rollout in counted], dtype=np.float64),
        group=np.array([index for index, _, _ in counted], dtype=np.int32),
        lengths=np.ones(len(counted), dtype=np.int32),
        survives=np.ones(len(counted), dtype=np.bool_),
    )
    numbers = [sample_id(ticket, rollout.completion.index) for _, ticket, rollout in counted]
    return dict(zip(numbers, GRPO.per_completion(outcomes).tolist(), strict=True))


PATTERNS = ("wait,", "recheck", "retry", "alternatively,", "however,")


def reflections(text: str) -> dict[str, int]:
    """How often each pattern occurs in the lower-cased text.

    The paper's five strings, as they stand there. Its released code leaves capitals as they are, so that "Wait," does
    not count, and asks for a comma or a space after "recheck"; here a sentence may begin with the word.
    """
    lowered = text.lower()
    return {pattern: lowered.count(pattern) for pattern in PATTERNS}


@dataclass(frozen=True)
class Quantile:
    """The q-quantile of all values, linear between neighbours; it carries them all, so that it can be merged.

    For one number a completion, not a token.
    """

    values: tuple[float, ...]
    q: float

    def merge(self, other: Quantile) -> Quantile:
        if other.q != self.q:
            raise ValueError(f"the quantiles {self.q} and {other.q} are of different things")
        return Quantile(self.values + other.values, self.q)

    @property
    def value(self) -> float | None:
        return float(np.quantile(self.values, self.q)) if self.values else None


def length_metrics(groups: Sequence[Group]) -> Metrics:
    """Lengths in tokens of all completions, and of those that are correct, reflective, or both (ORZ, Figure 4)."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths = tuple(float(_length(r)) for r in rollouts)
    reflective = [r for r in rollouts if any(reflections(r.completion.text).values())]
    return {
        "length/mean": Mean(sum(lengths), len(lengths)),
        "length/max": Maximum(max(lengths, default=None)),
        "length/p50": Quantile(lengths, 0.5),
        "length/p90": Quantile(lengths, 0.9),
        "length/correct": _mean_length([r for r in rollouts if _is_correct(r)]),
        "length/reflective": _mean_length(reflective),
        "length/correct_reflective": _mean_length([r for r in reflective if _is_correct(r)]),
    }


def reflection_metrics(groups: Sequence[Group]) -> Metrics:
    """The share of completions that reflect, and how often each pattern occurs in one."""
    texts = [rollout.completion.text for group in groups for rollout in group.rollouts]
    found = [reflections(text) for text in texts]
    counts: Metrics = {
        f"reflection/{pattern.rstrip(',')}": Mean(sum(f[pattern] for f in found), len(found)) for pattern in PATTERNS
    }
    return {"reflection/share": Mean(sum(any(f.values()) for f in found), len(found))} | counts


def repetition_metrics(groups: Sequence[Group]) -> Metrics:
    """Repeatness and repeated 20-grams, means over completions; equal texts are looked at once.

    Both, the dearest of all diagnostics, are taken of every k-th completion where the step holds more than
    `CHARACTERS` characters. Completions too short for an n-gram do not count in the second.
    """
    sample = measured([rollout.completion.text for group in groups for rollout in group.rollouts])
    repeated = {text: repeatness(text) for text in set(sample)}
    ngrams = {text: repeated_ngrams(text) for text in set(sample)}
    ratios = [repeats / total for repeats, total in (ngrams[text] for text in sample) if total]
    return {
        "repetition/repeatness": Mean(sum(repeated[text] for text in sample), len(sample)),
        "repetition/ngram20": Mean(sum(ratios), len(ratios)),
    }


def _mean_length(rollouts: Sequence[Rollout]) -> Mean:
    return Mean(sum(_length(r) for r in rollouts), len(rollouts))


def _length(rollout: Rollout) -> int:
    return len(rollout.completion.token_ids)


def _is_correct(rollout: Rollout) -> bool:
    return rollout.verdict.usable and rollout.verdict.passed


def step_diagnostics(groups: Sequence[Group], samples: Sequence[Sample], survivors: Collection[int]) -> Metrics:
    """Every diagnostic of a step that follows from its groups and samples (docs/metrics.md names them).

    Args:
        groups: all that the step looked at, dropped ones included.
        samples: what is trained on, made of these groups, with the advantages of the update.
        survivors: tickets of the groups that selection kept.

    Returns:
        Mergeable statistics by name; those of two steps merged are those of both together.
    """
    return {
        **group_metrics(groups, survivors),
        **solved_metrics(groups),
        **effective_metrics(groups, samples),
        **interruption_metrics(groups),
        **environment_metrics(groups),
        **length_metrics(groups),
        **reflection_metrics(groups),
        **repetition_metrics(groups),
        **credit_metrics(groups, samples),
    }


# ---------------------------------------------------------------------- repetition

WINDOW = 20  # words of a repeated n-gram (Archer), and tokens of a repeated window
CHARACTERS = 1 << 20  # of a step that are searched for repetition: 256 completions of 4,096 characters


def repeatness(text: str) -> float:
    r"""Open-Reasoner-Zero's measure of a text of n characters, in [0, 1).

    2·Σ LCP / (n (n + 1)), LCP being the longest common prefixes of neighbours in the suffix array: the share of the
    n (n + 1) / 2 substrings that are not the first of their kind. 0 for fewer than two characters. O(n log² n).

    Example: "aaaaaaaaaa" → 90 / 110 = 0.8182; "abababababab" → 110 / 156 = 0.7051; "abcdefghij" → 0.
    """
    n = len(text)
    if n < 2:
        return 0.0
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return 2 * int(_common_prefixes(codes).sum()) / (n * (n + 1))


def measured(texts: Sequence[str], characters: int = CHARACTERS) -> Sequence[str]:
    """Every k-th of the texts, k the smallest for which they hold at most `characters` together; at least the first.

    Texts are taken whole, because a part of a text has another repeatness than the whole.
    """
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    stride = 1
    while stride < len(texts) and int(lengths[::stride].sum()) > characters:
        stride += 1
    return texts[::stride]


def repeated_ngrams(text: str, n: int = WINDOW) -> tuple[int, int]:
    """(repeats, all) of the word n-grams of a text: lower-cased words between white space (Archer).

    An n-gram is a repeat when the same one has begun earlier in the text: all − distinct. Their quotient is the
    repetition ratio; a text of fewer than n words has none.
    """
    number: defaultdict[str, int] = defaultdict()
    number.default_factory = number.__len__
    words = np.fromiter(map(number.__getitem__, text.lower().split()), np.int32)
    found = [window for _, window in _recurring(words, n)]
    return len(found) - len(set(found)), max(len(words) - n + 1, 0)


def first_repetition(token_ids: IntArray, window: int = WINDOW) -> int | None:
    """The first token i whose window of `window` tokens, i to i + window − 1, has begun at an earlier token too.

    The two may overlap: 21 equal tokens repeat at token 1. Tokens from i on are those "after the onset of the first
    repetitive pattern" (Open-Reasoner-Zero, Section 3.3, which does not define it). None where no window recurs.
    """
    seen: set[bytes] = set()
    for start, found in _recurring(token_ids.astype(np.int32), window):
        if found in seen:
            return start
        seen.add(found)
    return None


def _recurring(symbols: IntArray, width: int) -> Iterator[tuple[int, bytes]]:
    """The windows of `width` symbols, int32 [n], that occur twice or more: start and bytes, in order.

    Most windows of a text occur once. A hash tells which these are; one whose hash is another's too comes as well.
    """
    count = len(symbols) - width + 1
    if count < 2:
        return
    hashes = np.zeros(count, dtype=np.uint64)
    for place, factor in enumerate(_odd_numbers(width)):
        hashes += symbols[place : place + count].astype(np.uint64) * factor  # modulo 2^64
    ordered = np.sort(hashes)
    several = ordered[1:][ordered[1:] == ordered[:-1]]
    content, size = symbols.tobytes(), symbols.itemsize
    for start in np.flatnonzero(np.isin(hashes, several)).tolist():
        yield start, content[start * size : (start + width) * size]


@cache
def _odd_numbers(count: int) -> NDArray[np.uint64]:
    """Random odd numbers, always the same, uint64 [count]."""
    return np.random.default_rng(0).integers(1 << 63, size=count, dtype=np.uint64) * 2 + 1


def _common_prefixes(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """LCP of each pair of neighbours in the suffix array, int64 [n − 1].

    Prefix doubling: suffixes are ranked by their first w symbols, w doubling until no two have the same rank. Equal
    ranks mean w equal symbols, so the common prefix of a pair is read off from the widest round down to a single
    symbol. Position n, the empty suffix, equals no other.
    """
    n, width = len(codes), 1
    rank = np.append(np.unique(codes, return_inverse=True)[1], -1)
    rounds = [(width, rank)]
    while rank.max() < n - 1:
        following = rank[np.minimum(np.arange(n) + width, n)]
        rank = np.append(np.unique(rank[:n] * (n + 1) + following + 1, return_inverse=True)[1], -1)
        width *= 2
        rounds.append((width, rank))
    order = np.argsort(rank[:n])
    first, second = order[:-1].copy(), order[1:].copy()
    for width, rank in reversed(rounds):
        equal = (rank[first] == rank[second]) * width
        first += equal
        second += equal
    return first - order[:-1]
