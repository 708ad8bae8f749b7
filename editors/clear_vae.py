"""Weights set by hand that make a small AutoencoderKL see: decoding an encoded picture gives the picture back.

A random autoencoder decodes to noise, so nothing edited through it can be certified.  With these weights the
real class keeps colors and shapes at blocks of 4 x 4 pixels, without training and without a download:

    vae = diffusers.AutoencoderKL(**CLEAR_CONFIG)
    set_clear_weights(vae)
    vae.decode(vae.encode(x).latent_dist.sample()).sample           # about x, in 4 x 4 blocks; x in [-1, 1]

How.  All weights are zero but a few, so every residual branch is the identity.  On the way down two layers
average 2 x 2 pixels; the third keeps, of each 8 x 8 pixels and color, the means around four corners of the 4 x 4
blocks: 12 of the 16 latent channels.  On the way up each block is the mean of its four corners.  The one
normalization and SiLU that stand in the trunk are undone: values come in pairs x and -x, so that their mean is
zero and silu(x) - silu(-x) = x, beside two constants so large that the norm divides by a number known beforehand.

Why corners.  A decoder that repeats pixels and convolves cannot tell the left half of a latent cell from its right
half (it maps constant latents to a constant picture), so four plain block means could not be put back in their
places, whatever the weights; values that neighboring blocks share can.  What is lost is what repeats about every
8 pixels: photos come back as their 4 x 4 block means with a mean absolute error of 2 to 4 (of 255) at 512 pixels, 3
to 7 at 256 and 4 to 9 at 128; enlarged threefold, as crops are for editing, of 1 to 3; sixfold, of less than 1.  Flat
colors come back to 0.1.  In the outer 12 pixels, where zeros are padded, contrast is up to a third off.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

SCALING_FACTOR, SHIFT_FACTOR = 0.3611, 0.1159           # of FLUX.1, as its pipelines apply them
LATENT_CHANNELS = 16
CLEAR_CONFIG = {
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    # 3 colors and their negatives and 2 constants at full size; 12 values at 1/4; 12 and -12 and 2 at 1/8.
    # All differ, so that each block begins with a 1 x 1 convolution.
    "block_out_channels": (8, 10, 12, 26),
    "layers_per_block": 1,
    "latent_channels": LATENT_CHANNELS,
    "norm_num_groups": 1,
    "sample_size": 1024,
    "scaling_factor": SCALING_FACTOR,
    "shift_factor": SHIFT_FACTOR,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
_COLORS = 3
_CORNERS = 4                                            # per latent cell and color
_CONSTANT = 100.0                                       # against values of about 1
_LOG_VARIANCE = -30.0                                   # the least that diffusers lets through: nothing to sample
# Latents of a photo, scaled as the pipelines scale them, spread by about 1, as those of FLUX.1 do.
_GAIN = 4.0
_CENTER = np.array([0.0, 1.0, 0.0])
# Corner k is the mean of blocks k - 1 and k.  The stride-2 window over blocks 2i, 2i + 1, 2i + 2 holds two corners.
_CORNERS_OF_BLOCKS = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
# Block 2i is half of the second corner of the cell to its left, which stands there after repeating, and half of the
# first of its own; block 2i + 1 is half of each of its own, and the second then stands to its left as well.
_BLOCKS_OF_CORNERS = np.array([[0.0, 0.5, 0.0], [0.5, 0.0, 0.0]])
# Undoes, as well as five taps can on photos (least squares), that averaging to corners and back blurs.
_SHARPEN = np.array([3, -11, 24, -11, 3]) / 8


@torch.no_grad()
def set_clear_weights(vae: nn.Module) -> None:
    """Set the weights of an AutoencoderKL built from CLEAR_CONFIG, in place."""
    for weight in vae.parameters():
        weight.zero_()
    _set_encoder(vae.encoder)
    _set_decoder(vae.decoder)


def _set_encoder(encoder: nn.Module) -> None:
    blocks = encoder.down_blocks
    n_values = _COLORS * _CORNERS
    _put(encoder.conv_in, _each(_COLORS, _CENTER))
    mean_of_two = np.array([0.5, 0.5, 0.0])
    for k in (0, 1):
        _put(blocks[k].downsamplers[0].conv, _each(_COLORS, mean_of_two))
        _put(blocks[k + 1].resnets[0].conv_shortcut, _each(_COLORS))
    corners = _outer(_CORNERS_OF_BLOCKS, _CORNERS_OF_BLOCKS)                    # (4, 3, 3)
    _put(blocks[2].downsamplers[0].conv, np.kron(np.eye(_COLORS)[:, :, None, None], corners[:, None]))
    _put_pairs(blocks[3].resnets[0].conv_shortcut, encoder.conv_norm_out, n_values)

    phases = _sharpened_phases()                                                # (2, 2, 3)
    # (4, 4, 3, 3): corner (p, q) of a cell from corner (r, s) of the cells around
    sharpen = np.einsum("pra,qsb->pqrsab", phases, phases).reshape(_CORNERS, _CORNERS, 3, 3)
    sharpen = _GAIN * np.kron(np.eye(_COLORS)[:, :, None, None], sharpen)
    _put(encoder.conv_out, np.concatenate([sharpen, -sharpen], axis=1))
    encoder.conv_out.bias[:LATENT_CHANNELS] = SHIFT_FACTOR
    encoder.conv_out.bias[LATENT_CHANNELS:] = _LOG_VARIANCE


def _set_decoder(decoder: nn.Module) -> None:
    blocks = decoder.up_blocks
    n_values = _COLORS * _CORNERS
    _put(decoder.conv_in, _each(n_values, _CENTER) / _GAIN)
    decoder.conv_in.bias[:n_values] = -SHIFT_FACTOR / _GAIN
    corners = _outer(_BLOCKS_OF_CORNERS, _BLOCKS_OF_CORNERS)                    # (4, 3, 3)
    _put(blocks[0].upsamplers[0].conv, np.kron(np.eye(_COLORS)[:, :, None, None], corners[None]))
    for k in (1, 2):
        _put(blocks[k].resnets[0].conv_shortcut, _each(_COLORS))
        _put(blocks[k].upsamplers[0].conv, _each(_COLORS, _CENTER))
    _put_pairs(blocks[3].resnets[0].conv_shortcut, decoder.conv_norm_out, _COLORS)
    colors = _each(_COLORS, _CENTER)
    _put(decoder.conv_out, np.concatenate([colors, -colors], axis=1))


def _put(conv: nn.Conv2d, kernel: np.ndarray) -> None:
    """Write a kernel (out, in, height, width) over the first channels of a convolution."""
    n_out, n_in = kernel.shape[:2]
    conv.weight[:n_out, :n_in] = torch.from_numpy(kernel).to(conv.weight.dtype)


def _put_pairs(shortcut: nn.Conv2d, norm: nn.GroupNorm, n_values: int) -> None:
    """Let a block put out x, -x and two constants, and the norm behind it return them as they were."""
    _put(shortcut, np.concatenate([_each(n_values), -_each(n_values)]))
    shortcut.bias[-2], shortcut.bias[-1] = _CONSTANT, -_CONSTANT
    norm.weight.fill_(_CONSTANT * (2 / norm.num_channels) ** 0.5)


def _each(n: int, taps: np.ndarray | None = None) -> np.ndarray:
    """(n, n, k, k): every channel from itself, weighted by `taps` along both axes (default: k = 1)."""
    taps = np.ones(1) if taps is None else taps
    return np.eye(n)[:, :, None, None] * np.outer(taps, taps)


def _outer(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(p * q, k, k) of kernels (p, k) along the height and (q, k) along the width."""
    return np.einsum("pa,qb->pqab", rows, columns).reshape(-1, rows.shape[1], columns.shape[1])


def _sharpened_phases() -> np.ndarray:
    """_SHARPEN over the corners of a line, as weights (phase out, phase in, cell - 1, cell or cell + 1).

    Corner n of the line is phase n % 2 of cell n // 2.
    """
    kernel = np.zeros((2, 2, 3))
    for phase in (0, 1):
        for step, weight in zip(range(-2, 3), _SHARPEN):
            cell, source = divmod(phase + step, 2)
            kernel[phase, source, cell + 1] += weight
    return kernel
