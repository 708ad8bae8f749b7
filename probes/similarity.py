"""How alike two images are: SSIM, LPIPS, and CLIP similarity (VisualSwap, Sec. 3 and Table 1).

    metrics, missing = load_metrics(clip="openai/clip-vit-large-patch14")
    metrics["ssim"].measure(a, b)                           # a, b: uint8 (N, height, width, 3); N numbers
    missing["lpips"]                                        # why it cannot be computed here, and what to do

SSIM is scikit-image's, at the settings of Wang et al. (2004): Gaussian window of 11 px and sigma 1.5, population
covariance, K1 = 0.01, K2 = 0.03, mean over all windows that lie inside the image, at its own resolution; and over red,
green and blue, since on gray values alone a red thing painted blue may count as the same.  LPIPS (Zhang et al. 2018) is
torchmetrics' on AlexNet, at the images' own resolution.  CLIP similarity is the cosine of two image embeddings, behind
the model's own processor, which cuts the sides off an image that is not square.  Weights are read from this machine
alone: nothing here ever asks a network.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from rekey.errors import InputError
from rekey.geometry import Box
from rekey.pairs import changed_box
from rekey.weights import HUB_ID, TRANSFORMERS, check_whole, files_hash, folder_hash, weight_files

if TYPE_CHECKING:
    import torch

METRICS = ("clip", "ssim", "lpips")
TITLES = {"clip": "CLIP", "ssim": "SSIM", "lpips": "LPIPS"}
PAPER_MEANS = {"clip": 0.95, "ssim": 0.86, "lpips": 0.14}       # VS-Bench, Table 1
CLIP = "openai/clip-vit-large-patch14"
SSIM_WINDOW_PX, SSIM_SIGMA = 11, 1.5
MAX_BATCH_PX = 8_000_000         # of images in memory of a net at once
ALEXNET_MIN_PX = 31             # below it, nothing is left before the last pooling
CLIP_CONFIGS, CLIP_WEIGHTS = ("config.json", "preprocessor_config.json"), "model.safetensors"
INSTALL = "pip install -c constraints.txt -e '.[models]'"


class Metric(Protocol):
    """Something that compares images of one size, in pairs."""

    smallest_px: int
    """The shorter side that an image must have."""

    def measure(self, a: np.ndarray, b: np.ndarray) -> list[float]:
        """a, b: uint8 (N, height, width, 3).  Returns N numbers."""

    def describe(self) -> dict[str, str]:
        """What the numbers depend on."""


def load_metrics(clip: str = CLIP, device: str = "auto") -> tuple[dict[str, Metric], dict[str, str]]:
    """The metrics that can be computed here, and for each of the others one line on what is missing.

    clip: a model's folder, or its hub id where that is in the local cache.  device: "auto" is a GPU where there is one.
    """
    found: dict[str, Metric] = {}
    missing: dict[str, str] = {}
    load = {"clip": lambda: ClipSimilarity(clip, device), "ssim": Ssim, "lpips": lambda: Lpips(device)}
    for name in METRICS:
        try:
            found[name] = load[name]()
        except InputError as error:
            missing[name] = " ".join(error.problems)
    return found, missing


class Ssim:
    """Structural similarity, 1 for equal images (Wang et al. 2004)."""

    smallest_px = SSIM_WINDOW_PX

    def measure(self, a: np.ndarray, b: np.ndarray) -> list[float]:
        return [_ssim(one, other) for one, other in zip(a, b, strict=True)]

    def describe(self) -> dict[str, str]:
        return {"ssim": "Wang et al. 2004, mean of red, green and blue"}


def _ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Computed where a window holds a pixel that differs; all others give 1."""
    from skimage.metrics import structural_similarity
    changed = changed_box(a, b)
    if changed is None:
        return 1.0
    reach = SSIM_WINDOW_PX // 2
    height, width = a.shape[:2]
    inside = Box(reach, reach, width - reach, height - reach)           # centers of windows that lie in the image
    centers, cut = changed.grown(reach), changed.grown(2 * reach).clipped(width, height)
    centers = Box(max(centers.left, inside.left), max(centers.top, inside.top),
                  min(centers.right, inside.right), min(centers.bottom, inside.bottom))
    if not centers.area_px2:
        return 1.0
    # At this sigma, skimage's window of 3.5 sigma to each side is the paper's.
    _, found = structural_similarity(a[cut.slices], b[cut.slices], data_range=255, gaussian_weights=True, full=True,
                                     sigma=SSIM_SIGMA, use_sample_covariance=False, channel_axis=-1)
    found = found[centers.moved(-cut.left, -cut.top).slices]            # (rows, columns, 3)
    return 1 + float((found - 1).sum()) / (3 * inside.area_px2)


