"""The text side of the tiny models: a small byte-level tokenizer and a chat template for each family.

Every text encodes (all 256 bytes are in the vocabulary) and common words of the probes are one token each.
The templates keep those traps of the released ones that the probe and the multi-turn setting of VisualSwap
run into: a thinking template opens a think block for the model, closes an empty one in front of any answer
that it is asked to continue, and drops the reasoning of earlier turns.

    tokenizer = build_tokenizer("qwen3_vl")
    template = chat_template("qwen3_vl", thinking=True)
    spoken_ids(tokenizer)                         # the ids of whole words
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AddedToken, PreTrainedTokenizerBase, TokenizersBackend
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX, Qwen2Tokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

WORDS = """
the a is are of in on at to and or not it this that there here me my you what which where how so but then
first now again let check look see wait figure image picture question answer option correct wrong
red orange yellow green blue purple pink brown black white gray color shape object
circle square triangle star car dog cat bird tree boat house cup book left right above below small large
one two three four five number count chart line graph value angle side shows because think maybe yes no
user assistant system
""".split()

QWEN_MARKERS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
KIMI_MARKERS = {
    "image_token": "<|media_pad|>",
    "video_token": "<|kimi_k25_video_placeholder|>",
    "vision_start_token": "<|media_begin|>",
    "vision_end_token": "<|media_end|>",
}
ERNIE_MARKERS = {
    "image_token": "<|IMAGE_PLACEHOLDER|>",
    "image_start_token": "<|IMAGE_START|>",
    "image_end_token": "<|IMAGE_END|>",
    "video_token": "<|VIDEO_PLACEHOLDER|>",
    "video_start_token": "<|VIDEO_START|>",
    "video_end_token": "<|VIDEO_END|>",
}
CHAT_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Present in the text that decoding returns, unlike the special tokens above.
THINK_TOKENS = ("<think>", "</think>")

# Turns are ChatML in all families, so that one reading of a prompt serves every test; IMAGE stands for the
# family's own markers.
_BODY = r"""{%- macro body(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
        {{- 'IMAGE' -}}
      {%- elif 'text' in part -%}
        {{- part.text -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
"""

# Prints every turn as it is given.
_PLAIN_TEMPLATE = (
    _BODY
    + r"""{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\n' + body(message.content) + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
  {%- if enable_thinking is defined and enable_thinking -%}
    {{- '<think>\n' -}}
  {%- endif -%}
{%- endif -%}
"""
)

# Assistant turns before the last question keep only what follows </think>; later ones always get a closed
# block in front, be it empty.
_THINKING_TEMPLATE = (
    _BODY
    + r"""{%- set last = namespace(question=-1) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {%- set last.question = loop.index0 -%}
  {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- set said = body(message.content) -%}
  {%- if message.role == 'assistant' -%}
    {%- set reasoning = '' -%}
    {%- if '</think>' in said -%}
      {%- set reasoning = said.split('</think>')[0].split('<think>')[-1].strip() -%}
      {%- set said = said.split('</think>')[-1].strip() -%}
    {%- endif -%}
    {%- if loop.index0 > last.question -%}
      {%- set said = '<think>\n' + reasoning + '\n</think>\n\n' + said -%}
    {%- endif -%}
  {%- endif -%}
  {{- '<|im_start|>' + message.role + '\n' + said + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n<think>\n' -}}
  {%- if enable_thinking is defined and not enable_thinking -%}
    {{- '\n</think>\n\n' -}}
  {%- endif -%}
{%- endif -%}
"""
)


def chat_template(family: str, thinking: bool) -> str:
    """A Jinja chat template with the family's image markers.

    `thinking=False` opens a think block only if rendered with enable_thinking=True and keeps earlier turns
    as they are; `thinking=True` opens it unless enable_thinking=False and drops earlier reasoning.
    """
    markers = _markers(family)
    if family == "kimi_k25":
        image = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    elif family == "ernie4_5_vl_moe":
        image = markers["image_start_token"] + markers["image_token"] + markers["image_end_token"]
    else:
        image = markers["vision_start_token"] + markers["image_token"] + markers["vision_end_token"]
    return (_THINKING_TEMPLATE if thinking else _PLAIN_TEMPLATE).replace("IMAGE", image)


def build_tokenizer(family: str) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer of the family's class, with the family's special tokens.

    The end of a turn, <|im_end|>, is the end of the sequence; <|endoftext|> pads.
    """
    markers = _markers(family)
    vocabulary, merges = _words_as_merges()
    common = dict(
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=32768,
        extra_special_tokens=[*CHAT_TOKENS, "<|media_content|>"] if family == "kimi_k25" else [*CHAT_TOKENS],
        model_specific_special_tokens=markers,
    )
    if family in ("kimi_k25", "ernie4_5_vl_moe"):
        tokenizer = TokenizersBackend(tokenizer_object=_byte_level(vocabulary, merges), **common)
    else:
        tokenizer_class = Qwen3_5Tokenizer if family.startswith("qwen3_5") else Qwen2Tokenizer
        tokenizer = tokenizer_class(vocab=vocabulary, merges=merges, unk_token=None, **common)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINK_TOKENS])
    return tokenizer


def spoken_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of whole words with a space before them, in the order of WORDS."""
    encoded = [tokenizer.encode(f" {word}", add_special_tokens=False) for word in WORDS]
    return [ids[0] for ids in encoded if len(ids) == 1]


def _markers(family: str) -> dict[str, str]:
    return {"kimi_k25": KIMI_MARKERS, "ernie4_5_vl_moe": ERNIE_MARKERS}.get(family, QWEN_MARKERS)


def _byte_level(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _words_as_merges() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of the 256 bytes and the WORDS, each grown letter by letter from its space.

    No training: nothing here depends on how a version of the tokenizers package breaks ties.
    """
    space = "\u0120"  # how byte-level vocabularies write a space
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for word in WORDS:
        grown = space
        for letter in word:
            if grown + letter not in vocabulary:
                vocabulary[grown + letter] = len(vocabulary)
                merges.append((grown, letter))
            grown += letter
    return vocabulary, merges
