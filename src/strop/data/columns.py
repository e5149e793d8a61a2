"""Reaching into the columns of a row, and conditions over them: which rows of a table are wanted.

    keeps = condition("extra_info.model_difficulty.DeepSeek-R1-Distill-Qwen-7B in 1..15 and ability == 'math'")
    keeps({"ability": "math", "extra_info": {"model_difficulty": {"DeepSeek-R1-Distill-Qwen-7B": 3}}})    # True

    expression   comparisons joined by `and`, `or`, `not` and parentheses
    comparison   COLUMN == VALUE, also != < <= > >=;  COLUMN in LOW..HIGH, both ends included;  COLUMN in [VALUE, …]
    COLUMN       a name, dots reaching into nested columns; in backticks where it holds other characters
    VALUE        a number, a text in quotes, true, false, or null

An empty cell (null) equals null alone, and no other comparison holds of it; in a table of texts (CSV) one without
characters is empty, and equals '' too. A text that is written as a number is that number where it is compared with one,
and where it is put in order with such a text: `level >= 2` and `level >= '2'` keep '10', `id == '007'` '007' alone.
Nothing of the expression is run as Python.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator

from strop.base.near import nearest
from strop_verify.extract import boxed_answer

Row = Mapping[str, Any]
Predicate = Callable[[Row], bool]
Scalar = str | float | int | bool | None

LONGEST = 2_000  # characters of an expression
DEEPEST = 50  # parentheses in parentheses
SHORT = 40  # characters of a cell that an error repeats
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_TOKEN = re.compile(
    r"""\s*(?:
      `(?P<quoted>[^`]+)`
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w]|[.-][A-Za-z_])
    | (?P<sign>==|!=|<=|>=|<|>|=|\.\.|[()\[\],])
    | (?P<name>\w(?:[\w/-]|\.(?!\.))*)
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
_CONSTANTS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "none": None}
_WORDS = ("and", "or", "not", "in")


class _Token(NamedTuple):
    kind: str  # column, value, word, sign or end
    value: Any
    place: int


class NoColumn(ValueError):
    """A row has no such column; the message names the nearest that it has."""


def pick(columns: Row, name: str) -> Any:
    """The column `name`, or what a dotted name reaches in nested columns.

    Raises:
        NoColumn: there is none.
    """
    inner: Any = columns
    rest = name
    while rest not in inner:
        first, dot, rest_of = rest.partition(".")
        if not dot or not isinstance(inner.get(first), Mapping):
            raise NoColumn(f"no column {name!r}; {nearest(rest, inner)}")
        inner, rest = inner[first], rest_of
    return inner[rest]


@lru_cache(maxsize=64)
def condition(text: str, texts: bool = False) -> Predicate:
    """The condition that an expression states: from a row's columns to whether the row is wanted.

    Called with a row it raises `ValueError`, which names the column, where the row has no such column or where its
    value cannot be compared with the one of the expression (a text that is no number with a number).

    Args:
        text: the expression.
        texts: whether every cell is a text, so that one without characters is empty.

    Raises:
        ValueError: the text is no expression; says where it breaks off.
    """
    if len(text) > LONGEST:
        raise ValueError(f"an expression of {len(text)} characters; at most {LONGEST}")
    return _Parser(text, texts).whole()


class _Parser:
    """Recursive descent over the tokens of an expression."""

    def __init__(self, text: str, texts: bool) -> None:
        self.text = text
        self.texts = texts
        self.tokens = _tokens(text)
        self.place = 0
        self.depth = 0

    def whole(self) -> Predicate:
        found = self._either()
        if self._next.kind != "end":
            raise self._expected("and, or, or the end")
        return found

    @property
    def _next(self) -> _Token:
        return self.tokens[self.place]

    def _take(self, kind: str, *values: Any) -> _Token | None:
        """The next token if it is of that kind (and one of the values, where any are given), which is then consumed."""
        token = self._next
        if token.kind != kind or (values and token.value not in values):
            return None
        self.place += 1
        return token

    def _expected(self, what: str) -> ValueError:
        rest = self.text[self._next.place :].strip()
        return ValueError(f"{self.text!r}: expected {what} {f'before {rest[:40]!r}' if rest else 'at its end'}")

    def _either(self) -> Predicate:
        parts = [self._both()]
        while self._take("word", "or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda row: any(part(row) for part in parts)

    def _both(self) -> Predicate:
        parts = [self._one()]
        while self._take("word", "and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else lambda row: all(part(row) for part in parts)

    def _one(self) -> Predicate:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"{self.text[:40]!r}…: more than {DEEPEST} parentheses or nots in one another")
        try:
            if self._take("word", "not"):
                inner = self._one()
                return lambda row: not inner(row)
            if self._take("sign", "("):
                grouped = self._either()
                if not self._take("sign", ")"):
                    raise self._expected("a closing parenthesis")
                return grouped
            return self._comparison()
        finally:
            self.depth -= 1

    def _comparison(self) -> Predicate:
        column = self._take("column")
        if column is None:
            raise self._expected("a column")
        if self._take("word", "in"):
            return self._membership(column.value)
        sign = self._take("sign", *_ORDERS)
        if sign is None:
            raise self._expected("in or one of == != < <= > >=")
        value = self._value()
        if value is None and sign.value not in ("==", "=", "!="):
            raise ValueError(f"{self.text!r}: null has no order; compare it with == or !=")
        return _compared(column.value, sign.value, value, self.texts)

    def _membership(self, column: str) -> Predicate:
        if self._take("sign", "["):
            values = [self._value()]
            while self._take("sign", ","):
                values.append(self._value())
            if not self._take("sign", "]"):
                raise self._expected("a comma or a closing bracket")
            return _listed(column, values, self.texts)
        low = self._value()
        if not self._take("sign", ".."):
            raise self._expected("LOW..HIGH or [VALUE, …]")
        high = self._value()
        if not (_is_number(low) and _is_number(high)) or low > high:  # type: ignore[operator]
            raise ValueError(f"{self.text!r}: a range is of two numbers, the lower one first")
        above, below = (_compared(column, *bound, self.texts) for bound in ((">=", low), ("<=", high)))
        return lambda row: above(row) and below(row)

    def _value(self) -> Scalar:
        token = self._take("value")
        if token is None:
            raise self._expected("a number, a text in quotes, true, false or null")
        found: Scalar = token.value
        return found


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    place = 0
    while not found or found[-1].kind != "end":
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"{text!r}: cannot be read from {text[place:].strip()[:40]!r} on")
        found.append(_token(match, place))
        place = match.end()
    return found


def _token(match: re.Match[str], place: int) -> _Token:
    kind, text = str(match.lastgroup), match[str(match.lastgroup)]
    if kind == "quoted":
        return _Token("column", text, place)
    if kind == "text":
        return _Token("value", re.sub(r"\\(.)", r"\1", text[1:-1]), place)
    if kind == "number":
        return _Token("value", float(text) if set(text) & set(".eE") else int(text), place)
    if kind == "name" and text.lower() in _WORDS:
        return _Token("word", text.lower(), place)
    if kind == "name":
        constant = text.lower() in _CONSTANTS
        return _Token("value" if constant else "column", _CONSTANTS.get(text.lower(), text), place)
    return _Token(kind, text, place)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    """The kind of a value; only values of one kind are compared."""
    if _is_number(value):
        return "a number"
    return {bool: "true or false", str: "a text"}.get(type(value), "nested")


def _number_in(text: str) -> float | int | None:
    """The number that a text is written as, blanks around it aside; None of any other text."""
    if len(text) > LONGEST or not _NUMBER.fullmatch(text):
        return None
    return float(text) if set(text) & set(".eE") else int(text)


def _is_empty(cell: Any, texts: bool) -> bool:
    return cell is None or (texts and isinstance(cell, str) and not cell.strip())


def _refused(column: str, cell: Any, value: Scalar, ordered: bool = False) -> ValueError:
    hint = ""
    if isinstance(cell, str) and ordered and len(cell) <= SHORT:
        hint = f" as a number; leave such rows out before it, `{column}` != {_written(cell)} and …"
    elif isinstance(cell, str) and _is_number(value) and not ordered:
        hint = f"; write {_written(str(value))}"
    held = f"{_kind(cell)} ({cell!r:.40})"
    return ValueError(f"column {column!r} holds {held}, which cannot be compared with {value!r}{hint}")


def _compared(column: str, sign: str, value: Scalar, texts: bool) -> Predicate:
    order = _ORDERS[sign]
    ordered = sign not in ("==", "=", "!=")
    wanted: Scalar = value
    if isinstance(value, str) and ordered:
        written = _number_in(value)  # by their letters 10 would come before 2
        wanted = value if written is None else written

    def holds(row: Row) -> bool:
        cell = pick(row, column)
        if _is_empty(cell, texts):
            return sign in ("==", "=") and (value is None or cell == value)
        if value is None:
            return sign == "!="
        if isinstance(cell, str) and _is_number(wanted):
            number = _number_in(cell)
            if number is None:
                raise _refused(column, cell, value, ordered)
            return bool(order(number, wanted))
        if _kind(cell) != _kind(value):
            raise _refused(column, cell, value)
        return bool(order(cell, value))

    return holds


def _listed(column: str, values: Sequence[Scalar], texts: bool) -> Predicate:
    kinds = {_kind(value) for value in values if value is not None}

    def holds(row: Row) -> bool:
        cell = pick(row, column)
        if _is_empty(cell, texts):
            return None in values or cell in values
        number = _number_in(cell) if isinstance(cell, str) else None
        forms = [cell] if number is None else [cell, number]
        if kinds and kinds.isdisjoint(map(_kind, forms)):
            raise _refused(column, cell, next(value for value in values if value is not None))
        return any(_kind(form) == _kind(value) and form == value for form in forms for value in values)

    return holds


def _as_text(given: Any) -> Any:
    """A table of columns and their values, `{source = ["olympiads", "aime"]}`, as an expression."""
    if not isinstance(given, Mapping):
        return given
    wanted = {name: values if isinstance(values, list | tuple) else [values] for name, values in given.items()}
    return " and ".join(f"`{name}` in [{', '.join(map(_written, values))}]" for name, values in wanted.items()) or None


def _written(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return json.dumps(value)


def _checked(text: str | None) -> str | None:
    if text is not None:
        condition(text)
    return text


# An expression of a configuration, checked as it is read; None keeps every row.
Where = Annotated[str | None, AfterValidator(_checked), BeforeValidator(_as_text)]


# In the sets of GSM8K, verl, TRL, open-r1 and others; dots reach into nested columns.
PROMPTS = (
    "prompt", "question", "problem", "Problem", "Question", "question_content", "problem_description", "messages",
    "input", "query", "instruction",
)  # fmt: skip
ANSWERS = (
    "answer", "reference", "final_answer", "reward_model.ground_truth", "ground_truth", "Answer", "expected_answer",
    "gold", "target", "label",
)  # fmt: skip
# What belongs to a question and stands in a column of its own.
PARTS = ("system", "context", "passage", "choices", "options")
HALVES = {"instruction": "input", "input": "instruction"}  # of a question, where a row has both
SOLUTIONS = ("solution", "Solution")  # a worked solution in some sets, the answer alone in others
CODE = "code"  # the domain whose references are tests

# The end of GSM8K's solutions, `#### 1,250`: one word with a digit, which no heading at the end of a text is.
RESULT = re.compile(r"(?<!\S)####[ \t]*(?=[^\s\d]*\d)[^\s#]+\s*\Z")


