"""Tests of programs: standard input and output, calls of a function, assertions."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strop_verify.code.forms import standard_tests

Kind = Literal["stdio", "call", "assert"]


@dataclass(frozen=True)
class Tests:
    """Tests of one kind.

    Attributes:
        kind: how the program is tested.
        inputs: `stdio`: texts; `call`: lists of arguments; `assert`: the snippets.
        outputs: what is expected of each; empty for `assert`.
        function: the name to call, for `call`.
    """

    kind: Kind
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...] = ()
    function: str = ""

    def __len__(self) -> int:
        return len(self.inputs)


def read_tests(given: Any) -> Tests:
    """Tests as data sets write them.

        {"inputs": ["1 2\\n"], "outputs": ["3\\n"]}                          standard input and output
        {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}              calls
        {"asserts": ["assert add(1, 2) == 3"]}  or a list of such texts     assertions

    Other forms that sets have are those of `forms.standard_tests`. A text is read as JSON. Lines of a standard input
    may be a list of texts; arguments may be a text with one JSON value a line.

    Raises:
        ValueError: they are none of these; says what is wrong.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"tests that are a text must be JSON ({error})") from error
    if _is_foreign(given):
        try:
            given = standard_tests(given)
        except (KeyError, TypeError, AttributeError, IndexError) as error:  # a part of a known form is absent
            raise ValueError(f"tests of a known form lack a part of it ({type(error).__name__}: {error})") from error
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = {"asserts": given}
    if not isinstance(given, Mapping):
        raise ValueError(f"tests must be an object or a list of assertions, not {type(given).__name__}")
    if "asserts" in given:
        return Tests("assert", _assertions(given["asserts"]))
    inputs, outputs = _listed(given, "inputs"), _listed(given, "outputs")
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs and {len(outputs)} outputs")
    if not inputs:
        raise ValueError("there are no tests")
    name = given.get("fn_name")
    if name is None:
        return Tests("stdio", tuple(map(_text, inputs)), tuple(map(_text, outputs)))
    if not isinstance(name, str) or not name.rpartition(".")[2].removesuffix("()").isidentifier():
        raise ValueError(f"fn_name must be the name of a function, not {name!r}")
    return Tests("call", tuple(map(_arguments, inputs)), tuple(outputs), name)


def _is_foreign(given: Any) -> bool:
    """Whether tests are in a form of a set of its own: pairs, or an object without the keys above."""
    if isinstance(given, Mapping):
        return not given.keys() & {"asserts", "inputs"} or given.get("inputs", 0) is None
    return isinstance(given, list | tuple) and bool(given) and all(isinstance(test, Mapping) for test in given)


def _assertions(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(snippet, str) for snippet in given):
        raise ValueError("asserts must be a list of texts")
    if not given:
        raise ValueError("there are no tests")
    for number, snippet in enumerate(given, start=1):
        try:
            ast.parse(snippet)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"assertion {number} is no Python ({error})") from error
    return tuple(given)


def _listed(given: Mapping[str, Any], name: str) -> list[Any]:
    value = given.get(name)
    if not isinstance(value, list | tuple):
        raise ValueError(f"tests need {name!r}, a list")
    return list(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise ValueError(f"an input or output must be a text or a list of lines, not {type(value).__name__}")


def _arguments(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str):
        try:
            return [json.loads(line) for line in value.split("\n") if line.strip()]
        except (ValueError, RecursionError) as error:
            raise ValueError(f"arguments that are a text must be JSON, one a line ({error})") from error
    raise ValueError(f"arguments must be a list, not {type(value).__name__}")
