"""The proof that arrays are a trie, against rebuilding the trie from the strings that they seem to spell."""

import random

import numpy as np
from hypothesis import given, settings

from maskfeed_automata import CandidateSet
from maskfeed_automata.check_kernels import ids_are_sound, live_is_sound, ranks_are_sound, rows_are_sound, trie_is_sound
from maskfeed_automata.trie import build_trie
from vocabularies import random_candidates


def bits_of(words: np.ndarray) -> list[int]:
    return [n for n in range(words.size * 64) if int(words[n // 64]) >> n % 64 & 1]


def spelt(byte, leaf, terminal, branch, child_ptr, child_node) -> list[bytes] | None:
    """Strings of what may be a trie; None if a walk leaves it, comes to a node twice, or spells the empty string."""
    leaves, ends, branches = set(bits_of(leaf)), set(bits_of(terminal)), bits_of(branch)
    strings, visited, pending = [], set(), [(0, b"")]
    while pending:
        node, text = pending.pop()
        if node in visited or not 0 <= node < byte.size:
            return None
        visited.add(node)
        if node in ends:
            strings.append(text)
        if node in leaves:
            continue
        children = [node + 1]
        if node in branches:
            k = branches.index(node)
            children = child_node[child_ptr[k] : child_ptr[k + 1]].tolist()
        pending += [(child, text + byte[child : child + 1].tobytes()) for child in children]
    return strings if strings and all(strings) else None


def is_trie(byte, leaf, terminal, branch, child_ptr, child_byte, child_node) -> bool:
    """The twin: a trie is what is built of the strings that it spells."""
    strings = spelt(byte, leaf, terminal, branch, child_ptr, child_node)
    if strings is None or len(set(strings)) < len(strings):
        return False
    again = build_trie(CandidateSet.from_strings(strings), "never")
    pairs = (
        (byte, again.byte),
        (leaf, again.leaf),
        (terminal, again.terminal),
        (branch, again.branch),
        (child_ptr, again.child_ptr),
        (child_byte, again.child_byte),
        (child_node, again.child_node),
    )
    return all(np.array_equal(a, b) for a, b in pairs)


@settings(deadline=None)
@given(random_candidates)
def test_what_was_built_is_a_trie(candidates):
    trie = build_trie(CandidateSet.from_strings(candidates), "optional")
    rows = (trie.child_ptr, trie.child_byte, trie.child_node)
    assert trie_is_sound(trie.byte, trie.leaf, trie.terminal, trie.branch, *rows)
    assert is_trie(trie.byte, trie.leaf, trie.terminal, trie.branch, *rows)
    assert ranks_are_sound(trie.branch, trie.branch_rank)


def test_arrays_that_are_almost_a_trie_are_one_exactly_if_building_it_again_gives_the_same():
    choose = random.Random(11)
    alike = {True: 0, False: 0}
    for _ in range(4_000):
        words = ["".join(choose.choice("ab") for _ in range(choose.randint(1, 6))) for _ in range(choose.randint(1, 6))]
        trie = build_trie(CandidateSet.from_strings(words), "never")
        names = ("byte", "leaf", "terminal", "branch", "child_ptr", "child_byte", "child_node")
        arrays = {name: getattr(trie, name).copy() for name in names}
        for _ in range(choose.randint(1, 3)):
            name = choose.choice([name for name, array in arrays.items() if array.size])
            array = arrays[name]
            k = choose.randrange(array.size)
            if name in ("leaf", "terminal", "branch"):
                array[k] ^= np.uint64(1) << np.uint64(choose.randrange(trie.n_nodes))
            elif name in ("byte", "child_byte"):
                array[k] = choose.choice((97, 98, 99, 0))
            else:
                array[k] = choose.randrange(-1, trie.n_nodes + 2)
        # The rest is what the caller of the kernel has proved before.
        n_branches = len(bits_of(arrays["branch"]))
        pointers = arrays["child_ptr"]
        if pointers.size != n_branches + 1 or not rows_are_sound(pointers, arrays["child_node"].size):
            continue
        found = trie_is_sound(*arrays.values())
        assert found == is_trie(*arrays.values()), (words, arrays)
        alike[found] += 1
    assert min(alike.values()) > 150


def test_live_nodes_are_the_root_all_ends_and_none_behind_the_last_node():
    choose = random.Random(12)
    seen = set()
    for _ in range(500):
        n_nodes = choose.choice((1, 2, 63, 64, 65, 128))
        n_words = -(-n_nodes // 64)
        terminal = np.array([choose.getrandbits(64) & choose.getrandbits(64) for _ in range(n_words)], np.uint64)
        if n_nodes % 64:
            terminal[-1] &= np.uint64((1 << n_nodes % 64) - 1)
        live = terminal | np.uint64(choose.randrange(2))
        if choose.random() < 0.5:
            live[choose.randrange(n_words)] ^= np.uint64(1 << choose.randrange(64))
        bits = set(bits_of(live))
        expected = 0 in bits and bits >= set(bits_of(terminal)) and max(bits) < n_nodes
        assert live_is_sound(live, terminal, n_nodes) == expected
        seen.add(expected)
    assert seen == {True, False}


def test_rows_ascend_from_zero_to_the_number_of_entries():
    for rows, n_entries, expected in (
        ([0], 0, True),
        ([0], 1, False),
        ([0, 2, 2, 3], 3, True),
        ([0, 2, 1, 3], 3, False),
        ([1, 3], 3, False),
        ([0, -1, 3], 3, False),
        ([0, 2**31 - 1, 3], 3, False),
    ):
        assert rows_are_sound(np.array(rows, np.int32), n_entries) == expected


def test_counts_are_those_of_the_bits_before_each_word():
    bits = np.array([0b1011, 0, 1 << 63], np.uint64)
    for ranks, expected in (([0, 3, 3, 4], True), ([0, 3, 3, 3], False), ([1, 3, 3, 4], False), ([0, 3, 2, 4], False)):
        assert ranks_are_sound(bits, np.array(ranks, np.int32)) == expected


def test_ids_are_those_of_tokens_with_bytes():
    offsets = np.array([0, 1, 1, 3])
    for ids, expected in (([], True), ([0, 2], True), ([1], False), ([3], False), ([-1], False), ([2**31 - 1], False)):
        assert ids_are_sound(np.array(ids, np.int32), offsets) == expected
