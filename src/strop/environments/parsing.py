"""Tool calls in a reply, read strictly: JSON alone, and whatever is not exactly a call is said to be none.

    <tool_call>{"name": "calculator", "arguments": {"expression": "3+5"}}</tool_call>      Hermes, Qwen
    {"name": "calculator", "parameters": {"expression": "3+5"}}                            Llama 3
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from strop.environments.base import Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"
END_OF_THINKING = "</think>"
# What a value of a JSON schema's type is in Python; a bool is an int there, and not in JSON.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,),
    "array": (list,), "null": (type(None),),
}  # fmt: skip


class Call(NamedTuple):
    """A tool called by its name; `arguments` are as JSON gave them."""

    name: str
    arguments: dict[str, Any]


class Malformed(NamedTuple):
    """What looks like a call and is none, with the reason, to be told to the policy."""

    reason: str


def tool_calls(reply: str) -> list[Call | Malformed]:
    """The calls of a reply in order; none where it calls nothing. What stands in a think block is no call."""
    said = reply.rpartition(END_OF_THINKING)[2].strip()
    if OPEN in said or CLOSE in said:
        return list(_tagged(said))
    if said.startswith("{") and said.endswith("}") and '"name"' in said:
        return [_call(said, "parameters")]
    return []


def _tagged(said: str) -> Iterator[Call | Malformed]:
    before, *blocks = said.split(OPEN)
    if CLOSE in before:
        yield Malformed(f"{CLOSE} without {OPEN}")
    for block in blocks:
        body, closed, after = block.partition(CLOSE)
        if not closed:
            yield Malformed(f"{OPEN} without {CLOSE}")
        elif CLOSE in after:
            yield Malformed(f"{CLOSE} without {OPEN}")
        else:
            yield _call(body, "arguments")


def _call(text: str, arguments: str) -> Call | Malformed:
    try:
        found = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Malformed(f"not JSON: {str(error) or type(error).__name__}")
    if not isinstance(found, dict) or found.keys() != {"name", arguments}:
        return Malformed(f'a call is an object with "name" and "{arguments}", and nothing else')
    if not isinstance(found["name"], str) or not isinstance(found[arguments], dict):
        return Malformed(f'"name" is a string and "{arguments}" an object')
    return Call(found["name"], found[arguments])


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def misfit(call: Call, tool: Tool) -> str | None:
    """Why the arguments do not fit the tool's schema (types of the properties, required and unknown ones), or None."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    missing = [name for name in tool.parameters.get("required", ()) if name not in call.arguments]
    if missing:
        return f"{tool.name}: {missing[0]} is missing"
    for name, value in call.arguments.items():
        if name not in properties:
            return f"{tool.name}: there is no argument {name}"
        wanted = properties[name].get("type")
        given = (bool,) if isinstance(value, bool) else (type(value),)
        if wanted is not None and not set(given) & set(_TYPES[wanted]):
            return f"{tool.name}: {name} is to be of type {wanted}"
    return None
