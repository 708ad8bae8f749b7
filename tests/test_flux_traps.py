"""Traps of FluxControlNetInpaintPipeline (diffusers 0.42): what the bare pipeline does, and that we do not.

Each was met with the real classes at random weights; every test fails where our handling is taken out.
"""

import dataclasses
import threading

import numpy as np
import pytest
import torch
from diffusers import FluxControlNetInpaintPipeline, FluxControlNetModel

from editors.canny import as_rgb
from editors.diffusion import mask_of, pil
from editors.drift import as_bytes
from editors.flux import FluxSettings
from editors.flux_painter import FluxPainter
from editors.painting import Painting, hole_of
from editors.settings import Schedule, with_choices
from editors.tiny_flux import tiny_controlnet, tiny_flux
from rekey.compositing import cut
from rekey.editing import EditRequest, PhotoView
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.records import Slot, VisualKey

SCHEDULE = Schedule(sigma_start=0.72, steps=2, guidance=3.5, control_scale=0.6, control_end=1.0)
HOLE = Box(32, 40, 96, 88)


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    return tiny_flux(tmp_path_factory.mktemp("flux") / "tiny")


def settings_of(flux, **changes):
    usual = {"base": str(flux.base), "controlnet": str(flux.controlnet), "canvases_px": (128, 256), "device": "cpu"}
    return FluxSettings(**usual | changes)


@pytest.fixture(scope="module")
def painter(flux):
    return FluxPainter(settings_of(flux))


DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")])])


