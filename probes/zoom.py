"""An agent that may zoom: a local model in a ReAct loop with one crop-and-zoom tool (ReKey, Sec. 4.2 and Table 6).

    trace = ask_with_zoom(vlm, "photo.jpg", prompt_text(item.question, item.options, "cot"), max_steps=5)
    trace.text, trace.finish                   # the answer; "answered", "out of steps" or "out of tokens"
    [step.view.box for step in trace.steps if step.view]        # where it looked, in pixels of the photo

The model reads the picture, the question and what the tool does; it calls the tool by a JSON object in <tool_call>
tags, sees the cut-out as a new image, and goes on until a turn holds no call.  ReKey does not publish its harness; the
tool and its argument are named as Qwen3-VL and DeepEyes name theirs.

Coordinates are thousandths of the whole picture, in every call.  Pixels would be those of a resized picture whose size
the model cannot know, and a box within a cut-out would depend on which cut-out is meant; Qwen3-VL writes this form by
itself.  A model that was trained on another form (Qwen2.5-VL: pixels) is told, and may forget: many views "cut" at the
edge are the sign of it.  Cut-outs come from the original pixels, whatever the model saw of them.

The first call of a turn counts and ends it: what the model wrote after the call, an answer included, it wrote without
having seen the cut-out; that text is recorded and not read again.  A call drafted inside closed reasoning is none.
A bad call costs a step, and the model is told what was wrong.

One question at a time: conversations part after the first turn.  Every turn reads the conversation anew, since the
states of `probes.prefix` grow by text only; it is read as ids, so nothing that was said is rendered or tokenized again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from PIL import Image

from probes.decode import GREEDY, Sampling, whole
from probes.encoding import ImageLike, image_pixels
from probes.layout import MAX_IMAGES, EncodedImage, Prompt
from probes.vlm import LocalVLM
from probes.zoom_calls import CALL_FORM, MAX_STEPS, TOOL_NAME, Call, read_call
from rekey.draws import Draws
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.images import MAX_ASPECT, pixel_sha256
from rekey.records import Generation

MAX_NEW_TOKENS = 8192       # a turn; Sec. 4.1
MIN_VIEW_TOKENS = 256       # as Qwen's own tool enlarges its crops
ANSWER_TOKENS = 256         # kept free of cut-outs, so that there is room to answer

Finish = Literal["answered", "out of steps", "out of tokens"]

TOOL_TEXT = """{question}

