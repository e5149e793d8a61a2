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

# A definition, a colon, names in any language without accents; then the next. A definition is a factor and units,
# defined before or new (`#`), with powers.
_DEFINITIONS = """
1 #m: m meter meters metre metres metro metros metri м метр метра метров 米 メートル 미터 م متر मीटर मी; 1 #bit: bit bits
1 #g: g gm gms gram grams gramm gramme grammes gramo gramos г грамм грамма граммов 克 グラム 그램 غ جم غرام ग्राम
1 #s: s sec secs second seconds seconde secondes segundo segundos sekunde sekunden с сек секунда секунды секунд 秒 초 ث
1 #A: A amp amps ampere amperes А; 1 #K: K kelvin kelvins; 1 #mol: mol mole moles; 1 #inr: ₹ inr rupee rupees rs
1 #usd: $ usd dollar dollars доллар доллара долларов; 1 #gbp: £ gbp; 1 #yen: ¥ yen 円 日元; 1 #cny: 元 yuan; 1 #won: ₩ 원
1 #eur: € eur euro euros евро 欧元; 1 #rub: ₽ руб рубль рубля рублей; 1 #peso: peso pesos; 8 bit: B byte bytes
1 #celsius: °C celsius 摄氏度; 1 #fahrenheit: °F fahrenheit; 1 #rad: rad rads radian radians 弧度; 1: unit units
1 #year: year years yr yrs ans annees jahr jahre jahren ano anos год года лет 年 년
1 #degree: ° degree degrees deg degres grad grados gradi graus градус градуса градусов 度 도
1/100 $: cent cents ¢ penny pennies; 1/100 £: pence; 1/100 m: 公分 सेमी; 1000 m: 公里 किमी; 1000 g: 公斤 किग्रा
60 s: min mins minute minutes minuto minutos minuti minuten мин минута минуты минут 分 分钟 分鐘 分間 분 دقيقة
60 min: h hr hrs hour hours heure heures hora horas ora ore stunde stunden uhr ч час часа часов ساعة 时 時 時間 小时 小時
60 min: 点 點 시 시간; 24 h: day days d jour jours dia dias tag tage tagen день дня дней сут 天 日 日間 일 يوم
7 day: week weeks wk wks semaine semaines semana semanas woche wochen неделя недели недель 周 週間 주
1/12 year: month months mo mois mes meses monat monate месяц месяца месяцев; 254/10000 m: in inch inches
12 in: ft foot feet; 3 ft: yd yds yard yards; 1760 yd: mi mile miles; 45359237/100000 g: lb lbs pound pounds
1/16 lb: oz ounce ounces; 2000 lb: ton tons; 1000000 g: tonne tonnes т 吨 トン 톤
1/1000 m^3: L l liter liters litre litres litro litros л литр литра литров 升 リットル 리터 ل لتر
3785411784/1000000000 L: gal gallon gallons; 1/4 gal: qt quart quarts; 1/2 qt: pt pint pints
1/2 pt: cup cups; 1/16 cup: tbsp tablespoon tablespoons; 1/3 tbsp: tsp teaspoon teaspoons
10000 m^2: ha hectare hectares га 公顷; 4840 yd^2: acre acres; 1 mi h^-1: mph; 1000 m h^-1: kph kmh kmph
1 s^-1: Hz hertz Гц 秒速 毎秒 초속; 1 min^-1: 分速 毎分 분속; 1 h^-1: 時速 毎時 시속
1000 g m s^-2: N newton newtons Н; 1 N m: J joule joules Дж; 1 J s^-1: W watt watts Вт; 1 N m^-2: Pa pascal pascals Па
1 A s: C coulomb coulombs; 1 J C^-1: V volt volts В; 1 V A^-1: Ω Omega ohm ohms Ом; 101325 Pa: atm atmosphere atmospheres
1 C V^-1: F farad farads; 1 V s m^-2: T tesla teslas; 1602176634/10000000000000000000000000000 J: eV
4184/1000 J: cal calorie calories; 100000 Pa: bar bars; 101325/760 Pa: mmHg torr
3600 J: Wh; 1 V s: Wb weber webers; 1 V s A^-1: H henry henries; 1000 mol m^-3: M molar; 1 mol m^-3: mM; 1/1000 H: mH
149597870700 m: AU astronomicalunit astronomicalunits; 9460730472580800 m: ly lyr lightyear lightyears
30856775814913673 m: pc parsec parsecs; 1/10000000000 m: Å angstrom angstroms; 1852/3600 m s^-1: knot knots
"""
_PREFIXES = {
    "k": 3, "M": 6, "G": 9, "T": 12, "c": -2, "d": -1, "m": -3, "μ": -6, "mu": -6, "u": -6, "n": -9, "p": -12,
    "kilo": 3, "mega": 6, "giga": 9, "centi": -2, "deci": -1, "milli": -3, "micro": -6, "nano": -9, "zenti": -2,
    "mili": -3, "chilo": 3, "quilo": 3, "к": 3, "М": 6, "с": -2, "д": -1, "м": -3, "мк": -6, "кило": 3, "санти": -2,
    "милли": -3, "千": 3, "分": -1, "厘": -2, "毫": -3, "キロ": 3, "センチ": -2, "ミリ": -3, "킬로": 3, "센티": -2,
    "밀리": -3, "ك": 3, "س": -2, "م": -3,
}  # fmt: skip
_PREFIXED = "m g s A mol L J W Pa Hz V N Ω F C eV cal B bit K T Wb Wh bar pc ly"

