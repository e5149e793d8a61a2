r"""Tokens of an answer, from the LaTeX, Unicode and plain text that models write.

Fonts, colours, tags, spacing, `\left`, full-width and superscript digits are dropped or replaced. The tables list every
command and character with a rule: functions, commands with the same meaning, commands that only change the appearance.
One pass over the text, linear in its length.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from itertools import pairwise

from strop_verify.math.expressions import END, Token, Unreadable
from strop_verify.math.units import known_unit
from strop_verify.words import WORDS, by_word

GREEK = frozenset("""
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega
    Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega hbar ell mho odot aleph nabla partial
""".split())  # noqa: SIM905
FUNCTIONS = frozenset("""
    sin cos tan cot sec csc cis sinh cosh tanh arcsin arccos arctan arccot arcsinh arccosh arctanh log ln exp max min
    gcd lcm det mod sqrt floor ceil
""".split())  # noqa: SIM905
# A symbol or command, and what means the same; then the next.
_SYNONYMS = r"""
* cdot ast star; × times; ∘ circ; / div; ^ **; ≤ le leq leqslant <=; ≥ ge geq geqslant >=; < lt; > gt; ≠ ne neq !=
= ==; ≈ approx simeq approxeq sim; ≡ equiv; ∈ in; ∉ notin; ∪ cup; ∩ cap; ∖ setminus backslash
→ to rightarrow longrightarrow rightleftharpoons ⟶ ⇌ -> -->; ⊂ subset; ⊆ subseteq; ⊃ supset; ⊇ supseteq
∥ parallel; ⊥ perp; ≅ cong; ⇒ Rightarrow implies =>
↔ leftrightarrow Leftrightarrow iff <=> ⇔; ⊕ oplus; ∞ infty; ± pm; ∓ mp
∅ emptyset varnothing O; ∄ nexists; … ldots dots cdots dotsc dotsb vdots ...; | mid vert lvert rvert; ‖ Vert |
⦃ { lbrace; ⦄ } rbrace; ⌊ lfloor; ⌋ rfloor; ⌈ lceil; ⌉ rceil; ( langle; ) rangle; [ lbrack; ] rbrack
° degree textdegree; ′ prime '; % %; ‰ permil; $ $; € euro; £ pounds; # #; _ _; : colon; \\ \ cr newline
and land wedge &; or lor vee; frac dfrac tfrac cfrac nicefrac sfrac xfrac; binom dbinom tbinom; overline bar; pmod pod
mod bmod; log lg; csc cosec; tan tg; arctan arctg; cot ctg cotg
Å AA; sin sen; arcsin arcsen; arcsinh arsinh asinh; arccosh arcosh acosh
arctanh artanh atanh; angle measuredangle; ℝ R; ℤ Z; ℕ N; ℚ Q; ℂ C; epsilon varepsilon; theta vartheta; phi varphi
rho varrho; vec overrightarrow; i imath; j jmath
"""
SAME = {same: each.split()[0] for each in re.split("[;\n]", _SYNONYMS.strip()) for same in each.split()[1:]}
SPACES = frozenset((*",;:> ()[]", "quad", "qquad", "enspace", "thinspace", "hfill", "space", "par", "null"))
NOTHING = frozenset("""
    ! left right num displaystyle textstyle scriptstyle limits nolimits nonumber notag middle mathop boxed fbox framebox
    boldsymbol bm pmb mathbf mathit mathcal mathscr mathfrak mathsf mathnormal underline underbrace overbrace big Big
    bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr bf it rm sf tt em normalfont tiny scriptsize footnotesize
    small normalsize large Large LARGE huge Huge bfseries centering centerline smash strut mathstrut therefore
    ensuremath ce mathrel mathbin mathinner mleft mright forall square blacksquare Box qed checkmark
