"""flux-canny from a record to an item, through random weights of the real classes."""

import dataclasses
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from editors.canny import canny_edges
from editors.embeddings import Embeddings
from editors.flux import START, FluxEditor, FluxSettings
from editors.flux_painter import FluxPainter
from editors.painting import TOKEN_PX, Painting, hole_of
from editors.prepaint import prepainted
from editors.settings import with_choices
from editors.tiny_flux import tiny_flux
from experiments.generate import GenerateJob, generate
from rekey.compositing import cut, soft_mask
from rekey.editing import EditRequest, PhotoView
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.images import LoadedImage, pixel_sha256
from rekey.records import ImageSlots, Slot, VisualKey
from rekey.regenerate import edit_key, regenerate, unchanged_outside
from rekey.sampling import Pool
from rekey.slots import write_slots

RNG = np.random.default_rng(5)
PHOTO = np.clip(RNG.normal(140, 5, (203, 301, 3)) + np.linspace(-20, 20, 301)[None, :, None], 0, 255).astype(np.uint8)
PHOTO[60:110, 90:150] = (30, 60, 170)
PHOTO.setflags(write=False)
SIGN, CORNER, EDGE = Box(80, 50, 160, 120), Box(0, 153, 61, 203), Box(240, 3, 301, 55)


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """Random weights throughout: what comes out has nothing to do with what goes in."""
    return tiny_flux(tmp_path_factory.mktemp("noise") / "tiny")


@pytest.fixture(scope="module")
def clear(tmp_path_factory):
    """A decoder that shows what the latents hold, and a transformer that leaves them as they are."""
    return tiny_flux(tmp_path_factory.mktemp("clear") / "tiny", vae="clear", transformer="still")


def editor_of(flux, **changes):
    settings = FluxSettings(**{"base": str(flux.base), "controlnet": str(flux.controlnet), "canvases_px": (128, 256),
                               "steps": 2, "device": "cpu", "batch_size": 2, **changes})
    return FluxEditor("flux-canny", settings, FluxPainter(settings))


def key(mode, edit, name, color="red", **rest):
    height, width = PHOTO.shape[:2]
    return VisualKey(Slot("photo", "A", mode, edit.grown(30).clipped(width, height), edit), mode, name, color, **rest)


def request_of(asked, side=256, attempt=0, seed=3):
    crop = cut(PHOTO, asked.slot, (side,))
    return EditRequest(crop.canvas, crop.box, asked, seed, attempt, PhotoView(PHOTO, crop.window), crop.scale)


REPLACE = key("replace", SIGN, "blue sign")
ADD = key("add", EDGE, "bucket")


# ------------------------------------------------------------------------------------------------------- preparing

def test_a_prepainted_edit_begins_with_the_classical_one_and_its_edges(noise):
    editor = editor_of(noise, steps=None)
    for asked in (REPLACE, ADD):
        request = request_of(asked)
        painting = editor.prepare(request)
        assert np.array_equal(painting.start, prepainted(request))
        assert np.array_equal(painting.control[..., 0], canny_edges(painting.start, request.scale))
        assert painting.schedule == START["prepaint"]
        assert painting.seed == request.seed and asked.color in painting.prompt


def test_a_replacement_from_the_source_keeps_all_edges(noise):
    request = request_of(REPLACE)
    painting = editor_of(noise, start="source").prepare(request)
    assert np.array_equal(painting.start, request.canvas)
    assert np.array_equal(painting.control[..., 2], canny_edges(request.canvas, request.scale))
    assert painting.schedule == dataclasses.replace(START["replace"], steps=2)


@pytest.mark.parametrize("outline", ["none", "drawn"])
def test_an_addition_from_the_source_has_its_place_cleared_or_outlined(noise, outline):
    request = request_of(key("add", SIGN, "bucket"))
    painting = editor_of(noise, start="source", outline=outline).prepare(request)
    edges, all_edges = painting.control[..., 0], canny_edges(request.canvas, request.scale)
    side = len(edges)
    cleared = np.zeros((side, side), bool)
    cleared[hole_of(request).grown(TOKEN_PX).clipped(side, side).slices] = True
    assert np.array_equal(edges[~cleared], all_edges[~cleared])
    assert all_edges[cleared].any()
    assert edges[cleared].any() == (outline == "drawn")
    assert painting.schedule.control_scale == START["add outlined" if outline == "drawn" else "add"].control_scale


