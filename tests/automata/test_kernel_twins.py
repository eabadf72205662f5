"""Each kernel beside its plain Python twin, on random vocabularies and candidates.

The twins know one thing: sorted prefixes are a trie in preorder, and prefixes sorted by length first are it breadth
first. Kernels that check artifacts have theirs in test_check_kernels, `pick_ranks` in test_catalogue, `find_members` in
test_candidates; `follow`, `permitted` and `step_slots` are compared with the oracle in test_oracle.
"""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maskfeed_automata import CandidateSet, Vocabulary, compile
from maskfeed_automata.kernels import bit_at, cell_base, cell_token, next_cell, popcount, rank_at
from maskfeed_automata.mask_kernels import (
    TOO_DEEP,
    gather_masks,
    live_bits,
    reached_bits,
    shortest_count,
    walk_masks,
)
from maskfeed_automata.sort_kernels import (
    common_prefix,
    finish_order,
    gather_strings,
    is_ascending,
    merge_equal,
    prefix_keys,
    split_at_zeros,
)
from maskfeed_automata.step_kernels import end_of_forced, set_bits
from maskfeed_automata.token_kernels import is_sound, pack_cells, place_tokens
from maskfeed_automata.trie_kernels import build_nodes, child_lists, count_before, merge_spaced
from maskfeed_automata.word_kernels import common_length, copy_bytes, prefix_key, zero_at
from vocabularies import random_candidates, random_tokens, tokens_of

words = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5)
strings = st.lists(st.binary(min_size=1, max_size=20) | st.lists(st.sampled_from(b"\0a"), min_size=1).map(bytes))


def bits_of(bitmap: np.ndarray) -> list[int]:
    return [n for n in range(bitmap.size * 64) if int(bitmap[n // 64]) >> n % 64 & 1]


def flat(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return np.frombuffer(b"".join(texts), np.uint8), offsets


def prefixes_of(texts) -> list[bytes]:
    return sorted({text[:n] for text in texts for n in range(len(text) + 1)})


def children_of(prefixes: list[bytes], prefix: bytes) -> list[bytes]:
    return [other for other in prefixes if len(other) == len(prefix) + 1 and other.startswith(prefix)]


@settings(deadline=None)
@given(words)
def test_bitmaps(numbers):
    bitmap = np.array(numbers, np.uint64)
    counts = count_before(bitmap)
    assert counts.tolist() == [sum(number.bit_count() for number in numbers[:w]) for w in range(len(numbers) + 1)]
    assert [int(popcount(word)) for word in bitmap] == [number.bit_count() for number in numbers]
    bits = set(bits_of(bitmap))
    for n in range(bitmap.size * 64):
        assert bit_at(bitmap, n) == (n in bits)
        assert rank_at(bitmap, counts, n) == sum(bit < n for bit in bits)


@settings(deadline=None)
@given(strings.filter(bool), st.integers(0, 8))
def test_sorting(texts, extra):
    data, offsets = flat(texts)
    starts, lengths = offsets[:-1].copy(), np.diff(offsets)
    assert is_ascending(data, starts, lengths) == all(a <= b for a, b in pairwise(texts))
    shared = next(n for n in range(len(min(texts, key=len)), -1, -1) if len({text[:n] for text in texts}) == 1)
    assert common_prefix(data, starts, lengths) == shared
    keys = prefix_keys(data, starts, lengths, shared)
    padded = [text[shared:][:8].ljust(8, b"\0") for text in texts]
    assert keys.tolist() == [int.from_bytes(head, "big") for head in padded]
    by_key = np.argsort(keys, kind="stable" if extra % 2 else "quicksort")
    gathered = np.empty(data.size + 8, np.uint8)
    gathered_offsets = gather_strings(data, starts, lengths, by_key, gathered)
    assert [gathered[a:b].tobytes() for a, b in pairwise(gathered_offsets.tolist())] == [texts[i] for i in by_key]
    order = finish_order(gathered, gathered_offsets, keys[by_key], shared)
    assert [texts[i] for i in by_key[order]] == sorted(texts)
    merged, merged_offsets, rank_of_input, first_input = merge_equal(
        gathered, gathered_offsets, order, by_key, np.empty_like(gathered)
    )
    unique = sorted(set(texts))
    assert merged.tobytes() == b"".join(unique)
    assert np.diff(merged_offsets).tolist() == [len(text) for text in unique]
    assert rank_of_input.tolist() == [unique.index(text) for text in texts]
    assert first_input.tolist() == [texts.index(text) for text in unique]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=4), min_size=1, max_size=6), st.integers(1, 6))
def test_splitting(texts, n_strings):
    joined = b"\0".join(texts)
    starts, lengths, is_split = split_at_zeros(np.frombuffer(joined, np.uint8), n_strings)
    parts = joined.split(b"\0")
    assert is_split == (len(parts) == n_strings)
    if is_split:
        assert [joined[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)] == parts


@settings(deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=20), st.integers(0, 20))
def test_bytes_in_words(head, tail, text, gap):
    """Also where fewer than eight bytes are left of the array."""
    data = np.frombuffer(head + text + b"\xff" * gap + text + tail, np.uint8)
    whole, first, second = data.tobytes(), len(head), len(head) + len(text) + gap
    for limit in range(len(data) - second + 1):
        same = next((k for k in range(limit) if whole[first + k] != whole[second + k]), limit)
        assert common_length(data, first, second, limit) == same
    for start in range(len(data) + 1):
        assert zero_at(data, start) == (whole + b"\0").index(0, start)
        for length in (-1, *range(len(data) - start + 1)):
            padded = whole[start : start + max(length, 0)][:8].ljust(8, b"\0")
            assert prefix_key(data, start, length) == int.from_bytes(padded, "big")
    for space in (0, 3, 20):
        target = np.full(5 + len(text) + space, 7, np.uint8)
        copy_bytes(data, first, len(text), target, 5)
        assert target[: 5 + len(text)].tobytes() == b"\7" * 5 + text
        assert target[5 + len(text) + 7 :].tobytes() == b"\7" * max(0, space - 7)


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from((b"abcdefgh", b"abcdefgi", b"\0", b"z")), max_size=6), min_size=60))
def test_sorting_many_strings_that_look_alike(parts):
    """More than are sorted by insertion, with few different keys."""
    texts = [b"".join(each) + b"!" for each in parts] * 3
    order = np.argsort(CandidateSet.from_strings(texts).rank_of_input)
    assert [texts[i] for i in order] == sorted(texts)


