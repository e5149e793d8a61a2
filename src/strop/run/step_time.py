"""How long a step will take on this machine, before one was made: between which two numbers of seconds.

    low, high = step_seconds(config, policy, data)                     # by a model's operations, and lengths in general
    low, high = step_seconds(config, policy, data, length, seconds)    # where completions were measured
"""

from __future__ import annotations

from statistics import fmean

from strop.config.schema import RunConfig
from strop.data.dataset import Data
from strop.model.kernels import native
from strop.model.location import dtype_name
from strop.model.policy import Policy
from strop.run.accelerators import products_a_second
from strop.run.devices import seen_gpus

EFFICIENCY = 0.5  # of what matrix products reach, that those of a step reach
A_TOKEN = 5e-5  # seconds that a token takes beside its products, each time that it is drawn or trained on
MARGIN = 2.0  # by which that may be wrong, either way
MEAN_LENGTHS = (0.125, 0.5)  # of the budget, between which completions mostly are where nobody was asked


def step_seconds(
    config: RunConfig, policy: Policy, data: Data, length: float | None = None, seconds: float | None = None
) -> tuple[float, float]:
    """The least and the most that a step takes.

    Args:
        policy: the model's shapes; a dense model's operations are counted.
        length: tokens of a completion on average; None: not known.
        seconds: of a completion, among as many others as there are in training; None: by the operations too.
    """
    batch, parameters = config.batch, policy.computing_parameters
    speed = products_a_second(dtype_name(config.model)) * EFFICIENCY
    prompts = batch.prompts_per_step * fmean(len(example.prompt_ids) for example in data.train.examples[:100])
    copies = 1 if _shares_prompts(config) else batch.samples_per_prompt
    sequences = batch.prompts_per_step * batch.samples_per_prompt

    def estimated(mean: float) -> float:
        drawn = sequences * mean
        trained = (drawn + copies * prompts) * batch.passes_per_batch
        by_operations = parameters * 2.0 * (drawn + prompts) / speed + A_TOKEN * drawn
        rollout = by_operations if seconds is None else sequences * seconds
        return rollout + parameters * 6.0 * trained / speed + A_TOKEN * trained

    shortest, longest = (share * config.sampling.max_new_tokens if length is None else length for share in MEAN_LENGTHS)
    return estimated(shortest) / MARGIN, estimated(longest) * MARGIN


def _shares_prompts(config: RunConfig) -> bool:
    """Whether training computes a prompt once for all of its completions, as the kernels of a CPU do."""
    alone = config.model.cpu_kernels and config.orchestration.trainers == 1
    return alone and not seen_gpus(config) and native.load() is not None
