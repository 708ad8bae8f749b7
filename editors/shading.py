"""What color a point on a drawn object has: materials, patterns, light.

The key color has to be nameable at 40 pixels under any photo's light (ReKey, Sec. 3.3 asks for a
visible, verifiable color), so light on key-colored surfaces is normalized: the bright quarter of
them shows the albedo itself, and shade is compressed by an exponent chosen per color.

    surface = Surface(xyz, normal, material, ambient, direct)
    finish = Finish((.6, .01, .01), pattern="striped")
    color, is_key = shade(surface, solid, size, finish, Lighting(), view.axes)

Everything is linear light, float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from editors.sdf import KEY_MATERIALS, Material, Vector
from rekey.records import PATTERNS

if TYPE_CHECKING:
    from editors.solids import Solid

Pattern = Literal["plain", "striped", "dotted", "checked"]

LUMINANCE = np.array((0.2126, 0.7152, 0.0722), np.float32)
_STRIPES, _CELLS, _DOTS = 3.5, 4.5, 4.0     # across the object: few and bold, to be seen at 60 pixels
_STRIPE_SHARE, _DOT_RADIUS = 0.42, 0.33     # of a period: the key color keeps the larger part


@dataclass(frozen=True)
class Finish:
    """How the key-colored surfaces look."""

    albedo: Vector
    """Linear light, each in [0, 1]."""
    shade_exponent: float = 1.0
    """Below 1 compresses shade: yellow in full shade would be called brown."""
    pattern: Pattern = "plain"
    """Anything but plain adds white, or black on a light key color."""
    flat_pattern: bool = False
    """The pattern lies in the picture plane, as on a cut-out, and is not bent around the object."""
    plainness: int = 0
    """1: labels, chrome and wood take shades of the key color, too; 2: so do tires and grips.

    Less natural, but leaves little else to name.
    """
    one_tone: bool = False
    """Labels and shades of the key color within the object are left out: where the question is about
    its pattern, a kite's own panels must not be taken for one."""

    @property
    def luminance(self) -> float:
        return float(np.dot(self.albedo, LUMINANCE))


@dataclass(frozen=True)
class Lighting:
    """One sun and an even sky; directions are (right, up, toward the viewer)."""

    sun: Vector = (-0.45, 0.8, 0.42)
    """52 degrees high.  Light directions estimated from single photos disagree with themselves."""
    ground: Vector = (0.25, 0.24, 0.22)
    """Linear color that the ground throws back up."""
    sun_strength: float = 0.75
    sky_strength: float = 0.42


@dataclass(frozen=True)
class Surface:
    """Visible points of a solid."""

    xyz: np.ndarray
    """float32 (3, n)"""
    normal: np.ndarray
    """float32 (3, n), unit length"""
    material: np.ndarray
    """int (n,), values of `Material`"""
    ambient: np.ndarray
    """(n,) in [0, 1]: share of the sky that reaches the point"""
    direct: np.ndarray
    """(n,) in [0, 1]: share of the sun that is not blocked"""


def _replaced(replacements: dict[Material, Material]) -> np.ndarray:
    """Lookup table from material to material."""
    return np.array([replacements.get(material, material) for material in Material])


_PLAINER = (_replaced({Material.DETAIL: Material.KEY_LIGHT, Material.METAL: Material.KEY_DARK,
                       Material.WOOD: Material.KEY_DARK}),
            _replaced({Material.RUBBER: Material.KEY_DARK}))
_ONE_TONE = _replaced(dict.fromkeys((Material.DETAIL, Material.KEY_LIGHT, Material.KEY_DARK), Material.KEY))


def to_linear(srgb: np.ndarray) -> np.ndarray:
    """Linear light, float32, of sRGB values in [0, 1]."""
    srgb = np.asarray(srgb, np.float32)
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4).astype(np.float32)


def to_srgb(linear: np.ndarray) -> np.ndarray:
    """sRGB in [0, 1], float32, of linear light; out-of-range values are clipped."""
    linear = np.clip(linear, 0, 1)
    curved = 1.055 * linear ** (1 / 2.4) - 0.055
    return np.where(linear <= 0.0031308, linear * 12.92, curved).astype(np.float32)


