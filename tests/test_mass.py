"""Attention mass per group of keys, against a float64 softmax that shares no code with it."""

import pytest
import torch

from probes import mass
from probes.mass import KeyGroups, group_mass, membership

N_GROUPS = 5
IMAGE, SINK, QUESTION, GENERATED = 1, 2, 3, 4


def example(n_rows=5, n_keys=97, n_heads=4, n_kv_heads=2, n_batch=3, head_size=16, seed=0, pads=(0, 7, 31)):
    """Queries, keys, codes and scaling; batch row b starts with pads[b] keys of padding."""
    generator = torch.Generator().manual_seed(seed)
    query = 3.0 * torch.randn(n_batch, n_heads, n_rows, head_size, generator=generator)
    key = torch.randn(n_batch, n_kv_heads, n_keys, head_size, generator=generator)
    codes = torch.randint(1, N_GROUPS, (n_batch, n_keys), generator=generator, dtype=torch.uint8)
    for row, pad in enumerate(pads[:n_batch]):
        codes[row, :pad] = 0
        codes[row, pad] = SINK
    return query, key, codes, head_size**-0.5


def visible_keys(n_rows, n_keys, real=None, window=None):
    """Bool (B|1, 1, Q, T): written as two loops over positions."""
    visible = torch.zeros(1, 1, n_rows, n_keys, dtype=torch.bool)
    for row in range(n_rows):
        position = n_keys - n_rows + row
        for column in range(n_keys):
            visible[0, 0, row, column] = column <= position and (window is None or position - column < window)
    return visible if real is None else visible & real[:, None, None, :]


def reference(query, key, codes, scaling, visible, bias=None):
    """The same masses in float64, with expanded keys and the full weight matrix."""
    key = key.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query.double() @ key.transpose(2, 3) * scaling
    if bias is not None:
        scores = scores + bias.double()
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1).nan_to_num(0.0)
    columns = [(weights * (codes == code)[:, None, None, :]).sum(-1) for code in range(N_GROUPS)]
    return torch.stack(columns, dim=-1)


def largest_difference(a, b):
    return (a.double() - b.double()).abs().max().item()


def mask_forms(query, key, codes):
    """Every form of mask with the visibility and the bias it stands for."""
    n_rows, n_keys = query.shape[2], key.shape[2]
    real = codes != 0
    causal, padded = visible_keys(n_rows, n_keys), visible_keys(n_rows, n_keys, real)
    generator = torch.Generator().manual_seed(1)
    per_head = torch.randn(len(query), query.shape[1], n_rows, n_keys, generator=generator)
    lowest = torch.finfo(torch.float32).min
    return {
        "none": (None, causal, None),
        "key padding": (real, padded, None),
        "bool": (padded, padded, None),
        "bool for all batch rows": (causal, causal, None),
        "float with -inf": (torch.where(padded, 0.0, -torch.inf), padded, None),
        "float with lowest": (torch.where(padded, 0.0, lowest), padded, None),
        "float per head": (per_head.masked_fill(~padded, lowest), padded, per_head),
    }


@pytest.mark.parametrize("n_rows", [1, 5, 64])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4, 8])
def test_masses_equal_a_float64_softmax_for_every_form_of_mask(n_rows, n_kv_heads):
    query, key, codes, scaling = example(n_rows=n_rows, n_heads=8, n_kv_heads=n_kv_heads)
    for name, (mask, visible, bias) in mask_forms(query, key, codes).items():
        found = group_mass(query, key, codes, N_GROUPS, scaling, mask)
        expected = reference(query, key, codes, scaling, visible, bias)
        assert found.shape == (3, 8, n_rows, N_GROUPS) and found.dtype == torch.float32
        assert largest_difference(found, expected) < 2e-6, name


@pytest.mark.parametrize("rows_per_block", [1, 3, 7, 20])
def test_the_size_of_a_block_changes_nothing(rows_per_block, monkeypatch):
    query, key, codes, scaling = example(n_rows=20)
    whole = {name: group_mass(query, key, codes, N_GROUPS, scaling, mask)
             for name, (mask, _, _) in mask_forms(query, key, codes).items()}
    for budget in (1, 500, 4000):           # one head at a time, several heads, several batch rows
        monkeypatch.setattr(mass, "CPU_BLOCK_SCORES", budget)
        for name, (mask, _, _) in mask_forms(query, key, codes).items():
            found = group_mass(query, key, codes, N_GROUPS, scaling, mask, rows_per_block=rows_per_block)
            assert largest_difference(found, whole[name]) < 2e-6, (name, budget)


@pytest.mark.parametrize("n_rows", [1, 5, 64])
@pytest.mark.parametrize("window", [1, 2, 13, 96, 97, 500])
def test_a_sliding_window_hides_what_lies_before_it(n_rows, window):
    query, key, codes, scaling = example(n_rows=n_rows)
    codes[0, 60:80] = 0             # rows in and after a hole may see no key at all
    real = codes != 0
    for name, mask, visible in [("none", None, visible_keys(n_rows, 97, None, window)),
                                ("key padding", real, visible_keys(n_rows, 97, real, window))]:
        for rows_per_block in (None, 3):
            found = group_mass(query, key, codes, N_GROUPS, scaling, mask, sliding_window=window,
                               rows_per_block=rows_per_block)
            assert largest_difference(found, reference(query, key, codes, scaling, visible)) < 2e-6, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n_rows", [1, 20])
