"""The same tensors to TRL's and verl's own losses and estimators and to ours: values and gradients side by side.

    python bench/parity.py --trl-python PYTHON --verl-python PYTHON          # prints the table
    python bench/parity.py --trl-python PYTHON --verl-python PYTHON --out docs/parity.md

Each PYTHON is the interpreter of an environment that has the peer; it is called in a process of its own
(peers/trl_losses.py, peers/verl_losses.py). All tensors are float64. Two results are equal within 1e-6. A case that
differs has a conversion of ours to theirs, after which they must be equal; without one the bench ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.algorithms.advantages import Advantage, Gdpo, GroupRelative, Outcomes
from strop.algorithms.aggregation import Aggregation, ConstantDenominator, SampleMean, TokenMean
from strop.algorithms.entropy_losses import ClipCov, KlCov, LowEntropyMask
from strop.algorithms.losses import (
    Cispo,
    Correction,
    Gspo,
    IcePop,
    PolicyLoss,
    PpoClip,
    Reinforce,
    SequenceMask,
    TokenTis,
)
from strop.algorithms.objective import Objective, UpdateContext
from strop.algorithms.proximal_losses import Dppo, Gmpo, OffPolicySequenceMask, Sapo, Vespo
from strop.algorithms.regularizers import AdaptiveEntropy, EntropyBonus, KlInReward, KlPenalty, Regularizer
from strop.algorithms.rewards import OverlongShaping
from strop.algorithms.token_types import EntropyQuantile, TokenTypes
from strop.algorithms.tokens import Tokens
from strop.algorithms.value import Gae, ValueLoss
from strop.base.types import Completion, Status, Verdict, VersionSpan
from strop.model.files import byte_tokenizer
from strop.model.head import logprob_entropy

Array = NDArray[np.float64]
Found = Mapping[str, Array]
TOLERANCE = 1e-6
ROWS, LENGTH, VOCABULARY = 8, 12, 7


@dataclass(frozen=True, eq=False)
class Batch:
    """Eight completions of up to twelve tokens; float64, [8, 12] or [8], and logits [8, 12, 7].

    `reward`, `shaped` (what shaping adds to it) and `generator` are numbers of float32, as which TRL keeps them.
    """

    columns: Mapping[str, Tensor]

    @classmethod
    def drawn(cls, seed: int = 0) -> Batch:
        """Random, with ratios on both sides of every bound, groups of four, and `alone`: groups of four, three, one."""
        random = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        logprob = -normal(ROWS, LENGTH).abs() - 0.05
        lengths = torch.tensor([12, 3, 7, 5, 9, 4, 11, 8])
        anchor = (logprob + 0.4 * normal(ROWS, LENGTH)).clamp(max=-0.01)
        anchor[0, 0], anchor[3, 1] = logprob[0, 0] - 3.5, logprob[3, 1] - 3.5  # beyond the dual clip
        value = normal(ROWS, LENGTH)
        return cls({
            "logprob": logprob, "anchor": anchor, "generator": (anchor + 0.3 * normal(ROWS, LENGTH)).float().double(),
            "reference": logprob + 0.5 * normal(ROWS, LENGTH), "entropy": normal(ROWS, LENGTH).abs(),
            "advantage": torch.tensor([1.2, -0.4, 0.0, -0.8, 0.9, 0.3, -1.1, -0.1], dtype=torch.float64),
            "reward": torch.tensor([1.0, 0.0, 0.25, 0.0, 1.0, 1.0, 0.5, 0.75], dtype=torch.float64),
            "shaped": torch.tensor([0.0, -0.5, -0.25, 0.0, -1.0, 0.0, -0.5, -0.5], dtype=torch.float64),
            "group": torch.tensor([0.0] * 4 + [1.0] * 4, dtype=torch.float64),
            "alone": torch.tensor([0.0] * 4 + [1.0] * 3 + [2.0], dtype=torch.float64),
            "value": value, "predicted": value + 0.5 * normal(ROWS, LENGTH), "target": normal(ROWS, LENGTH),
            "logits": normal(ROWS, LENGTH, VOCABULARY),
            "mask": (torch.arange(LENGTH) < lengths[:, None]).double(),
        })  # fmt: skip

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    @property
    def chosen(self) -> Tensor:
        """bool [8, 12]: the tokens there are."""
        return self["mask"] > 0

    @property
    def lengths(self) -> NDArray[np.int32]:
        """int32 [8]."""
        return self["mask"].sum(-1).numpy().astype(np.int32)

    def spread(self, values: Tensor) -> Array:
        """Values of the tokens there are, [M, ...], at their places, 0 elsewhere."""
        whole = torch.zeros(ROWS, LENGTH, *values.shape[1:], dtype=torch.float64)
        whole[self.chosen] = values.detach().double()
        return whole.numpy()

    def tokens(self, aggregation: Aggregation, correction: Correction | None) -> Tokens:
        """Its tokens as an update has them."""
        at = self.chosen
        row, position = at.nonzero(as_tuple=True)
        weight = torch.from_numpy(aggregation(self.lengths, self["group"].long().numpy().astype(np.int32)))
        gap = (self["anchor"] - self["generator"])[at]
        return Tokens(
            row, position, row, torch.zeros_like(row), self["generator"][at], self["anchor"][at],
            self["advantage"][row], weight.double()[row], None if correction is None else correction(gap, row),
            old_entropy=self["entropy"][at], scored_logprob=self["logprob"][at], scored_entropy=self["entropy"][at],
            reference_logprob=self["reference"][at], value=self["value"][at], value_target=self["target"][at],
        )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One piece that both sides have.

    Attributes:
        name: ours, by its piece.
        peer: `TRL` or `verl`.
        theirs: the peer's name for it.
        call: what the worker computes.
        ours: the same from our code.
        why: where they differ, the reason, and who follows the paper.
        converted: ours made theirs by that reason.
    """

    name: str
    peer: str
    theirs: str
    call: Mapping[str, Any]
    ours: Callable[[Batch], Found]
    why: str = ""
    converted: Callable[[Batch, Found], Found] | None = None


