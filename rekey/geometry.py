"""Boxes in pixels of the original image: (left, top, right, bottom), right and bottom exclusive."""

from __future__ import annotations

from dataclasses import dataclass

MAX_MASK_MARGIN_PX = 12       # a compositing mask reaches this far beyond its edit box at most


@dataclass(frozen=True, order=True)
class Box:
    """An axis-aligned rectangle in whole pixels; `right` and `bottom` are exclusive."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def area_px2(self) -> int:
        return max(0, self.width) * max(0, self.height)

    @property
    def center(self) -> tuple[float, float]:
        """(x, y) in pixels."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def grown(self, margin_px: int) -> Box:
        return Box(self.left - margin_px, self.top - margin_px,
                   self.right + margin_px, self.bottom + margin_px)

    def moved(self, dx: int, dy: int) -> Box:
        return Box(self.left + dx, self.top + dy, self.right + dx, self.bottom + dy)

    def scaled(self, factor: float) -> Box:
        """The smallest whole-pixel box that holds this one at `factor` times the size."""
        return Box(int(self.left * factor), int(self.top * factor),
                   -int(-self.right * factor // 1), -int(-self.bottom * factor // 1))

    def clipped(self, width: int, height: int) -> Box:
        return Box(max(0, self.left), max(0, self.top),
                   min(width, self.right), min(height, self.bottom))

    def intersects(self, other: Box) -> bool:
        return (self.left < other.right and other.left < self.right
                and self.top < other.bottom and other.top < self.bottom)

    def contains(self, other: Box) -> bool:
        return (self.left <= other.left and self.top <= other.top
                and self.right >= other.right and self.bottom >= other.bottom)

    def inside(self, width: int, height: int) -> bool:
        return 0 <= self.left < self.right <= width and 0 <= self.top < self.bottom <= height

    @property
    def slices(self) -> tuple[slice, slice]:
        """Index an array of shape (height, width, ...) with it."""
        return slice(self.top, self.bottom), slice(self.left, self.right)

    def as_list(self) -> list[int]:
        return [self.left, self.top, self.right, self.bottom]

    def __str__(self) -> str:
        return f"[{self.left}, {self.top}, {self.right}, {self.bottom}]"
