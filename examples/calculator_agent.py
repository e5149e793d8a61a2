"""An agent that knows nothing of strop: OpenAI's client, a tool, an address and a key. It is trained as it is.

    pip install openai
    strop train quickstart.calculator --import examples/calculator_agent.py \\
        --set environment=Agent --set environment.function=calculator_agent:solve

Each sample calls `solve` once; its requests are the turns of one trajectory, and what it returns is the score.
"""

from __future__ import annotations

import ast
import json
import operator
from typing import Any

from openai import OpenAI

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub}
CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes a sum.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
MOST_TURNS = 4
CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=0, timeout=600)  # to make one takes 40 ms


def solve(problem: Any, base_url: str, api_key: str) -> float:
    """Ask the model, compute what it wants computed, and compare its last word with the problem's reference."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    messages: list[Any] = [{"role": "user", "content": problem.question}]
    for _ in range(MOST_TURNS):
        answer = client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR])
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return float(f"\\boxed{{{problem.reference}}}" in (message.content or ""))
        for call in message.tool_calls:
            if call.type != "function":
                continue
            result = computed(json.loads(call.function.arguments).get("expression", ""))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return 0.0


def computed(expression: str) -> str:
    """The value of a sum of whole numbers, or why there is none."""
    try:
        return str(value(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError, KeyError, RecursionError):
        return "error: that is no sum of numbers"


def value(node: ast.expr) -> int:
    """The value of a part of a sum."""
    if isinstance(node, ast.BinOp):
        return int(OPERATIONS[type(node.op)](value(node.left), value(node.right)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError("not a number")
