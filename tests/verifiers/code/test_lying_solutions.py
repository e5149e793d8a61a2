"""Solutions that reach the server which answers for them and lie: about names, types, numbers, ends and changes."""

from __future__ import annotations

from typing import Any

import pytest

from strop_verify.code import Outcome
from strop_verify.sandbox.guest.tester import names_of

SERVER = "import sys\nserver = sys._getframe(1).f_locals['server']\nServer = type(server)\nanswer = Server._respond\n"
# Offers whatever is asked for, after so many answers of "there is no such name"; `offer` holds what it offers.
OFFERS = SERVER + (
    "left, offer = 0, {}\n"
    "def lie(self, request):\n"
    "    global left\n"
    "    if request[0] != 'names': return answer(self, request)\n"
    "    left -= 1\n"
    "    if left >= 0: return ['value', self._write([(False, None) for _ in request[1]]), []]\n"
    "    return ['value', self._write([(True, offer.get(n, lambda *a, **k: 0)) for n in request[1]]), []]\n"
    "Server._respond = lie\n"
)
F = ["assert abs(f(2) - 4) < 1e-6", "assert abs(f(3) - 9) < 1e-6"]
ANSWERS = SERVER + "Server._respond = lambda self, request: reply(self, request)\n"
NAMES = (  # a reply that is honest about names, `f` being a function
    "def reply(self, request):\n    if request[0] in ('names', 'methods'): return answer(self, request)\n"
    "    return tell(self, request)\n"
)
SELF = "def f(*a): return Thing()\nclass Thing: pass\n"
END = "def f(*a): raise StopIteration\n"
ENDS = "class Done(StopIteration): pass\ndef f(*a): raise Done\n"
SQUARES = "cases = [(2, 4), (3, 9)]\n"
ZERO = "def f(*a): return 0\n"


