"""Vocabularies for tests: one of 26 tokens that can be checked by hand, and random ones."""

from hypothesis import strategies as st

from maskfeed_automata import Vocabulary

# ids         0     1     2     3     4     5     6     7      8      9     10     11
_WORDS = [b"a", b"b", b"c", b"d", b"e", b"o", b"f", b"fo", b"oo", b"foo", b"bar", b"food"]
#            12     13    14    15      16      17       18       19      20    21       22       23    24  25
_REST = [b" ", b" a", b"r", None, b"\xc3", b"\xa9", b"\xc3\xa9", b"o", b"\x00", b"\xff", b"", b" foo", b"t", None]

HAND_TOKENS: list[bytes | None] = [*_WORDS, *_REST]
HAND_STOP = 25


def hand_vocabulary() -> Vocabulary:
    """26 tokens; 5 and 19 are twins, 15, 22 and 25 have no bytes, 25 is the stop id."""
    return Vocabulary.from_token_bytes(HAND_TOKENS, stop_token_ids=[HAND_STOP])


# Few different bytes, so that prefixes, twins and collisions are common; NUL, 0xFF, a space and a split "é" among them.
ALPHABET = [0x00, 0x20, 0x61, 0x62, 0xC3, 0xA9, 0xFF]

_short_bytes = st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=4).map(bytes)

random_tokens = st.tuples(
    st.sets(st.sampled_from(ALPHABET)),
    st.lists(st.one_of(_short_bytes, st.none(), st.just(b"")), max_size=24),
    st.randoms(use_true_random=False),
)


def tokens_of(drawn) -> list[bytes | None]:
    """Tokens of one draw of `random_tokens`: all single bytes but the drawn ones, the drawn tokens, shuffled."""
    missing, tokens, random = drawn
    result = [bytes([byte]) for byte in ALPHABET if byte not in missing] + tokens + [None, None]
    random.shuffle(result)
    return result


random_candidates = st.lists(
    st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=7).map(bytes), min_size=1, max_size=12
)
