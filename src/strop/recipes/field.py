"""Losses and estimators of 2025 and 2026, each as one change of the same GRPO: 32 × 8, 8 updates a step at 1e-6.

They are for comparison with each other: model, data, batch and learning rate are those of `opefo.grpo`, not of the
papers that proposed them. The threshold and β of `field.deepseek_v32` and the lengths of `field.gdpo` and
`field.dr_grpo` are a choice made here.
"""

from __future__ import annotations

from strop.recipes import Variants

BASE = "opefo.grpo"

VARIANTS: Variants = {
    "field.sapo": ("GRPO with SAPO's soft gate in place of the clip.", BASE, "algorithm.loss=Sapo"),
    "field.dppo": (
        "GRPO with DPPO's bound on the change of a token's probability.", BASE, "algorithm.loss=Dppo",
    ),
    "field.ipo": (
        "GRPO with the IPO form of DPPO: tokens that moved too far are dropped, whatever their advantage.",
        BASE, 'algorithm.loss={piece="Dppo", low=0.3, high=0.3, sides="both"}', "algorithm.loss.max_ratio=none",
    ),
    "field.kpop": (
        "GRPO with KPop's mask: tokens with too large a KL of either direction are dropped.",
        BASE, 'algorithm.loss={piece="Dppo", divergence="two_way_kl", low=0.1, high=0.1, sides="both"}',
        "algorithm.loss.max_ratio=none",
    ),
    "field.gmpo": (
        "GRPO with the geometric mean of clipped ratios (GMPO).",
        BASE, "algorithm.loss=Gmpo", "algorithm.aggregation=SampleMean",
    ),
    "field.vespo": ("GRPO with VESPO's soft weight of a whole sequence.", BASE, "algorithm.loss=Vespo"),
    "field.luspo": (
        "GSPO in which a completion counts by its length (LUSPO): the sum over tokens, not their mean.",
        BASE, "algorithm.loss=Gspo", 'algorithm.aggregation={piece="ConstantDenominator", tokens=1}',
    ),
    "field.deepseek_v32": (
        "GRPO with DeepSeek-V3.2's off-policy sequence mask and unbiased KL.",
        BASE, 'algorithm.loss={piece="OffPolicySequenceMask", threshold=0.1}',
        'algorithm.regularizers=[{piece="KlPenalty", beta=0.001, unbiased=true}]',
    ),
    "field.dr_grpo": (
        "GRPO without its two divisions, by a group's deviation and by a completion's length (Dr. GRPO).",
        BASE, "algorithm.advantage.normalization=none",
        'algorithm.aggregation={piece="ConstantDenominator", tokens=3000}',
    ),
    "field.maxrl": (
        "GRPO whose advantage is divided by the group's mean reward (MaxRL).",
        BASE, "algorithm.advantage.normalization=mean",
    ),
    "field.gdpo": (
        "GRPO with GDPO's advantage: right answers and their length are normalised apart.",
        BASE, "algorithm.advantage=Gdpo",
        'algorithm.shaping=[{piece="OverlongShaping", max_tokens=3000, buffer_tokens=600}]',
    ),
    "field.reinforce_pp_baseline": (
        "REINFORCE++ with the group's mean as baseline: centred rewards, normalised over the batch's tokens.",
        BASE, "algorithm.advantage.normalization=token_std",
    ),
    "field.vip": (
        "RLOO with VIP: the less certain a prompt's outcome, the more completions it gets; the step has as many.",
        BASE, 'algorithm.advantage={piece="GroupRelative", baseline="leave_one_out", normalization="none"}',
        "algorithm.aggregation=PromptMean", "algorithm.allocation=Vip",
    ),
}  # fmt: skip
