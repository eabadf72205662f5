"""Candidates that break string code, through real tokenizers: what is asked for can be said, byte for byte.

Chains, 64 KB and the rows of single positions are in test_candidates and test_hand_vocabulary; here whole answers are
walked, under every leading-space mode, and by the tokenizer's own encoding.
"""

import unicodedata
from functools import cache

import pytest
from tokenizers import Tokenizer

from brute_force import BruteForce, Tokens
from candidate_sets import candidate_set
from maskfeed_automata import Vocabulary, compile
from maskfeed_automata.errors import CandidateError, TokenNotAllowed
from nasty_sets import CONTROL_TEXTS, NASTY_SET_NAMES, nasty_set
from tokenizer_files import tokenizer_directory
from walks import compare_walks


@cache
def smollm2() -> tuple[Vocabulary, list[bytes | None], Tokens]:
    vocabulary = Vocabulary.from_tokenizer(tokenizer_directory("smollm2"))
    token_bytes = [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)]
    return vocabulary, token_bytes, Tokens(token_bytes, vocabulary.stop_token_ids)


def spell(text: bytes) -> list[int]:
    """The longest token again and again."""
    _, _, tokens = smollm2()
    token_ids = []
    while text:
        end = max(tokens.ends(text, 0))
        token_ids.append(tokens.ids_of[text[:end]][0])
        text = text[end:]
    return token_ids


@pytest.mark.parametrize("leading_space", ["never", "optional", "always"])
@pytest.mark.parametrize("name", [name for name in NASTY_SET_NAMES if name != "long_candidates"])
def test_every_nasty_candidate_can_be_said_and_is_recognised(name, leading_space):
    vocabulary, _, tokens = smollm2()
    candidates = [text for text in nasty_set(name) if set(text) <= tokens.single_bytes]
    automaton = compile(vocabulary, candidates, leading_space=leading_space)
    index_of = {text: index for index, text in enumerate(candidates)}
    for text in candidates[:: len(candidates) // 60 + 1]:
        index = index_of[text]
        for space in {"never": [b""], "optional": [b"", b" "], "always": [b" "]}[leading_space]:
            cursor = automaton.cursor()
            for token_id in spell(space + text):
                cursor.advance(token_id)
            # An exact member wins over the spaced form of another.
            exact = index_of.get(space + text) if leading_space == "optional" else None
            assert cursor.candidate_index == (index if exact is None else exact)
            cursor.advance(vocabulary.stop_token_ids[0])
            assert cursor.is_finished


@pytest.mark.parametrize("leading_space", ["never", "optional", "always"])
@pytest.mark.parametrize("name", ["spaces", "prefix_pairs", "nested_runs", "control_characters", "twins"])
def test_masks_of_nasty_sets_equal_brute_force_under_every_leading_space_mode(name, leading_space):
    vocabulary, token_bytes, tokens = smollm2()
    candidates = [text for text in nasty_set(name) if set(text) <= tokens.single_bytes]
    oracle = BruteForce(tokens, candidates, leading_space)
    automaton = compile(vocabulary, candidates, leading_space=leading_space)
    counts, _ = compare_walks(automaton, oracle, token_bytes, 100, name)
    assert counts.mismatches == []
    assert counts.visited >= 100


def test_a_vocabulary_without_all_bytes_refuses_what_it_lacks_and_says_which():
    """SmolLM2 has no token for some control characters and bytes above F4."""
    vocabulary, _, tokens = smollm2()
    missing = min(set(range(256)) - tokens.single_bytes)
    with pytest.raises(CandidateError) as caught:
        compile(vocabulary, [b"fine", b"not " + bytes([missing]), b"fine too"])
    assert caught.value.context["index"] == 1


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_composed_and_decomposed_twins_are_different_answers(form):
    vocabulary, _, _ = smollm2()
    wanted, other = (
        unicodedata.normalize(f, "Việt Nam café").encode() for f in (form, {"NFC": "NFD", "NFD": "NFC"}[form])
    )
    assert wanted != other
    shared = next(n for n in range(len(wanted)) if wanted[n] != other[n])
    cursor = compile(vocabulary, [wanted]).cursor()
    for token_id in spell(wanted[:shared]):
        cursor.advance(token_id)
    with pytest.raises(TokenNotAllowed):
        cursor.advance(spell(other[shared : shared + 1])[0])
    assert compile(vocabulary, [wanted, other]).n_candidates == 2


@pytest.mark.parametrize("name", ["smollm2", "qwen3", "gemma3"])
def test_the_special_id_of_a_control_token_never_stands_for_its_text(name):
    directory = tokenizer_directory(name)
    vocabulary = Vocabulary.from_tokenizer(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    special = {k: t.content for k, t in tokenizer.get_added_tokens_decoder().items() if t.special}
    texts = list(dict.fromkeys([*special.values(), *CONTROL_TEXTS]))
    cursor = compile(vocabulary, texts).cursor()
    assert not special.keys() & set(cursor.allowed_token_ids().tolist())
    for token_id in special:
        with pytest.raises(TokenNotAllowed):
            cursor.advance(token_id)


def test_emoji_sequences_differ_by_their_joiners_and_tones():
    vocabulary, _, _ = smollm2()
    candidates = [text.encode() for text in candidate_set("emoji")[:600]]
    candidates = [text for text in candidates if set(text) <= smollm2()[2].single_bytes]
    automaton = compile(vocabulary, candidates)
    assert automaton.n_candidates == len(candidates)
    for index, text in enumerate(candidates):
        cursor = automaton.cursor()
        for token_id in spell(text):
            cursor.advance(token_id)
        assert cursor.candidate_index == index