@settings(deadline=None)
@given(random_candidates)
def test_tries(candidates):
    members = sorted(set(candidates))
    byte, end, terminal, branch, leaf = build_nodes(*flat(members))
    nodes = prefixes_of(members)
    assert byte.tolist() == [0, *(prefix[-1] for prefix in nodes[1:])]
    assert end.tolist() == [n + sum(other.startswith(prefix) for other in nodes) for n, prefix in enumerate(nodes)]
    assert bits_of(terminal) == [n for n, prefix in enumerate(nodes) if prefix in members]
    leaves = [prefix for prefix in nodes if not children_of(nodes, prefix)]
    assert bits_of(leaf) == [nodes.index(prefix) for prefix in leaves]
    branches = [prefix for prefix in nodes if sum(other.startswith(prefix) for other in leaves) > 1]
    assert bits_of(branch) == [nodes.index(prefix) for prefix in branches]
    child_ptr, child_byte, child_node = child_lists(byte, end, branch, len(branches))
    children = [children_of(nodes, prefix) for prefix in branches]
    assert child_ptr.tolist() == np.cumsum([0, *map(len, children)]).tolist()
    assert child_byte.tolist() == [child[-1] for row in children for child in row]
    assert child_node.tolist() == [nodes.index(child) for row in children for child in row]


@settings(deadline=None)
@given(random_candidates, st.booleans())
def test_variants_with_a_space(candidates, keep_exact):
    members = sorted(set(candidates))
    data, offsets, rank = merge_spaced(*flat(members), keep_exact=keep_exact)
    owner = {b" " + member: k for k, member in enumerate(members)}
    owner |= {member: k for k, member in enumerate(members)} if keep_exact else {}
    assert [data[a:b].tobytes() for a, b in pairwise(offsets.tolist())] == sorted(owner)
    assert rank.tolist() == [owner[variant] for variant in sorted(owner)]


