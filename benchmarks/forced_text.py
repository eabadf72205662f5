"""How many decode steps forced text would save.

Where only one continuation is left, an engine could append it without decoding. Members of every set are taken
at random and encoded by each tokenizer; a token counts as saved if it lies wholly inside a stretch that was forced
where decoding stood. A token that reaches beyond the stretch is decoded, so nothing here depends on how a model splits
text. The end of the answer is forced too where nothing continues it, and counted apart.

At every place that is looked at, forced text is asserted to be what all members that begin like this have in common.
"""

import bisect
import random
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from candidate_sets import CANDIDATE_SET_NAMES, candidate_set
from maskfeed_automata import Automaton, Vocabulary, compile
from tokenizer_files import TOKENIZER_NAMES, tokenizer_directory

__all__ = ["measure_forced_text", "measure_set"]

_SAMPLE = 300


def measure_set(vocabulary: Vocabulary, tokenizer: Tokenizer, candidates: list[str]) -> dict[str, Any]:
    """Tokens, saved tokens and forced ends over a sample of one set."""
    automaton = compile(vocabulary, candidates)
    assert automaton.stop_token_ids, "an end can only be forced where there is one"
    members = sorted(candidate.encode() for candidate in candidates)
    chosen = random.Random(len(candidates)).sample(candidates, min(_SAMPLE, len(candidates)))
    n_tokens = n_saved = n_forced_ends = n_bytes = n_other = 0
    for text in chosen:
        token_ids = tokenizer.encode(text, add_special_tokens=False).ids
        spelt = [vocabulary.token_bytes(token_id) or b"" for token_id in token_ids]
        # A tokenizer that normalises (NFC), or reads a control token, does not spell the text itself.
        if b"".join(spelt) != text.encode():
            n_other += 1
            continue
        saved, forced_end = _saved_tokens(automaton, members, token_ids, spelt)
        n_tokens += len(token_ids)
        n_saved += saved
        n_forced_ends += forced_end
        n_bytes += len(text.encode())
    n_answers = len(chosen) - n_other
    return {
        "candidates": len(members),
        "answers": n_answers,
        "not_spelt": n_other,
        "bytes": n_bytes,
        "tokens": n_tokens,
        "saved_tokens": n_saved,
        "forced_ends": n_forced_ends,
        "saved_share": n_saved / n_tokens if n_tokens else 0.0,
        "saved_share_with_end": (n_saved + n_forced_ends) / (n_tokens + n_answers) if n_tokens else 0.0,
    }


def _saved_tokens(
    automaton: Automaton, members: list[bytes], token_ids: list[int], spelt: list[bytes]
) -> tuple[int, bool]:
    """Tokens that need no step of their own, and whether the end needs none."""
    cursor = automaton.cursor()
    text = b"".join(spelt)
    at = saved = 0
    forced_to = 0
    for token_id, token in zip(token_ids, spelt, strict=True):
        if at >= forced_to:
            forced = cursor.forced_text
            assert forced == _common_continuation(members, text[:at]), (text, at, forced)
            forced_to = at + len(forced)
        if at + len(token) <= forced_to:
            saved += 1
        else:
            forced_to = 0
        cursor.advance(token_id)
        at += len(token)
    assert cursor.is_terminal
    ends = cursor.allowed_token_ids().tolist() == list(automaton.stop_token_ids)
    assert ends == (_range_of(members, text) == 1)
    return saved, ends


def _common_continuation(members: list[bytes], prefix: bytes) -> bytes:
    """By brute force on sorted members: what follows `prefix` in all of them, up to the first that may end."""
    low = bisect.bisect_left(members, prefix)
    first, last = members[low], members[low + _range_of(members, prefix) - 1]
    if first == prefix:
        return b""
    n = len(prefix)
    # What the first and the last of sorted members share, all share; and one that ends inside it is the first.
    while n < len(first) and first[: n + 1] == last[: n + 1]:
        n += 1
    return first[len(prefix) : n]


def _range_of(members: list[bytes], prefix: bytes) -> int:
    """How many members begin with `prefix`."""
    low = bisect.bisect_left(members, prefix)
    high = bisect.bisect_right(members, prefix, lo=low, key=lambda member: member[: len(prefix)])
    return high - low


def measure_forced_text(
    sets: Sequence[str] = CANDIDATE_SET_NAMES, tokenizers: Sequence[str] = TOKENIZER_NAMES
) -> list[dict[str, Any]]:
    """One row for each set and tokenizer."""
    rows = []
    for name in tokenizers:
        directory = tokenizer_directory(name)
        vocabulary = Vocabulary.from_tokenizer(directory)
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        rows += [
            {"set": each, "tokenizer": name, **measure_set(vocabulary, tokenizer, candidate_set(each))} for each in sets
        ]
    return rows
