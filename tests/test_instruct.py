"""The editors by instruction and the relatives of FLUX.1, on tiny random pipelines of the real classes.

What their pipelines do on their own is in the tests of traps; each fails where our handling is taken out.
"""

import dataclasses
import functools
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinInpaintPipeline,
    Flux2Transformer2DModel,
    FluxControlInpaintPipeline,
    FluxFillPipeline,
    FluxKontextInpaintPipeline,
    FluxTransformer2DModel,
    QwenImageEditInpaintPipeline,
    QwenImageTransformer2DModel,
)
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_inpaint as qwen_pipeline
from tiny_pipelines import QWEN_SCHEDULER, TINY, tiny_klein

from editors import instruct
from editors.canny import as_rgb
from editors.diffusion import mask_of, pil, shift_of, sigmas_from
from editors.instruct import (
    CannyDevEditor,
    CannyDevSettings,
    FillEditor,
    FillSettings,
    InstructEditor,
    KleinEditor,
    KleinSettings,
    KontextSettings,
    QwenEditSettings,
)
from editors.instruct_painters import CannyDevPainter, FillPainter, KleinPainter, KontextPainter, QwenEditPainter
from editors.painting import TOKEN_PX, Painting, hole_of
from editors.settings import Schedule
from rekey.compositing import cut, paste
from rekey.editing import EditRequest, PhotoView
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.records import Slot, VisualKey
from rekey.regenerate import edit_key, unchanged_outside


@dataclasses.dataclass(frozen=True)
class Kind:
    settings: type
    editor: type
    painter: type
    transformer: type
    guidance: float
    tokens: int = 128


KINDS = {
    "flux2-klein": Kind(KleinSettings, KleinEditor, KleinPainter, Flux2Transformer2DModel, 1.0, tokens=192),
    "flux-kontext": Kind(KontextSettings, InstructEditor, KontextPainter, FluxTransformer2DModel, 2.5),
    "qwen-edit": Kind(QwenEditSettings, InstructEditor, QwenEditPainter, QwenImageTransformer2DModel, 4.0, 160),
    "flux-canny-dev": Kind(CannyDevSettings, CannyDevEditor, CannyDevPainter, FluxTransformer2DModel, 30.0),
    "flux-fill": Kind(FillSettings, FillEditor, FillPainter, FluxTransformer2DModel, 30.0),
}
SIDE = 64
HOLE = Box(16, 16, 48, 40)
every_kind = pytest.mark.parametrize("name", KINDS)


@pytest.fixture(scope="module")
def small_qwen():
    """Qwen-Image-Edit's pipeline at SIDE, where it always works at 1024: seconds an edit saved."""
    with pytest.MonkeyPatch.context() as patch:
        dimensions = qwen_pipeline.calculate_dimensions
        patch.setattr(qwen_pipeline, "calculate_dimensions", lambda area, ratio: dimensions(SIDE ** 2, ratio))
        patch.setattr(instruct, "QWEN_CANVAS_PX", SIDE)
        yield dimensions


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return {name: build(folder / name) for name, build in TINY.items()}


@pytest.fixture(scope="module")
def settings_of(weights, small_qwen):
    def make(name, **changes):
        kind = KINDS[name]
        usual = {"base": str(weights[name]), "canvases_px": (SIDE,), "device": "cpu", "batch_size": 2, "steps": 2,
                 "text_tokens": kind.tokens, "max_attempts": 1}
        return kind.settings(**usual | changes)
    return make


