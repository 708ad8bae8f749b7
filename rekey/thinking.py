"""Where a response's reasoning ends and its answer begins, in the marks that models set.

    text[answer_start(text):]               # after </think>, [/THINK], an opened final channel, ...

Templates often open the thought in the prompt, so that a response holds the closing mark alone.
"""

from __future__ import annotations

import re

_NAME = r"(?:seed:)?(?:think(?:ing)?|thought|reasoning)"
_ENDS = re.compile(rf"</{_NAME}>|◁/think▷|\[/THINK\]|<\|channel\|>final<\|message\|>", re.IGNORECASE)
_BEGINS = re.compile(rf"<{_NAME}>|◁think▷|\[THINK\]|<\|channel\|>analysis", re.IGNORECASE)


def thoughts_end(text: str) -> int:
    """Index of the first character after the last thought that ends; 0 where none does."""
    end = 0
    for found in _ENDS.finditer(text):
        end = found.end()
    return end


def thought_stop(text: str) -> int | None:
    """Index of the mark that ends the last thought; None where no thought ends."""
    start = None
    for found in _ENDS.finditer(text):
        start = found.start()
    return start


def answer_start(text: str) -> int | None:
    """Index of the first character of the answer; None where a thought does not end."""
    if not any(sign in text for sign in "<[◁"):             # as most texts are
        return 0
    return thoughts_end(text) if open_thought(text) is None else None


def open_thought(text: str) -> int | None:
    """Index of the mark that opens a thought which does not end; None where there is no such."""
    found = _BEGINS.search(text, thoughts_end(text))
    return found and found.start()
