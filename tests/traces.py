"""Made-up attention traces, for tests of what is computed and drawn from them."""

from __future__ import annotations

import numpy as np

from probes.trace import ImageAttention
from probes.trace_store import SeenImage, TrialTrace, windows_of
from rekey.trials import Cell

CELLS = {"base": Cell("base", image="a"), "probe": Cell("reasoning", phrase="Let me look again."),
         "multi-turn": Cell("user turn", phrase="Look again."), "natural": Cell("natural"),
         "splice": Cell("reasoning", regime="splice", phrase="Let me look again."),
         "no swap, probe": Cell("reasoning", "a", "none", phrase="Let me look again."),
         "null swap, probe": Cell("reasoning", "a", phrase="Let me look again.")}
WORDS = ("The", " kite", " is", " red", ".", " 看", "", "图", " 🪁", "\n")


def fake_trace(condition: str = "probe", pair_id: str = "p0", follows: str | None = "image", *, n_before: int = 30,
               n_phrase: int = 6, n_after: int = 20, n_layers: int = 4, n_heads: int = 3, mass: float = 0.2,
               rise: float = 0.0, token_grid: tuple[int, int] = (3, 4), model: str = "fake", seed: int = 0,
               region: tuple[int, ...] = (1, 2)) -> TrialTrace:
    """A trace of random masses.  mass: of the image, on average; rise: added to it from the phrase on.

    condition: one of CELLS.  The prompt is a sink, a template of 3 tokens, the image and a question of 6.
    """
    cell = CELLS[condition]
    if not cell.continues:
        n_before = n_phrase = 0
    elif condition == "natural":
        n_phrase = 0
    rows, columns = token_grid
    n_image = rows * columns
    n_asked = 10 + n_image
    t_phrase, t_after = n_asked + n_before, n_asked + n_before + n_phrase
    index = np.arange(n_asked - 1, t_after + n_after - 1)
    rng = np.random.default_rng([seed, *pair_id.encode()])
    shape = (n_layers, n_heads, len(index))
    scores = np.clip(mass + rise * (index >= t_phrase) + rng.normal(0, 0.02, shape), 0.001, 0.6).astype(np.float32)
    rest = ((1 - scores)[..., None] * rng.dirichlet((4, 2, 3, 3), shape)).astype(np.float32)
    sink, template, question, generated = np.moveaxis(rest, -1, 0)
    attention = ImageAttention(
        scores=scores, images=scores[None], region=scores * len(region) / n_image, sink=sink, template=template,
        question=question, generated=generated, layers=tuple(range(n_layers)), query_index=index,
        n_image_tokens=n_image, n_region_tokens=len(region), n_layers=n_layers, t_swap=t_phrase)
    windows = windows_of(n_asked, t_phrase, t_after, int(index[-1]) + 1)
    maps = {}
    for name, (low, high) in windows.items():
        within = (index >= low) & (index < high)
        if within.any():
            shares = rng.dirichlet(np.ones(n_image), n_layers).reshape(n_layers, rows, columns)
            maps[name] = (shares * scores[..., within].mean((1, 2))[:, None, None]).astype(np.float32)
    path = "a.png" if cell.image == "a" else "b.png"
    return TrialTrace(
        key=f"{pair_id}-{condition}-{seed}".replace(" ", "").replace(",", "-"), model=model, pair_id=pair_id, cell=cell,
        follows=follows, attention=attention, n_asked=n_asked, t_phrase=t_phrase, t_after=t_after,
        texts=tuple(WORDS[n % len(WORDS)] for n in range(len(index))), windows=windows, maps=maps,
        image=SeenImage(path, "0" * 64, (rows * 32, columns * 32), (rows * 32, columns * 32),
                        (rows * 32, columns * 32), token_grid, region),
        image_before="a.png" if cell.regime in ("splice", "none") and cell.continues else path, seed=seed)