def test_half_precision_inputs_lose_nothing_but_their_own_rounding(dtype, n_rows, monkeypatch):
    """The rounded inputs are the truth here; sums in half precision would be off by 2**-9 of a weight or more."""
    query, key, codes, scaling = example(n_rows=n_rows, head_size=64)
    query, key = query.to(dtype), key.to(dtype)
    expected = reference(query, key, codes, scaling, visible_keys(n_rows, 97, codes != 0))
    for budget in (mass.CPU_BLOCK_SCORES, 100):
        monkeypatch.setattr(mass, "CPU_BLOCK_SCORES", budget)
        found = group_mass(query, key, codes, N_GROUPS, scaling, codes != 0)
        assert largest_difference(found, expected) < 5e-6


def test_masses_of_a_row_sum_to_one_and_padding_gets_none():
    query, key, codes, scaling = example(n_rows=5)
    found = group_mass(query, key, codes, N_GROUPS, scaling, codes != 0)
    assert largest_difference(found.sum(-1), torch.ones(3, 4, 5)) < 1e-6
    assert found[..., 0].max() == 0.0
    assert found[..., IMAGE].min() > 0.0


def test_a_row_without_any_visible_key_has_no_mass_and_spoils_no_other():
    query, key, codes, scaling = example(n_rows=97, pads=(0, 7, 31))
    real = codes != 0
    forms = mask_forms(query, key, codes)
    for name in ("key padding", "bool", "float with -inf", "float with lowest"):
        mask, visible, _ = forms[name]
        found = group_mass(query, key, codes, N_GROUPS, scaling, mask)
        assert found[1, :, :7].abs().max() == 0.0 and found[2, :, :31].abs().max() == 0.0, name
        assert largest_difference(found, reference(query, key, codes, scaling, visible)) < 2e-6, name
    lowest_half = torch.where(visible_keys(97, 97, real), 0.0, torch.finfo(torch.float16).min).half()
    assert group_mass(query, key, codes, N_GROUPS, scaling, lowest_half)[2, :, :31].abs().max() == 0.0


def test_a_nan_in_the_keys_is_not_swept_under():
    query, key, codes, scaling = example()
    key[0, 0, 3, 0] = torch.nan
    assert group_mass(query, key, codes, N_GROUPS, scaling, codes != 0)[0, 0].isnan().all()


def test_views_with_other_strides_give_the_same_masses():
    query, key, codes, scaling = example(n_rows=5)
    storage = torch.zeros(3, 200, 2, 16)
    storage[:, :97] = key.transpose(1, 2)
    time_first = storage.transpose(1, 2)[:, :, :97]         # (B, T, G, D) in memory: no 3D view of all heads
    roomy = torch.zeros(3, 2, 200, 16)
    roomy[:, :, :97] = key                                  # a static cache
    rows_first = query.transpose(1, 2).contiguous().transpose(1, 2)
    for n_rows in (1, 5):
        plain = group_mass(query[:, :, -n_rows:], key, codes, N_GROUPS, scaling, codes != 0)
        for strided in (time_first, roomy[:, :, :97]):
            found = group_mass(rows_first[:, :, -n_rows:], strided, codes, N_GROUPS, scaling, codes != 0)
            assert largest_difference(found, plain) < 1e-6


def test_key_groups_grow_like_codes_built_anew_at_every_step():
    prompt = example(n_batch=2)[2]
    groups = KeyGroups(prompt, N_GROUPS, tail=GENERATED, room=3)
    for n_generated in (0, 1, 3, 4, 150):
        codes = torch.cat([prompt, torch.full((2, n_generated), GENERATED, dtype=torch.uint8)], dim=1)
        n_keys = codes.shape[1]
        assert torch.equal(groups.codes(n_keys), codes)
        assert torch.equal(groups.membership(n_keys), membership(codes, N_GROUPS))
        assert torch.equal(groups.codes(n_keys, start=20), codes[:, 20:])
        assert torch.equal(groups.membership(n_keys, start=20), membership(codes[:, 20:], N_GROUPS))
    before = groups.membership(200)
    assert groups.membership(201).data_ptr() == before.data_ptr(), "a step inside the room copies nothing"


def test_a_membership_matrix_and_codes_give_the_same_bits():
    query, key, codes, scaling = example(n_rows=5)
    groups = KeyGroups(codes, N_GROUPS, tail=GENERATED)
    for n_rows in (1, 5):
        rows = query[:, :, -n_rows:]
        by_codes = group_mass(rows, key, codes, N_GROUPS, scaling)
        assert largest_difference(by_codes, group_mass(rows, key, groups.membership(97), N_GROUPS, scaling)) < 1e-6


def test_groups_of_one_row_serve_a_whole_batch():
    query, key, codes, scaling = example()
    one = group_mass(query, key, codes[:1], N_GROUPS, scaling)
    assert torch.equal(one, group_mass(query, key, codes[:1].expand(3, -1), N_GROUPS, scaling))


def test_groups_or_a_mask_of_another_length_are_refused():
    query, key, codes, scaling = example()
    with pytest.raises(AssertionError, match="96 keys"):
        group_mass(query, key[:, :, :96], codes, N_GROUPS, scaling)
    for mask in (codes[:, :96] != 0, visible_keys(5, 96), visible_keys(6, 97)):
        with pytest.raises(AssertionError, match="mask"):
            group_mass(query, key, codes, N_GROUPS, scaling, mask)