def objective(
    loss: PolicyLoss, aggregation: Aggregation, regularizer: Regularizer | None = None,
    types: TokenTypes | None = None, correction: Correction | None = None, entropic: bool = False,
) -> Callable[[Batch], Found]:
    """The objective of an update and its gradients; with `entropic` also those of the entropy."""

    def compute(batch: Batch) -> Found:
        whole = Objective(loss, {} if regularizer is None else {"r": regularizer}, types)
        tokens = whole.prepare(batch.tokens(aggregation, correction), UpdateContext())
        logprob, entropy = (batch[name][batch.chosen].requires_grad_() for name in ("logprob", "entropy"))
        value, _ = whole(tokens, logprob, entropy, UpdateContext())
        by_logprob, by_entropy = torch.autograd.grad(value, (logprob, entropy), allow_unused=True)
        found = {"value": value.detach().numpy(), "gradient": batch.spread(by_logprob)}
        return found | {"entropy gradient": batch.spread(by_entropy)} if entropic and by_entropy is not None else found

    return compute


class Nothing(PolicyLoss):
    """A loss of 0, for a regularizer without one."""

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return 0 * logprob, {}


def correction(piece: Correction) -> Callable[[Batch], Found]:
    """The factor of each token for the generator's mismatch."""

    def compute(batch: Batch) -> Found:
        factor = batch.tokens(TokenMean(), piece).correction
        assert factor is not None
        return {"factor": batch.spread(factor)}

    return compute


def outcomes(batch: Batch, groups: str, shaped: bool) -> Outcomes:
    """The completions as estimators take them."""
    rows = range(ROWS)
    values = tuple(batch["value"][i][batch.chosen[i]].numpy() for i in rows)
    group, parts = batch[groups].numpy().astype(np.int32), (batch["shaped"].numpy(),) if shaped else ()
    reward = sum(parts, batch["reward"].numpy())
    return Outcomes(reward, group, batch.lengths, np.ones(ROWS, np.bool_), values=values, shaped=parts)  # type: ignore[arg-type]