class Lpips:
    """Learned perceptual distance on AlexNet, 0 for equal images (Zhang et al. 2018).

    Raises InputError where torchmetrics or AlexNet's weights are missing.
    """

    smallest_px = ALEXNET_MIN_PX

    def __init__(self, device: str = "auto"):
        _need_packages("torch", "torchvision", "torchmetrics")
        path = _alexnet_file()
        import torch
        try:
            # The class below reads the file as a pickle, which may run code: only tensors get past this.
            torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:      # pickle, zip and tensor errors of many types
            raise InputError(f"{path}: is no file of weights ({type(error).__name__}); delete it, then run  "
                             f"{_fetch_alexnet(path)}") from None
        from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity
        try:
            with torch.random.fork_rng(devices=[]):       # torchvision fills a net before it loads one
                self._net = LearnedPerceptualImagePatchSimilarity("alex").net
        except RuntimeError as error:   # load_state_dict: names or shapes of another network
            raise InputError(f"{path}: holds the weights of another network ({str(error).splitlines()[0]}); delete it, "
                             f"then run  {_fetch_alexnet(path)}") from None
        self._revision = files_hash([(path.name, path)])
        self._device = _device(device)
        self._net.to(self._device)

    def measure(self, a: np.ndarray, b: np.ndarray) -> list[float]:
        import torch
        with torch.inference_mode():
            return self._net(*(self._input(pixels) for pixels in (a, b))).flatten().tolist()

    def describe(self) -> dict[str, str]:
        return {"lpips": f"torchmetrics, AlexNet {self._revision}"}

    def _input(self, pixels: np.ndarray) -> torch.Tensor:
        """(N, 3, height, width) in [-1, 1]."""
        import torch
        channels_first = torch.from_numpy(np.ascontiguousarray(pixels)).to(self._device).permute(0, 3, 1, 2)
        return channels_first.float() / 127.5 - 1


class ClipSimilarity:
    """Cosine of two CLIP image embeddings, 1 for equal images (Radford et al. 2021).

    Raises InputError where transformers or the model's files are missing.
    """

    smallest_px = 1

    def __init__(self, name: str = CLIP, device: str = "auto"):
        _need_packages("torch", "transformers")
        folder = _clip_folder(name)
        from transformers import CLIPImageProcessor, CLIPModel
        try:
            self._model = CLIPModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
            self._processor = CLIPImageProcessor.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            raise InputError(f"{name}: cannot be loaded as a CLIP model ({' '.join(str(error).split())[:160]}); give "
                             "another with --clip") from None
        self.name, self._revision = name, folder_hash(folder)
        self._device = _device(device)
        self._model.to(self._device)

    def measure(self, a: np.ndarray, b: np.ndarray) -> list[float]:
        import torch
        with torch.inference_mode():
            one, other = (self._embedded(pixels) for pixels in (a, b))
            return torch.nn.functional.cosine_similarity(one, other).tolist()

    def describe(self) -> dict[str, str]:
        return {"clip": f"{self.name} {self._revision}"}

    def _embedded(self, pixels: np.ndarray) -> torch.Tensor:
        """(N, width of the embedding)."""
        inputs = self._processor(list(pixels), return_tensors="pt", input_data_format="channels_last")
        return self._model.get_image_features(inputs["pixel_values"].to(self._device)).pooler_output.float()


