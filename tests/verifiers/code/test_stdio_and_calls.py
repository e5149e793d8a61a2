"""Programs against inputs and outputs, functions against arguments and results."""

from __future__ import annotations

from typing import Any

import pytest

from strop_verify.code import Outcome

P, W, R = Outcome.PASS, Outcome.WRONG, Outcome.RUNTIME_ERROR


def stdio(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"inputs": [given for given, _ in pairs], "outputs": [expected for _, expected in pairs]}


def calls(name: str, *pairs: tuple[list[Any], Any]) -> dict[str, Any]:
    return {"fn_name": name, **stdio(*pairs)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "given", "expected", "outcome"),
    [
        ("print(int(input()) * 2)", "21\n", "42\n", P),
        ("print(int(input()) * 2)", "21\r\n", "42\r\n", P),
        ("print(40)", "", "42", W),
        ("import sys\na = input()\nprint(a + sys.stdin.read())", "x\ny", "xy", P),
        ("import os\nprint(os.read(0, 9).decode())", "raw", "raw", P),
        ("print(open(0).read())", "zero", "zero", P),
        ("print(open('/dev/stdin').read())", "dev", "dev", P),
        ("import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line)", "a\nb\n", "a\nb\n", P),
        ("if __name__ == '__main__': print(__file__[-7:])", "", "main.py", P),
        ("print(sqrt(gcd(8, 4)), Counter('a')['a'], heapq.nsmallest(1, [2, 1]))", "", "2.0 1 [1]", P),
        ("def f(x: List[int]) -> Optional[int]: return x[0]\nprint(f([7]))", "", "7", P),
        ("print(5)\nexit()", "", "5", P),
        ("print(5)\nimport os; os._exit(0)", "", "", P),  # never flushed, as without a sandbox
        ("print(5)\nimport sys; sys.exit('no')", "", "5", R),
        ("print(5)\nraise KeyError(1)", "", "5", R),
        ("import atexit\natexit.register(print, 'bye')\nprint('hi')", "", "hi\nbye", P),
        ("import threading\nthreading.Timer(0.1, print, ['late']).start()", "", "late", P),
        ("out = open(1, 'w', closefd=False)\nout.write('unflushed')", "", "unflushed", P),
        ("import sys\nsys.stdout = __import__('io').StringIO()\nprint('lost')\nsys.__stdout__.write('kept')", "",
         "kept", P),
        ("class A:\n    def __del__(s): print('end')\na = A()", "", "end", P),
        ("from multiprocessing import Pool\nif __name__ == '__main__':\n"
         "    with Pool(2) as p: print(p.map(abs, [-1, 2]))",
         "", "[1, 2]", P),
        ("import asyncio\nasync def f(): print('async')\nasyncio.run(f())", "", "async", P),
        ("import subprocess\nprint(subprocess.run(['echo', 'sub'], capture_output=True, text=True).stdout)", "",
         "sub", P),
        ("import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(50000))",
         "", "50000", P),
        ("from functools import lru_cache\n@lru_cache(None)\n"
         "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(20000))",
         "", "20000", P),
        ("print(len(str(3 ** 20000)))", "", "9543", P),
        ("print(input())", "\N{SNOWMAN} é", "\N{SNOWMAN} é", P),
        ("print('a' * 70000 == input())", "a" * 70000, "True", P),
        ("pass", "x" * 300000, "", P),  # input that is never read
        ("import random\nprint(random.random() == random.random())", "", "False", P),
        ("print(sorted({'a', 'b', 'c'}, key=hash) == sorted({'c', 'b', 'a'}, key=hash))", "", "True", P),
        ("x = (", "", "", Outcome.SYNTAX_ERROR),
        ("return 5", "", "", Outcome.SYNTAX_ERROR),
        ("while True: pass", "", "", Outcome.TIMEOUT),
        ("x = [0] * 10**9", "", "", Outcome.MEMORY),
        ("while True: print('x' * 1000)", "", "", Outcome.KILLED),
        ("import os; os.kill(os.getpid(), 9)", "", "", Outcome.KILLED),
    ],
)  # fmt: skip
def test_standard_input_and_output(judge: Any, program: str, given: str, expected: str, outcome: Outcome) -> None:
    seconds = 0.7 if outcome is Outcome.TIMEOUT else 10.0
    result = judge(program, stdio((given, expected)), test_seconds=seconds)
    assert result.outcome is outcome, result
    assert result.passed == (outcome is P)


