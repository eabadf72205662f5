"""Each kernel beside its plain Python twin, on random vocabularies and candidates.

The twins know one thing: sorted prefixes are a trie in preorder, and prefixes sorted by length first are it breadth
first. Kernels that check artifacts have theirs in test_check_kernels, `pick_ranks` in test_catalogue; `follow`,
`permitted` and `step_slots` are compared with the oracle in test_oracle.
"""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maskfeed_automata import Vocabulary, compile
from maskfeed_automata.kernels import FIRST, TOKEN, bit_at, goto, popcount, rank_at
from maskfeed_automata.mask_kernels import branch_masks, live_bits, reached_bits, shortest_count
from maskfeed_automata.sort_kernels import (
    common_prefix,
    finish_order,
    is_ascending,
    merge_equal,
    prefix_keys,
    split_at,
)
from maskfeed_automata.step_kernels import end_of_forced, set_bits
from maskfeed_automata.token_kernels import dense_rows, is_sound, place_tokens
from maskfeed_automata.trie_kernels import branch_and_leaf_bits, build_nodes, child_lists, count_before, merge_spaced
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
    order = np.argsort(keys, kind="stable" if extra % 2 else "quicksort")
    finish_order(data, starts, lengths, keys[order], order, shared)
    assert [texts[i] for i in order] == sorted(texts)
    merged, merged_offsets, rank_of_input, first_input = merge_equal(data, starts, lengths, order)
    unique = sorted(set(texts))
    assert merged.tobytes() == b"".join(unique)
    assert np.diff(merged_offsets).tolist() == [len(text) for text in unique]
    assert rank_of_input.tolist() == [unique.index(text) for text in texts]
    assert first_input.tolist() == [texts.index(text) for text in unique]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=4), min_size=1, max_size=6), st.integers(1, 6))
def test_splitting(texts, n_strings):
    joined = b"\0".join(texts)
    starts, lengths, is_split = split_at(np.frombuffer(joined, np.uint8), 0, n_strings)
    parts = joined.split(b"\0")
    assert is_split == (len(parts) == n_strings)
    if is_split:
        assert [joined[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)] == parts


@settings(deadline=None)
@given(random_candidates)
def test_tries(candidates):
    members = sorted(set(candidates))
    byte, end, terminal = build_nodes(*flat(members))
    nodes = prefixes_of(members)
    assert byte.tolist() == [0, *(prefix[-1] for prefix in nodes[1:])]
    assert end.tolist() == [n + sum(other.startswith(prefix) for other in nodes) for n, prefix in enumerate(nodes)]
    assert bits_of(terminal) == [n for n, prefix in enumerate(nodes) if prefix in members]
    leaves = [prefix for prefix in nodes if not children_of(nodes, prefix)]
    branch, leaf = branch_and_leaf_bits(end)
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
    assert built.links[:, FIRST].tolist() == first
    assert built.label.tolist() == [0, *(prefix[-1] for prefix in nodes[1:])]
    assert built.links[:-1, TOKEN].tolist() == [min(ids.get(prefix, [-1])) for prefix in nodes]
    later = {k: next((other for other in same if other > k), -1) for same in ids.values() for k in same}
    assert built.twin.tolist() == [later.get(k, -1) for k in range(len(tokens))]
    place = {prefix: n for n, prefix in enumerate(nodes)}
    upper = [prefix for prefix in nodes if len(prefix) < 2]
    dense = [place.get(prefix + bytes([byte]), -1) for prefix in upper for byte in range(256)]
    first_array, label = built.links[:, FIRST].copy(), built.label
    assert dense_rows(first_array, label).tolist() == dense == built.dense.tolist()
    for prefix in nodes:
        for byte in range(256):
            found = goto(built.links, label, built.dense, built.n_dense, place[prefix], byte)
            assert found == place.get(prefix + bytes([byte]), -1)
    assert is_sound(first_array, label)
    links, twin, n_missing = place_tokens(first_array, label, *flat([*tokens, b"b" * 9]))
    assert (n_missing, links[:-1, TOKEN].tolist()) == (1, built.links[:-1, TOKEN].tolist())
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
    byte, end, terminal = build_nodes(*flat(members))
    branch, _ = branch_and_leaf_bits(end)
    parts = (built.links, built.label, built.dense, built.n_dense, built.longest)
    assert {nodes[n] for n in bits_of(reached_bits(byte, end, *parts))} == reached
    found = live_bits(byte, end, terminal, *parts)
    assert {nodes[n] for n in bits_of(found)} == live
    branches = [nodes[n] for n in bits_of(branch)]
    for bitmap, ends in ((np.empty(0, np.uint64), set(nodes)), (found, live)):
        ptr, ids = branch_masks(
            *(byte, end, branch, bitmap, built.links, built.label, built.twin, built.dense),
            *(built.n_dense, built.longest, len(branches), 1 << 20),
        )
        expected = [
            sorted((token, k) for k, token in enumerate(tokens) if token and prefix + token in ends)
            for prefix in branches
        ]
        assert np.diff(ptr).tolist() == [len(row) for row in expected]
        assert ids[: ptr[-1]].tolist() == [k for row in expected for _, k in row]


@settings(deadline=None)
@given(random_tokens, random_candidates)
def test_shortest_tokenisations(drawn, candidates):
    tokens = {token for token in tokens_of(drawn) if token}
    built = Vocabulary.from_token_bytes(sorted(tokens)).tokenizer_automaton
    for text in candidates:
        fewest = [0] + [len(text) + 1] * len(text)
        for n in range(1, len(text) + 1):
            fewest[n] = min([fewest[n], *(fewest[k] + 1 for k in range(n) if text[k:n] in tokens)])
        found = shortest_count(np.frombuffer(text, np.uint8), built.links, built.label, built.dense, built.n_dense)
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
