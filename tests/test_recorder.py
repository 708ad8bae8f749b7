"""The recorder's CUDA path: the same trace through the Triton kernel as through torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[1]
COMPARE = """
import numpy as np, torch
from probes import mass_triton
from probes.attention import recording_image_attention
from probes.vlm import load_vlm

torch.set_num_threads(1)
rng = np.random.default_rng(0)
vlm = load_vlm("tiny:{family}")
prompts = [vlm.prompt(rng.integers(0, 255, size, np.uint8), text)
           for size, text in (((120, 160, 3), "What color?"), ((60, 200, 3), "Left or right of the kite?"))]
launches = []
write = mass_triton.write_partial_mass
mass_triton.write_partial_mass = lambda *args, **kwargs: (launches.append(1), write(*args, **kwargs))
with recording_image_attention(vlm) as by_kernel:
    vlm.generate(prompts, 4)
mass_triton.available = lambda query: False
with recording_image_attention(vlm) as by_torch:
    vlm.generate(prompts, 4)
assert len(launches) == 4 * len(by_torch.layers), launches
for a, b in zip(by_kernel.sequences(), by_torch.sequences()):
    for name in ("scores", "sink", "template", "question", "generated"):
        assert np.abs(getattr(a, name) - getattr(b, name)).max() < 1e-6, name
    assert 0.05 < a.scores.mean() < 0.95
print("same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_vl", "kimi_k25"])
def test_the_kernel_records_what_torch_records(family):
    """In Triton's interpreter, on a left-padded batch: grouped heads, and Kimi's wider keys."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    ran = subprocess.run([sys.executable, "-c", COMPARE.replace("{family}", family)], cwd=ROOT, env=environment,
                         capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.strip().endswith("same"), ran.stderr[-2000:]
