"""Assertions: tester and solution in two sandboxes."""

from __future__ import annotations

from typing import Any

import pytest

from strop_verify.code import Outcome

P, W, R = Outcome.PASS, Outcome.WRONG, Outcome.RUNTIME_ERROR
ADD = ["assert add(1, 2) == 3", "assert add(5, 5) == 10"]
POINT = """
class Point:
    def __init__(self, x, y=0): self.x, self.y = x, y
    def __eq__(self, other): return (self.x, self.y) == (other.x, other.y)
    def __add__(self, other): return Point(self.x + other.x, self.y + other.y)
    def __len__(self): return 2
    def __iter__(self): return iter((self.x, self.y))
    def __getitem__(self, i): return (self.x, self.y)[i]
    def __str__(self): return f"({self.x}, {self.y})"
    def move(self, dx, *, dy=0): self.x += dx; self.y += dy; return self
"""


NODE = """
class Node:
    def __init__(self, value, next=None): self.value, self.next, self._secret = value, next, 7
def chain(values): return Node(values[0], chain(values[1:])) if values else None
def values(node): return [] if node is None else [node.value, *values(node.next)]
"""
REVERSE = """
def reverse(node):
    before = None
    while node: node.next, before, node = before, node, node.next
    return before
"""
ANEW = """
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
def reverse(node):
    before = None
    while node: before, node = Node(node.value, before), node.next
    return before
"""


KINDS = """
import collections, enum
class N(enum.IntEnum): A = 1
class S(str, enum.Enum): A = 'a'
def f(): return [collections.namedtuple('P', 'x y')(1, 2), N.A, S.A, type('D', (dict,), {})(a=1)]
"""
LATER = "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1"
SUMS = "import numpy as np\ndef f(x): return np.cumsum(x)"


