"""Settings of the diffusion editors: what a user may choose, checked before any work.

    settings = with_choices(FluxSettings(), {"base": "models/FLUX.1-dev", "steps": "20"})

`rekey generate --editor flux-canny --set base=models/FLUX.1-dev --set steps=20` does the same.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from rekey.errors import InputError

CANVAS_STEP_PX = 16             # a token of the transformer; other sizes would be rounded down without a word
LARGEST_BATCH, LONGEST_TEXT = 256, 512
STRONGEST_GUIDANCE = 100


@dataclass(frozen=True)
class Schedule:
    """How a picture is denoised; what paintings of one batch must share, besides the canvas.

    sigma_start: share of noise in the latents at the first step, 1 for none of the start picture.  Not a `strength`,
    which means another sigma on every canvas.  steps: transformer calls.  control_end: share of the steps after which
    the ControlNet's say ends.
    """

    sigma_start: float
    steps: int
    guidance: float
    control_scale: float = 0.0
    control_end: float = 1.0


@dataclass(frozen=True)
class ModelSettings:
    """What everything that loads a diffusion model shares."""

    base: str = ""
    """Hub id or folder of the model."""
    revision: str | None = None
    """Commit of `base`; none: the pinned one where the toolkit knows it, else what the local cache calls main."""
    batch_size: int = 1
    """Pictures painted at once."""
    text_tokens: int = 128
    """Length that prompts are padded to; padding is seen by the model, so another length is another picture."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """auto: bfloat16 on a GPU, float32 on a CPU.  float16 is not offered: FLUX's decoder overflows in it."""
    compile: bool = False
    """torch.compile: minutes at the start, faster steps after."""
    device: str = "auto"
    """auto: the first GPU, or the CPU where there is none; cuda:1, ..."""
    prompt_cache: Path | None = None
    """Folder that keeps prompt embeddings; where it holds all, the text encoders are not needed."""
    compile_cache: Path | None = None
    """Folder that keeps what torch.compile made."""

    def __post_init__(self) -> None:
        at_least_one(self, "batch_size", "text_tokens")
        in_range(self, LARGEST_BATCH, "batch_size")
        in_range(self, LONGEST_TEXT, "text_tokens")

    def batch_at(self, canvas_px: int) -> int:
        """Pictures painted at once at this height."""
        return self.batch_size

    def describe(self) -> dict[str, Any]:
        """Plain JSON of everything that decides pixels."""
        without = ("device", "dtype", "prompt_cache", "compile_cache", "base", "revision")     # the painter says these
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)
                if field.name not in without}


@dataclass(frozen=True)
class DiffusionSettings(ModelSettings, ABC):
    """What all diffusion editors share."""

    canvases_px: tuple[int, ...] = (512, 1024)
    """Canvas sides; a crop goes to the smallest that holds it."""
    batch_size: int = 4
    """Edits painted at once on the smallest canvas, in proportion fewer on larger ones."""
    max_attempts: int = 4
    """Attempts at an edit, each with another seed, until one is certified."""
    best_of: int = 1
    """Candidates per attempt; the best certificate wins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in self.canvases_px:
            if side <= 0 or side % CANVAS_STEP_PX:
                raise InputError(f"canvases_px={side}: a canvas must be divisible by {CANVAS_STEP_PX}; the nearest is "
                                 f"{max(1, round(side / CANVAS_STEP_PX)) * CANVAS_STEP_PX}")
        if not self.canvases_px or self.canvases_px != tuple(sorted(set(self.canvases_px))):
            raise InputError(f"canvases_px={','.join(map(str, self.canvases_px))}: expected sides in pixels, the "
                             "smallest first, such as 512,1024")
        at_least_one(self, "max_attempts", "best_of")

    def batch_at(self, canvas_px: int) -> int:
        """Edits painted at once on a canvas of this side."""
        return max(1, self.batch_size * min(self.canvases_px) ** 2 // canvas_px ** 2)

    @abstractmethod
    def schedules(self) -> dict[str, Schedule]:
        """How edits are denoised, by the way in which they begin."""

    def describe(self) -> dict[str, Any]:
        of_schedules = {field.name for field in dataclasses.fields(Schedule)}
        said = {name: value for name, value in super().describe().items() if name not in of_schedules}
        return said | {"schedules": {name: dataclasses.asdict(one) for name, one in self.schedules().items()}}


def at_least_one(settings: Any, *names: str) -> None:
    """Raises InputError for a setting below 1."""
    for name in names:
        if getattr(settings, name) < 1:
            raise InputError(f"{name}={getattr(settings, name)}: expected 1 or more")


def in_range(settings: Any, most: float, *names: str) -> None:
    """Raises InputError for a setting that is given and is not above 0, or is above `most`."""
    for name in names:
        if (value := getattr(settings, name)) is not None and not 0 < value <= most:
            raise InputError(f"{name}={value}: expected a number above 0, at most {most}")


Settings = TypeVar("Settings", bound=ModelSettings)


def with_choices(settings: Settings, choices: Mapping[str, str]) -> Settings:
    """The settings with some changed, as a user typed them; InputError names the setting and what it may be."""
    hints = typing.get_type_hints(type(settings))
    unknown = sorted(set(choices) - set(hints))
    if unknown:
        raise InputError(f"--set {unknown[0]}=...: no such setting of this editor; there is {', '.join(hints)}")
    return dataclasses.replace(settings, **{name: _parsed(name, text, hints[name]) for name, text in choices.items()})


def _parsed(name: str, text: str, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal:
        if text not in typing.get_args(kind):
            raise InputError(f"--set {name}={text}: expected {' or '.join(typing.get_args(kind))}")
        return text
    options = typing.get_args(kind) if type(None) in typing.get_args(kind) else ()
    if options:                                     # "int | None"
        if text == "none":
            return None
        kind = next(option for option in options if option is not type(None))
    if typing.get_origin(kind) is tuple:
        return tuple(_parsed(name, part, typing.get_args(kind)[0]) for part in text.split(","))
    if kind is bool:
        if text not in ("true", "false"):
            raise InputError(f"--set {name}={text}: expected true or false")
        return text == "true"
    try:
        value = kind(text)
        if kind is float and not math.isfinite(value):
            raise ValueError
        return value
    except ValueError:
        raise InputError(f"--set {name}={text}: expected {_NAMES[kind]}") from None


_NAMES = {int: "a whole number", float: "a number", str: "text", Path: "a path"}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
