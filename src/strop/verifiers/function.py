"""A verifier that is a Python function of the user's own."""

from __future__ import annotations

import numbers
from inspect import signature

import numpy as np
from pydantic import field_validator

from strop.base import imports
from strop.base.imports import function_named
from strop.base.types import Problem, Verdict
from strop.verifiers.base import Verifier, scored
from strop.verifiers.isolation import Isolation
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
        if isinstance(result, numbers.Real | np.bool_):
            return scored(float(result), "", self.partial_credit)
        return Verdict(
            0.0, Status.ERROR, f"{self.function} returned {type(result).__name__}, not bool, float or Verdict"
        )
