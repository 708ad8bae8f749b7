"""Training aids: targets for attention and hidden states along the path from picture to letter, dropped at the end.

    scaffold = Scaffold()                                   # small heads of its own, not part of the model
    loss, meters = scaffold.vision_loss(model, tokens, scenes)
    with Watch(model) as watch:
        forward(model, batch)
        loss, meters = scaffold.text_loss(model, watch, batch)

A model of this size does not find that path by itself in the time it is given.  The path:

    vision    every image token tells shape, color, row, column and the object's center
    layer 0   a shape word looks at its object (heads 0 and 1); its state knows place and color
    layer 1   the second shape word of a question looks at the first (head 0); its state knows the relation
    layer 2   where the letter is due, at the question's last shape word (head 0); the state there spells the answer
    layer 3   there again, at the option that says so (head 0); where an object is about to be named, at its name in
              the question (head 1)

So attention in these heads was trained, and is no model of how attention in large models looks.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, Qwen3VLForConditionalGeneration
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from probes.controls.batches import Batch, image_start, vocabulary
from probes.controls.model import HIDDEN
from probes.controls.text import N_IMAGE_TOKENS, TOKEN_GRID
from rekey.colors import COLORS
from rekey.scenes import SHAPES, SIDE_PX, Scene, SceneObject

Meters = dict[str, float]
CLEARLY = 0.2                    # of half the image: objects nearer than this on an axis have no relation on it
NO_OBJECT_WEIGHT = 0.3           # most image tokens hold none
# Shapes are by far the hardest to learn to see: with weight 1, 44% instead of 60% are known after 600 steps.
VISION_WEIGHTS = {"shape": 3.0, "color": 1.0, "row": 0.5, "column": 0.5, "place": 2.0}
WATCHED_ATTENTION, WATCHED_STATES = (0, 1, 2, 3), (0, 1, 2)
WATCHED_KERNEL = "watched_sdpa"


def cell_of(o: SceneObject) -> int:
    """Index of the image token that holds the object's center."""
    x, y = o.box.center
    column, row = (min(TOKEN_GRID - 1, int(c * TOKEN_GRID / SIDE_PX)) for c in (x, y))
    return row * TOKEN_GRID + column


def place_of(o: SceneObject) -> tuple[float, float]:
    """The center as (x, y) in [-1, 1]."""
    return tuple(2 * c / SIDE_PX - 1 for c in o.box.center)


class Watch:
    """While open, keeps queries, keys and hidden states of the text model's first layers from each forward.

    The model attends with its fast kernel; weights of the few pairs that an aid asks for are computed beside it.
    """

    def __init__(self, model: Qwen3VLForConditionalGeneration):
        self.model = model
        self.projected: dict[int, tuple[torch.Tensor, torch.Tensor, float]] = {}
        """layer -> queries and keys after their rotation, (B, H, S, D), and the scale of their products."""
        self.states: dict[int, torch.Tensor] = {}           # layer -> (B, S, C), after the layer
        self._hooks: list = []

    def __enter__(self) -> Watch:
        layers = self.model.model.language_model.layers
        AttentionInterface.register(WATCHED_KERNEL, self._attend)
        AttentionMaskInterface.register(WATCHED_KERNEL, sdpa_mask)
        self._before = self._set_kernel(WATCHED_KERNEL)
        for number in WATCHED_STATES:
            self._hooks.append(layers[number].register_forward_hook(
                lambda module, args, out, number=number: self.states.__setitem__(
                    number, out if torch.is_tensor(out) else out[0])))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._set_kernel(self._before)

    def _attend(self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask,
                **kwargs):
        if module.layer_idx in WATCHED_ATTENTION:
            self.projected[module.layer_idx] = query, key, module.scaling
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    def _set_kernel(self, name: str) -> str:
        configs = (self.model.config.text_config, self.model.model.language_model.config)
        before = configs[0]._attn_implementation
        for config in configs:
            config._attn_implementation = name
        return before

    def looks(self, layer: int, head: int, rows: list[int], queries: list[int], keys: list[int]) -> torch.Tensor:
        """(N,) logarithms of the attention weights of single pairs."""
        query, key, scale = self.projected[layer]
        rows, queries, keys = (torch.tensor(numbers) for numbers in (rows, queries, keys))
        scores = torch.einsum("nd,nsd->ns", query[rows, head, queries], key[:, head][rows]) * scale
        ahead = torch.arange(key.shape[2]) > queries[:, None]
        chances = scores.masked_fill(ahead, float("-inf")).log_softmax(-1)
        return chances.gather(1, keys[:, None]).squeeze(1)


