"""SSIM, LPIPS and CLIP against second computations; what is missing is told, and no network is asked."""

import json
import math
import pickle
import socket

import numpy as np
import pytest
import torch

from probes.similarity import ClipSimilarity, Lpips, Ssim, load_metrics, measured
from rekey.errors import InputError
from rekey.scenes import draw_scene, render_scene

RNG = np.random.default_rng(0)
PICTURE = render_scene(draw_scene("similarity"))[100:164, 50:130]
NOISY = np.clip(PICTURE + RNG.normal(0, 20, PICTURE.shape), 0, 255).astype(np.uint8)
OTHER = render_scene(draw_scene("similarity", 2))[100:164, 50:130]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refused(*_, **__):
        raise AssertionError("the network was asked")
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refused)
    monkeypatch.setattr(socket.socket, "connect", refused)


@pytest.fixture(scope="module")
def torch_home(tmp_path_factory):
    """A TORCH_HOME with AlexNet's weights: random ones in its layers, none in its unused classifier."""
    import torchvision
    home = tmp_path_factory.mktemp("torch_home")
    (home / "hub" / "checkpoints").mkdir(parents=True)
    torch.manual_seed(0)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in torchvision.models.alexnet(weights=None).state_dict().items()}
    weights = {name: torch.randn(shape) / math.sqrt(math.prod(shape[1:]) or 1) if name.startswith("features")
               else torch.zeros(1).expand(shape) for name, shape in shapes.items()}
    torch.save(weights, home / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth")
    return home


@pytest.fixture(scope="module")
def lpips(torch_home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_HOME", str(torch_home))
        return Lpips("cpu")


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel
    folder = tmp_path_factory.mktemp("clip")
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = small | {"vocab_size": 32, "bos_token_id": 0, "eos_token_id": 1}
    torch.manual_seed(0)
    CLIPModel(CLIPConfig(text_config=text, vision_config=small | {"image_size": 32, "patch_size": 8},
                         projection_dim=8)).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


# ---------------------------------------------------------------------------------------- SSIM

def ssim_by_hand(a, b):
    """Wang et al. (2004), Eqs. 13 to 17: window by window over all that lie inside."""
    at = np.arange(11) - 5
    line = np.exp(-at ** 2 / (2 * 1.5 ** 2))
    weights = np.outer(line, line) / line.sum() ** 2
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    found = []
    for top in range(a.shape[0] - 10):
        for left in range(a.shape[1] - 10):
            x, y = (image[top:top + 11, left:left + 11] for image in (a, b))
            mx, my = (weights * x).sum(), (weights * y).sum()
            vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
            cov = (weights * (x - mx) * (y - my)).sum()
            found.append((2 * mx * my + c1) * (2 * cov + c2) / ((mx ** 2 + my ** 2 + c1) * (vx + vy + c2)))
    return float(np.mean(found))


def test_ssim_is_that_of_the_paper_channel_by_channel():
    repainted, corner, strip = PICTURE.copy(), PICTURE.copy(), PICTURE.copy()
    repainted[8:14, 9:15] = 255 - repainted[8:14, 9:15]
    corner[0, 0] ^= 255                                     # in one window only
    strip[:, 3] = 0
    for other in (NOISY, OTHER, repainted, corner, strip):
        a, b = PICTURE[:32, :27], other[:32, :27]
        by_channel = [ssim_by_hand(a[..., n].astype(float), b[..., n].astype(float)) for n in range(3)]
        assert Ssim().measure(a[None], b[None])[0] == pytest.approx(np.mean(by_channel), abs=1e-9)
        assert np.mean(by_channel) < 1


def test_a_thing_painted_in_another_color_of_the_same_gray_value_is_not_the_same():
    red, blue = np.zeros((2, 40, 40, 3), np.uint8) + 128
    red[10:30, 10:30], blue[10:30, 10:30] = (201, 23, 39), (7, 93, 183)     # both of luma 78
    assert Ssim().measure(red[None], blue[None])[0] < 0.7
    assert Ssim().measure(red[None], red[None]) == [1]


# --------------------------------------------------------------------------------------- LPIPS

def lpips_by_hand(torch_home, a, b):
    """Zhang et al. (2018), Eq. 1, from the weights: AlexNet's ReLUs, unit length over channels, weighted squares."""
    import inspect
    from pathlib import Path

    import torchmetrics.functional.image.lpips as module
    from torch.nn import functional as f
    net = torch.load(torch_home / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth")
    heads = torch.load(Path(inspect.getfile(module)).parent / "lpips_models" / "alex.pth",
                       map_location="cpu")
    layers = [(0, 4, 2, False), (3, 1, 2, True), (6, 1, 1, True), (8, 1, 1, False), (10, 1, 1, False)]

    def unit_features(image):
        x = torch.tensor(image.transpose(2, 0, 1)[None] / 127.5 - 1, dtype=torch.float64)
        shift, scale = (torch.tensor(v, dtype=torch.float64)[None, :, None, None]
                        for v in ([-.030, -.088, -.188], [.458, .448, .450]))
        x, found = (x - shift) / scale, []
        for number, stride, padding, pooled in layers:
            x = f.max_pool2d(x, 3, 2) if pooled else x
            weight, bias = (net[f"features.{number}.{kind}"].double() for kind in ("weight", "bias"))
            x = torch.relu(f.conv2d(x, weight, bias, stride, padding))
            found.append(x / x.norm(dim=1, keepdim=True).clamp_min(1e-12))
        return found

    return sum(float(f.conv2d((one - two) ** 2, heads[f"lin{n}.model.1.weight"].double()).mean())
               for n, (one, two) in enumerate(zip(unit_features(a), unit_features(b))))


def test_lpips_is_that_of_the_paper(torch_home, lpips):
    found = lpips.measure(np.stack([PICTURE, PICTURE, PICTURE, OTHER]), np.stack([PICTURE, NOISY, OTHER, PICTURE]))
    assert found[0] == 0 and found[2] == pytest.approx(found[3], rel=1e-5)
    assert found[1] == pytest.approx(lpips_by_hand(torch_home, PICTURE, NOISY), rel=1e-3)
    assert found[2] == pytest.approx(lpips_by_hand(torch_home, PICTURE, OTHER), rel=1e-3)


def with_checkpoint(tmp_path, monkeypatch, data):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    path = tmp_path / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)


class Trap:
    def __reduce__(self):
        return pytest.fail, ("code in a pickle was run",)


@pytest.mark.parametrize("data", [b"", b"<html>404</html>", pickle.dumps(Trap())], ids=["empty", "a page", "a trap"])
def test_a_file_that_holds_no_weights_is_named_and_not_run(tmp_path, monkeypatch, data):
    with_checkpoint(tmp_path, monkeypatch, data)
    with pytest.raises(InputError, match="alexnet-owt-7be5be79.pth: is no file of weights .* run  curl"):
        Lpips("cpu")


def test_weights_of_another_network_are_named(tmp_path, monkeypatch):
    path = tmp_path / "other.pth"
    torch.save({"features.0.weight": torch.zeros(3)}, path)
    with_checkpoint(tmp_path, monkeypatch, path.read_bytes())
    with pytest.raises(InputError, match="holds the weights of another network"):
        Lpips("cpu")


# ---------------------------------------------------------------------------------------- CLIP

def test_clip_similarity_is_the_cosine_of_the_models_own_embeddings(clip_folder):
    from transformers import CLIPImageProcessor, CLIPModel
    images = [PICTURE, NOISY, OTHER]
    model = CLIPModel.from_pretrained(clip_folder)
    pixels = CLIPImageProcessor.from_pretrained(clip_folder)(images, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        embedded = model(pixel_values=pixels, input_ids=torch.tensor([[0, 1]])).image_embeds.double().numpy()
    metric = ClipSimilarity(str(clip_folder), "cpu")
    found = metric.measure(np.stack([PICTURE] * 3), np.stack(images))
    lengths = np.linalg.norm(embedded, axis=1)
    assert found == pytest.approx((embedded @ embedded[0] / lengths / lengths[0]).tolist(), abs=1e-5)
    assert found[0] == pytest.approx(1, abs=1e-6) and found[2] < found[0]


def test_a_processor_saved_by_the_first_transformers_is_read(clip_folder, tmp_path):
    """The hub's own CLIP folders give sizes as single numbers, and a class that is no more."""
    for file in clip_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    old = {"crop_size": 32, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3, "size": 32,
           "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": [0.48145466, 0.4578275, 0.40821073],
           "image_std": [0.26862954, 0.26130258, 0.27577711]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(old))
    new, old = (ClipSimilarity(str(folder), "cpu").measure(PICTURE[None], OTHER[None]) for folder in (clip_folder,
                                                                                                  tmp_path))
    assert old == pytest.approx(new)


def test_a_clip_model_that_was_cut_short_is_named(clip_folder, tmp_path):
    for file in clip_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InputError, match="model.safetensors is .* download it again"):
        ClipSimilarity(str(tmp_path), "cpu")
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match="no preprocessor_config.json"):
        ClipSimilarity(str(tmp_path), "cpu")


# ------------------------------------------------------------------------------------ together

def test_metrics_without_weights_are_told_with_the_command_that_fetches_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    metrics, missing = load_metrics("nobody/no-such-clip", "cpu")
    assert list(metrics) == ["ssim"] and list(missing) == ["clip", "lpips"]
    assert "run  hf download nobody/no-such-clip config.json" in missing["clip"]
    path = tmp_path / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth"
    assert f"curl --create-dirs -o {path} https://download.pytorch.org/" in missing["lpips"]
    assert "give another with --clip" in load_metrics(str(tmp_path / "clip"), "cpu")[1]["clip"]
    assert not list(tmp_path.iterdir())


def test_pairs_of_several_sizes_are_measured_together_as_alone(lpips):
    metrics = {"ssim": Ssim(), "lpips": lpips}
    a = [PICTURE, PICTURE[:40, :40], OTHER, PICTURE[:20, :20], PICTURE[:9, :9]]
    b = [NOISY, NOISY[:40, :40], PICTURE, NOISY[:20, :20], NOISY[:9, :9]]
    together = measured(a, b, metrics)
    for n, found in enumerate(together):
        for name, value in measured(a[n:n + 1], b[n:n + 1], metrics)[0].items():
            assert found[name] == pytest.approx(value, abs=1e-6)
    assert [found["lpips"] is None for found in together] == [False, False, False, True, True]
    assert [found["ssim"] is None for found in together] == [False, False, False, False, True]
