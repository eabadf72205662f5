"""The fail-link pass, on pyahocorasick's matcher, gives the masks that walking trie and goto together gives."""

import ahocorasick
import pytest

from candidate_sets import candidate_set
from maskfeed_automata import Vocabulary, compile
from tokenizer_files import tokenizer_directory

SETS = ["bfcl_functions", "emoji", "naics_paths", "nasty_whitespace", "numeric_ids", "places_nonlatin"]


def masks_by_fail_links(tokens, candidates):
    """Prefix -> ids: run the matcher over every candidate; a match that ends at byte e and has n bytes is permitted
    after the first e + 1 - n bytes."""
    ids_of: dict[bytes, list[int]] = {}
    for token_id, token in enumerate(tokens):
        if token:
            ids_of.setdefault(token, []).append(token_id)
    matcher = ahocorasick.Automaton()
    for token in ids_of:
        matcher.add_word(token.decode("latin-1"), token)
    matcher.make_automaton()
    masks: dict[bytes, set[int]] = {}
    for candidate in candidates:
        for last, token in matcher.iter(candidate.decode("latin-1")):
            masks.setdefault(candidate[: last + 1 - len(token)], set()).update(ids_of[token])
    return masks


@pytest.mark.parametrize("name", SETS)
def test_both_implementations_agree_at_every_prefix(name):
    vocabulary = Vocabulary.from_tokenizer(tokenizer_directory("smollm2"))
    tokens = [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)]
    id_of_byte = {token: token_id for token_id, token in enumerate(tokens) if token and len(token) == 1}
    encoded = [text.encode() for text in candidate_set(name)[:400]]
    candidates = [text for text in encoded if all(text[k : k + 1] in id_of_byte for k in range(len(text)))]
    assert candidates
    masks = masks_by_fail_links(tokens, candidates)
    # Without stop ids the permitted tokens are the mask itself. Every node is visited by single bytes.
    cursor = compile(vocabulary, candidates, stop_token_ids=[]).cursor()
    seen = set()
    for candidate in candidates:
        for n in range(len(candidate) + 1):
            if candidate[:n] not in seen:
                seen.add(candidate[:n])
                assert cursor.allowed_token_ids().tolist() == sorted(masks.get(candidate[:n], ()))
            if n < len(candidate):
                cursor.advance(id_of_byte[candidate[n : n + 1]])
        cursor.rollback(cursor.n_tokens)
