"""Real tokenizers: their bytes, their own encodings, and masks against brute force over their whole vocabulary."""

import random
import unicodedata
from functools import cache

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from candidate_sets import CANDIDATE_SET_NAMES, candidate_set
from maskfeed_automata import Batch, Vocabulary, compile
from maskfeed_automata.errors import VocabularyError
from reference import Oracle
from tokenizer_files import TOKENIZER_NAMES, tokenizer_directory

each_tokenizer = pytest.mark.parametrize("name", TOKENIZER_NAMES)
# More families with a tokenizer.json; those in other formats are compared with their own libraries in test_token_files.
_MORE = [pytest.param(name, marks=pytest.mark.full) for name in ("deepseek_v3", "llama2")]
each_encoder = pytest.mark.parametrize("name", [*TOKENIZER_NAMES, *_MORE])

# What an encoder puts before each text.
BEFORE = {"llama2": " "}

TEXTS = [
    "Hello world",
    " leading and trailing ",
    "a  b   c\n\n\td\r\n\r\n",
    "naïve café — “quotes” 'single'",
    "日本語のテキスト、中文，한국어",  # noqa: RUF001
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 \U0001f9ff",
    "def f(x):\n    return x**2  # ∑",
    "http://example.org/z?q=1&r=%20",
    "Ωmega й ذ ש 𝔘𝔫𝔦",  # noqa: RUF001
    "<unused0> <mask> [multimodal] <tool_call>",
    "  \n   \t\t",
    "1234567890 3.14159 ١٢٣",
]


@cache
def vocabulary_of(name: str) -> Vocabulary:
    return Vocabulary.from_tokenizer(tokenizer_directory(name))


@cache
def tokens_of(name: str) -> list[bytes | None]:
    vocabulary = vocabulary_of(name)
    return [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)]


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_directory(name) / "tokenizer.json"))


def encode(name: str, text: str) -> list[int]:
    return tokenizer_of(name).encode(text, add_special_tokens=False).ids


@each_encoder
def test_the_bytes_of_an_encoding_are_the_bytes_of_the_text(name):
    for text in TEXTS:
        normal = unicodedata.normalize("NFC", text) if name == "qwen3" else text
        assert vocabulary_of(name).text_bytes(encode(name, text)) == (BEFORE.get(name, "") + normal).encode()


@each_encoder
def test_every_token_decodes_to_its_bytes(name):
    """The tokenizer's own decoder, one id at a time behind an "a"; half characters show as U+FFFD there."""
    tokens = tokens_of(name)
    # The last one: the first may be the byte piece <0x61>, which joins with bytes behind it.
    anchor = max(token_id for token_id, token in enumerate(tokens) if token == b"a")
    decoded = tokenizer_of(name).decode_batch(
        [[anchor, token_id] for token_id in range(len(tokens))], skip_special_tokens=False
    )
    wrong = [
        token_id
        for token_id, (token, text) in enumerate(zip(tokens, decoded, strict=True))
        if token is not None and "a" + token.decode("utf-8", "replace") != text
    ]
    assert wrong == []


@each_encoder
def test_control_tokens_have_no_bytes_and_the_end_is_one_of_them(name):
    vocabulary = vocabulary_of(name)
    controls = set(vocabulary.control_token_ids().tolist())
    special = {k for k, token in tokenizer_of(name).get_added_tokens_decoder().items() if token.special}
    assert special <= controls
    assert vocabulary.stop_token_ids
    assert set(vocabulary.stop_token_ids) <= controls
    assert vocabulary.limited_to(vocabulary.size - 1).size == vocabulary.size - 1


@pytest.mark.parametrize("name", ["smollm2", "qwen3", "gemma3"])
def test_the_tokenizer_as_an_object_is_read_alike(name):
    by_object = Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(tokenizer_directory(name)))
    tokens = [by_object.token_bytes(token_id) for token_id in range(by_object.size)]
    different = [k for k, (a, b) in enumerate(zip(tokens, tokens_of(name), strict=True)) if a != b]
    # transformers' Gemma class makes a control token of <mask>, which the files hold for text.
    assert different == ([4] if name == "gemma3" else [])
    assert by_object.stop_token_ids == vocabulary_of(name).stop_token_ids


