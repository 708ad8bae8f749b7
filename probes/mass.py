"""How much of the softmax of attention falls on each group of keys (VisualSwap, Sec. 5.3).

A query row attends to every key it can see with weights that sum to one. This file sums those weights over
groups of keys (the image, the sink, the question, what was generated) from the same queries and keys that the
attention kernel gets, in float32, without keeping a weight matrix: rows are taken in blocks that stay in cache.

    codes = torch.tensor([[2, 1, 1, 1, 3, 3]], dtype=torch.uint8)           # one code per key; 0 is padding
    mass = group_mass(query, key, codes, n_groups=4, scaling=head_size**-0.5)
    mass[..., 1]                                                            # (B, H, Q): share on group 1

While decoding, keep a `KeyGroups` and pass `groups.membership(n_keys)`: nothing is then built per step.
`probes.mass_triton` computes the same on CUDA in one launch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# Added to the scores of hidden keys. Finite, so that a row that sees no key gives numbers and not NaN, and far
# enough from the float32 limit that two rules may hide the same key.
HIDDEN = -1e30
# Additive masks write "hidden" as -inf or as the lowest number of their type; for float16 that is only -65504.
LOWEST_VISIBLE_BIAS = -5e4
# Scores per block. On a CPU a block and its softmax should stay in the L2/L3 cache; a GPU wants few launches.
CPU_BLOCK_SCORES = 1 << 19
GPU_BLOCK_SCORES = 1 << 26
# A float32 copy of half-precision keys may be this many blocks large, or one head if that is more.
UPCAST_BLOCKS = 4
EVERY = slice(None)


def membership(codes: Tensor, n_groups: int) -> Tensor:
    """The 0/1 matrix (B, n_groups, T) in float32 that says which key belongs to which group.

    `codes` is (B, T), any integer type. Keys lie along the last axis because the product with the weights then
    reads both along memory: half the time of a (T, n_groups) matrix on a CPU.
    """
    labels = torch.arange(n_groups, dtype=codes.dtype, device=codes.device)
    return (codes[:, None, :] == labels[:, None]).float()


class KeyGroups:
    """State: the group of every key in the cache and of the keys still to come, which all get code `tail`.

    Made once per prompt from `codes` (B, T) uint8; `codes(n)` and `membership(n)` are then views of the first n
    keys, so a decoding step builds nothing. Room is doubled when it runs out.
    """

    def __init__(self, codes: Tensor, n_groups: int, tail: int, room: int = 1024):
        assert 0 <= tail < n_groups, f"tail group {tail} is not below {n_groups}"
        self.n_groups = n_groups
        self.tail = tail
        self._reserve(codes.to(torch.uint8), codes.shape[1] + room)

    def _reserve(self, codes: Tensor, capacity: int) -> None:
        missing = codes.new_full((codes.shape[0], capacity - codes.shape[1]), self.tail)
        self._codes = torch.cat([codes, missing], dim=1)
        self._membership = membership(self._codes, self.n_groups)

    def _make_room(self, n_keys: int) -> None:
        if n_keys > self._codes.shape[1]:
            self._reserve(self._codes, max(n_keys, 2 * self._codes.shape[1]))

    def codes(self, n_keys: int, start: int = 0) -> Tensor:
        """Codes (B, n_keys - start) uint8 of keys start..n_keys-1; `start` > 0 for a cache that dropped keys."""
        self._make_room(n_keys)
        return self._codes[:, start:n_keys]

    def membership(self, n_keys: int, start: int = 0) -> Tensor:
        """The matrix of `membership` (B, n_groups, n_keys - start) for keys start..n_keys-1."""
        self._make_room(n_keys)
        return self._membership[:, :, start:n_keys]


@torch.no_grad()
def group_mass(query: Tensor, key: Tensor, groups: Tensor, n_groups: int, scaling: float, mask: Tensor | None = None,
               *, sliding_window: int | None = None, rows_per_block: int | None = None) -> Tensor:
    """Softmax attention mass of every query row and head on every group of keys, (B, H, Q, n_groups) float32.

    query: (B, H, Q, D), the last Q query rows. key: (B, G, T, D) with H a multiple of G, not expanded.
    groups: codes (B|1, T), or their `membership` (B|1, n_groups, T). Code 0 is padding: it is the mask that hides
    padding, so column 0 of the result is 0 wherever the mask and the codes agree.
    mask: None, row i sees keys j <= T - Q + i; (B|1, T) bool, True = real key, and causal, as FlashAttention-2
    gets it; (B|1, 1, Q, T) bool, True = visible; (B|1, 1|H, Q, T) float, added to the scaled scores.
    sliding_window: number of keys a row sees, its own included; ignored with a 4D mask, which is complete.
    rows_per_block: query rows per block; by default as many as fit the cache.

    Sums run in float32 whatever the inputs are (on CUDA, float32 inputs follow torch's TF32 setting, which is
    off by default). A row that sees no key has mass 0 in every group. Keys in hidden slots must be finite.
    """
    n_batch, _, n_rows, _ = query.shape
    n_kv_heads, n_keys = key.shape[1:3]
    member = (membership(groups, n_groups) if groups.dim() == 2 else groups).expand(n_batch, -1, -1)
    _check_shapes(query, key, member, n_groups, mask)
    if mask is not None:
        mask = mask.expand(n_batch, *mask.shape[1:])
    if n_rows == 1 and _fits_one_block(query, key):
        return _one_row_mass(query, key, member, scaling, mask, sliding_window)
    causal = mask is None or mask.dim() == 2
    first_position = n_keys - n_rows
    grouped = _by_key_head(query, n_kv_heads)
    mass = torch.empty(*grouped.shape[:-1], n_groups, dtype=torch.float32, device=query.device)

    for batch, heads, row_blocks in _blocks(grouped, key, rows_per_block):
        keys = _as_operand(key[batch, heads])
        for rows in row_blocks:
            start, stop = 0, n_keys
            if causal:
                stop = first_position + rows.stop
                if sliding_window is not None:
                    start = max(0, first_position + rows.start - sliding_window + 1)
            scores = _scores(grouped[batch, heads, :, rows], keys[:, :, start:stop], scaling)
            if causal:
                _hide_unseen(scores, first_position + rows.start, start, sliding_window)
            if mask is not None:
                scores += _bias(mask, batch, heads, rows, slice(start, stop), n_kv_heads)
            weights = torch.softmax(scores, dim=-1)
            mass[batch, heads, :, rows] = _sum_by_group(weights, member[batch, :, start:stop])
    mass = mass.flatten(1, 2)
    if mask is not None:
        mass.masked_fill_(~_sees_any(mask, n_rows, sliding_window)[..., None], 0.0)
    return mass


def _one_row_mass(query: Tensor, key: Tensor, member: Tensor, scaling: float, mask: Tensor | None,
                  sliding_window: int | None) -> Tensor:
    """`group_mass` of a decoding step: the same arithmetic, without the cost of cutting it into blocks.

    At 2,500 keys that cutting is a quarter of the time of such a step on a CPU.
    """
    if mask is None or mask.dim() == 2:
        if sliding_window is not None and sliding_window < key.shape[2]:
            key, member = key[:, :, -sliding_window:], member[:, :, -sliding_window:]
            mask = None if mask is None else mask[:, -sliding_window:]
        mask = None if mask is None else mask[:, None, None, :]
    scores = _scores(_by_key_head(query, key.shape[1]), _as_operand(key), scaling)
    if mask is not None:
        scores += _bias(mask, EVERY, EVERY, EVERY, EVERY, key.shape[1])
    mass = _sum_by_group(torch.softmax(scores, dim=-1), member).flatten(1, 2)
    if mask is not None:
        mass.masked_fill_(~_sees_any(mask, 1, None)[..., None], 0.0)
    return mass


def _check_shapes(query: Tensor, key: Tensor, member: Tensor, n_groups: int, mask: Tensor | None) -> None:
    assert query.shape[1] % key.shape[1] == 0, f"{query.shape[1]} query heads on {key.shape[1]} key heads"
    assert query.shape[2] <= key.shape[2], f"{query.shape[2]} query rows but only {key.shape[2]} keys"
    assert member.shape[1:] == (n_groups, key.shape[2]), (
        f"groups of shape {tuple(member.shape)} for {n_groups} groups and {key.shape[2]} keys")
    if mask is not None:
        expected = key.shape[2:3] if mask.dim() == 2 else (query.shape[2], key.shape[2])
        assert mask.shape[-len(expected):] == expected, f"mask ends in {tuple(mask.shape)}, expected {tuple(expected)}"


def _by_key_head(tensor: Tensor, n_kv_heads: int) -> Tensor:
    """The view (B, G, H/G, Q, ...) of a (B, H, Q, ...) tensor."""
    n_batch, n_heads, *rest = tensor.shape
    return tensor.view(n_batch, n_kv_heads, n_heads // n_kv_heads, *rest)


def _block_scores(tensor: Tensor) -> int:
    return CPU_BLOCK_SCORES if tensor.device.type == "cpu" else GPU_BLOCK_SCORES


def _is_one_view(key: Tensor) -> bool:
    """Whether (B, G, T, D) keys are a 3D tensor (B * G, T, D) without being copied."""
    return key.shape[0] == 1 or key.stride(0) == key.shape[1] * key.stride(1)


def _fits_one_block(query: Tensor, key: Tensor) -> bool:
    n_batch, n_heads, n_rows, _ = query.shape
    return (n_batch * n_heads * n_rows * key.shape[2] <= _block_scores(key) and _is_one_view(key)
            and not (_needs_upcast(key) and key.numel() > UPCAST_BLOCKS * _block_scores(key)))


def _blocks(grouped: Tensor, key: Tensor,
            rows_per_block: int | None) -> Iterator[tuple[slice, slice, list[slice]]]:
    """Slices (batch rows, key heads, [query rows, ...]) that cover the work in pieces of a few megabytes.

    Several batch rows share a piece only with all their key heads, so that a piece of `key` is one 3D view.
    """
    n_batch, n_kv_heads, n_repeats, n_rows, _ = grouped.shape
    n_keys, head_size = key.shape[2:]
    budget = _block_scores(key)
    scores_per_row = max(1, n_repeats * n_keys)
    if rows_per_block is None:
        rows_per_block = max(1, budget // scores_per_row)
    rows_per_block = min(rows_per_block, n_rows)
    n_heads = max(1, budget // (scores_per_row * rows_per_block))
    if _needs_upcast(key):
        n_heads = max(1, min(n_heads, UPCAST_BLOCKS * budget // max(1, n_keys * head_size)))
    batch_step = max(1, n_heads // n_kv_heads) if _is_one_view(key) else 1
    head_step = min(n_heads, n_kv_heads)
    row_blocks = [slice(row, min(row + rows_per_block, n_rows)) for row in range(0, n_rows, rows_per_block)]
    for batch in range(0, n_batch, batch_step):
        for head in range(0, n_kv_heads, head_step):
            yield slice(batch, batch + batch_step), slice(head, head + head_step), row_blocks


def _needs_upcast(tensor: Tensor) -> bool:
    """Whether a product of this type has to be computed from a float32 copy."""
    return tensor.dtype != torch.float32 and not _has_float32_product(tensor)


def _has_float32_product(tensor: Tensor) -> bool:
    """On CUDA, half-precision products can be accumulated and returned in float32; a CPU has no such product."""
    return tensor.is_cuda and tensor.dtype in (torch.float16, torch.bfloat16)


def _as_operand(keys: Tensor) -> Tensor:
    return keys.float() if _needs_upcast(keys) else keys


def _scores(rows: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Scaled scores (b, g, r, m, t) in float32 of rows (b, g, r, m, D) on keys (b, g, t, D)."""
    n_repeats, n_rows, head_size = rows.shape[2:]
    flat_keys = keys.flatten(0, 1).transpose(1, 2)
    if _has_float32_product(keys):
        # The product is scaled and not the rows: scaling would round them once more.
        flat_rows = rows.reshape(-1, n_repeats * n_rows, head_size)
        scores = torch.bmm(flat_rows, flat_keys, out_dtype=torch.float32).mul_(scaling)
    else:
        flat_rows = (rows.float() * scaling).reshape(-1, n_repeats * n_rows, head_size)
        scores = torch.bmm(flat_rows, flat_keys)
    return scores.view(*keys.shape[:2], n_repeats, n_rows, keys.shape[2])


