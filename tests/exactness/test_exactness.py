"""The judges agree with each other, and the quick part of `make exactness` finds nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brute_force import BruteForce, Tokens, is_inside_character
from exactness_run import Report, main, verdict
from grammar_engines import EngineCounts
from maskfeed_automata import Vocabulary, compile
from nasty_sets import NASTY_SET_NAMES, nasty_set
from reference import Oracle
from vocabularies import random_candidates, random_tokens, tokens_of
from walks import compare_walks


@settings(max_examples=200, deadline=None)
@given(random_tokens, random_candidates, st.sampled_from(["never", "optional", "always"]), st.data())
def test_substring_look_up_permits_what_the_definition_permits(drawn, candidates, leading_space, data):
    tokens = tokens_of(drawn)
    stop_ids = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=2))
    judge = Oracle(tokens, candidates, stop_ids, leading_space)
    oracle = BruteForce(Tokens(tokens, stop_ids), candidates, leading_space)
    assert oracle.members == {variant for variant in judge.index_of if judge.producible(variant)}
    for text in sorted(judge.prefixes):
        history = text_as_tokens(tokens, text, stop_ids)
        if history is not None and any(member.startswith(text) for member in oracle.members):
            assert oracle.allowed(text).tolist() == judge.allowed(history)
            bits = np.unpackbits(oracle.bitmask(text).view(np.uint8), bitorder="little")
            assert np.flatnonzero(bits).tolist() == judge.allowed(history)


def text_as_tokens(tokens, text, stop_ids):
    """The text byte by byte, or None where a byte is no token."""
    ids = {token[0]: token_id for token_id, token in enumerate(tokens) if token and len(token) == 1}
    ids = {byte: token_id for byte, token_id in ids.items() if token_id not in stop_ids}
    return [ids[byte] for byte in text] if all(byte in ids for byte in text) else None


@pytest.mark.parametrize("permitted", [[b"foo", b"food", b"fob"], [b"foo", b"foods"], [b"foo"]])
def test_a_mask_of_another_set_is_found_out(permitted):
    """One member too many, one byte more, one member missing."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"foo", b"od", None]
    oracle = BruteForce(Tokens(tokens, [258]), [b"foo", b"food"])
    automaton = compile(Vocabulary.from_token_bytes(tokens), permitted, stop_token_ids=[258])
    counts, _ = compare_walks(automaton, oracle, tokens, 50, "seed")
    assert any(what.startswith("cursor") for what in counts.mismatches)
    assert any(what.startswith("batch") for what in counts.mismatches)


@pytest.mark.parametrize("character", ["a", "é", "日", "😀"])
def test_a_text_is_inside_a_character_until_its_last_byte(character):
    encoded = b"x" + character.encode()
    inside = [is_inside_character(encoded[:n]) for n in range(len(encoded) + 1)]
    assert inside == [False, False, *[True] * (len(encoded) - 2), False]
    assert not is_inside_character(b"\x80\x80\x80")


@pytest.mark.parametrize("name", NASTY_SET_NAMES)
def test_nasty_sets_are_the_same_every_time_and_without_duplicates(name):
    candidates = nasty_set(name)
    assert candidates == nasty_set(name)
    assert len(set(candidates)) == len(candidates)
    assert min(map(len, candidates)) > 0


def test_the_quick_run_finds_no_difference(capsys):
    assert main(["--quick"]) == 0
    assert "\n0 faults" in capsys.readouterr().out


def test_the_sentence_says_what_was_counted_and_no_more():
    report = Report("one", 300, n_sets=7)
    report.counts.visited = 1_234
    alone = verdict([report], report, is_all=False)
    assert alone.startswith(
        "equal to brute force on the tokenizers and sets that were asked for (1 tokenizers, 7 pairs"
    )
    assert "1,234 prefixes; 0 masks differ from brute force)" in alone
    report.engines = {"xgrammar": EngineCounts()}
    report.engines["xgrammar"].n_masks = 50
    report.engines["xgrammar"].classes["of its own"] = 2
    whole = verdict([report], report, is_all=True)
    assert whole.startswith(
        "equal to brute force and to a full grammar engine on every tokenizer and every set we could find ("
    )
    assert "of 50 of xgrammar 2 for known reasons of its own, 0 for unknown ones" in whole
    report.faults.append("a wrong mask")
    assert verdict([report], report, is_all=True).startswith("not equal to brute force")
