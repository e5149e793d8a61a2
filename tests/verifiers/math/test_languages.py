"""Answers in other languages: units, times, decimal commas, truth, conjunctions, numbers, options, sentences."""

# ruff: noqa: E501 (wide characters count twice)
from __future__ import annotations

import pytest

from strop_verify.math import MathSettings
from strop_verify.math.settings import stated_settings
from strop_verify.math.verifier import verify_here

CHINESE = "“x>2”是“x²>4”的（　　）A．充分不必要条件　B．必要不充分条件　C．充要条件　D．既不充分也不必要条件"
# Of each kind: a question, a reference, then answers that are right and answers that are not, apart by " | ".
CASES: dict[str, list[tuple[str, str, str, str]]] = {
    "units": [
        ("", "24 см$^2$", r"24 кв. см | 24\text{ см}^2 | 24 см² | 0,0024 м² | 24 квадратных сантиметра | 24 cm^2",
         "24 см | 24 м² | 42 см² | 24 куб. см"),
        ("", "45π立方厘米", r"45π\text{ cm}^3 | 45π立方厘米 | 45π cubic cm | 45π", "45π平方厘米 | 15π立方厘米 | 45π厘米"),
        ("", "2500 g", "2.5 кг | 2,5 Kilogramm | 2.5千克 | 2.5キログラム | 2.5킬로그램 | 2.5公斤", "2.5 г | 25千克 | 2,5 м"),
        ("", "250 cm", "2,5 Meter | 2,5 mètres | 2,5 metros | 2.5メートル | 2.5미터 | ٢٫٥ متر", "2,5 Zentimeter | 25 дм²"),
        ("", "12 m^2", "12 Quadratmeter | 12 mètres carrés | 12 metros cuadrados | 12平方米 | 12㎡ | 12제곱미터",
         "12 Kubikmeter | 12 mètres | 12 metros cúbicos | 12立方米"),
        ("", "٢٥ سم²", r"25\ \text{سم}^2 | 25 cm²", r"25\ \text{سم} | 52 cm²"),
        ("", r"20\,\mathrm{m/s}", "20米/秒 | 20米每秒 | 72 km/h", "20 m | 20 km/h"),
        ("", "90 km/h", "90 км/ч | 25 м/с | 90 km par heure | 90 km pro Stunde", "90 м/с | 90 км"),
        ("", "20%", "20 процентов | 20 Prozent | 百分之二十 | 20퍼센트 | ٢٠٪", "0.2 Prozent | 百分之十二"),
        ("", "56 способов", "56 | 56 способов", "336 | 56 тысяч | C_8^3"),
        ("", "120", "120通り | 120人 | 120가지 | 百二十 | 一百二十", "120万 | 120以上 | 120倍 | 120 десятых | 120 раз | 120 пар | 120 тыс. | 120 ではない"),
        ("", "12000", "1.2万 | 12 тысяч | 12 tausend | 一万二千", "12万 | 12 | 12 млн"),
    ],
    "labels and functions": [
        ("", "5", r"最大值为5 | \text{面积是}5 | \text{最大値は }5", r"最大值不是5 | 最大值为6 | 5不是"),
        ("", r"\sin 3x", r"\operatorname{sen}(3x) | sen(3x)", r"\operatorname{cos}(3x) | 3\operatorname{sen}x"),
        ("", r"\arctan 2", r"\operatorname{arctg}2 | arctg 2", r"\operatorname{arcctg}2"),
    ],
    "times": [
        ("", "12时15分", "12：15 | 12:15 | 12 h 15 | 12 Uhr 15", "12：51 | 0:15 | 15:12"),
        ("", "15:15", "15時15分 | 3:15 pm", "3:15"),
        ("", "1 h 45 min", "105 minutes | 105 min | 1時間45分 | 1小时45分钟 | 1시간 45분 | 1 час 45 минут | 1,75 h | 1h45",
         "1 h 54 min | 145 min | 1,45 h | 145 minutes | 1 h"),
        ("", "20 h 15", "20:15 | 20h15 | 20 h 15 min", "20:51 | 8 h 15"),
        ("", "8:30", "8.30 Uhr | 08:30 Uhr | 8時30分 | 8시 30분", "8.03 Uhr | 20:30"),
        ("", "150 min", "2 Std. 30 Min. | 2 heures et 30 minutes | 2 ч 30 мин", "2,3 ч"),
        ("", "3.5 hours", "3時間30分 | 3 часа 30 минут", "3時間 | 3時間3分"),
    ],
    "decimal commas": [
        ("", "2,5 m", r"250\text{ cm} | 2.5 m | 2,50 m | 2{,}5\ \text{m} | \frac52\text{ m}", "25 m | 2.5 cm | 5,2 m | 2 m"),
        ("", "2,5 m/s²", r"a=2.5\ \mathrm{m/s^2} | 2.5", r"2.5\text{ m/s} | a=5.2\ \mathrm{m/s^2} | a=25\ \mathrm{m/s^2}"),
        ("", "7.5%", r"7,5\% | 7,5 %", r"75\% | 5,7 %"), ("", "2,5", "2 and 5 | 5,2", "2.5"),
        ("Wie groß ist x?", "2,5", r"2.5 | \frac52 | 2,50", "25 | 5,2"), ("Сколько метров осталось пройти?", r"\frac72", "3,5", "3; 5 | 35"),
        ("What are the roots?", "2,5", "5, 2", "2.5"), ("", "1 234,5", "1234.5 | 1.234,5", "12345 | 1234"),
    ],
    "truth": [
        ("", "偽", r"\text{偽（反例：}x=-2\text{）} | 偽 | 偽である | × | \text{False}", r"真 | \text{真（反例なし）} | ○ | 偽または真"),
        ("", "거짓", "거짓 (False) | 거짓 | ✗", "참 | 참 (True) | 거짓 (True) | 참, 거짓"),
        ("", "错误", r"× | \times | 错 | 不正确 | \text{×}", r"√ | 对 | 正确 | \sqrt{2} | ✓"),
        ("", "√", r"对 | 正确 | ✓ | √ | true | \checkmark", r"× | 错 | \sqrt{1} | 2"),
        ("", "Да", "да | Верно. | yes | Да, верно", "нет | неверно | Да и нет"), ("", "Faux", "faux | non", "vrai | oui"),
    ],
    "sets of numbers": [
        ("", r"$S=]-\infty\,;-1[\,\cup\,]3\,;+\infty[$", r"(-\infty,-1)\cup(3,+\infty) | x<-1 ou x>3 | ]-\infty;-1[\cup]3;\infty[",
         r"(-\infty,-1]\cup[3,\infty) | ]-1;3[ | S=]-\infty;-1[ | x<-1"),
        ("", r"[1,3)\cup(3,+\infty)", r"\{x\mid x\ge 1\ \text{且}\ x\ne 3\} | x≥1 и x≠3 | x≥1 und x≠3",
         r"\{x\mid x>1\ \text{且}\ x\ne 3\} | \{x\mid x\ge1\text{ 或 }x\ne3\} | x≥1"),
        ("", r"L=\{2;3\}", r"x=2\text{ oder }x=3 | \{3;2\} | x_1=3,\ x_2=2", r"x=2 | M=\{2;3\} | x=2\text{ oder }x=4"),
        ("", r"\{x|x>1\text{且}x\ne2,x\in\mathbf{R}\}", r"(1,2)\cup(2,+\infty) | x>1, x\ne2", r"(1,+\infty)"),
        ("", "x₁ = −2, x₂ = 1", r"x=-2\text{ oder }x=1 | x_{1}=-2,\ x_{2}=1", r"x=-2\text{ oder }x=2 | x_1=1,\ x_2=-2"),
        ("", "No solution", r"∅ | \text{无解} | \text{方程无解} | \text{解なし} | \text{нет решений} | \text{keine Lösung} | \text{해가 없다}",
         r"\text{无穷} | 0 | \text{нет}"),
    ],
    "digits": [("", "75", "٧٥ | ７５ | ७५ | ７５．０", "٧٦ | ५७"), ("", "७५", "75", "57"), ("", r"\frac16", "六分之一 | 六分の一", "一分之六"),
               ("", r"\frac23", "²⁄₃ | 三分之二", "³⁄₂"), ("", "12", "zwölf | douze | doce | ๑๒", "zwei | elf")],
    "options": [
        (CHINESE, "A", r"\text{充分不必要条件} | A | A．充分不必要条件", r"\text{充要条件} | B | \text{必要不充分条件}"),
        (CHINESE, "充要条件", "C | 充要条件", "A | D | 充分不必要条件"),
        ("Найдите корень. А) 3  Б) 5  В) 7", "Б", "5 | Б", "3 | 7 | В"),
        ("Which? (A) 3 (B) 5 (C) 7", "(B)", "5 | B", "3 | C"), ("In point A. 3 lies B.", "A", "A", "3 | B"),
        ("What is P(A)?\n(A) 3\n(B) 5\nAnswer with A, B, or C.", "B", "5 | (b)", "3 | A"),
    ],
}  # fmt: skip
SENTENCES = (  # a reference, a response without a box, whether it states the reference
    ("3i, -3i", "Taking square roots, x = ±3i.", True), ("3", "If so, x = 3.", False), ("3", "For contradiction, x = 3.", False),
    ("No solution", "A root is never negative, so the solution set is ∅.", True),
    ("5", "It is not 4, so it could be 5.", False), (r"x=2\pm\sqrt3", "よって、答えは x = 2+√3, x = 2−√3 です。", True),
    (r"x=2\pm\sqrt3", "答えは x = 2+√3 です。", False), (r"\frac16", "所以概率为**六分之一**。", True),
    ("24 см²", "Площадь равна половине. Ответ: 24 кв. см", True), ("24", "Ответ: не 24", False),
    ("7", "따라서 정답은 7입니다.", True), ("7", "答案是8。", False), ("7", "答案可能是7。", False), ("7", "答えは7ではない。", False), ("7", "故答案为：7。", True),
    ("12", "よって、x=12。", True), ("12", "Die Antwort ist 12, nicht 13.", True), ("12", "Antwort: 12 oder 13", False),
    ("2,5 m", "La réponse est claire. Réponse : 2,5 m", True), ("12", "La respuesta es 12.", True),
)  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_languages(kind: str) -> None:
    for question, gold, right, wrong in CASES[kind]:
        settings = stated_settings(MathSettings(gold_form="raw" if "$" in gold else "bare"), question, {})
        for answers, expected in ((right, True), (wrong, False)):
            for answer in answers.split(" | "):
                verdict = verify_here(gold, rf"\boxed{{{answer}}}", settings)
                assert verdict.passed is expected, (gold, answer, verdict)


@pytest.mark.parametrize(("gold", "response", "expected"), SENTENCES)
def test_sentences_in_any_language(gold: str, response: str, expected: bool) -> None:
    verdict = verify_here(gold, response, MathSettings(extract="any"))
    assert verdict.passed is expected, verdict