def test_every_random_state_is_fresh(judge: Any) -> None:
    """Two programs of one fork server do not draw the same numbers."""
    details = {judge("print(random.random())", stdio(("", "1"))).detail for _ in range(3)}
    assert len(details) == 3


def test_the_first_failure_ends_it_and_is_named(judge: Any) -> None:
    tests = stdio(("1", "1"), ("2", "3"), ("3", "3"))
    result = judge("print(input())", tests)
    assert (result.outcome, result.passed, result.total) == (W, 1, 3)
    assert result.detail == "test 2 of 3: line 1: '2' for '3'"
    assert judge("print(input())", tests, stop=False).passed == 2


def test_the_total_limit_ends_it(judge: Any) -> None:
    result = judge("import time; time.sleep(0.8); print(1)", stdio(*[("", "1")] * 5), total_seconds=2.0)
    assert result.outcome is Outcome.TIMEOUT
    assert 1 <= result.passed <= 2
    assert result.milliseconds < 4000


ADD = "def add(a, b): return a + b"


@pytest.mark.parametrize(
    ("program", "name", "arguments", "expected", "outcome"),
    [
        (ADD, "add", [1, 2], 3, P),
        (ADD, "add", [1, 2], 4, W),
        (ADD, "add", [[1], [2]], [1, 2], P),
        (ADD, "add", [10**30, 1], 10**30 + 1, P),
        (ADD, "sub", [1, 2], 3, R),
        (ADD, "add", [1], 3, R),
        ("class Solution:\n    def add(self, a: int, b: int) -> List[int]: return [a, b]", "add", [1, 2], [1, 2], P),
        ("class Solution:\n    def add(self, a, b): return a + b", "Solution().add", [1, 2], 3, P),
        (ADD, "Solution().add", [1, 2], 3, P),
        ("add = lambda a, b: (a, (b,))", "add", [1, 2], [1, [2]], P),
        ("def f(): return {1: 'a'}", "f", [], {"1": "a"}, P),
        ("def f(): return {'1': 'a', 1: 'b'}", "f", [], {"1": "a"}, W),
        ("def f(): return {1, 2}", "f", [], [1, 2], W),
        ("def f(): return None", "f", [], None, P),
        ("def f(): return 0.1 + 0.2", "f", [], 0.3, W),
        ("def f(): return 3.0", "f", [], 3, P),
        ("def f(): return True", "f", [], True, P),
        ("def f(): return '3'", "f", [], 3, W),
        ("def f(): return float('nan')", "f", [], None, W),
        ("class E:\n    def __eq__(s, o): return True\ndef f(): return E()", "f", [], 3, W),
        ("class E(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\ndef f(): return E(1)", "f",
         [], 3, W),
        ("class E(list):\n    def __eq__(s, o): return True\ndef f(): return E()", "f", [], [3], W),
        ("def f(): return [f]", "f", [], [3], W),
        ("def f():\n    x = []\n    x.append(x)\n    return x", "f", [], [], R),
        ("def f(): raise SystemExit(0)", "f", [], 3, R),
        ("import sys; sys.exit(0)", "f", [], 3, R),
        ("import os; os._exit(0)", "f", [], 3, R),
        ("def f():\n    import os; os._exit(0)", "f", [], 3, R),
        ("def f(): print('[\"value\",3,[]]'); return 4", "f", [], 3, W),
        ("pass", "gcd", [4, 6], 2, R),  # a name of the prelude is not the solution's
        ("def f(: pass", "f", [], 3, Outcome.SYNTAX_ERROR),
        ("def f():\n    while True: pass", "f", [], 3, Outcome.TIMEOUT),
        ("while True: pass", "f", [], 3, Outcome.TIMEOUT),
        ("def f(): return [0] * 10**9", "f", [], 3, Outcome.MEMORY),
        ("import os\nfor d in range(3, 64):\n    try: os.write(d, b'\\xff' * 64)\n"
         "    except OSError: pass\ndef f(): return 3",
         "f", [], 3, Outcome.KILLED),
        ("if __name__ == '__main__': input()\ndef f(): return 3", "f", [], 3, P),
    ],
)  # fmt: skip
def test_calls(judge: Any, program: str, name: str, arguments: list[Any], expected: Any, outcome: Outcome) -> None:
    seconds = 0.7 if outcome is Outcome.TIMEOUT else 10.0
    result = judge(program, calls(name, (arguments, expected)), test_seconds=seconds)
    assert result.outcome is outcome, result


