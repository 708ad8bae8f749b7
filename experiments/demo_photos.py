"""The demo's photographs: where they lie inside the packages we depend on, and whose they are.

    photos = demo_photos()                   # {"astronaut": Path(".../skimage/data/astronaut.png"), ...}
    slots = read_slots(demo_slots_file())    # the human-marked slots on them (ReKey, Sec. 3.1)

No picture of others is part of this repository.  The photographs ship inside the wheels of
scikit-image, matplotlib and (with the `demo` extra) scikit-learn, and are read from there.  Who
made them and under which terms is said in docs/demo.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class PackagedPhoto:
    """One photograph inside an installed package."""

    image_id: str
    package: str
    """Import name of the package: "skimage"."""
    file: str
    """Path inside the package, with forward slashes."""


PACKAGED_PHOTOS = (
    PackagedPhoto("astronaut", "skimage", "data/astronaut.png"),
    PackagedPhoto("coffee", "skimage", "data/coffee.png"),
    PackagedPhoto("motorcycle_left", "skimage", "data/motorcycle_left.png"),
    PackagedPhoto("rocket", "skimage", "data/rocket.jpg"),
    PackagedPhoto("grace_hopper", "matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
    PackagedPhoto("china", "sklearn", "datasets/images/china.jpg"),
    PackagedPhoto("flower", "sklearn", "datasets/images/flower.jpg"),
)


def demo_photos() -> dict[str, Path]:
    """The photographs that are here, by image id; those whose package or file is absent are left out."""
    found = {}
    for photo in PACKAGED_PHOTOS:
        for folder in _package_folders(photo.package):
            path = folder / photo.file
            if path.is_file():
                found[photo.image_id] = path
                break
    return found


def demo_slots_file() -> Path:
    """The annotation file of the demo's slots, in the released format."""
    return Path(__file__).with_name("demo_slots.jsonl")


def _package_folders(package: str) -> list[Path]:
    # find_spec of a top-level name looks the package up without importing it, which for
    # scikit-learn alone would cost a second.
    spec = find_spec(package)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []
