"""Writing masks into logits: every dtype and layout, and nothing beside the named rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskfeed_automata.errors import InternalInvariant
from maskfeed_workers.masking import mask_rows, write_whole

INF = float("inf")


def rows_of(permitted: dict[int, list[int]]):
    rows = np.array(sorted(permitted), np.int64)
    ptr = np.concatenate(([0], np.cumsum([len(permitted[int(r)]) for r in rows]))).astype(np.int64)
    ids = np.array([i for r in rows for i in permitted[int(r)]], np.int32)
    return rows, ptr, ids


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_exactly_the_permitted_entries_keep_their_bits_and_strangers_are_untouched(data):
    n_rows, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 70))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    pad = data.draw(st.integers(0, 3))
    turned = data.draw(st.booleans())
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10)))
    logits = torch.randn((n_rows, width + pad), generator=generator).to(dtype)[:, :width]
    if turned:
        logits = logits.t().contiguous().t()
    logits[0, 0] = -INF
    subset = st.lists(st.integers(0, width - 1), min_size=1, unique=True)
    permitted = data.draw(st.dictionaries(st.integers(0, n_rows - 1), subset))
    before = logits.clone()
    mask_rows(logits, *rows_of(permitted))
    for row in range(n_rows):
        for column in range(width):
            allowed = row not in permitted or column in permitted[row]
            assert logits[row, column] == (before[row, column] if allowed else -INF)


@pytest.mark.parametrize(("rows", "ids"), [([0], [4]), ([0], [-1]), ([2], [0]), ([-1], [0])])
def test_nothing_is_written_where_a_row_or_an_id_is_out_of_range(rows, ids):
    logits = torch.zeros(2, 4)
    with pytest.raises(InternalInvariant):
        mask_rows(logits, np.array(rows), np.array([0, 1]), np.array(ids, np.int32))
    assert torch.equal(logits, torch.zeros(2, 4))


def test_bits_survive_that_floats_would_not_tell_apart():
    bits = torch.tensor([[0x7FC01234, -0x80000000, 0x7F812345, 0]], dtype=torch.int32)
    logits = bits.view(torch.float32).clone()
    mask_rows(logits, *rows_of({0: [0, 1, 2]}))
    assert logits.view(torch.int32).tolist() == [[*bits[0, :3].tolist(), -0x800000]]


def test_an_entry_that_was_forbidden_already_stays_forbidden():
    logits = torch.tensor([[1.0, -INF, 3.0]])
    mask_rows(logits, *rows_of({0: [0, 1]}))
    assert logits.tolist() == [[1.0, -INF, -INF]]


@pytest.mark.parametrize("fill", [0.0, -INF, float("nan")])
def test_a_refused_row_is_written_whole_whatever_it_held(fill):
    logits = torch.full((2, 4), fill)
    write_whole(logits, 1, (2,))
    assert logits[1].tolist() == [-INF, -INF, 0.0, -INF]
    assert torch.equal(logits[0], torch.full((4,), fill)) or torch.isnan(logits[0]).all()
