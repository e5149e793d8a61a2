r"""Expressions out of tokens: operator precedence, implicit products, functions with and without parentheses.

An expression ends at what cannot be part of one: a word, a comma, a relation, a number after a number. Matrices are
added and multiplied here; sums, products, integrals and limits are kept as operations that are left to be done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

from strop_verify.math import expressions as ex
from strop_verify.math.expressions import END, Node, Token, TooMuch, Unreadable
from strop_verify.math.latex import FUNCTIONS

# The operation that is left to be done, and what it is called.
UNDONE = {"Σ": "sum", "Π": "product", "integral": "integral", "limit": "limit", "derivative": "derivative"}
_BINDS = ("=", "→", "∈", "≥", ">", "|")


def undone(op: str, body: Node, low: Sequence[str], high: Sequence[str], by: str = "") -> Node:
    r"""A sum, product, integral or limit of a body, with the texts of its bounds.

    The lower bound of a sum, product or limit begins with the name that runs; an integral runs `by` its variable. That
    name is replaced by a number, counted from the innermost operation outwards: two operations that differ only in it
    are one tree, and `i` is no imaginary unit where it runs. An integral without bounds keeps its name: it is a
    function of its variable.
    """
    runs = low[0] if len(low) > 1 and low[0].isalpha() and low[1] in _BINDS else ""
    bound = (by if low else "") if op == "integral" else runs
    if bound:
        number = f"#{1 + sum(part.op in UNDONE for part in ex.parts(body))}"
        body = _renamed(body, bound, number)
        low = [number, *low[1:]] if runs and op != "integral" else low
        by = number if by else ""
    over = " ".join(("_", *low, "^", *high, *(("d", by) if by else ())))
    return ex.call(op, body, ex.name(over))


def _renamed(node: Node, old: str, new: str) -> Node:
    """A tree with another name: also as an index (`x_i`), and in the bounds of the operations in it."""
    if node == ex.name(old) or (node.op == "constant" and node.value == old):
        return ex.name(new)
    op, said = node.op, node.value
    if op == "name" and said.startswith("_ "):
        said = " ".join(new if text == old else text for text in said.split())
    elif op == "name":
        said = _with_index(said, old, new)
    elif op.startswith("apply "):
        op = _with_index(op, old, new)
    return Node(op, tuple(_renamed(arg, old, new) for arg in node.args), said)


def _with_index(name: str, old: str, new: str) -> str:
    letter, line, index = name.partition("_")
    return f"{letter}{line}{index.replace(old, new)}"


TRANSPOSED = (ex.name("T"), ex.name("top"))
_BRACKETED = ("list", "tuple", "interval")
_MOST_TERMS = 2000  # products in the entries of a product of matrices


def matrix_of(node: Node) -> Node | None:
    """The matrix that a sum or product of matrices, or of vectors and numbers, is; None for anything else."""
    base = node.args[0] if node.op == "power" and node.args[1] in TRANSPOSED else ex.ZERO
    if base.op in ("tuple", "matrix"):
        rows = [row.args for row in base.args] if base.op == "matrix" else [base.args]
        return _matrix(list(zip(*rows, strict=True)))
    if node.op not in ("sum", "product"):
        return node if node.op == "matrix" else None
    vectors = any(arg.op == "tuple" for arg in node.args)
    parts = [matrix_of(_column(arg) if vectors else arg) for arg in node.args]
    if not any(parts):
        return None
    matrices = [part for part in parts if part is not None]
    rest = [arg for arg, part in zip(node.args, parts, strict=True) if part is None]
    if node.op == "product":
        found = matrices[0]
        for each in matrices[1:]:
            found = _product(found, each)
        return _entrywise(lambda entry: ex.times(*rest, entry), [found]) if rest else found
    if rest or len({tuple(len(row.args) for row in each.args) for each in matrices}) > 1:
        raise Unreadable("matrices that do not fit")
    return _entrywise(ex.plus, matrices)


def _column(node: Node) -> Node:
    """A tuple as a matrix of one column, also where a name is multiplied with it: `t(1, 0, 1)`; else as it is."""
    column = _matrix([(entry,) for entry in node.args]) if node.op == "tuple" or len(node.args) > 1 else node
    scaled = node.op.startswith("apply ") and column is not node
    return ex.times(ex.name(node.op[6:]), column) if scaled else column if node.op == "tuple" else node


def as_tuple(node: Node) -> Node:
    """A matrix of one row or one column as a tuple; anything else as it is."""
    if node.op != "matrix" or (len(node.args) > 1 and len(node.args[0].args) > 1):
        return node
    return Node("tuple", tuple(entry for row in node.args for entry in row.args))


def as_matrix(node: Node) -> Node:
    """Rows in brackets, `[[1, 2], [3, 4]]`, as a matrix; anything else as it is."""
    rows = node.args if node.op in _BRACKETED and all(row.op in _BRACKETED for row in node.args) else ()
    return _matrix([row.args for row in rows]) if rows and len({len(row.args) for row in rows}) == 1 else node


def _entrywise(combine: Callable[..., Node], matrices: list[Node]) -> Node:
    rows = zip(*(each.args for each in matrices), strict=True)
    return _matrix([tuple(map(combine, *(row.args for row in each))) for each in rows])


def _product(first: Node, second: Node) -> Node:
    if len(first.args[0].args) != len(second.args):
        raise Unreadable("matrices that do not fit")
    columns = list(zip(*(row.args for row in second.args), strict=True))
    if len(first.args) * len(columns) * max(sum(1 for _ in ex.parts(each)) for each in (first, second)) > _MOST_TERMS:
        raise TooMuch("too large a product of matrices")
    return _matrix([tuple(ex.plus(*map(ex.times, row.args, each)) for each in columns) for row in first.args])


def _matrix(rows: list[tuple[Node, ...]]) -> Node:
    return Node("matrix", tuple(Node("row", row) for row in rows))


CLOSERS = {"(": ")", "[": "]", "{": "}", "⦃": "⦄", "⌊": "⌋", "⌈": "⌉", "|": "|", "‖": "‖"}


class Cursor:
    """Tokens, and the place of the one that comes next; raises `Unreadable` where another one must stand there."""

    def __init__(self, tokens: Sequence[Token], place: int = 0) -> None:
        self.tokens = [*tokens, END]
        self.place = place
        self._bars = self._depth = 0  # open absolute values, open expressions

    @property
    def next(self) -> Token:
        """The token that comes next; of kind `end` after the last."""
        return self.tokens[self.place]

    def _at(self, *texts: str) -> bool:
        token = self.tokens[self.place]
        return token.kind == "symbol" and token.text in texts

    def _step(self) -> str:
        if self.next is END:
            raise Unreadable("the expression breaks off")
        self.place += 1
        return self.tokens[self.place - 1].text

    def _take(self, text: str) -> None:
        if not self._at(text):
            raise Unreadable(f"{text!r} is missing before {self.next.text!r}")
        self.place += 1

    def inside(self, opener: str) -> list[Token]:
        """The tokens of a group that begins here; steps over it."""
        depth = 0
        for place in range(self.place, len(self.tokens)):
            token = self.tokens[place]
            depth += (token.text == opener) - (token.text == CLOSERS[opener])
            if depth == 0:
                begin, self.place = self.place, place + 1
                return self.tokens[begin + 1 : place]
        raise Unreadable(f"{opener!r} is never closed")


_BARS = {"|": "abs", "‖": "norm", "⌊": "floor", "⌈": "ceil"}
_DEEPEST = 60
_INVERSES = {each: f"arc{each}" for each in ("sin", "cos", "tan", "cot", "sinh", "cosh", "tanh")}
_APPLIED = frozenset((*"fghFGHPQ", "Gamma"))  # a letter before parentheses that is always a function of what is in them
_ACCENTS = frozenset(("hat", "vec", "dot", "ddot", "tilde", "overline", "widehat"))
_SEVERAL = ("max", "min", "gcd", "lcm")
_DIFFERENTIAL = re.compile(r"(?:d|partial)(?: \^ \{? ?(\d) ?\}?)? ?(.*)")


class Parser(Cursor):
    """Reads expressions from tokens; `place` is where it stands.

    Raises `Unreadable` if there is no expression at that place.
    """

    def whole(self) -> Node:
        """The expression that all the tokens are."""
        found = self.expression()
        if self.next is not END:
            raise Unreadable(f"{self.next.text!r} after the expression")
        return found

    def expression(self) -> Node:
        """The longest expression from here on."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unreadable("too deeply nested")
        terms: list[Node] = []
        while True:
            sign = self.next.text if self._at("+", "-", "±", "∓") else ""
            if not sign and terms:
                break
            self.place += bool(sign)
            while sign in ("+", "-") and self._at("+", "-"):  # `- -1`
                sign = "+" if self._step() == sign else "-"
            term = self._product()
            terms.append(ex.minus(term) if sign == "-" else ex.call(sign, term) if sign in ("±", "∓") else term)
        self._depth -= 1
        return ex.plus(*terms)

    def _product(self) -> Node:
        factors = [self._power()]
        while True:
            if self._at("*", "/", "×"):
                sign, denominator = self._step(), self.next.kind == "letter"
                factor = self._signed()
                while sign == "/" and denominator and self.next.kind == "letter" and not self.next.space:  # t/RC
                    factor = ex.times(factor, self._power())
                if sign == "×" and ex.names_in(factors[-1]) and ex.names_in(factor):
                    factors[-1] = ex.call("cross", factors[-1], factor)
                else:
                    factors.append(ex.power(factor, ex.MINUS_ONE) if sign == "/" else factor)
            elif self._at("∘") and factors[-1].op == "name":
                self.place += 1
                factors[-1] = ex.name(f"{factors[-1].value}∘{self._power()}")  # one name, applied to what follows it
            elif self._at("(") and factors[-1].op == "name" and "∘" in factors[-1].value:
                applied = self._arguments()
                for each in reversed(factors.pop().value.split("∘")):
                    applied = (ex.call(f"apply {each}", *applied),)
                factors += applied
            elif self._begins_factor():
                factors.append(self._power())
            elif self.next.text == "mod" and self.next.kind != "symbol":
                self.place += 1
                return ex.call("mod", ex.times(*factors), self._product())
            else:
                return ex.times(*factors)

    def _signed(self) -> Node:
        if self._at("-", "+"):
            return ex.minus(self._signed()) if self._step() == "-" else self._signed()
        return self._power()

    def _begins_factor(self) -> bool:
        """Whether what comes next is multiplied with what stands before it; a number is not, nor a word."""
        token, before = self.next, self.tokens[self.place - 1]
        if before.text == "°" and token.text in ("N", "S", "E", "W"):  # 30° N
            return False
        if token.kind in ("letter", "command"):
            return token.text not in ("mod", "pmod") and not token.text.startswith("end ")
        if token.kind == "number":
            return before.text == "i" or (before.kind == "symbol" and before.text in (")", "]", "}", "!"))
        if token.text == "{":  # a group; after a number not one of digits
            following = self.tokens[self.place + 1 : self.place + 2]
            return before.kind != "number" or not following or following[0].kind != "number"
        following = self.tokens[self.place + 1 : self.place + 2]
        if token.text == "(" and following and following[0].kind == "word" and len(following[0].text) > 1:
            return False  # 18 (dollars)
        word = token.kind == "word" and token.text in ("e", "i")
        return word or self._at("(", "[", "⌊", "⌈", "∞") or (self._at("|", "‖") and not self._bars)

    def _power(self) -> Node:
        base = self._postfix(self._primary())
        if not self._at("^"):
            return base
        self.place += 1
        exponent = self._exponent()
        if base.op == "name" and base.value in _APPLIED and self._at("("):  # f^{-1}(x)
            return ex.call(f"apply {base.value}^{exponent}", *self._arguments())
        return self._postfix(ex.power(base, exponent))

    def _exponent(self) -> Node:
        if self._at("-", "+"):
            return ex.minus(self._exponent()) if self._step() == "-" else self._exponent()
        if self._at("*"):
            return ex.name(self._step())  # the dual, the conjugate: x^*
        base = self._postfix(self._primary())
        if self._at("^"):
            self.place += 1
            return ex.power(base, self._exponent())
        return base

    def _postfix(self, node: Node) -> Node:
        while self._at("!", "°", "%", "‰") or (self._at("′") and node.op != "name"):
            sign = self._step()
            if sign == "°":
                node = self._degrees(node)
            elif sign in ("%", "‰"):
                node = ex.over(node, ex.number(100 if sign == "%" else 1000))
            elif sign == "!" and self._at("!"):
                self.place += 1
                node = ex.call("double factorial", node)
            else:
                node = ex.call("factorial" if sign == "!" else "prime", node)
        return node

    def _degrees(self, node: Node) -> Node:
        """Degrees, with minutes and seconds of arc where they follow: `30^\\circ 15'`."""
        share = 60
        while self.next.kind == "number" and [each.text for each in self.tokens[self.place + 1 :][:1]] == ["′"]:
            node = ex.plus(node, ex.over(number_of(self._step()), ex.number(share)))
            share *= 60
            while self._at("′"):
                self.place += 1
        return ex.call("degree", node)

    def _primary(self) -> Node:
        token = self.next
        if token.kind == "number":
            return self._mixed()
        if token.kind == "letter" or (token.kind == "word" and len(token.text) == 1):
            return self._letter()
        if token.kind == "command":
            return self._command(self._step())
        if self._at("(", "[", "{"):
            inner = self._arguments()
            return inner[0] if len(inner) == 1 else Node("tuple", inner)
        if self._at(*_BARS):
            self.place += 1
            self._bars += token.text in "|‖"
            inner = (self.expression(),)
            self._bars -= token.text in "|‖"
            self._take(CLOSERS[token.text])
            return Node(_BARS[token.text], inner)
        if self._at("∞"):
            self.place += 1
            return ex.INFINITY
        raise Unreadable(f"no expression at {token.text!r}" if token is not END else "the expression breaks off")

    def _mixed(self) -> Node:
        """A number, or a mixed one: `1\\frac12`, `1 1/2`."""
        whole, begin = number_of(self._step()), self.place
        if self.next[:2] == ("command", "frac"):
            self.place += 1
            top, bottom = self._argument(), self._argument()
        elif self.next.kind == "number" and [token.text for token in self.tokens[begin + 1 : begin + 2]] == ["/"]:
            top = number_of(self._step())
            self.place += 1
            bottom = self._primary()
        else:
            return whole
        if whole.op == top.op == bottom.op == "number":
            if not 0 < top.value < bottom.value:
                raise Unreadable("a number before a fraction that is not below 1")
            return ex.plus(whole, ex.over(top, bottom))
        self.place = begin
        return whole

    def _letter(self) -> Node:
        text = self._step()
        if text in ("e", "i") and not self._at("_", "′"):
            return ex.E if text == "e" else ex.UNIT
        if text == "Delta" and self.next.kind == "letter":  # Δx is one name
            text = f"Delta {self._step()}"
        return self._named(text)

    def _named(self, text: str) -> Node:
        """A name with its index and primes, `a_{n+1}`, `y'`, and what it is a function of."""
        begin = text
        while self._at("_", "′"):
            if self._step() == "′":
                text += "'"
                continue
            inner = self.inside("{") if self._at("{") else [Token("", self._step())]
            index = "".join(token.text for token in inner)
            text += "_" + ("+".join(sorted(index.split("+"))) if "+" in index and index.isascii() else index)
        applied = self._at("(") and self._applies(begin)
        return ex.call(f"apply {text}", *self._arguments()) if applied else ex.name(text)

    def _applies(self, text: str) -> bool:
        """Whether a name before parentheses is a function of what is in them, no factor: `f(x+1)`, `x(t)`, `I(0)`."""
        begin = self.place
        inner = self.inside("(")
        self.place = begin
        single = len(inner) == 1 and inner[0].kind in ("number", "letter") and inner[0].text != text
        return text in _APPLIED or single or any(token.text == "," for token in inner)

    def _argument(self) -> Node:
        """The argument of a command: a group, a number or a letter."""
        if self.next.kind == "number":
            return number_of(self._step())
        if self.next.kind == "letter":
            text = self._step()
            return {"e": ex.E, "i": ex.UNIT}.get(text, ex.name(text))
        return self._primary()

    def _arguments(self) -> tuple[Node, ...]:
        """The expressions in a pair of brackets, which commas separate."""
        opener = self.next.text
        if not self._at("(", "[", "⦃", "{"):
            return (self._argument(),)
        self.place += 1
        bars, self._bars = self._bars, 0
        inner = Cursor(self.tokens, self.place - 1).inside("(") if opener == "(" else []
        conditional = sum(token.text == "|" for token in inner) == 1
        self._bars += conditional
        found = [self.expression()]
        if conditional and self._at("|"):  # P(A | B)
            self.place += 1
            found = [ex.call("given", *found, self.expression())]
        while self._at(",", ";") and opener != "{":
            self.place += 1
            found.append(self.expression())
        self._take(CLOSERS[opener])
        self._bars = bars
        return tuple(found)

    def _command(self, text: str) -> Node:
        if text == "frac":
            return self._fraction()
        if text == "sqrt":
            degree = Parser(self.inside("[")).whole() if self._at("[") else ex.number(2)
            return ex.power(self._argument(), ex.over(ex.ONE, degree))
        if text == "binom":
            return ex.call("binom", *(self._arguments() if self._at("(") else (self._argument(), self._argument())))
        if text == "pi":
            return ex.PI
        if text in FUNCTIONS or text == "abs":
            return self._function(text)
        if text in ("sum", "prod", "int", "lim"):
            return self._undone(text)
        if text in _ACCENTS:
            group = self.inside("{") if self._at("{") else [Token("", self._step())]
            inner = "".join(token.text for token in group if token.text not in ("vec", "{", "}"))
            if inner.isdigit():
                raise Unreadable("a line over digits")
            if text == "overline" and any(token.text == "i" for token in group):
                number = Parser(group).whole()
                if not ex.names_in(number):
                    return ex.replaced(number, ex.UNIT, ex.minus(ex.UNIT))
            return self._named(f"{'vec' if inner in ('i', 'j', 'k') and 'hat' in text else text} {inner}")
        if text in ("angle", "triangle"):
            begin = self.place
            while self.next.kind in ("letter", "word") or (self._at("_") and self.place > begin):
                if self._step() == "_":
                    self.inside("{") if self._at("{") else self._step()
            return ex.name(" ".join((text, "".join(token.text for token in self.tokens[begin : self.place]))))
        if text.startswith("begin ") and text.endswith(("matrix", "array")) and "vmatrix" not in text.lower():
            return self._matrix(text.removeprefix("begin "))
        raise Unreadable(f"{text} is no part of an expression")

    def _fraction(self) -> Node:
        """A fraction, or a derivative: `\\frac{dy}{dt}`, `\\frac{d^2}{dx^2} y`."""
        begin = self.place
        if self._at("{"):
            upper = self.inside("{")
            top = _DIFFERENTIAL.fullmatch(" ".join(token.text for token in upper))
            if top is not None and self._at("{"):
                below = [token.text for token in self.inside("{")]
                if below[:1] in (["d"], ["partial"]) and below[1:2] and below[1].isalpha():
                    rest = upper[len(upper) - len(top[2].split()) :]
                    what = Parser(rest).whole() if rest else self._product()
                    return ex.call("derivative", what, ex.name(below[1]), ex.number(int(top[1] or 1)))
        self.place = begin
        return ex.over(self._argument(), self._argument())

    def _function(self, text: str) -> Node:
        """A named function of what follows: parentheses, or the product up to the next function."""
        base = exponent = None
        while self._at("_", "^"):
            if self._step() == "_":
                base = self._primary()
            else:
                exponent = self._exponent()
        if text in _SEVERAL:
            found = ex.call(text, *self._arguments())
        else:
            argument = self._function_argument()
            if exponent == ex.MINUS_ONE and text in _INVERSES:
                text, exponent = _INVERSES[text], None
            if text == "exp":
                found = ex.power(ex.E, argument)
            elif text == "log" and base is not None:
                found = ex.call("ln", argument) if base == ex.E else ex.call("log", argument, base)
            else:
                found = ex.call(text, argument)
        return found if exponent is None else ex.power(found, exponent)

    def _function_argument(self) -> Node:
        if self._at("(", "[", "{", "|", "⌊"):
            bars, self._bars = self._bars, 0
            inner = self._primary()
            self._bars = bars
            return inner
        factors = [self._signed()]
        while self._begins_factor() and self.next.text not in FUNCTIONS and not self._at("(", "["):
            factors.append(self._power())
        return ex.times(*factors)

    def _matrix(self, kind: str) -> Node:
        """A matrix."""
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        if kind == "array" and self._at("{"):  # how its columns are aligned
            self.inside("{")
        while self.next.text != f"end {kind}":
            if self._at("\\\\"):
                rows.append(tuple(row))
                row = []
            if self._at("\\\\", "&"):
                self.place += 1
            else:
                row.append(self.expression())
        self.place += 1
        rows += [tuple(row)] if row else []
        if not rows or len({len(each) for each in rows}) != 1:
            raise Unreadable("rows of different lengths")
        return _matrix(rows)

    def _undone(self, text: str) -> Node:
        """A sum, product, integral or limit: its body, and as a name what it runs over."""
        bounds: dict[str, list[str]] = {"_": [], "^": []}
        while self._at("_", "^"):
            bound = bounds[self._step()]
            begin = self.place
            if self._at("{"):
                bound += [token.text for token in self.inside("{")]
                continue
            if self.next.kind in ("number", "letter"):  # ^n_{k = 1}: n has no index
                self.place += 1
            else:
                self._exponent()
            bound += [token.text for token in self.tokens[begin : self.place]]
        by = ""
        if text == "int":
            pairs = [(first.text, after.kind, after.space) for first, after in pairwise(self.tokens)]
            end = next((at for at in range(self.place, len(pairs)) if pairs[at] == ("d", "letter", False)), None)
            if end is None:
                raise Unreadable("an integral without its differential")
            body = Parser(self.tokens[self.place : end]).whole() if end > self.place else ex.ONE
            by, self.place = self.tokens[end + 1].text, end + 2
        else:
            body = self._product()
        op = {"int": "integral", "lim": "limit", "prod": "Π"}.get(text, "Σ")
        return undone(op, body, bounds["_"], bounds["^"], by)


def number_of(text: str) -> Node:
    """A number as it is written: with a point a decimal, which keeps its digits."""
    text = text.rstrip(".")
    return Node("decimal", (), text if text[0] != "." else f"0{text}") if "." in text else ex.number(Fraction(text))
