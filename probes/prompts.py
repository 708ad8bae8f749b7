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


def next_turn(processor: ProcessorMixin, question: str) -> list[tuple[list[int], int]]:
    """What follows a model's answer when the user speaks again: pieces of token ids, each with its group.

    The pieces close the answer (with the end token, should it not have said it), hold the question, and open the
    next answer.  Only ids are added, so nothing of the first answer's reasoning is lost.
    """
    check_text(processor, question, "question")
    mark, asked = PLACEHOLDER, PLACEHOLDER.replace("question", "again")
    text = render(processor, [{"role": "user", "content": [{"type": "text", "text": "."}]},
                              {"role": "assistant", "content": mark},
                              {"role": "user", "content": [{"type": "text", "text": asked}]}])
    between, found, after = text.partition(mark)[2].partition(asked)
    if not found:
        raise InputError("second turn: the chat template does not keep the turns in one piece; use the template that "
                         "the checkpoint ships")

    def ids(part: str) -> list[int]:
        return processor.tokenizer(part, add_special_tokens=False)["input_ids"] if part else []

    return [(ids(between), TEMPLATE), (ids(question), QUESTION), (ids(after), TEMPLATE)]


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


def tokenized(processor: ProcessorMixin, image_token_id: int, images: Sequence[EncodedImage], text: str, start: int,
              stop: int) -> Prompt:
    """Ids of a rendered text, its image placeholders widened; the question is text[start:stop]."""
    encoded = processor.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids: list[int] = []
    codes = bytearray()
    waiting = list(enumerate(images))
    for token, (begin, end) in zip(encoded["input_ids"], encoded["offset_mapping"]):
        if token == image_token_id:
            if not waiting:
                raise InputError(f"prompt: the chat template makes more than {len(images)} image places; expected "
                                 "one per image; use the template that the checkpoint ships")
            number, image = waiting.pop(0)
            ids += [token] * image.n_tokens
            codes += image.codes(number)
        else:
            ids.append(token)
            codes.append(QUESTION if begin < stop and end > start else TEMPLATE)
    if waiting:
        raise InputError(f"prompt: the chat template left {len(waiting)} of {len(images)} image(s) out; expected one "
                         "place per image; use the template that the checkpoint ships")
    if codes[0] in (TEMPLATE, QUESTION):
        codes[0] = SINK
    return Prompt(tuple(ids), bytes(codes), tuple(images))


def check_text(processor: ProcessorMixin, text: str, what: str) -> None:
    """Text from outside must not hold control tokens: an image token would be taken for an image."""
    control = {str(token) for token in processor.tokenizer.all_special_tokens}
    control |= {str(getattr(processor, name, "")) for name in ("image_token", "video_token")}
    found = sorted(token for token in control - {""} if token in text)
    if found:
        raise InputError(f"{what}: holds the control token(s) {', '.join(found)}; expected plain text; remove them "
                         "(the prompt places images itself)")
    if not text.strip():
        raise InputError(f"{what}: is empty; expected text")