def test_what_the_classical_editor_cannot_draw_begins_at_the_source(noise):
    harpsichord = key("add", EDGE, "harpsichord", "green")
    editor = editor_of(noise, steps=None)
    assert editor.can(harpsichord) is None
    painting = editor.prepare(request_of(harpsichord))
    assert painting.schedule == START["add"] and "harpsichord" in painting.prompt


def test_materials_are_refused_since_nothing_measures_them(noise):
    assert "material" in editor_of(noise).can(key("replace", SIGN, "blue sign", None, material="wood"))
    assert "material" not in editor_of(noise).attributes


@pytest.mark.parametrize("edit", [SIGN, CORNER, EDGE, Box(150, 100, 157, 106)], ids=str)
@pytest.mark.parametrize("side", [128, 512])
def test_a_hole_holds_the_compositing_mask_in_whole_cells(edit, side):
    request = request_of(key("add", edit, "cat"), side)
    hole = hole_of(request)
    crop = cut(PHOTO, request.key.slot, (side,))
    mask = soft_mask(edit, crop.window) > 0
    rows, columns = np.nonzero(mask)
    offset = crop.window.left - crop.square.left, crop.window.top - crop.square.top
    reach = Box(columns.min() + offset[0], rows.min() + offset[1], columns.max() + 1 + offset[0],
                rows.max() + 1 + offset[1]).scaled(crop.scale).clipped(side, side)
    assert hole.contains(reach)
    assert all(value % 8 == 0 for value in hole.as_list())
    assert 0 <= hole.left < hole.right <= side and min(hole.width, hole.height) >= 16
    # No more than it must: the drift of the ring is measured around it.
    assert reach.grown(16).clipped(side, side).contains(hole)


# -------------------------------------------------------------------------------------------------------- painting

@pytest.mark.parametrize("start", ["prepaint", "source"])
@pytest.mark.parametrize("edit", [SIGN, CORNER, EDGE], ids=["inside", "corner", "edge"])
def test_pixels_outside_the_mask_are_those_of_the_source(noise, monkeypatch, start, edit):
    monkeypatch.setattr("rekey.regenerate.certify", passing)
    slot = Slot("photo", "A", "add", edit.grown(30).clipped(301, 203), edit, (), ("cat",))
    source = LoadedImage(PHOTO, pixel_sha256(PHOTO), "PNG", "RGB", ())
    pool = Pool(ImageSlots("photo", (slot,), "direct_attributes", (301, 203)))
    outcome = regenerate(source, pool, 1, editor_of(noise, start=start))
    assert unchanged_outside(PHOTO, outcome.pixels, outcome.edits)
    assert (outcome.pixels != PHOTO)[edit.slices].any(-1).mean() > 0.95
    raw = outcome.edits[0].edited                       # the model's picture is another one everywhere
    assert (raw != PHOTO[outcome.edits[0].crop.window.slices]).any(-1).mean() > 0.9


def passing(before, after, raw, box, mask_margin_px, key, attempts=1):
    from rekey.certificate import certify
    return dataclasses.replace(certify(before, after, raw, box, mask_margin_px, key, attempts), passed=True,
                               failed_checks=())


def test_random_pixels_are_never_certified(noise):
    for asked in (REPLACE, ADD):
        for start in ("prepaint", "source"):
            edit = edit_key(PHOTO, asked, editor_of(noise, start=start), ("test",))
            assert not edit.certificate.passed


def test_an_edit_that_the_model_keeps_is_certified(clear):
    editor = editor_of(clear, sigma_start=0.03, canvases_px=(256,))
    for asked in (REPLACE, ADD):
        edit = edit_key(PHOTO, asked, editor, ("test",))
        assert edit.certificate.passed, edit.certificate
        assert edit.certificate.measured == asked.color


def test_items_of_another_batch_size_differ_by_rounding_only(clear):
    source = LoadedImage(PHOTO, pixel_sha256(PHOTO), "PNG", "RGB", ())
    slots = [Slot("photo", f"S{n}", "add", edit.grown(30).clipped(301, 203), edit, (), (noun,))
             for n, (edit, noun) in enumerate(((Box(20, 130, 80, 190), "bucket"), (Box(200, 100, 260, 170), "cat")))]
    pool = Pool(ImageSlots("photo", tuple(slots), "relative_position", (301, 203)))
    items = [regenerate(source, pool, 1, editor_of(clear, sigma_start=0.03, canvases_px=(256,), batch_size=size))
             for size in (1, 4)]
    assert len(items[0].edits) == 2 and items[0].item is not None
    assert items[0].item.record == items[1].item.record
    assert np.abs(items[0].pixels.astype(int) - items[1].pixels).max() <= 1


