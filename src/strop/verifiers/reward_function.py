"""Reward functions of the user's own, given as Python objects and run in the trainer's process.

    verifier = reward_functions([brief, exact], weights=[0.2, 1.0])

They are what `strop.train(…, reward=…)` takes. A function that a configuration file names, and that runs in processes
that can be killed, is `PythonFunction`.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from inspect import signature
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from strop.base import imports, session
from strop.base.imports import function_named
from strop.base.types import InputError, Problem, Verdict
from strop.verifiers.base import Isolation, Verifier, scored
from strop_verify.verdict import Status, shortened


class PythonFunction(Verifier):
    """Calls `function(problem, text) -> bool | float | Verdict`; `function` is written `module:name`.

    `problem` is a `strop.base.types.Problem`, whose `reference` is the answer of its row, and `text` the whole
    response. The module must have been named with `--import`. A float lies in [0, 1]. An exception, or any other
    result, is a verdict of status error: that sample leaves the loss, it is never a reward of zero.

    Fields:
        partial_credit: keep scores between 0 and 1; else anything short of 1 is worth 0.
        isolation: the processes in which it runs while training, where it may hang without harm; none: in the trainer's
            own process, for a function that keeps a state there or whose module no other process can import.
    """

    function: str
    partial_credit: bool = True
    isolation: Isolation | None = Isolation()

    def isolated(self) -> Isolation | None:
        """Its worker processes: a user's function may do anything."""
        return self.isolation

    def warm(self) -> None:
        """Import the function's module."""
        function_named(self.function)

    @field_validator("function")
    @classmethod
    def _must_take_problem_and_text(cls, function: str) -> str:
        found = function_named(function)
        try:
            given = signature(found)
        except ValueError:  # of a function that is not written in Python nothing is known
            return function
        try:
            given.bind("problem", "text")
        except TypeError as error:
            raise ValueError(
                f"{function!r} takes {given} and is called with (problem, text); define it as "
                f"def {found.__name__}(problem, text) and return a bool, a float from 0 to 1 or a Verdict"
            ) from error
        return function

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The function's result as a verdict."""
        try:
            result = function_named(self.function)(problem, text)
        except Exception as error:  # the user's code may raise anything; it becomes a verdict that says so
            where = shortened(imports.blamed(error, files=None) or str(error), 200)
            return Verdict(0.0, Status.ERROR, f"{self.function}: {where}")
        if isinstance(result, Verdict):
            return result
        result = _plain(result)
        if isinstance(result, numbers.Real | np.bool_):
            return scored(float(result), "", self.partial_credit)
        return Verdict(
            0.0, Status.ERROR, f"{self.function} returned {type(result).__name__}, not bool, float or Verdict"
        )


PROMPTS, COMPLETIONS = "prompts", "completions"
# Arguments that TRL passes and a verifier does not have.
NOT_GIVEN = ("completion_ids", "prompt_ids", "trainer_state", "log_extra", "log_metric", "environments")
Functions = Annotated[tuple[str, ...], Field(min_length=1)]
Weight = Annotated[float, Field(allow_inf_nan=False)]