def estimated(piece: Advantage, groups: str = "group", returns: bool = False) -> Callable[[Batch], Found]:
    """The advantages of an estimator, or a critic's targets; rewards have two parts where it tells them apart."""

    def compute(batch: Batch) -> Found:
        given = outcomes(batch, groups, shaped=isinstance(piece, Gdpo))
        found = piece.returns(given) if returns and isinstance(piece, Gae) else piece(given)
        return {"advantage": batch.spread(torch.from_numpy(np.concatenate(found)))}

    return compute


def value_loss(batch: Batch) -> Found:
    """The critic's loss and its gradient."""
    predicted = batch["predicted"][batch.chosen].requires_grad_()
    loss, _ = ValueLoss()(batch.tokens(TokenMean(), None), predicted, predicted, UpdateContext())
    return {"value": loss.detach().numpy(), "gradient": batch.spread(torch.autograd.grad(loss, predicted)[0])}


def mean_entropy(batch: Batch) -> Found:
    """The mean entropy that the head computes from logits, and its gradient."""
    logits = batch["logits"][batch.chosen].requires_grad_()
    target = torch.zeros(len(logits), dtype=torch.int64)
    _, entropy = logprob_entropy(logits, torch.eye(VOCABULARY).double(), None, target, 1.0, 64, True)
    loss = entropy.mean()
    return {"value": loss.detach().numpy(), "gradient": batch.spread(torch.autograd.grad(loss, logits)[0])}


def kl_in_reward(batch: Batch) -> Found:
    """The rewards of tokens."""
    piece = KlInReward(beta=0.1)
    return {"reward": batch.spread(torch.from_numpy(piece(
        batch["anchor"][batch.chosen].numpy(), batch["reference"][batch.chosen].numpy()  # type: ignore[arg-type]
    )))}  # fmt: skip


def overlong(batch: Batch) -> Found:
    """The shaping of each completion's reward."""
    shaping = OverlongShaping(max_tokens=11, buffer_tokens=6)
    found = []
    for length in batch.lengths.tolist():
        ids, zeros = np.ones(length, np.int32), np.zeros(length, np.float32)
        spans = (VersionSpan(0, 0, length),)
        completion = Completion("", 0, ids, ids, zeros, spans, np.zeros(length, np.bool_), "", "stop")
        found.append(shaping(completion, Verdict(1.0, Status.CORRECT)))
    return {"reward": np.array(found)}


ENTROPIES = (0.5, 0.1, 0.15, 0.3, 0.1)


def adaptive(batch: Batch) -> Found:
    """The bonus that each step applies, and the coefficient it leaves."""
    piece = AdaptiveEntropy(start=0.01, target=0.2, delta=0.005, maximum=1.0)
    state = {"coefficient": 0.01, "active": False, "entropy": None}  # TRL's gate is shut at the start
    applied, kept = [], []
    for entropy in ENTROPIES:
        applied.append(state["coefficient"] if state["active"] else 0.0)
        state = dict(piece.update(state, {"entropy/sampled": entropy}))
        kept.append(state["coefficient"])
    return {"applied": np.array(applied), "coefficient": np.array(kept)}


def bessel(batch: Batch, found: Found) -> Found:
    """Normalised by the unbiased variance of the tokens instead of the biased one."""
    tokens = int(batch.lengths.sum())
    return {"advantage": found["advantage"] * math.sqrt((tokens - 1) / tokens)}


def over_tokens(batch: Batch, found: Found) -> Found:
    """Normalised over tokens instead of completions."""
    values = torch.from_numpy(found["advantage"])[batch.chosen]
    return {"advantage": batch.spread((values - values.mean()) / (values.var() + 1e-8).sqrt())}


def singles_keep(batch: Batch, found: Found) -> Found:
    """The reward of a group of one as its advantage."""
    alone = np.bincount(batch["alone"].long().numpy())[batch["alone"].long().numpy()] == 1
    kept = batch["reward"].numpy()[:, None] * batch["mask"].numpy()
    return {"advantage": np.where(alone[:, None], kept, found["advantage"])}


