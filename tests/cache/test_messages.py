"""Handles and feed messages survive their text form, and text that is none is refused."""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feed_samples import RECORD
from maskfeed_automata.errors import CorruptArtifact, HandleError
from maskfeed_cache.feed_messages import (
    Announcement,
    Clear,
    Dead,
    Ended,
    EngineRecord,
    Failed,
    HeldUsage,
    Ready,
    decode_engine_event,
    decode_gateway_message,
    encode_message,
)
from maskfeed_cache.handle import PROBE, Handle

HEX = "0123456789abcdef"
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(0, 2**63 - 1)


def hexadecimal(n_digits: int) -> st.SearchStrategy[str]:
    return st.text(HEX, min_size=n_digits, max_size=n_digits)


HANDLES = st.builds(
    Handle,
    artifact_hash=hexadecimal(64) | st.just(PROBE),
    epochs=st.lists(hexadecimal(16), min_size=1, max_size=5).map(tuple),
    reserved_id=st.integers(0, 9_999_999_999),
    nonce=hexadecimal(32),
)
GATEWAY_MESSAGES = (
    st.builds(Announcement, TEXT, NUMBERS, TEXT, NUMBERS, TEXT, TEXT, NUMBERS)
    | st.builds(Ended, TEXT)
    | st.builds(Clear, TEXT, NUMBERS)
)
ENGINE_EVENTS = (
    st.builds(Ready, TEXT, TEXT, TEXT) | st.builds(Failed, TEXT, TEXT, TEXT, TEXT) | st.builds(Dead, TEXT, TEXT)
)
RECORDS = st.builds(
    EngineRecord,
    epoch=TEXT,
    group=TEXT,
    fingerprint=TEXT,
    logits_width=NUMBERS,
    max_model_len=NUMBERS,
    reserved_id=NUMBERS,
    stop_token_ids=st.lists(NUMBERS, max_size=4).map(tuple),
    model=TEXT,
    reasoning_parser=st.none() | TEXT,
    format_versions=st.lists(NUMBERS, max_size=3).map(tuple),
    n_ranks=NUMBERS,
    engine_version=TEXT,
    held=st.none() | st.builds(HeldUsage, TEXT, *[NUMBERS] * 6),
)


def over_the_wire(fields: dict[str, str | int]) -> dict[bytes, bytes]:
    """What the driver makes of the fields on their way to Redis and back."""
    return {key.encode(): str(value).encode() for key, value in fields.items()}


@given(HANDLES)
def test_a_handle_survives_its_text(handle: Handle) -> None:
    assert Handle.from_text(handle.to_text()) == handle


GOOD = f"mf1:{'a' * 64}:7:{'b' * 32}:{'c' * 16}"


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        b"mf1",
        {"candidates": ["a"]},
        "",
        "mf1",
        GOOD.replace("mf1", "mf2"),
        GOOD.upper(),
        GOOD + "\n",
        " " + GOOD,
        GOOD + ",",
        GOOD + ":more",
        GOOD.replace(":7:", ":-7:"),
        GOOD.replace(":7:", "::"),
        GOOD.replace(":7:", ":07:"),
        GOOD.replace(":7:", ":12345678901:"),
        GOOD.replace(":7:", ":\u0667:"),
        GOOD.replace("a" * 64, "a" * 63),
        GOOD.replace("a" * 64, "probes"),
        GOOD.replace("b" * 32, "b" * 31),
        GOOD.replace("c" * 16, ""),
        GOOD.replace("c" * 16, "c" * 15),
    ],
)
def test_text_that_is_not_exactly_a_handle_is_refused(text: object) -> None:
    with pytest.raises(HandleError) as caught:
        Handle.from_text(text)
    assert caught.value.context["field"] == "maskfeed"


@given(st.text(string.printable))
def test_no_text_makes_the_handle_reader_fail_in_another_way(text: str) -> None:
    try:
        Handle.from_text(text)
    except HandleError:
        return
    assert Handle.from_text(text).to_text() == text


@given(GATEWAY_MESSAGES)
def test_a_gateway_message_survives_the_stream(message: Announcement | Ended) -> None:
    assert decode_gateway_message(over_the_wire(encode_message(message))) == message


@given(ENGINE_EVENTS)
def test_an_engine_event_survives_the_stream(event: Ready | Failed | Dead) -> None:
    assert decode_engine_event(over_the_wire(encode_message(event))) == event


@given(RECORDS)
def test_an_engine_record_survives_its_json(record: EngineRecord) -> None:
    read = EngineRecord.from_json(record.to_json())
    assert (read, read.held) == (record, record.held)


@given(st.dictionaries(st.binary(max_size=8), st.binary(max_size=8), max_size=4))
def test_an_entry_of_any_bytes_is_read_or_refused_typed(fields: dict[bytes, bytes]) -> None:
    for decode in (decode_gateway_message, decode_engine_event):
        with pytest.raises(CorruptArtifact):
            decode(fields)


def test_an_entry_of_the_other_direction_is_refused() -> None:
    with pytest.raises(CorruptArtifact):
        decode_gateway_message(over_the_wire(encode_message(Dead("x", ""))))
    with pytest.raises(CorruptArtifact):
        decode_engine_event(over_the_wire(encode_message(Ended("1"))))


@pytest.mark.parametrize("field", ["artifact_hash", "size_bytes", "nonce", "lifetime_ms", "gateway"])
def test_an_announcement_without_one_of_its_fields_is_refused(field: str) -> None:
    fields = over_the_wire(encode_message(Announcement("a", 1, "n", 1, "g")))
    del fields[field.encode()]
    with pytest.raises(CorruptArtifact):
        decode_gateway_message(fields)


@pytest.mark.parametrize("field", json.loads(RECORD.to_json()))
def test_a_record_without_one_of_its_fields_or_with_another_type_is_refused(field: str) -> None:
    parts: dict[str, Any] = json.loads(RECORD.to_json())
    without = {key: value for key, value in parts.items() if key != field}
    # figures were added later: a record may come without them
    for wrong in [{**parts, field: {}}, *([without] if field != "held" else [])]:
        with pytest.raises(CorruptArtifact):
            EngineRecord.from_json(json.dumps(wrong).encode())