def test_the_picture_that_is_denoised_is_the_one_that_was_prepared(clear):
    """Null experiment: almost no noise, a model that changes nothing, a decoder that shows the latents."""
    editor = editor_of(clear, sigma_start=0.01, canvases_px=(256,))
    for asked in (REPLACE, ADD):
        painting = editor.prepare(request_of(asked))
        (picture,) = editor.painter.paint([painting])
        pictures = painting.start.astype(float), 255 * picture
        blocks = [image.reshape(64, 4, 64, 4, 3).mean((1, 3)) for image in pictures]
        assert np.abs(blocks[0] - blocks[1]).mean() < 4


def test_a_prompt_a_control_and_a_start_each_change_the_picture(noise):
    editor = editor_of(noise)
    painting = editor.prepare(request_of(REPLACE))
    first = 255 * editor.painter.paint([painting])[0]
    others = {"prompt": "A candid photo of a green dog.", "control": np.zeros_like(painting.control),
              "start": 255 - painting.start, "hole": Box(0, 0, 64, 64), "seed": 4}
    for name, value in others.items():
        other = 255 * editor.painter.paint([dataclasses.replace(painting, **{name: value})])[0]
        assert np.abs(other - first).max() > 3, name


def test_groups_of_a_call_do_not_mix(noise):
    editor = editor_of(noise)
    some = [editor.prepare(request_of(asked, side)) for asked in (REPLACE, ADD) for side in (128, 256)]
    some.append(dataclasses.replace(some[0], schedule=dataclasses.replace(some[0].schedule, guidance=1.0)))
    together = editor.painter.paint(some)
    for painting, picture in zip(some, together, strict=True):
        assert np.array_equal(picture, editor.painter.paint([painting])[0])
    assert not np.array_equal(together[0], together[-1])


# ---------------------------------------------------------------------------------------------------------- prompts

def count_encodings(monkeypatch):
    seen = []
    encode = FluxPainter.encode
    monkeypatch.setattr(FluxPainter, "encode", lambda self, prompts: (seen.append(tuple(prompts)),
                                                                      encode(self, prompts))[1])
    return seen


def test_expected_prompts_are_encoded_at_once_and_the_encoders_let_go(noise, monkeypatch):
    seen = count_encodings(monkeypatch)
    editor = editor_of(noise)
    keys = [key("add", EDGE, noun, color) for noun in ("cat", "bucket") for color in ("red", "blue", "green")]
    editor.expect(keys + [REPLACE])
    assert [len(chunk) for chunk in seen] == [8]                     # 7 prompts, in the one size that there is
    assert editor.painter._text_pipeline is None
    editor.edit(request_of(REPLACE, 128))
    editor.edit(request_of(ADD, 128))
    assert len(seen) == 1
    editor.edit(request_of(key("add", EDGE, "dog"), 128))            # not expected, and painted all the same
    assert len(seen) == 2


def test_an_embedding_does_not_depend_on_what_it_is_encoded_with(noise):
    few, many = editor_of(noise).painter, editor_of(noise).painter
    prompts = [f"A candid photo of a red cat number {number}." for number in range(11)]
    few.expect(prompts[:1])
    many.expect(prompts[::-1])
    for name, rows in few.embeddings.of(prompts[:1]).items():
        assert torch.equal(rows, many.embeddings.of(prompts[:1])[name]), name


def test_a_prompt_cache_outlives_the_process_and_the_encoders(noise, tmp_path, monkeypatch):
    from huggingface_hub import constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--acme--tiny" / "snapshots" / ("1" * 40)
    shutil.copytree(noise.base, snapshot)
    usual = {"base": "acme/tiny", "revision": "1" * 40, "prompt_cache": tmp_path / "prompts"}
    request = request_of(REPLACE, 128)
    expected = editor_of(noise, **usual).edit(request)
    for part in [*snapshot.glob("text_encoder*"), *snapshot.glob("tokenizer*")]:
        shutil.rmtree(part)
    editor = editor_of(noise, **usual)
    editor.check()
    assert np.array_equal(editor.edit(request), expected)
    with pytest.raises(InputError, match="text_encoder: its folder is missing"):
        editor.edit(request_of(ADD, 128))


def test_a_torn_entry_of_a_prompt_cache_is_made_anew(noise, tmp_path, monkeypatch):
    seen = count_encodings(monkeypatch)
    request = request_of(REPLACE, 128)
    expected = editor_of(noise, prompt_cache=tmp_path).edit(request)
    assert np.array_equal(editor_of(noise, prompt_cache=tmp_path).edit(request), expected) and len(seen) == 1
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:50])
    assert np.array_equal(editor_of(noise, prompt_cache=tmp_path).edit(request), expected) and len(seen) == 2


