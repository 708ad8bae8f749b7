"""What makes a model say that it looks again, and what a user says to make it (VisualSwap, Sec. 2 and 5).

    REFLECTIONS                    # ten phrases a model may put into its own reasoning, from casual to formal
    INSTRUCTIONS                   # ten things a user may say in a second turn
    " " + REFLECTIONS[1]           # as it follows a sentence

Wording of our own.  The control models are trained on phrases drawn from small grammars and on some of these;
`HELD_OUT` of them they have never read, so that it can be told whether what was trained is the meaning or the
words.
"""

from __future__ import annotations

from collections.abc import Callable

from rekey.draws import Draws

REFLECTIONS = (
    "Hmm, let me peek at the picture again.",
    "Wait, let me look at the image once more.",
    "Hold on, I should check the figure again.",
    "Let me go back to the picture and check.",
    "Actually, I want to take another look at the image.",
    "Before answering, let me check the picture once more.",
    "I should verify this against the image.",
    "Let me re-examine the figure to be sure.",
    "It is worth inspecting the image again before I conclude.",
    "To confirm this, I will examine the visual information once more.",
)
INSTRUCTIONS = (
    "Check the picture again.",
    "Look at the image again and answer again.",
    "Please check the figure once more.",
    "Please go back to the image and check your answer.",
    "Are you sure? Look at the picture once more.",
    "Re-examine the image and answer the question again.",
    "Please verify your answer against the image.",
    "Take another look at the figure before you answer.",
    "I want you to inspect the image again.",
    "Please examine the visual information again and confirm your answer.",
)
HELD_OUT = (REFLECTIONS[3], REFLECTIONS[6], REFLECTIONS[8], INSTRUCTIONS[3], INSTRUCTIONS[4], INSTRUCTIONS[6])

_SIGHT = ("image", "picture", "figure", "diagram", "visual information")
_OPENERS = ("", "", "Wait, ", "Hmm, ", "Hold on, ", "Actually, ", "But ", "No, wait, ", "Is that right? ",
            "Am I sure? ", "Before answering, ", "To be sure, ", "First, ")
_WHO = ("let me", "I should", "I want to", "I will", "I need to", "I have to")
_LOOKS = ("check the {}", "look at the {}", "re-examine the {}", "examine the {}", "inspect the {}", "re-check the {}",
          "take a look at the {}", "double-check the {}", "see the {}", "return to the {}", "study the {}",
          "check this in the {}", "verify it in the {}", "confirm this with the {}", "compare this with the {}")
_TAILS = (" again", " again", " once more", " again to be sure", " before answering", " one more time", " carefully",
          " again before I answer", "", " another time", " to verify this", " to confirm it")
_REQUESTS = ("", "", "Please ", "Now ", "Are you certain? ", "Is that right? ", "Wait, ", "Can you ", "You should ",
             "I want you to ")
_AFTER = (" again", " once more", " again and answer again", " and answer the question again", " again and re-examine",
          " one more time", " carefully and answer", " before you answer again", " again to be sure",
          " and confirm your answer", " and tell me if it is right")


def draw_reflection(draws: Draws) -> str:
    """A reflection phrase for training, never one that is held out."""
    if draws.uniform() < 0.25:
        return draws.choice([phrase for phrase in REFLECTIONS if phrase not in HELD_OUT])
    opener, who = draws.choice(_OPENERS), draws.choice(_WHO)
    text = f"{opener}{who} {draws.choice(_LOOKS).format(draws.choice(_SIGHT))}{draws.choice(_TAILS)}."
    return _not_held_out(text, draws, draw_reflection)


def draw_instruction(draws: Draws) -> str:
    """A user's request to look again for training, never one that is held out."""
    if draws.uniform() < 0.25:
        return draws.choice([phrase for phrase in INSTRUCTIONS if phrase not in HELD_OUT])
    request = draws.choice(_REQUESTS)
    text = f"{request}{draws.choice(_LOOKS).format(draws.choice(_SIGHT))}{draws.choice(_AFTER)}"
    text += "?" if request.startswith("Can") else "."
    return _not_held_out(text, draws, draw_instruction)


def _not_held_out(text: str, draws: Draws, again: Callable[[Draws], str]) -> str:
    """The text with a capital at the start of each sentence, or another one where it is held out."""
    text = "? ".join(sentence[0].upper() + sentence[1:] for sentence in text.split("? "))
    return again(draws) if text in HELD_OUT else text
