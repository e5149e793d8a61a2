"""Multiple choice: the options that an answer names, those of a question, and the one that a response states."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from strop_verify.extract import Where, after_thinking, answer_tag, boxes
from strop_verify.words import CONJUNCTIONS, COPULAS, HEDGES, WORDS

LETTERS = "ABCDEFGHIJ"
_L = "[A-ZА-Я]"
_HAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # scripts without spaces
_NOUN = rf"(?<![A-Za-zА-я])(?:{WORDS['options']}|{WORDS['answers']})s?"
_KIND = rf"(?:(?:the|die|la)\s+|l['’]|{_NOUN}[:\s]*){{0,3}}"
_AND = "|".join(rf"\b{word}\b" if word < "\u3040" else word for word in CONJUNCTIONS if word not in "eoyu")
# The letter of an option; without brackets only where no word follows ("a polynomial", "C major").
_ENDED = rf"(?=\s*(?:$|[.,;:!?()\n。、]|[-–—]\s|(?:because|since|rather|instead)\b)|[{_HAN}])"
_LETTER = rf"(?:[(\[]({_L})[)\]]|({_L}){_ENDED})"
# Not behind a word, which may be a name's ("vitamin C"), but for these.
_ALONE = r"(?:(?<![^\W\d_]\s)|(?<=\bso\s)|(?<=\b(?:and|but)\s)|(?<=\b(?:that|only|thus)\s)|(?<=\bthink\s))"
_IS = rf"\b(?:is|lautet|(?:must|should|would|will)\s+be)\b|(?:应该?|應該?)?(?:{WORDS['announces']})|[が는]|\s[-–—]\s"
_CHOOSE = rf"\b(?:{WORDS['chooses'].replace(' ', '[ ]')})\b|(?<!不)(?<!不.)(?<!不..)[选選](?:择|擇)?:?"
_STATED = re.compile(
    rf"""{_NOUN}(?:\s+(?:to|of|for)\s[^.:\n]{{0,60}}?|\s+(?!(?:no[nt]?|nicht|não|не)\b)[^\W\d_]{{2,}})?\s*
        (?:(?:{_IS})(?:\s*\w+ly\b)?|[:=\n])[:\s]*(?:not\s+[^.,;:\n]{{1,60}}?,?\s+but\s+)?{_KIND}{_LETTER}
    | (?:{_CHOOSE}|而是)\s*{_KIND}{_LETTER}
    | \b(?:it|that|this|(?:correct|right)\s+one)(?:['’]s|\s+(?:is|(?:must|has\s+to)\s+be))\s+{_KIND}{_LETTER}
    | (?:{_NOUN}\s*\(?({_L})\)? | \(({_L})\) | {_ALONE}\b(?-i:({_L})))
        (?:\s+(?:is|must\s+be)\s+(?:the\s+)?(?:only\s+)?(?:correct|right|best|answer)(?:\s+(?:one|answer|option|choice))?{_ENDED}
        | \s+(?:ist|est|es|é|è)\s+(?:richtig|korrekt|correct[aeo]?|corrett[ao])\b | 是?正确)
    | (?:^|\n)[^\w\n]*(?:{_NOUN}|therefore|thus|hence|so)\b,?\s*{_LETTER}\W*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
_JOINED = rf"\s*(?:[,/&、]|,?\s*(?:{_AND})|\b[eoyu]\b)\s*{_KIND}"
_ANOTHER = re.compile(rf"(?:{_JOINED}\(?|\s*\()({_L})\)?(?=\s*(?:$|\.(?!\w)|[,;:!?)\n。、]|and\b|or\b))", re.I)
_NO_CLAIM = re.compile(rf"\b(?:{'|'.join(sorted(HEDGES))}|whether|suppose|assume|doubt|says?|claims?|\w+n't)\b", re.I)
_SPACE = re.compile(r"\\(?:q?quad(?![a-z])|[ ,;!])|~")
_MARKUP = re.compile(r"\\(?:text|math)[a-z]{0,2}\s*\{([^{}]*)\}|[*$`\"“”«»]")
_LOOK_ALIKE = str.maketrans("АВСЕНІЈ", "ABCEHIJ")  # letters of Cyrillic
_SINGLE = re.compile(r"(?<!\w)[A-Za-zА-Яа-я](?!\w)")
_SENTENCE = re.compile(r"\n|(?<=[.!?])(?<!\b[^\W\d].)\s+|\b(?i:because|since|rather|instead)\b")
# Before the text of an option: (B), B., also \textbf{(B)}; not the ratio A:B.
LABEL = re.compile(rf"(?:\\(?:text|math)\w*\s?\{{|\{{\s?)?(?<![\w(])\(?\s?({_L})\s?([.．、。)）]|[:：]"
                   r"(?!\s*[A-J]\s*(?:[^\s\w]|$)))(?:\s*\})?(?:\\?\s|~)*")  # fmt: skip
_ANEW = re.compile(rf"(?i:{_NOUN})\s*\(?{_L}\)?[:.]|\(?{_L}\s?[).:]")  # a sentence on another option
_BEGINS = re.compile(rf"(?:(?i:{_NOUN})[:\s]*)*(?=[\s({{⦃]*{_L}{{1,5}}(?!\w)\s*(?:$|[]}})⦄.,;:。、A-ZА-Я]|{_AND}))")
_APART = re.compile(rf"[,;]|{_AND}")
_DENIED = re.compile(rf"\s*(?:\?|(?:{'|'.join(sorted(COPULAS))})\b.*\b(?:{'|'.join(sorted(HEDGES))})\b)")
_MARK = rf"[.,;:/&|~()?…→⇒\\]|{_AND}|\b(?:{WORDS['contrasts']})\b"
_OTHER = re.compile(rf"(?:(?:^|{_MARK})\s*|(?<={_L})\s+)({_L})(?=\s*(?:$|{_MARK})|\s+{_L}(?!\w))"
                    rf"|(?<!\w)({_L})(?=\s?[.):]\s*\S)")  # fmt: skip


@lru_cache(maxsize=4096)
def named(text: str, letters: str = LETTERS) -> str | None:
    """The options that a short answer names: commas between those that are listed, bars between alternatives.

    The text of an option may follow its letter; None where it is no choice.
    """
    begin = _BEGINS.match(text)
    if begin is None:
        return None
    text = text[begin.end() :]
    parts = [each for part in _APART.split(text) if (each := "".join(part.strip(" ().:。{}⦃⦄").split()))]
    if set("".join(parts)) <= set(letters) and max(map(len, parts)) < (6 if len(parts) == 1 else 2):
        either = any(CONJUNCTIONS.get(mark) == "or" for mark in _APART.findall(text))
        return ("|" if either else ",").join(dict.fromkeys(parts))
    label = LABEL.match(text)
    if label is None or label[1] not in letters or _DENIED.match(text, label.end()):
        return None
    others = (each for found in _OTHER.findall(text[label.end() :]) for each in found if each and each in letters)
    return ",".join(dict.fromkeys((label[1], *others)))


def in_capitals(text: str) -> str:
    """A text in which letters that stand by themselves are capitals."""
    return _SINGLE.sub(lambda letter: letter[0].upper(), text)


def in_any_case(text: str) -> str | None:
    """The options that an answer names in letters of any case; where it only mentions several, these."""
    capitals = in_capitals(text)
    mentioned = [each for each in dict.fromkeys(_SINGLE.findall(capitals)) if each in LETTERS]
    return named(capitals) or (",".join(mentioned) if len(mentioned) > 1 else None)


@lru_cache(maxsize=1024)
def options(question: str) -> dict[str, str]:
    """The texts of the options that end a question, by their letters; none where it lists none in order."""
    labels: list[re.Match[str]] = []
    for label in LABEL.finditer(question):
        if label[1] in "AА":
            labels = [label]
        elif labels and (chr(ord(label[1]) - 1), label[2]) == labels[-1].groups():
            labels.append(label)
    ends = [each.start() for each in labels[1:]] + [f"{question}\n".index("\n", each.end()) for each in labels[-1:]]
    found = {each[1]: question[each.end() : end].strip() for each, end in zip(labels, ends, strict=True)}
    return found if len(found) > 1 and all(found.values()) else {}


def chosen(text: str, where: Where, letters: str, question: str = "") -> str | None:
    """The letter, one of `letters`, that a response chooses, by itself or by its text; None where none or several.

    With `any`, where neither a box nor a tag is there, it is the last that a sentence states, or the whole text.
    """
    final = after_thinking(text)
    if final is None:
        return None
    found = None if where == "answer_tag" else _boxed(final)
    found = answer_tag(final) if found is None and where != "boxed" else found
    if found is not None or where != "any":  # an empty one, too: what it stands for is not looked for elsewhere
        return letter_of(found or "", letters, question)
    plain = _lettered(final, question)
    stated = next((each for each in reversed([*_STATED.finditer(plain)]) if _claims(plain, each)), None)
    if stated is None:
        return None if re.match(_NOUN, plain, re.IGNORECASE) else letter_of(plain, letters)
    letter, end = stated[stated.lastindex or 0], stated.end(stated.lastindex or 0)
    another = _ANOTHER.match(plain, end + plain.startswith((")", "]"), end))
    return letter_of(letter, letters) if another is None or another[1].upper() == letter.upper() else None


def letter_of(text: str, letters: str, question: str = "") -> str | None:
    """The letter, one of `letters`, that an answer is or begins with; None where it is other text, or names several."""
    plain = _lettered(text, question)
    for each in (plain, plain.translate(_LOOK_ALIKE), in_capitals(plain)):
        first, *others = _SENTENCE.split(each)
        if found := named(first, letters.upper()):
            return found if len(found) == 1 and not any(map(_ANEW.match, others)) else None
    return None


def _boxed(text: str) -> str | None:
    """What the last box of a text holds; with the box before it, where the two are joined by a word or comma."""
    found = boxes(text)[-2:]
    contents = [text[box.begin : box.end].strip() for box in found]
    joined = len(found) == 2 and re.fullmatch(rf"\$?{_JOINED}\$?", text[found[0].outer_end : found[1].outer_begin])
    return " or ".join(contents) if joined else contents[-1] if contents else None


def _plain(text: str) -> str:
    """A text without markup and quotation marks, punctuation and letters of full width as others."""
    return _MARKUP.sub(r"\1", unicodedata.normalize("NFKC", _SPACE.sub(" ", text))).strip()


def _lettered(text: str, question: str) -> str:
    """A text without markup, in which the options of a question are their letters in brackets."""
    plain = _plain(text)
    listed = options(_plain(question))
    told = {found.strip(" ,;.\n"): letter for letter, found in listed.items()}
    if len(told) == len(listed) and all(len(each) > 1 or each.isdigit() for each in told):
        for found in sorted(told, key=len, reverse=True):  # "1" is a part of "1/2"
            whole = rf"(?<!\w)(?:\(?{told[found]}[.):]\s*)?{re.escape(found)}(?![.,]?\w){_ENDED}"
            plain = re.sub(whole, f"({told[found]})", plain, flags=re.IGNORECASE)
    return plain


def _claims(text: str, match: re.Match[str]) -> bool:
    """Whether a statement is made, neither asked nor supposed nor denied."""
    clause = re.split(r"[.,;:!?\n。]", text[max(0, match.start() - 200) : match.start()])[-1]
    end = re.search(r"[.!?\n。]", text[match.end() : match.end() + 200])
    return not _NO_CLAIM.search(clause) and (end is None or end[0] != "?")
