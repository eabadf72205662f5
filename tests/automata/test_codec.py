"""Artifacts, vocabularies and kept tokenizer automata as bytes: round trips, damage, and bytes crafted to do harm."""

import hashlib
import mmap
import random
import struct
import zlib

import numpy as np
import pytest

from maskfeed_automata import FORMAT_VERSION, Automaton, Batch, TokenizerAutomaton, Vocabulary, compile
from maskfeed_automata.errors import CorruptArtifact, FormatVersionError, VocabularyMismatch
from maskfeed_automata.sections import write_sections
from vocabularies import HAND_TOKENS, hand_vocabulary

# "b" "d" without their single tokens: dead ends, so that the artifact has a `live` section as well.
PRUNED = Vocabulary.from_token_bytes([b"a", b"ab", b"bd", b"b", b" ", b"c", b"a"], stop_token_ids=[5])


def artifacts() -> list[tuple[str, Vocabulary, bytes]]:
    words = [
        "foo",
        "food",
        "bar",
        "barfoo",
        "a",
        " a",
        "fo" * 40,
        *(f"foo{'abcde'[k % 5] * (k + 1)}" for k in range(30)),
    ]
    hand = hand_vocabulary()
    return [
        ("plain", hand, compile(hand, words).to_bytes()),
        ("spaced", hand, compile(hand, words, leading_space="optional").to_bytes()),
        ("pruned", PRUNED, compile(PRUNED, ["abd", "ba", "abab", "bdbd"]).to_bytes()),
    ]


ARTIFACTS = artifacts()
each_artifact = pytest.mark.parametrize(
    ("vocabulary", "blob"), [row[1:] for row in ARTIFACTS], ids=[row[0] for row in ARTIFACTS]
)


def with_checksum(blob: bytearray) -> bytes:
    """The same bytes, their checksum put right: what an attacker would send."""
    checksum = zlib.crc32(blob[32:], zlib.crc32(blob[:28]))
    struct.pack_into("<I", blob, 28, checksum)
    return bytes(blob)


def section_table(blob: bytes) -> dict[str, tuple[int, int]]:
    (n,) = struct.unpack_from("<I", blob, 24)
    rows = (struct.unpack_from("<16sQQ", blob, 96 + 32 * k) for k in range(n))
    return {name.rstrip(b"\0").decode(): (offset, length) for name, offset, length in rows}


