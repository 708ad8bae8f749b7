"""Prompts, built in one place and as token ids.

The chat template is rendered once, tokenized once, and every image placeholder in the ids is widened to
the image's tokens.  What follows (reasoning, a reflection phrase) is appended as ids, so no text is ever
tokenized twice and no template can drop or close a model's reasoning on the way.

    prompt = build_prompt(processor, image_token_id, [encoded], "What color is the kite?\n(A) red\n(B) blue")
    prompt.ids, prompt.codes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from probes.layout import QUESTION, SINK, TEMPLATE, EncodedImage, Prompt
from rekey.errors import InputError

PLACEHOLDER = "\ue000question\ue000"      # of private-use characters, which no template or question holds
# Special tokens in some tokenizers, plain text in others; they open no image and close no turn.
TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

if TYPE_CHECKING:
    from transformers import ProcessorMixin


def build_prompt(processor: ProcessorMixin, image_token_id: int, images: Sequence[EncodedImage], question: str,
                 system: str | None = None, thinking: bool | None = None) -> Prompt:
    """The model's own chat prompt for images followed by a question, up to where it begins to answer.

    thinking: passed to templates that know it (`enable_thinking`); None leaves the template's default.
    """
    check_text(processor, question, "question")
    if system is not None:
        check_text(processor, system, "system text")
    def rendered(text: str) -> str:
        content = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
        system_turn = [{"role": "system", "content": [{"type": "text", "text": system}]}] if system else []
        return render(processor, [*system_turn, {"role": "user", "content": content}], thinking=thinking)

    text = rendered(question)
    # Where the template puts the question: looking for its words would find "assistant" in the wrong place.
    before, _, after = rendered(PLACEHOLDER).partition(PLACEHOLDER)
    if not (text.startswith(before) and text.endswith(after) and len(before) + len(after) < len(text)):
        raise InputError("prompt: the chat template does not keep the question in one piece; use the template that the "
                         "checkpoint ships")
    return tokenized(processor, image_token_id, images, text, len(before), len(text) - len(after))


def next_turn(processor: ProcessorMixin, question: str | Sequence[str | EncodedImage], n_images: int = 0,
              thinking: bool | None = None) -> list[tuple[list[int], int]]:
    """What follows a model's answer when the user speaks again: pieces of token ids, each with its group.

    question: text, or texts and images in the order in which the user shows them; every image is one token still,
    which `with_turn` widens.  n_images: images before this turn, which some templates count.  thinking: as for
    `build_prompt`.  The pieces close the answer (with the end token, should it not have said it), hold the question,
    and open the next answer.  Only ids are added, so nothing of the first answer's reasoning is lost.
    """
    parts = [question] if isinstance(question, str) else list(question)
    for part in parts or [""]:
        if isinstance(part, str):
            check_text(processor, part, "question")
    mark, places = PLACEHOLDER, [PLACEHOLDER.replace("question", f"again {n}") for n in range(len(parts))]
    before = [*({"type": "image"} for _ in range(n_images)), {"type": "text", "text": "."}]
    content = [{"type": "text", "text": place} if isinstance(part, str) else {"type": "image"}
               for part, place in zip(parts, places)]
    text = render(processor, [{"role": "user", "content": before}, {"role": "assistant", "content": mark},
                              {"role": "user", "content": content}], thinking=thinking)

    def ids(piece: str) -> list[int]:
        return processor.tokenizer(piece, add_special_tokens=False)["input_ids"] if piece else []

    pieces, after = [], text.partition(mark)[2]
    for part, place in zip(parts, places):
        if isinstance(part, str):
            between, found, after = after.partition(place)
            if not found:
                raise InputError("second turn: the chat template does not keep the turns in one piece; use the "
                                 "template that the checkpoint ships")
            pieces += [(ids(between), TEMPLATE), (ids(part), QUESTION)]
    return [*pieces, (ids(after), TEMPLATE)]


def new_answer(processor: ProcessorMixin, n_images: int = 0, thinking: bool | None = None) -> list[int]:
    """Token ids that close a model's answer and open another of its own, without a word of the user between them.

    n_images: images before.
    """
    before = [*({"type": "image"} for _ in range(n_images)), {"type": "text", "text": "."}]
    text = render(processor, [{"role": "user", "content": before}, {"role": "assistant", "content": PLACEHOLDER}],
                  thinking=thinking)
    _, found, after = text.partition(PLACEHOLDER)
    if not found or not after:
        raise InputError("new turn: the chat template does not put an answer behind an answer; leave that condition "
                         "out")
    return processor.tokenizer(after, add_special_tokens=False)["input_ids"]


def with_turn(prompt: Prompt, pieces: Sequence[tuple[Sequence[int], int]], image_token_id: int,
              images: Sequence[EncodedImage] = ()) -> Prompt:
    """The sequence with the pieces of a turn after it, the one token of each of `images` widened to all of its own."""
    tokens = [(token, group) for ids, group in pieces for token in ids]
    ids, codes = _widened(tokens, image_token_id, images, len(prompt.images))
    return Prompt((*prompt.ids, *ids), prompt.codes + codes, (*prompt.images, *images))


def render(processor: ProcessorMixin, messages: list[dict], add_generation_prompt: bool = True,
           thinking: bool | None = None, **options) -> str:
    """The chat template's text; a missing template is one clear line."""
    if thinking is not None:
        options["enable_thinking"] = thinking
    if not (getattr(processor, "chat_template", None) or getattr(processor.tokenizer, "chat_template", None)):
        raise InputError(f"{type(processor).__name__}: the model has no chat template; expected chat_template.jinja "
                         "beside the tokenizer; use the instruct or thinking checkpoint, not the base one")
    return processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt,
                                         **options)


