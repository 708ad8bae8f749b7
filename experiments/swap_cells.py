"""What the VisualSwap experiments try: named conditions as cells (VisualSwap, Sec. 2, 5, App. H).

    probe_cells(kept=(0, 0.25, 0.5, 0.75, 1), phrases=REFLECTIONS)          # retention x triggers
    decomposition()                                     # from the probe to the user's turn, step by step
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from probes.phrases import INSTRUCTIONS, REFLECTIONS
from rekey.errors import InputError
from rekey.trials import Cell

TRIGGER, INSTRUCTION = REFLECTIONS[2], INSTRUCTIONS[0]
RETENTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
BASES = (Cell("base", image="a"), Cell("base", image="b"))


def probe_cells(kept: Sequence[float] = (1.0,), phrases: Sequence[str] = (TRIGGER,),
                regimes: Sequence[str] = ("recompute",)) -> tuple[Cell, ...]:
    """The probe in every retention, wording and regime.  regimes: of these "none" is no swap."""
    return tuple(Cell("reasoning", "a" if regime == "none" else "b", regime, share, phrase)
                 for regime, share, phrase in itertools.product(regimes, kept, phrases))


def controls_of(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Two controls of each swap: no swap at all, and the null swap, in which the image is exchanged for itself."""
    swaps = [cell for cell in cells if cell.image == "b" and cell.continues]
    return tuple(dict.fromkeys(control for cell in swaps
                               for control in (replace(cell, image="a", regime="none"), replace(cell, image="a"))))


def multi_turn_cells(instruction: str = INSTRUCTION, histories: Sequence[str] = ("kept", "stripped"),
                     regime: str = "recompute") -> tuple[Cell, ...]:
    """The user asks to look again: all of the first answer is kept, its thought is stripped, or it is removed."""
    return tuple(Cell("user turn", "b", regime, phrase=said(instruction), history=history) for history in histories)


def said(instruction: str) -> str:
    """What a user says.  Raises InputError where that is nothing."""
    if not instruction.strip():
        raise InputError("--instruction: is empty; expected what the user says")
    return instruction


def decomposition(trigger: str = TRIGGER, instruction: str = INSTRUCTION) -> dict[str, Cell]:
    """What a user's turn adds to the probe, one thing at a time; each step's name says what changed against the one
    that its line builds on."""
    return {
        "probe": Cell("reasoning", phrase=trigger),
        "wording: an instruction in the reasoning": Cell("reasoning", phrase=instruction),
        "position: the phrase after the answer": Cell("answer", phrase=trigger),
        "turn boundary: the phrase in a turn of its own": Cell("new turn", phrase=trigger),
        "role: the user says the phrase": Cell("user turn", phrase=trigger),
        "role and wording: multi-turn": Cell("user turn", phrase=said(instruction)),
        "thought stripped": Cell("user turn", phrase=instruction, history="stripped"),
        "answer removed": Cell("user turn", phrase=instruction, history="removed"),
    }


CONDITIONS = ("base", "probe", "multi-turn", "stripped", "removed", "after-answer", "new-turn", "natural")


def named_cells(conditions: Sequence[str], kept: Sequence[float], phrases: Sequence[str], instruction: str,
                regimes: Sequence[str]) -> tuple[Cell, ...]:
    """The cells of `rekey probe`.  Swaps come with their controls (`controls_of`)."""
    cells: list[Cell] = []
    for condition in conditions:
        if condition == "base":
            cells += BASES
        elif condition == "probe":
            cells += probe_cells(kept, phrases, regimes)
        elif condition in ("multi-turn", "stripped", "removed"):
            history = "kept" if condition == "multi-turn" else condition
            cells += [cell for regime in regimes if regime != "none"
                      for cell in multi_turn_cells(instruction, (history,), regime)]
        elif condition in ("after-answer", "new-turn"):
            place = "answer" if condition == "after-answer" else "new turn"
            cells += [Cell(place, phrase=phrase) for phrase in phrases]
        elif condition == "natural":
            cells.append(Cell("natural"))
        else:
            raise InputError(f"condition {condition!r}: expected some of {', '.join(CONDITIONS)}")
    return tuple(dict.fromkeys([*cells, *controls_of(cells)]))