@pytest.mark.parametrize(
    ("program", "asserts", "outcome"),
    [
        ("def add(a, b): return a + b", ADD, P),
        ("def add(a, b): return 3", ADD, W),
        ("def add(a, b): return a + b + 0.5", ["assert abs(add(1, 2) - 3) < 1"], P),
        ("ok = True", ["assert ok == True", "assert ok is True"], P),
        ("def f(x): x.append(1); return len(x)", ["l = [0]\nassert f(l) == 2\nassert l == [0, 1]"], P),
        ("def f(d): d['a'] = [1]", ["d = {}\nf(d)\nassert d == {'a': [1]}"], P),
        ("def f(): return Counter('aab')", ["assert f() == {'a': 2, 'b': 1}", "assert f() == Counter('aab')"], P),
        ("def f(): return {1, (2, 3)}", ["assert f() == {(2, 3), 1}"], P),
        ("def f(): return Fraction(1, 2)", ["from fractions import Fraction\nassert f() == Fraction(2, 4)"], P),
        ("def f(): return 10 ** 50", ["assert f() == 10 ** 50"], P),
        ("def f():\n    yield 1\n    yield 2", ["assert list(f()) == [1, 2]", "a, b = f()\nassert a < b"], P),
        ("def apply(g, x): return g(x)", ["assert apply(lambda x: x + 1, 2) == 3"], P),
        ("def apply(g): return g(g)", ["assert apply(lambda g: 5) == 5"], P),
        ("def f(x):\n    if x < 0: raise ValueError('negative')",
         ["try:\n    f(-1)\n    assert False\nexcept ValueError as e:\n    assert 'negative' in str(e)"], P),
        ("class Odd(Exception): pass\ndef f(): raise Odd('x')",
         ["try:\n    f()\n    assert False\nexcept Odd as e:\n    assert isinstance(e, Exception)"], P),
        (POINT, ["p = Point(1)\nassert p.x == 1 and p.y == 0", "assert p.move(2, dy=3).x == 3\nassert p.y == 3"], P),
        (POINT, ["assert Point(1) + Point(2) == Point(3)", "assert Point(1) != Point(2)",
         "assert len(Point(1)) == 2"], P),
        (POINT, ["assert list(Point(1, 2)) == [1, 2]", "assert Point(4)[0] == 4", "assert str(Point(1)) == '(1, 0)'"],
         P),
        (POINT, ["p = Point(1)\np.x = 9\nassert p.x == 9", "assert isinstance(p, Point)",
         "assert not isinstance(3, Point)"], P),
        (POINT, ["assert [Point(1)] == [3]"], W),
        ("def sum(a, b): return a * b", ["assert sum(10, 15) == 150"], P),
        ("def gcd(a, b): return 77", ["assert gcd(4, 6) == 77"], P),
        ("class Solution:\n    def f(self, n): return n", ["assert Solution().f(3) == 3"], P),
        ("def f(n): return n", ["assert Solution().f(3) == 3"], P),
        ("def f(n): return n", ["from solution import f\nassert f(3) == 3"], P),
        ("def f(n): return n", ["def check(candidate):\n    assert candidate(3) == 3\ncheck(f)"], P),
        ("import math\ndef f(): return 1e-9", ["assert math.isclose(f(), 0, abs_tol=1e-6)"], P),
        ("n = 0\ndef f():\n    global n\n    n += 1", ["f()\nf()", "assert n == 2"], P),
        ("def f(): return re.match('a', 'abc')", ["assert f()", "assert f().group() == 'a'"], P),
        (REVERSE, [NODE + "assert values(reverse(node=chain([1, 2, 3]))) == [3, 2, 1]"], P),
        (ANEW, [NODE + "assert values(reverse(chain([1, 2, 3]))) == [3, 2, 1]"], P),
        (ANEW, [NODE + "a = chain([1])\nassert reverse(a) is a"], W),
        (REVERSE, [NODE + "a = chain([1])\nassert reverse(a) is a"], P),
        ("def f(n):\n    seen = set()\n    while n and n not in seen: seen.add(n); n = n.next\n    return bool(n)",
         [NODE + "a = chain([1, 2])\nassert not f(a)\na.next.next = a\nassert f(a)"], P),
        ("def f(x): return sum(x)", ["assert f(iter([1, 2, 3])) == 6", "assert f(x for x in (1, 2)) == 3"], P),
        ("def f(x): return sum(x)", ["assert f(np.array([1, 2])) == 3"], P),
        (SUMS, ["assert (f(np.array([1, 2])) == np.array([1, 3])).all()", "assert np.allclose(f([1, 2]), [1, 3])",
         "assert f([[1, 2], [3, 4]]).shape == (4,) and f([1]).dtype.kind == 'i' and f([0.5]).tolist() == [0.5]"], P),
        (SUMS, ["assert (f([1, 2]) == np.array([1, 2])).all()"], W),
        ("def f(x): return 1, 2", ["np.testing.assert_array_equal(f(1), np.array([1, 2]))"], P),
        ("def f(x): x.sort(); return x", ["x = np.array([2, 1])\nassert f(x) is x and x.tolist() == [1, 2]"], P),
        ("def f(file): return len(file.read())", ["import io\nassert f(io.StringIO('a b')) == 3"], P),
        ("def f(pattern, text): return pattern.match(text).group()", ["assert f(re.compile('a+'), 'aab') == 'aa'"], P),
        ("import contextlib\n@contextlib.contextmanager\ndef f(x): yield x", ["with f(1) as x:\n    assert x == 1"], P),
        ("def f(x): x.append(1); return x", ["x = [0]\nassert f(x) is x and x == [0, 1]"], P),
        ("def f(x): return x", ["x = [0]\nassert f(x) is not x"], W),
        ("def f(x): return list(x)", ["x = [0]\nassert f(x) is not x and f(x) == x"], P),
        ("class P:\n    def __repr__(self): return 'p'", ["assert repr(P()) == 'p' and type(P()).__name__ == 'P'"], P),
        ("def f(): return 3", ["assert type(f()) is int and type(f()).__name__ == 'int'"], P),
        (KINDS, ["assert f() == [(1, 2), 1, 'a', {'a': 1}]", "assert f()[0].x == 1 and f()[2].name == 'A'"], P),
        (KINDS, ["assert f() == [(1, 2), 2, 'a', {'a': 1}]"], W),
        ("def f(): 'Adds.'", ["assert f.__doc__ == 'Adds.'"], P),
        (LATER, ["import asyncio\nassert asyncio.run(f(1)) == 2",
         "async def both(): return await asyncio.gather(f(1), f(2))\nassert asyncio.run(both()) == [2, 3]"], P),
        (LATER, ["import asyncio\nassert asyncio.run(f(1)) == 3"], W),
        ("x = (", ADD, Outcome.SYNTAX_ERROR),
        ("def sub(a, b): return 3", ADD, R),
        ("pass", ADD, R),
        ("pass", ["assert sum([1, 2]) == 3"], R),
        ("pass", ["assert gcd(4, 6) == 2"], R),
        ("def add(a, b): raise KeyError(a)", ADD, R),
        ("def add(a, b):\n    while True: pass", ADD, Outcome.TIMEOUT),
        ("while True: pass", ADD, Outcome.TIMEOUT),
        ("def add(a, b): return [0] * 10**9", ADD, Outcome.MEMORY),
        ("def add(a, b): return a + b", ["assert add(1, 2) == 3", "while True: pass"], Outcome.TIMEOUT),
    ],
)  # fmt: skip
def test_assertions(judge: Any, program: str, asserts: list[str], outcome: Outcome) -> None:
    seconds = 1.0 if outcome is Outcome.TIMEOUT else 10.0
    result = judge(program, {"asserts": asserts}, test_seconds=seconds)
    assert result.outcome is outcome, result


