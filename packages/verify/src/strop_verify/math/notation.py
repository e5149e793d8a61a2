"""The notation that models write, in tables: functions, commands that mean the same, commands that are only looks."""

from __future__ import annotations

import unicodedata

GREEK = frozenset(
    """
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega
    Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega hbar ell mho odot aleph nabla partial
    """.split()  # noqa: SIM905
)
FUNCTIONS = frozenset(
    """
    sin cos tan cot sec csc cis sinh cosh tanh arcsin arccos arctan arccot log ln exp max min gcd lcm det mod sqrt floor
    ceil
    """.split()  # noqa: SIM905
)
# A symbol or command, and what means the same.
_SYNONYMS = r"""
* cdot times ast star
/ div
^ **
≤ le leq leqslant <=
≥ ge geq geqslant >=
< lt
> gt
≠ ne neq !=
= ==
≈ approx simeq approxeq sim
≡ equiv
∈ in
∉ notin
∪ cup
∩ cap
∖ setminus backslash
→ to rightarrow ->
⇒ Rightarrow implies =>
∞ infty
± pm
∓ mp
∅ emptyset varnothing O
∄ nexists
… ldots dots cdots dotsc dotsb vdots ...
| mid vert lvert rvert
‖ Vert |
⦃ { lbrace
⦄ } rbrace
⌊ lfloor
⌋ rfloor
⌈ lceil
⌉ rceil
( langle
) rangle
[ lbrack
] rbrack
° circ degree
′ prime '
% %
‰ permil
$ $
€ euro
£ pounds
# #
_ _
: colon
\\ \ cr newline
and land wedge &
or lor vee
frac dfrac tfrac cfrac
binom dbinom tbinom
overline bar
pmod pod
mod bmod
log lg
csc cosec
tan tg
arctan arctg
cot ctg
angle measuredangle
epsilon varepsilon
theta vartheta
phi varphi
rho varrho
vec overrightarrow
i imath
j jmath
"""
SAME = {same: line.split()[0] for line in _SYNONYMS.strip().splitlines() for same in line.split()[1:]}
SPACES = frozenset((*",;:> ()[]", "quad", "qquad", "enspace", "thinspace", "hfill", "space", "par", "null"))
NOTHING = frozenset(
    """
    ! left right displaystyle textstyle scriptstyle limits nolimits nonumber notag middle mathop boxed fbox framebox
    boldsymbol bm pmb mathbf mathit mathcal mathscr mathfrak mathsf mathnormal underline underbrace overbrace big Big
    bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr bf it rm sf tt em normalfont tiny scriptsize footnotesize
    small normalsize large Large LARGE huge Huge bfseries centering centerline smash strut mathstrut therefore
    ensuremath mathrel mathbin mathinner mleft mright forall square blacksquare Box qed checkmark
    """.split()  # noqa: SIM905
)
TEXT = frozenset(
    """
    text textbf textit textrm textnormal textsf texttt textsc textup textmd emph mbox hbox
    """.split()  # noqa: SIM905
)
UPRIGHT = frozenset(("mathrm", "operatorname", "operatorname*", "mathtt"))
# Commands that go with their first argument; environments that only lay out what is in them.
DROPPED = frozenset(
    """
    color textcolor colorbox tag tag* label phantom hphantom vphantom hspace vspace hskip
    """.split()  # noqa: SIM905
)
LAYOUT = frozenset(("align", "aligned", "equation", "gather", "gathered", "split", "center", "math", "displaymath"))
SETS = {"R": "ℝ", "Z": "ℤ", "N": "ℕ", "Q": "ℚ", "C": "ℂ"}
CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−–—‐‑‒―", "-"), **dict.fromkeys("×·⋅∗•\u2062", "*"), **dict.fromkeys("÷∕⁄", "/"),
        **dict.fromkeys("⩽≦", "≤"), **dict.fromkeys("⩾≧", "≥"), **dict.fromkeys("≃≅∼", "≈"),
        **dict.fromkeys("′’‘", "'"), **dict.fromkeys("º˚", "°"), **dict.fromkeys("⟨〈", "("),
        **dict.fromkeys("⟩〉", ")"), **dict.fromkeys("，、", ","), **dict.fromkeys("Øø", "∅"),
        **dict.fromkeys("\u200b\u200c\u200d\ufeff\u2061", None), "∶": ":", "″": "''",
        "｛": r"\{", "｝": r"\}", "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ", "√": r"\sqrt ", "∛": r"\sqrt[3]",
        "△": r"\triangle ", "∠": r"\angle ", "µ": r"\mu ", "ϕ": r"\phi ", "ϵ": r"\epsilon ", "。": ".",
        **{symbol: rf"\mathbb{{{letter}}}" for letter, symbol in SETS.items()},
        **{chr(code): rf"\{unicodedata.name(chr(code)).split()[-1].lower().replace('lamda', 'lambda')} "
           for code in range(0x3B1, 0x3CA) if code != 0x3C2},
        **{letter: rf"\{unicodedata.name(letter).split()[-1].capitalize()} " for letter in "ΓΔΘΞΠΣΦΨΩ"},
        **dict.fromkeys("“”„✓✔✅□■∎∀", " "),
    }
)  # fmt: skip
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n", strict=True))
ORDINALS = ("st", "nd", "rd", "th")
# Bare words of up to three letters; all others so short are products of names, unless they are units or have a capital.
SHORT_WORDS = frozenset(
    """
    no on is an as at be by do go he if in it me my of or so to up us we and all any are but for has how its men new not
    now off old one odd out red sum the too two six ten top use was way who why yes you set per day may am pm ad bc ce
    bce mod
    """.split()  # noqa: SIM905
)
