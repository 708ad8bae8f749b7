"""The closed loop: sample, edit, certify, retry, give up; with editors that fail on purpose."""

import numpy as np
import pytest

from editors.classical import ClassicalEditor
from rekey.geometry import Box
from rekey.images import LoadedImage, pixel_sha256
from rekey.records import ImageSlots, Slot, VisualKey
from rekey.regenerate import MAX_RECORDS, edit_key, regenerate, unchanged_outside
from rekey.sampling import Pool, identity

PAINT = {"red": (200, 25, 35), "blue": (30, 70, 200), "yellow": (245, 220, 40), "green": (30, 140, 50),
         "black": (15, 15, 15), "white": (250, 250, 250), "orange": (245, 130, 20), "purple": (110, 40, 160),
         "pink": (250, 150, 190), "brown": (105, 60, 30), "gray": (128, 128, 128)}


class PaintEditor:
    """Fills the box with the wanted color, except where a test wants it to fail."""

    name, canvases_px, max_attempts, best_of, attributes = "paint", (), 3, 1, ("color",)

    def __init__(self, succeeds_at=0, paint=PAINT, spill=0, cannot=None):
        self.succeeds_at, self.paint, self.spill, self.cannot, self.requests = succeeds_at, paint, spill, cannot, []

    def can(self, key):
        return "out of paint" if key.color == self.cannot else None

    def edit(self, request):
        self.requests.append(request)
        canvas = request.canvas.copy()
        if request.attempt >= self.succeeds_at:
            canvas[request.box.slices] = self.paint[request.key.color]
        if self.spill:
            canvas[:self.spill] = 255 - canvas[:self.spill]
        return canvas

    def describe(self):
        return {"name": self.name}


@pytest.fixture
def photo():
    rng = np.random.default_rng(3)
    pixels = (np.linspace(90, 170, 300)[:, None, None] + rng.integers(-5, 6, (300, 400, 3))).astype(np.uint8)
    pixels.setflags(write=False)
    return LoadedImage(pixels, pixel_sha256(pixels), "PNG", "RGB", ())


def pool(*boxes, category="direct_attributes"):
    nouns = ("cat", "bucket", "kite")
    slots = tuple(Slot("photo", f"S{n}", "add", Box(*b).grown(25), Box(*b), (), (nouns[n],))
                  for n, b in enumerate(boxes))
    return Pool(ImageSlots("photo", slots, category, (400, 300)))


ONE, TWO = (60, 60, 120, 110), (260, 150, 320, 210)


def test_a_good_editor_gives_the_first_draw(photo):
    outcome = regenerate(photo, pool(ONE), 1, PaintEditor())
    assert outcome.item.record == pool(ONE).sample(1)
    assert outcome.rejected == ()
    assert outcome.item.answer_text == outcome.item.record.keys[0].color
    assert outcome.item.certificate[0].attempts == 1
    assert unchanged_outside(photo.pixels, outcome.pixels, outcome.edits)
    assert outcome.item.image_sha256 == pixel_sha256(outcome.pixels) != photo.sha256


def test_failed_attempts_are_retried_with_other_seeds_and_counted(photo):
    editor = PaintEditor(succeeds_at=2)
    outcome = regenerate(photo, pool(ONE), 1, editor)
    assert outcome.item.certificate[0].attempts == 3
    assert [r.attempt for r in editor.requests] == [0, 1, 2]
    assert len({r.seed for r in editor.requests}) == 3


class DriftingEditor(PaintEditor):
    """As `PaintEditor`, but every candidate comes back lighter by a number of levels of its own."""

    def __init__(self, *drifts):
        super().__init__()
        self.drifts, self.best_of = drifts, len(drifts)

    def edit(self, request):
        drift = self.drifts[len(self.requests) % len(self.drifts)]
        return np.clip(super().edit(request).astype(int) + drift, 0, 255).astype(np.uint8)


def test_of_several_candidates_the_best_certificate_wins(photo):
    editor = DriftingEditor(4, 1, 3)
    best = regenerate(photo, pool(ONE), 1, editor).item.certificate[0]
    assert len({r.seed for r in editor.requests}) == len(editor.requests) == 3
    single = {drift: regenerate(photo, pool(ONE), 1, DriftingEditor(drift)).item.certificate[0] for drift in (4, 1, 3)}
    assert best == single[1]
    assert best.ring_delta_e < min(single[4].ring_delta_e, single[3].ring_delta_e)


def test_a_first_candidate_is_what_an_editor_of_one_would_have_made(photo):
    several, alone = DriftingEditor(0, 0, 0), PaintEditor()
    for editor in (several, alone):
        regenerate(photo, pool(ONE), 1, editor)
    assert several.requests[0].seed == alone.requests[0].seed


def test_an_editor_is_told_the_scale_of_its_canvas(photo):
    editor = PaintEditor()
    editor.canvases_px = (128, 512)
    regenerate(photo, pool(ONE), 1, editor)
    request = editor.requests[0]
    assert request.canvas.shape == (128, 128, 3)
    assert request.scale == pytest.approx(128 / 110)                     # the context is 110 px wide
    assert request.box.width == pytest.approx(60 * request.scale, abs=1.5)