def test_missing_text_encoders_are_one_line(noise, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(noise.base, bare, ignore=shutil.ignore_patterns("text_encoder*", "tokenizer*"))
    with pytest.raises(InputError, match="text_encoder"):
        editor_of(dataclasses.replace(noise, base=bare)).check()


# ----------------------------------------------------------------------------------------------------------- checks

@pytest.mark.parametrize("choices, said", [
    ({"sigma_start": "0"}, "sigma_start=0.0: expected a number above 0, at most 1"),
    ({"sigma_start": "1.2"}, "sigma_start=1.2"), ({"sigma_start": "much"}, "--set sigma_start=much: expected a number"),
    ({"sigma_start": "nan"}, "--set sigma_start=nan: expected a number"),
    ({"guidance": "inf"}, "--set guidance=inf: expected a number"), ({"guidance": "-5"}, "guidance=-5.0"),
    ({"batch_size": "1" + 20 * "0"}, "batch_size=100000000000000000000: expected a number above 0, at most 256"),
    ({"text_tokens": "513"}, "text_tokens=513: expected a number above 0, at most 512"),
    ({"canvases_px": "512,256"}, "canvases_px=512,256: expected sides in pixels, the smallest first"),
    ({"steps": "0"}, "steps=0: expected 1 or more"), ({"batch_size": "0"}, "batch_size=0"),
    ({"canvases_px": "512,1000"}, "canvases_px=1000: a canvas must be divisible by 16; the nearest is 992"),
    ({"canvases_px": "large"}, "--set canvases_px=large: expected a whole number"),
    ({"start": "nothing"}, "--set start=nothing: expected prepaint or source"),
    ({"compile": "yes"}, "--set compile=yes: expected true or false"),
    ({"strength": "0.6"}, "--set strength=...: no such setting of this editor; there is "),
    ({"dtype": "float16"}, "--set dtype=float16: expected auto or bfloat16 or float32"),
])
def test_a_bad_setting_is_one_line(choices, said):
    with pytest.raises(InputError) as caught:
        with_choices(FluxSettings(), choices)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_settings_are_parsed_by_their_kind():
    chosen = with_choices(FluxSettings(), {"canvases_px": "128,256", "steps": "7", "controlnet": "none",
                                           "compile": "true", "sigma_start": "0.5", "base": "here"})
    assert (chosen.canvases_px, chosen.steps, chosen.controlnet, chosen.compile) == ((128, 256), 7, None, True)
    assert (chosen.sigma_start, chosen.base) == (0.5, "here")


def test_a_description_holds_everything_that_decides_pixels(noise):
    usual = editor_of(noise).describe()
    for changed in ({"start": "source"}, {"steps": 3}, {"sigma_start": 0.4}, {"canvases_px": (128,)}, {"guidance": 2.0},
                    {"text_tokens": 64}, {"batch_size": 4}, {"best_of": 2}, {"control_scale": 0.3}, {"compile": True},
                    {"controlnet": None}, {"dtype": "bfloat16"}):
        assert editor_of(noise, **changed).describe() != usual, changed
    assert editor_of(noise, device="auto").describe() == usual
    assert usual["schedules"]["prepaint"]["sigma_start"] == START["prepaint"].sigma_start
    assert all(one["revision"] for one in usual["weights"].values())


def test_a_net_that_does_not_fit_is_refused_before_any_work(noise, tmp_path):
    wrong = tmp_path / "wrong"
    shutil.copytree(noise.controlnet, wrong)
    config = (wrong / "config.json").read_text()
    (wrong / "config.json").write_text(config.replace('"joint_attention_dim": 32', '"joint_attention_dim": 64'))
    assert (wrong / "config.json").read_text() != config
    with pytest.raises(InputError, match="joint_attention_dim"):
        editor_of(noise, controlnet=str(wrong)).check()


@pytest.mark.parametrize("device, said", [
    ("nonsense", "device=nonsense: expected auto, cpu, cuda or cuda:N"), ("meta", "device=meta: expected"),
    ("cuda:99", "device=cuda:99: "), ("cuda:x", "device=cuda:x: expected")])
def test_a_device_that_is_not_here_is_one_line(noise, device, said):
    with pytest.raises(InputError) as caught:
        editor_of(noise, device=device).check()
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["prompt_cache", "compile_cache"])
@pytest.mark.parametrize("below", ["", "x"])
def test_a_cache_that_cannot_be_written_is_said_before_any_work(noise, tmp_path, name, below):
    (tmp_path / "file").write_text("taken")
    with pytest.raises(InputError, match=f"{name}=.*cannot be written"):
        editor_of(noise, **{name: tmp_path / "file" / below}).check()


