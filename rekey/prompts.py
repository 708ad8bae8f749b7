"""How a question is put to a model: the benchmark's own prompt formats (ReKey, Appendix C).

    prompt_text("What color is the kite?", ("red", "blue"))             # ends with DIRECT
    prompt_text("What color is the kite?", ("red", "blue"), "cot")      # ends with STEP_BY_STEP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rekey.records import option_letter

PromptStyle = Literal["direct", "cot"]
DIRECT = "Answer with the option's letter from the given choices directly."
STEP_BY_STEP = "Think step by step, then answer with the option's letter from the given choices."
FREE_STEP_BY_STEP = "Think step by step, then give the answer."


def prompt_text(question: str, options: Sequence[str], style: PromptStyle = "direct") -> str:
    """The question, one option a line as "(A) red", and what is asked for; a free-form question stays as it is."""
    if not options:
        return question
    listed = "\n".join(f"({option_letter(n)}) {text}" for n, text in enumerate(options))
    return f"{question}\n{listed}\n{DIRECT if style == 'direct' else STEP_BY_STEP}"


def pair_prompt(question: str, options: Sequence[str], style: PromptStyle = "cot") -> str:
    """As `prompt_text`; asked for steps where there are no options either, since a swap needs reasoning to stand in."""
    free_steps = style == "cot" and not options
    return f"{question}\n{FREE_STEP_BY_STEP}" if free_steps else prompt_text(question, options, style)
