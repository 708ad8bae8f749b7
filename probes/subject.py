"""What the self-check works on: the loaded model, a few small prompts, and how much rounding moves this model.

    subject = Subject(vlm)
    subject.said                       # greedy tokens of its prompt
    subject.followed(state, ids)       # logits of a state that is fed these tokens one by one
    subject.logit_limit                # how far apart two valid ways may be
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from probes.attention import recording_image_attention
from probes.decode import decode
from probes.interpose import interposed, text_attention_modules
from probes.layout import Prompt
from probes.prefix import State, extend, prefill
from probes.reference import SoftmaxMasses, drawing, eager_run, own_inputs, own_logits

if TYPE_CHECKING:
    from probes.vlm import LocalVLM

N_NEW_TOKENS = 8
QUESTION = ("Describe this picture in detail: name every shape and its color, say where each of them is, which is "
            "the largest, which are next to each other, and what lies behind them. Then look at it again and "
            "correct what you got wrong.")
OTHER_QUESTIONS = ("Which shape is the largest, and what is its color?",
                   "How many shapes are there? Explain how you counted.")

# Logit differences are shares of the logits' spread: rounding gives 1e-6 in float32, a wrong position or a
# stale state 0.07 to 1.4.  Linear layers read in chunks and decode with a recurrence: up to 2e-4 in 24 layers.
LOGIT_LIMIT, HYBRID_LOGIT_LIMIT = 1e-4, 1e-3
# Half precision: MARGIN times the rounding measured on the model itself, but at least a few units in the last
# place (a measurement may happen to be small), and never so much that another text would pass.
HALF_LOGIT_LIMITS = {torch.bfloat16: 0.05, torch.float16: 0.01}
MARGIN, LARGEST_LOGIT_LIMIT = 4, 0.5


class Subject:
    """The loaded model with its prompts; everything is computed when first asked for, and once."""

    def __init__(self, vlm: LocalVLM):
        self.vlm = vlm
        side = vlm.processor.image_processor.patch_size * vlm.processor.image_processor.merge_size
        # Not square: a transposed grid has as many tokens and other positions.
        self.pixels, self.pixels_b = drawing(8 * side, 12 * side, 0), drawing(8 * side, 12 * side, 1)
        self.other_pixels = [drawing(10 * side, 6 * side, 2), drawing(4 * side, 5 * side, 3)]
        self.exact = vlm.dtype == torch.float32

    @cached_property
    def prompt(self) -> Prompt:
        return self.vlm.prompt(self.pixels, QUESTION)

    @cached_property
    def batch(self) -> list[Prompt]:
        """Three prompts of different lengths with images of different sizes."""
        others = zip(self.other_pixels, OTHER_QUESTIONS)
        return [self.prompt, *(self.vlm.prompt(pixels, question) for pixels, question in others)]

    def two_images(self) -> tuple[Prompt, dict[str, torch.Tensor]]:
        """A prompt with two images of different sizes, built here and by the processor."""
        images = [self.pixels, self.other_pixels[0]]
        return self.vlm.prompt(images, QUESTION), own_inputs(self.vlm, images, QUESTION)

    @cached_property
    def uninterrupted(self) -> tuple[tuple[int, ...], torch.Tensor]:
        """Twice `N_NEW_TOKENS` greedy tokens, also behind an end token (a real model may stop early), and the logits
        (steps, vocabulary) that they were chosen from."""
        ids, logits = self.decoded_with_logits(prefill(self.vlm, [self.prompt]), 2 * N_NEW_TOKENS)
        return ids[0], logits[0]

    @cached_property
    def said(self) -> tuple[int, ...]:
        return self.uninterrupted[0]

    @cached_property
    def first(self) -> tuple[int, ...]:
        return self.said[:N_NEW_TOKENS]

    def decoded(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        return [out.ids for out in decode(self.vlm, prefill(self.vlm, prompts), N_NEW_TOKENS, stop_ids=())]

    def decoded_with_logits(self, state: State, n_tokens: int = N_NEW_TOKENS, stop_ids: Sequence[int] | None = ()
                            ) -> tuple[list[tuple[int, ...]], torch.Tensor]:
        """Greedy tokens of every row and the logits (B, steps, vocabulary) that they were chosen from.

        The rows have to stay together: end tokens only with a state of one row.
        """
        logits = [state.logits.cpu()]

        def keep(_: torch.nn.Module, __: tuple, output: object) -> None:
            logits.append(output.logits[:, -1].float().cpu())

        hook = self.vlm.model.register_forward_hook(keep)
        try:
            found = decode(self.vlm, state, n_tokens, stop_ids=stop_ids)
        finally:
            hook.remove()
        return [out.ids for out in found], torch.stack(logits, 1)[:, :max(len(out.ids) for out in found)]

    def followed(self, state: State, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits (B, steps + 1, vocabulary) of a state that is fed `ids` (B, steps), one token at a time."""
        logits = [state.logits]
        for tokens in zip(*ids):
            state = extend(self.vlm, state, [[token] for token in tokens])
            logits.append(state.logits)
        return torch.stack(logits, 1)

    def own_logits(self, said: Sequence[int], n_rows: int) -> torch.Tensor:
        """(n_rows, vocabulary) last logits of the prompt and `said`, by the model as transformers runs it."""
        return own_logits(self.vlm, [self.pixels], QUESTION, said, n_rows)

    @cached_property
    def eager(self) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Logits and, by layer, weights (H, `N_NEW_TOKENS`, T) of the rows that chose `first`, under eager."""
        return eager_run(self.vlm, [self.pixels], QUESTION, self.first[:-1], N_NEW_TOKENS)

    @cached_property
    def rounding(self) -> float:
        """How far apart two valid attention kernels are in the logits."""
        return apart(self.eager[0], self.own_logits(self.first[:-1], N_NEW_TOKENS))

    @cached_property
    def logit_limit(self) -> float:
        if self.exact:
            return HYBRID_LOGIT_LIMIT if self.vlm.family.hybrid else LOGIT_LIMIT
        return min(LARGEST_LOGIT_LIMIT, max(HALF_LOGIT_LIMITS[self.vlm.dtype], MARGIN * self.rounding))

    @property
    def limit_rule(self) -> str:
        """How `logit_limit` comes about, as a sentence without its full stop."""
        dtype = str(self.vlm.dtype).removeprefix("torch.")
        if self.exact:
            return f"In {dtype} the ways compared below have to agree to {self.logit_limit}"
        least = HALF_LOGIT_LIMITS[self.vlm.dtype]
        return (f"In {dtype} the ways compared below may differ by {MARGIN} times that, which makes the limit "
                f"{self.logit_limit:.1e} (it is never below {least} nor above {LARGEST_LOGIT_LIMIT})")

    @torch.no_grad()
    def disturb(self) -> None:
        """Use the model object for another prompt, whose rope_deltas it keeps."""
        self.vlm.model(**own_inputs(self.vlm, self.other_pixels[:1], OTHER_QUESTIONS[0]), use_cache=True)

    def tap_error(self, prompts: Sequence[Prompt]) -> float:
        """Largest difference between recorded masses and the softmax of the same forward passes."""
        masses = SoftmaxMasses([prompt.ids for prompt in prompts], self.vlm.model.config.image_token_id)
        modules = text_attention_modules(self.vlm.model).values()
        with interposed(modules, masses), recording_image_attention(self.vlm) as trace:
            self.decoded(prompts)
        recorded = np.stack([sequence.scores for sequence in trace.sequences()])
        return float(np.abs(recorded - masses.array()).max())


def apart(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square difference of logits, in units of the reference's spread over the vocabulary."""
    reference = reference.to(logits.device)
    return float((logits - reference).square().mean().sqrt() / reference.std(-1).mean())
