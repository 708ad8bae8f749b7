"""Answers read from texts, against what a person reads; the published rule, against the published logs."""

import csv
import gzip
import itertools
import json
import random
import time
from pathlib import Path

import pytest

from rekey.answers import options_named, paper_letter, parse_answer, read_answer
from rekey.errors import InputError

JUDGED = Path(__file__).parent / "strict_changes.csv"        # who is right where the parsers differ

OPTIONS = {"A": "red", "B": "blue", "C": "white", "D": "yellow"}
LEFT_RIGHT = {"A": "left", "B": "right"}
NUMBERS = {"A": "1", "B": "2", "C": "3", "D": "10"}
TEN = dict(zip("ABCDEFGHIJ", "red orange yellow green blue purple black white gray brown".split()))
GAPS = {"A": "oak", "C": "pine", "F": "birch"}
LETTERS = {"A": "B", "B": "A", "C": "K", "D": "E"}
NESTED = {"A": "white", "B": "red and white", "C": "left", "D": "left of the dog"}
YES_NO = {"A": "yes", "B": "no"}
NEGATED = {"A": "blue", "B": "not blue"}
NONE_OF = {"A": "red", "B": "blue", "C": "none of the above", "D": "cannot be determined"}
SIGNS = {"A": "C++", "B": "a.b", "C": "(none)", "D": "50% [off]"}
CHINESE = {"A": "红色", "B": "蓝色"}
TWO_COLORS = {"A": "black and red", "B": "black and white", "C": "red and white", "D": "red"}
ACTS = {"A": "Standing near the door", "B": "Taking a photo", "C": "Carrying a bag"}