class Scaffold(nn.Module):
    """The heads that the aids need; they end with the training."""

    def __init__(self):
        super().__init__()

        def prototypes(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, HIDDEN) * 0.04)

        def sharpness() -> nn.Parameter:
            return nn.Parameter(torch.tensor(2.0))

        self.no_object = nn.ParameterDict({"shape": prototypes(1), "color": prototypes(1)})
        self.rows_columns = nn.ParameterDict({"row": prototypes(TOKEN_GRID), "column": prototypes(TOKEN_GRID)})
        self.sharpness = nn.ParameterDict({name: sharpness() for name in ("shape", "color", "row", "column", "value")})
        self.token_place = nn.Linear(HIDDEN, 2)
        self.word_place = nn.Linear(HIDDEN, 2)
        self.word_color = nn.Linear(HIDDEN, len(COLORS))
        self.relation = nn.Linear(HIDDEN, 2)

    def _cosine(self, states: torch.Tensor, prototypes: torch.Tensor, name: str) -> torch.Tensor:
        return (F.normalize(states.float(), dim=-1) @ F.normalize(prototypes, dim=-1).T * self.sharpness[name].exp())

    def vision_loss(self, model: Qwen3VLForConditionalGeneration, tokens: torch.Tensor,
                    scenes: tuple[Scene, ...]) -> tuple[torch.Tensor, Meters]:
        """What every image token should tell.  tokens: (B * N_IMAGE_TOKENS, HIDDEN), merged visual tokens.

        Shapes and colors are told in the language model's own words: by cosine to their embeddings.
        """
        words = model.model.language_model.embed_tokens.weight
        shapes, colors, places = _cell_targets(scenes)
        loss, meters = 0.0, {}
        for name, ids, target in (("shape", vocabulary().shapes, shapes), ("color", vocabulary().colors, colors)):
            logits = self._cosine(tokens, torch.cat([words[list(ids)], self.no_object[name]]), name)
            weight = torch.ones(len(ids) + 1)
            weight[-1] = NO_OBJECT_WEIGHT
            loss = loss + VISION_WEIGHTS[name] * F.cross_entropy(logits, target, weight=weight)
            meters[f"see {name}"] = _share(logits, target, target != len(ids))
        cells = torch.arange(N_IMAGE_TOKENS).repeat(len(scenes))
        for name, target in (("row", cells // TOKEN_GRID), ("column", cells % TOKEN_GRID)):
            logits = self._cosine(tokens, self.rows_columns[name], name)
            loss = loss + VISION_WEIGHTS[name] * F.cross_entropy(logits, target)
            meters[f"see {name}"] = _share(logits, target)
        held = ~torch.isnan(places[:, 0])
        told = self.token_place(_normed(tokens)[held])
        loss = loss + VISION_WEIGHTS["place"] * F.smooth_l1_loss(told, places[held], beta=0.1)
        meters["see place off by px"] = float((told.detach() - places[held]).abs().mean()) * SIDE_PX / 2
        return loss, meters

    def text_loss(self, model: Qwen3VLForConditionalGeneration, watch: Watch, batch: Batch,
                  whole_path: bool = True) -> tuple[torch.Tensor, Meters]:
        """What the language model should look at and know on the way to its answer, or only where it is said."""
        if not whole_path:
            return self._at_letters(model, watch, batch)
        loss, meters = self._at_shape_words(watch, batch)
        for part, more in (self._at_pairs(watch, batch), self._at_letters(model, watch, batch),
                           self._at_names(watch, batch)):
            loss, meters = loss + part, meters | more
        return loss, meters

    def _at_shape_words(self, watch: Watch, batch: Batch) -> tuple[torch.Tensor, Meters]:
        rows, at, cells, places, colors = [], [], [], [], []
        for n, (row, objects) in enumerate(zip(batch.rows, map(_by_word, batch.scenes))):
            for position in range(image_start() + N_IMAGE_TOKENS, len(row.ids)):
                if o := objects.get(row.ids[position]):
                    rows.append(n)
                    at.append(position)
                    cells.append(image_start() + cell_of(o))
                    places.append(place_of(o))
                    colors.append(COLORS.index(o.color))
        states, places, colors = _normed(watch.states[0][rows, at]), torch.tensor(places), torch.tensor(colors)
        weights = [watch.looks(0, head, rows, at, cells) for head in (0, 1)]
        place, color = self.word_place(states), self.word_color(states)
        loss = (sum(_surprise(w) for w in weights) / 2 + 3 * F.smooth_l1_loss(place, places, beta=0.1)
                + 0.5 * F.cross_entropy(color, colors))
        return loss, {"word looks at object": _above_half(weights[0]), "word knows color": _share(color, colors),
                      "word place off by px": float((place.detach() - places).abs().mean()) * SIDE_PX / 2}

    def _at_pairs(self, watch: Watch, batch: Batch) -> tuple[torch.Tensor | float, Meters]:
        rows, first, second, offsets = [], [], [], []
        for n, (row, objects) in enumerate(zip(batch.rows, map(_by_word, batch.scenes))):
            for a, b in row.pairs:
                (x1, y1), (x2, y2) = (place_of(objects[row.ids[position]]) for position in (a, b))
                rows.append(n)
                first.append(a)
                second.append(b)
                offsets.append((x1 - x2, y1 - y2))
        if not rows:
            return 0.0, {}
        weights = watch.looks(1, 0, rows, second, first)
        offset = torch.tensor(offsets)
        told = self.relation(_normed(watch.states[1][rows, second]))
        clear = offset.abs() > CLEARLY
        relation = F.binary_cross_entropy_with_logits(told, (offset > 0).float(), reduction="none")[clear].mean()
        right = float(((told > 0) == (offset > 0))[clear].float().mean())
        return _surprise(weights) + 2 * relation, {"pair looks": _above_half(weights), "pair knows": right}

    def _at_names(self, watch: Watch, batch: Batch) -> tuple[torch.Tensor | float, Meters]:
        found = [(n, at, source) for n, row in enumerate(batch.rows) for at, source in row.copies]
        if not found:
            return 0.0, {}
        rows, at, sources = map(list, zip(*found))
        weights = watch.looks(3, 1, rows, at, sources)
        return _surprise(weights), {"name looks at question": _above_half(weights)}

    def _at_letters(self, model: Qwen3VLForConditionalGeneration, watch: Watch,
                    batch: Batch) -> tuple[torch.Tensor | float, Meters]:
        rows, at, options, values = [], [], [], []
        direct_rows, direct_at, sources = [], [], []
        words = vocabulary().values
        for n, row in enumerate(batch.rows):
            for aid in row.letters:
                option = aid.values[aid.right]
                for position in aid.at:
                    rows.append(n)
                    at.append(position)
                    options.append(option)
                    values.append(words.index(row.ids[option]))
                    if aid.source is not None:
                        direct_rows.append(n)
                        direct_at.append(position)
                        sources.append(aid.source)
        if not rows:
            return 0.0, {}
        embedding = model.model.language_model.embed_tokens.weight
        spelled = self._cosine(watch.states[2][rows, at], embedding[list(words)], "value")
        value = torch.tensor(values)
        weights = watch.looks(3, 0, rows, at, options)
        loss = F.cross_entropy(spelled, value) + _surprise(weights)
        meters = {"letter knows value": _share(spelled, value), "letter looks at option": _above_half(weights)}
        if direct_rows:
            weights = watch.looks(2, 0, direct_rows, direct_at, sources)
            loss = loss + _surprise(weights)
            meters["letter looks at question"] = _above_half(weights)
        return loss, meters


def _by_word(scene: Scene) -> dict[int, SceneObject]:
    """Each object by the id of its shape word."""
    return {vocabulary().shapes[SHAPES.index(o.shape)]: o for o in scene.objects}


def _cell_targets(scenes: tuple[Scene, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per image token: shape and color of the object centered there (or one past the last), and its place (or nan)."""
    n = len(scenes)
    shapes = torch.full((n, N_IMAGE_TOKENS), len(SHAPES))
    colors = torch.full((n, N_IMAGE_TOKENS), len(COLORS))
    places = torch.full((n, N_IMAGE_TOKENS, 2), float("nan"))
    for number, scene in enumerate(scenes):
        for o in scene.objects:
            cell = cell_of(o)
            shapes[number, cell], colors[number, cell] = SHAPES.index(o.shape), COLORS.index(o.color)
            places[number, cell] = torch.tensor(place_of(o))
    return shapes.flatten(), colors.flatten(), places.view(-1, 2)


def _normed(states: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(states.float(), states.shape[-1:])


def _surprise(log_weights: torch.Tensor) -> torch.Tensor:
    """Mean -log of attention weights; those below 1e-5 no longer pull."""
    return -log_weights.clamp(min=math.log(1e-5)).mean()


def _above_half(log_weights: torch.Tensor) -> float:
    return float((log_weights.detach() > math.log(0.5)).float().mean())


def _share(logits: torch.Tensor, target: torch.Tensor, where: torch.Tensor | slice = slice(None)) -> float:
    return float((logits.argmax(-1) == target)[where].float().mean())
