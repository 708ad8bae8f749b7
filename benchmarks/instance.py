"""Speed and memory of a whole instance: 191 synthetic sources of 2250 x 1500 px, classical editor.

    python benchmarks/instance.py [--n 191] [--workers 2]

Builds the sources and their annotation (as many slots, of the sizes and with the nouns of the released
V*Bench annotation), runs `rekey generate` as a user would, and prints seconds per item, the peak memory of
all its processes together, and, for scale, what plain Pillow needs to decode each source and save it
as PNG with its default settings, on one core.  For comparison: the pipeline released with the
paper took 5 to 8 s per item with its fake editor, on two shared cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from rekey.geometry import Box
from rekey.records import ImageSlots, Slot
from rekey.slots import write_slots

WIDTH, HEIGHT = 2250, 1500
# The most frequent nouns of the released add slots, by their number of mentions.
NOUNS = ("cat",) * 8 + ("dog",) * 8 + ("kick scooter",) * 5 + ("stroller",) * 5 + ("box", "bucket") * 3 + (
    "bicycle", "bottle", "bag") * 3 + ("flower", "balloon", "cup", "umbrella", "phone") * 2 + (
    "poster", "sign", "bowl", "clock", "flag", "duck", "boat")
OLD = {"red": (190, 40, 40), "blue": (40, 80, 180), "green": (50, 130, 60), "yellow": (220, 190, 50),
       "white": (225, 225, 222), "black": (35, 35, 38), "orange": (220, 120, 40)}
TARGETS = ("handbag", "umbrella", "sedan", "jacket", "helmet", "mailbox", "bus")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=191)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "photos").mkdir()
        with ProcessPoolExecutor(options.workers) as pool:
            images = list(pool.map(make_source, range(options.n), [folder / "photos"] * options.n, chunksize=8))
        write_slots(folder / "slots.jsonl", images)
        floor_s = pillow_floor(folder)
        command = [sys.executable, "-m", "experiments.cli", "generate", "--slots", str(folder / "slots.jsonl"),
                   "--images", str(folder / "photos"), "--seed", "1", "--out", str(folder / "out"),
                   "--workers", str(options.workers)]
        wall_s, peak = measured(command)
        n_items = len((folder / "out" / "items.jsonl").read_text().splitlines())
    print(f"{n_items} of {options.n} images gave an item in {wall_s:.1f} s on {options.workers} processes: "
          f"{wall_s / options.n:.2f} s per image")
    print(f"peak memory of all processes: {peak['pss']:.0f} MB proportional (shared pages counted once), "
          f"{peak['rss']:.0f} MB as a plain sum of resident sizes")
    print(f"Pillow alone (decode, save as PNG): {floor_s:.2f} s per image on one core; "
          f"ratio per core {wall_s * options.workers / options.n / floor_s:.2f}")


def make_source(n: int, folder: Path) -> ImageSlots:
    """A cluttered picture with photo-like texture, and four slots on it."""
    rng = np.random.default_rng(n)
    small = rng.normal(0, 1, (HEIGHT // 75, WIDTH // 75, 3)).astype(np.float32)
    field = np.asarray(Image.fromarray(np.clip(128 + 45 * small, 0, 255).astype(np.uint8)).resize(
        (WIDTH, HEIGHT), Image.BICUBIC)).astype(np.int16)
    field += rng.integers(-6, 7, (HEIGHT, WIDTH, 1), np.int16)
    picture = Image.fromarray(np.clip(field, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for _ in range(120):
        x, y, w, h = rng.integers(0, WIDTH), rng.integers(0, HEIGHT), rng.integers(10, 160), rng.integers(10, 160)
        shade = tuple(int(v) for v in rng.integers(60, 200, 3))
        draw.rectangle((x, y, x + w, y + h), fill=shade)
    slots, boxes = [], []
    n_replace = 1 if n % 191 < 115 else 2
    while len(slots) < 4:
        side = float(np.clip(np.exp(rng.normal(np.log(60), 0.55)), 22, 260))
        aspect = float(np.exp(rng.normal(0.15, 0.35)))
        w, h = int(side * aspect**0.5), int(side / aspect**0.5)
        left, top = int(rng.integers(60, WIDTH - w - 60)), int(rng.integers(60, HEIGHT - h - 60))
        edit = Box(left, top, left + w, top + h)
        if any(edit.grown(60).intersects(other) for other in boxes):
            continue
        boxes.append(edit)
        context = edit.grown(int(0.9 * side)).clipped(WIDTH, HEIGHT)
        slot_id = "ABCD"[len(slots)] + "1"
        if len(slots) < n_replace:
            color = str(rng.choice(list(OLD)))
            noun = TARGETS[(n + len(slots)) % len(TARGETS)]
            inner = (left + w * 0.06, top + h * 0.06, left + w * 0.94, top + h * 0.94)
            draw.ellipse(inner, fill=OLD[color])
            draw.arc(inner, 20, 160, fill=tuple(int(0.6 * v) for v in OLD[color]), width=max(2, h // 12))
            slots.append(Slot(f"synthetic_{n:04d}", slot_id, "replace", context, edit, (f"{color} {noun}",)))
        else:
            nouns = tuple(dict.fromkeys(str(rng.choice(NOUNS)) for _ in range(3)))
            slots.append(Slot(f"synthetic_{n:04d}", slot_id, "add", context, edit, (), nouns))
    picture = picture.filter(ImageFilter.GaussianBlur(0.8))
    picture.save(folder / f"synthetic_{n:04d}.jpg", quality=95)
    category = "direct_attributes" if n % 191 < 115 else "relative_position"
    return ImageSlots(f"synthetic_{n:04d}", tuple(slots), category, (WIDTH, HEIGHT), str(n))


def pillow_floor(folder: Path, n: int = 6) -> float:
    """Seconds to decode one source and save it as PNG, the least that any pipeline does."""
    paths = sorted((folder / "photos").iterdir())[:n]
    started = time.perf_counter()
    for path in paths:
        Image.open(path).convert("RGB").save(folder / "floor.png")
    return (time.perf_counter() - started) / len(paths)


def measured(command: list[str]) -> tuple[float, dict[str, float]]:
    """(wall seconds, peak MB of the command and all its children together)."""
    peak = {"pss": 0.0, "rss": 0.0}
    process = subprocess.Popen(command)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            sums = [memory_mb(pid) for pid in family(process.pid)]
            for kind in peak:
                peak[kind] = max(peak[kind], sum(s[kind] for s in sums))
    watcher = threading.Thread(target=watch)
    started = time.perf_counter()
    watcher.start()
    status = process.wait()
    wall_s = time.perf_counter() - started
    done.set()
    watcher.join()
    if status not in (0, 3):
        sys.exit(f"the command failed with status {status}: {' '.join(command)}")
    return wall_s, peak


def family(pid: int) -> list[int]:
    """The process and everything below it (Linux)."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid] + [p for child in children for p in family(int(child))]


def memory_mb(pid: int) -> dict[str, float]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return {"pss": 0.0, "rss": 0.0}
    sizes = {line.split(":")[0].lower(): int(line.split()[1]) / 1024 for line in lines if line.endswith(" kB")}
    return {"pss": sizes.get("pss", 0.0), "rss": sizes.get("rss", 0.0)}


if __name__ == "__main__":
    main()