SAID = (
    # a label and little else
    ("C", "C"), ("C.", "C"), ("(C)", "C"), ("[C]", "C"), ("c", "C"), ("(c)", "C"), ("c.", "C"), ("**C**", "C"),
    ("`C`", "C"),
    ("\uff23", "C"), ("\uff08\uff23\uff09", "C"), ('"C"', "C"), ("C) white", "C"), ("(C) white, like a cloud", "C"),
    ("C: white", "C"), ("C, white", "C"), ("A", "A"), ("A.", "A"), ("\n\nB\n", "B"), ("B<|im_end|>", "B"),
    ("B. It is a red bag", "B"), ("C) white\n\nLooking at this image, which appears to be a plaza", "C"),
    ("**(C)**\n\n*(Note: This is a forced choice...)*", "C"),
    # declared
    ("Based on the image, the answer is D.", "D"), ("Answer: **D**", "D"), ("The correct answer is (B)", "B"),
    ("The correct answer is d.", "D"), ("Therefore, the answer is:\n(A)", "A"), ("The correct option is **(B)**.", "B"),
    ("Option B is correct.", "B"), ("(B) is the correct answer.", "B"), ("I would choose (C).", "C"),
    ("I'll go with D", "D"),
    ("ANSWER: C", "C"), ("answer:c", "C"), ("The answer is red.", "A"), ("the answer is a red bag", "A"),
    ("The answer is **blue**.", "B"), ("\u7b54\u6848\uff1aB", "B"), ("\u7b54\u6848\u662f B\u3002", "B"),
    ("\\boxed{C}", "C"), ("\\boxed{\\text{C}}", "C"), ("So $\\boxed{(C)}$.", "C"), ("\\boxed{white}", "C"),
    ("<answer>B</answer>", "B"), ("<|begin_of_box|>B<|end_of_box|>", "B"),
    ("I considered (A), but it is incorrect. Final answer: D.", "D"), ("The answer is not A. The answer is B.", "B"),
    ("At first the answer is A. Wait, I was wrong. The answer is B.", "B"),
    ("So the answer is D.\nLet's reconsider. There are three.\n\nA", "A"),
    ("There is no correct option. If forced to choose:\n(B) blue\n\nSystem Instruction:", "B"),
    ("I must select an option and there is no correct answer.\nAnswer: (B)", "B"),
    ("Therefore, the most likely intended answer is red.", "A"),
    # said, not declared
    ("A dog is visible, so (C)", "C"), ("Both bags are red. C", "C"), ("The bag is blue.\n\n(B)", "B"), ("red", "A"),
    ("Red.", "A"), ("The umbrella is **white**.", "C"), ("It must be C.", "C"),
    ("I can't see it well, but if forced to pick: D", "D"),
    # reasoning that ended
    ("<think>It is A. Or B?</think>\n\nB", "B"), ("A or B? ...</think>\n\nB", "B"),
    # nothing that can be counted
    ("", None), ("   \n", None), ("Cannot determine", None), ("I can't see a dog", None), ("A black dog is here", None),
    ("I cannot identify a dog in this image.", None), ("**Answer:** None of the above", None),
    ("Answer: (Cannot be determined)", None), ("There is no dog visible in the image.", None),
    ("...if you'd like me to choose... I cannot accurately do so", None), ("<think>A or B, let me", None),
    ("The answer options are A, B, C and D.", None),
    ("Looking at the corner, there is a cat. The cat appears to be", None),
    ("It is not red, it is blue.", None), ("If the answer is A, it would be red.", None),
    # contradictions, and labels that the item does not have
    ("B or C", None), ("A/B", None), ("(A) or (B)", None), ("The answer is A. The answer is B.", None),
    ("Answer: A\nAnswer: B", None), ("A) blue", None), ("The answer is (A) blue.", None),
    ("The answer is A.\n\nB", None),
    ("The image shows a red car and a blue one.", None), ("E", None), ("Answer: E", None), ("(F) purple", None),
    # markup
    ("__B__", "B"), ("***B***", "B"), ("**B.**", "B"), ("**B) blue**", "B"), ("**(B)** blue", "B"), ("### B", "B"),
    ("## Final Answer\n\n**B**", "B"), ("Final Answer\n\nB", "B"), ("# Answer\nB. blue", "B"), ("> B", "B"),
    ("- B", "B"), ("<b>B</b>", "B"), ("【B】", "B"), ("[[B]]", "B"), ("{B}", "B"), ("Ⓑ", "B"),
    ("B</s>", "B"), ("B<end_of_utterance>", "B"), ("```\nB\n```", "B"), ("```python\nanswer = 'C'\n```", "C"),
    ("$\\text{B}$", "B"), ("\\(\\boxed{B}\\)", "B"), ("\\boxed{(C) white}", "C"), ("\\boxed{\\mathbf{\\text{B}}}", "B"),
    ("\\boxed{\\textbf{B. blue}}", "B"), ("**Final Answer**\n\n$$\\boxed{ B }$$", "B"), ("\\boxed{}", None),
    ("\\boxed{A \\text{ or } C}", None), ("\\boxed{\\text{None}}", None), ("\\boxed{A} \\boxed{B}", None),
    ("First I had \\boxed{A}. Wait, the light is off, so \\boxed{B}", "B"),
    ("<ANSWER>B</ANSWER>", "B"), ("<answer>\n(B) blue\n</answer>", "B"), ("<answer>blue</answer>", "B"),
    ("A pole hides it.<answer>B", "B"), ("<answer></answer>", None), ("<answer>None</answer>", None),
    ("<answer>The shade is clearly blue.</answer>", "B"), ("<choice>C</choice>", "C"),
    ("The answer is <|begin_of_box|>B<|end_of_box|>.", "B"),
    ('{"answer": "B"}', "B"), ('```json\n{"answer": "B", "confidence": 0.9}\n```', "B"), ("{'answer': 'A'}", "A"),
    ('{"reasoning": "A lamp, not a red one", "answer": "B"}', "B"), ('{"answer": "blue"}', "B"),
    ('{"answer": null}', None), ('{"answer": ["A", "C"]}', None), ('{"choice": "C"}', "C"),
    # declared
    ("Answer:B", "B"), ("Answer： B", "B"), ("**Answer:** (B) blue", "B"), ("**Answer**: B", "B"),
    ("Answer:\n\nB", "B"), ("Answer: Option B", "B"), ("Answer: B) blue", "B"), ("Answer: <B>", "B"),
    ("Answer: (B", "B"), ("Answer: “B”", "B"), ("Ans: b", "B"), ("ANSWER - C", "C"), ("Answer – (C)", "C"),
    ("Answer: a", "A"), ("Answer: a blue bag", "B"), ("Answer: a dog", None), ("The correct answer is a.", "A"),
    ("The answer is a) red", "A"), ("Correct option: C", "C"), ("The correct option is: **(C)**", "C"),
    ("The correct choice is C) white.", "C"), ("The best answer is therefore B", "B"), ("The answer is option B.", "B"),
    ("the answer is the letter B", "B"), ("Option B", "B"), ("Choice: (C)", "C"), ("Final decision: (D).", "D"),
    ("My best guess is D.", "D"), ("I'd guess B", "B"), ("I'd say it's blue.", "B"), ("I select option D.", "D"),
    ("So it's B.", "B"), ("Hence, (B).", "B"), ("Therefore, C.", "C"), ("Hence option D is correct.", "D"),
    ("(C) is the closest match.", "C"), ("Option A is incorrect. Option B is correct.", "B"),
    ("B is correct; red is only the strap.", "B"), ("I think B is correct, but A is also possible.", "B"),
    ("Answer: B\nReason: A man carries it.", "B"), ("Reason: A man carries it.\nAnswer: B", "B"),
    ("Answer: B\n\nConfidence: 90%", "B"), ("B\n\nExplanation: A dog sits beside the bag.", "B"),
    ("Options: (A) red (B) blue (C) white (D) yellow\nAnswer: (B)", "B"),
    ("Answer with the option's letter from the given choices directly.\nB", "B"),
    ("The answer is red or blue.", None), ("Answer: (A) red or (B) blue", None), ("The answer could be B or C.", None),
    ("Answer: B (red)", None), ("Answer: B (blue)", "B"), ("The answer is B, red.", None),
    ("The answer is blue (B).", "B"),
    ("Answer: not B", None), ("The answer isn't B.", None), ("Answer: N/A", None), ("The result is N/A.", None),
    ("Answer: unknown", None), ("Answer: I cannot tell", None), ("Answer: X", None), ("Answer: [letter]", None),
    # Chinese
    ("正确答案是 C。", "C"), ("故选：C", "C"), ("我选择B。", "B"),
    ("**答案：** （C）", "C"), ("答案是B，因为包是蓝色的", "B"),
    ("选项A不正确，选项B正确。", "B"), ("我觉得是B。", "B"),
    ("图中没有狗，无法确定。", None), ("不选A", None),
    # the label A, the article, and other letters
    ("A, because the bag is red.", "A"), ("A because the bag is red.", "A"), ("A - red", "A"), ("A red one", "A"),
    ("A blue bag", "B"), ("A black", None), ("A cat", None), ("A cat. A dog.", None), ("A C D", None),
    ("I'd have to look closer.", None), ("Vitamin B12 is printed there.", None), ("A dog is right of the cat.", None),
    ("B, C and D are wrong", None), ("(B) is wrong.", None), ("Option B is wrong.", None), ("Not A", None),
    # several options weighed
    ("Let me check each option.\n(A) red: no red bag anywhere.\n(B) blue: the one on the bench.\n(C) white: no.\n"
     "(D) yellow: no.\n\nTherefore the answer is (B).", "B"),
    ("(A) red: no. (B) blue: yes. (C) white: no.", "B"), ("A. red - no\nB. blue - yes\nC. white - no", "B"),
    ("- A: red → incorrect\n- B: blue → correct\n- C: white → incorrect", "B"),
    ("(A) red ❌\n(B) blue ✅\n(C) white ❌\n(D) yellow ❌", "B"),
    ("| Option | Color | Seen |\n|---|---|---|\n| A | red | no |\n| B | blue | yes |\n| C | white | no |", "B"),
    ("| A | red |\n| B | blue |\n\n**B**", "B"), ("(A) red: yes. (B) blue: yes.", None),
    ("(A) red\n(B) blue\n(C) white\n(D) yellow", None),
    ("The options are:\nA. red\nB. blue\nC. white\nD. yellow", None),
    ("The options are:\n(A) red\n(B) blue\n(C) white\n(D) yellow\n\n(B) blue", "B"),
    ("It is not A, B, or D, so the answer must be C.", "C"), ("A and B are ruled out, leaving C.", "C"),
    ("The strap is red. The bag itself is not. Only B matches.", "B"), ("Out of these, (C) fits best.", "C"),
    ("Answer: A\n\nWait, that is the strap.\n\nAnswer: B", "B"), ("Answer: A\n\nCorrection: B", "B"),
    ("either A or B", None), ("It is either (A) or (B).", None), ("Both A and C", None),
    ("(A) and (C) are both right.", None),
    ("A & B", None), ("A, B", None), ("Possibly A, maybe B.", None), ("Neither A nor B", None), ("red and blue", None),
    ("All of the above", None), ("I don't think it is B.", None), ("blue/white", None), ("ABCD", None),
    # refusals
    ("I'm sorry, but I can't help with identifying people in images.", None), ("Unclear.", None),
    ("I don't know.", None),
    ("I'm unable to determine the color from this photo.", None), ("Please upload the image again.", None),
    ("There isn't enough information in the picture to answer.", None), ("No dog is present.", None),
    ("As an AI, I don't have the ability to view images.", None), ("The image does not contain a bag.", None),
    ("None of the listed colors fit: the bag is green. A pity.", None),
    ("There is a bag, but no dog is visible.", None),
    ("I can't tell for sure, so I'd guess (B).", "B"), ("I don't know. Maybe B.", "B"),
    ("There is no bag. If I had to choose: (B) blue", "B"),
    ("No bag is there. If forced to pick, it would be blue.", "B"),
    ("No bag is there. If forced to pick, it would not be blue.", None), ("I cannot choose between (A) and (B).", None),
    # text
    ("The jacket is white.", "C"), ("white color", "C"), ("White!", "C"), ("blue\n\nB", "B"),
    ("I see a bag on the bench.\n\nblue", "B"), ("Blue. The bag by the bench has that shade.", "B"),
    ("It is a bluebird.", None), ("definitely not blue", None), ("not blue", None), ("B. red", None), ("(B) red", None),
    # unfinished
    ("Answer:", None), ("The answer is (", None), ("Therefore, the correct option is **", None),
    ("Let me look at each one.\n(A) red is not there.\n(B) blue might be", None),
    ("The bag looks blue. Final decision: (B).\nWait, there is a second bag.\nIt stands near the", None),
    # thinking
    ("<think>\n\n</think>\n\nB", "B"), ("<think>A?</think><think>B?</think>C", "C"), ("<think>The answer is A.", None),
    ("<think><think>A</think></think>B", "B"), ("<think>It is A.</think>", None), ("A</think>\n<think>or B", None),
    ("<seed:think>A?</seed:think>B", "B"), ("◁think▷A?◁/think▷B", "B"), ("<thinking>A</thinking>B", "B"),
    ("<|channel|>analysis<|message|>A?<|end|><|start|>assistant<|channel|>final<|message|>B<|return|>", "B"),
    # hardly a text
    ("...", None), ("?!", None), ("()", None), ("\U0001f914", None), ("\U0001f44d B", "B"), ("✅ **B**", "B"),
    ("\u200bB\u200b", "B"), ("\ufeffB", "B"), ("\u00a0(B)\u00a0blue", "B"), ("B\r\n", "B"),
    ("Answer:\r\n\r\nB\r\n", "B"),
    ("A\u200bnswer: B", "B"), ("\x00", None), ("B B B", "B"), ("(B)(B)(B)", "B"),
    # found by trying
    ("It asks for the cat.\nIt lies on a sofa.\nIt is pale.\nTherefore, the correct answer is:\n\nC. white", "C"),
    ("Option (A) says red, but the bag is blue, which is option (B).", None), ("A: no\nB: yes\nC: no", "B"),
    ("(A) red\n(B) blue\n(C) white\n(D) yellow\n\nThe bag is blue.", "B"), ("The bag near the red car is B.", "B"),
    ("The answer is A) red? No, wait, it's B) blue.", "B"), ("Between B and D, I lean towards B.", "B"),
    ("The bag is green.", None), ("The bag is blue, not red.", None), ("The answer is C, not B.", "C"),
    ("The kite is yellow; D.", "D"), ("Is it A? No. Is it B? Yes.", None), ("Yellow (D)", "D"), ("D.yellow", "D"),
    ("The answer cannot be A or B. It is therefore C or D.", None), ("I initially thought A, but I choose C.", "C"),
    ("If it is the small one, the answer is A; if it is the large one, the answer is B.", None),
    ("Answer: There is no bag; the red object is a flag.", None), ("Answer: It appears to be red.", "A"),
    ("None of the listed colors.\n* **Red:** the sign\n* **Yellow:** A", None), ("A|B|C|D", None),
    ("Let me go.\nSo the answer is D.\nWait, let's look", None), ("Answer: A B", None), ("Hi! How can I help?", None),
)
OTHERS = (
    ("left", LEFT_RIGHT, "A"), ("The dog is to the left of the cat.", LEFT_RIGHT, "A"), ("C", LEFT_RIGHT, None),
    ("The right answer is (A).", LEFT_RIGHT, "A"), ("It's on the left-hand side.", LEFT_RIGHT, "A"),
    ("left or right?", LEFT_RIGHT, None), ("The dog is on the right, left of the door.", LEFT_RIGHT, None),
    ("A dog is right of the cat.", LEFT_RIGHT, "B"), ("It would be to the left", LEFT_RIGHT, "A"),
    ("No cat. Assuming the question means the fox, the dog would be to the left of it.", LEFT_RIGHT, "A"),
    ("Right. I can't see a dog, though.", LEFT_RIGHT, None), ("Answer: (C) above", LEFT_RIGHT, None),
    ("3", NUMBERS, "C"), ("10", NUMBERS, "D"), ("1", NUMBERS, "A"), ("There are 3 people.", NUMBERS, "C"),
    ("13", NUMBERS, None), ("3.5", NUMBERS, None), ("B) 3", NUMBERS, None), ("Answer: 10", NUMBERS, "D"),
    ("B (2)", NUMBERS, "B"),
    ("I count 2 dogs and 1 cat.", NUMBERS, None), ("B\n1. A man\n2. A woman", NUMBERS, "B"),
    ("J", TEN, "J"), ("Answer: (H)", TEN, "H"), ("I", TEN, "I"), ("I. gray", TEN, "I"), ("Answer: I", TEN, "I"),
    ("I would say G.", TEN, "G"), ("I think it is G", TEN, "G"), ("Answer: I cannot determine", TEN, None),
    ("K", TEN, None),
    ("I see a bag.", TEN, None), ("(F) birch", GAPS, "F"), ("B", GAPS, None), ("The answer is C", GAPS, "C"),
    ("pine", GAPS, "C"),
    ("B. oak", GAPS, None), ("A", LETTERS, "A"), ("E", LETTERS, "D"), ("(A) B", LETTERS, "A"),
    ("Answer: (D) E", LETTERS, "D"),
    ("(A) A", LETTERS, None), ("Red and white.", NESTED, "B"), ("white", NESTED, "A"),
    ("It is left of the dog.", NESTED, "D"),
    ("It is to the left.", NESTED, "C"), ("The answer is red and white", NESTED, "B"), ("No.", YES_NO, "B"),
    ("No, there is no dog visible.", YES_NO, "B"), ("Yes, a dog is there.", YES_NO, "A"), ("yes and no", YES_NO, None),
    ("It is not blue.", NEGATED, "B"), ("It is blue.", NEGATED, "A"), ("The answer is not blue", NEGATED, "B"),
    ("None of the above.", NONE_OF, "C"), ("It cannot be determined.", NONE_OF, "D"),
    ("Answer: none of the above", NONE_OF, "C"),
    ("C) none of the above", NONE_OF, "C"), ("C++", SIGNS, "A"), ("The sign says C++.", SIGNS, "A"),
    ("a.b", SIGNS, "B"),
    ("axb", SIGNS, None), ("(none)", SIGNS, "C"), ("50% [off]", SIGNS, "D"), ("D. 50% [off]", SIGNS, "D"),
    ("包是蓝色的。", CHINESE, "B"), ("蓝色", CHINESE, "B"),
    ("答案是蓝色的", CHINESE, "B"), ("B。蓝色", CHINESE, "B"), ("A. 蓝色", CHINESE, None),
    ("The shoes are red and black.", TWO_COLORS, None), ("The shoes are red and white.", TWO_COLORS, "C"),
    ("The answer is red and blue.", TWO_COLORS, None), ("red", TWO_COLORS, "D"), ("r\u0130ver", {"A": "river"}, None),
    ("He is taking a photo.", ACTS, "B"), ("He waits near the door.", ACTS, None),
    ("He is taking a photo and carrying a bag.", ACTS, None), ("C - He carries a bag.", ACTS, "C"),
)
ALL = tuple((text, OPTIONS, label) for text, label in SAID) + OTHERS