# ------------------------------------------------------------------------------- what is here

def _need_packages(*packages: str) -> None:
    lacking = [package for package in packages if importlib.util.find_spec(package) is None]
    if lacking:
        raise InputError(f"{' and '.join(lacking)} not installed; in the repository:  {INSTALL}")


def _alexnet_file() -> Path:
    """Where torchvision keeps AlexNet's weights, which must be there."""
    import torch.hub
    from torchvision.models import AlexNet_Weights
    path = Path(torch.hub.get_dir(), "checkpoints", AlexNet_Weights.DEFAULT.url.rpartition("/")[2])
    if not path.is_file():
        raise InputError(f"no weights of AlexNet, {path}; where there is a network, run  {_fetch_alexnet(path)}")
    return path


def _fetch_alexnet(path: Path) -> str:
    from torchvision.models import AlexNet_Weights
    return shlex.join(("curl", "--create-dirs", "-o", str(path), AlexNet_Weights.DEFAULT.url))


def _clip_folder(name: str) -> Path:
    """The folder of a CLIP model, whose files must be there and whole."""
    is_hub_id = HUB_ID.fullmatch(name) is not None
    # These files alone: repositories of CLIP hold the same weights for other frameworks as well.
    fetch = ("where there is a network, run  " + shlex.join(("hf", "download", name, *CLIP_CONFIGS, CLIP_WEIGHTS))
             if is_hub_id else "give another with --clip")
    folder = Path(name)
    if not folder.is_dir():
        if not is_hub_id:
            raise InputError(f"{name}: no such folder; expected that of a CLIP model, or a hub id; {fetch}")
        from huggingface_hub import try_to_load_from_cache
        config = try_to_load_from_cache(name, CLIP_CONFIGS[0])
        if not isinstance(config, str | os.PathLike):
            raise InputError(f"{name}: {CLIP_CONFIGS[0]} and {CLIP_WEIGHTS} are not in the local cache; {fetch}")
        folder = Path(config).parent
    lacking = [file for file in CLIP_CONFIGS if not (folder / file).is_file()]
    if lacking:
        raise InputError(f"{name}: no {' and no '.join(lacking)} in {folder}; {fetch}")
    try:
        check_whole(weight_files(folder, (TRANSFORMERS,)))
    except InputError as error:
        raise InputError(f"{name}: {'; '.join(error.problems)}; {fetch}") from None
    return folder


def _device(device: str) -> str:
    import torch
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


# ------------------------------------------------------------------------------------ together

def measured(a: Sequence[np.ndarray], b: Sequence[np.ndarray],
             metrics: Mapping[str, Metric]) -> list[dict[str, float | None]]:
    """The value of every metric for every pair of images; None where the images are too small for one.

    a, b: uint8 (height, width, 3) each, of any sizes that agree pair by pair; those of one size are measured together.
    """
    found: list[dict[str, float | None]] = [dict.fromkeys(metrics) for _ in a]
    by_size: dict[tuple[int, ...], list[int]] = {}
    for n, pixels in enumerate(a):
        by_size.setdefault(pixels.shape, []).append(n)
    for (height, width, _), same in by_size.items():
        at_once = max(1, MAX_BATCH_PX // (height * width))
        for numbers in (same[start:start + at_once] for start in range(0, len(same), at_once)):
            one, other = (np.stack([side[n] for n in numbers]) for side in (a, b))
            for name, metric in metrics.items():
                if min(height, width) >= metric.smallest_px:
                    for n, value in zip(numbers, metric.measure(one, other), strict=True):
                        found[n][name] = value
    return found