def has(row: Mapping[str, Any], name: str) -> bool:
    """Whether the row has the column, be it empty."""
    try:
        pick(row, name)
    except NoColumn:
        return False
    return True


def first_present(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of `names` that the row has a value for, else the first that it has at all; None where it has none."""
    present = [name for name in names if has(row, name)]
    return next((name for name in present if pick(row, name) is not None), present[0] if present else None)


def unseen(row: Mapping[str, Any], prompt: str) -> str | None:
    """A column that belongs to the question and is not in `prompt`, the column that was taken for it; else None."""
    parts = (*PARTS, *([HALVES[prompt]] if prompt in HALVES else []))
    return next((name for name in parts if row.get(name) not in (None, "", "None", [])), None)


def refuse_unseen(row: Mapping[str, Any], prompt: str, enough: str) -> None:
    """Refuse a row of whose question `prompt`, the column that was taken for it, holds a part only.

    Args:
        row: by columns.
        prompt: the column.
        enough: how to say that the column is enough, behind "leave … out: "; empty where there is no way.

    Raises:
        ValueError: it does.
    """
    name = unseen(row, prompt)
    if name is not None:
        way_out = f", or leave {name!r} out: {enough}" if enough else ""
        raise ValueError(
            f"the prompt would be {prompt!r} alone, without what stands in {name!r}; put both into one column{way_out}"
        )


def final_answer(solution: object) -> str:
    """The text after the last `####`, thousands commas removed: `"… #### 1,250"` gives `"1250"`.

    Raises:
        ValueError: there is no `####`, or nothing after it.
    """
    _, mark, answer = str(solution).rpartition("####")
    answer = answer.strip().replace(",", "")
    if not mark or not answer:
        raise ValueError("the answer has no '####' with the result after it, as GSM8K has")
    return answer


def stated(reference: Any, domain: str, worked: bool = False) -> tuple[Any, dict[str, Any]]:
    """A reference, and what `Problem.extra` keeps with it.

    Of a worked solution that ends as GSM8K's do, or is known as one (`worked`) and boxes its answer, that is the
    result, and the solution. Everything else stays as it is: a text with headings (`#### Notes`), and what programs
    are judged by.

    Raises:
        ValueError: `worked`, and no answer is marked.
    """
    if domain == CODE or not isinstance(reference, str):
        return reference, {}
    if RESULT.search(reference) is not None:
        return final_answer(reference), {"solution": reference}
    return (boxed_answer(reference), {"solution": reference}) if worked else (reference, {})