class RewardFunction(Verifier):
    """The reward r = Σ_i w_i · f_i of one or more functions, which is learned from as it is (see `DirectReward`).

    Each function has one of two signatures, told apart by the names of its arguments:

        f(problem, text) -> float | bool | Verdict
        f(prompts, completions, **columns) -> list[float | None]

    The second is TRL's: it is called with lists of one; a prompt of chat messages comes with a completion of chat
    messages; the other columns of the problem are keywords, as far as the function takes them; None says that the
    function does not apply, and then it is left out of the sum.

    Functions that return a bool say what is right: where there are any, the score, by which pass rates are counted,
    is 1 if each of them says True (False where its weight is negative), else 0. Where there are none and each function
    that applies returns a number in [0, 1], it is r / Σ_i |w_i| over these, at least 0; on any other scale nothing says
    what is right: the score is 0, and the verdict is one of those that prove nothing (`Verdict.undecided`).
    An exception, or a result that is not a finite number, is a verdict of status error: that sample leaves the loss.

    Fields:
        functions: as `session.remember` names them.
        weights: w_i; none weighs all by 1.
    """

    functions: Functions
    weights: tuple[Weight, ...] = ()

    @model_validator(mode="after")
    def _a_weight_each(self) -> Self:
        if self.weights and len(self.weights) != len(self.functions):
            raise ValueError(
                f"{len(self.functions)} reward functions and {len(self.weights)} weights; give one for each, or none"
            )
        return self

    def session_functions(self) -> tuple[str, ...]:
        """All of them."""
        return self.functions

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The weighted sum; its detail says what each of several functions returned, bools as such."""
        weights = self.weights or (1.0,) * len(self.functions)
        total = whole = 0.0
        said, answers, outside = [], [], []
        for name, weight in zip(self.functions, weights, strict=True):
            try:
                value = _value(_found(name), problem, text)
            except Exception as error:  # the user's code may raise anything; it becomes a verdict that says so
                reason = f"{type(error).__name__} in {_shown(name)}: {shortened(str(error), 120)}"
                return Verdict(0.0, Status.ERROR, reason)
            if isinstance(value, Verdict):
                return value
            if value is not None:
                total += weight * value
                whole += abs(weight)
                said.append(f"{_shown(name)} {value if isinstance(value, bool) else format(value, 'g')}")
                if not 0 <= value <= 1:
                    outside.append(f"{_shown(name)} returned {value:g}")
                if isinstance(value, bool) and weight:
                    answers.append(value == (weight > 0))
        if not said:
            return Verdict(0.0, Status.ERROR, f"no reward function applies: {', '.join(map(_shown, self.functions))}")
        if outside and not answers:
            why = f"{outside[0]}, which is not in [0, 1], and no reward function returns a bool"
            return Verdict(0.0, Status.WRONG, why, reward=total, undecided="reward")
        share = max(total / whole, 0.0) if whole else 0.0
        score = float(all(answers)) if answers else share
        detail = "; ".join(said) if len(self.functions) > 1 else ""
        return Verdict(score, Status.CORRECT if score == 1 else Status.WRONG, detail, reward=total)

    def refuses(self, problem: Problem) -> str | None:
        """The first column that a function must have and that the problem lacks."""
        for name in self.functions:
            function = session.recall(name)
            if function is None:
                return f"{_shown(name)} is not in this Python session"
            absent = [column for column in _needed(function) if column not in problem.extra]
            if absent:
                has = ", ".join(problem.extra) or "none"
                return f"reward function {_shown(name)} takes the column {absent[0]!r}; the problem has {has}"
        return None


def reward_functions(functions: Sequence[Callable[..., Any]], weights: Sequence[float] = ()) -> RewardFunction:
    """The verifier that calls `functions` of this session, after it is seen that they can be called.

    Raises:
        InputError: a function takes other arguments, is asynchronous, or the weights are not one for each.
    """
    for function in functions:
        _refuse_misfit(function)
    if weights and len(weights) != len(functions):
        raise InputError(f"reward: {len(functions)} functions and {len(weights)} weights; give one for each, or none")
    if not all(math.isfinite(weight) for weight in weights):
        raise InputError(f"reward: the weights {tuple(weights)} must be finite")
    names = tuple(session.remember(function) for function in functions)
    return RewardFunction(functions=names, weights=tuple(map(float, weights)))


def _refuse_misfit(function: Callable[..., Any]) -> None:
    name = session.name_of(function)
    if inspect.iscoroutinefunction(function):
        raise InputError(f"reward: {name} is asynchronous; give a function that returns its value")
    try:
        given = inspect.signature(function)
    except ValueError:  # of a function that is not written in Python nothing is known
        return
    if takes_lists(function):
        unknown = [column for column in _needed(function) if column in NOT_GIVEN]
        if unknown:
            raise InputError(f"reward: {name} takes {unknown[0]!r}, which is not passed on; give it a default")
        return
    try:
        given.bind("problem", "text")
    except TypeError as error:
        raise InputError(
            f"reward: {name} takes {given}; define it as f(problem, text) -> float, or as TRL has it: "
            "f(prompts, completions, **columns) -> list of floats"
        ) from error


def takes_lists(function: Callable[..., Any]) -> bool:
    """Whether the function has TRL's signature: an argument called `completions`, or only keywords."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return False
    keywords_alone = all(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return COMPLETIONS in parameters or (bool(parameters) and keywords_alone)


def _needed(function: Callable[..., Any]) -> list[str]:
    """The columns without which a function of TRL's signature cannot be called."""
    if not takes_lists(function):
        return []
    return [
        name
        for name, each in inspect.signature(function).parameters.items()
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        and name not in (PROMPTS, COMPLETIONS)
    ]


def _value(function: Callable[..., Any], problem: Problem, text: str) -> float | bool | Verdict | None:
    """What the function says of a completion: a number or a bool, None, or a verdict that is not usable.

    Raises:
        TypeError, ValueError: it returns something else.
    """
    result = _called_with_lists(function, problem, text) if takes_lists(function) else function(problem, text)
    if isinstance(result, Verdict):
        return result.score if result.usable else result
    if result is None:
        return None
    result = _plain(result)
    if not isinstance(result, numbers.Real | np.bool_):
        raise TypeError(f"it returned {type(result).__name__}, not a number")
    if not math.isfinite(result):
        raise ValueError(f"it returned {result}, not a finite number")
    return bool(result) if isinstance(result, bool | np.bool_) else float(result)


def _plain(result: Any) -> Any:
    """A tensor or array of one number as that number, a decimal as a float; anything else as it is."""
    one = getattr(result, "shape", None) is not None and math.prod(result.shape) == 1
    return result.item() if one else float(result) if isinstance(result, Decimal) else result


def _called_with_lists(function: Callable[..., Any], problem: Problem, text: str) -> Any:
    """The one value that a function of TRL's signature returns for one completion."""
    chat = not isinstance(problem.prompt, str)
    every: Mapping[str, list[Any]] = {
        PROMPTS: [list(problem.prompt) if chat else problem.prompt],
        COMPLETIONS: [[{"role": "assistant", "content": text}] if chat else text],
        **{name: [value] for name, value in problem.extra.items()},
    }
    parameters = inspect.signature(function).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        every = {name: value for name, value in every.items() if name in parameters}
    result = function(**every)
    try:
        (value,) = result
    except TypeError as error:
        raise TypeError(f"it returned {type(result).__name__}, not a list of one number a completion") from error
    except ValueError as error:
        raise ValueError("it returned a list of another length than that of the completions") from error
    return value


def _found(name: str) -> Callable[..., Any]:
    function = session.recall(name)
    if function is None:
        raise LookupError("it is not in this Python session")
    return function


def _shown(name: str) -> str:
    """A function's name as its author would write it."""
    return name.rpartition(":")[2]