@settings(deadline=None)
@given(random_tokens)
def test_tokenizer_automata(drawn):
    """`breadth_first` through the automaton that it makes of pyahocorasick's dump; then the other kernels on it."""
    tokens = [token or b"" for token in tokens_of(drawn)]
    built = Vocabulary.from_token_bytes(tokens).tokenizer_automaton
    nodes = sorted(prefixes_of(tokens), key=lambda prefix: (len(prefix), prefix))
    first = [1, *np.cumsum([len(children_of(nodes, prefix)) for prefix in nodes]) + 1]
    ids = {token: [k for k, other in enumerate(tokens) if other == token] for token in tokens if token}
    assert built.first.tolist() == first
    assert built.label.tolist() == [0, *(prefix[-1] for prefix in nodes[1:])]
    later = {k: next((other for other in same if other > k), -1) for same in ids.values() for k in same}
    assert built.twin.tolist() == [later.get(k, -1) for k in range(len(tokens))]
    cell_of = {b"": built.cells[0]}
    for prefix in nodes:
        assert cell_token(cell_of[prefix]) == min(ids.get(prefix, [-1]))
        assert (cell_base(cell_of[prefix]) != 0) == bool(children_of(nodes, prefix))
        for byte in range(256):
            cell = next_cell(built.cells, cell_base(cell_of[prefix]), byte)
            longer = prefix + bytes([byte])
            assert (cell != 0) == (longer in nodes)
            if cell:
                cell_of[longer] = cell
    assert is_sound(built.first, built.label)
    cells = pack_cells(built.first, built.label, 1 + len(nodes))
    assert pack_cells(built.first, built.label, cells.size // 256).tolist() == cells.tolist()
    assert pack_cells(built.first, built.label, cells.size // 256 - 1).size == 0 or cells.size == 256
    twin, n_missing = place_tokens(cells, *flat([*tokens, b"b" * 9]))
    assert (n_missing, cells.tolist()) == (1, built.cells.tolist())
    assert twin[:-1].tolist() == built.twin.tolist()


@settings(deadline=None)
@given(random_tokens, random_candidates)
def test_masks(drawn, candidates):
    tokens = tokens_of(drawn)
    members = sorted(set(candidates))
    nodes = prefixes_of(members)
    known = sorted({token for token in tokens if token})
    reached = {b""}
    for prefix in nodes:
        reached |= {prefix + token for token in known if prefix in reached} & set(nodes)
    live = set(members)
    for prefix in reversed(nodes):
        live |= {prefix} if any(prefix + token in live for token in known) else set()

    built = Vocabulary.from_token_bytes(tokens).tokenizer_automaton
    byte, end, terminal, branch, _ = build_nodes(*flat(members))
    assert {nodes[n] for n in bits_of(reached_bits(byte, end, built.cells, built.longest))} == reached
    found = live_bits(byte, end, terminal, built.cells, built.longest)
    assert {nodes[n] for n in bits_of(found)} == live
    branches = [nodes[n] for n in bits_of(branch)]
    for bitmap, ends in ((np.empty(0, np.uint64), set(nodes)), (found, live)):
        expected = [
            sorted((token, k) for k, token in enumerate(tokens) if token and prefix + token in ends)
            for prefix in branches
        ]
        n_ids = sum(map(len, expected))
        walked = (byte, end, branch, bitmap, built.cells, built.twin)
        pairs = np.empty(n_ids + 7, np.uint64)
        assert walk_masks(*walked, 1000, 1 << 20, pairs) == n_ids
        # Little space: as far as it goes, and how much it should have been; not deep enough; too many.
        few = np.zeros(n_ids // 2, np.uint64)
        assert walk_masks(*walked, 1000, 1 << 20, few) == n_ids
        assert few.tolist() == pairs[: few.size].tolist()
        assert walk_masks(*walked, 1, 1 << 20, pairs) == (TOO_DEEP if branches else 0)
        if n_ids:
            assert 0 < walk_masks(*walked, 1000, 0, few) <= n_ids
        ptr, ids = np.empty(len(branches) + 1, np.int32), np.empty(n_ids, np.int32)
        gather_masks(pairs[:n_ids], ptr, ids)
        assert np.diff(ptr).tolist() == [len(row) for row in expected]
        assert ids.tolist() == [k for row in expected for _, k in row]


@settings(deadline=None)
@given(random_tokens, random_candidates)
def test_shortest_tokenisations(drawn, candidates):
    tokens = {token for token in tokens_of(drawn) if token}
    built = Vocabulary.from_token_bytes(sorted(tokens)).tokenizer_automaton
    for text in candidates:
        fewest = [0] + [len(text) + 1] * len(text)
        for n in range(1, len(text) + 1):
            fewest[n] = min([fewest[n], *(fewest[k] + 1 for k in range(n) if text[k:n] in tokens)])
        found = shortest_count(np.frombuffer(text, np.uint8), built.cells)
        assert found == (fewest[-1] if fewest[-1] <= len(text) else -1)


@settings(deadline=None)
@given(random_candidates)
def test_forced_text(candidates):
    vocabulary = Vocabulary.from_token_bytes([bytes([byte]) for byte in range(256)])
    automaton = compile(vocabulary, candidates)
    nodes = prefixes_of(candidates)
    for n, prefix in enumerate(nodes):
        last = prefix
        while last not in candidates and len(children_of(nodes, last)) == 1:
            (last,) = children_of(nodes, last)
        assert end_of_forced(automaton.row, n) == nodes.index(last)


@settings(deadline=None)
@given(st.sets(st.integers(0, 95)))
def test_bitmask_rows(ids):
    row = np.full(3, -1, np.int32)
    set_bits(np.array(sorted(ids), np.int32), row)
    assert [k for k in range(96) if int(row[k // 32]) >> k % 32 & 1] == sorted(ids)


def test_children_of_a_branch_are_found_among_many():
    """More than eight children: the row is halved before it is searched."""
    vocabulary = Vocabulary.from_token_bytes([bytes([byte]) for byte in range(256)])
    for n in (1, 8, 9, 10, 17, 255):
        members = [bytes([7 * k % 256, 1]) for k in range(n)]
        cursor = compile(vocabulary, members).cursor()
        assert cursor.allowed_token_ids().tolist() == sorted(member[0] for member in members)
        for rank, member in enumerate(members):
            cursor.advance(member[0])
            cursor.advance(1)
            assert cursor.candidate_index == rank
            cursor.rollback(2)
