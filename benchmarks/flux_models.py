"""FLUX.1 with random weights, of the real size or tiny, and how much arithmetic an edit is.

    painter = RandomFluxPainter(FluxSettings(), FULL)        # a FluxPainter that needs no files
    arithmetic(FULL, canvas_px=512, text_tokens=128).tf_per_edit(steps=16)

What the weights are does not change how long they take, so speed and memory can be measured without having them; all
other code is the editor's own.  `benchmarks.flux_editing` uses both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    FluxControlNetInpaintPipeline,
    FluxControlNetModel,
    FluxTransformer2DModel,
)
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from editors.embeddings import Encoded
from editors.flux import FluxSettings
from editors.flux_painter import FluxPainter
from editors.models import Located

CELL_PX, TOKEN_PX, LATENT_CHANNELS = 8, 16, 16
N_ENCODED = 3           # pictures that the pipeline encodes for an edit: control, start and, unused, masked start

_FLOW = {"in_channels": 64, "attention_head_dim": 128, "num_attention_heads": 24, "joint_attention_dim": 4096,
         "pooled_projection_dim": 768, "axes_dims_rope": (16, 56, 56), "guidance_embeds": True}
_TINY_FLOW = _FLOW | {"attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32,
                      "pooled_projection_dim": 32, "axes_dims_rope": (4, 6, 6)}
_VAE = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "norm_num_groups": 32,
        "latent_channels": LATENT_CHANNELS, "sample_size": 1024, "use_quant_conv": False, "use_post_quant_conv": False,
        "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
        "scaling_factor": 0.3611, "shift_factor": 0.1159}
_SCHEDULER = {"shift": 3.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15,
              "base_image_seq_len": 256, "max_image_seq_len": 4096}


@dataclass(frozen=True)
class Configs:
    """The models of an editor by their configurations, as diffusers has them."""

    name: str
    transformer: dict[str, Any]
    controlnet: dict[str, Any]
    vae: dict[str, Any]

    @classmethod
    def of_folders(cls, base: Path, controlnet: Path) -> Configs:
        return cls(base.name, FluxTransformer2DModel.load_config(base / "transformer"),
                   FluxControlNetModel.load_config(controlnet), AutoencoderKL.load_config(base / "vae"))

    @property
    def text_width(self) -> int:
        return self.transformer["joint_attention_dim"]

    @property
    def pooled_width(self) -> int:
        return self.transformer["pooled_projection_dim"]


FULL = Configs("the size of FLUX.1-dev with Union-Pro-2.0",
               _FLOW | {"num_layers": 19, "num_single_layers": 38}, _FLOW | {"num_layers": 6, "num_single_layers": 0},
               _VAE)
TINY = Configs("TINY", _TINY_FLOW | {"num_layers": 1, "num_single_layers": 1},
               _TINY_FLOW | {"num_layers": 1, "num_single_layers": 0},
               _VAE | {"block_out_channels": (4, 4, 4, 4), "layers_per_block": 1, "norm_num_groups": 1})


class RandomFluxPainter(FluxPainter):
    """The painter of `flux-canny` with weights and embeddings that mean nothing."""

    def __init__(self, settings: FluxSettings, configs: Configs):
        super().__init__(settings)
        self.configs = configs

    def located(self) -> dict[str, Located]:
        return {"base": Located(Path(), f"random weights, {self.configs.name}", None)}

    def check(self) -> None:
        """Nothing can be missing."""

    def load(self) -> DiffusionPipeline:
        transformer, controlnet, vae = built(self.configs, self.device, self.dtype)
        return FluxControlNetInpaintPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(**_SCHEDULER), transformer=transformer, controlnet=controlnet,
            vae=vae, **dict.fromkeys(self.text_components))

    def encode(self, prompts: Sequence[str]) -> Encoded:
        def drawn(prompt: str, *shape: int) -> torch.Tensor:
            seed = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:6], "big")
            return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.dtype)
        length, width, pooled = self.settings.text_tokens, self.configs.text_width, self.configs.pooled_width
        return {"prompt_embeds": torch.stack([drawn(prompt, length, width) for prompt in prompts]),
                "pooled_prompt_embeds": torch.stack([drawn(prompt, pooled) for prompt in prompts])}


def built(configs: Configs, device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, nn.Module, nn.Module]:
    """(transformer, ControlNet, VAE) on a device, with the random weights that their classes begin with."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)                  # made in float32 they would need twice the memory for a moment
    try:
        with torch.device(device):
            models = (FluxTransformer2DModel.from_config(configs.transformer),
                      FluxControlNetModel.from_config(configs.controlnet), AutoencoderKL.from_config(configs.vae))
    finally:
        torch.set_default_dtype(before)
    return tuple(model.eval() for model in models)


# ---------------------------------------------------------------------------------------------- arithmetic

@dataclass(frozen=True)
class Arithmetic:
    """Floating-point operations in units of 10^12, attention included, for one picture."""

    transformer: float
    controlnet: float
    encode: float
    decode: float

    def tf_per_edit(self, steps: int) -> float:
        return steps * (self.transformer + self.controlnet) + N_ENCODED * self.encode + self.decode


def arithmetic(configs: Configs, canvas_px: int, text_tokens: int) -> Arithmetic:
    """Counted on the shapes alone; takes some seconds and no memory."""
    transformer, controlnet, vae = built(configs, torch.device("meta"), torch.bfloat16)

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta", dtype=torch.bfloat16)
    n_tokens, n_cells = (canvas_px // TOKEN_PX) ** 2, canvas_px // CELL_PX
    latents = empty(1, n_tokens, configs.transformer["in_channels"])
    given = {"hidden_states": latents, "timestep": empty(1), "guidance": empty(1),
             "pooled_projections": empty(1, configs.pooled_width),
             "encoder_hidden_states": empty(1, text_tokens, configs.text_width),
             "txt_ids": empty(text_tokens, 3), "img_ids": empty(n_tokens, 3)}
    modes = {"controlnet_mode": torch.zeros((1, 1), dtype=torch.long, device="meta")} if controlnet.union else {}
    control = latents if controlnet.input_hint_block is None else empty(1, 3, canvas_px, canvas_px)
    return Arithmetic(
        _counted(transformer, **given), _counted(controlnet, controlnet_cond=control, **modes, **given),
        _counted(vae.encode, empty(1, 3, canvas_px, canvas_px)),
        _counted(vae.decode, empty(1, LATENT_CHANNELS, n_cells, n_cells)))


def _counted(work, *arguments, **named) -> float:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        work(*arguments, **named)
    return counter.get_total_flops() / 1e12
