"""Every kernel loaded before the first request needs it.

A kernel is compiled, or read from numba's cache on disk, when it is first called with arguments of some types; that
takes up to seconds and holds the interpreter's lock. So a process that must not stall walks every road once, on a
vocabulary that fits on a line. It knows the roads, not what they are for. Invariant: after `warm_kernels`, nothing
public of this package compiles anything; a test counts the compiled signatures.
"""

import numpy as np

from maskfeed_automata.automaton import Automaton
from maskfeed_automata.batch import Batch
from maskfeed_automata.bitmask import allocate_bitmask
from maskfeed_automata.builder import build, compile, shortest_tokenisation
from maskfeed_automata.candidates import CandidateSet, LeadingSpace
from maskfeed_automata.catalogue import Catalogue
from maskfeed_automata.tokenizer_automaton import TokenizerAutomaton
from maskfeed_automata.vocabulary import Vocabulary

__all__ = ["warm_kernels"]

_STOP = 3
_MODES: tuple[LeadingSpace, ...] = ("never", "optional", "always")
# out of order, with long common beginnings, duplicates, and, in the second, NUL and bytes
_LISTS: tuple[list[str | bytes], ...] = (
    ["b" * 40 + "a", "b" * 40, "a", "ab", "b" * 20, "a", "ba"],
    ["a\0b", b"ab", "ä"],
)


def warm_kernels() -> None:
    """Load all kernels. Idempotent; a fraction of a second once they are in numba's cache, a minute before."""
    every_byte: list[bytes | None] = [bytes([b]) for b in range(256)]
    whole = Vocabulary.from_token_bytes([b"ab", b"ab", b"b" * 8, None, *every_byte])
    sparse = Vocabulary.from_token_bytes([b"ab", b"ba", b" ", None, b"b"])
    for made in (whole, sparse):
        stored = Vocabulary.from_bytes(made.to_bytes())
        stored.adopt(
            TokenizerAutomaton.from_bytes(
                made.tokenizer_automaton.to_bytes(made.fingerprint), made.fingerprint, stored.data, stored.offsets
            )
        )
        for vocabulary in (made, stored):
            for mode in _MODES:
                for candidates in _LISTS if made is whole else (["ab", "bab", "abb"],):
                    candidate_set = CandidateSet.from_strings(candidates)
                    candidate_set.rank_of_answer(b" a", mode)
                    candidate_set.ranks_of(candidate_set)
                    built = build(vocabulary, candidate_set, leading_space=mode)
                    _walk(compile(vocabulary, candidates, stop_token_ids=[_STOP], leading_space=mode), vocabulary)
                    catalogue = Catalogue(vocabulary, candidates, leading_space=mode)
                    _walk(catalogue.subset(range(len(candidates)), stop_token_ids=[_STOP]), vocabulary)
                    _walk(Automaton.from_bytes(built.to_bytes(), vocabulary, stop_token_ids=[_STOP]), vocabulary)
            shortest_tokenisation(vocabulary, b"bbab")


def _walk(automaton: Automaton, vocabulary: Vocabulary) -> None:
    """One sequence to its end, by cursor and by batch."""
    cursor = automaton.cursor()
    batch = Batch(vocabulary, 2)
    batch.start(0, automaton, [_STOP])
    batch.step(np.zeros(1, np.int32), np.zeros(2, np.int64), np.empty(0, np.int32))
    while not cursor.is_finished:
        cursor.fill_bitmask(allocate_bitmask(1, vocabulary.size)[0])
        assert isinstance(cursor.forced_text, bytes)
        token = int(cursor.allowed_token_ids()[0])
        cursor.advance(token)
        batch.step(np.zeros(1, np.int32), np.array([0, 1], np.int64), np.array([token], np.int32))
    assert cursor.candidate_index is not None
    cursor.copy().rollback(1)