def test_an_editor_that_does_nothing_gives_a_listed_failure(photo):
    outcome = regenerate(photo, pool(ONE, TWO), 1, PaintEditor(succeeds_at=99))
    assert outcome.item is None and outcome.pixels is None
    assert len(outcome.rejected) == MAX_RECORDS
    assert "failed changed area" in outcome.failure
    assert len({r["draw"] for r in outcome.rejected}) == MAX_RECORDS


def test_an_editor_of_the_wrong_color_never_gives_an_item(photo):
    wrong = dict(zip(PAINT, [*PAINT.values()][3:] + [*PAINT.values()][:3], strict=True))
    for seed in range(12):
        outcome = regenerate(photo, pool(ONE), seed, PaintEditor(paint=wrong))
        assert outcome.item is None
        assert all("color" in r["reason"] for r in outcome.rejected)


def test_another_draw_follows_where_the_editor_cannot_paint(photo):
    scene = pool(ONE, TWO)
    first = scene.sample(4)
    outcome = regenerate(photo, scene, 4, PaintEditor(cannot=first.keys[0].color))
    assert outcome.rejected[0]["reason"].endswith("out of paint")
    assert outcome.rejected[0]["draw"] == 0
    assert outcome.item.record.draw > 0
    assert outcome.item.record.keys[0].color != first.keys[0].color


def test_paint_far_from_the_box_never_reaches_the_image(photo):
    outcome = regenerate(photo, pool((60, 60, 120, 110)), 1, PaintEditor(spill=10))
    assert outcome.item is not None
    assert np.array_equal(outcome.pixels[:45], photo.pixels[:45])


def test_both_edits_of_a_position_item_are_on_the_image(photo):
    outcome = regenerate(photo, pool(ONE, TWO, category="relative_position"), 2, PaintEditor())
    assert len(outcome.item.certificate) == 2
    assert {c.slot_id for c in outcome.item.certificate} == {"S0", "S1"}
    for key in outcome.item.record.keys:
        assert tuple(outcome.pixels[key.slot.edit.slices][20, 20]) == PAINT[key.color]
    assert outcome.item.answer_text == ("left" if outcome.item.record.keys[0].slot.slot_id == "S0" else "right")


def test_a_used_up_ledger_is_said(photo):
    scene = pool(ONE)
    outcome = regenerate(photo, scene, 1, PaintEditor(), avoid=frozenset(scene.identities()))
    assert outcome.failure.startswith("of 11 attribute items of this image none is left: 11 are in the ledger")
    left = sorted(scene.identities())[0]
    outcome = regenerate(photo, scene, 1, PaintEditor(), avoid=frozenset(scene.identities() - {left}))
    assert identity(outcome.item.record) == left


def test_nouns_that_an_editor_cannot_draw_cost_no_attempt(photo):
    class CatsOnly(PaintEditor):
        def can(self, key):
            return None if key.object == "cat" else f"no {key.object}"
    nouns = ("violin", "harp", "cello", "oboe", "tuba", "lute", "gong", "drum", "cat")
    slot = Slot("photo", "S", "add", Box(*ONE).grown(25), Box(*ONE), (), nouns)
    scene = Pool(ImageSlots("photo", (slot,), "direct_attributes", (400, 300)))
    for seed in range(40):
        assert regenerate(photo, scene, seed, CatsOnly()).item.record.keys[0].object == "cat"


def test_every_remaining_item_is_tried_before_an_image_is_given_up(photo):
    class OneColor(PaintEditor):
        def can(self, key):
            return None if key.color == only else "out of paint"
    scene = pool(ONE)
    for only in ("red", "purple", "white"):
        assert all(regenerate(photo, scene, seed, OneColor()).item.answer_text == only for seed in range(25))


def test_a_change_outside_the_mask_is_noticed(photo):
    outcome = regenerate(photo, pool(ONE), 1, PaintEditor())
    touched = outcome.pixels.copy()
    touched[0, 0, 0] ^= 1
    assert not unchanged_outside(photo.pixels, touched, outcome.edits)
    assert not unchanged_outside(photo.pixels, outcome.pixels[:-1], outcome.edits)


@pytest.mark.parametrize("edit", [Box(60, 60, 360, 61), Box(60, 40, 61, 240), Box(60, 60, 61, 61)], ids=str)
def test_a_box_of_one_pixel_across_is_a_listed_failure_at_most(photo, edit):
    for mode, name in (("add", "bucket"), ("add", "cat"), ("replace", "gray wall")):
        slot = Slot("photo", "S", mode, edit.grown(30).clipped(400, 300), edit)
        key = VisualKey(slot, mode, name, "red")
        for editor in (ClassicalEditor(), PaintEditor()):
            found = edit_key(photo.pixels, key, editor, ("thin",))
            assert found.certificate.attempts >= 1
