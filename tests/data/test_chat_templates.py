"""Chat templates of real models: prompts are what transformers renders, with the instruction of the verifier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.kit.bring import TEMPLATES, tokenizer

from strop.base.types import InputError, Message, Problem
from strop.data.dataset import make_example
from strop.data.templates import BOXED, DATE, Auto, ChatTemplate, Plain
from strop.model.files import byte_tokenizer
from strop.verifiers.answer import Answer, ExactMatch, MultipleChoice
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.combined import ByDomain
from strop.verifiers.math_verifier import MathVerifier

SYSTEM = Message(role="system", content="Be brief.")
TURNS = (
    SYSTEM, Message(role="user", content="What is 7*6?"), Message(role="assistant", content="42"),
    Message(role="user", content="And 7*7?"),
)  # fmt: skip
PROBLEM = Problem("a", "What is 7*6?", "42")


def rendered(made: Any, messages: list[dict[str, str]], **arguments: Any) -> list[int]:
    """What transformers itself makes of a chat."""
    found = made.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, **arguments)
    return list(found["input_ids"])


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", ["What is 7*6?", TURNS[:2], TURNS], ids=["text", "system", "turns"])
def test_ids_are_those_of_transformers(name: str, prompt: Any) -> None:
    made = tokenizer(name)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    plain = make_example(replace(PROBLEM, prompt=prompt), Auto(instruct=False), made, BOXED)
    assert plain.prompt_ids.tolist() == rendered(made, messages)
    messages[-1]["content"] += f"\n{BOXED.text}"
    asked = make_example(replace(PROBLEM, prompt=prompt), Auto(), made, Answer().instruction(PROBLEM))
    assert asked.prompt_ids.tolist() == rendered(made, messages)


def test_arguments_reach_the_template() -> None:
    made = tokenizer("qwen3")
    without = Auto(arguments={"enable_thinking": False})
    ids = make_example(PROBLEM, without, made).prompt_ids.tolist()
    assert ids == rendered(made, [{"role": "user", "content": "What is 7*6?"}], enable_thinking=False)
    assert made.decode(ids).endswith("<think>\n\n</think>\n\n")


def test_an_argument_that_the_template_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="no argument 'enable_thinkin'"):
        make_example(PROBLEM, Auto(arguments={"enable_thinkin": False}), tokenizer("qwen3"))


def test_an_instruction_is_not_given_twice() -> None:
    made = tokenizer("qwen3")
    problem = replace(PROBLEM, prompt="What is 7*6? Answer in \\boxed{}.")
    text = made.decode(make_example(problem, Auto(), made, BOXED).prompt_ids)
    assert text.count("boxed") == 1


def test_without_a_chat_template_the_prompt_is_plain() -> None:
    made = byte_tokenizer()
    assert Auto().resolved(PROBLEM, made, BOXED) == Plain(suffix=f"\n{BOXED.text}\n")
    assert Auto().resolved(replace(PROBLEM, verbatim=True), made, BOXED) == Plain()
    assert Auto().resolved(PROBLEM, made, None) == Plain()
    assert Auto(instruct=False).resolved(PROBLEM, made, BOXED) == Plain()


def test_a_template_that_writes_the_date_writes_the_same_every_day() -> None:
    made = byte_tokenizer()
    made.chat_template = (
        "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
        "[{{ date_string }}]{{ messages[0].content }}"
    )
    assert ChatTemplate().render(PROBLEM, made) == f"[{DATE}]What is 7*6?"
    assert ChatTemplate(arguments={"date_string": "today"}).render(PROBLEM, made) == "[today]What is 7*6?"


def test_each_verifier_asks_for_the_form_that_it_reads() -> None:
    code = replace(PROBLEM, domain="code")
    assert Answer().instruction(PROBLEM) == MathVerifier(extract="any").instruction(PROBLEM) == BOXED
    assert Answer(extract="last_number").instruction(PROBLEM) is None
    assert ExactMatch(extract="all").instruction(PROBLEM) is None
    tagged = MathVerifier(extract="answer_tag").instruction(PROBLEM)
    assert tagged is not None and "<answer>" in tagged.text
    both = ByDomain(members={"math": MathVerifier(), "code": CodeVerifier()})
    assert both.instruction(PROBLEM) == BOXED and both.instruction(code) == CodeVerifier().instruction(code)
    letter = MultipleChoice().instruction(PROBLEM)
    assert letter is not None and "letter" in letter.text


@pytest.mark.parametrize(
    ("verifier", "reply"),
    [(Answer(), r"so \boxed{42}"), (MathVerifier(extract="answer_tag"), "so <answer>42</answer>")],
)
def test_a_reply_that_follows_the_instruction_is_judged_right(verifier: Any, reply: str) -> None:
    assert verifier(PROBLEM, reply).score == 1.0