def test_a_call_that_hangs_costs_one_test_where_all_are_run(judge: Any) -> None:
    program = "def f(n):\n    while n == 2: pass\n    return n"
    tests = calls("f", *(([n], n) for n in range(5)))
    result = judge(program, tests, test_seconds=0.7, stop=False)
    assert (result.outcome, result.passed, result.total) == (Outcome.TIMEOUT, 4, 5)


def test_an_answer_of_endless_depth_is_only_wrong(judge: Any) -> None:
    program = (
        "import os\ndef f():\n    body = b'[\"value\",' + b'[' * 900 + b']' * 900 + b',[]]'\n"
        "    for d in range(3, 64):\n        try: os.write(d, len(body).to_bytes(4, 'big') + body)\n"
        "        except OSError: pass\n    return 1"
    )
    for expected in (1, [[[1]]], {"a": 1}):
        assert judge(program, calls("f", ([], expected))).outcome in (W, Outcome.KILLED)


def test_a_tolerance_is_opt_in(judge: Any) -> None:
    assert judge("def f(): return 0.1 + 0.2", calls("f", ([], 0.3)), tolerance=1e-9).outcome is P
    assert judge("print(0.1 + 0.2)", stdio(("", "0.3"))).outcome is W
    assert judge("print(0.1 + 0.2)", stdio(("", "0.3")), tolerance=1e-9).outcome is P
    assert judge("def f(): return 1000001", calls("f", ([], 1000000)), tolerance=1e-6).outcome is W


def test_numbers_of_numpy_in_containers_are_numbers(judge: Any) -> None:
    result = "{'sums': list(np.cumsum(a)), np.int64(1): (np.True_, np.float64(0.5))}"
    program = f"import numpy as np\ndef f(a): return {result}"
    assert judge(program, calls("f", ([[1, 2]], {"sums": [1, 3], "1": [True, 0.5]}))).outcome is P
    assert judge(program, {"asserts": ["assert f([1, 2]) == {'sums': [1, 3], 1: (True, 0.5)}"]}).outcome is P


def test_results_of_a_derived_type_are_what_they_are_equal_to(judge: Any) -> None:
    types = "from collections import namedtuple\nfrom enum import IntEnum\nclass Name(str): pass\n"
    program = f"{types}P = namedtuple('P', 'x y')\nC = IntEnum('C', 'A B')\ndef f(): return [P(1, C.B), Name('a')]"
    assert judge(program, calls("f", ([], [[1, 2], "a"]))).outcome is P
    assert judge(program, calls("f", ([], [[1, 1], "a"]))).outcome is W


@pytest.mark.parametrize(
    ("result", "expected", "outcome"),
    [
        ("np.cumsum([1, 2])", [1, 3], P),
        ("(np.eye(2), {'x': np.array(['a', 'b'])})", [[[1, 0], [0, 1]], {"x": ["a", "b"]}], P),
        ("np.array([1, 2])", [1, 3], W), ("np.array([1, 2])", [1], W), ("np.array([True, False])", [True, False], P),
        ("np.array([1, 2]).view(Lies)", [1, 3], W), ("np.longdouble(2)", 3, W),
        ("Fraction(4, 2)", 2, P), ("[Decimal('0.5')]", [0.5], P), ("complex(2, 0)", 2, P), ("Fraction(1, 3)", 1, W),
        ("Decimal('sNaN')", 1, W), ("Fraction(10**4000, 1)", 1, W), ("complex(1, 1)", 1, W),
    ],
)  # fmt: skip
def test_arrays_are_lists_and_fractions_numbers(judge: Any, result: str, expected: Any, outcome: Outcome) -> None:
    anything = "class Lies(np.ndarray):\n    __eq__ = lambda s, o: True\n    tolist = lambda s: [1, 3]\n"
    program = f"import numpy as np\n{anything}def f(): return {result}"
    assert judge(program, calls("f", ([], expected))).outcome is outcome
    assert judge(program, calls("f", ([], expected)), tolerance=1e-9).outcome is outcome


def test_arguments_as_json_lines(judge: Any) -> None:
    tests = {"fn_name": "f", "inputs": ["[1, 2]\n\"x\""], "outputs": [[[1, 2], "x"]]}
    assert judge("def f(a, b): return a, b", tests).outcome is P
