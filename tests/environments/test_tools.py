"""Tool calls: read strictly, answered, counted and limited; and a calculator that is no interpreter."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.base.types import Problem, Verdict
from strop.environments.base import Reply, Tool
from strop.environments.tools import Calculator, Malformed, ToolCall, ToolFailed, calculate, misfit, tool_calls
from strop_verify.verdict import Status

PROBLEM = Problem("p", "3+5=", "8")


def call(expression: object, name: str = "calculator") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'expression': expression}})}\n</tool_call>"


def test_calls_of_each_format_are_read() -> None:
    two = f"<think>{call('0')}</think>\nLet me see. {call('3+5')} and {call('1')}"
    assert tool_calls(two) == [
        ToolCall("calculator", {"expression": "3+5"}),
        ToolCall("calculator", {"expression": "1"}),
    ]
    llama = '{"name": "calculator", "parameters": {"expression": "3+5"}}'
    assert tool_calls(llama) == [ToolCall("calculator", {"expression": "3+5"})]
    assert tool_calls("It is \\boxed{8}") == [] and tool_calls('The set {"a"}') == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>{", "without </tool_call>"),
        ("</tool_call>", "without <tool_call>"),
        ("<tool_call>{}</tool_call>", '"name" and "arguments"'),
        ("<tool_call>{'name': 'x', 'arguments': {}}</tool_call>", "not JSON"),
        ('<tool_call>{"name": "x", "name": "y", "arguments": {}}</tool_call>', "a key stands twice"),
        ('<tool_call>{"name": "x", "arguments": {"n": NaN}}</tool_call>', "NaN"),
        ('<tool_call>{"name": "x", "arguments": []}</tool_call>', '"arguments" an object'),
        ('<tool_call>{"name": "x", "arguments": {}} and more</tool_call>', "not JSON"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "not JSON"),
        ('{"name": "x", "arguments": {}}', '"parameters"'),
    ],
)
def test_what_is_not_exactly_a_call_is_none(text: str, reason: str) -> None:
    [found] = tool_calls(text)
    assert isinstance(found, Malformed) and reason in found.reason


@given(st.text(alphabet='<tool_call></>{}":, name\\arguments'))
def test_no_text_breaks_the_parser(text: str) -> None:
    assert all(isinstance(found, ToolCall | Malformed) for found in tool_calls(text + "<tool_call>" + text))


def test_arguments_must_fit_the_schema() -> None:
    properties = {"n": {"type": "integer"}, "s": {"type": "string"}, "any": {}}
    tool = Tool("t", "", {"type": "object", "properties": properties, "required": ["n"]})
    assert misfit(ToolCall("t", {"n": 1, "any": None}), tool) is None
    assert misfit(ToolCall("t", {}), tool) == "t: n is missing"
    assert "integer" in str(misfit(ToolCall("t", {"n": True}), tool))
    assert "string" in str(misfit(ToolCall("t", {"n": 1, "s": 2}), tool))
    assert misfit(ToolCall("t", {"n": 1, "m": 2}), tool) == "t: there is no argument m"


def test_a_session_answers_counts_and_gives_up() -> None:
    session = Calculator(max_mistakes=2).open()
    session.reset(PROBLEM, 0)
    replies = [session.step(text) for text in (call("3+5"), call("3+"), "<tool_call>", call(3), call("1", "sin"))]
    contents = [reply.messages[0]["content"] for reply in replies if isinstance(reply, Reply)]
    assert contents[0] == "8" and "no arithmetic" in contents[1] and "error" in contents[2] and "type" in contents[3]
    assert replies[4] == Verdict(0.0, Status.UNPARSED, "more than 2 malformed tool calls", malformed_calls=1)
    assert session.step("\\boxed{8}") is None


def test_calls_beyond_those_of_a_turn_are_mistakes() -> None:
    session = Calculator(calls_per_turn=2, result_characters=3).open()
    session.reset(PROBLEM, 0)
    reply = session.step(call("12345") + call("1") + call("2"))
    assert isinstance(reply, Reply)
    first, second, third = (message["content"] for message in reply.messages)
    assert first.startswith("123 … (5 characters") and second == "1" and third.startswith("err")


@pytest.mark.parametrize(
    ("expression", "value"),
    [("345+678-123+999", "1899"), ("(3 + 4.5) * 2", "15"), ("1/3", "0.333333333333"), ("2**100", str(2**100)),
     ("-7 // 2", "-4"), ("7 % 4", "3"), ("0.1+0.2", "0.3"), ("2**-1", "0.5")],
)  # fmt: skip
def test_arithmetic(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "__import__('os')", "a", "1/0", "9**9**9", "1e400", "10**60*10**60", "1 if 1 else 2", "'a'*9", "True",
     "(" * 150, "1+" * 99 + "1" * 10, "2**0.5", "1j", "[1]"],
)  # fmt: skip
def test_what_is_no_arithmetic_fails_at_once(expression: str) -> None:
    with pytest.raises(ToolFailed):
        calculate(expression)