def has_thinking_switch(processor: ProcessorMixin) -> bool:
    """Whether the chat template can turn thinking on and off."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "."}]}]
    return render(processor, messages, thinking=True) != render(processor, messages, thinking=False)


def tokenized(processor: ProcessorMixin, image_token_id: int, images: Sequence[EncodedImage], text: str, start: int,
              stop: int) -> Prompt:
    """Ids of a rendered text, its image placeholders widened; the question is text[start:stop]."""
    encoded = processor.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, codes = _widened([(token, QUESTION if begin < stop and end > start else TEMPLATE)
                           for token, (begin, end) in zip(encoded["input_ids"], encoded["offset_mapping"])],
                          image_token_id, images)
    if codes[0] in (TEMPLATE, QUESTION):
        codes = bytes([SINK]) + codes[1:]
    return Prompt(tuple(ids), codes, tuple(images))


def _widened(tokens: Sequence[tuple[int, int]], image_token_id: int, images: Sequence[EncodedImage],
             n_before: int = 0) -> tuple[list[int], bytes]:
    """Ids and group codes of (token, group) pairs, each image's one token widened to all of its own.

    n_before: images earlier in the sequence.
    """
    ids: list[int] = []
    codes = bytearray()
    waiting = list(enumerate(images, n_before))
    for token, group in tokens:
        if token == image_token_id:
            if not waiting:
                raise InputError(f"prompt: the chat template makes more than {len(images)} image places; expected "
                                 "one per image; use the template that the checkpoint ships")
            number, image = waiting.pop(0)
            ids += [token] * image.n_tokens
            codes += image.codes(number)
        else:
            ids.append(token)
            codes.append(group)
    if waiting:
        raise InputError(f"prompt: the chat template left {len(waiting)} of {len(images)} image(s) out; expected one "
                         "place per image; use the template that the checkpoint ships")
    return ids, bytes(codes)


def check_text(processor: ProcessorMixin, text: str, what: str) -> None:
    """Text from outside must not hold control tokens: an image token would be taken for an image."""
    control = {str(token) for token in processor.tokenizer.all_special_tokens} - {*TOOL_TAGS}
    control |= {str(getattr(processor, name, "")) for name in ("image_token", "video_token")}
    found = sorted(token for token in control - {""} if token in text)
    if found:
        raise InputError(f"{what}: holds the control token(s) {', '.join(found)}; expected plain text; remove them "
                         "(the prompt places images itself)")
    if not text.strip():
        raise InputError(f"{what}: is empty; expected text")