@pytest.mark.parametrize("text, options, label", ALL)
def test_strict_reads_what_a_person_reads(text, options, label):
    assert parse_answer(text, options) == label, read_answer(text, options)


def test_the_table_holds_every_text_once_and_both_kinds():
    texts = {(text, tuple(options.items())) for text, options, _ in ALL}
    assert len(texts) == len(ALL) >= 150
    assert min(sum(label is None for *_, label in ALL), sum(label is not None for *_, label in ALL)) > len(ALL) / 4


@pytest.mark.parametrize("text, how", (
    ("C", "bare"), ("C. It is white", "leading"), ("The answer is C", "declared"), ("so it must be this: (C)", "bare"),
    ("It fits (C) best", "bracketed"), ("A: no\nC: yes", "ticked"), ("It is white.", "text"), ("", "nothing"),
    ("I can't see a bag.", "refusal"), ("A or B", "contradiction"), ("(A) or (B)", "contradiction"),
    ("Answer: E", "no such option"),
    ("The bag is here. It is the color that", "unfinished"), ("<think>C", "unfinished thinking")))
def test_a_reading_says_how_it_came_about(text, how):
    reading = read_answer(text, OPTIONS)
    assert reading.how == how


def test_never_an_option_that_the_item_does_not_have():
    rng = random.Random(7)
    fragments = [text for text, *_ in ALL] + list("ABCDEFGHIJ().:*\n\"'{}[]<>|/\\ ") + [
        "answer", "The answer is ", "</think>", "\\boxed{", "<answer>", "not ", "or", "red", "3", "left", "wait "]
    for options in (OPTIONS, LEFT_RIGHT, NUMBERS, GAPS, LETTERS, SIGNS, {"A": ""}, {"B": "b", "C": "b"}, {}):
        labels = [read_answer("".join(rng.choices(fragments, k=rng.randint(1, 6))), options).label for _ in range(300)]
        assert set(labels) <= {None, *options}
        assert None in labels and (len(set(labels)) > 1 or not options)
    assert read_answer("C", LEFT_RIGHT).how == "no such option"