def test_an_assertion_that_says_nothing_is_shown(judge: Any) -> None:
    program = "def add(a, b): return 3"
    assert judge(program, {"asserts": ADD}).detail == "test 2 of 2: AssertionError: assert add(5, 5) == 10"
    assert judge(program, {"asserts": ["assert add(5, 5) == 10, 'sums'"]}).detail == "AssertionError: sums"


E = "class E:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    def __hash__(s): return 0\n"
ANY = "".join(
    f"    def __{name}__(s, *o): return {result}\n"
    for name, result in [
        ("lt", "True"), ("gt", "True"), ("le", "True"), ("ge", "True"), ("contains", "True"), ("sub", "0"),
        ("rsub", "0"), ("abs", "0"), ("instancecheck", "True"),
    ]
)  # fmt: skip
FRAMES = (
    "import os\ndef w(m):\n    for d in range(3, 200):\n"
    "        try: os.write(d, len(m).to_bytes(4, 'big') + m)\n        except OSError: pass\n"
)


@pytest.mark.parametrize(
    ("program", "asserts"),
    [
        ("import sys; sys.exit(0)", ADD),
        ("import os; os._exit(0)", ADD),
        ("def add(a, b):\n    import os; os._exit(0)", ADD),
        ("def add(a, b):\n    raise SystemExit(0)", ADD),
        (f"{E}def add(a, b): return E()", ADD),
        ("class L(list):\n    def __iter__(s): return iter([s])\ndef add(a, b): return L([0])",
         ["assert add(1, 2) == [3]"]),
        (f"{E}class coroutine(E): pass\ndef add(a, b): return coroutine()", ADD),
        (f"{E}def add(a, b): return [E()]", ["assert add(1, 2) == [3]"]),
        (f"{E}def add(a, b): return E()", ["assert add(1, 2) in (3,)", "assert 3 in [add(1, 2)]"]),
        (f"{E}def add(a, b): return E()", ["assert not (add(1, 2) != 3)"]),
        (f"{E}{ANY}def add(a, b): return E()", ["assert abs(add(1, 2) - 3) < 1e-6"]),
        (f"{E}{ANY}def add(a, b): return E()", ["assert add(1, 2) <= 3 <= add(1, 2)"]),
        (f"{E}{ANY}def add(a, b): return E()", ["assert 3 in add(1, 2)"]),
        (f"{E}{ANY}def add(a, b): return E()", ["assert isinstance(add(1, 2), int)"]),
        ("class E(int):\n    def __eq__(s, o): return True\ndef add(a, b): return E()", ADD),
        ("class E(str):\n    def __eq__(s, o): return True\ndef add(a, b): return E()", ["assert add(1, 2) == 'x'"]),
        ("class E(list):\n    def __eq__(s, o): return True\ndef add(a, b): return E()", ["assert add(1, 2) == [3]"]),
        ("import unittest.mock\ndef add(a, b): return unittest.mock.ANY", ADD),
        ("import builtins\nbuiltins.AssertionError = Warning\ndef add(a, b): return 0", ADD),
        ("import builtins\nbuiltins.abs = lambda x: 0\nabs = builtins.abs\ndef add(a, b): return 0",
         ["assert abs(add(1, 2) - 3) < 1"]),
        ("len = all = isinstance = lambda *a: True\ndef add(a, b): return 0", ["assert all([add(1, 2) == 3])"]),
        ("class math:\n    isclose = lambda *a: True\ndef add(a, b): return 0", ["assert math.isclose(add(1, 2), 3)"]),
        ("def Counter(x): return 7\ndef add(a, b): return 7", ["assert add(1, 2) == Counter('ab')"]),
        ("import sys\nsys.excepthook = sys.unraisablehook = lambda *a: 0\ndef add(a, b): return 0", ADD),
        ("import atexit, os\natexit.register(lambda: os._exit(0))\ndef add(a, b): return 0", ADD),
        ("import sys\nsys.settrace(lambda *a: None)\ndef add(a, b): return 0", ADD),
        ("import signal, os\nos.kill(os.getpid(), signal.SIGKILL)", ADD),
        ("import os\nos.closerange(0, 100)\ndef add(a, b): return 3", ADD),
        ("import gc, sys\nfor o in gc.get_objects():\n    if isinstance(o, list):\n"
         "        try: o[:] = [True] * len(o)\n"
         "        except Exception: pass\ndef add(a, b): return 0", ADD),
        ("def add(a, b): print('pass', 'OK', 'all tests passed'); return 0", ADD),
        (f"{FRAMES}for k in range(2): w(b'[\"begin\",%d]' % k); w(b'[\"pass\",%d]' % k)\ndef add(a, b): return 0", ADD),
        (f"{FRAMES}w(b'[\"value\",3,[]]')\nw(b'[\"value\",10,[]]')\ndef add(a, b): return 0", ADD),
        (f"{FRAMES}def add(a, b): w(b'[\"callback\",\"call\",0,[],[]]'); return 0", ADD),
        (f"{FRAMES}def add(a, b): w(b'[\"value\",[\"handle\",0,\"SystemExit\",\"type\"],[]]'); return 0", ADD),
        (f"{FRAMES}def add(a, b): w(b'[' * 5000); return 0", ADD),
        (f"{FRAMES}def add(a, b): os.write(4, b'\\xff' * 9); return 0", ADD),
        ("def add(a, b):\n    class X(BaseException): pass\n    raise X",
         ["try:\n    add(1, 2)\nexcept Exception:\n    assert 0"]),
        ("def add(f): return f.__globals__", ["expected = 3\nassert add(lambda: 0) == 3"]),
        ("def add(f):\n    try: return f.__code__.co_consts\n"
         "    except AttributeError: return f.__class__.__mro__[-1].__subclasses__()",
         ["assert add(lambda: 3) == 3"]),
        ("def add(x): return x.gi_frame.f_globals['expected']", ["expected = 3\nassert add(x for x in ()) == 3"]),
        ("def add(x): return x._secret", [NODE + "assert add(Node(1)) == 7"]),
        ("def add(x): return x.__class__.__init__.__globals__['w']", [NODE + "w = 3\nassert add(Node(1)) == 3"]),
        ("def add(x): return x.path", ["import sys\nassert add(sys) == sys.path"]),
        ("class int:\n    pass\ndef add(): return int()", ["assert type(add()) is int"]),
        ("def add(x): x.clear(); x += [1, 2, 3]", ["l = [1]\nadd(l)\nassert l == [1]"]),
        ("import os, time\nif os.fork(): time.sleep(0.1); os._exit(0)\ndef add(a, b): return 0", ADD),
        ("class T: pass\nclass Any: pass\ndef add(a, b): return type('int', (), {'__eq__': lambda *a: True})()", ADD),
        ("import ctypes\nctypes.string_at(0)", ADD),
        ("import sys\nsys.modules['guest.tester'] = sys.modules['solution']\ndef add(a, b): return 0", ADD),
    ],
)  # fmt: skip
def test_no_trick_passes(judge: Any, program: str, asserts: list[str]) -> None:
    result = judge(program, {"asserts": asserts}, test_seconds=5.0)
    assert result.outcome not in (Outcome.PASS, Outcome.SANDBOX_ERROR), result


def test_tests_that_are_no_python_are_our_failure() -> None:
    from strop_verify.code.tests import read_tests

    with pytest.raises(ValueError, match="assertion 2"):
        read_tests({"asserts": ["assert True", "assert ("]})


def test_every_snippet_is_run_for_partial_credit(judge: Any) -> None:
    asserts = ["assert f(1) == 1", "assert f(2) == 3", "assert f(3) == 3"]
    result = judge("def f(n): return n", {"asserts": asserts}, stop=False)
    assert (result.outcome, result.passed, result.total) == (W, 2, 3)
