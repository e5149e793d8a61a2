"""Tests of programs in one form, whatever the set calls them.

The reference of a code problem is one of:

    {"inputs": ["1 2\\n", …], "outputs": ["3\\n", …]}                     stdin and stdout
    {"fn_name": "add", "inputs": [[1, 2], …], "outputs": [3, …]}         a function's arguments and its result
    {"asserts": ["assert add(1, 2) == 3", …]}                            statements that must not raise
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

StandardTests = dict[str, Any]


def standard_tests(value: Any, function: str | None = None) -> StandardTests:
    """Tests as sets write them, in the form above.

    Understood are: JSON text of any of these; inputs and outputs as two lists (TACO, LiveCodeBench, Skywork-OR1), a
    list of pairs input and output (DeepCoder, Codeforces), CodeContests' struct of lists, assertions as a list or under
    `assert_case` (Skywork-OR1), a function `check(candidate)` with the name of what it checks (LeetCode, HumanEval) or
    with the call that checks it (`functional`, Archer), and any of these under `tests` beside `fn_name`.

    Args:
        value: what the set gives.
        function: the function's name where the set keeps it beside the tests.

    Raises:
        ValueError: it is none of these, or inputs and outputs are of different number.
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
        arguments = [_arguments(entry) for entry in inputs]
        return {"fn_name": function, "inputs": arguments, "outputs": [_result(entry) for entry in outputs]}
    return {"inputs": [_lines(entry) for entry in inputs], "outputs": [_lines(entry) for entry in outputs]}


def _lines(value: Any) -> str:
    """What goes through stdin or stdout: text, or a list of its lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return "\n".join(map(str, value))
    return str(value)


def _arguments(value: Any) -> list[Any]:
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

    Where the function holds assertions alone each is a test of its own, else the code is one test.
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