def test_an_answer_declared_at_the_end_wins_over_mentions():
    rng = random.Random(8)
    mentions = ("a red bag", "I'd look at the blue one first", "(A) red is not it", "a dog", "option D says yellow",
                "it could be (C)", "no bag is visible", "A cat", "what about white", "I can't see much", "B-roll")
    for label, _ in itertools.product(OPTIONS, range(40)):
        text = "Let me see: " + ". ".join(rng.choices(mentions, k=5)) + f".\n\nAnswer: ({label})"
        assert parse_answer(text, OPTIONS) == label, text


@pytest.mark.parametrize("said, option", (
    ("{0}", "blue"), ("({0})", "blue"), ("**{0}**", "blue"), ("Answer: {0}", "blue"), ("\\boxed{{{0}}}", "blue"),
    ("The answer is ({0}).", "blue"), ("{0}. {1}", "blue"), ("Not white.\n\n{0}", "blue"),
    ("It is the {1} one.", "blue"),
    ("({0}) {1}", "blue"), ("The {1} one, so ({0})", "blue"), ("{0} is correct", "blue"), ("not {1}", None),
    ("({0}) or ({2})", None), ("({2}) {1}", None), ("The answer is {0} or {2}.", None)))
def test_other_labels_for_the_same_options_are_read_as_the_same_option(said, option):
    texts = ("red", "blue", "white", "yellow")
    for labels in itertools.permutations("BCDFH", 4):
        options = dict(sorted(zip(labels, texts)))
        label = parse_answer(said.format(labels[1], texts[1], labels[2]), options)
        assert (options[label] if label else None) == option, labels


