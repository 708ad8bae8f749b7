"""How the control models read and write: a small byte-level tokenizer and the real Qwen3-VL processor.

    processor = control_processor()            # Qwen3VLProcessor: 96 x 96 pixels, 36 image tokens
    processor.tokenizer(" red square")["input_ids"]

Any text encodes; the words below, which scenes, questions and phrases are made of, are one token each.  The list
is part of the trained weights: to change it is to train anew.
"""

from __future__ import annotations

import functools

from tokenizers import pre_tokenizers
from transformers import (
    AddedToken,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from probes.tiny_text import CHAT_TOKENS, QWEN_MARKERS, THINK_TOKENS, chat_template

PATCH, MERGE, SIDE_PX = 8, 2, 96
GRID = SIDE_PX // PATCH                        # 12 x 12 patches
TOKEN_GRID = GRID // MERGE                     # 6 x 6 image tokens
N_IMAGE_TOKENS = TOKEN_GRID ** 2

# Words after a space.
WORDS = """
red orange yellow green blue purple pink brown black white gray
circle square triangle star heart cross ring diamond moon bar arrow
left right above below upper middle lower center A B C D
the a an is are of at in to or and it its Its The So color colors location locations object objects answer option
letter from given choices directly by step then with question describe this that not no yes now there I you me my your
image picture figure diagram visual information again once more another one time look check examine inspect
see go back return study verify confirm compare against take want will should have need let before answering be sure
certain worth conclude peek carefully double re
Wait Hmm Hold on Actually But No First Let It To Before Am Is Are Can You Please Now if tell can wait
Look Check Re Examine Inspect Take See Return Study Verify Confirm Compare Double
""".split()
# Words at the start of a line or after a hyphen.
OPENING = """
What Is Where Describe The Its Answer Think A B C D Wait Hmm Hold Actually But No First Let I It
To Before Am Are Can You Please Now Check Look Re Examine Inspect Take See Return Study Verify Confirm Compare Double
user assistant system check examine
""".split()
_BRACKETED = ("(A", "(B", "(C", "(D", "'s", "-check", "-examine", "-by")
_MARKS = ("?\n", ".\n", ")\n", "\n\n")


@functools.cache
def control_processor() -> Qwen3VLProcessor:
    """The processor of every control model.  Built here, offline, and always the same."""
    area = SIDE_PX * SIDE_PX
    pixels = dict(patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3,
                  size={"shortest_edge": area, "longest_edge": area})
    return Qwen3VLProcessor(image_processor=Qwen2VLImageProcessor(**pixels), tokenizer=_tokenizer(),
                            video_processor=Qwen3VLVideoProcessor(**pixels),
                            chat_template=chat_template("qwen3_vl", thinking=False))


def _tokenizer() -> Qwen2Tokenizer:
    vocabulary, merges = _grown_words()
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=merges, unk_token=None, eos_token="<|im_end|>",
                               pad_token="<|endoftext|>", model_max_length=4096, extra_special_tokens=[*CHAT_TOKENS],
                               model_specific_special_tokens=QWEN_MARKERS)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINK_TOKENS])
    return tokenizer


def _grown_words() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of the 256 bytes and the words, each grown letter by letter from its start.

    Words after a space come first: a merge that only an opening word needs must not tear them.
    """
    space, line = "Ġ", "Ċ"                # how byte-level vocabularies write a space and a line end
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    spaced = [space + word for word in WORDS]
    for word in (*spaced, *_BRACKETED, *OPENING, *(mark.replace("\n", line) for mark in _MARKS)):
        grown = word[0]
        for letter in word[1:]:
            if grown + letter not in vocabulary:
                vocabulary[grown + letter] = len(vocabulary)
                merges.append((grown, letter))
            grown += letter
    return vocabulary, merges