@pytest.mark.parametrize("told", range(5))
@pytest.mark.parametrize(
    ("offer", "tests"),
    [
        ("dict(f=lambda x: 0, abs=lambda x: 0)", F),
        ("dict(f=lambda x: 0, set=lambda x: 0)", ["assert set(f([2, 2])) == set([2])"]),
        ("dict(f=lambda x: 0, sorted=lambda x: 0)", ["assert sorted(f([2, 1])) == sorted([1, 2, 5])"]),
        ("dict(f=lambda x: 0, round=lambda *x: 1)", ["assert round(f(2), 3) == round(1.4142, 3)"]),
        ("dict(f=lambda x: 0, tuple=lambda *x: 0)", ["assert tuple(f([5, 6])) == tuple([6, 5])"]),
        ("dict(f=lambda x: 0, all=lambda x: True)", ["assert all([f(2) == 4, f(3) == 9])"]),
        ("dict(f=lambda x: 0, isinstance=lambda *a: True)", ["assert isinstance(f(2), str)"]),
        ("dict(f=lambda x: 0, math=type('M', (), {'isclose': lambda *a: True}))",
         ["import math\nassert math.isclose(f(2), 4)"]),
        ("dict(f=lambda x: 0, math=type('M', (), {'isclose': lambda *a: True}))", ["assert math.isclose(f(2), 4)"]),
        ("dict(f=lambda x: 0, isclose=lambda *a: True)", ["assert isclose(f(2), 4)"]),
    ],
)  # fmt: skip
def test_names_are_not_the_solutions_to_choose(judge: Any, offer: str, tests: list[str], told: int) -> None:
    result = judge(f"{OFFERS}left, offer = {told}, {offer}", {"asserts": tests}, test_seconds=5.0)
    assert result.outcome not in (Outcome.PASS, Outcome.SANDBOX_ERROR), result


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        # names that the tests define
        (f"{OFFERS}offer['close'] = lambda *a: True",
         ["def close(a, b): return abs(a - b) < 1e-6\nassert close(f(2), 4)"]),
        (f"{OFFERS}offer['check'] = lambda *a: True",
         ["assert check(f(2), 4)", "def check(a, b): return a == b\nassert check(f(3), 9)"]),
        (f"{OFFERS}offer['want'] = 0", ["for k in (2, 3):\n    if k == 3: want = 9\n    assert f(k) == want"]),
        (f"{OFFERS}offer['sqrt'] = lambda x: 0", ["from math import sqrt\nassert f(2) == sqrt(2)"]),
        (f"{OFFERS}offer['gcd'] = lambda *a: 0",
         ["assert f(12, 18) == gcd(12, 18)", "from math import gcd\nassert f(12, 18) == gcd(12, 18)"]),
        (f"{OFFERS}offer['Node'] = lambda *a: 0", ["class Node:\n    v = 3\nassert f(2) == Node().v"]),
        (f"{OFFERS}offer['__builtins__'] = offer['__name__'] = 0",
         ["assert __builtins__['abs'](f(2) - 4) < 1e-6", "assert __name__ == f(2)"]),
        (f"{OFFERS}offer['AssertionError'] = offer['range'] = 0", ["for x in range(2, 4): assert f(x) == x * x"]),
        (f"{OFFERS}offer['Fraction'] = lambda *a: 0", ["assert abs(sum(10, 15)) == Fraction(6, 1)"]),
        (f"{OFFERS}offer['len'] = lambda a: 2", ["assert len(sorted([3, 1, 2])) == 2"]),
        (f"{OFFERS}offer['set'] = lambda a: 0", ["assert set(sum([1, 2])) == set([4])"]),
        # what runs nothing of the solution
        (ZERO, ["def test_f():\n    assert f(2) == 4"]),
        (ZERO, ["class TestF:\n    def test(self): assert f(2) == 4"]),
        (ZERO, ["g = lambda: f(2) == 4"]),
        ("f = 0", ["def test_f():\n    assert f == 4"]),
        # an end that a loop in C takes for the end of the cases
        (END, [f"{SQUARES}assert all(map(lambda c: f(c[0]) == c[1], cases))"]),
        (ENDS, [f"{SQUARES}assert all(map(lambda c: f(c[0]) == c[1], cases))"]),
        (END, [f"{SQUARES}assert not list(filter(lambda c: f(c[0]) != c[1], cases))"]),
        (END, [f"{SQUARES}for y in map(f, [2, 3]): assert y == 4"]),
        (END, ["assert set(map(f, [2, 3])) <= {4, 9}"]),
        (END, ["for y in iter(f, None): assert y == 4"]),
        ("class P:\n    def __getattr__(self, n): raise StopIteration\ndef f(x): return P()",
         ["assert all(map(lambda x: f(x).value == x, [1, 2]))"]),
        ("class P:\n    def __getitem__(self, n): raise StopIteration\ndef f(x): return P()",
         ["assert all(map(lambda x: f(x)[0] == x, [1, 2]))"]),
        ("class P:\n    def __len__(self): raise StopIteration\ndef f(x): return P()",
         ["assert all(map(lambda x: len(f(x)) == x, [1, 2]))"]),
        ("async def f(x): raise StopAsyncIteration", ["import asyncio\nassert asyncio.run(f(2)) == 4"]),
        # one object that is another number at each look
        ("class X(float):\n    n = 0\n    def __float__(self):\n        X.n += 1\n"
         "        return [0.0, 7.0, -0.5][X.n % 3]\n"
         "def f(c): return X()",
         ["def poly(c, x): return sum(k * math.pow(x, i) for i, k in enumerate(c))\n"
          "assert math.isclose(poly([1, 2, 0], f([1, 2, 0])), 0)"]),
        ("class L:\n    n = 0\n    def __getitem__(self, i):\n        L.n += 1\n        return [0, 9][L.n % 2]\n"
         "def f(): return L()",
         ["r = f()\nassert r[0] != r[0] or r[0] == 5"]),
        # replies that are none
        (f"{ANSWERS}{NAMES}{SELF}def tell(self, r): return ['value', True, []]", ["assert f(2) == 4"]),
        (f"{ANSWERS}{NAMES}{SELF}def tell(self, r): return ['value', ['handle', 0, 'AssertionError', 'x'], []]", F),
        (f"{ANSWERS}{NAMES}{SELF}def tell(self, r): return ['value', ['back', 0], []]",
         ["assert f(lambda: 4) == 4", "assert f(lambda: 4)() != 4"]),
        (f"{ANSWERS}{NAMES}{SELF}def tell(self, r): return ['value', 0, [[0, ['list', [4]]], [-1, ['list', [4]]]]]",
         ["x = [1]\nassert f(x) == x[0]"]),
        (f"{ANSWERS}{NAMES}{SELF}def tell(self, r): return ['value', ['float', 'nan'], []]", F),
        (f"{ANSWERS}{NAMES}{SELF}def tell(self, r): return ['value', ['int', '0x' + 'f' * 10**7], []]", F),
        (f"{ANSWERS}{NAMES}{SELF}def tell(self, r): return ['value', ['Decimal', '1E+999999999'], []]", F),
        (f"{ANSWERS}{NAMES}{SELF}def tell(self, r): return ['raise', 'X', 'SystemExit', '', 7]",
         ["try:\n    f(2)\nexcept Exception: raise"]),
        (f"{ANSWERS}{NAMES}{SELF}def tell(self, r): return ['raise', 'X', 'StopIteration', '', None]",
         ["assert all(map(lambda x: f(x) == x, [1, 2]))"]),
        (f"{ANSWERS}{NAMES}{SELF}def tell(self, r): return ['pass', 0]", F),
        (f"{ANSWERS}def reply(self, r): return ['value', ['list', []], []]", F),
        (f"{ANSWERS}def reply(self, r): return ['value', ['list', [['tuple', [True, 4]]] * 99], []]", F),
        (f"{ANSWERS}def reply(self, r): return ['raise', 'AttributeError', 'AttributeError', '', None]", F),
        # the channels, opened anew; the tester, sought through /proc
        (f"{SERVER}import os\nfor d in os.listdir('/proc/self/fd'):\n    try:\n"
         "        w = os.open('/proc/self/fd/' + d, os.O_WRONLY | os.O_NONBLOCK)\n"
         "        m = b'[\"pass\",0]'\n        os.write(w, len(m).to_bytes(4, 'big') + m)\n"
         "    except OSError: pass\n" + ZERO, F),
        ("import os\nfor p in os.listdir('/proc'):\n    if p.isdigit() and int(p) != os.getpid():\n"
         "        try: os.kill(int(p), 9)\n        except OSError: pass\n" + ZERO, F),
        ("import os\nopen('/tmp/math.py', 'w').write('isclose = lambda *a: True')\nos.makedirs('/tmp/numpy')\n"
         "open('/tmp/numpy/__init__.py', 'w').write('allclose = lambda *a: True')\n" + ZERO,
         ["import sys\nsys.modules.pop('math')\nimport math\nassert math.isclose(f(2), 4)"]),
        ("import sys\nfor p in sys.path:\n    try: open(p + '/fractions.py', 'w').write('Fraction = lambda *a: 0')\n"
         "    except OSError: pass\n" + ZERO,
         ["import sys\nsys.modules.pop('fractions')\nfrom fractions import Fraction\nassert f(2) == Fraction(4)"]),
        ("import ctypes\nfor p in range(1, 40):\n    fd = ctypes.CDLL(None).syscall(434, p, 0)\n"
         "    [ctypes.CDLL(None).syscall(438, fd, k, 0) for k in range(20)]\n" + ZERO, F),
        ("import sys\nsys.modules['solution'].abs = lambda x: 0\n" + ZERO, ["from solution import *\n" + F[0]]),
        ("import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'abs' in o: o['abs'] = lambda x: 0\n"
         + ZERO, F),
    ],
)  # fmt: skip
def test_no_lie_passes(judge: Any, program: str, tests: list[str]) -> None:
    result = judge(program, {"asserts": tests}, test_seconds=5.0)
    assert result.outcome not in (Outcome.PASS, Outcome.SANDBOX_ERROR), result


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("class Counter:\n    def __init__(self): self.n = 0\n    def add(self): self.n += 1\n"
         "    def __int__(self): return self.n",
         ["c = Counter()\nassert int(c) == 0 and c.n == 0", "c.add()\nassert int(c) == 1 and c.n == 1",
          "assert isinstance(c, Counter)"]),
        ("def f(n):\n    for i in range(n): yield i * i",
         ["assert all(map(lambda p: p[0] == p[1], zip(f(3), [0, 1, 4])))"]),
        ("class It:\n    def __init__(self): self.n = 0\n    def __iter__(self): return self\n"
         "    def __next__(self):\n        self.n += 1\n        if self.n > 2: raise StopIteration\n"
         "        return self.n",
         ["i = It()\nassert next(i) == 1 and next(i) == 2\n"
          "try:\n    next(i)\n    assert False\nexcept StopIteration: pass",
          "assert list(map(lambda x: x, It())) == [1, 2]"]),
        ("def area(r): return r * r", ["assert area(2) == 4", "area = area(3)\nassert area == 9"]),
        ("def max(a, b, c): return sorted((a, b, c))[2]", ["assert max(1, 2, 3) == 3", "assert max(3, 2, 1) == 3"]),
        ("def gcd(a, b):\n    while b: a, b = b, a % b\n    return a", ["assert abs(gcd(4, 6)) == 2"]),
        ("def sum(a, b): return a * b", ["assert abs(sum(10, 15) - 150) < 1e-6"]),
        ("n = 4", ["assert n == 4"]),
        ("n = 4", ["def check():\n    assert n == 4\ncheck()"]),
        ("def f(x): return x", ["METADATA = {}\ndef check(candidate):\n    assert candidate(2) == 2\ncheck(f)"]),
    ],
)  # fmt: skip
def test_what_is_right_stays_right(judge: Any, program: str, tests: list[str]) -> None:
    result = judge(program, {"asserts": tests}, test_seconds=10.0)
    assert result.outcome is Outcome.PASS, result


@pytest.mark.parametrize(
    ("snippets", "offered"),
    [
        (["assert abs(f(2) - 4) < eps"], {"f", "eps"}),
        (["eps = 1e-6\nassert abs(f(2) - 4) < eps"], {"f"}),
        (["assert [x for x in f()] == [y for y in (1, 2)]"], {"f"}),
        (["def check(c):\n    for k in range(3): assert c(k) == helper(k)\ncheck(f)"], {"f", "helper"}),
        (["assert sum(10, 15) == 6"], {"sum"}),
        (["assert abs(sum(10, 15)) == 6", "assert sum(1, 2) == 6"], {"sum"}),
        (["assert set(sum([1])) == set([1])"], {"sum"}),
        (["assert len([]) == 0", "assert sum([]) == 0"], set()),
        (["assert 1 == 1"], set()),
    ],
)
def test_the_text_decides_whose_a_name_is(snippets: list[str], offered: set[str]) -> None:
    builtin = {"abs", "sum", "set", "len", "range", "sorted"}
    assert names_of(snippets, builtin | {"Counter"}, builtin).offered == offered
