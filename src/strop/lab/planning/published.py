"""Runs whose times were published, in the planner's terms.

Skywork-OR1, Table 9 (arXiv 2505.22312): seconds t_R to generate the 1,024 responses of a step on 32 to 256 H800; 64
prompts × 16 samples, context 16K. The paper gives neither the lengths nor the inference engine's layout; taken here are
log-normal lengths (median 7,000, sigma 0.6, cut at 16,384) and an engine a GPU. Two constants are calibrated, on the
points of 32 and 256 GPUs: the seconds of a decode step, and those of each sequence in it; 64 and 128 are predictions.
Other medians from 5,000 to 9,000 and sigmas from 0.4 to 0.8 give other constants and the same curve within 1 %.

Table 8: t_T of the same runs on 32 H800 is 8, 10 and 12 hours per 1,000 steps with 1, 2 and 4 updates, hence 4.8 s an
update and 24 s for the tokens of a step; t_O is 16 to 18 hours.

ScaleRL (A.3): 80 GB200, 64 generators and 16 trainers, 48 prompts × 16, at most 14,336 tokens. It publishes no seconds,
so that these costs are Skywork's: what is compared is the schedule.
"""

from __future__ import annotations

from dataclasses import replace

from strop.lab.planning.costs import Costs
from strop.lab.planning.lengths import LogNormal
from strop.lab.planning.setup import Setup

SKYWORK_ROLLOUT_SECONDS = {32: 375.0, 64: 270.0, 128: 225.0, 256: 205.0}
SKYWORK_LENGTHS = LogNormal(median=7000, sigma=0.6, limit=16_384)
SKYWORK_COSTS = Costs(
    decode_step=0.0102,
    decode_sequence=6.92e-4,
    train_update=4.8,
    train_token=24.0 * 32 / (1024 * 7887),  # 7,887: the mean of SKYWORK_LENGTHS
    record_step=60.0,
)
SCALERL_LENGTHS = replace(SKYWORK_LENGTHS, limit=14_336)
SCALERL = Setup(prompts_per_step=48, samples_per_prompt=16, generators=64, trainers=16)


# What is planned with where nothing was measured or given: of a 7B model, an H800 an engine.
DEFAULTS_ARE = "calibrated on what Skywork-OR1 publishes of a 7B model on H800s (docs/plan.md); measure with --from RUN"


def default_lengths(limit: int) -> LogNormal:
    """Lengths of completions of at most `limit` tokens: Skywork's, or around half of a smaller budget."""
    return LogNormal(median=min(SKYWORK_LENGTHS.median, max(limit // 2, 1)), sigma=SKYWORK_LENGTHS.sigma, limit=limit)


def skywork_table_9(devices: int) -> tuple[Setup, Costs]:
    """The setting of Table 9 on so many GPUs: generation alone, samples spread evenly over the engines."""
    setup = Setup(64, 16, generators=devices, trainers=devices, colocated=True, assign="sample")
    rollout = Costs(decode_step=SKYWORK_COSTS.decode_step, decode_sequence=SKYWORK_COSTS.decode_sequence)
    return setup, rollout


def scalerl_costs() -> Costs:
    """Skywork's costs without what its colocated engines pay between generation and training."""
    return SKYWORK_COSTS.model_copy(update={"record_step": 0.0})
