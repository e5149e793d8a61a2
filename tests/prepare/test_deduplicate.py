"""Deduplication and decontamination of planted problems: all variants are found, no look-alike is merged."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.prepare.working import questions, run, write_lines

from strop.prepare.deduplicate import CandidateIndex, MinHashKeys
from strop.prepare.text import normalize

NOUNS = [
    "farmer",
    "baker",
    "teacher",
    "sailor",
    "painter",
    "doctor",
    "writer",
    "singer",
    "driver",
    "keeper",
    "builder",
    "hunter",
]
THINGS = [
    "apples",
    "marbles",
    "books",
    "tickets",
    "stamps",
    "candles",
    "bottles",
    "baskets",
    "coins",
    "ribbons",
    "plates",
    "lamps",
]
VERBS = [
    "buys",
    "sells",
    "finds",
    "loses",
    "borrows",
    "collects",
    "carries",
    "returns",
    "counts",
    "stores",
    "packs",
    "sends",
]
PLACES = [
    "market",
    "harbour",
    "school",
    "garden",
    "station",
    "village",
    "library",
    "museum",
    "forest",
    "castle",
    "bridge",
    "island",
]
FILLERS = [
    "quickly",
    "often",
    "quietly",
    "proudly",
    "later",
    "again",
    "together",
    "early",
    "slowly",
    "there",
    "gladly",
    "twice",
][:-1]


def problem(rng: random.Random) -> str:
    """A question of about forty words with five numbers."""

    def clause() -> str:
        return (
            f"the {rng.choice(NOUNS)} {rng.choice(VERBS)} {rng.randint(2, 999)} {rng.choice(THINGS)} "
            f"{rng.choice(FILLERS)} at the {rng.choice(PLACES)}"
        )

    opening = f"Every {rng.choice(PLACES)} has a {rng.choice(NOUNS)}"
    return (
        f"{opening}. {clause()}, while {clause()}; {clause()} and {clause()}. How many {rng.choice(THINGS)} are left?"
    )


def changed(rng: random.Random, text: str) -> str:
    """A tenth of the words replaced, no number among them."""
    words = text.split()
    places = [place for place, word in enumerate(words) if not re.search(r"\d", word)]
    for place in rng.sample(places, len(words) // 10):
        words[place] = rng.choice(("purple", "window", "mountain", "gently", "river", "cloud"))
    return " ".join(words)


def typed(rng: random.Random, text: str) -> str:
    forms = (
        str.upper,
        str.title,
        lambda t: t.replace(" ", "\n  "),
        lambda t: re.sub(r"[^\w\s]", "", t),
        lambda t: f"*{t}*",
    )
    return str(rng.choice(forms)(text))


def lookalike(rng: random.Random, text: str) -> str:
    """One number changed, the rest as it was."""
    found = list(re.finditer(r"\d+", text))
    match = rng.choice(found)
    return f"{text[: match.start()]}{int(match.group()) + rng.randint(1, 5)}{text[match.end() :]}"


@pytest.mark.parametrize("near", ["minhash", "ngram"])
def test_planted_duplicates_are_found_and_look_alikes_kept(tmp_path: Path, near: str) -> None:
    rng = random.Random(0)
    originals = [problem(rng) for _ in range(300)]
    planted = {
        "typed": [typed(rng, text) for text in originals],
        "changed": [changed(rng, text) for text in originals],
        "lookalike": [lookalike(rng, text) for text in originals],
    }
    rows: list[dict[str, Any]] = [
        {"id": f"{kind}-{place}", "prompt": text, "answer": "1"}
        for kind, texts in (("original", originals), *planted.items())
        for place, text in enumerate(texts)
    ]
    path = write_lines(tmp_path / "all.jsonl", rows)
    source = {"path": str(path), "columns": {"id": "id"}}
    outcome = run(tmp_path, [source], [{"piece": "Deduplicate", "near": near}])
    kept = [made.id.split("/")[1].split("-")[0] for made in outcome.kept]
    assert kept.count("original") == 300
    assert kept.count("typed") == 0
    assert kept.count("changed") <= 0.05 * 300
    assert kept.count("lookalike") == 300
    assert all(pair["duplicate_of"] == f"all/original-{pair['id'].split('-')[1]}" for pair in outcome.pairs)


def test_the_set_named_first_keeps_its_problem(tmp_path: Path) -> None:
    first = [{"prompt": "How many legs do 3 cats have?", "answer": "12"}, {"prompt": "Only here: 4?", "answer": "4"}]
    second = [{"prompt": "how many legs do 3 cats have", "answer": "13"}, {"prompt": "Only there: 5?", "answer": "5"}]
    outcome = run(tmp_path, [first, second], ["Deduplicate"])
    assert outcome.prompts == ["How many legs do 3 cats have?", "Only here: 4?", "Only there: 5?"]
    assert outcome.reasons == {"exact duplicate of another set": 1}
    assert outcome.step("deduplicate")["counts"]["duplicates_with_another_answer"] == 1
    dropped = outcome.dropped[0]
    assert (dropped["id"], dropped["duplicate_of"], dropped["source"]) == ("set1/1", "set0/1", "set1")
    assert "its answer there is 12" in dropped["detail"]


def test_duplicates_of_a_duplicate_meet_the_problem_that_is_kept(tmp_path: Path) -> None:
    text = "A train leaves the old station at 7 and comes back to the very same place at 9 each day of the week"
    chain = [text, text.replace("old", "new"), text.replace("old", "new").replace("week", "year"), text.upper()]
    chain += [chain[1], chain[2].lower()]
    outcome = run(tmp_path, [questions(*chain)], ["Deduplicate"])
    assert outcome.prompts == [text]
    assert {pair["duplicate_of"] for pair in outcome.pairs} == {"set0/1"}


def test_without_near_only_typing_counts(tmp_path: Path) -> None:
    text = "A train leaves the old station at 7 and comes back to the very same place at 9 each day of the week"
    rows = questions(text, text.replace("old", "new"), text.lower())
    assert len(run(tmp_path, [rows], [{"piece": "Deduplicate", "near": "none"}]).kept) == 2


def test_questions_of_one_template_with_other_numbers_never_become_candidates() -> None:
    index = CandidateIndex(MinHashKeys())
    for row in range(500):
        text = f"The farmer packs {row} boxes of fruit and sends half of them to the market in town."
        index.add(row, normalize(text))
    assert len(index.pairs()) == 0


EXAM = "A rectangle has sides of length 12 and 35 and a circle is drawn around it. Find the radius of the circle."


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (EXAM.upper(), True),
        (EXAM.replace("drawn", "placed"), True),
        (
            f"Solve the following problem step by step and box the answer in the end of it all. {EXAM} Show your work.",
            True,
        ),
        (EXAM.split(". ")[0] + " with the radius of the circle to find.", True),
        (EXAM.replace("35", "16"), False),
        ("What is the radius of a circle of area 12 and circumference 35?", False),
    ],
)
def test_contamination(tmp_path: Path, prompt: str, found: bool) -> None:
    exam = write_lines(tmp_path / "exam.jsonl", questions("What is 17 + 25?", EXAM))
    step = {"piece": "Decontaminate", "against": [{"path": str(exam)}]}
    outcome = run(tmp_path, [questions(prompt, "An innocent question about 99 sheep.")], [step])
    assert len(outcome.kept) == (1 if found else 2)
    if found:
        assert outcome.reasons == {"contaminated by exam": 1}
        assert (outcome.pairs[0]["prompt"], outcome.pairs[0]["duplicate_text"]) == (prompt, EXAM)
        assert outcome.step("decontaminate")["counts"]["benchmark_questions_found"] == {"exam": 1}


def test_planted_contaminations_are_found_and_look_alikes_kept(tmp_path: Path) -> None:
    rng = random.Random(1)
    originals = [problem(rng) for _ in range(200)]
    exam = write_lines(tmp_path / "exam.jsonl", questions(*originals))
    rows: list[dict[str, Any]] = [
        {"id": f"{kind}-{place}", "prompt": make(rng, text), "answer": "1"}
        for kind, make in (("typed", typed), ("changed", changed), ("lookalike", lookalike))
        for place, text in enumerate(originals)
    ]
    source = {"path": str(write_lines(tmp_path / "all.jsonl", rows)), "columns": {"id": "id"}}
    outcome = run(tmp_path, [source], [{"piece": "Decontaminate", "against": [{"path": str(exam)}]}])
    kept = [made.id.split("/")[1].split("-")[0] for made in outcome.kept]
    assert kept.count("typed") == 0
    assert kept.count("changed") <= 0.05 * 200
    assert kept.count("lookalike") == 200
    assert all(pair["duplicate_text"] == originals[int(pair["id"].split("-")[1])] for pair in outcome.pairs)


def test_a_phrase_of_several_exam_questions_gives_none_away(tmp_path: Path) -> None:
    phrase = "can be written as m over n where m and n are relatively prime positive integers. Find m plus n."
    exam = write_lines(
        tmp_path / "exam.jsonl", questions(f"The area of the hall, 77 feet long, {phrase}", f"It {phrase}")
    )
    rows = questions(f"The weight of 3 bricks, in pounds, {phrase}")
    step = {"piece": "Decontaminate", "against": [{"path": str(exam)}], "similarity": 0.99}
    assert len(run(tmp_path, [rows], [step]).kept) == 1
