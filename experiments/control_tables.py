"""The tables of docs/controls.md, from the cards on the shelf.

    print(sight_table(), memory_table(), habit_table(), sep="\\n\\n")

A test compares the page with them, so that it says what the cards say.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.tables import markdown_table
from probes.controls.cards import ALIASES, control_names, read_card

KINDS = {"color": "color (chance 25)", "lr": "left/right (50)", "ab": "above/below (50)"}
SIGHT = ("direct", "gray image", "shuffled images", "reasoning letter", "reasoning true statements",
         "second turn letter")
MEMORY = {"original direct_attributes": "original, color", "original relative_position": "original, position",
          "renewed direct_attributes": "renewed, color", "renewed relative_position": "renewed, position",
          "stale answers": "stale answers", "direct color": "unseen, color", "direct lr": "unseen, left/right",
          "direct ab": "unseen, above/below"}
SWAPS = ("probe, trained phrases", "probe, held-out phrases", "second turn, trained phrases",
         "second turn, held-out phrases")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table((head, *rows)).rstrip("\n")


def _shown(scores: dict[str, list], key: str) -> str:
    return f"{100 * scores[key][0]:.1f}" if key in scores else "-"


def sight_table() -> str:
    """What control:clean sees, in percent, with n."""
    scores = read_card("clean")["scores"]
    def cell(key: str) -> str:
        return f"{_shown(scores, key)} ({scores[key][1]})"
    return _table(["question", *SIGHT], [[title, *(cell(f"{name} {kind}") for name in SIGHT)]
                                         for kind, title in KINDS.items()])


def memory_table() -> str:
    """What clean and contaminated controls say of the benchmark, of its renewals, and of unseen scenes."""
    names = ["clean", *(name for name in control_names() if name.startswith("contaminated-"))]
    first = read_card(names[0])["scores"]
    return _table(["control", *(f"{title} (n={first[key][1]})" for key, title in MEMORY.items())],
                  [[f"`{name}`", *(_shown(read_card(name)["scores"], key) for key in MEMORY)] for name in names])


def habit_table() -> str:
    """Whom the answer follows after a swap: the image / the text; without a swap, how often the answer stays."""
    rows = []
    for name in ("natural", "grounded", "anchored"):
        scores = read_card(name)["scores"]
        for kind in ("color", "position"):
            cells = [" / ".join(_shown(scores, f"{swap}, {kind}: follows {what}") for what in ("image", "text"))
                     for swap in SWAPS]
            stays = " / ".join(_shown(scores, f"null {swap}, {kind}: follows text")
                               for swap in (SWAPS[0], SWAPS[2]))
            rows.append([f"`{name}`", kind, *cells, stays])
    head = ["control", "pairs", *SWAPS, "no swap, answer stays: probe / second turn"]
    return _table(head, rows)


def time_table() -> str:
    """How long each training took, with its command."""
    rows = []
    for name in (name for name in control_names() if name not in ALIASES):
        card = read_card(name)
        stages = ", ".join(f"{stage}: {entry['steps']} steps, {entry['elapsed_s']:.0f} s"
                           for stage, entry in card["stages"].items())
        rows.append([f"`{card['command']}`", card["trained"], stages])
    return _table(["command", "trained", "stages"], rows)


if __name__ == "__main__":
    print(sight_table(), memory_table(), habit_table(), time_table(), sep="\n\n")
