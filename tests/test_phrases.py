"""`probes.phrases`: reflections and instructions, and which of them training never holds."""

from probes.controls.text import control_processor
from probes.phrases import HELD_OUT, INSTRUCTIONS, REFLECTIONS, draw_instruction, draw_reflection
from rekey.draws import Draws


def drawn(draw) -> list[str]:
    draws = Draws("phrases")
    return [draw(draws) for _ in range(3000)]


def test_ten_of_each_and_no_two_alike():
    assert len(set(REFLECTIONS)) == len(set(INSTRUCTIONS)) == 10
    assert set(HELD_OUT) & set(REFLECTIONS) and set(HELD_OUT) & set(INSTRUCTIONS)


def test_held_out_phrases_are_never_drawn_and_all_others_are():
    reflections, instructions = set(drawn(draw_reflection)), set(drawn(draw_instruction))
    assert not (reflections | instructions) & set(HELD_OUT)
    assert set(REFLECTIONS) - set(HELD_OUT) <= reflections
    assert set(INSTRUCTIONS) - set(HELD_OUT) <= instructions
    assert len(reflections) > 1000 and len(instructions) > 1000


def test_sentences_begin_with_a_capital_and_end():
    for phrase in drawn(draw_reflection) + drawn(draw_instruction):
        assert all(sentence[0].isupper() for sentence in phrase.split("? ")) and phrase[-1] in ".?"
        assert "  " not in phrase and "{" not in phrase


def test_words_of_drawn_phrases_are_single_tokens():
    tokenizer = control_processor().tokenizer
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str
    for phrase in drawn(draw_reflection)[:400]:
        assert len(tokenizer(f" {phrase}")["input_ids"]) == len(pieces(f" {phrase}")), phrase
    for phrase in drawn(draw_instruction)[:400]:
        assert len(tokenizer(phrase)["input_ids"]) == len(pieces(phrase)), phrase