Before you answer you may look closer. The tool {name} cuts a box out of the original picture at its full resolution \
and shows it to you enlarged. To use it, end your turn with one call in exactly this form:
{form}
x1, y1 are the left and top edge of the box and x2, y2 its right and bottom edge, in thousandths of the original \
picture's width and height: [0, 0, 1000, 1000] is the whole picture. This holds for every call, also when you want to \
see a part of something that was shown enlarged. The tool can be used {times}.
Think about where to look. When you have seen enough, give your final answer, without a call."""
SHOWN = "This is the part {box} of the original picture."
AGAIN = "Use the tool again ({n} left), or give your final answer without a call."
NO_MORE = "The tool cannot be used any more. Give your final answer now, without a call."
NO_ROOM = "Error: there is no room left for another image."
NO_AREA = "Error: the box {box} has no area inside the picture, whose edges are 0 and 1000."
WHY = {"cut": "it reached beyond the picture", "grown": "it was smaller than can be shown"}


@dataclass(frozen=True)
class View:
    """One cut-out of the picture, as the model was shown it.

    asked: the box as the model wrote it, its corners put in order, in thousandths.  box: what was cut out, in pixels of
    the original picture.  adjusted: what was done to the box: "swapped" corners, "cut" at the picture's edge, "grown"
    to one image token.  size, seen: (height, width) as enlarged here and as the processor then resized it.
    sha256: of the pixels as cut out, before any enlarging.
    """

    asked: tuple[float, float, float, float]
    box: Box
    adjusted: tuple[str, ...]
    size: tuple[int, int]
    seen: tuple[int, int]
    n_tokens: int
    sha256: str


@dataclass(frozen=True)
class ZoomStep:
    """One turn of the model: what it said, and what the tool showed or objected.

    n_kept: how many of its token ids are read on; fewer than it said where it wrote on after a call.
    """

    said: Generation
    n_kept: int
    view: View | None = None
    error: str | None = None

    @property
    def is_call(self) -> bool:
        return self.view is not None or self.error is not None


@dataclass(frozen=True)
class ZoomTrace:
    """A question, answered with the tool.

    finish: "answered", by a turn without a call; "out of steps", by a turn after the last call that was allowed;
    "out of tokens": its last turn was broken off, or the conversation left no room for a cut-out or an answer.
    """

    steps: tuple[ZoomStep, ...]
    finish: Finish

    @property
    def text(self) -> str:
        """What the model said last."""
        return self.steps[-1].said.text

    @property
    def answer(self) -> Generation:
        """The last turn as one generation, to be stored and graded like that of a model without a tool.

        It was broken off ("length") too where no room was left to answer.  elapsed_s is that of all turns.
        """
        last = self.steps[-1]
        return replace(last.said, finish="length" if last.is_call else last.said.finish, elapsed_s=self.elapsed_s)

    @property
    def n_views(self) -> int:
        return sum(step.view is not None for step in self.steps)

    @property
    def n_errors(self) -> int:
        return sum(step.error is not None for step in self.steps)

    @property
    def n_new_tokens(self) -> int:
        return sum(len(step.said.token_ids) for step in self.steps)

    @property
    def n_read_tokens(self) -> int:
        """All that was read to say it, turn by turn from the start."""
        return sum(step.said.n_prompt_tokens for step in self.steps)

    @property
    def elapsed_s(self) -> float:
        return sum(step.said.elapsed_s for step in self.steps)


def ask_with_zoom(vlm: LocalVLM, image: ImageLike, question: str, max_steps: int = MAX_STEPS,
                  max_new_tokens: int = MAX_NEW_TOKENS, max_total_tokens: int | None = None,
                  min_view_tokens: int = MIN_VIEW_TOKENS, sampling: Sampling = GREEDY, seed: int | None = None,
                  thinking: bool | None = None) -> ZoomTrace:
    """Ask a model about a picture into which it may zoom.

    question: with its options, and better without "directly", which keeps models from looking.  max_steps: calls, good
    or bad; then the model is asked to answer without the tool.  max_new_tokens: a turn.  max_total_tokens: the whole
    conversation, by default what the model was made for.  min_view_tokens: smaller cut-outs are enlarged to about that
    many image tokens, within the pixel limits of the model.  seed: needed when sampling; every turn draws from its own.
    """
    for number, what in ((max_steps, "max_steps"), (max_new_tokens, "max_new_tokens"),
                         (min_view_tokens, "min_view_tokens")):
        if whole(number, what) < 1:
            raise InputError(f"zoom: {what} is {number}; expected a whole number, at least 1")
    if max_steps >= MAX_IMAGES:
        raise InputError(f"zoom: max_steps is {max_steps}; expected fewer than {MAX_IMAGES}, as many "
                         "images as a prompt can hold")
    pixels = image_pixels(image)
    prompt = vlm.prompt(image, tool_prompt(question, max_steps), thinking=thinking)
    limit = vlm.max_tokens
    if max_total_tokens is not None:
        limit = min(limit, whole(max_total_tokens, "max_total_tokens"))
    if len(prompt) >= limit:
        raise InputError(f"zoom: the picture and the question have {len(prompt)} tokens; expected fewer than {limit}, "
                         "so that there is room to answer; raise max_total_tokens, or load with smaller max_pixels")
    steps: list[ZoomStep] = []
    n_left, ending = max_steps, "answered"
    while True:
        n_new = min(max_new_tokens, limit - len(prompt))
        seeds = None if seed is None else [Draws("zoom", whole(seed, "seed"), len(steps)).seed()]
        [said] = vlm.generate([prompt], n_new, sampling, seeds)
        # Tags are special tokens in some vocabularies, and would be missing from the generation's text.
        call = read_call(vlm.text_of(said.token_ids, skip_special_tokens=False)) if n_left else None
        broken_off = said.finish == "length"
        if call is None or call.error and broken_off:
            steps.append(ZoomStep(said, len(said.token_ids)))
            return ZoomTrace(tuple(steps), "out of tokens" if broken_off else ending)
        n_left -= 1
        kept = said.token_ids[:_n_until(vlm, said.token_ids, call.end)]
        reply = _used(vlm, pixels, call, min_view_tokens)
        longer = _told(vlm, prompt, kept, reply, n_left, thinking)
        if reply.image is not None and len(longer) + min(max_new_tokens, ANSWER_TOKENS) > limit:
            reply, n_left = _Reply(NO_ROOM), 0
            longer = _told(vlm, prompt, kept, reply, n_left, thinking)
        steps.append(ZoomStep(said, len(kept), reply.view, None if reply.view else reply.text))
        if len(longer) >= limit:
            return ZoomTrace(tuple(steps), "out of tokens")
        prompt = longer
        if n_left == 0:
            ending = "out of tokens" if reply.text == NO_ROOM else "out of steps"


def tool_prompt(question: str, max_steps: int) -> str:
    """The question with the description of the tool after it."""
    if not isinstance(question, str) or not question.strip():
        raise InputError(f"zoom: the question is {question!r:.40}; expected text")
    times = "once" if max_steps == 1 else f"up to {max_steps} times, once a turn"
    return TOOL_TEXT.format(question=question, name=TOOL_NAME, form=CALL_FORM, times=times)


def box_in_pixels(asked: Sequence[float], width: int, height: int,
                  min_side_px: int) -> tuple[Box, tuple[str, ...]] | None:
    """The pixels of a width x height picture that a box in thousandths takes, and how the box was adjusted.

    Edges are rounded outwards.  A box beyond the picture is "cut"; one that is less than `min_side_px` wide or high, or
    so thin that no processor would take it, is "grown" around its center.  None: nothing of it lies in the picture.
    """
    x1, y1, x2, y2 = (min(max(value, 0.0), 1000.0) for value in asked)
    if not (x1 < x2 and y1 < y2):
        return None
    box = Box(math.floor(x1 * width / 1000), math.floor(y1 * height / 1000),
              math.ceil(x2 * width / 1000), math.ceil(y2 * height / 1000))
    adjusted = ("cut",) if (x1, y1, x2, y2) != tuple(asked) else ()
    left, right = _grown(box.left, box.right, max(min_side_px, -(-box.height // MAX_ASPECT)), width)
    top, bottom = _grown(box.top, box.bottom, max(min_side_px, -(-box.width // MAX_ASPECT)), height)
    grown = Box(left, top, right, bottom)
    return grown, (*adjusted, *(("grown",) if grown != box else ()))


def _grown(start: int, stop: int, least: int, length: int) -> tuple[int, int]:
    """An interval of at least `least` around the same center, inside [0, length)."""
    missing = min(least, length) - (stop - start)
    if missing <= 0:
        return start, stop
    start = min(max(0, start - missing // 2), length - min(least, length))
    return start, start + min(least, length)


def enlarged(pixels: np.ndarray, n_pixels: int) -> np.ndarray:
    """The image at `n_pixels` or slightly more, by Lanczos' filter; as it is where it has that many already."""
    height, width = pixels.shape[:2]
    scale = math.sqrt(n_pixels / (height * width))
    if scale <= 1:
        return pixels
    short, long = sorted(math.ceil(scale * side) for side in (height, width))
    long = min(long, MAX_ASPECT * short)                                   # rounding up may have made it thinner
    size = (long, short) if width > height else (short, long)              # Pillow's (width, height)
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))


