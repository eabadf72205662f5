"""Vocabularies at their edges: padding, holes, control tokens, twins, split characters, sizes around words of 32."""

import numpy as np
import pytest

from maskfeed_automata import Batch, Vocabulary, bitmask_width, compile
from reference import Oracle

SIZES = [size for base in (32, 64, 1024, 32_768) for size in range(base - 2, base + 3)]
BYTES: list[bytes | None] = [bytes([byte]) for byte in range(256)]


def masks_along(vocabulary: Vocabulary, candidates: list[bytes], token_ids: list[int]):
    """The same position by cursor, bitmask row and batch; compared here, returned as a list of ids."""
    automaton = compile(vocabulary, candidates)
    cursor = automaton.cursor()
    for token_id in token_ids:
        cursor.advance(token_id)
    row = np.full(bitmask_width(vocabulary.size), -1, np.int32)
    cursor.fill_bitmask(row)
    ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    batch = Batch(vocabulary, 1)
    batch.start(0, automaton, automaton.stop_token_ids)
    rows = batch.step(np.zeros(1, np.int32), np.array([0, len(token_ids)]), np.array(token_ids, np.int32))
    assert ids == cursor.allowed_token_ids().tolist() == sorted(rows.token_ids.tolist())
    return ids


@pytest.mark.parametrize("size", SIZES)
def test_the_last_id_is_permitted_whatever_the_size(size):
    tokens: list[bytes | None] = [b"x"] * (size - 1) + [b"ab"]
    tokens[0], tokens[1] = b"a", b"b"
    vocabulary = Vocabulary.from_token_bytes(tokens, stop_token_ids=[2])
    assert masks_along(vocabulary, [b"ab", b"b"], []) == [0, 1, size - 1]
    assert masks_along(vocabulary, [b"ab", b"b"], [size - 1]) == [2]


@pytest.mark.parametrize("n_padding", [0, 1, 31, 32, 33, 293])
def test_padding_behind_the_tokens_and_a_wider_model_change_no_mask(n_padding):
    """Qwen has 151,669 tokens in 151,936 columns: the rest is never permitted."""
    vocabulary = Vocabulary.from_token_bytes([*BYTES, b"foo", None, *[None] * n_padding], stop_token_ids=[257])
    assert masks_along(vocabulary, [b"foo"], []) == [ord("f"), 256]
    assert masks_along(vocabulary, [b"foo"], [256]) == [257]
    assert vocabulary.control_token_ids().tolist() == list(range(257, 258 + n_padding))


def test_ids_behind_the_logits_are_dropped_and_the_others_stay():
    vocabulary = Vocabulary.from_token_bytes([*BYTES, b"foo", b"fo", None], stop_token_ids=[258])
    narrow = vocabulary.limited_to(257)
    assert (narrow.size, narrow.stop_token_ids) == (257, ())
    assert compile(narrow, [b"foo"]).cursor().allowed_token_ids().tolist() == [ord("f"), 256]


def test_holes_between_tokens_are_never_permitted():
    tokens: list[bytes | None] = [None, b"a", None, b"ab", b"", b"b", None]
    vocabulary = Vocabulary.from_token_bytes(tokens, stop_token_ids=[6])
    assert masks_along(vocabulary, [b"ab"], []) == [1, 3]
    assert masks_along(vocabulary, [b"ab"], [1]) == [5]


def test_every_id_with_the_same_bytes_is_permitted_and_leads_to_the_same_place():
    """Llama-2 has "A" and <0x41>; other vocabularies list an added token twice."""
    vocabulary = Vocabulary.from_token_bytes([b"A", b"A", b"B", b"AB", b"A", b"AB", None], stop_token_ids=[6])
    assert masks_along(vocabulary, [b"AB"], []) == [0, 1, 3, 4, 5]
    for token_id in (0, 1, 4):
        assert masks_along(vocabulary, [b"AB"], [token_id]) == [2]


def test_tokens_that_end_inside_a_character_are_followed_by_its_rest_only():
    # "é" is C3 A9, "è" is C3 A8, "日" is E6 97 A5.
    tokens = [*BYTES, b"caf\xc3", b"\xe6\x97", b"\xa5\xe6", b"\xa9 ", None]
    vocabulary = Vocabulary.from_token_bytes(tokens, stop_token_ids=[260])
    candidates = [text.encode() for text in ("café", "cafè", "café au lait", "日日")]
    assert masks_along(vocabulary, candidates, [256]) == [0xA8, 0xA9, 259]
    assert masks_along(vocabulary, candidates, [257]) == [0xA5, 258]
    assert masks_along(vocabulary, candidates, [257, 258]) == [0x97]
    assert masks_along(vocabulary, candidates, [256, 0xA8]) == [260]


@pytest.mark.parametrize("text", [b"</s>", b"say </s>", b"</s></s>"])
def test_the_text_of_a_control_token_is_spelt_by_ordinary_tokens_only(text):
    """A control token has no bytes, so its own id is in no mask before the end of a candidate."""
    control, stop = 256, 257
    vocabulary = Vocabulary.from_token_bytes([*BYTES, None, None, b"</", b"s>"], stop_token_ids=[stop])
    oracle = Oracle([*BYTES, None, None, b"</", b"s>"], [text], [stop])
    history: list[int] = []
    for byte in text:
        ids = masks_along(vocabulary, [text], history)
        assert ids == oracle.allowed(history)
        assert not {control, stop} & set(ids)
        history.append(byte)
    assert masks_along(vocabulary, [text], history) == [stop]


def test_control_tokens_in_the_ordinary_vocabulary_keep_their_place_without_bytes(tmp_path):
    import json

    contents = {
        "model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1, "<": 2, "s": 3, ">": 4}, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 1, "content": "<s>", "special": True}],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<s>"}))
    vocabulary = Vocabulary.from_tokenizer(tmp_path, cache_directory=tmp_path)
    assert masks_along(vocabulary, [b"<s>"], []) == [2]
    assert masks_along(vocabulary, [b"<s>"], [2, 3, 4]) == [1]
