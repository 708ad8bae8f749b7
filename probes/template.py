"""What a chat template does to a model's reasoning, which a multi-turn experiment has to know.

Released thinking templates delete the reasoning of earlier turns and close an empty think block in front of an
unfinished answer (VisualSwap, Sec. 2, multi-turn: its recovery is then also a recovery from lost reasoning).
Prompts that are built by ids (`probes.prompts`) are safe from both; other tools, and one's own `apply_chat_template`,
are not.

    for fact in template_facts(vlm.processor):
        print(fact.name, fact.found, fact.meaning)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probes.prompts import render

if TYPE_CHECKING:
    from transformers import ProcessorMixin

QUESTION, SECOND_QUESTION = "Which shape is the largest?", "What is its color?"
REASONING = "First I look at the shapes one by one"

Rendered = Callable[..., str]


@dataclass(frozen=True)
class TemplateFact:
    """name: of the habit looked for.  found: in a few words.  meaning: in one or two sentences."""

    name: str
    found: str
    meaning: str


def template_facts(processor: ProcessorMixin) -> list[TemplateFact]:
    """Three habits of the chat template; one that it cannot render is said to be so."""
    def rendered(*turns: tuple[str, str], **options: object) -> str:
        return render(processor, [{"role": role, "content": text} for role, text in turns], **options)

    facts = []
    for name, read in (("earlier turns", _earlier_turns), ("continued answer", _continued_answer),
                       ("start of an answer", _start_of_answer)):
        try:
            facts.append(TemplateFact(name, *read(rendered)))
        except Exception as error:          # templates raise what they like for turns that they do not know
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            facts.append(TemplateFact(name, "cannot be rendered", f"The template says: {line}"))
    return facts


def _earlier_turns(rendered: Rendered) -> tuple[str, str]:
    text = rendered(("user", QUESTION), ("assistant", f"<think>\n{REASONING}.\n</think>\n\nThe circle."),
                    ("user", SECOND_QUESTION))
    if REASONING in text:
        return "reasoning is kept", "In a second turn the model still reads what it reasoned in the first."
    return "reasoning is DROPPED", (
        "In a second turn this template deletes what the model reasoned in the first. A multi-turn result then mixes "
        "two things: the new question, and the missing reasoning. Prompts built here by ids keep it.")


def _continued_answer(rendered: Rendered) -> tuple[str, str]:
    text = rendered(("user", QUESTION), ("assistant", f"<think>\n{REASONING}"), add_generation_prompt=False,
                    continue_final_message=True)
    before = text.rpartition(QUESTION)[2].partition(REASONING)[0]
    if REASONING in text and "</think>" not in before:
        return "nothing is added", "With continue_final_message an unfinished answer is rendered as it stands."
    return "reasoning is CLOSED", (
        "With continue_final_message this template puts an empty, closed think block before unfinished reasoning (or "
        "loses it): the model takes its thinking for finished. Continue by ids, as everything here does.")


def _start_of_answer(rendered: Rendered) -> tuple[str, str]:
    def opening(thinking: bool | None) -> str:
        start = rendered(("user", QUESTION), thinking=thinking).rpartition(QUESTION)[2]
        _, tag, inside = start.rpartition("<think>")
        if not tag:
            return "no think block"
        return "an empty, closed block" if "</think>" in inside else "opens <think>"

    default, on, off = opening(None), opening(True), opening(False)
    if default == on == off:
        return default, "The same with enable_thinking=True and False: this template does not know that switch."
    return default, f"With enable_thinking=True: {on}; with enable_thinking=False: {off}."