@pytest.mark.full
def test_an_object_that_was_made_with_another_decoder_than_the_files_is_refused():
    """transformers 5 makes a Llama tokenizer, SentencePiece style, of DeepSeek's byte-level one."""
    rebuilt = AutoTokenizer.from_pretrained(tokenizer_directory("deepseek_v3"))
    with pytest.raises(VocabularyError, match="looks byte-level"):
        Vocabulary.from_tokenizer(rebuilt)


@each_tokenizer
@pytest.mark.parametrize("leading_space", ["never", "optional"])
def test_masks_equal_brute_force_over_the_whole_vocabulary(name, leading_space):
    choose = random.Random(name)
    candidates = [text.encode() for source in CANDIDATE_SET_NAMES for text in choose.sample(candidate_set(source), 3)]
    spelt = {token[0] for token in tokens_of(name) if token and len(token) == 1}
    candidates = [text for text in dict.fromkeys(candidates) if set(text) <= spelt]
    # A token that is part of no candidate can't be permitted; leaving those out makes the oracle fast.
    everything = b"\n".join(b" " + text for text in candidates)
    tokens = [token if token and token in everything else None for token in tokens_of(name)]
    stop_ids = vocabulary_of(name).stop_token_ids
    oracle = Oracle(tokens, candidates, stop_ids, leading_space)
    automaton = compile(vocabulary_of(name), candidates, leading_space=leading_space)
    for _ in range(12):
        cursor, history = automaton.cursor(), []
        while not cursor.is_finished and len(history) < 12:
            allowed = oracle.allowed(history)
            assert cursor.allowed_token_ids().tolist() == allowed
            history.append(choose.choice(allowed))
            cursor.advance(history[-1])
        assert cursor.candidate_index == oracle.index_of.get(oracle.text(history))


@each_encoder
def test_the_tokenizers_own_encoding_of_every_candidate_is_permitted(name):
    vocabulary = vocabulary_of(name)
    choose = random.Random(name)
    n_checked = n_sampled = 0
    before = BEFORE.get(name, "")
    for source in CANDIDATE_SET_NAMES:
        candidates = candidate_set(source)
        candidates = choose.sample(candidates, min(150, len(candidates)))
        encodings = [encode(name, text) for text in candidates]
        exact = [
            # Not those that the tokenizer changes (NFC), or in which it sees a control token.
            None not in map(vocabulary.token_bytes, ids) and vocabulary.text_bytes(ids) == (before + text).encode()
            for text, ids in zip(candidates, encodings, strict=True)
        ]
        candidates = [text for text, keep in zip(candidates, exact, strict=True) if keep]
        encodings = [ids for ids, keep in zip(encodings, exact, strict=True) if keep]
        n_sampled += len(exact)
        n_checked += len(candidates)
        automaton = compile(vocabulary, candidates, leading_space="always" if before else "never")
        for index, ids in enumerate(encodings):
            cursor = automaton.cursor()
            for token_id in ids:
                cursor.advance(token_id)
            assert cursor.candidate_index == index
        check_in_a_batch(vocabulary, automaton, encodings)
    assert n_checked > 0.97 * n_sampled


def check_in_a_batch(vocabulary, automaton, encodings):
    """All encodings at once, one slot each: every next token is in its row, the end permits the stop ids."""
    batch = Batch(vocabulary, len(encodings))
    slots = np.arange(len(encodings), dtype=np.int32)
    for slot in slots:
        batch.start(slot, automaton, vocabulary.stop_token_ids)
    rest = [[*ids, vocabulary.stop_token_ids[0]] for ids in encodings]
    pointers, tokens = np.zeros(slots.size + 1, np.int64), np.empty(0, np.int32)
    while slots.size:
        rows = batch.step(slots, pointers, tokens)
        assert not rows.failed.any()
        following = [rest[slot].pop(0) for slot in slots]
        for k, token_id in enumerate(following):
            assert token_id in rows.token_ids[rows.row_ptr[k] : rows.row_ptr[k + 1]]
        going_on = [k for k, slot in enumerate(slots) if rest[slot]]
        slots, tokens = slots[going_on], np.array(following, np.int32)[going_on]
        pointers = np.arange(slots.size + 1, dtype=np.int64)
