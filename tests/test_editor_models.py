"""Which weights the diffusion editors can use, where they lie, whether they fit; offline, without loading any."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from editors import models
from editors.models import (
    APACHE,
    CONTROLNETS,
    WEIGHTS,
    Located,
    check_controlnet,
    check_flux_base,
    check_memory,
    check_pipeline,
    known,
    license_of,
    locate,
    n_bytes_of,
)
from rekey.errors import InputError

DEV = "black-forest-labs/FLUX.1-dev"
PINNED, OTHER = known(DEV).revision, "0ef5fff789c832c5c7f4e127f94c8b54bbcced44"
PIPELINE = {"transformer": ["diffusers", "FluxTransformer2DModel"], "vae": ["diffusers", "AutoencoderKL"],
            "text_encoder": ["transformers", "CLIPTextModel"], "text_encoder_2": ["transformers", "T5EncoderModel"],
            "tokenizer": ["transformers", "CLIPTokenizer"], "tokenizer_2": ["transformers", "T5TokenizerFast"],
            "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"], "image_encoder": [None, None]}
COMPONENTS = tuple(name for name in PIPELINE if name != "image_encoder")
FLUX_SHAPE = {"in_channels": 64, "num_attention_heads": 24, "attention_head_dim": 128, "joint_attention_dim": 4096,
              "pooled_projection_dim": 768}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was touched")
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of the hub's client."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(cache: Path, name: str, *commits: str, main: str | None = None) -> Path:
    repository = cache / f"models--{name.replace('/', '--')}"
    for commit in commits:
        (repository / "snapshots" / commit).mkdir(parents=True)
    if main is not None:
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(main)
    return repository


def write(path: Path, **content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def model(folder: Path, stem: str, n_floats: int, **config) -> Path:
    write(folder / "config.json", **config)
    save_file({"weight": np.zeros(n_floats, np.float32)}, folder / f"{stem}.safetensors")
    return folder


@pytest.fixture
def pipeline(tmp_path) -> Path:
    """FLUX.1 as diffusers lays it out, its weights a few numbers."""
    folder = tmp_path / "flux"
    write(folder / "model_index.json", _class_name="FluxPipeline", **PIPELINE)
    model(folder / "transformer", "diffusion_pytorch_model", 500, _class_name="FluxTransformer2DModel", **FLUX_SHAPE)
    model(folder / "vae", "diffusion_pytorch_model", 100, _class_name="AutoencoderKL")
    model(folder / "text_encoder", "model", 200, architectures=["CLIPTextModel"])
    model(folder / "text_encoder_2", "model", 300, architectures=["T5EncoderModel"])
    write(folder / "scheduler" / "scheduler_config.json", shift=3.0)
    for name, files in {"tokenizer": ("vocab.json", "merges.txt"), "tokenizer_2": ("spiece.model",)}.items():
        for file in ("tokenizer_config.json", *files):
            write(folder / name / file)
    return folder


@pytest.fixture
def controlnet(tmp_path) -> Path:
    return model(tmp_path / "net", "diffusion_pytorch_model", 50, _class_name="FluxControlNetModel", num_mode=None,
                 **FLUX_SHAPE)


def change(path: Path, **values) -> None:
    write(path, **{name: value for name, value in (json.loads(path.read_text()) | values).items() if value != "gone"})


def refusal(of, *arguments) -> str:
    with pytest.raises(InputError) as error:
        of(*arguments)
    line = str(error.value)
    assert "\n" not in line
    return line


# The table


def test_every_entry_is_a_hub_id_with_a_full_commit_or_none():
    assert len({one.id.casefold() for one in WEIGHTS}) == len(WEIGHTS)
    for one in WEIGHTS:
        assert models.HUB_ID.fullmatch(one.id) and 10 ** 9 < one.n_bytes < 10 ** 11 and one.note
        assert one.revision is None or re.fullmatch("[0-9a-f]{40}", one.revision)
        assert one.license.url.startswith("https://") and one.license.allows
    revisions = [one.revision for one in WEIGHTS if one.revision]
    assert len(set(revisions)) == len(revisions)


def test_only_apache_forbids_nothing():
    assert {one.license for one in WEIGHTS if one.license.forbids is None} == {APACHE}
    assert {license_of(name) for name in CONTROLNETS} == {"FLUX.1 [dev] Non-Commercial"}
    assert (license_of("black-forest-labs/FLUX.2-klein-4B"), license_of("someone/else")) == ("Apache-2.0", None)
    assert license_of("xlabs-ai/flux-controlnet-canny-diffusers") == "FLUX.1 [dev] Non-Commercial"


# Where


def test_the_pinned_commit_is_taken_whatever_main_is(cache):
    repository = cached(cache, DEV, PINNED, OTHER, main=OTHER)
    assert locate(DEV) == Located(repository / "snapshots" / PINNED, DEV, PINNED)
    for found in (locate(DEV, OTHER), locate(f"{DEV}@{OTHER}"), locate(DEV, "main"), locate(f"{DEV}@main")):
        assert found == Located(repository / "snapshots" / OTHER, DEV, OTHER)


def test_without_a_pinned_commit_main_is_taken_and_recorded(cache):
    cached(cache, "someone/net", PINNED, OTHER, main=OTHER)
    assert locate("someone/net").revision == OTHER


@pytest.mark.parametrize("variable, below", [("HF_HUB_CACHE", ""), ("HF_HOME", "hub")])
def test_the_cache_is_where_the_environment_says(tmp_path, variable, below):
    cached(tmp_path / below, DEV, PINNED)
    code = f"from editors.models import locate; print(locate({DEV!r}).folder)"
    shown = subprocess.run([sys.executable, "-c", code], env={variable: str(tmp_path), "HOME": str(tmp_path)},
                           capture_output=True, text=True, check=True, cwd=Path(models.__file__).parents[1]).stdout
    assert Path(shown.strip()) == tmp_path / below / f"models--{DEV.replace('/', '--')}" / "snapshots" / PINNED


def test_locating_and_checking_needs_no_torch(pipeline, controlnet):
    code = (f"import sys; from pathlib import Path; from editors.models import *\n"
            f"from editors.models import locate, check_pipeline, check_controlnet\n"
            f"base = locate({str(pipeline)!r}); check_pipeline(base.folder, {COMPONENTS!r})\n"
            f"check_controlnet(base.folder, Path({str(controlnet)!r}))\n"
            "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'diffusers', 'transformers', 'numpy',"
            " 'huggingface_hub'}))")
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           cwd=Path(models.__file__).parents[1]).stdout
    assert shown.strip() == "[]"


def test_of_weights_that_are_not_here_the_license_is_said_before_the_download(cache):
    line = refusal(locate, DEV)
    assert line == (
        f"{DEV} (33.7 GB, gated): not in the local cache; its license, FLUX.1 [dev] Non-Commercial, forbids commercial "
        "or production use of the weights, surveillance, and pictures as training data for a competing model; accept "
        f"it at https://huggingface.co/{DEV} , log in with  hf auth login , then run  hf download {DEV} --revision "
        f"{PINNED} --exclude 'flux*.safetensors'  where there is a network, or give a folder")
    assert line.index("forbids") < line.index("hf download")


def test_of_free_weights_what_is_allowed_is_said_and_nothing_is_to_be_accepted(cache):
    line = refusal(locate, "black-forest-labs/FLUX.2-klein-4B")
    assert "(16.0 GB): not in the local cache; its license, Apache-2.0, allows any use" in line
    assert "accept" not in line and "log in" not in line and "changed; run  hf download" in line


def test_weights_that_anybody_gets_but_not_all_may_use_say_where_the_license_is(cache):
    line = refusal(locate, CONTROLNETS[0])
    assert "forbids commercial" in line and f"; read it at {known(DEV).license.url} , then run  hf download" in line


@pytest.mark.parametrize("one", WEIGHTS, ids=[one.id for one in WEIGHTS])
def test_every_entry_says_its_license_and_how_to_get_it(cache, one):
    line = refusal(locate, one.id)
    assert one.license.name in line and f"  hf download {one.id}" in line
    assert ("--revision" in line) == (one.revision is not None) and ("accept it at" in line) == one.gated


def test_a_revision_that_is_not_here_names_the_one_that_is_and_how_to_use_it(cache):
    cached(cache, DEV, OTHER, "f" * 40, main=OTHER)
    line = refusal(locate, DEV)
    assert f"revision {PINNED} is not in the local cache, but {OTHER} is; use that one as {DEV}@{OTHER} , or" in line
    assert "forbids commercial" in line
    assert locate(f"{DEV}@{OTHER}").revision == OTHER


def test_a_branch_that_leads_to_no_snapshot_is_not_here(cache):
    cached(cache, "someone/net", OTHER, main=PINNED)
    assert f"revision main is not in the local cache, but {OTHER} is" in refusal(locate, "someone/net")


def test_an_unknown_id_may_be_used_and_its_license_is_said_to_be_unknown(cache):
    assert refusal(locate, "someone/else", "v2") == (
        "someone/else: no such folder, and not in the local cache; its license is not known here, read "
        "https://huggingface.co/someone/else; run  hf download someone/else --revision v2  where there is a network, "
        "or give a folder")
    cached(cache, "someone/else", OTHER, main=OTHER)
    assert locate("someone/else").id == "someone/else"


@pytest.mark.parametrize("name", ["/nowhere/flux", "./flux", "flux", "a/b/c", ""])
def test_a_folder_that_does_not_exist_is_one_line(cache, name):
    assert refusal(locate, name) == (f"{name or 'no name'}: no such folder; expected a folder in the layout of "
                                     f"diffusers, or a hub id such as {DEV}")


def test_a_file_is_no_folder(cache, controlnet):
    file = controlnet / "diffusion_pytorch_model.safetensors"
    assert refusal(locate, str(file)).startswith(f"{file}: a file; expected a folder")


def test_two_revisions_at_once_are_refused(cache, pipeline):
    assert "give one of them" in refusal(locate, f"{DEV}@{OTHER}", PINNED)
    assert "a folder has no revisions" in refusal(locate, str(pipeline), PINNED)


def test_a_folder_is_known_by_its_name_and_a_hash_of_its_components(pipeline, tmp_path, monkeypatch):
    found = locate(str(pipeline))
    assert (found.folder, found.id) == (pipeline, "flux") and re.fullmatch("[0-9a-f]{16}", found.revision)
    moved = shutil.copytree(pipeline, tmp_path / "elsewhere" / "flux")
    (moved / "flux1-dev.safetensors").write_bytes(b"the same weights in one file")
    (moved / "training.log").write_text("loss 1.0")
    (moved / ".cache").mkdir()
    (moved / ".cache" / "download.json").write_text("{}")
    assert locate(str(moved)).revision == found.revision
    change(moved / "vae" / "config.json", scaling_factor=0.3611)
    assert locate(str(moved)).revision != found.revision
    monkeypatch.chdir(pipeline)
    assert locate(".") == found


def test_folders_that_swapped_their_files_are_not_the_same(pipeline, tmp_path):
    swapped = shutil.copytree(pipeline, tmp_path / "other" / "flux")
    for name in ("config.json", "model.safetensors"):
        (swapped / "text_encoder" / name).rename(swapped / "kept")
        (swapped / "text_encoder_2" / name).rename(swapped / "text_encoder" / name)
        (swapped / "kept").rename(swapped / "text_encoder_2" / name)
    assert locate(str(swapped)).revision != locate(str(pipeline)).revision


def test_a_snapshot_given_as_a_folder_keeps_its_id_and_commit(cache):
    folder = cached(cache, DEV, PINNED) / "snapshots" / PINNED
    assert locate(str(folder)) == locate(DEV)


# What is there


def test_a_whole_pipeline_passes(pipeline):
    check_pipeline(pipeline, COMPONENTS, made_for=("FluxPipeline",))


def test_the_bytes_of_components_are_those_of_their_weight_files(pipeline, controlnet):
    sizes = {path.parent.name: path.stat().st_size for path in pipeline.glob("*/*.safetensors")}
    assert n_bytes_of(pipeline, COMPONENTS) == sum(sizes.values())
    assert n_bytes_of(pipeline, ("scheduler", "vae", "tokenizer")) == sizes["vae"] > 400
    assert n_bytes_of(controlnet) == (controlnet / "diffusion_pytorch_model.safetensors").stat().st_size


def lose_part(folder):
    (folder / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    write(folder / "transformer" / "diffusion_pytorch_model.safetensors.index.json",
          weight_map={"a": "a.safetensors", "b": "b.safetensors"})
    (folder / "transformer" / "b.safetensors").touch()


def cut_short(folder):
    path = folder / "text_encoder_2" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-600])


FAULTS = {
    "transformer: 1 of 2 weight files are missing (a.safetensors); download them again": lose_part,
    "text_encoder_2: model.safetensors is 0.7 of 1.3 kB; download it again": cut_short,
    "vae: its folder is missing; download it again": lambda folder: shutil.rmtree(folder / "vae"),
    "vae: no config.json; download it again": lambda folder: (folder / "vae" / "config.json").unlink(),
    "text_encoder: no model.safetensors and no index of parts (found diffusion_pytorch_model.safetensors); expected "
    "safetensors; download the model again, or convert it with save_pretrained": lambda folder: (
        folder / "text_encoder" / "model.safetensors").rename(
        folder / "text_encoder" / "diffusion_pytorch_model.safetensors"),
    "scheduler: its files are missing; expected scheduler_config.json; download it again": lambda folder: (
        folder / "scheduler" / "scheduler_config.json").unlink(),
    "tokenizer: its files are missing; expected tokenizer_config.json + tokenizer.json or tokenizer_config.json + "
    "*.model or tokenizer_config.json + vocab.json + merges.txt; download it again": lambda folder: (
        folder / "tokenizer" / "merges.txt").unlink(),
    "text_encoder_2: model_index.json leaves it out: these weights are of another kind, or were saved without it":
        lambda folder: change(folder / "model_index.json", text_encoder_2=[None, None]),
    "tokenizer_2: model_index.json leaves it out: these weights are of another kind, or were saved without it":
        lambda folder: change(folder / "model_index.json", tokenizer_2="gone"),
}


@pytest.mark.parametrize("line, spoil", FAULTS.items(), ids=[line.split(";")[0] for line in FAULTS])
def test_what_is_wrong_with_a_component_is_one_line_that_names_it(pipeline, line, spoil):
    spoil(pipeline)
    assert refusal(check_pipeline, pipeline, COMPONENTS) == f"{pipeline}: {line}"


def test_all_faults_are_listed_and_components_that_are_not_needed_do_not_count(pipeline):
    lose_part(pipeline)
    cut_short(pipeline)
    with pytest.raises(InputError) as error:
        check_pipeline(pipeline, COMPONENTS)
    assert [line.split(": ")[1] for line in error.value.problems] == ["transformer", "text_encoder_2"]
    check_pipeline(pipeline, ("vae", "text_encoder"))


def test_what_is_no_pipeline_is_said_to_be_what_it_is(tmp_path, controlnet):
    assert "no model_index.json: it holds one model, FluxControlNetModel; expected a pipeline" in refusal(
        check_pipeline, controlnet, COMPONENTS)
    assert "it holds no model; expected" in refusal(check_pipeline, tmp_path, COMPONENTS)
    (tmp_path / "flux1-dev.safetensors").touch()
    assert "it holds flux1-dev.safetensors, a checkpoint in one file" in refusal(check_pipeline, tmp_path, COMPONENTS)


def test_a_pipeline_of_another_kind_and_a_broken_index_are_one_line(pipeline):
    assert refusal(check_pipeline, pipeline, ("vae",), ("Flux2KleinPipeline",)) == (
        f"{pipeline}: weights for FluxPipeline; expected weights for Flux2KleinPipeline")
    (pipeline / "model_index.json").write_text("[")
    assert refusal(check_pipeline, pipeline, ("vae",)) == (
        f"{pipeline / 'model_index.json'}: not a JSON object; download it again")


# What fits


def test_a_controlnet_for_the_base_passes(pipeline, controlnet):
    check_controlnet(pipeline, controlnet)
    change(controlnet / "config.json", **dict.fromkeys(FLUX_SHAPE, "gone"))         # older files leave out defaults
    check_controlnet(pipeline, controlnet)


BASES = {
    "its transformer has 128 input channels: it is FLUX.1 Canny or Depth": {"in_channels": 128},
    "its transformer has 384 input channels: it is FLUX.1 Fill": {"in_channels": 384},
    "its transformer is a Flux2Transformer2DModel: FLUX.2, which the ControlNets of FLUX.1 do not fit":
        {"_class_name": "Flux2Transformer2DModel", "in_channels": 128},
    "its transformer is a QwenImageTransformer2DModel: Qwen-Image": {"_class_name": "QwenImageTransformer2DModel"},
    "its transformer is a SomethingNew: not FLUX.1": {"_class_name": "SomethingNew"},
}


@pytest.mark.parametrize("line, config", BASES.items(), ids=list(BASES))
def test_a_base_that_takes_no_flux_controlnet_is_named(pipeline, controlnet, line, config):
    change(pipeline / "transformer" / "config.json", **config)
    said = refusal(check_controlnet, pipeline, controlnet)
    assert said.startswith(f"{pipeline}: {line}")
    assert said.endswith(f"expected a FLUX.1 that paints from text, such as {DEV}")
    assert refusal(check_flux_base, pipeline) == said


@pytest.mark.parametrize("index", [{"_class_name": "FluxKontextPipeline"},
                                   {"_class_name": "StableDiffusionXLPipeline", "transformer": "gone"}])
def test_a_base_of_another_pipeline_is_named(pipeline, controlnet, index):
    change(pipeline / "model_index.json", **index)
    assert refusal(check_controlnet, pipeline, controlnet).startswith(
        f"{pipeline}: weights for {index['_class_name']}; expected a FLUX.1")


def test_a_base_whose_config_is_missing_is_one_line(pipeline, controlnet):
    (pipeline / "transformer" / "config.json").unlink()
    assert refusal(check_controlnet, pipeline, controlnet) == (
        f"{pipeline / 'transformer' / 'config.json'}: not there; download it again")


NETS = {"ControlNetModel": "a ControlNet for Stable Diffusion 1, 2 or XL",
        "ControlNetUnionModel": "a ControlNet for Stable Diffusion XL",
        "SD3ControlNetModel": "a ControlNet for Stable Diffusion 3",
        "QwenImageControlNetModel": "a ControlNet for Qwen-Image",
        "FluxTransformer2DModel": "a whole transformer, not a ControlNet",
        "AutoencoderKL": "no ControlNet for FLUX.1"}


@pytest.mark.parametrize("kind, line", NETS.items())
def test_a_controlnet_of_another_kind_is_named_with_the_nets_that_fit(pipeline, controlnet, kind, line):
    change(controlnet / "config.json", _class_name=kind)
    assert refusal(check_controlnet, pipeline, controlnet) == (
        f"{controlnet}: {kind}: {line}; nets that fit FLUX.1-dev: {', '.join(CONTROLNETS)}")


def test_a_checkpoint_in_one_file_is_named_with_the_nets_that_fit(pipeline, tmp_path):
    (tmp_path / "xlabs").mkdir()
    (tmp_path / "xlabs" / "flux-canny-controlnet-v3.safetensors").touch()
    line = refusal(check_controlnet, pipeline, tmp_path / "xlabs")
    assert "no config.json: flux-canny-controlnet-v3.safetensors is a checkpoint in one file" in line
    assert "XLabs-AI/flux-controlnet-canny-diffusers" in line
    (tmp_path / "empty").mkdir()
    assert "no config.json: it holds no ControlNet; nets that fit" in refusal(
        check_controlnet, pipeline, tmp_path / "empty")


@pytest.mark.parametrize("config, line", [
    ({"in_channels": 132}, "in_channels 132 (the base has 64)"),
    ({"attention_head_dim": 64}, "attention_head_dim 64 (the base has 128)"),
    ({"num_attention_heads": 2, "joint_attention_dim": 32},
     "num_attention_heads 2 (the base has 24), joint_attention_dim 32 (the base has 4096)"),
    ({"pooled_projection_dim": 1280}, "pooled_projection_dim 1280 (the base has 768)"),
])
def test_a_controlnet_of_another_shape_is_one_line(pipeline, controlnet, config, line):
    change(controlnet / "config.json", **config)
    assert refusal(check_controlnet, pipeline, controlnet).startswith(
        f"{controlnet}: made for another base than {pipeline}: {line}; nets that fit")


def test_heads_that_are_cut_otherwise_do_not_fit_even_where_the_width_is_the_same(pipeline, controlnet):
    change(controlnet / "config.json", num_attention_heads=48, attention_head_dim=64)
    assert "num_attention_heads 48 (the base has 24), attention_head_dim 64" in refusal(
        check_controlnet, pipeline, controlnet)


@pytest.mark.parametrize("path, said", [
    ("scheduler/scheduler_config.json", "scheduler: scheduler_config.json: not JSON; download it again"),
    ("vae/config.json", "vae: config.json: not JSON; download it again"),
])
def test_a_damaged_small_file_is_one_line(pipeline, path, said):
    (pipeline / path).write_text("{broken")
    part = path.split("/")[0]
    assert refusal(check_pipeline, pipeline, (part,)) == f"{pipeline}: {said}"


@pytest.mark.parametrize("entry", [3, "x", [], ["diffusers"]])
def test_a_damaged_index_is_one_line(pipeline, entry):
    change(pipeline / "model_index.json", vae=entry)
    assert "vae: model_index.json leaves it out" in refusal(check_pipeline, pipeline, ("vae",))


def test_a_link_that_leads_nowhere_is_told_from_a_missing_file(controlnet, pipeline):
    path = controlnet / "diffusion_pytorch_model.safetensors"
    path.unlink()
    path.symlink_to("blobs/gone")
    assert locate(str(controlnet)).folder == controlnet
    assert "links to files that are not there" in refusal(check_controlnet, pipeline, controlnet)


def test_a_controlnet_cut_short_is_one_line(pipeline, controlnet):
    path = controlnet / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert refusal(check_controlnet, pipeline, controlnet).startswith(
        f"{controlnet}: diffusion_pytorch_model.safetensors is ")


def test_what_fits_in_memory_passes_to_the_byte():
    check_memory(24, 24, 25, "FLUX.1-dev")
    with pytest.raises(InputError):
        check_memory(25, 24, 25, "FLUX.1-dev")


def test_a_gpu_that_is_too_small_and_one_that_is_taken_are_told_apart():
    line = refusal(check_memory, 32_400_000_000, 23_000_000_000, 25_300_000_000, DEV)
    assert line.startswith(f"{DEV}: needs 32.4 GB of GPU memory, and this GPU has 25.3 GB in all; use a GPU with more")
    assert "nvidia-smi" not in line and "flux2-klein (16.0 GB)" in line
    line = refusal(check_memory, 32_400_000_000, 12_000_000_000, 150_000_000_000, DEV, ("wait",))
    assert line == (f"{DEV}: needs 32.4 GB of GPU memory, and 12.0 GB of 150.0 GB are free; end what holds the rest "
                    "(nvidia-smi lists it), or wait")
