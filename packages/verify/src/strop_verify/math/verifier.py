"""Is the answer of a response the same mathematics as the reference?

verify(r"\frac{1}{2}", r"so it is \boxed{0.5}")      # Verdict(score=1.0, status="correct", …), in a killable worker
verify_here(gold, response, settings)                # the same in this process, without a limit of time
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, as_completed
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from strop_verify.choices import LETTERS, chosen
from strop_verify.extract import without_points
from strop_verify.math.expressions import MOST_DIGITS, holds, refuse_answer
from strop_verify.math.settings import GoldForm, MathSettings
from strop_verify.pool import JobReply, WorkerLimits, submit
from strop_verify.verdict import Status, Verdict, shortened

if TYPE_CHECKING:
    from strop_verify.math.grammar import Reading
    from strop_verify.math.proof import Proof

KEPT = 8192
SERVE = "strop_verify.math.verifier:serve"


def verify(
    gold: str, response: str, settings: MathSettings | None = None, limits: WorkerLimits | None = None
) -> Verdict:
    """The verdict on a response, made in a worker process that is killed where it takes too long.

    Args:
        gold: the reference answer.
        response: the whole response of a model.
        settings: how answers are found and compared.
        limits: of the worker; calls with equal limits share one pool, which ends with this process.

    Raises:
        WorkersLost: worker processes cannot be kept alive.
    """
    return verdict_of(begin(gold, response, settings, limits).result())


def verify_all(
    pairs: Iterable[tuple[str, str] | tuple[str, str, MathSettings | None]], settings: MathSettings | None = None,
    limits: WorkerLimits | None = None,
) -> Iterator[tuple[int, Verdict]]:  # fmt: skip
    """The verdicts on (gold, response) pairs as they come, each with the place of its pair; see `verify`.

    A third member of a pair is its settings, where they are not those of all.

    Raises:
        WorkersLost: worker processes cannot be kept alive.
    """
    begun = {
        begin(gold, response, own[0] if own else settings, limits): place
        for place, (gold, response, *own) in enumerate(pairs)
    }
    for reply in as_completed(begun):
        yield begun[reply], verdict_of(reply.result())


def begin(gold: str, response: str, settings: MathSettings | None, limits: WorkerLimits | None) -> Future[JobReply]:
    """Start a verdict in a worker; `verdict_of` reads the reply."""
    said = {at: each for at, each in vars(settings or MathSettings()).items() if each != getattr(MathSettings, at)}
    return submit(SERVE, None, limits or WorkerLimits(), {"gold": gold, "response": response, "settings": said})


def verdict_of(reply: JobReply) -> Verdict:
    """The verdict in a reply to `begin`."""
    if reply.failure is not None:
        return Verdict(0.0, reply.failure, reply.detail)
    score, status, detail, undecided = reply.value
    return Verdict(score, Status(status), detail, undecided=undecided)


def verify_here(gold: str, text: str, settings: MathSettings) -> Verdict:
    """The verdict, made in this process: correct, wrong, undecided, unparsed or error."""
    money = settings.comma and any(sign in gold.lower() for sign in ("€", "eur", r"\$"))
    reference = _reference(without_points(gold) if money else gold, settings.gold_form)
    if isinstance(reference, str):
        return Verdict(0.0, Status.ERROR, reference)
    exact = reference.answer.args[0] if reference.answer.op == "measure" else reference.answer
    text = without_points(text) if settings.comma and exact.op == "number" and exact.value > 999 else text
    found = _found(text, settings, reference)
    if isinstance(found, str):
        return Verdict(0.0, Status.UNPARSED, found)
    proof = _proof(settings, reference, found)
    if isinstance(proof, str):
        return Verdict(0.0, Status.UNPARSED, proof)
    return _verdict(proof, reference, found, settings)


def unreadable(gold: str, settings: MathSettings) -> str | None:
    """Why a reference can never be compared: it is beyond the bounds, cannot be read or has no value; else None."""
    if not gold.strip():
        return "the reference is empty"
    if gold.strip().lstrip("-").isdigit() and len(gold) < MOST_DIGITS:
        return None
    reading = _reference(gold, settings.gold_form)
    return reading if isinstance(reading, str) else None


def kind_of(gold: str) -> str | None:
    """What a reference is, in the word of `Verdict.undecided`: `number`, `interval` …; None where it cannot be read."""
    reading = _reference(gold, "bare")
    return None if isinstance(reading, str) else reading.kind


def narrow(gold: str, settings: MathSettings) -> str | None:
    """Why a reference that can be read is met only by the same words or the same form; else None."""
    from strop_verify.math.compare import compare_readings
    from strop_verify.math.quantities import is_computed

    reading = _reference(gold, settings.gold_form)
    if isinstance(reading, str) or reading.kind in ("number", "decimal", "choice"):
        return None
    if reading.answer.op == "words":
        return "words are compared as words"
    if not is_computed(reading.answer):
        return "what is left to be computed is met only by the same operation"
    proof = compare_readings(reading, reading, settings, by_text=False)
    return None if proof.equal else "only the same text is proved equal"


def answer_key(text: str, settings: MathSettings) -> str | None:
    """A text that is the same for equal simple numbers and for answers that are written alike; None without answer."""
    from strop_verify.math.evaluate import rational

    found = _found(text, settings)
    if isinstance(found, str):
        return None
    exact = rational(found.answer)
    return str(exact) if exact is not None else found.text


def warm(settings: MathSettings) -> None:
    """Import what every verdict needs, and build its tables, before workers are forked."""
    pairs = ((r"\frac{1}{2}+x^{2}", "x^2+0.5"), ("(1, 2]", r"\left(1, 2\right]"), (r"3\text{ cm}", r"\sqrt{9}"))
    for gold, given in pairs:
        verify_here(gold, rf"so it is $\boxed{{{given}}}$.", settings)


def serve(setup: None) -> Any:
    """The function of the workers behind `verify` and `verify_all`."""
    warm(MathSettings())
    return _handle


def _handle(job: dict[str, Any]) -> tuple[float, str, str, str]:
    said: dict[str, Any] = {at: tuple(each) if isinstance(each, list) else each for at, each in job["settings"].items()}
    settings = MathSettings(**said)
    found = verify_here(job["gold"], job["response"], settings)
    return found.score, str(found.status), found.detail, found.undecided


def _found(text: str, settings: MathSettings, reference: Reading | None = None) -> Reading | str:
    from strop_verify.math.prose import Finder

    finder, several = Finder("latex" in settings.match_types, "expr" in settings.match_types), False
    if reference is not None:
        choice = settings.extract == "any" and len(reference.letters or "") == 1 and "boxed" not in text
        letter = chosen(text, "any", LETTERS, settings.question) if choice else None
        if letter is not None:
            return finder.read(letter)
        several = reference.answer.op in ("tuple", "list", "set") or holds(reference.answer, "±")
    return finder.find(text, settings.extract, settings.box_required, several)


@lru_cache(maxsize=2 * KEPT)
def _proof(settings: MathSettings, reference: Reading, found: Reading) -> Proof | str:
    """The comparison, or which bound the answer breaks."""
    from strop_verify.math.compare import compare_readings

    reason = refuse_answer(found.answer) if found.answer != reference.answer else None
    return compare_readings(reference, found, settings) if reason is None else reason


def _verdict(proof: Proof, reference: Reading, found: Reading, settings: MathSettings) -> Verdict:
    given, gold, why = shortened(found.text), shortened(reference.text), shortened(proof.why, 200)
    if settings.explain:
        trees = [f"{each.kind} {shortened(str(each.answer), 200)}" for each in (reference, found)]
        detail = f"reference: {trees[0]}; answer: {trees[1]}; {proof.outcome}: {why}"
    else:
        detail = given if proof.equal else f"{given}, not {gold}: {why}"
    if proof.equal:
        return Verdict(1.0, Status.CORRECT, detail)
    if proof.outcome == "different":
        return Verdict(0.0, Status.WRONG, detail)
    if proof.outcome == "beyond":  # an answer cannot leave the loss by its size
        return Verdict(0.0, Status.UNPARSED, f"beyond the bounds: {detail}")
    status = Status.UNDECIDED if settings.undecided == "leave_out" else Status.WRONG
    return Verdict(0.0, status, detail, undecided=reference.kind)


@lru_cache(maxsize=KEPT)
def _reference(text: str, form: GoldForm) -> Reading | str:
    """A reference as it was read, or why it cannot be; in a `raw` or marked one the answer is found first."""
    from strop_verify.math.compare import without_value
    from strop_verify.math.prose import Finder

    shown = shortened(text)
    marked = r"\boxed" in text or "####" in text
    reading = Finder().read(text) if form == "bare" and not marked else Finder().in_prose(text)
    if isinstance(reading, str) and not isinstance(said := Finder(latex=False).in_prose(text), str):
        reading = said  # She has 14 pencils left.
    if isinstance(reading, str):
        return f"the reference {shown!r} {'is' if reading.startswith('beyond') else 'cannot be parsed:'} {reading}"
    reason = refuse_answer(reading.answer)
    if reason is not None:
        return f"the reference {shown!r} is {reason}"
    return f"the reference {shown!r} has no value" if without_value(reading.answer) else reading
