"""Frames: exact round trips, and nothing but frames accepted."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskfeed_automata.errors import RankFailure
from maskfeed_workers.frames import (
    MAX_REASON_BYTES,
    TOKEN_BYTES,
    Frame,
    FrameReader,
    Kind,
    Vote,
    encode_ack,
    encode_evict,
    encode_hello,
    encode_round,
    encode_table,
    encode_vote,
)

HASH = "ab" * 32
NUMBERS = st.integers(-(2**63), 2**63 - 1)
HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
FRAMES = st.one_of(
    st.builds(encode_hello, st.integers(0, 1_000), st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES)),
    st.builds(encode_round, NUMBERS, HASHES),
    st.builds(encode_vote, NUMBERS, st.sampled_from(Vote), st.text(max_size=50)),
    st.builds(encode_table, NUMBERS, st.lists(st.sampled_from(Vote)).map(tuple)),
    st.builds(encode_ack, NUMBERS),
    st.builds(encode_evict, NUMBERS, HASHES),
)


@given(st.lists(FRAMES), st.lists(st.integers(1, 60)))
def test_a_stream_cut_anywhere_gives_the_same_frames(encoded, cuts):
    stream = b"".join(encoded)
    whole = FrameReader().feed(stream)
    reader, pieces, at = FrameReader(), [], 0
    for cut in cuts:
        pieces += reader.feed(stream[at : at + cut])
        at += cut
    pieces += reader.feed(stream[at:])
    assert pieces == whole
    assert len(whole) == len(encoded)


@pytest.mark.parametrize(
    ("encoded", "kind", "read", "value"),
    [
        (encode_hello(3, b"t" * TOKEN_BYTES), Kind.HELLO, Frame.token, b"t" * TOKEN_BYTES),
        (encode_round(3, HASH), Kind.ROUND, Frame.artifact_hash, HASH),
        (encode_vote(3, Vote.FAILED, "no rööm"), Kind.VOTE, Frame.vote, (Vote.FAILED, "no rööm")),
        (encode_vote(3, Vote.READY), Kind.VOTE, Frame.vote, (Vote.READY, "")),
        (encode_table(3, (Vote.READY, Vote.ABSENT)), Kind.TABLE, Frame.votes, (Vote.READY, Vote.ABSENT)),
        (encode_evict(3, HASH, 7), Kind.EVICT, Frame.artifact_hash, HASH),
        (encode_evict(3, HASH, 7), Kind.EVICT, Frame.words, 7),
    ],
)
def test_what_was_encoded_is_read(encoded, kind, read, value):
    (frame,) = FrameReader().feed(encoded)
    assert (frame.kind, frame.round_number) == (kind, 3)
    assert read(frame) == value


def test_a_long_reason_is_cut_and_stays_a_frame():
    (frame,) = FrameReader().feed(encode_vote(1, Vote.FAILED, "ä" * 5_000))
    vote, reason = frame.vote()
    assert vote is Vote.FAILED
    assert reason == "ä" * (MAX_REASON_BYTES // 2)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<IBq", 9, 99, 1),
        struct.pack("<IBq", 8, Kind.ACK, 1),
        struct.pack("<I", 0),
        struct.pack("<I", 0xFFFFFFFF),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["unknown kind", "too short", "empty", "too long", "another protocol"],
)
def test_what_is_no_frame_is_refused_before_it_is_waited_for(data):
    with pytest.raises(RankFailure):
        FrameReader().feed(data)


@pytest.mark.parametrize(
    ("frame", "read"),
    [
        (Frame(Kind.ROUND, 1, b"short"), Frame.artifact_hash),
        (Frame(Kind.EVICT, 1, b"x" * 33), Frame.artifact_hash),
        (Frame(Kind.VOTE, 1, b""), Frame.vote),
        (Frame(Kind.VOTE, 1, b"\x07"), Frame.vote),
        (Frame(Kind.VOTE, 1, b"\x02" + b"x" * (MAX_REASON_BYTES + 1)), Frame.vote),
        (Frame(Kind.TABLE, 1, b"\x01\x03"), Frame.votes),
        (Frame(Kind.HELLO, 1, b"token"), Frame.token),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused(frame, read):
    with pytest.raises(RankFailure):
        read(frame)