MULTIPLES = {  # the largest first
    "quintillion": 10**18, "quadrillion": 10**15, "trillion": 10**12, "billion": 10**9, "million": 10**6,
    "crore": 10**7, "lakh": 10**5, "thousand": 10**3, "gross": 144, "hundred": 10**2, "score": 20, "dozen": 12,
    **dict.fromkeys("миллиард миллиарда миллиардов milliard milliarde milliarden".split(), 10**9),  # noqa: SIM905
    **dict.fromkeys("миллион миллиона миллионов millionen millones milhoes milioni".split(), 10**6),  # noqa: SIM905
    **dict.fromkeys("тысяча тысячи тысяч tausend mille mil 천 千".split(), 10**3),  # noqa: SIM905
    **dict.fromkeys("亿億억", 10**8), **dict.fromkeys("万萬만", 10**4),
}  # fmt: skip
CURRENCY = ("$", "€", "£", "¥", "₹", "₽")
_PER = ("/", "per", "每", "par", "pro", "por", "в")
_POWERS = {
    **dict.fromkeys("square sq 平方 кв квадратных квадратного 제곱 평방 quadrat वर्ग".split(), 2),  # noqa: SIM905
    **dict.fromkeys("cubic cu 立方 куб кубических кубического 세제곱 kubik घन".split(), 3),  # noqa: SIM905
}
_RAISED = {
    **dict.fromkeys("squared carre carres cuadrados quadrati quadrados مربع".split(), 2),  # noqa: SIM905
    **dict.fromkeys("cubed cube cubes cubicos cubi مكعب".split(), 3),  # noqa: SIM905
}
# Countable nouns without an s; words with an s that are not counted; determiners. Of other scripts, what bounds a number,
# and the endings of ordinals and other words that are no nouns.
_COUNTED = "people men women children mice geese sheep fish deer teeth person square dice"
_UNCOUNTED = """
times tens halves thirds quarters fourths fifths sixths sevenths eighths ninths tenths hundredths thousandths powers
inverses reciprocals negatives squares cubes roots multiples factors pairs degrees does percents percentages always
perhaps besides this upwards downwards backwards forwards clockwise grosses elevenths twelfths twentieths millionths
billionths factorials logarithms logs sines cosines tangents doubles triples ones twos threes fours fives googols
"""
_BOUNDING = re.compile("[以未超不非倍约約余多少近上下左右内外前后後或和分半]|이상|이하|미만|초과|배|раз|более|менее|(?:[ыи]х|[ая]я|ое|ой|о)$")
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
    prefixed = [name for name, unit in known.items() if unit in [known[base] for base in _PREFIXED.split()]]
    for prefix, power in _PREFIXES.items():
        for base in prefixed:
            if not prefix.isascii() or (len(prefix) > 3) == (len(base) > 3 and base.islower()):
                known.setdefault(prefix + base, Unit(Fraction(10) ** power).times(known[base]))
    return known


def known_unit(text: str) -> Unit | None:
    """The unit that a word names; longer words in any case, and with their accents."""
    return table().get(text) or (table().get(unaccented(text)) if len(text) > 2 else None)


def unaccented(text: str) -> str:
    """A word in small letters, without accents where they are Latin."""
    if text.isascii():
        return text.lower()
    bare = re.sub("(?<=[a-z])[\u0300-\u036f]", "", unicodedata.normalize("NFD", text.lower()))
    return unicodedata.normalize("NFC", bare)


def read_unit(tokens: Sequence[Token]) -> Unit | None:
    r"""The unit that all of some tokens are: `\text{ km}/\text{h}`, `square meters`, `cm^2`; None for anything else."""
    unit, sign, raised, place, found = _NONE, 1, 1, 0, False
    tokens = [each for each, after in pairwise((*tokens, END)) if each.text != "-" or after.kind == "number"]
    while place < len(tokens):
        text, two = tokens[place].text, "".join(token.text for token in tokens[place : place + 2])
        place += 1
        power = next((each for each in _POWERS if text.lower().startswith(each) and known_unit(text[len(each) :])), "")
        if power and known_unit(text) is None and text not in _RAISED:  # 平方厘米, Quadratmeter
            raised, text = _POWERS[power], text[len(power) :]
        if text == "." and raised > 1:  # кв. см
            continue
        if text in ("*", "×", "-", ".", *_PER):
            if (not found and not text.isalpha()) or place == len(tokens):
                return None
            sign = -1 if text in _PER else sign
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
    if texts and (power := _RAISED.get(unaccented(texts[0]))):
        return power, place + 1
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
    if noun and not any(unicodedata.name(each).startswith("LATIN") for each in noun if each.isalpha()):
        bounded = _BOUNDING.search(noun) or noun in MULTIPLES or any(map(str.isdecimal, noun))
        return None if bounded or not noun.isalpha() else noun  # 个, способов
    if not noun.isalpha() or noun.removesuffix("s") in MULTIPLES or noun in _UNCOUNTED.split():
        return None
    plural = len(noun) > 3 and noun.endswith("s") and not noun.endswith(("ss", "us", "is"))
    return noun if plural or determined or noun in _COUNTED.split() else None
