"""The reward that a user gives in Python, as the verifier or the environment that a configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from strop.base import imports, session
from strop.base.types import InputError, Verdict
from strop.config.edits import explain
from strop.environments.base import Environment
from strop.environments.outside import OutsideClass
from strop.verifiers.base import Verifier
from strop.verifiers.combined import WeightedSum
from strop.verifiers.reward_function import RewardFunction, reward_functions

# f(problem, text) -> float, bool or Verdict; or f(prompts, completions, **columns) -> list of floats, as TRL has it.
RewardCallable = Callable[..., float | bool | Verdict | Sequence[float | None] | None]
One = RewardCallable | Verifier
# One, several of weight 1, or several with their weights (a mapping of One; a narrower type would refuse most of them);
# or an environment, its class, or a class in TRL's shape.
Reward = One | Sequence[One] | Mapping[Any, float] | Environment | type


def environment_of(reward: Reward) -> Environment | None:
    """The environment that gives this reward; None where it is of another kind.

    A class that is no `Environment` and has a method `reset` is taken for one in TRL's shape (see `OutsideClass`).

    Raises:
        InputError: its settings are missing, it has no public method that could be a tool, or it cannot be found again
            by its name.
    """
    if not isinstance(reward, type):
        return reward if isinstance(reward, Environment) else None
    try:
        if issubclass(reward, Environment):
            return reward()
        if not hasattr(reward, "reset"):
            return None
        imports.allow_module(reward.__module__)
        return OutsideClass(cls=f"{reward.__module__}:{reward.__qualname__}")
    except ValidationError as error:
        raise InputError(f"reward: {reward.__name__}: {explain(error)}") from error


def verifier_of(reward: Reward) -> Verifier:
    """The verifier that gives this reward.

    Functions alone make a `RewardFunction`, whose weighted sum is the reward as it is. Where verifiers are among them
    it is a `WeightedSum`, and every score lies in [0, 1].

    Raises:
        InputError: it is nothing of the kind, or a function cannot be called as a reward.
    """
    if isinstance(reward, Verifier):
        return reward
    if isinstance(reward, Mapping):
        parts, weights = list(reward), [float(weight) for weight in reward.values()]
    else:
        parts, weights = list(reward) if isinstance(reward, Sequence) else [reward], []
    if not parts:
        raise InputError("reward: give at least one function or verifier")
    for part in parts:
        if not (isinstance(part, Verifier) or callable(part)) or isinstance(part, type):
            raise InputError(
                f"reward: {part!r:.60} is neither a function nor a verifier; define f(problem, text) -> float "
                "(several: [f, g], and with weights {f: 0.2, g: 1.0}), or give an environment's class alone"
            )
    functions = [part for part in parts if not isinstance(part, Verifier)]
    if len(functions) == len(parts):
        return reward_functions(functions, weights)
    members = tuple(part if isinstance(part, Verifier) else reward_functions([part]) for part in parts)
    if weights and min(weights) <= 0:
        raise InputError(f"reward: beside verifiers every weight must be above 0, not {min(weights):g}")
    return WeightedSum(members=members, weights=tuple(weights))


def under_stored_names(reward: Verifier, stored: Mapping[str, Any]) -> Verifier:
    """`reward`, its functions under the names that a run's stored verifier has for them where they are called alike.

    A session numbers lambdas and inner functions as they come, so that the same one may have another number now. A
    function that is called otherwise is another, and keeps its own name.
    """
    names = stored.get("functions", ())
    if not isinstance(reward, RewardFunction) or [*map(_unnumbered, names)] != [*map(_unnumbered, reward.functions)]:
        return reward
    found = [session.recall(name) for name in reward.functions]  # before any name changes its function
    for name, function in zip(names, found, strict=True):
        assert function is not None  # `reward_functions` has just remembered it
        session.bind(name, function)
    return reward.model_copy(update={"functions": tuple(names)})


def _unnumbered(name: str) -> str:
    return name.partition("#")[0]
