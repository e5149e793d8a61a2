"""Tests of programs: standard input and output, calls of a function, assertions."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

StandardTests = dict[str, Any]


def standard_tests(value: Any, function: str | None = None) -> StandardTests:
    """Tests as sets write them, in the form above.

    Understood are: JSON text of any of these; inputs and outputs as two lists (TACO, LiveCodeBench, Skywork-OR1), a
    list of pairs input and output (DeepCoder, Codeforces), CodeContests' struct of lists, assertions as a list or under
    `assert_case` (Skywork-OR1), a function `check(candidate)` with the name of what it checks (LeetCode, HumanEval) or
    with the call that checks it (`functional`, Archer), and any of these under `tests` next to `fn_name`.

    Args:
        value: what the set gives.
        function: the function's name where the set keeps it next to the tests.

    Raises:
        ValueError: it has another form, or the numbers of inputs and outputs differ.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError("the tests are not JSON") from error
    if isinstance(value, Mapping):
        # A table writes null into the keys that a row does not have.
        return _from_mapping({name: part for name, part in value.items() if part is not None}, function)
    if isinstance(value, Sequence) and all(isinstance(test, str) for test in value):
        return {"asserts": list(value)}
    if isinstance(value, Sequence) and all(isinstance(test, Mapping) for test in value):
        return _from_pairs(value, function)
    raise ValueError(f"tests of an unknown form ({type(value).__name__})")


def _from_mapping(value: Mapping[str, Any], function: str | None) -> StandardTests:
    if "tests" in value:
        return standard_tests(value["tests"], value.get("fn_name") or function)
    if "functional" in value:
        return _from_functional(str(value["functional"]))
    if "assert_case" in value or "asserts" in value:
        return {"asserts": list(value.get("asserts") or value["assert_case"])}
    if "test_code" in value:
        return _from_check(str(value["test_code"]), str(value["entry_point"]), str(value.get("import_prefix", "")))
    inputs = value.get("inputs", value.get("input"))
    outputs = value.get("outputs", value.get("output"))
    if not isinstance(inputs, Sequence) or not isinstance(outputs, Sequence) or isinstance(inputs, str):
        raise ValueError("the tests have no lists of inputs and outputs")
    return _make(list(inputs), list(outputs), value.get("fn_name") or function)


def _from_pairs(pairs: Sequence[Mapping[str, Any]], function: str | None) -> StandardTests:
    names = [str(pair["fn_name"]) for pair in pairs if pair.get("fn_name")]
    if len(set(names)) > 1:
        raise ValueError(f"tests of several functions: {', '.join(sorted(set(names)))}")
    if any("input" not in pair or "output" not in pair for pair in pairs):
        raise ValueError("a test has no input or no output")
    return _make([pair["input"] for pair in pairs], [pair["output"] for pair in pairs], names[0] if names else function)


def _make(inputs: list[Any], outputs: list[Any], function: str | None) -> StandardTests:
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs and {len(outputs)} outputs")
    if function:
        arguments = [_leetcode_arguments(entry) for entry in inputs]
        return {"fn_name": function, "inputs": arguments, "outputs": [_result(entry) for entry in outputs]}
    return {"inputs": [_lines(entry) for entry in inputs], "outputs": [_lines(entry) for entry in outputs]}


def _lines(value: Any) -> str:
    """What goes through stdin or stdout: text, or a list of its lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return "\n".join(map(str, value))
    return str(value)


def _leetcode_arguments(value: Any) -> list[Any]:
    """The arguments of a call: a list, or text with one JSON value a line (LiveCodeBench)."""
    if isinstance(value, str):
        return [_literal(line) for line in value.splitlines() if line.strip()]
    return list(value) if isinstance(value, Sequence) else [value]


def _result(value: Any) -> Any:
    """The result of a call; text is read as JSON where it is JSON."""
    return _literal(value) if isinstance(value, str) else value


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _from_check(code: str, entry_point: str, prelude: str) -> StandardTests:
    """The assertions of a function `check(candidate)` (LeetCode, HumanEval), each by itself with the name filled in.

    Raises:
        ValueError: there is no such function, or something else than assertions in it.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError("the test code is not Python") from error
    checks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not checks or any(not isinstance(statement, ast.Assert) for statement in checks[0].body):
        raise ValueError("the test code is not a function check(candidate) of assertions")
    candidate = checks[0].args.args[0].arg
    asserts = []
    for statement in checks[0].body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id == candidate:
                node.id = entry_point
        asserts.append(ast.unparse(statement))
    return {"asserts": [f"{prelude.rstrip()}\n{line}" if prelude.strip() else line for line in asserts]}


def _from_functional(code: str) -> StandardTests:
    """A function of assertions and the call that runs it on the solution, `check(Solution().f)` (Archer).

    Where the function holds only assertions each is a separate test, else the code is one test.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError("the test code is not Python") from error
    last = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
    if isinstance(last, ast.Call) and len(last.args) == 1 and not last.keywords:
        defined = [node for node in body if isinstance(node, ast.FunctionDef)]
        rest = [ast.unparse(node) for node in body[:-1] if node not in defined]
        try:
            return _from_check("\n".join(map(ast.unparse, defined)), ast.unparse(last.args[0]), "\n".join(rest))
        except ValueError:
            pass
    return {"asserts": [code]}


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
        ValueError: they have another form; the message says what is wrong.
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
    """Whether tests are in the form of a particular set: pairs, or an object without the keys above."""
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
