"""A calculator as a tool: exact arithmetic on what the policy writes, which is parsed and never evaluated."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from strop.base.types import Problem
from strop.environments.base import Tool
from strop.environments.tools import ToolEnvironment, ToolFailed, Tools

LONGEST = 200  # characters of an expression
LARGEST = 10**60  # of a number on the way
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


class Calculator(ToolEnvironment):
    """One tool, `calculator`, of one argument, `expression`: + - * / // % ** and brackets over decimal numbers."""

    @property
    def inline(self) -> bool:
        """Every call is bounded."""
        return True

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The calculator."""
        expression = {"type": "string", "description": "such as (3 + 4.5) * 2"}
        parameters = {"type": "object", "properties": {"expression": expression}, "required": ["expression"]}
        return (Tool("calculator", "Computes an arithmetic expression exactly.", parameters),)

    def open_tools(self, problem: Problem, seed: int) -> Tools:
        """A calculator has no state."""
        return _Calculator()


class _Calculator(Tools):
    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The value of the expression."""
        return calculate(arguments["expression"])


def calculate(expression: str) -> str:
    """The value of an expression: exact where it is whole, else a decimal of twelve digits.

    Raises:
        ToolFailed: it is no arithmetic, divides by zero, or becomes too large.
    """
    if len(expression) > LONGEST:
        raise ToolFailed(f"an expression has at most {LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolFailed(f"{expression[:40]!r} is no arithmetic expression") from error
    except ZeroDivisionError as error:
        raise ToolFailed("division by zero") from error
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.12g}"


def _value(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _OPERATORS:
            return _bounded(Fraction(_OPERATORS[type(node.op)](left, right)))
    raise ValueError


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > 200:
        raise ToolFailed("an exponent is a whole number up to 200")
    return _bounded(Fraction(base**exponent))


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) > LARGEST:
        raise ToolFailed("a number is too large")
    return value