HOSTILE = ("( ", "answer ", "A ", "answer: ", "Answer: A. Answer: B. ", "<answer>", "\\boxed{{a}", "red blue ",
           "is no ", "(A) red or ", "if ", "n't ", "none ", "A is ", "| A | ", "B\n", "\n\n", "*", "<|a", "\u00bd")


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_hundred_thousand_characters_take_no_more_than_a_moment(unit):
    started = time.process_time()
    assert parse_answer(unit * (100_000 // len(unit)), OPTIONS) in (None, *OPTIONS)
    assert time.process_time() - started < 1.5


def test_the_longer_option_covers_the_shorter_one_in_it():
    options = {"A": "blue", "B": "light blue", "C": "red"}
    assert options_named("It is light blue.", options) == ["B"] and parse_answer("It is light blue.", options) == "B"
    assert parse_answer("the answer is light blue", options) == "B"


@pytest.mark.parametrize("text, letter", (
    ("B. It is a red bag", "A"), ("(C) white, like a cloud", "A"), ("I can't see a dog", "A"),
    ("Cannot determine", None),
    ("if you'd like me to choose", "D"), ("a or B", "B"), ("", None)))
def test_the_papers_rule_takes_articles_for_answers(text, letter):
    assert parse_answer(text, OPTIONS, parser="paper") == paper_letter(text) == letter


def test_the_papers_rule_for_reasoning():
    said = "Answer: (B) because a cat"
    assert paper_letter(said, cot=True) == "B" and paper_letter(said) == "A"
    assert paper_letter("no cue, so C", cot=True) == "C"


def test_an_unknown_parser_is_one_clear_line():
    with pytest.raises(InputError, match="parser 'llm': expected strict or paper"):
        parse_answer("A", OPTIONS, parser="llm")


def test_on_the_published_logs_every_changed_reading_was_judged_by_hand_and_is_right(published):
    items, rows = published
    changes = {}
    for key, row in rows.items():
        options = items[row["condition"], row["seed"], row["item"]]["options"]
        strict, paper = parse_answer(row["response"], options), paper_letter(row["response"])
        assert strict is None or strict in options
        assert (paper == row["gold"]) == row["stored_correct"], key
        if strict != paper:
            changes["".join(f"{part}," for part in key).replace("None", "")] = (row["gold"], paper or "", strict or "")
    with JUDGED.open(encoding="utf-8", newline="") as file:
        judged = list(csv.DictReader(file))
    assert changes == {"{model},{condition},{seed},{item},".format(**row): (row["gold"], row["paper"], row["strict"])
                       for row in judged}
    assert len(rows) == 7640 and len(judged) == len(changes) == 63
    assert sum(row["right"] == "strict" for row in judged) >= 0.99 * len(judged)
    assert {row["right"] for row in judged} <= {"strict", "paper", "both wrong", "unclear"} and all(
        row["why"] for row in judged)


@pytest.fixture(scope="module")
def published(data_pack):
    logs = data_pack / "rekey" / "logs"

    def lines(name: str):
        with gzip.open(logs / name, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    items = {(row["condition"], row.get("seed"), row["item"]): row for row in lines("items.jsonl.gz")}
    rows: dict[tuple, dict] = {}
    for row in lines("table1_standard.jsonl.gz"):
        key = tuple(row[name] for name in ("model", "condition", "seed", "item"))
        if key not in rows or rows[key]["line"] < row["line"]:
            rows[key] = row
    return items, rows