@pytest.fixture(scope="module")
def bare(flux):
    """The pipeline as diffusers gives it, text encoders and all."""
    net = FluxControlNetModel.from_pretrained(flux.controlnet)
    pipeline = FluxControlNetInpaintPipeline.from_pretrained(flux.base, controlnet=net, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def painting(seed=0, side=128, hole=HOLE, schedule=SCHEDULE, prompt=None):
    rng = np.random.default_rng(seed)
    return Painting(rng.integers(0, 256, (side, side, 3)).astype(np.uint8), hole,
                    prompt or f"A candid photo of a red cat number {seed}.", seed, schedule,
                    as_rgb((rng.random((side, side)) > 0.9).astype(np.uint8) * np.uint8(255)))


def asked(one, **changes):
    """The bare pipeline's arguments for a painting."""
    side = len(one.start)
    return {"prompt": one.prompt, "image": pil(one.start), "mask_image": mask_of(side, one.hole),
            "control_image": pil(one.control), "height": side, "width": side, "strength": 0.7,
            "num_inference_steps": 3, "guidance_scale": 3.5, "max_sequence_length": 128,
            "generator": torch.Generator().manual_seed(one.seed)} | changes


def shown(output):
    return [np.asarray(image) for image in output.images]


def farthest(a, b):
    """In levels of 255; pictures are bytes or in [0, 1]."""
    a, b = (np.asarray(one, float) * (1 if np.asarray(one).dtype == np.uint8 else 255) for one in (a, b))
    return float(np.abs(a - b).max())


@pytest.fixture
def calls(monkeypatch):
    """What the painter hands to the pipeline."""
    seen = []
    call = FluxControlNetInpaintPipeline.__call__
    monkeypatch.setattr(FluxControlNetInpaintPipeline, "__call__",
                        lambda self, **given: (seen.append(given), call(self, **given))[1])
    return seen


# 1 -----------------------------------------------------------------------------------------------------------------

def test_the_pipeline_changes_pixels_outside_its_mask(painter):
    one = painting()
    picture = as_bytes(painter.paint([one])[0])
    outside = np.ones((128, 128), bool)
    outside[HOLE.slices] = False
    assert (picture[outside] != one.start[outside]).any(-1).mean() > 0.9       # why tests/test_flux.py checks items


# 2, 4, 14, 18, 19 --------------------------------------------------------------------------------------------------

def test_no_argument_is_passed_that_is_broken_or_dead(painter, calls):
    painter.paint([painting()])
    (given,) = calls
    # padding_mask_crop leaves the control picture uncropped and pastes nothing back; masked_image_latents is read by
    # nothing; latents skip the mixing with the picture.
    assert not {"padding_mask_crop", "masked_image_latents", "latents", "num_images_per_prompt"} & set(given)


def test_start_control_and_mask_are_cut_alike(painter, calls):
    one = painting()
    painter.paint([one])
    given = calls[0]
    assert np.array_equal(np.asarray(given["image"][0]), one.start)
    assert np.array_equal(np.asarray(given["control_image"][0]), one.control)
    assert np.argwhere(np.asarray(given["mask_image"][0]) == 255).min(0).tolist() == [HOLE.top, HOLE.left]


# 3 -----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("side", [48, 208])
def test_a_picture_has_the_size_of_its_canvas(flux, side):
    painter = FluxPainter(settings_of(flux, canvases_px=(side,), batch_size=1))
    (picture,) = painter.paint([painting(side=side, hole=Box(16, 16, 32, 32))])
    assert picture.shape == (side, side, 3)                     # not 1024, whatever was given


@pytest.mark.parametrize("canvases", [(200,), (512, 1000), (8,)])
def test_a_canvas_that_would_be_rounded_down_is_refused(flux, canvases):
    with pytest.raises(InputError, match="divisible by 16; the nearest is"):
        settings_of(flux, canvases_px=canvases)


# 5 -----------------------------------------------------------------------------------------------------------------

def test_a_small_box_still_gets_a_hole_of_latent_cells(bare, painter):
    small = painting(hole=Box(65, 65, 72, 72))
    empty = dataclasses.replace(small, hole=Box(0, 0, 0, 0))
    assert farthest(shown(bare(**asked(small)))[0], shown(bare(**asked(empty)))[0]) == 0         # 7 px: no cell is hit

    photo = np.full((256, 256, 3), 120, np.uint8)
    slot = Slot("photo", "A", "add", Box(64, 64, 192, 192), Box(129, 129, 136, 136))
    crop = cut(photo, slot, (128,))
    request = EditRequest(crop.canvas, crop.box, VisualKey(slot, "add", "cat", "red"), 0, 0,
                          PhotoView(photo, crop.window), crop.scale)
    hole = hole_of(request)
    assert hole.contains(crop.box.grown(8)) and all(edge % 8 == 0 for edge in hole.as_list())
    with_hole = painter.paint([painting(hole=hole)])[0]
    assert farthest(with_hole, painter.paint([painting(hole=Box(0, 0, 8, 8))])[0]) > 20


def test_masks_are_black_and_white():
    mask = np.asarray(mask_of(64, HOLE.clipped(64, 64)))
    assert set(np.unique(mask)) == {0, 255}                     # gray is cut at one half: 100 would be nothing


# 6 -----------------------------------------------------------------------------------------------------------------

@DEVICES
def test_an_edit_does_not_depend_on_its_batch(flux, device):
    painter = FluxPainter(settings_of(flux, device=device))
    batch = [painting(seed) for seed in range(4)]
    together = painter.paint(batch)
    alone = [painter.paint([one])[0] for one in batch]
    mixed = painter.paint([batch[2], painting(7), batch[0]])
    for number in range(4):
        assert np.array_equal(together[number], alone[number])          # to the byte: batches have one shape
    assert np.array_equal(mixed[0], together[2]) and np.array_equal(mixed[2], together[0])


def test_another_batch_size_changes_an_edit_by_rounding_only(flux, painter):
    single = FluxPainter(settings_of(flux, batch_size=1))
    batch = [painting(seed) for seed in range(4)]
    for one, picture in zip(batch, painter.paint(batch), strict=True):
        assert farthest(single.paint([one])[0], picture) <= 1


def test_one_generator_for_a_batch_would_make_an_edit_depend_on_it(bare):
    batch = [painting(seed, prompt="A red cat.") for seed in range(2)]
    both = asked(batch[0], image=[pil(one.start) for one in batch], control_image=[pil(one.control) for one in batch],
                 mask_image=[mask_of(128, HOLE)] * 2, prompt=[one.prompt for one in batch])
    assert farthest(shown(bare(**both))[1], shown(bare(**asked(batch[1])))[0]) > 50


@DEVICES
def test_an_edit_repeats_to_the_byte_and_another_seed_is_another_picture(flux, device):
    painter = FluxPainter(settings_of(flux, device=device))
    one = painting(3)
    first = painter.paint([one])[0]
    assert np.array_equal(first, painter.paint([one])[0])
    other = painter.paint([dataclasses.replace(one, seed=4)])[0]
    assert farthest(first, other) > 20


# 7 -----------------------------------------------------------------------------------------------------------------

def test_union_nets_are_told_their_mode_once_per_picture(flux, tmp_path):
    union = tiny_controlnet(tmp_path / "union", "union")
    painter = FluxPainter(settings_of(flux, controlnet=str(union)))
    assert len({picture.tobytes() for picture in painter.paint([painting(seed) for seed in range(3)])}) == 3
    net = FluxControlNetModel.from_pretrained(union)
    bare = FluxControlNetInpaintPipeline.from_pretrained(flux.base, controlnet=net, local_files_only=True)
    bare.set_progress_bar_config(disable=True)
    two = asked(painting(), prompt=["a", "b"], generator=[torch.Generator().manual_seed(n) for n in range(2)],
                image=[pil(painting().start)] * 2, mask_image=[mask_of(128, HOLE)] * 2,
                control_image=[pil(painting().control)] * 2)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        bare(**two, control_mode=0)
    bare(**two, control_mode=[0, 0])


# 8 -----------------------------------------------------------------------------------------------------------------

def test_several_nets_at_once_are_not_offered(flux):
    # Their modes, scales and depths are mixed up by the pipeline.
    with pytest.raises(InputError, match="no such folder"):
        FluxPainter(settings_of(flux, controlnet=f"{flux.controlnet},{flux.controlnet}")).check()


# 9 -----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("sigma", [0.3, 0.72, 1.0])
def test_denoising_begins_at_the_sigma_that_was_asked_for_on_every_canvas(flux, bare, sigma):
    schedule = dataclasses.replace(SCHEDULE, sigma_start=sigma, steps=3)
    painter = FluxPainter(settings_of(flux))
    for side in (128, 256):
        painter.paint([painting(side=side, schedule=schedule)])
        sigmas = painter.pipeline.scheduler.sigmas
        assert float(sigmas[0]) == pytest.approx(sigma, abs=1e-5)
        assert len(sigmas) == 4 and float(sigmas[-1]) == 0 and (sigmas.diff() < 0).all()
        assert painter.pipeline._num_timesteps == 3


def test_a_strength_begins_elsewhere_on_every_canvas(bare):
    begun = []
    for side in (128, 256):
        bare(**asked(painting(side=side), strength=0.6, num_inference_steps=10))
        begun.append(float(bare.scheduler.sigmas[4]))
    assert begun[1] - begun[0] > 0.005


def test_without_a_dynamic_shift_the_sigma_is_right_as_well(tmp_path):
    schnell = tiny_flux(tmp_path / "schnell", guidance=False)
    painter = FluxPainter(settings_of(schnell))
    painter.paint([painting()])
    assert float(painter.pipeline.scheduler.sigmas[0]) == pytest.approx(0.72, abs=1e-5)


# 10 ----------------------------------------------------------------------------------------------------------------

def test_the_control_ends_after_its_share_of_the_steps_that_are_taken(flux, monkeypatch):
    scales = []
    forward = FluxControlNetModel.forward
    monkeypatch.setattr(FluxControlNetModel, "forward", lambda self, *args, **kwargs: (
        scales.append(kwargs["conditioning_scale"]), forward(self, *args, **kwargs))[1])
    painter = FluxPainter(settings_of(flux))
    painter.paint([painting(schedule=dataclasses.replace(SCHEDULE, steps=4, control_end=0.5, sigma_start=0.5))])
    assert scales == [0.6, 0.6, 0.0, 0.0]                       # it still runs: no time is saved


# 11 ----------------------------------------------------------------------------------------------------------------

def test_control_pictures_are_scaled_like_pictures(bare, painter, calls):
    one = painting()
    as_tensor = torch.from_numpy(one.control).permute(2, 0, 1)[None] / 255
    generous = {"controlnet_conditioning_scale": 1.0}
    assert farthest(shown(bare(**asked(one, control_image=as_tensor, **generous)))[0],
                    shown(bare(**asked(one, **generous)))[0]) > 20
    calls.clear()
    painter.paint([one])
    assert calls[0]["control_image"][0].mode == "RGB"


# 12 ----------------------------------------------------------------------------------------------------------------

@DEVICES
def test_all_parts_have_one_precision(flux, device):
    painter = FluxPainter(settings_of(flux, device=device, dtype="bfloat16" if device == "cpu" else "auto"))
    (picture,) = painter.paint([painting()])
    parts = (painter.pipeline.transformer, painter.pipeline.controlnet, painter.pipeline.vae)
    assert {part.dtype for part in parts} == {torch.bfloat16}
    assert as_bytes(picture).std() > 1


# 13 ----------------------------------------------------------------------------------------------------------------

def test_the_text_encoders_are_let_go_and_the_picture_is_the_same(bare, painter):
    one = painting(5)
    (picture,) = painter.paint([one])
    assert painter.pipeline.text_encoder is None and painter.pipeline.text_encoder_2 is None
    # As the painter asks, but with the prompt itself: batch of 1, so within rounding.
    sigmas = painter.pipeline.scheduler.sigmas
    with_text = bare(**asked(one, strength=1.0, num_inference_steps=2, controlnet_conditioning_scale=0.6,
                             sigmas=_before_shift(bare, sigmas[:-1])))
    assert farthest(shown(with_text)[0], picture) <= 1


def _before_shift(pipeline, sigmas):
    """The scheduler's own shift undone, by bisection."""
    from diffusers.pipelines.flux.pipeline_flux_controlnet_inpainting import calculate_shift
    config = pipeline.scheduler.config
    mu = calculate_shift(64, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
    found = []
    for wanted in sigmas.tolist():
        low, high = 1e-6, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            shifted = pipeline.scheduler.time_shift(mu, 1.0, torch.tensor(middle, dtype=torch.float64))
            low, high = (middle, high) if shifted < wanted else (low, middle)
        found.append(high)
    return found


# 15 ----------------------------------------------------------------------------------------------------------------

def test_threads_take_turns_at_a_pipeline(painter):
    batch = [painting(seed) for seed in range(6)]
    expected = [painter.paint([one])[0] for one in batch]
    found = {}

    def work(numbers):
        for number in numbers:
            found[number] = painter.paint([batch[number]])[0]
    threads = [threading.Thread(target=work, args=(numbers,)) for numbers in ((0, 1, 2), (3, 4, 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[number], expected[number]) for number in range(6))


# 16 ----------------------------------------------------------------------------------------------------------------

def test_caches_that_add_the_control_twice_are_not_offered(flux, painter):
    for name in ("cache", "first_block_cache", "negative_prompt", "true_cfg_scale", "padding_mask_crop", "strength"):
        with pytest.raises(InputError, match=f"--set {name}=.*no such setting"):
            with_choices(settings_of(flux), {name: "1"})
    painter.paint([painting()])
    assert not painter.pipeline.transformer.is_cache_enabled


# 17 ----------------------------------------------------------------------------------------------------------------

@pytest.mark.slow
@DEVICES
def test_compiled_steps_paint_the_same_and_their_cache_is_kept(device, tmp_path, monkeypatch):
    flux = tiny_flux(tmp_path / "flux", layers=(1, 0))              # one kind of block, for the base and its net
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    usual = settings_of(flux, device=device, dtype="float32", canvases_px=(64,), batch_size=1)
    compiled = FluxPainter(dataclasses.replace(usual, compile=True, compile_cache=tmp_path / "inductor"))
    torch.compiler.reset()
    one = painting(2, side=64, hole=Box(16, 16, 48, 48))
    picture = compiled.paint([one])[0]
    assert farthest(picture, FluxPainter(usual).paint([one])[0]) <= 2
    assert any(path.is_file() for path in (tmp_path / "inductor").rglob("*"))
    assert np.array_equal(compiled.paint([one])[0], picture)


# 20 ----------------------------------------------------------------------------------------------------------------

def test_nets_that_read_the_control_picture_itself_work(flux, tmp_path):
    hint = tiny_controlnet(tmp_path / "hint", "hint")
    painter = FluxPainter(settings_of(flux, controlnet=str(hint)))
    one = painting(schedule=dataclasses.replace(SCHEDULE, control_scale=2.0))
    (picture,) = painter.paint([one])
    blank = dataclasses.replace(one, control=np.zeros_like(one.control))
    assert farthest(picture, painter.paint([blank])[0]) > 5
