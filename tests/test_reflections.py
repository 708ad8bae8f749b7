"""Reflections: sentences of known kind, of our own wording, are told apart; odd text is read in linear time."""

from __future__ import annotations

import time

import pytest

from probes.phrases import REFLECTIONS, draw_reflection
from rekey.draws import Draws
from rekey.reflections import find_reflections, sentences

LOOKS_AGAIN = """
Wait, looking back at the image, the second bar is actually shorter.
Let me double-check the figure.
Hmm, looking at the picture more closely, there might be a sixth dot near the edge.
Let me zoom in on the image again to count the dots.
On closer inspection, the kite is blue rather than red.
Let me re-examine the diagram: angle A is next to the 40° mark.
I should go back to the graph and read the value at x = 3.
Let me verify my answer against the picture.
Wait, maybe I should check the image again to see whether the dog is on the left.
But wait, let me recheck the image for hidden objects.
Re-examining the figure, the side labeled 7 is opposite to the angle.
So, let me revisit the image.
Upon closer examination of the photo, the sign says 25.
To be sure, let me look at the bar for 2015 again.
Wait, no. Let me check the diagram again.
Going back to the figure, the dashed line is the median.
I looked at the chart again and the blue bar reads 14.
Let me take a second look at the top-left corner.
If I look at the scene again, there are three cups, not two.
Maybe I should double check in the image whether the hand is raised.
Returning to the diagram, I notice that BD is drawn perpendicular to AC.
Wait, the image: let me look at it again.
Actually, looking at the second panel of the figure, the line is flat.
Is that right? Let me inspect the figure.
等等,让我再看一下图片。
让我重新检查一下图像。
回到图中,蓝色柱子的高度是14。
重新看图,角A旁边标的是40度。
让我对照图片核对一下答案。
""".strip().splitlines()

TURNS_BACK = """
Hmm, is that correct?
Let me calculate again.
Wait, that's not right.
Let me double-check the calculation.
Wait, the question asks for the area, not the perimeter.
I may have miscounted.
Actually, the answer should be C.
Let me re-read the question.
Let me verify: 12 + 5 = 17.
So it is 40 — wait, that would exceed 180 degrees in total.
Let me go through the options once more.
Wait. 5 + 8 is 13, so the missing angle is 47.
Looking at the figure, let me double-check the calculation.
Let me double check the arithmetic with the given lengths.
让我再算一遍。
等等,题目问的是面积。
从图中可以看到三角形,让我再检查一下计算。
""".strip().splitlines()

GOES_ON = """
Looking at the image, the kite is red.
The figure shows a triangle with a right angle at B.
Let me look at the image to find the kite.
Let me look at the image carefully.
First, I need to check the image.
From the graph, f(3) = 3.5 and f(4) = 4.25.
Got it, let's look at the figure.
The man waits for the bus next to the stop sign.
Wait times are shown on the y-axis.
The sign says "Wait, look again at the image before crossing."
The image of point A under the reflection is A'.
If the user looks at the image again, they will notice the date.
You should check the picture again.
The pattern repeats again in the lower half of the image.
The dog is actually larger than the cat.
Checking the option A: the kite is red.
Again, the sum of the angles is 180 degrees.
She looks back at the camera in the photo.
Examining the image carefully, I can identify five objects.
The second graph looks like the first one again.
The ball returns to the ground at t = 4.
从图中可以看到三角形的三个角。
仔细观察图片,左边有一只猫。
苹果、香蕉等等。
我试图计算面积。
""".strip().splitlines()


@pytest.mark.parametrize(("lines", "visual", "any_kind"), [
    (LOOKS_AGAIN, True, True), (TURNS_BACK, False, True), (GOES_ON, False, False)])
def test_sentences_that_look_again_turn_back_or_just_go_on_are_told_apart(lines, visual, any_kind):
    found = {line: find_reflections(line) for line in lines}
    assert [line for line, own in found.items() if any(one.visual for one in own) != visual] == []
    assert [line for line, own in found.items() if bool(own) != any_kind] == []


def test_all_ten_phrases_and_nearly_all_that_are_drawn_look_again():
    assert all(one.visual for phrase in REFLECTIONS for one in find_reflections(phrase))
    assert all(find_reflections(phrase) for phrase in REFLECTIONS)
    drawn = [draw_reflection(Draws("reflections", n)) for n in range(500)]
    missed = [text for text in drawn if not any(one.visual for one in find_reflections(text))]
    assert len(missed) < 25
    # Of those, none says that it is done again: they may as well be a first look.
    assert [text for text in missed if " again" in text or "once more" in text or "re-" in text] == []


def test_a_sentence_ends_where_a_reader_would_end_it():
    text = ('The ratio is 3.5 to 1 (see Fig. 2). Is it "red"? Wait... let me check. Hmm. Let me look again.\n'
            "So \\(x = 5! = 120\\). A line\nthat goes on. The answer is A. E.g. this.\n\n"
            "f(x)!=0 ok? 对吗?让我再看图。对")
    assert [text[start:end] for start, end in sentences(text)] == [
        "The ratio is 3.5 to 1 (see Fig. 2).", 'Is it "red"?', "Wait... let me check.", "Hmm. Let me look again.",
        "So \\(x = 5! = 120\\).", "A line\nthat goes on.", "The answer is A.", "E.g. this.", "f(x)!=0 ok?", "对吗?",
        "让我再看图。", "对"]


def test_a_reflection_tells_where_it_stands():
    text = "It has 5 sides.  Wait, let me check the figure again.\nIt has 6."
    (found,) = find_reflections(text)
    assert text[found.start:found.end] == found.text == "Wait, let me check the figure again."


def test_long_hostile_texts_are_read_in_time_that_grows_with_their_length():
    pieces = ("." * 10, "e.g. ", "let me check again the ", 'a "', "再看图", "I look back at the image ", "re-check ",
              ".)", "to confirm ", "but oh no ", "\n", "Is that right ")

    def seconds(n_chars: int) -> float:
        began = time.process_time()
        for piece in pieces:
            find_reflections((piece * n_chars)[:n_chars])
        return time.process_time() - began
    seconds(1000)
    assert seconds(40_000) < 12 * max(seconds(10_000), 0.02)        # 4 times as long; a quadratic one takes 16