@pytest.fixture(scope="module")
def painters(settings_of):
    """One painter a kind, so that each tiny model is loaded once."""
    return {name: kind.painter(settings_of(name)) for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def editors(painters):
    return {name: kind.editor(name, painters[name].settings, painters[name]) for name, kind in KINDS.items()}


def painting(name, number=0, hole=HOLE, prompt=None, *, side=SIDE, sigma_start=1.0, steps=2, guidance=None):
    rng = np.random.default_rng(number)
    start = np.kron(rng.integers(0, 256, (side // 16, side // 16, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    edges = as_rgb((rng.random((side, side)) > 0.9).astype(np.uint8) * np.uint8(255))
    schedule = Schedule(sigma_start, steps, KINDS[name].guidance if guidance is None else guidance)
    return Painting(start, hole, prompt or f"Change ONLY the color of cat {'number ' * number}to red.", number,
                    schedule, edges)


def farthest(a, b):
    """In levels of 255; pictures are bytes or in [0, 1]."""
    a, b = (np.asarray(one, float) * (1 if np.asarray(one).dtype == np.uint8 else 255) for one in (a, b))
    return float(np.abs(a - b).max())


def photo(height=157, width=203):
    rng = np.random.default_rng(5)
    coarse = rng.integers(40, 215, (height // 12 + 1, width // 12 + 1, 3))
    return np.kron(coarse, np.ones((12, 12, 1)))[:height, :width].astype(np.uint8)


def slot_key(edit, mode="replace", color="red"):
    slot = Slot("photo", "S1", mode, edit.grown(20).clipped(203, 157), edit, ("blue jacket on the cyclist",), ("cat",))
    return VisualKey(slot, mode, "blue jacket on the cyclist" if mode == "replace" else "cat", color)


def request_of(key, side, source=None):
    source = photo() if source is None else source
    crop = cut(source, key.slot, (side,))
    return EditRequest(crop.canvas, crop.box, key, 7, 0, PhotoView(source, crop.window), crop.scale)


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of each class of transformer."""
    counted = dict.fromkeys((kind.transformer for kind in KINDS.values()), 0)
    for transformer in counted:
        def forward(self, *args, _real=transformer.forward, _class=transformer, **kwargs):
            counted[_class] += 1
            return _real(self, *args, **kwargs)
        monkeypatch.setattr(transformer, "forward", forward)
    return counted


# ------------------------------------------------------------------------------------------- what must hold


@every_kind
def test_an_edit_keeps_the_size_repeats_to_the_byte_and_depends_on_seed_and_prompt(name, painters, settings_of):
    painter, one = painters[name], painting(name)
    painter.check()
    other = dataclasses.replace(one, prompt="Add a yellow boat.")
    painter.expect([one.prompt, other.prompt])
    (picture,) = painter.paint([one])
    assert picture.shape == one.start.shape and picture.dtype == np.float32
    assert farthest(*painter.paint([one, dataclasses.replace(one, seed=99)])) > 20
    assert farthest(*painter.paint([one, other])) > 5
    again = KINDS[name].painter(settings_of(name))
    assert np.array_equal(again.paint([one])[0], picture)


@every_kind
def test_an_edit_does_not_depend_on_those_beside_it(name, painters, settings_of):
    several = [painting(name), painting(name, 1, Box(0, 24, 32, 64)), painting(name, 9, Box(40, 0, 64, 16))]
    single = KINDS[name].painter(settings_of(name, batch_size=1))
    for painter in (painters[name], single):
        painter.expect([one.prompt for one in several])
    alone = [painters[name].paint([one])[0] for one in several]
    assert min(farthest(alone[0], alone[1]), farthest(alone[1], alone[2])) > 20
    together = painters[name].paint(several[::-1])[::-1]
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    assert max(map(farthest, alone, single.paint(several))) <= 1


@every_kind
def test_parts_in_bfloat16_fit_together(name, settings_of):
    one = painting(name)
    painter = KINDS[name].painter(settings_of(name, dtype="bfloat16"))
    (picture,) = painter.paint([one])
    assert painter.pipeline.transformer.dtype == painter.pipeline.vae.dtype == torch.bfloat16
    assert 255 * picture.std() > 5 and len(np.unique(picture)) > 50


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_kind
def test_on_a_gpu_an_edit_repeats_and_does_not_depend_on_those_beside_it(name, settings_of):
    several = [painting(name, number) for number in range(3)]
    painter = KINDS[name].painter(settings_of(name, device="cuda"))
    together = painter.paint(several)
    assert all(np.array_equal(painter.paint([one])[0], picture) for one, picture in zip(several, together, strict=True))


@every_kind
@pytest.mark.parametrize("edit, mode", [(Box(60, 50, 101, 83), "replace"), (Box(0, 0, 31, 25), "add"),
                                        (Box(170, 120, 203, 157), "replace")])
def test_pixels_outside_the_mask_are_bit_identical(name, edit, mode, editors):
    source = photo()
    found = edit_key(source, slot_key(edit, mode), editors[name], ("photo", 1, 0))
    renewed = paste(source.copy(), found.crop, found.edited)
    assert unchanged_outside(source, renewed, (found,))
    assert farthest(renewed[edit.slices], source[edit.slices]) > 20


@every_kind
def test_a_noise_level_is_met_on_every_canvas_and_with_any_number_of_steps(name, settings_of):
    kind = KINDS[name]
    painter = kind.painter(settings_of(name))
    sides = (SIDE,) if name == "qwen-edit" else (SIDE, 96)
    for side, sigma, steps in [(side, *rest) for side in sides for rest in ((1.0, 3), (0.72, 3), (0.35, 2))]:
        painter.paint([painting(name, sigma_start=sigma, steps=steps, side=side)])
        sigmas = painter.pipeline.scheduler.sigmas
        assert float(sigmas[0]) == pytest.approx(sigma, abs=1e-6)
        assert len(sigmas) == steps + 1 and float(sigmas[-1]) == 0 and (sigmas.diff() < 0).all()


@every_kind
def test_a_full_schedule_is_the_one_that_the_pipeline_takes_by_itself(name, painters, monkeypatch):
    given = []
    original = FlowMatchEulerDiscreteScheduler.set_timesteps

    @functools.wraps(original)                  # pipelines look at the signature
    def set_timesteps(self, *args, **kwargs):
        given.append(kwargs)
        original(self, *args, **kwargs)
    monkeypatch.setattr(FlowMatchEulerDiscreteScheduler, "set_timesteps", set_timesteps)
    painters[name].paint([painting(name, steps=4)])
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(painters[name].pipeline.scheduler.config)
    original(scheduler, sigmas=np.linspace(1, 1 / 4, 4), mu=given[0]["mu"])
    assert torch.allclose(painters[name].pipeline.scheduler.sigmas, scheduler.sigmas, atol=1e-6)


@every_kind
def test_a_transformer_is_called_once_a_step_and_for_guidance_once_more(name, painters, calls):
    painters[name].paint([painting(name, steps=3)])
    assert calls[KINDS[name].transformer] == (6 if name == "qwen-edit" else 3)


@pytest.mark.parametrize("name", ["flux-kontext", "flux-canny-dev", "flux-fill", "qwen-edit"])
def test_guidance_matters(name, painters):
    one = painting(name)
    assert farthest(painters[name].paint([one])[0], painters[name].paint([painting(name, guidance=1.5)])[0]) > 3


@every_kind
def test_a_missing_component_or_other_weights_are_said_in_one_line(name, weights, settings_of, tmp_path):
    kind = KINDS[name]
    broken = shutil.copytree(weights[name], tmp_path / name)
    shutil.rmtree(broken / "text_encoder")
    with pytest.raises(InputError, match="text_encoder: its folder is missing") as missing:
        kind.painter(settings_of(name, base=str(broken))).check()
    for other in set(KINDS) - {name}:
        with pytest.raises(InputError, match="weights for .*; expected weights for") as wrong:
            kind.painter(settings_of(name, base=str(weights[other]))).check()
        assert len(missing.value.problems) == len(wrong.value.problems) == 1


@every_kind
def test_what_is_recorded_is_plain_and_names_noise_levels(name, editors):
    said = json.loads(json.dumps(editors[name].describe()))
    assert said["schedules"]["source"]["sigma_start"] == 1.0
    assert said["weights"]["base"]["revision"] and not {"sigma_start", "steps", "guidance"} & set(said)


# -------------------------------------------------------------------------------------------------- prompts


def test_models_that_edit_get_the_instruction_and_the_others_a_caption(editors):
    key = slot_key(Box(60, 50, 101, 83))
    for name, editor in editors.items():
        prompt = editor.prepare(request_of(key, SIDE)).prompt
        if name in ("flux-canny-dev", "flux-fill"):
            assert prompt.startswith("A candid photo of a red jacket")
        else:
            assert prompt == "Change ONLY the color of the blue jacket on the cyclist to red."


@pytest.mark.parametrize("name", ["flux2-klein", "flux-canny-dev"])
def test_a_prepainted_edit_begins_at_the_classical_one_with_less_noise(name, settings_of):
    kind = KINDS[name]
    key = slot_key(Box(60, 50, 101, 83))
    editor = kind.editor(name, settings_of(name, start="prepaint"), None)
    plain = kind.editor(name, settings_of(name), None)
    request = request_of(key, SIDE)
    begun, source = editor.prepare(request), plain.prepare(request)
    assert np.array_equal(source.start, request.canvas) and source.schedule.sigma_start == 1
    assert begun.schedule.sigma_start == instruct.PREPAINT_SIGMA
    assert farthest(begun.start[request.box.slices], request.canvas[request.box.slices]) > 30
    assert settings_of(name, start="prepaint").describe()["schedules"].keys() == {"source", "prepaint"}
    unpaintable = VisualKey(key.slot, "add", "tax return", "red")
    begun = editor.prepare(request_of(unpaintable, SIDE))
    assert begun.schedule.sigma_start == 1 and np.array_equal(begun.start, request.canvas)


def test_klein_is_shown_the_source_beside_a_prepainted_edit(settings_of):
    settings = settings_of("flux2-klein", start="prepaint")
    editor = KleinEditor("flux2-klein", settings, KleinPainter(settings))
    request = request_of(slot_key(Box(60, 50, 101, 83)), SIDE)
    begun = editor.prepare(request)
    assert np.array_equal(begun.reference, request.canvas) and not np.array_equal(begun.start, request.canvas)
    without = dataclasses.replace(begun, reference=begun.start)
    assert farthest(*editor.painter.paint([begun, without])) > 0


def test_an_object_is_added_along_the_outline_that_can_be_drawn(editors):
    edit = Box(60, 50, 101, 83)
    flat = np.full_like(photo(), 128)
    added = editors["flux-canny-dev"].prepare(request_of(slot_key(edit, "add"), 128, flat))
    assert added.control[added.hole.slices].any()
    unknown = VisualKey(slot_key(edit, "add").slot, "add", "tax return", "red")
    cleared = editors["flux-canny-dev"].prepare(request_of(unknown, 128))
    assert not cleared.control[cleared.hole.slices].any() and cleared.control.any()


# ---------------------------------------------------------------------------------------------------- traps


def bare(pipeline_class, folder):
    """The pipeline as diffusers gives it, text encoders and all."""
    pipeline = pipeline_class.from_pretrained(folder, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def asked(one, **changes):
    usual = {"image": [pil(one.start)], "mask_image": [mask_of(len(one.start), one.hole)], "prompt": [one.prompt],
             "generator": torch.Generator().manual_seed(0), "num_inference_steps": 1, "strength": 1.0,
             "output_type": "latent"}
    return usual | changes


@pytest.mark.parametrize("name, pipeline_class, more", [
    ("flux-kontext", FluxKontextInpaintPipeline, {"height": SIDE, "width": SIDE, "max_area": SIDE ** 2}),
    ("flux-canny-dev", FluxControlInpaintPipeline, {"control_image": pil(np.zeros((SIDE, SIDE, 3), np.uint8))}),
    ("flux-fill", FluxFillPipeline, {})])
def test_left_alone_a_pipeline_works_at_a_megapixel(name, pipeline_class, more, weights, monkeypatch):
    """The size of what our call gives back is checked by every other test."""
    class Reached(Exception):
        """Stop before a megapixel is worked on."""

    shapes = []

    def forward(self, hidden_states, **_):
        shapes.append(hidden_states.shape[1])
        raise Reached
    monkeypatch.setattr(FluxTransformer2DModel, "forward", forward)
    monkeypatch.setattr("diffusers.AutoencoderKL.encode", lambda self, x: SimpleNamespace(
        latent_dist=SimpleNamespace(sample=lambda generator: torch.zeros(len(x), 16, x.shape[2] // 8, x.shape[3] // 8),
                                    mode=lambda: torch.zeros(len(x), 16, x.shape[2] // 8, x.shape[3] // 8))))
    with pytest.raises(Reached):
        bare(pipeline_class, weights[name])(**asked(painting(name), **more))
    assert shapes[0] in (64 * 64, 2 * 64 * 64)


def test_qwen_works_at_one_size_and_a_canvas_of_another_is_refused(weights, small_qwen):
    one = painting("qwen-edit", side=96)
    (picture,) = bare(QwenImageEditInpaintPipeline, weights["qwen-edit"])(
        **asked(one, height=96, width=96, num_inference_steps=2, output_type="pil")).images
    assert picture.size == (SIDE, SIDE)
    with pytest.raises(InputError, match="canvases_px=96: .* works at 64 only"):
        QwenEditSettings(canvases_px=(96,))


def test_qwen_drops_its_guidance_unsaid_without_a_negative_prompt(weights, painters, calls):
    bare(QwenImageEditInpaintPipeline, weights["qwen-edit"])(
        **asked(painting("qwen-edit"), true_cfg_scale=4.0, num_inference_steps=2))
    assert calls[QwenImageTransformer2DModel] == 2
    painters["qwen-edit"].paint([painting("qwen-edit", guidance=1.0)])
    assert calls[QwenImageTransformer2DModel] == 4


def test_qwen_reads_a_prompt_with_its_picture_and_rounds_it_as_if_alone(painters):
    painter, one, long = painters["qwen-edit"], painting("qwen-edit"), painting("qwen-edit", 9)
    elsewhere = dataclasses.replace(one, start=long.start)
    with torch.inference_mode():
        (alone, beside), other = painter.text_of([one, long])["prompt_embeds"], painter.text_of([elsewhere])
        assert torch.equal(alone, painter.text_of([one])["prompt_embeds"][0])
        bundled, _ = painter.pipeline.encode_prompt([one.prompt, long.prompt],
                                                    image=[pil(one.start), pil(long.start)])
    assert alone.shape == beside.shape
    assert (alone - other["prompt_embeds"][0]).abs().max() > 0.1
    n_words = bundled.shape[1] - 20
    assert not torch.equal(bundled[0, :n_words], alone[:n_words])       # so it would be, left to the pipeline


def test_qwen_does_not_see_the_padding_of_a_prompt(painters, settings_of):
    one = painting("qwen-edit")
    more = QwenEditPainter(settings_of("qwen-edit", text_tokens=222))
    assert farthest(painters["qwen-edit"].paint([one])[0], more.paint([one])[0]) <= 1
    with torch.inference_mode():
        text = painters["qwen-edit"].text_of([one] * 2)
        unmasked = painters["qwen-edit"].call(
            more.pipeline, [one] * 2, text | {"prompt_embeds_mask": torch.ones_like(text["prompt_embeds_mask"])},
            [torch.Generator().manual_seed(0) for _ in range(2)])
    assert farthest(np.asarray(unmasked[0]), painters["qwen-edit"].paint([one])[0]) > 3


@every_kind
def test_a_prompt_that_would_be_cut_is_said(name, settings_of):
    painter = KINDS[name].painter(settings_of(name, text_tokens=10))
    with pytest.raises(InputError, match="text_tokens=10: .* more are needed for the prompt '"):
        painter.paint([painting(name)])


def test_qwen_needs_its_text_encoder_whatever_is_cached(settings_of, weights, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(weights["qwen-edit"], bare, ignore=shutil.ignore_patterns("text_encoder"))
    painter = QwenEditPainter(settings_of("qwen-edit", base=str(bare), prompt_cache=tmp_path / "prompts"))
    with pytest.raises(InputError, match="text_encoder: its folder is missing"):
        painter.check()


def test_qwens_schedule_would_be_stretched_back(small_qwen):
    scheduler = FlowMatchEulerDiscreteScheduler(**QWEN_SCHEDULER)
    shift = shift_of(scheduler.config, 256)
    unaware = sigmas_from(0.72, 4, scheduler.config | {"shift_terminal": None}, shift)
    scheduler.set_timesteps(sigmas=unaware, mu=np.log(shift))
    assert float(scheduler.sigmas[0]) < 0.7
    scheduler.set_timesteps(sigmas=sigmas_from(0.72, 4, scheduler.config, shift), mu=np.log(shift))
    assert float(scheduler.sigmas[0]) == pytest.approx(0.72, abs=1e-6)
    assert float(scheduler.sigmas[-2]) == pytest.approx(0.02, abs=1e-6)
    with pytest.raises(InputError, match="ends at 0.02"):
        sigmas_from(0.01, 4, scheduler.config, shift)
    with pytest.raises(InputError, match="expected 2 or more"):
        QwenEditSettings(canvases_px=(SIDE,), steps=1)


def test_klein_repaints_half_tokens_by_half_so_holes_are_of_whole_ones(editors, monkeypatch):
    masks = []
    prepare = Flux2KleinInpaintPipeline.prepare_mask_latents
    monkeypatch.setattr(Flux2KleinInpaintPipeline, "prepare_mask_latents", lambda self, *args, **kwargs: (
        masks.append(prepare(self, *args, **kwargs)), masks[-1])[1])
    request = request_of(slot_key(Box(63, 51, 104, 84)), 128)
    begun = editors["flux2-klein"].prepare(request)
    assert any(edge % TOKEN_PX for edge in hole_of(request).as_list())
    assert not any(edge % TOKEN_PX for edge in begun.hole.as_list())
    assert begun.hole.contains(hole_of(request))
    editors["flux2-klein"].painter.paint([begun, dataclasses.replace(begun, hole=hole_of(request))])
    whole, half = masks
    assert set(whole.unique().tolist()) == {0.0, 1.0}
    assert 0.5 in half.unique()


def test_klein_before_distillation_is_guided_without_its_text_encoder(tmp_path, settings_of, calls):
    painter = KleinPainter(settings_of("flux2-klein", base=str(tiny_klein(tmp_path / "base", distilled=False))))
    guided, other, unguided = (painter.paint([painting("flux2-klein", guidance=scale)])[0] for scale in (4.0, 2.0, 1.0))
    assert calls[Flux2Transformer2DModel] == 4 + 4 + 2
    assert painter.pipeline.text_encoder is None
    assert farthest(guided, unguided) > 3 and farthest(guided, other) > 3


def test_a_distilled_klein_is_not_guided(painters, calls):
    plain, guided = (painters["flux2-klein"].paint([painting("flux2-klein", guidance=scale)])[0] for scale in (1, 4))
    assert np.array_equal(plain, guided) and calls[Flux2Transformer2DModel] == 4


@pytest.mark.slow
def test_qwen_edits_a_canvas_of_its_own_size(weights, small_qwen, monkeypatch):
    monkeypatch.setattr(qwen_pipeline, "calculate_dimensions", small_qwen)
    monkeypatch.setattr(instruct, "QWEN_CANVAS_PX", 1024)
    painter = QwenEditPainter(QwenEditSettings(base=str(weights["qwen-edit"]), device="cpu", batch_size=1))
    (picture,) = painter.paint([painting("qwen-edit", side=1024, hole=Box(256, 256, 512, 400))])
    assert picture.shape == (1024, 1024, 3)


@pytest.mark.slow
def test_klein_keeps_a_canvas_of_more_than_a_megapixel(weights, settings_of):
    one = painting("flux2-klein", side=1040)
    (shrunk,) = bare(Flux2KleinInpaintPipeline, weights["flux2-klein"])(
        **asked(one, image=pil(one.start), mask_image=mask_of(1040, one.hole), output_type="pil")).images
    assert shrunk.size < (1040, 1040)
    painter = KleinPainter(settings_of("flux2-klein", canvases_px=(1040,), batch_size=1))
    assert painter.paint([one])[0].shape == (1040, 1040, 3)


def test_fill_changes_its_surroundings_and_the_others_keep_their_latents(painters, monkeypatch):
    """Of two prompts, the last latents outside the hole: as encoded for all but Fill."""
    rows = {}
    for name, pipeline_class in (("flux-fill", FluxFillPipeline), ("flux-canny-dev", FluxControlInpaintPipeline),
                                 ("flux-kontext", FluxKontextInpaintPipeline)):
        unpack, taken = pipeline_class._unpack_latents, []
        monkeypatch.setattr(pipeline_class, "_unpack_latents", staticmethod(
            lambda latents, *args, _unpack=unpack, _taken=taken: (_taken.append(latents), _unpack(latents, *args))[1]))
        painters[name].paint([painting(name), painting(name, prompt="A photo of a blue boat.")])
        outside = torch.from_numpy(np.asarray(mask_of(4, Box(1, 1, 3, 3))) == 0).flatten()
        rows[name] = (taken[0][0, outside] - taken[0][1, outside]).abs().max()
    assert rows["flux-fill"] > 0.01
    assert rows["flux-canny-dev"] == rows["flux-kontext"] == 0