def _hide_unseen(scores: Tensor, first_position: int, first_key: int, sliding_window: int | None) -> None:
    """Hides, in place, the keys after each row's own and those `sliding_window` or more before it.

    scores: (..., m, t); row i stands at position first_position + i, column c is key first_key + c. Only the
    corners that some row does not see are touched.
    """
    n_rows, n_keys = scores.shape[-2:]
    own_column = first_position - first_key                                     # of row 0
    corner = max(0, own_column + 1)
    if corner < n_keys:
        hidden = scores.new_full((n_rows, n_keys - corner), HIDDEN)
        scores[..., corner:] += hidden.triu_(own_column - corner + 1)
    if sliding_window is not None:
        corner = min(n_keys, own_column + n_rows - sliding_window)
        if corner > 0:
            hidden = scores.new_full((n_rows, corner), HIDDEN)
            scores[..., :corner] += hidden.tril_(own_column - sliding_window)


def _bias(mask: Tensor, batch: slice, heads: slice, rows: slice, columns: slice, n_kv_heads: int) -> Tensor:
    """The part of `mask` for one block as an additive float32 term that broadcasts over (b, g, r, m, t)."""
    if mask.dim() == 2:
        part = mask[batch, None, None, None, columns]
    elif mask.shape[1] == 1:
        part = mask[batch, :, None, rows, columns]
    else:
        part = _by_key_head(mask, n_kv_heads)[batch, heads, :, rows, columns]
    if mask.is_floating_point():
        return part.float().clamp_min(HIDDEN)
    return torch.where(part, 0.0, HIDDEN)


def _sees_any(mask: Tensor, n_rows: int, sliding_window: int | None) -> Tensor:
    """Whether each query row sees a key at all, bool (B, 1|H, Q)."""
    if mask.dim() == 4:
        visible = mask > LOWEST_VISIBLE_BIAS if mask.is_floating_point() else mask
        return visible.any(-1)
    seen = mask.cumsum(-1)
    if sliding_window is not None and sliding_window < seen.shape[1]:
        seen = torch.cat([seen[:, :sliding_window], seen[:, sliding_window:] - seen[:, :-sliding_window]], dim=1)
    return (seen[:, -n_rows:] > 0)[:, None]


def _sum_by_group(weights: Tensor, member: Tensor) -> Tensor:
    """Sums (b, g, r, m, n_groups) of weights (b, g, r, m, t) by `member` (b, n_groups, t)."""
    sums = torch.bmm(weights.flatten(1, 3), member.transpose(1, 2))
    return sums.view(*weights.shape[:4], member.shape[1])