def albedos(finish: Finish) -> np.ndarray:
    """Linear albedo of every `Material` beside this key color: float32 (n_materials, 3)."""
    key, luminance = np.array(finish.albedo, np.float32), finish.luminance
    yellow = key[0] > 0.6 and key[1] > 0.4 and key[2] < 0.2
    table = np.zeros((len(Material), 3), np.float32)
    table[Material.KEY] = key
    # Darkened white or yellow would turn gray or olive, so light colors are darkened less.
    table[Material.KEY_DARK] = key * (0.62 + 0.24 * min(luminance / 0.55, 1))
    table[Material.KEY_LIGHT] = np.minimum(key * 1.15 + 0.04, 0.95) if luminance < 0.6 else key * 0.8
    table[Material.RUBBER] = 0.028 if luminance > 0.045 else 0.12
    table[Material.METAL] = 0.38
    table[Material.DETAIL] = _contrast(finish)
    table[Material.BEAK] = to_linear((0.93, 0.55, 0.10))
    table[Material.WOOD] = to_linear((0.36, 0.22, 0.13))
    # On a black animal black eyes vanish and gray ones look blind.
    table[Material.EYE] = 0.012 if luminance > 0.03 else to_linear((0.42, 0.32, 0.10))
    table[Material.LEAF] = to_linear((0.22, 0.45, 0.16))
    table[Material.GLASS] = (0.05, 0.06, 0.075)
    table[Material.SKIN] = to_linear((0.85, 0.55, 0.55))
    table[Material.HEART] = to_linear((0.45, 0.25, 0.10) if yellow else (0.95, 0.78, 0.15))
    table[Material.NOSE] = 0.012
    return table


def _contrast(finish: Finish) -> float:
    """Gray albedo that stands out from the key color."""
    return 0.72 if finish.luminance < 0.5 else 0.10


