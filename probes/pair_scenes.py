"""Swap pairs of drawn scenes, asked about in the control models' own words (VisualSwap, Sec. 2).

    pair = draw_scene_pair(seed=1, number=12)               # the same whatever else is drawn
    pair.question.text, pair.letter("a"), pair.letter("b")
    render_scene(pair.a), render_scene(pair.b)

The question is about color, and one object is repainted; or about position, and two objects stand in each other's
place.  The scenes are of a stream of their own: neither training nor `probes.controls.exam` draws from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from probes.controls.talk import (
    MIN_SEPARATION_PX,
    Kind,
    SceneQuestion,
    draw_color_question,
    draw_position_question,
    other_scene,
)
from rekey.draws import Draws
from rekey.scenes import Scene, draw_scene

Asked = Literal["color", "position"]
KINDS: dict[Asked | None, tuple[Kind, ...]] = {"color": ("color",), "position": ("lr", "ab"),
                                               None: ("color", "lr", "color", "ab")}
"""What is asked, turn by turn."""
STREAM = "swap pair"
MIN_GAP_PX = 4                  # between the boxes of two objects, after a move


@dataclass(frozen=True)
class ScenePair:
    """Two scenes that differ in what the question asks about (VisualSwap's triplet, Sec. 2)."""

    a: Scene
    b: Scene
    question: SceneQuestion

    @property
    def kind(self) -> Asked:
        return "color" if self.question.kind == "color" else "position"

    def letter(self, side: Literal["a", "b"]) -> str:
        return self.question.letter(self.a if side == "a" else self.b)


def draw_scene_pair(seed: int, number: int, ask: Asked | None = None) -> ScenePair:
    """The pair of a number.  ask: what the question is about; by turns where that is left open."""
    kinds = KINDS[ask]
    kind, attempt = kinds[number % len(kinds)], 0
    while True:
        parts = (STREAM, seed, number, kind, attempt)
        draws, scene = Draws(*parts), draw_scene(*parts)
        question = (draw_color_question(draws, scene) if kind == "color"
                    else draw_position_question(draws, scene, MIN_SEPARATION_PX, kind))
        if question is not None:
            other = other_scene(draws, scene, question)
            if other is not scene and not overlapping(other):
                return ScenePair(scene, other, question)
        attempt += 1


def overlapping(scene: Scene) -> bool:
    """Whether two objects come closer than they would in a drawn scene, as they may after a move."""
    return any(a.box.grown(MIN_GAP_PX).intersects(b.box) for n, a in enumerate(scene.objects)
               for b in scene.objects[:n])