def std_of_rewards(batch: Batch, found: Found) -> Found:
    """Divided by the standard deviation of the rewards instead of that of the centred ones."""
    rewards = batch["reward"].numpy()
    centred = rewards - np.repeat(rewards.reshape(-1, 4).mean(1), 4)
    return {"advantage": found["advantage"] * (centred.std(ddof=1) + 1e-4) / (rewards.std(ddof=1) + 1e-4)}


BESSEL = "verl divides the variance by n − 1 tokens, ours by n, as Open-Reasoner-Zero's code does"
SINGLE = "the only completion of a prompt keeps its reward in verl and has advantage 0 here: nothing to compare it with"
LAST = "verl normalises the sum of the parts over tokens, ours over completions, as the paper and TRL"
MEAN, SEQUENCES, CONSTANT = TokenMean(), SampleMean(), ConstantDenominator(tokens=LENGTH)


def of_verl(label: str, theirs: str, ours: Callable[[Batch], Found], call: str, **more: Any) -> Case:
    """A case of verl's; what `Case` does not have is the worker's."""
    kept = {key: more.pop(key) for key in ("why", "converted") if key in more}
    return Case(label, "verl", theirs, {"call": call, **more}, ours, **kept)


def verl_policy(
    piece: PolicyLoss, theirs: str, mode: str = "token-mean", aggregation: Aggregation = MEAN,
    covariance: Mapping[str, Any] | None = None, **actor: Any,
) -> Case:  # fmt: skip
    """A policy loss of verl's registry."""
    label = f"{piece.piece_name()}, {aggregation.piece_name()}"
    ours = objective(piece, aggregation)
    return of_verl(label, theirs, ours, "policy", name=theirs, mode=mode, actor=actor, covariance=covariance or {})


def verl_advantage(
    piece: Advantage, theirs: str, label: str, groups: str = "group", returns: bool = False,
    given: Mapping[str, Any] | None = None, **more: Any,
) -> Case:  # fmt: skip
    """An estimator of verl's registry."""
    return of_verl(label, theirs, estimated(piece, groups, returns), "advantage", name=theirs, groups=groups,
                   returns=returns, more=given or {}, **more)  # fmt: skip


def of_trl(label: str, theirs: str, ours: Callable[[Batch], Found], call: str = "loss", **more: Any) -> Case:
    """A case of TRL's."""
    kept = {key: more.pop(key) for key in ("why", "converted") if key in more}
    return Case(label, "TRL", theirs, {"call": call, **more}, ours, **kept)


def trl_loss(
    name: str, theirs: str, piece: PolicyLoss, aggregation: Aggregation, regularizer: Regularizer | None = None,
    types: TokenTypes | None = None, kind: str = "grpo", **config: Any,
) -> Case:  # fmt: skip
    """The loss of a trainer of TRL's."""
    ours = objective(piece, aggregation, regularizer, types, entropic=isinstance(regularizer, EntropyBonus))
    return of_trl(name, theirs, ours, config=config, kind=kind)


GAE = Gae(gamma=0.99, lam=0.95)
ADAPTIVE: dict[str, Any] = {
    "use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 0.2, "entropy_coef_delta": 0.005,
    "loss_type": "bnpo",
}  # fmt: skip
DPPO: dict[str, Any] = {"clip_ratio_low": 0.15, "clip_ratio_high": 0.1, "clip_ratio_c": 20.0}