def walk_everywhere(automaton: Automaton, vocabulary: Vocabulary) -> None:
    """Run every kernel at many positions; what they answer does not matter, that they come back does."""
    batch = Batch(vocabulary, 1)
    for node in range(0, automaton.n_nodes, max(1, automaton.n_nodes // 40)):
        cursor = automaton.cursor()
        cursor._positions[-1] = node
        for token_id in cursor.allowed_token_ids().tolist():
            assert 0 <= token_id < vocabulary.size
        assert len(cursor.forced_text) <= automaton.n_nodes
        assert cursor.candidate_index is None or cursor.candidate_index < automaton.n_candidates
        batch.start(0, automaton, [])
        batch._positions[0] = node
        tokens = np.arange(vocabulary.size, dtype=np.int32)[node % vocabulary.size :][:1]
        batch.step(np.zeros(1, np.int32), np.array([0, tokens.size]), tokens)


@each_artifact
def test_a_round_trip_from_any_kind_of_buffer(vocabulary, blob, tmp_path):
    path = tmp_path / "artifact"
    path.write_bytes(blob)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        shifted = memoryview(b"x" + blob)[1:]
        for buffer in (blob, bytearray(blob), memoryview(blob), memoryview(mapped), shifted):
            automaton = Automaton.from_bytes(buffer, vocabulary)
            assert automaton.to_bytes() == blob
            assert automaton.nbytes == len(blob)
            assert not any(array.flags.writeable for array in automaton.arrays.by_name().values())
            walk_everywhere(automaton, vocabulary)
            del automaton, buffer
        del shifted


def test_an_aligned_buffer_is_not_copied():
    vocabulary, blob = ARTIFACTS[0][1:]
    automaton = Automaton.from_bytes(blob, vocabulary)
    assert np.shares_memory(automaton.arrays.byte, np.frombuffer(blob, np.uint8))


@each_artifact
def test_every_truncation_is_refused(vocabulary, blob):
    for length in [*range(0, 200), *range(200, len(blob), 7)]:
        with pytest.raises(CorruptArtifact):
            Automaton.from_bytes(blob[:length], vocabulary)
    with pytest.raises(CorruptArtifact):
        Automaton.from_bytes(blob + b"\0", vocabulary)


@each_artifact
def test_every_flipped_bit_is_seen(vocabulary, blob):
    damaged = bytearray(blob)
    for position in range(len(blob)):
        bit = 1 << position % 8
        damaged[position] ^= bit
        with pytest.raises(CorruptArtifact):
            Automaton.from_bytes(bytes(damaged), vocabulary)
        damaged[position] ^= bit


@each_artifact
def test_crafted_bytes_are_refused_or_harmless(vocabulary, blob):
    choose = random.Random(len(blob))
    table = section_table(blob)
    interesting = [0, 1, 2, 63, 64, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF]
    outcomes = {"refused": 0, "harmless": 0}
    for _ in range(1500):
        crafted = bytearray(blob)
        for _ in range(choose.randint(1, 3)):
            offset, length = choose.choice([*table.values(), (0, 96 + 32 * len(table))])
            if not length:
                continue
            position = offset + choose.randrange(length)
            if choose.random() < 0.5 and position + 4 <= offset + length:
                position -= (position - offset) % 4
                value = choose.choice([*interesting, choose.getrandbits(32), choose.randrange(300)])
                struct.pack_into("<I", crafted, position, value)
            else:
                crafted[position] = choose.choice([crafted[position] ^ 1 << choose.randrange(8), choose.randrange(256)])
        try:
            automaton = Automaton.from_bytes(with_checksum(crafted), vocabulary)
        except (CorruptArtifact, VocabularyMismatch):
            outcomes["refused"] += 1
        else:
            outcomes["harmless"] += 1
            walk_everywhere(automaton, vocabulary)
    # Other mask ids, bytes or digests are a sound artifact, though not the one that was compiled.
    assert outcomes["refused"] > 500
    assert outcomes["harmless"] > 50


@pytest.mark.parametrize("name", sorted(section_table(ARTIFACTS[0][2])))
def test_a_missing_or_shorter_section_is_refused(name):
    vocabulary, blob = ARTIFACTS[0][1:]
    names = list(section_table(blob))
    entry = 96 + 32 * names.index(name)
    renamed = bytearray(blob)
    renamed[entry] ^= 0x20
    with pytest.raises(CorruptArtifact):
        Automaton.from_bytes(with_checksum(renamed), vocabulary)
    _, length = section_table(blob)[name]
    if length:
        shorter = bytearray(blob)
        struct.pack_into("<Q", shorter, entry + 24, length - 1)
        with pytest.raises(CorruptArtifact):
            Automaton.from_bytes(with_checksum(shorter), vocabulary)


def test_another_format_version_is_named_as_such():
    vocabulary, blob = ARTIFACTS[0][1:]
    other = bytearray(blob)
    struct.pack_into("<I", other, 12, FORMAT_VERSION + 1)
    with pytest.raises(FormatVersionError) as caught:
        Automaton.from_bytes(with_checksum(other), vocabulary)
    assert caught.value.context == {"expected": FORMAT_VERSION, "found": FORMAT_VERSION + 1}


def test_something_else_is_no_artifact():
    vocabulary = hand_vocabulary()
    for blob in (b"", b"maskfeed", vocabulary.to_bytes(), bytes(4096), memoryview(bytes(400))[::2]):
        with pytest.raises(CorruptArtifact):
            Automaton.from_bytes(blob, vocabulary)
    for blob in (b"", ARTIFACTS[0][2], bytes(4096)):
        with pytest.raises(CorruptArtifact):
            Vocabulary.from_bytes(blob)


def test_a_vocabulary_makes_the_round_trip_with_its_stop_ids():
    vocabulary = hand_vocabulary()
    again = Vocabulary.from_bytes(vocabulary.to_bytes())
    assert (again, hash(again), again.stop_token_ids) == (vocabulary, hash(vocabulary), (25,))
    assert [again.token_bytes(token_id) for token_id in range(26)] == [token or None for token in HAND_TOKENS]
    assert again.to_bytes() == vocabulary.to_bytes()


def test_crafted_vocabularies_are_refused():
    blob = hand_vocabulary().to_bytes()
    choose = random.Random(5)
    table = section_table(blob)
    for _ in range(1000):
        crafted = bytearray(blob)
        offset, length = choose.choice([table["offsets"], table["data"], (32, 64), (0, 96 + 32 * len(table))])
        position = offset + choose.randrange(length)
        if position in range(28, 32):
            continue  # the checksum is put right again
        crafted[position] ^= 1 << choose.randrange(8)
        with pytest.raises(CorruptArtifact):
            Vocabulary.from_bytes(with_checksum(crafted))
    crafted = bytearray(blob)
    struct.pack_into("<q", crafted, table["stop_token_ids"][0], 26)
    with pytest.raises(CorruptArtifact):
        Vocabulary.from_bytes(with_checksum(crafted))


def test_offsets_that_wrap_around_are_refused_although_no_difference_of_neighbours_is_negative():
    vocabulary = hand_vocabulary()
    way = np.array([0, (1 << 63) - 1, -(1 << 63) + 5, -(1 << 62), 0, vocabulary.data.size], np.int64)
    assert (np.diff(way) >= 0).all()
    fingerprint = hashlib.sha256(b"maskfeed vocabulary 1 ")
    fingerprint.update(np.diff(way).astype("<u4").tobytes() + vocabulary.data.tobytes())
    sections = {"offsets": way, "data": vocabulary.data, "stop_token_ids": np.empty(0, np.int64)}
    with pytest.raises(CorruptArtifact, match="offsets"):
        Vocabulary.from_bytes(write_sections(b"voca", 1, (fingerprint.digest(), bytes(32)), sections))


@each_artifact
def test_only_the_writers_own_buffer_is_accepted(vocabulary, blob):
    """Bytes between the sections, one section more, sections in another order: harmless, and refused."""
    table = section_table(blob)
    gap = bytearray(blob)
    offset, length = table["byte"]
    gap[offset + length] = 1
    arrays = {name: np.frombuffer(blob, np.uint8)[a : a + n] for name, (a, n) in table.items()}
    identities = (blob[32:64], blob[64:96])
    more = write_sections(b"set ", FORMAT_VERSION, identities, {**arrays, "more": np.zeros(1, np.uint8)})
    turned = write_sections(b"set ", FORMAT_VERSION, identities, dict(reversed(arrays.items())))
    assert write_sections(b"set ", FORMAT_VERSION, identities, arrays) == blob
    for crafted in (with_checksum(gap), more, turned):
        with pytest.raises(CorruptArtifact):
            Automaton.from_bytes(crafted, vocabulary)


def test_crafted_tokenizer_automata_are_refused():
    vocabulary = hand_vocabulary()
    arguments = (vocabulary.fingerprint, vocabulary.data, vocabulary.offsets)
    blob = vocabulary.tokenizer_automaton.to_bytes(vocabulary.fingerprint)
    again = TokenizerAutomaton.from_bytes(blob, *arguments)
    assert again.to_bytes(vocabulary.fingerprint) == blob
    assert np.array_equal(again.cells, vocabulary.tokenizer_automaton.cells)
    choose = random.Random(6)
    for _ in range(1000):
        crafted = bytearray(blob)
        offset, length = choose.choice([*section_table(blob).values(), (0, 160)])
        crafted[offset + choose.randrange(length)] ^= 1 << choose.randrange(8)
        if with_checksum(crafted) != blob:
            with pytest.raises(CorruptArtifact):
                TokenizerAutomaton.from_bytes(with_checksum(crafted), *arguments)