""".split())  # noqa: SIM905
BOLD = frozenset(("mathbf", "boldsymbol", "bm", "pmb"))  # of one small letter: a vector
LOWER = frozenset("abcdfghijklmnopqrstuvwxyz")  # e is the number
FONTS = ("", "bf", "it", "rm", "normal", "sf", "tt", "sc", "up", "md")
TEXT = frozenset(("emph", "mbox", "hbox", *(f"text{font}" for font in FONTS)))
UPRIGHT = frozenset(("mathrm", "operatorname", "operatorname*", "mathtt"))
# Commands that go with their first argument; environments that only lay out what is in them.
DROPPED = frozenset("color textcolor colorbox tag tag* label phantom hphantom vphantom hspace vspace hskip".split())  # noqa: SIM905
LAYOUT = frozenset(("align", "aligned", "equation", "gather", "gathered", "split", "center", "math", "displaymath"))
SETS = {"R": "ℝ", "Z": "ℤ", "N": "ℕ", "Q": "ℚ", "C": "ℂ"}
CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−–—‐‑‒―", "-"), **dict.fromkeys("·⋅∗•\u2062", "*"), **dict.fromkeys("÷∕⁄", "/"),
        **dict.fromkeys("⩽≦", "≤"), **dict.fromkeys("⩾≧", "≥"), **dict.fromkeys("≃≅∼", "≈"),
        **dict.fromkeys("′’‘", "'"), **dict.fromkeys("º˚", "°"), **dict.fromkeys("⟨〈", "("),
        **dict.fromkeys("⟩〉", ")"), **dict.fromkeys("，、،", ","), **dict.fromkeys("Øø", "∅"),
        **dict.fromkeys("；؛", ";"), "٫": ".", "٬": "", "٪": "%",
        **dict.fromkeys("\u200b\u200c\u200d\ufeff\u2061", None), "∶": ":", "″": "''",
        "｛": r"\{", "｝": r"\}", "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ", "√": r"\sqrt ", "∛": r"\sqrt[3]",
        "△": r"\triangle ", "∠": r"\angle ", "µ": r"\mu ", "ϕ": r"\phi ", "ϵ": r"\epsilon ", "。": ".",
        **{symbol: rf"\mathbb{{{letter}}}" for letter, symbol in SETS.items()},
        **{chr(code): rf"\{unicodedata.name(chr(code)).split()[-1].lower().replace('lamda', 'lambda')} "
           for code in range(0x3B1, 0x3CA) if code != 0x3C2},
        **{letter: rf"\{unicodedata.name(letter).split()[-1].capitalize()} " for letter in "ΓΔΘΞΠΣΦΨΩ"},
        **dict.fromkeys("“”„「」『』✓✔✅□■∎∀", " "),
    }
)  # fmt: skip
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n", strict=True))
ORDINALS = ("st", "nd", "rd", "th")
SHORT_WORDS = frozenset(WORDS["short"].split())


_VULGAR = re.compile("[¼-¾⅐-⅞↉]|[⁰¹²³⁴-⁹]+⁄[₀-₉]+")
_SPECIAL = re.compile(r"<\|[A-Za-z0-9_]{1,40}\|>")
_TWICE_ESCAPED = re.compile(r"(?<!\\)\\\\(?=(?:[dtc]?frac|sqrt|boxed|fbox|left|right|pi|text|cdot|times)\b)")
_IDEOGRAPHIC, _APART = "\u3040-\u9fff\uac00-\ud7af", "每万萬亿億만억"
_SCRIPTS = re.compile(f"[{_APART}]|(?:(?![{_APART}])[{_IDEOGRAPHIC}])+|[^{_IDEOGRAPHIC}]+")
_SIGN = r"(?:\\(?:circ|degree|textdegree|prime)(?![A-Za-z])|[°∘′'])"  # of an angle or a derivative
_NOT = {"=": "≠", r"\in": "∉"}
_CIRCLE = re.compile(r"\\circ|∘")
_MARKS = by_word("marks")
_MARKED = re.compile(r"[\s$]*(?:\\text\s?\{)?\s*(\\[a-z]{4,9}|[^\w\s$\\])\s*\}?[\s$]*")
_NOT_DIGIT = re.compile(r"\D")
_COUNTS = {"C": r"\binom{{{0}}}{{{1}}}", "P": r"\frac{{({0})!}}{{({0}-{1})!}}"}
_UNITS = r"((?:\\(?:text|mathrm)\s?\{[^{}]*\}|\^\s?(?:\d|\{-?\d\})|\\cdot|\\,|\s)+)"
_FEW, _LOOP, _DOTS = r"\d{0,20}", r"\d{1,20}", r"(?:\\[lc]?dots(?![A-Za-z])|\.\.\.|…)"
_RULES: tuple[tuple[str, str, str | Callable[[re.Match[str]], str]], ...] = (
    ("\\\\[", r"\\\\\[-?[\d.]+\s?(?:pt|em|ex|mm|cm|in|px)\]", r"\\\\"),  # \\[4pt]
    ("array", r"\\(?:\{|lbrace)\s*\\begin\s?\{array\}\s?\{[^{}]*\}((?s:.*?))\\end\s?\{array\}(?:\s*\\right\s?\.)?",
     r"\\begin{cases}\1\\end{cases}"),
    ("/", r"(?<![A-Za-z\\])d([A-Za-z])\s?/\s?d([A-Za-z])(?![A-Za-z])", r"\\frac{d\1}{d\2}"),  # dy/dt
    ("\\over", r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"{\\frac{\1}{\2}}"),
    ("\\choose", r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}", r"{\\binom{\1}{\2}}"),
    ("frac", rf"(?<=.)\\[dt]?frac\s?\{{{_UNITS}\}}\s?\{{{_UNITS}\}}", r"\1/\2"),  # 9.8 \frac{\text{m}}{\text{s}^2}
    ("\\", r"\\(?:SI|qty)\s?\{([^{}]*)\}\s?\{([^{}\\]*)\}", r"\1\\text{ \2}"),
    ("", r"(?<![\d.])(?<![^\\],)[1-9]\d{0,2}(?:(?:\{,\}|,\\!|\\[,!;: ]|~)\s{0,2}\d{3})+(?!\d)",
     lambda match: _NOT_DIGIT.sub("", match[0])),
    (",", r"(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3})+)(?:,|\{,\})(\d{1,2})(?!\d|,)",
     lambda match: f"{match[1].replace('.', '')}.{match[2]}"),  # 1.250,50
    ("", r"(?<=\d)(?:[eE]|\\(?:mathrm|text)\s?\{[eE]\}\s?)(?:\{([+-]?\d{1,6})\}|\+?(-?\d{1,6}))(?!\w|\.\d)",
     lambda match: rf"\times10^{{{match[1] or match[2]}}}"),  # 1.6e-19, 1.6\mathrm{e}{-19}
    ("_", r"(?<![\w)\]}|!'])(?:\{\})?[_^]\s?\{?(\w{1,6})\}?\s?(?:\\(?:mathrm|text)\s?)?\{?([CP])\}?_\s?\{?(\w{1,6})\}?",
     lambda match: _COUNTS[match[2]].format(match[1], match[3])),  # {}_{10}C_3, ^nP_k
    ("^", rf"\^\s*(?:\{{\s*((?:{_SIGN}\s*)+)\}}|({_SIGN}))", lambda match: _CIRCLE.sub("°", match[1] or match[2])),
    ("^", r"(?<=\d)\^\s*(?:\{\s*o\s*\}|o)(?![A-Za-z])", "°"),
    ("^", r"(?<=\d)\^\s*\{?\s*(?:\\(?:text|mathrm|rm)\w*\s?\{?\s*)?(?:st|nd|rd|th)\b\s*\}?\s*\}?", ""),
    ("\\not", r"\\not\s?(=|<|>|\\equiv(?![a-z])|\\in(?![a-z]))", lambda match: _NOT.get(match[1], "≢")),
    ("np.", r"(?<![\w.\\])np\.(?=[a-z])", ""),
    ("{,}", r"(?<![\d.,}])(0\{,\}\d{1,20}|[1-9]\d{0,20}\{,\}(?:\d{1,2}|\d{4,20}))(?![\d.]|\{?,)",
     lambda match: match[0].replace("{,}", ".")),
    ("{", r"\{([:,;])\}", r"\1 "),
    (" ", r"(?<![\d.,])(?<!\d )([1-9]\d{0,2}(?: \d{3})+)(?:([.,])(\d+))?(?! ?[\d/]|[.,]\d)",
     lambda match: f"{match[1].replace(' ', '')}{match[2] and '.' or ''}{match[3] or ''}"),  # 1 234,5
    ("\\overset", r"\\overset\s?\{(?:\\cdot|\.)\}", r"\\dot"),
    ("\\dot", r"\\dot\s?\{?(\d)\}?(\d{0,18})\\dot\s?\{?(\d)\}?", r"\\overline{\1\2\3}"),  # 0.\dot14285\dot7
    (".", rf"(?<![\d.])({_FEW})\.({_FEW})(?:\\(?:overline|bar|dot)\s?\{{?({_LOOP})\}}?|\(({_LOOP})\))(?!\d){_DOTS}?",
     lambda match: _repeating(match[1], match[2], match[3] or match[4])),
    (".", rf"(?<![\d.])({_FEW})\.({_FEW}?)(\d{{1,9}})\3\3?{_DOTS}", lambda match: _repeating(*match.groups())),
)  # fmt: skip
_REWRITES = [(needed, re.compile(pattern), new) for needed, pattern, new in _RULES]  # only where its first text stands
_TOKEN = re.compile(
    r"(?P<space>\s+|~)|\\(?P<command>operatorname\*|q?quad|[A-Za-z]+|.)"
    r"|(?P<grouped>(?<!\d,)[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)(?:\.\d+)?)"
    r"|(?P<number>\d+\.\d+|\.\d+|\d+(?:\.(?=\s?[/*+^)-]))?)|(?P<letters>[^\W\d_]+)"
    r"|(?P<symbol>\.\.\.|<=|>=|!=|==|-->|->|=>|\*\*|.)",
    re.DOTALL,
)


def unescaped(text: str) -> str:
    r"""`text` of which every backslash was doubled on its way, mended: `\\boxed{…}` is taken for `\boxed{…}`."""
    return _TWICE_ESCAPED.sub(r"\\", text) if "\\\\" in text else text


def tokens(text: str) -> list[Token]:
    """The tokens of an answer; raises `Unreadable` where a group is never closed."""
    text = _SPECIAL.sub(" ", unescaped(text))
    if (mark := _MARKED.fullmatch(text)) is not None and mark[1] in _MARKS:  # of a statement that is true or false
        return [Token("word", _MARKS[mark[1]])]
    if not text.isascii():
        text = _VULGAR.sub(lambda part: rf"\frac{{{unicodedata.normalize('NFKC', part[0]).replace('⁄', '}{')}}}", text)
        text = re.sub(r"⁻(?=\d)", "-", text)
        text = re.sub(f"[{''.join(RAISED)}]+", lambda run: f"^{{{''.join(map(RAISED.__getitem__, run[0]))}}}", text)
        text = re.sub(f"[{''.join(LOWERED)}]+", lambda run: f"_{{{''.join(map(LOWERED.__getitem__, run[0]))}}}", text)
        text = re.sub("(\\d)\u0307", r"\\dot{\1}", text)
        text = re.sub("((?:\\d[\u0305\u0304])+)", lambda run: rf"\overline{{{_NOT_DIGIT.sub('', run[0])}}}", text)
        text = unicodedata.normalize("NFKC", text.translate(CHARACTERS)).translate(CHARACTERS)
        text = re.sub(r"[^\D0-9]", lambda digit: str(unicodedata.decimal(digit[0])), text)
    text = text.strip("*` \n").rstrip("\\")
    for needed, pattern, new in _REWRITES:
        text = pattern.sub(new, text) if needed in text else text
    found = _joined(_Tokenizer(text).run())
    return _formulas(found) if "_" in text else found


def _formulas(found: list[Token]) -> list[Token]:
    r"""Upright letters of which one has an index are names: `\mathrm{C_6H_{12}O_6}`."""
    upright = [token.kind == "word" and len(token.text) < 3 and token.text[0].isupper() for token in found]
    if not any(is_up and after.text == "_" for is_up, after in zip(upright, found[1:], strict=False)):
        return found
    split = ((token._replace(kind="letter", text=each) for each in token.text) if is_up else (token,)
             for token, is_up in zip(found, upright, strict=True))  # fmt: skip
    return [token for each in split for token in each]


def _repeating(whole: str, fixed: str, period: str) -> str:
    """A repeating decimal as a fraction in braces."""
    top = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"{{\frac{{{top}}}{{{10 ** len(fixed) * (10 ** len(period) - 1)}}}}}"


class _Tokenizer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Token] = []
        self.space = False
        self.aligned = False
        self.depth = 0  # of brackets, in which a comma separates

    def run(self) -> list[Token]:
        self._range(0, len(self.text), upright=False)
        return _in_lines(self.found) if self.aligned else self.found

    def _range(self, place: int, end: int, upright: bool) -> None:
        while place < end:
            match = _TOKEN.match(self.text, place, end)
            assert match is not None  # the last alternative takes anything
            kind = str(match.lastgroup)
            text, place = match[kind], match.end()
            if kind == "space":
                self.space = True
            elif kind == "command":
                place = self._command(text, place, end)
            elif kind == "grouped" and self.depth == 0:
                self._add("number", text.replace(",", ""))
            elif kind == "grouped":
                first = text.partition(",")[0]
                self._add("number", first)
                place = match.start() + len(first)
            elif kind == "number":
                self._number(text)
            elif kind == "letters":
                self._letters(text, upright, self.text[place : min(place + 3, end)].lstrip("{ ")[:1])
            elif text == "$":
                self._dollar(place)
            elif text not in '"`':
                self._symbol(SAME[text] if len(text) > 1 or text == "'" else text)

    def _add(self, kind: str, text: str) -> None:
        self.found.append(Token(kind, text, self.space))
        self.space = False

    def _number(self, text: str) -> None:
        r"""A number; after `\frac` its first digits are the arguments: `\frac12`."""
        if len(text) > 1 and text.isdigit():
            last, before = [*([("", "")] * 2), *(token[:2] for token in self.found[-2:])][:-3:-1]
            takes = [("command", "frac"), ("command", "binom")]
            base = (before, last) == (("command", "log"), ("symbol", "_"))  # `\log_28` is log₂8, `\log_10 2` log₁₀2
            second = before in takes and last[0] == "number" and len(last[1]) == 1 and not self.space
            power = last == ("symbol", "^") and before[0] == "command"  # `\\sin^230`
            if last in takes or base or second or power:
                length = 2 if base and text.startswith("10") else 1
                self._add("number", text[:length])
                return self._number(text[length:]) if text[length:] else None
        self._add("number", text)

    def _letters(self, text: str, upright: bool, after: str) -> None:
        """Upright or long ones are a word; others a function, a Greek letter, a word or the names of a product."""
        if not text.isascii() and len(runs := _SCRIPTS.findall(text)) > 1:  # 或x
            for run in runs:
                self._letters(run, upright, after)
            return None
        if upright:
            return self._add("word", text)
        last = self.found[-1] if self.found else None
        before = self.found[-2] if last is not None and last.text == "-" and self.found[1:] else last  # twenty-one
        apart = (self.space or before is None or before.kind == "word") and after not in ("^", "_")
        added = after in ("+", "=") or (last is not None and last.text == "+")
        measures = last is not None and (apart or last.kind == "number" or last.text == "/") and last.text != "frac"
        unit = known_unit(text) is not None and len(text) > 1 and measures
        named = text in FUNCTIONS or (len(text) > 2 and SAME.get(text) in FUNCTIONS)
        if named or text in ("pi", "lg", "binom", "abs"):
            return self._add("command", SAME.get(text, text))
        if text in GREEK:
            return self._add("letter", text)
        if text in ("pH", "pOH"):
            return self._add("word", text)
        if text in ("infinity", "oo"):
            return self._add("symbol", "∞")
        if text[:-1] in FUNCTIONS:  # sinx
            self._add("command", text[:-1])
            return self._add("letter", text[-1])
        title = len(text) > 2 and text[0].isupper() and text[1:].islower()
        long = len(text) > 3 and not any(map(str.isupper, text[1:]))  # GMmr is a product
        after_number = last is not None and last.kind == "number" and not self.space
        short = (apart and not added and text.lower() in SHORT_WORDS) or (after_number and text in ORDINALS)
        if unit or long or title or short or not text.isascii():
            return self._add("word", text)
        for letter in text:
            self._add("letter", letter)

    def _dollar(self, place: int) -> None:
        """A sign of currency where it is the only one and a number follows, else a delimiter."""
        if self.text.count("$") % 2 and self.text[place : place + 1].isdigit():
            self._add("symbol", "$")
        else:
            self.space = True

    def _symbol(self, text: str) -> None:
        self.depth += (text in ("(", "[", "⦃")) - (text in (")", "]", "⦄"))
        self._add("word" if text in ("and", "or") else "symbol", text)

    def _command(self, text: str, place: int, end: int) -> int:
        """Take a command and what it needs to be understood; returns where to go on."""
        if text in SPACES or text.isspace():
            self.space = True
        elif text in BOLD and (letter := self.text[slice(*self._group(place, end))].strip("{} ")) in LOWER:
            self._add("command", "vec")
            self._add("letter", letter)
            place = self._group(place, end)[1]
        elif text in ("mathbb", "Bbb") or (text in BOLD and self.found[-1:] and self.found[-1].text == "∈"):
            first, place = self._group(place, end)
            letter = self.text[first:place].strip("{} ")
            self._add("symbol" if letter in SETS else "letter", SETS.get(letter, letter))
        elif text in NOTHING:
            place += text in ("left", "right") and self.text[place : place + 1] == "."
        elif text in DROPPED:
            place = self._group(place, end)[1]
        elif text == "fcolorbox":
            place = self._group(self._group(place, end)[1], end)[1]
        elif text in ("begin", "end"):
            first, place = self._group(place, end)
            environment = self.text[first + 1 : place - 1].strip("* ")
            if environment not in LAYOUT:
                self._add("command", f"{text} {environment}")
            else:
                self.aligned = True
        elif text in TEXT or text in UPRIGHT:
            place = self._upright(text, place, end)
        else:
            text = SAME.get(text, text)
            named = text.isascii() and text.isalpha() and text not in ("and", "or")
            self._add("letter" if text in GREEK else "command", text) if named else self._symbol(text)
        return place

    def _upright(self, command: str, place: int, end: int) -> int:
        first, last = self._group(place, end)
        braced = self.text[first] == "{" if first < end else False
        content = self.text[first + braced : last - braced].strip()
        content = SAME.get(content, content) if command.startswith("operatorname") else content
        if content in FUNCTIONS or (command.startswith("operatorname") and content.isalpha()):
            self._add("command", content)
        else:
            self.space = self.space or command in TEXT
            self._range(first + braced, last - braced, upright=True)
        self.space = self.space or command in TEXT
        return last

    def _group(self, place: int, end: int) -> tuple[int, int]:
        """Where the argument at `place` begins and ends, its braces included."""
        while place < end and self.text[place].isspace():
            place += 1
        if self.text[place : place + 1] != "{":
            command = re.compile(r"\\(?:[A-Za-z]+|.)|.", re.DOTALL).match(self.text, place, end)
            return place, command.end() if command is not None else place
        depth = 0
        for at in range(place, end):
            if self.text[at] in "{}" and self.text[at - 1 : at] != "\\":
                depth += 1 if self.text[at] == "{" else -1
                if depth == 0:
                    return place, at + 1
        raise Unreadable("a brace is never closed")


def _in_lines(found: list[Token]) -> list[Token]:
    """Aligned lines as one chain where they begin with a sign, else as several answers; a matrix as it is."""
    if any(token.text.startswith("begin ") for token in found):
        return found
    found = [token for token in found if token.text != "&"]
    signs = ("=", "<", ">", "≤", "≥", "≈", "≡")
    return [
        token._replace(text=";") if token.text == "\\\\" else token
        for token, after in zip(found, [*found[1:], None], strict=True)
        if token.text != "\\\\" or (after is not None and after.text not in signs)
    ]


def _joined(found: list[Token]) -> list[Token]:
    """Words, sets and signs that what stands before or after them shows; no `th` after numbers."""
    out: list[Token] = []
    for token, after in pairwise((*found, END)):
        last = out[-1] if out else END
        if token[:2] == ("command", "min") and last.kind == "number" and after.text not in ("(", "{"):
            token = token._replace(kind="word")  # 30 minutes
        if token.kind == "letter" and token.text in SETS and last.text == "∈":  # k ∈ Z
            token = Token("symbol", SETS[token.text])
        if token.text == "-" and after.text == "⦃" and out:  # ℝ - {2}
            token = token._replace(text="∖")
        if token.text == "∘" and last.kind == "number":  # 30\circ
            token = token._replace(text="°")
        if not (token.text in ORDINALS and token.kind == "word" and last.kind == "number"):
            out.append(token)
    return out