@dataclass(frozen=True, eq=False)
class _Reply:
    """What the tool answers: words, and the cut-out where there is one."""

    text: str
    image: EncodedImage | None = None
    view: View | None = None


def _used(vlm: LocalVLM, pixels: np.ndarray, call: Call, min_view_tokens: int) -> _Reply:
    """The tool's reply to a call."""
    if call.error:
        return _Reply(call.error)
    height, width = pixels.shape[:2]
    kind = vlm.processor.image_processor
    side = kind.patch_size * kind.merge_size
    found = box_in_pixels(call.box, width, height, side)
    if found is None:
        return _Reply(NO_AREA.format(box=_spelled(call.box)))
    box, adjusted = found
    cut = np.ascontiguousarray(pixels[box.slices])
    # Kimi's processor limits patches, the others limit pixels.
    most = vlm.limits.max_pixels // side ** 2 if vlm.limits else kind.max_patches // kind.merge_size ** 2
    large = enlarged(cut, min(min_view_tokens, most) * side ** 2)
    encoded = vlm.encode_image(large)
    view = View(asked=call.box, box=box, adjusted=(*(("swapped",) if call.swapped else ()), *adjusted),
                size=large.shape[:2], seen=encoded.seen, n_tokens=encoded.n_tokens, sha256=pixel_sha256(cut))
    edges = (round(1000 * edge / length) for edge, length in zip(box.as_list(), (width, height, width, height)))
    why = f" The box you asked for was adjusted: {' and '.join(WHY[what] for what in adjusted)}." if adjusted else ""
    return _Reply(SHOWN.format(box=_spelled(edges)) + why, encoded, view)


def _spelled(box: Iterable[float]) -> str:
    return f"[{', '.join(f'{value:.6g}' for value in box)}]"


def _told(vlm: LocalVLM, prompt: Prompt, kept: Sequence[int], reply: _Reply, n_left: int,
          thinking: bool | None) -> Prompt:
    """The conversation with the tool's reply after what was kept of the model's turn.

    Qwen's templates put a tool's reply in these tags in a turn of the user, which all templates have.
    """
    words = f"{reply.text}\n{AGAIN.format(n=n_left) if n_left else NO_MORE}\n</tool_response>"
    content = [f"<tool_response>\n{words}"] if reply.image is None else ["<tool_response>\n", reply.image, f"\n{words}"]
    return vlm.second_turn(prompt, kept, content, thinking)


def _n_until(vlm: LocalVLM, ids: Sequence[int], end: int) -> int:
    """How many of the ids say the first `end` characters; all of them where nothing but space follows."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if len(vlm.text_of(ids[:middle], skip_special_tokens=False)) >= end:
            high = middle
        else:
            low = middle + 1
    return low if vlm.text_of(ids[low:]).strip() else len(ids)
