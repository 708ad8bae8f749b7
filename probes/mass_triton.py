"""The attention mass on groups of keys in one CUDA launch per layer (VisualSwap, Sec. 5.3; see `probes.mass`).

One Triton kernel reads the keys once, straight from the cache, and sums the softmax by group on the way, in
float32, for one query row or for many.  The keys are split over programs, so that few rows still fill the GPU;
each writes partial sums into its part of a slot.  Nothing waits for the device: `probes.recorder` allocates a slot
per launch, lets up to 32 decoding steps of a layer share the launch, and merges the partials only when the
trace is read or moved to the CPU:

    slot = torch.empty(n_splits_for(query, key), *query.shape[:3], n_groups, device=query.device)
    write_partial_mass(query, key, codes, scaling, slot)                    # one launch
    mass = merge_partials(slot)                                             # (B, H, Q, n_groups)

The module imports without Triton and without a GPU; `available(query)` says whether the kernel can run.
With TRITON_INTERPRET=1 set before Triton is imported it also runs on CPU tensors, which is how it is tested.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:                     # CPU builds of torch come without it
    triton = None

LOG2_E = 1.4426950408889634
# Running maximum of a program that has seen no key yet: finite, so that no difference of maxima is NaN.
NOTHING_SEEN = -1e30


def available(query: Tensor) -> bool:
    """Whether the kernel can take this tensor: Triton is installed, and the tensor is on CUDA (or interpreted)."""
    return triton is not None and (query.is_cuda or _interpreted())


def _interpreted() -> bool:
    return not isinstance(_partial_mass_kernel, triton.JITFunction)


if triton is not None:

    # What changes from step to step must not be compiled in: lengths, and where a slot or a view starts.
    @triton.jit(do_not_specialize=["n_rows", "n_keys", "window", "keys_per_split"],
                do_not_specialize_on_alignment=["codes", "partials"])
    def _partial_mass_kernel(
            query, key, codes, partials,
            query_stride_b, query_stride_h, query_stride_q, query_stride_d,
            key_stride_b, key_stride_g, key_stride_t, key_stride_d,
            codes_stride_b, codes_stride_t,
            partials_stride_s, partials_stride_b, partials_stride_h, partials_stride_q,
            n_rows, n_keys, window, keys_per_split, log2_scaling,
            N_KV_HEADS: tl.constexpr, N_REPEATS: tl.constexpr, N_GROUPS: tl.constexpr, HEAD_SIZE: tl.constexpr,
            BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_GROUPS: tl.constexpr,
            HAS_WINDOW: tl.constexpr, WIDEN: tl.constexpr, NOTHING_SEEN: tl.constexpr):
        """One program: one key head of one batch row, BLOCK_ROWS query rows, one split of the keys.

        Row r of a program is query position r // N_REPEATS under query head r % N_REPEATS of the key head, so the
        heads that share keys share the loads and a block of rows spans few positions.
        """
        batch = (tl.program_id(0) // N_KV_HEADS).to(tl.int64)
        kv_head = (tl.program_id(0) % N_KV_HEADS).to(tl.int64)
        split = tl.program_id(2)

        row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        is_row = row < n_rows * N_REPEATS
        query_row = row // N_REPEATS
        head = kv_head * N_REPEATS + row % N_REPEATS
        position = n_keys - n_rows + query_row
        d = tl.arange(0, BLOCK_D)
        group = tl.arange(0, BLOCK_GROUPS)

        query_rows = tl.load(
            query + batch * query_stride_b + head[:, None] * query_stride_h
            + query_row[:, None].to(tl.int64) * query_stride_q + d[None, :] * query_stride_d,
            mask=is_row[:, None] & (d[None, :] < HEAD_SIZE), other=0.0)

        low = split * keys_per_split
        high = tl.minimum(low + keys_per_split, n_keys)
        # No row of this block sees a key after its last row's own, or before its first row's window.
        last_row = tl.minimum((tl.program_id(1) + 1) * BLOCK_ROWS - 1, n_rows * N_REPEATS - 1)
        high = tl.minimum(high, n_keys - n_rows + last_row // N_REPEATS + 1)
        if HAS_WINDOW:
            first_seen = n_keys - n_rows + (tl.program_id(1) * BLOCK_ROWS) // N_REPEATS - window + 1
            low += tl.maximum(first_seen - low, 0) // BLOCK_KEYS * BLOCK_KEYS

        if WIDEN:
            query_rows = query_rows.to(tl.float32)

        sums = tl.zeros((BLOCK_ROWS, BLOCK_GROUPS), dtype=tl.float32)
        top = tl.full((BLOCK_ROWS,), NOTHING_SEEN, dtype=tl.float32)

        for start in range(low, high, BLOCK_KEYS):
            column = start + tl.arange(0, BLOCK_KEYS)
            is_key = column < high
            code = tl.load(codes + batch * codes_stride_b + column.to(tl.int64) * codes_stride_t,
                           mask=is_key, other=0).to(tl.int32)
            keys = tl.load(
                key + batch * key_stride_b + kv_head * key_stride_g
                + column[None, :].to(tl.int64) * key_stride_t + d[:, None] * key_stride_d,
                mask=is_key[None, :] & (d[:, None] < HEAD_SIZE), other=0.0)
            if WIDEN:
                keys = keys.to(tl.float32)
            # "ieee" keeps float32 products out of TF32; half-precision products are exact in float32 anyway.
            scores = tl.dot(query_rows, keys, input_precision="ieee") * log2_scaling
            visible = (code[None, :] != 0) & (column[None, :] <= position[:, None])
            if HAS_WINDOW:
                visible = visible & (column[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, axis=1))
            weights = tl.exp2(scores - new_top[:, None])
            sums = sums * tl.exp2(top - new_top)[:, None]
            top = new_top
            # A few plain sums: a product with a 0/1 matrix would go through TF32 or be slower.
            for g in tl.static_range(1, N_GROUPS):
                of_group = tl.sum(tl.where(code[None, :] == g, weights, 0.0), axis=1)
                sums += tl.where(group[None, :] == g, of_group[:, None], 0.0)

        # Code 0 is never visible, so its column is free to hold what the sums are relative to.
        sums = tl.where(group[None, :] == 0, top[:, None], sums)
        tl.store(
            partials + split.to(tl.int64) * partials_stride_s + batch * partials_stride_b
            + head[:, None] * partials_stride_h + query_row[:, None].to(tl.int64) * partials_stride_q
            + group[None, :],
            sums, mask=is_row[:, None] & (group[None, :] < N_GROUPS))


def n_splits_for(query: Tensor, key: Tensor, n_keys: int | None = None) -> int:
    """Into how many parts to split the keys, so that one launch fills the GPU.

    `n_keys` is the longest context expected, by default the present one. A split has at least 64 keys.
    """
    n_batch, n_heads, n_rows, _ = query.shape
    n_kv_heads = key.shape[1]
    block_rows, _ = _block_shape(n_heads // n_kv_heads * n_rows, query)
    n_programs = n_batch * n_kv_heads * -(-(n_heads // n_kv_heads * n_rows) // block_rows)
    n_units = torch.cuda.get_device_properties(query.device).multi_processor_count if query.is_cuda else 1
    longest = max(1, (n_keys or key.shape[2]) // 64)
    return max(1, min(32, longest, -(-2 * n_units // n_programs)))


def write_partial_mass(query: Tensor, key: Tensor, codes: Tensor, scaling: float, slot: Tensor, *,
                       sliding_window: int | None = None) -> None:
    """Writes the partial attention mass of one layer into `slot`, in one launch.

    query: (B, H, Q, D), the last Q rows. key: (B, G, T, D), any strides, not expanded. codes: (B|1, T) uint8 in
    [0, n_groups), 0 = a key that nobody sees (padding, free slots of a static cache). Row i sees keys
    j <= T - Q + i with a code above 0, and with `sliding_window` only the last that many of them.
    slot: (n_splits, B, H, Q, n_groups) float32, last axis contiguous, every number of which is written. Column 0
    gets the largest score of the split in units of log 2, column g > 0 the sum of exp(score - largest) over the
    keys of group g.
    """
    n_batch, n_heads, n_rows, head_size = query.shape
    n_kv_heads, n_keys = key.shape[1:3]
    n_splits, n_groups = slot.shape[0], slot.shape[-1]
    codes = codes.expand(n_batch, n_keys)
    assert n_heads % n_kv_heads == 0, f"{n_heads} query heads on {n_kv_heads} key heads"
    assert slot.shape[1:4] == (n_batch, n_heads, n_rows), f"slot {tuple(slot.shape)}, query {tuple(query.shape)}"
    assert slot.dtype == torch.float32 and slot.stride(-1) == 1, "slots are float32 with the groups contiguous"
    n_repeats = n_heads // n_kv_heads
    block_rows, block_keys = _block_shape(n_repeats * n_rows, query)
    n_blocks = -(-n_keys // block_keys)
    keys_per_split = -(-n_blocks // n_splits) * block_keys
    grid = (n_batch * n_kv_heads, -(-n_repeats * n_rows // block_rows), n_splits)
    # The interpreter's dot multiplies the bit patterns of bfloat16 as if they were integers.
    widen = _interpreted() and query.dtype == torch.bfloat16
    with _on_device(query):
        _partial_mass_kernel[grid](
            query, key, codes, slot,
            *query.stride(), *key.stride(), *codes.stride(), *slot.stride()[:4],
            n_rows, n_keys, sliding_window or 0, keys_per_split, scaling * LOG2_E,
            N_KV_HEADS=n_kv_heads, N_REPEATS=n_repeats, N_GROUPS=n_groups, HEAD_SIZE=head_size,
            BLOCK_ROWS=block_rows, BLOCK_KEYS=block_keys, BLOCK_D=max(16, triton.next_power_of_2(head_size)),
            BLOCK_GROUPS=triton.next_power_of_2(n_groups), HAS_WINDOW=sliding_window is not None,
            WIDEN=widen, NOTHING_SEEN=NOTHING_SEEN, num_warps=4)


def merge_partials(slots: Tensor) -> Tensor:
    """Masses (..., B, H, Q, n_groups) from slots (..., n_splits, B, H, Q, n_groups); column 0 is 0.

    Every visible key has a group, so the groups' sums add up to the softmax's denominator and no split has to
    store one. A row that sees no key has mass 0 in every group.
    """
    top = slots[..., :1]
    sums = (slots[..., 1:] * torch.exp2(top - top.amax(-5, keepdim=True))).sum(-5)
    mass = sums / sums.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.nn.functional.pad(mass, (1, 0))


def _block_shape(n_rows: int, query: Tensor) -> tuple[int, int]:
    """Rows and keys per tile: at least the 16 a tensor core takes, and tiles of keys of 16 KiB in shared memory.

    Float32 goes through plain multiply-adds, where large tiles only spill registers.
    """
    largest = 64 if query.element_size() == 2 else 32
    block_rows = next((rows for rows in (16, 32) if n_rows <= rows), largest)
    row_bytes = triton.next_power_of_2(query.shape[-1]) * query.element_size()
    return block_rows, min(128, max(16, (16 << 10) // row_bytes))


def _on_device(tensor: Tensor):
    """Triton launches on the current device, which under a device map need not be the layer's."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()
