"""Prediction of a run's time: a simulation by discrete events, and a bound of what any schedule can reach.

    costs = Costs(decode_step=0.01, decode_sequence=1e-3, train_token=6e-5, trainer_ranks …)
    found = simulate(Setup(prompts_per_step=48, samples_per_prompt=16, max_lag=8, generators=64), costs, LogNormal(…))
    found.mean, found.trainer_idle, settled_bound(found, costs).seconds

The lag gate in it is the loop's own (`orchestration.lag_gate`), so that what is planned is what the loop would do.
"""

from strop.lab.planning.bound import Bound, settled_bound
from strop.lab.planning.costs import ConstantLength, Costs, Lengths, LogNormal, Setup, Straggling
from strop.lab.planning.simulate import Simulation, simulate

__all__ = [
    "Bound",
    "ConstantLength",
    "Costs",
    "Lengths",
    "LogNormal",
    "Setup",
    "Simulation",
    "Straggling",
    "settled_bound",
    "simulate",
]
