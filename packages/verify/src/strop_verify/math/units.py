r"""What a number counts or is measured in: known units with dimension and factor, multiples in words, counted things.

A word that is not in these tables is part of the answer: `12 lakh` is a multiple, `5 km north` a unit and a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from strop_verify.math.expressions import END, Token

# A definition, a colon, names; then the next. It is a factor and units, defined before or new (`#`), with powers.
_DEFINITIONS = """
1 #m: m meter meters metre metres 米 метр метра метров metro metros mètre mètres
1 #g: g gm gms gram grams 克 грамм грамма граммов gramm gramme grammes gramo gramos
1 #s: s sec secs second seconds 秒 сек секунд секунда секунды sekunde sekunden seconde secondes segundo segundos
1 #A: A amp amps ampere amperes; 1 #K: K kelvin kelvins; 1 #mol: mol mole moles; 1 #bit: bit bits
1 #rev: rev revs revolution revolutions
1 #usd: $ usd dollar dollars; 1 #eur: € eur euro euros; 1 #gbp: £ gbp; 1 #yen: ¥ yen; 1 #inr: ₹ inr rupee rupees rs
1 #peso: peso pesos; 1 #rub: ₽ руб рубль рубля рублей; 1 #celsius: °C celsius; 1 #fahrenheit: °F fahrenheit
1 #year: year years yr yrs 年 год года лет jahr jahre jahren ans año años
1 #degree: ° degree degrees; 1 #rad: rad rads radian radians; 1: unit units; 8 bit: B byte bytes
1/100 $: cent cents ¢ penny pennies; 1/100 £: pence
60 s: min mins minute minutes 分钟 мин минут минута минуты minuten minuto minutos
1/60 rev s^-1: rpm; 60 min: h hr hrs hour hours 小时 ч час часа часов stunde stunden heure heures hora horas
24 h: day days d 天 сут день дня дней tag tage tagen jour jours día días; 7 day: week weeks wk wks
1/100 m: 厘米; 1000 m: 千米 公里; 1000 g: 千克 公斤; 1/12 year: month months mo
254/10000 m: in inch inches; 12 in: ft foot feet; 3 ft: yd yds yard yards
1760 yd: mi mile miles; 45359237/100000 g: lb lbs pound pounds; 1/16 lb: oz ounce ounces
2000 lb: ton tons; 1000000 g: tonne tonnes; 1/1000 m^3: L l liter liters litre litres
3785411784/1000000000 L: gal gallon gallons; 1/4 gal: qt quart quarts; 1/2 qt: pt pint pints
1/2 pt: cup cups; 1/16 cup: tbsp tablespoon tablespoons; 1/3 tbsp: tsp teaspoon teaspoons
10000 m^2: ha hectare hectares; 4840 yd^2: acre acres; 1 mi h^-1: mph; 1000 m h^-1: kph kmh kmph
1000 g m s^-2: N newton newtons; 1 N m: J joule joules; 1 J s^-1: W watt watts; 1 N m^-2: Pa pascal pascals
1 s^-1: Hz hertz; 1 A s: C coulomb coulombs; 1 J C^-1: V volt volts; 1 V A^-1: Ω Omega ohm ohms
1 C V^-1: F farad farads; 1 V s m^-2: T tesla teslas; 1602176634/10000000000000000000000000000 J: eV
4184/1000 J: cal calorie calories; 101325 Pa: atm atmosphere atmospheres; 100000 Pa: bar bars; 101325/760 Pa: mmHg torr
1/10000000 J: erg ergs; 1/100000 N: dyn dyne dynes; 3600 J: Wh; 1 V s: Wb weber webers
1 V s A^-1: H henry henries; 1000 mol m^-3: M molar; 1 mol m^-3: mM; 1/1000 H: mH
149597870700 m: AU astronomicalunit astronomicalunits; 9460730472580800 m: ly lyr lightyear lightyears
30856775814913673 m: pc parsec parsecs; 1/10000000000 m: Å angstrom angstroms; 1852/3600 m s^-1: knot knots
1 m: м; 1 g: г; 1 s: с; 1000000 g: т; 1/1000 m^3: л литр литра литров; 1 N: Н; 1 J: Дж; 1 W: Вт; 1 Pa: Па; 1 Hz: Гц
1 V: В; 1 A: А; 1 ohm: Ом; 1 eur: евро; 1 usd: доллар доллара долларов
"""
_PREFIXES = {
    "k": 3, "M": 6, "G": 9, "T": 12, "c": -2, "d": -1, "m": -3, "μ": -6, "mu": -6, "u": -6, "n": -9, "p": -12,
    "к": 3, "М": 6, "с": -2, "д": -1, "м": -3, "мк": -6,
    "kilo": 3, "mega": 6, "giga": 9, "centi": -2, "deci": -1, "milli": -3, "micro": -6, "nano": -9,
}  # fmt: skip
_PREFIXED = "m g s A mol L l J W Pa Hz V N Ω Omega F C eV cal B bit K T Wb Wh bar pc ly м г с т л Н Дж Вт Па Гц В А"
_LONG_PREFIXED = "meter metre gram liter litre second joule watt pascal hertz volt newton amp byte bit calorie ohm"

MULTIPLES = {  # the largest first
    "quintillion": 10**18, "quadrillion": 10**15, "trillion": 10**12, "billion": 10**9, "million": 10**6,
    "crore": 10**7, "lakh": 10**5, "thousand": 10**3, "gross": 144, "hundred": 10**2, "score": 20, "dozen": 12,
}  # fmt: skip
CURRENCY = ("$", "€", "£", "¥", "₹", "₽")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "平方": 2, "立方": 3}
_RAISED = {"squared": 2, "cubed": 3}
# Countable nouns without an s; words with an s that are not counted; determiners.
_COUNTED = "people men women children mice geese sheep fish deer teeth person square dice"
_UNCOUNTED = """
times tens halves thirds quarters fourths fifths sixths sevenths eighths ninths tenths hundredths thousandths powers
inverses reciprocals negatives squares cubes roots multiples factors pairs degrees does percents percentages always
perhaps besides this upwards downwards backwards forwards clockwise grosses elevenths twelfths twentieths millionths
billionths factorials logarithms logs sines cosines tangents doubles triples ones twos threes fours fives googols
"""
_DETERMINERS = "any some different distinct possible such total unique ordered"


class Unit(NamedTuple):
    """A unit: its factor, and the powers of the base units in it; a plain count has none of these."""

    factor: Fraction
    dimension: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return " ".join((str(self.factor), *(f"{base}^{power}" for base, power in self.dimension)))

    def times(self, other: Unit, exponent: int = 1) -> Unit:
        """The product with a power of another unit."""
        powers = dict(self.dimension)
        for base, power in other.dimension:
            powers[base] = powers.get(base, 0) + power * exponent
        left = sorted((base, power) for base, power in powers.items() if power)
        return Unit(self.factor * other.factor**exponent, tuple(left))


_NONE = Unit(Fraction(1))


@cache
def table() -> dict[str, Unit]:
    """Every known unit by its names."""
    known: dict[str, Unit] = {}
    for line in re.split("; |\n", _DEFINITIONS.strip()):
        definition, _, names = line.partition(": " if ": " in line else ":")
        factor, *parts = definition.split()
        unit = Unit(Fraction(factor))
        for part in parts:
            text, _, exponent = part.partition("^")
            unit = unit.times(known.get(text) or Unit(Fraction(1), ((text[1:], 1),)), int(exponent or 1))
        known |= dict.fromkeys(names.split(), unit)
    longer = [*_LONG_PREFIXED.split(), *(f"{base}s" for base in _LONG_PREFIXED.split() if base != "hertz")]
    for prefix, power in _PREFIXES.items():
        for base in longer if len(prefix) > 3 else _PREFIXED.split():
            known.setdefault(prefix + base, Unit(Fraction(10) ** power).times(known[base]))
    return known


def known_unit(text: str) -> Unit | None:
    """The unit that a word names; longer words in any case."""
    return table().get(text) or (table().get(text.lower()) if len(text) > 2 else None)


def read_unit(tokens: Sequence[Token]) -> Unit | None:
    r"""The unit that all of some tokens are: `\text{ km}/\text{h}`, `square meters`, `cm^2`; None for anything else."""
    unit, sign, raised, place, found = _NONE, 1, 1, 0, False
    tokens = [each for each, after in pairwise((*tokens, END)) if each.text != "-" or after.kind == "number"]
    while place < len(tokens):
        text, two = tokens[place].text, "".join(token.text for token in tokens[place : place + 2])
        place += 1
        power = next((each for each in _POWERS if text.startswith(each) and not each.isascii()), "")  # 平方厘米
        if power and text != power:
            raised, text = _POWERS[power], text.removeprefix(power)
        if text in ("/", "per", "*", "×", "-", "."):
            if (not found and text != "per") or place == len(tokens):
                return None
            sign = -1 if text in ("/", "per") else sign
        elif text.lower() in _POWERS:
            raised, found = _POWERS[text.lower()], found or place == len(tokens)
        else:
            split = known_unit(text) is None or text == "°" or two.removeprefix(text) == "Omega"
            compound = place < len(tokens) and split and two in table()  # light years
            place += compound
            base = known_unit(two if compound else text)
            if base is None or tokens[place - 1].kind == "number":
                return None
            exponent, place = _exponent(tokens, place)
            unit, found, raised = unit.times(base, sign * raised * exponent), True, 1
    return unit if found else None


def _exponent(tokens: Sequence[Token], place: int) -> tuple[int, int]:
    """The exponent after a unit, and where it ends."""
    texts = [token.text for token in tokens[place : place + 5]]
    if texts and texts[0] in _RAISED:
        return _RAISED[texts[0]], place + 1
    if texts and texts[0] in ("2", "3") and not tokens[place].space:
        return int(texts[0]), place + 1
    if texts[:2] == ["^", "{"] and "}" in texts:
        digits, end = "".join(texts[2 : texts.index("}")]), place + texts.index("}") + 1
    else:
        digits, end = "".join(texts[1:2]) if texts[:1] == ["^"] else "", place + 2
    return (int(digits), end) if digits.lstrip("-").isdigit() and len(digits) < 3 else (1, place)


def counted(words: Sequence[str]) -> str | None:
    """The things that words name: `apples`, `distinct solutions`; None for words of any other kind.

    It is one noun, which may be a plural only, and before it a determiner.
    """
    determined = len(words) == 2 and words[0] in _DETERMINERS.split()
    noun = words[-1] if len(words) == 1 or determined else ""
    if len(noun) == 1 and unicodedata.category(noun) == "Lo" and unicodedata.numeric(noun, None) is None:
        return noun  # a counter, such as 个
    if not noun.isalpha() or noun.removesuffix("s") in MULTIPLES or noun in _UNCOUNTED.split():
        return None
    plural = len(noun) > 3 and noun.endswith("s") and not noun.endswith(("ss", "us", "is"))
    return noun if plural or determined or noun in _COUNTED.split() else None
