"""The Triton kernel of attention mass against a float64 softmax: interpreted on a CPU, compiled on a GPU.

Run as a script with TRITON_INTERPRET=1, this file prints one line of JSON per case; the tests start it that way
because Triton decides when it is imported whether it interprets.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_mass import GENERATED, N_GROUPS, largest_difference, reference, visible_keys

from probes import mass_triton
from probes.mass import group_mass

ROOT = Path(__file__).resolve().parents[1]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# name: dtype, batch rows, heads, key heads, rows, keys, head size, sliding window, splits
CASES = {
    "decode": ("float32", 1, 8, 2, 1, 300, 64, None, 2),
    "decode, one head per key head": ("float32", 2, 2, 2, 1, 150, 64, None, 2),
    "decode, 24 heads on one key head": ("float32", 2, 24, 1, 1, 150, 64, None, 2),
    "fewer keys than splits": ("float32", 2, 2, 1, 1, 40, 64, None, 3),
    "one key": ("float32", 1, 4, 2, 1, 1, 64, None, 2),
    "keys fill the blocks": ("float32", 2, 2, 1, 1, 256, 64, None, 2),
    "rows": ("float32", 2, 4, 2, 5, 150, 64, None, 2),
    "rows in several blocks": ("float32", 2, 3, 1, 25, 130, 64, None, 2),
    "rows are all keys": ("float32", 2, 2, 1, 40, 40, 32, None, 3),
    "window": ("float32", 2, 2, 1, 1, 200, 64, 70, 3),
    "window over rows": ("float32", 2, 3, 1, 25, 200, 64, 70, 3),
    "window of one": ("float32", 2, 2, 1, 5, 90, 64, 1, 2),
    "window larger than the context": ("float32", 2, 2, 1, 5, 90, 64, 500, 2),
    "head size 80": ("float32", 2, 2, 1, 5, 70, 80, None, 2),
    "head size 96": ("float16", 2, 2, 1, 5, 70, 96, None, 2),
    "head size 128": ("float16", 2, 2, 1, 5, 130, 128, None, 2),
    "head size 192": ("bfloat16", 2, 2, 1, 5, 70, 192, None, 2),
    "head size 256": ("bfloat16", 2, 2, 1, 5, 70, 256, None, 2),
    "bfloat16": ("bfloat16", 2, 4, 1, 20, 150, 64, 90, 3),
}


def inputs(case, device="cpu"):
    """Queries and keys as strided views, codes with left padding in batch row 1, scaling, visibility."""
    dtype, n_batch, n_heads, n_kv_heads, n_rows, n_keys, head_size, window, _ = case
    generator = torch.Generator().manual_seed(n_rows + n_keys)
    query = 3.0 * torch.randn(n_batch, n_rows, n_heads, head_size, generator=generator)
    room = torch.full((n_batch, n_kv_heads, n_keys + 9, head_size), torch.nan)      # read past the end: NaN
    room[:, :, :n_keys] = torch.randn(n_batch, n_kv_heads, n_keys, head_size, generator=generator)
    code_room = torch.full((n_batch, n_keys + 9), GENERATED, dtype=torch.uint8)
    code_room[:, :n_keys] = torch.randint(1, N_GROUPS, (n_batch, n_keys), generator=generator, dtype=torch.uint8)
    if n_batch > 1:
        code_room[1, :n_keys // 3] = 0
        room[1, :, :n_keys // 3] = 100.0        # what padding holds must not matter
    query, room = (tensor.to(device, DTYPES[dtype]) for tensor in (query, room))
    codes = code_room[:, :n_keys]
    visible = visible_keys(n_rows, n_keys, codes != 0, window)
    return query.transpose(1, 2), room[:, :, :n_keys], codes.to(device), head_size**-0.5, visible.to(device)


def unwritten_slots(leading, query, n_splits):
    """A buffer (*leading, n_splits, B, H, Q, N_GROUPS) of nan, as the memory that a slot is made of may be."""
    return torch.full((*leading, n_splits, *query.shape[:3], N_GROUPS), torch.nan, device=query.device)


def differences(case, device="cpu"):
    """Largest differences of the kernel from float64 and from `probes.mass`, and what it wrote beside its slot."""
    query, key, codes, scaling, visible = inputs(case, device)
    window, n_splits = case[-2:]
    buffer = unwritten_slots((2, 3), query, n_splits)
    mass_triton.write_partial_mass(query, key, codes, scaling, buffer[1, 1], sliding_window=window)
    found = mass_triton.merge_partials(buffer[1, 1])
    by_torch = group_mass(query, key, codes, N_GROUPS, scaling, codes != 0, sliding_window=window)
    buffer[1, 1] = torch.nan
    return {
        "float64": largest_difference(found, reference(query, key, codes, scaling, visible)),
        "torch": largest_difference(found, by_torch),
        "beside the slot": int((~buffer.isnan()).sum()),
        "padding": found[..., 0].abs().max().item(),
    }


def assert_close(found, name):
    assert found["beside the slot"] == 0 and found["padding"] == 0.0, (name, found)
    assert found["float64"] < 5e-6 and found["torch"] < 5e-6, (name, found)


@pytest.mark.slow
def test_the_interpreted_kernel_equals_a_float64_softmax_in_every_case():
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, __file__], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    found = dict(json.loads(line) for line in run.stdout.splitlines())
    assert list(found) == list(CASES)
    for name, one in found.items():
        assert_close(one, name)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_the_compiled_kernel_equals_a_float64_softmax(name, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert mass_triton.available(torch.zeros(1, device="cuda"))
    assert_close(differences((dtype, *CASES[name][1:]), "cuda"), name)


@pytest.mark.gpu
def test_a_growing_context_compiles_the_kernel_once():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    query, key, codes, scaling, _ = inputs(("bfloat16", 1, 8, 2, 1, 300, 64, None, 4), "cuda")
    buffer = unwritten_slots((60,), query, 4)
    kernel = mass_triton._partial_mass_kernel
    before = sum(len(cache[0]) for cache in kernel.device_caches.values())
    for step in range(60):
        mass_triton.write_partial_mass(query, key[:, :, :240 + step].contiguous(), codes[:, :240 + step], scaling,
                                       buffer[step])
    assert sum(len(cache[0]) for cache in kernel.device_caches.values()) - before <= 1


def test_the_module_imports_without_triton():
    code = ("import sys; sys.modules['triton'] = None\n"
            "import torch; from probes import mass_triton\n"
            "print(mass_triton.available(torch.zeros(1)))")
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_merging_partials_equals_one_softmax_over_all_splits():
    generator = torch.Generator().manual_seed(0)
    scores = 40.0 * torch.randn(4, 50, generator=generator, dtype=torch.float64)        # splits, keys
    codes = torch.randint(1, N_GROUPS, (4, 50), generator=generator)
    slots = torch.zeros(4, 1, 1, 1, N_GROUPS)
    for split in range(4):
        top = scores[split].max()
        slots[split, ..., 0] = top / torch.log(torch.tensor(2.0))
        for code in range(1, N_GROUPS):
            slots[split, ..., code] = torch.exp(scores[split] - top)[codes[split] == code].sum()
    weights = torch.softmax(scores.flatten(), 0)
    expected = torch.stack([weights[codes.flatten() == code].sum() for code in range(N_GROUPS)])
    assert largest_difference(mass_triton.merge_partials(slots)[0, 0, 0], expected) < 1e-5


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case_name, one in CASES.items():
        print(json.dumps([case_name, differences(one)]), flush=True)