VERL = (
    verl_policy(PpoClip(dual_clip=3.0, clip_high=0.28), "vanilla", clip_ratio_high=0.28),
    verl_policy(PpoClip(dual_clip=3.0), "vanilla", "seq-mean-token-mean", SEQUENCES),
    verl_policy(PpoClip(dual_clip=3.0), "vanilla", "seq-mean-token-sum-norm", CONSTANT),
    verl_policy(Gspo(clip_low=0.03, clip_high=0.04), "gspo", "seq-mean-token-mean", SEQUENCES,
                clip_ratio_low=0.03, clip_ratio_high=0.04),
    verl_policy(Cispo(max_ratio=1.3), "cispo", clip_ratio_low=1.0, clip_ratio_high=0.3),
    verl_policy(Reinforce(), "gpg"),
    verl_policy(Sapo(), "sapo", "seq-mean-token-mean", SEQUENCES),
    verl_policy(Dppo(low=0.15, high=0.1), "dppo_tv", **DPPO),
    verl_policy(Dppo(divergence="kl", low=0.15, high=0.1), "dppo_kl", **DPPO),
    verl_policy(Gmpo(), "geo_mean", "seq-mean-token-mean", SEQUENCES, clip_ratio_low=0.4, clip_ratio_high=0.4),
    verl_policy(ClipCov(share=1.0, low=0.1, high=1.0, clip_low=0.2, clip_high=0.2), "clip_cov",
                covariance={"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 1.0}),
    verl_policy(KlCov(share=0.1), "kl_cov", covariance={"kl_cov_ratio": 0.1, "ppo_kl_coef": 1.0}),
    *(
        of_verl(f"KlPenalty, {kind}", f"kl_penalty {kind}", objective(
            Nothing(), MEAN, KlPenalty(beta=1.0, estimator=kind)), "kl", kind=kind, mode="token-mean")
        for kind in ("k1", "k2", "k3")
    ),
    of_verl("KlInReward", "compute_rewards", kl_in_reward, "kl_in_reward", beta=0.1),
    of_verl("ValueLoss", "compute_value_loss", value_loss, "value", clip=0.2),
    of_verl("the head's entropy", "compute_entropy_loss", mean_entropy, "entropy"),
    of_verl("TokenTis", "rollout_is token", correction(TokenTis(cap=1.3)), "factor", level="token", threshold=1.3),
    of_verl("IcePop", "rollout_is token, two bounds", correction(IcePop(low=0.8, high=1.4)), "factor",
            level="token", threshold="0.8_1.4"),
    of_verl("SequenceMask, product", "rollout_is sequence, two bounds", correction(
        SequenceMask(low=0.5, high=2.0, ratio="product", factor="sequence")), "factor", level="sequence",
        threshold="0.5_2.0"),
    of_verl("SequenceMask, geometric", "rollout_rs seq_mean_k1", correction(SequenceMask(low=1 / 1.1, high=1.1)),
            "kept", rule="seq_mean_k1", threshold=f"{1 / 1.1}_1.1"),
    verl_advantage(GroupRelative(), "grpo", "GroupRelative, prompt_std", "alone"),
    verl_advantage(GroupRelative(normalization="none"), "grpo", "GroupRelative, none", "alone",
                   given={"norm_adv_by_std_in_grpo": False}, why=SINGLE, converted=singles_keep),
    verl_advantage(GroupRelative(baseline="leave_one_out", normalization="none"), "rloo_vectorized",
                   "GroupRelative, leave_one_out", "alone"),
    verl_advantage(GroupRelative(baseline="leave_one_out", normalization="none"), "rloo",
                   "GroupRelative, leave_one_out", "alone", why=SINGLE + "; verl's `rloo_vectorized` agrees with ours",
                   converted=singles_keep),
    verl_advantage(GroupRelative(normalization="token_std", eps=1e-8), "reinforce_plus_plus_baseline",
                   "GroupRelative, token_std", why=BESSEL, converted=bessel),
    verl_advantage(Gdpo(), "gdpo", "Gdpo", why=LAST, converted=over_tokens),
    verl_advantage(GAE, "gae", "Gae", given={"gamma": 0.99, "lam": 0.95}, why=BESSEL, converted=bessel),
    verl_advantage(GAE, "gae", "Gae, returns", returns=True, given={"gamma": 0.99, "lam": 0.95}),
)  # fmt: skip

CLIP = PpoClip(clip_high=0.28)
HIGHER: dict[str, Any] = {"epsilon": 0.2, "epsilon_high": 0.28}
TRL = (
    trl_loss("PpoClip, SampleMean", "loss_type grpo", CLIP, SEQUENCES, loss_type="grpo", **HIGHER),
    trl_loss("PpoClip, TokenMean", "loss_type dapo", CLIP, MEAN, loss_type="dapo", **HIGHER),
    trl_loss("PpoClip, ConstantDenominator", "loss_type dr_grpo", CLIP, CONSTANT, loss_type="dr_grpo", **HIGHER),
    trl_loss("PpoClip with dual_clip", "delta", PpoClip(dual_clip=3.0), MEAN, loss_type="bnpo", delta=3.0),
    trl_loss("Cispo", "loss_type cispo", Cispo(max_ratio=1.3), MEAN, loss_type="cispo", epsilon_high=1.3),
    trl_loss("Gspo", "importance_sampling_level sequence", Gspo(clip_low=0.03, clip_high=0.04), SEQUENCES,
             loss_type="grpo", importance_sampling_level="sequence", epsilon=0.03, epsilon_high=0.04),
    trl_loss("Gspo, ConstantDenominator of 1", "loss_type luspo", Gspo(clip_low=0.03, clip_high=0.04),
             ConstantDenominator(tokens=1), loss_type="luspo", importance_sampling_level="sequence", epsilon=0.03,
             epsilon_high=0.04),
    trl_loss("Sapo", "loss_type sapo", Sapo(), SEQUENCES, loss_type="sapo"),
    trl_loss("Vespo", "loss_type vespo", Vespo(), MEAN, loss_type="vespo"),
    trl_loss("Gmpo", "GMPOTrainer", Gmpo(), SEQUENCES, kind="gmpo", epsilon=0.4, epsilon_high=0.4),
    trl_loss("OffPolicySequenceMask", "off_policy_mask_threshold", OffPolicySequenceMask(threshold=0.05), MEAN,
             loss_type="bnpo", off_policy_mask_threshold=0.05),
    trl_loss("LowEntropyMask", "top_entropy_quantile", LowEntropyMask(), MEAN,
             types=EntropyQuantile(scope="batch"), loss_type="bnpo", top_entropy_quantile=0.2),
    trl_loss("KlPenalty, k3", "beta", PpoClip(), MEAN, KlPenalty(beta=0.1, clamp=None), loss_type="bnpo", beta=0.1,
             use_bias_correction_kl=False),
    trl_loss("KlPenalty, unbiased", "use_bias_correction_kl", PpoClip(), MEAN,
             KlPenalty(beta=0.1, clamp=None, unbiased=True), loss_type="bnpo", beta=0.1, use_bias_correction_kl=True),
    trl_loss("EntropyBonus", "entropy_coef", PpoClip(), MEAN, EntropyBonus(coefficient=0.03), loss_type="bnpo",
             entropy_coef=0.03),
    of_trl("AdaptiveEntropy", "use_adaptive_entropy", adaptive, "adaptive", config=ADAPTIVE, entropies=ENTROPIES),
    of_trl("TokenTis", "token_truncate", correction(TokenTis(cap=1.3)), "factor", mode="token_truncate", low=None,
           high=1.3),
    of_trl("IcePop", "token_mask", correction(IcePop(low=0.8, high=1.4)), "factor", mode="token_mask", low=0.8,
           high=1.4),
    of_trl("SequenceMask, product", "sequence_mask", correction(
        SequenceMask(low=None, high=2.0, ratio="product", factor="sequence")), "factor", mode="sequence_mask",
        low=None, high=2.0),
    of_trl("GroupRelative, prompt_std", "scale_rewards group", estimated(GroupRelative(eps=1e-4)), "advantage",
           config={"scale_rewards": "group"}),
    of_trl("GroupRelative, batch_std", "scale_rewards batch", estimated(
        GroupRelative(normalization="batch_std", eps=1e-4)), "advantage", config={"scale_rewards": "batch"},
        why="TRL divides by the standard deviation of the rewards (as 2508.08221), ours by that of the centred "
            "rewards, as ScaleRL's Â_std", converted=std_of_rewards),
    of_trl("GroupRelative, none", "scale_rewards none", estimated(GroupRelative(normalization="none")), "advantage",
           config={"scale_rewards": "none"}),
    of_trl("GroupRelative, leave_one_out", "RLOOTrainer", estimated(
        GroupRelative(baseline="leave_one_out", normalization="none")), "advantage",
        config={"normalize_advantages": False, "beta": 0.0}, kind="rloo"),
    of_trl("Gdpo", "multi_objective_aggregation normalize_then_sum", estimated(Gdpo(eps=1e-4)), "advantage",
           config={"multi_objective_aggregation": "normalize_then_sum"}, rewards=["reward", "shaped"]),
    of_trl("OverlongShaping", "get_soft_overlong_punishment", overlong, "overlong", longest=11, buffer=6),
)  # fmt: skip
CASES = (*TRL, *VERL)


def asked(python: Path, script: str, cases: Mapping[str, Any], batch: Batch, folder: Path) -> dict[str, Any]:
    """What a peer finds, with the model in `folder`: its version and its results by case."""
    tensors = {name: column.tolist() for name, column in batch.columns.items()}
    done = subprocess.run(
        [str(python), str(Path(__file__).parent / "peers" / script), str(folder)], capture_output=True, text=True,
        input=json.dumps({"tensors": tensors, "cases": cases}),
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{python} {script} failed:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def difference(ours: Found, theirs: Mapping[str, Any]) -> float:
    """The largest difference between two results, over all their tensors."""
    if ours.keys() != theirs.keys():
        raise SystemExit(f"results of other names: {sorted(ours)} and {sorted(theirs)}")
    return max(float(np.abs(value - np.array(theirs[name])).max()) for name, value in ours.items())


@dataclass(frozen=True)
class Compared:
    """A case, its difference, and what is left of it after the conversion (the difference itself without one)."""

    case: Case
    before: float
    after: float

    @property
    def unexplained(self) -> bool:
        """Whether they differ for no reason given, or agree where a reason is given."""
        return not self.after <= TOLERANCE or (self.before <= TOLERANCE) != (self.case.converted is None)


def compared(case: Case, batch: Batch, theirs: Mapping[str, Any]) -> Compared:
    """Ours against the peer's result."""
    ours = case.ours(batch)
    before = difference(ours, theirs)
    return Compared(case, before, before if case.converted is None else difference(case.converted(batch, ours), theirs))


def bound(value: float) -> str:
    """The power of ten that a difference stays below, as a page shows it."""
    return f"1e{math.ceil(math.log10(max(value, 1e-15)))}"


def page(results: list[Compared], versions: Mapping[str, str]) -> str:
    """docs/parity.md."""
    equal = sum(result.before <= TOLERANCE for result in results)
    lines = [
        "# The same numbers as TRL and verl", "",
        f"TRL {versions['TRL']} and verl {versions['verl']} got the same float64 tensors as strop: "
        f"{equal} of {len(results)} results are equal within 1e-6, gradients included. Each of the others is",
        "equal after one conversion, which is named. Settings on each side are chosen to mean the same. What is",
        "left is float32: of our weights and advantages, and of TRL's rewards. The command:", "", "```",
        "python bench/parity.py --trl-python PYTHON --verl-python PYTHON --out docs/parity.md", "```", "",
        "| here | there | difference below |", "| --- | --- | --- |",
    ]  # fmt: skip
    for result in results:
        case = result.case
        how = bound(result.before) if case.converted is None else f"{bound(result.after)} once converted: {case.why}"
        lines.append(f"| {case.name} | {case.peer} `{case.theirs}` | {how} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", type=Path, required=True)
    parser.add_argument("--verl-python", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="the page to write")
    given = parser.parse_args()
    from common import model_of  # imports transformers

    batch = Batch.drawn()
    results, versions = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model_of("tiny", torch.float32, "cpu").save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
        for peer, cases, python, script in (
            ("TRL", TRL, given.trl_python, "trl_losses.py"), ("verl", VERL, given.verl_python, "verl_losses.py"),
        ):  # fmt: skip
            answer = asked(python, script, {str(i): case.call for i, case in enumerate(cases)}, batch, folder)
            versions[peer] = answer["version"]
            results += [compared(case, batch, answer["found"][str(i)]) for i, case in enumerate(cases)]
    text = page(results, versions)
    print(text)
    if given.out is not None:
        given.out.write_text(text)
    wrong = [f"{r.case.name} and {r.case.peer} {r.case.theirs}: {r.before:.1e}" for r in results if r.unexplained]
    if wrong:
        sys.exit("\n".join(["unexplained:", *wrong]))


if __name__ == "__main__":
    main()