def pattern_contrast(pattern: Pattern, xyz: np.ndarray, normal: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Where the pattern shows its second color: bool (n,).

    size: extent (3,) of the key-colored parts, which sets the scale.  Stripes run around the
    object; dots and checks lie on the coordinate plane that each point faces most.
    """
    if pattern == "plain":
        return np.zeros(xyz.shape[1], bool)
    if pattern == "striped":
        axis = 1 if size[1] >= 0.6 * max(size[0], size[2]) else int(np.argmax(size))
        phase = xyz[axis] * (_STRIPES / size[axis])
        return np.mod(phase + 0.25, 1) < _STRIPE_SHARE
    facing = np.abs(normal).argmax(0)
    u = np.where(facing == 0, xyz[2], xyz[0])
    v = np.where(facing == 1, xyz[2], xyz[1])
    if pattern == "checked":
        cell = max(size) / _CELLS
        return (np.floor(u / cell + 0.5) + np.floor(v / cell + 0.5)) % 2 == 1
    if pattern == "dotted":
        spacing = max(size) / _DOTS
        row = np.floor(v / spacing)
        shifted = u / spacing + 0.5 * (row % 2)
        du, dv = shifted - np.floor(shifted) - 0.5, v / spacing - row - 0.5
        return du * du + dv * dv < _DOT_RADIUS ** 2
    raise ValueError(f"pattern {pattern!r} is unknown; expected one of {', '.join(PATTERNS)}")


def _flat_pattern(pattern: Pattern, xyz: np.ndarray, axes) -> np.ndarray:
    """`pattern_contrast` in the picture plane, over the extent of the points."""
    right, up, _ = axes
    flat = np.stack((right @ xyz, up @ xyz, np.zeros_like(xyz[0])))
    facing = np.broadcast_to(np.array([[0], [0], [1]]), flat.shape)
    extent = np.maximum(np.ptp(flat, axis=1), 1e-3)
    if pattern != "striped":            # on long things several rows of dots, not one
        extent[:2] = np.sqrt(extent[0] * extent[1])
    return pattern_contrast(pattern, flat, facing, extent)


def _noise(x: np.ndarray, y: np.ndarray, z: np.ndarray, frequency: float) -> np.ndarray:
    """Smooth noise in about [-1.5, 1.5]: warped sines along turned axes, so that no lattice shows."""
    total = np.zeros_like(x)
    octaves = ((0.8, 0.5, 0.33, 0.6), (-0.43, 0.77, 0.47, 0.5), (0.37, -0.41, 0.83, 0.45))
    for i, (a, b, c, weight) in enumerate(octaves):
        t = (a * x + b * y + c * z) * (frequency * (1 + 0.37 * i))
        s = (b * x - c * y + a * z) * (frequency * (0.83 + 0.29 * i))
        total += weight * np.sin(t + 2.1 * np.sin(s * 0.71 + i) + i)
    return total


def _roughened(normal: np.ndarray, xyz: np.ndarray, amount: float, frequency: float) -> np.ndarray:
    """Normals jittered by noise: fur and cloth."""
    x, y, z = xyz
    jitter = np.stack((_noise(x, y, z, frequency), _noise(y, z, x, 0.9 * frequency),
                       _noise(z, x, y, 1.1 * frequency)))
    rough = normal + amount * jitter
    return rough / (np.sqrt((rough ** 2).sum(0)) + 1e-6)


def shade(surface: Surface, solid: Solid, size: np.ndarray, finish: Finish, lighting: Lighting,
          axes: tuple[np.ndarray, np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(linear color (n, 3), whether each point shows the key color (n,)).

    size: extent of the key-colored parts.  lighting.sun and the axes of the picture (right, up,
    back toward the viewer) are unit vectors in the object's coordinates.
    """
    back = axes[2]
    x, y, z = surface.xyz
    normal, material = surface.normal, surface.material
    for plainer in _PLAINER[:finish.plainness]:
        material = plainer[material]
    if finish.one_tone:
        material = _ONE_TONE[material]
    is_key = np.isin(material, KEY_MATERIALS)
    contrast = is_key.copy()
    if finish.flat_pattern:
        contrast[is_key] = _flat_pattern(finish.pattern, surface.xyz[:, is_key], axes)
    else:
        contrast[is_key] = pattern_contrast(finish.pattern, surface.xyz[:, is_key], normal[:, is_key], size)
    if solid.fur:
        normal = _roughened(normal, np.stack((x, y * 0.55, z)), 0.17 * solid.fur, 52)
    if solid.cloth:
        normal = _roughened(normal, surface.xyz, 0.10 * solid.cloth, 9)

    sun = np.array(lighting.sun, np.float32)
    facing = sun @ normal
    facing = np.maximum(facing, -solid.translucency * facing)     # thin things are lit through, too
    upward = 0.5 + 0.5 * normal[1]
    ground = np.array(lighting.ground, np.float32)
    around = upward[:, None] + ground * (1 - upward)[:, None]
    light = around * (lighting.sky_strength * surface.ambient)[:, None]
    light += (lighting.sun_strength * facing * surface.direct)[:, None]
    light = _normalized(light, is_key, finish.shade_exponent)

    albedo = albedos(finish)[material]
    albedo[contrast] = _contrast(finish)
    albedo *= np.clip(1 + 0.035 * _noise(x, y, z, 6) + 0.02 * _noise(x, y, z, 23), 0.8, 1.2)[:, None]
    if solid.striped_fur and not finish.one_tone:
        bands = np.sin(26 * (0.75 * x + 0.5 * y) + 1.6 * _noise(x, y, z, 5))
        on_coat = material == Material.KEY
        albedo[on_coat] *= (1 - 0.26 * np.clip(2 * bands - 0.7, 0, 1))[on_coat, None]
    if solid.fur:
        mottled = 1 + 0.10 * solid.fur * (_noise(x, y, z, 9) + _noise(x, 0.5 * y, z, 60))
        albedo *= np.clip(mottled, 0.5, 1.4)[:, None]

    halfway = sun + back
    halfway = halfway / np.sqrt((halfway ** 2).sum())
    gloss = np.full(material.shape, solid.gloss, np.float32)
    gloss[np.isin(material, (Material.GLASS, Material.METAL))] = 0.6
    gloss[np.isin(material, (Material.RUBBER, Material.DETAIL))] = 0.08
    highlight = 0.6 * surface.direct * np.clip(halfway @ normal, 0, 1) ** 40
    rim = 0.25 * surface.ambient * upward * (1 - np.clip(back @ normal, 0, 1)) ** 4
    return albedo * light + (gloss * (highlight + rim))[:, None], is_key & ~contrast


def _normalized(light: np.ndarray, is_key: np.ndarray, exponent: float) -> np.ndarray:
    """Light scaled so that the bright quarter of the key-colored points shows its albedo."""
    level = np.maximum(light.mean(1, keepdims=True), 0.02)
    bright = float(np.percentile(level[is_key], 75)) if is_key.sum() > 10 else 0.8
    gain = min(max(0.97 / bright, 0.75), 2.0)
    compressed = light * gain * np.maximum(level * gain, 0.02) ** (exponent - 1)
    return np.where(is_key[:, None], compressed, light * min(gain, 1.3)).astype(np.float32)
