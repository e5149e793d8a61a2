"""What an arm must show in its own metrics before a claim about it counts as tried.

A configuration names a mechanism; whether the mechanism did anything in a run, only the run's metrics say: a cap that
no ratio reaches, a controller whose coefficient only rises, a KL term on a policy that has not left its reference are
settings, not experiments. `SHOWS` has the checks of every arm; those that compare arms stand beside the claim. All of
them must hold in every seed, and no two arms of a claim may be one run: else the claim is "not tried".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from bench.claims.arms import ADAPTIVE_TARGET, CAP, STAGE_ONE
from bench.claims.execute import Curve
from bench.claims.measures import ENTROPY, PASS, Curves, Effect, Measure

from bench.claims import measures as m

SAME_RUN = (PASS, ENTROPY, "grad_norm")


class Check(NamedTuple):
    """A number of the curves of one seed that must lie above `above` and below `below`."""

    words: str
    value: Effect
    above: float = -math.inf
    below: float = math.inf

    def holds(self, value: float | None) -> bool:
        """Whether the check holds of a value; not where there is none."""
        return value is not None and self.above < value < self.below

    @property
    def bound(self) -> str:
        """What is asked of the number, such as `> 0.2`."""
        above = f"> {self.above:g}" if self.above > -math.inf else ""
        below = f"< {self.below:g}" if self.below < math.inf else ""
        return " and ".join(text for text in (above, below) if text)


def _check(arm: str, words: str, measure: Measure, above: float = -math.inf, below: float = math.inf) -> Check:
    return Check(f"{words} of `{arm}`", m.of(measure, arm), above, below)


# ---------------------------------------------------------------------- checks that several arms share

Own = tuple[str, Measure, float, float]
NONE, ALL = -math.inf, math.inf
LEARNS: Own = ("gain in late held-out pass rate", m.gain(PASS), 0.1, ALL)
COLLAPSES: Own = (
    "log of first over late held-out entropy", m.ratio_log(m.first(ENTROPY), m.late(ENTROPY)), 0.2, ALL,
)  # fmt: skip
ON_POLICY: Own = ("largest importance ratio", m.largest("ratio/max"), NONE, 1.01)
OFF_POLICY: Own = ("largest importance ratio", m.largest("ratio/max"), 1.1, ALL)
CLIPS: Own = ("mean share of clipped tokens", m.mean("ratio/clipped_share"), 0.0, ALL)
CLIPS_HIGH: Own = ("mean share of tokens clipped above", m.mean("ratio/clipped_high_share"), 0.0, ALL)
BALANCES: Own = ("mean λ", m.mean("opefo/lambda"), 0.0, ALL)
REGULATES: Own = ("times that the coefficient fell", m.falls("state/algorithm.regularizers.0.coefficient"), 0.0, ALL)
TRUNCATES: Own = ("mean truncation rate", m.mean("truncation_rate"), 0.02, ALL)
LENGTHS_DIFFER: Own = ("longest less mean completion, tokens", m.gap("length/max", "length/mean"), 1.0, ALL)
CRITIC_KNOWS: Own = ("largest explained variance of its values", m.largest("value/explained_variance"), 0.1, ALL)
ROUNDS: Own = ("mean gap of log-probs", m.mean("mismatch/mean"), 1e-5, ALL)
AWAY: Own = ("KL to the reference where the second stage begins", m.at("kl/penalised", STAGE_ONE + 1), 0.01, ALL)
IN_REWARD: Own = ("largest KL to the reference", m.largest("kl/reference"), 0.005, ALL)
HOLDS_BACK: Own = ("mean KL of knowledge tokens to the reference", m.mean("kl/knowledge"), 0.0, ALL)
GROWS: Own = (
    "log of last over first held-out entropy", m.ratio_log(m.last(ENTROPY), m.first(ENTROPY)), 0.2, ALL,
)  # fmt: skip


def _nears(metric: str) -> Own:
    return "log of first over last KL to the teacher", m.ratio_log(m.first(metric), m.last(metric)), 0.2, ALL


def _beyond(cap: float) -> Own:
    return "largest importance ratio", m.largest("ratio/max"), cap, ALL


SHOWS: Mapping[str, Sequence[Own]] = {
    "base": (LEARNS, ON_POLICY),
    "nsgd2": (LEARNS, OFF_POLICY),
    "nsgd4": (LEARNS, OFF_POLICY),
    "grpo8": (COLLAPSES, OFF_POLICY),
    "opefo": (BALANCES, ON_POLICY),
    "opefo_long": (BALANCES, ON_POLICY),
    "entropy_reg": (GROWS, OFF_POLICY),
    "kl0": (AWAY,), "kl": (AWAY,), "kl_strong": (AWAY,),
    "gae_kl_reward": (IN_REWARD,),
    "adaptive": (REGULATES, OFF_POLICY),
    "adaptive_one": (REGULATES, ON_POLICY),
    "short": (TRUNCATES,), "short_before": (TRUNCATES,), "short_after": (TRUNCATES,),
    "keep": (("mean share of groups without variance", m.mean("groups/zero_variance_share"), 0.0, ALL),),
    "clip25": (CLIPS_HIGH,), "clip265": (CLIPS_HIGH,), "clip28": (CLIPS_HIGH,),
    "cispo4": (_beyond(CAP),), "cispo8": (_beyond(2 * CAP),),
    "sample_mean": (LENGTHS_DIFFER,), "prompt_mean": (LENGTHS_DIFFER,),
    "opefo_static": (BALANCES,), "opefo_up": (BALANCES,), "opefo_down": (BALANCES,),
    "bf16": (ROUNDS,), "bf16_head": (ROUNDS,),
    "staged": (("mean truncation rate of its first stage", m.first("truncation_rate", 8), 0.02, ALL),),
    "few_npr": (("problems left of 64", m.last("problems/left"), NONE, 64.0),),
    "nsgd4_wide": (OFF_POLICY,),
    "off8": (OFF_POLICY, CLIPS),
    "pipeline8": (("mean lag of the last quarter", m.last_quarter("lag/mean"), 5.0, 8.01),),
    "pipeline4": (("mean lag of the last quarter", m.last_quarter("lag/mean"), 2.5, 4.01),),
    "gae": (CRITIC_KNOWS,), "gae95": (CRITIC_KNOWS,),
    "archer": (CLIPS, HOLDS_BACK), "archer_kl5": (CLIPS, HOLDS_BACK), "archer_kl0": (CLIPS,),
    **{f"archer_{clips}": (CLIPS,) for clips in ("clip0", "10_40", "20_40", "30_40", "20_20", "20_60", "mask")},
    "on_policy4": (ON_POLICY,),
    "interruption": (("mean share of interrupted completions", m.mean("interruption/share"), 0.005, 0.15),),
    "penalty": (("mean penalty of a completion", m.mean_penalty, 0.002, ALL),),
    "distill": (_nears("kl/reference_k1"),), "distill_top": (_nears("kl/top"),),
    "self_distill": (_nears("kl/reference_k1"),), "rl_hinted": (LEARNS, ON_POLICY),
    "long": (LEARNS, ON_POLICY), "long4": (LEARNS, OFF_POLICY),
}  # fmt: skip


def checks_of(arms: Sequence[str]) -> list[Check]:
    """What the arms must show, each by itself."""
    return [
        _check(arm, words, measure, above, below)
        for arm in dict.fromkeys(arms)
        for words, measure, above, below in SHOWS.get(arm, ())
    ]


def held(arm: str) -> Check:
    """That entropy falls below the adaptive controller's target in `arm`, which has none: else it has nothing to do."""
    return _check(arm, "late held-out entropy", m.late(ENTROPY), below=ADAPTIVE_TARGET)


def exceeds(arm: str, base: str) -> Check:
    """That a bonus raises entropy at all: it stays above that of `base`, which has none."""
    value = m.log_ratio(m.late(ENTROPY), arm, base)
    return Check(f"log of late held-out entropy, `{arm}` / `{base}`", value, above=0.0)


def stays(arm: str, fall: Measure) -> Check:
    """That what falls in the other arm does not fall in `arm` by itself, by as much as matters."""
    return Check(f"log of the fall of that KL in `{arm}`", m.of(fall, arm), below=0.2)


def same_run(one: Curve, other: Curve) -> bool:
    """Whether two arms made the same run: every evaluation and every gradient norm alike."""
    return all(one.series(name) == other.series(name) for name in SAME_RUN)


def untried(curves: Curves, checks: Sequence[Check]) -> str:
    """Why the curves of a seed say nothing about a claim: one line; empty where they do."""
    for one, other in combinations(sorted(curves), 2):
        if same_run(curves[one], curves[other]):
            return f"`{one}` and `{other}` made the same run"
    for check in checks:
        value = check.value(curves)
        if not check.holds(value):
            told = "not measured" if value is None else f"{value:.3g}"
            return f"{check.words}: {told}, not {check.bound}"
    return ""