def test_both_missing_weights_are_said_at_once():
    with pytest.raises(InputError) as caught:
        FluxPainter(FluxSettings()).check()
    assert [problem.split(" (")[0] for problem in caught.value.problems] == [FluxSettings.base, FluxSettings.controlnet]


def test_weights_that_the_libraries_cannot_read_are_one_line(noise, tmp_path):
    broken = tmp_path / "base"
    shutil.copytree(noise.base, broken)
    (broken / "vae" / "config.json").write_text("{}")
    editor = editor_of(dataclasses.replace(noise, base=broken))
    editor.check()                                              # the sizes of a decoder are not looked at
    with pytest.raises(InputError, match="cannot be loaded .*; download it again") as caught:
        editor.edit(request_of(REPLACE, 128))
    assert "\n" not in str(caught.value)


def test_a_prompt_that_would_be_cut_is_said_and_nothing_written(noise, tmp_path):
    (tmp_path / "photos").mkdir()
    Image.fromarray(PHOTO).save(tmp_path / "photos" / "photo.png")
    slot = Slot("photo", "A", "add", SIGN.grown(30), SIGN, (), ("cat",))
    write_slots(tmp_path / "slots.jsonl", [ImageSlots("photo", (slot,), "direct_attributes", (301, 203))])
    choices = (("base", str(noise.base)), ("controlnet", str(noise.controlnet)), ("text_tokens", "8"))
    job = GenerateJob(tmp_path / "slots.jsonl", tmp_path / "photos", tmp_path / "out", 1, "flux-canny", choices=choices)
    with pytest.raises(InputError, match="text_tokens=8: .* more are needed for the prompt 'A candid photo"):
        generate(job)
    assert not (tmp_path / "out").exists()


def test_prompts_are_kept_as_they_are_encoded(tmp_path):
    def encode(prompts):
        yield prompts[:2], {"rows": torch.zeros(2, 3)}
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        Embeddings("test", encode, tmp_path).prepare(["a", "b", "c"])
    asked = []

    def encode_the_rest(prompts):
        asked.extend(prompts)
        return [(prompts, {"rows": torch.ones(len(prompts), 3)})]
    later = Embeddings("test", encode_the_rest, tmp_path)
    assert later.of(["a", "b", "c"])["rows"].sum() == 3 and asked == ["c"]


def test_too_little_memory_is_said_before_any_work(noise, monkeypatch):
    gigabyte = 2 ** 30
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (2 * gigabyte, 24 * gigabyte))
    with pytest.raises(InputError, match="GPU memory") as caught:
        editor_of(noise, device="cuda").check()
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (20 * gigabyte, 24 * gigabyte))
    editor_of(noise, device="cuda").check()


def test_missing_weights_are_said_with_their_license():
    with pytest.raises(InputError) as caught:
        FluxPainter(FluxSettings(base="black-forest-labs/FLUX.1-dev")).check()
    line = str(caught.value)
    assert "not in the local cache" in line and "Non-Commercial" in line and "hf download" in line


def test_importing_the_editor_loads_no_weights_and_a_painter_none_either(noise, monkeypatch):
    monkeypatch.setattr(FluxPainter, "load", lambda self: pytest.fail("loaded"))
    editor = editor_of(noise)
    editor.check()
    editor.describe()
    assert isinstance(editor.prepare(request_of(ADD)), Painting)


def test_what_is_said_of_the_usual_schedules_is_true():
    from experiments.cli_editors import _meanings
    said = _meanings(FluxSettings)
    for name, starts in {"sigma_start": ("prepaint", "replace"), "steps": ("prepaint", "replace"),
                         "control_scale": ("prepaint", "replace", "add", "add outlined"),
                         "control_end": ("prepaint", "add", "add outlined")}.items():
        usual = said[name].split("none: ")[1]
        assert [float(number) for number in re.findall(r"\d+(?:\.\d+)?", usual)] == [
            getattr(START[start], name) for start in starts]
    assert START["replace"].sigma_start == START["add"].sigma_start == START["add outlined"].sigma_start
    assert START["replace"].steps == START["add"].steps == START["add outlined"].steps
    assert START["prepaint"].control_end == START["replace"].control_end
