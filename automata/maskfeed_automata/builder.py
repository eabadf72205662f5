"""From candidates and a vocabulary to an automaton. Reads top to bottom like a recipe.

It knows nothing of files, caches or stop ids of requests. Invariant: at every position that a permitted token can
reach, at least one token or the end is permitted.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from maskfeed_automata.automaton import Automaton
from maskfeed_automata.candidates import CandidateSet, LeadingSpace, Limits, check_leading_space
from maskfeed_automata.codec import CompiledArrays
from maskfeed_automata.errors import CandidateError, LimitExceeded
from maskfeed_automata.kernels import I32, U64
from maskfeed_automata.mask_kernels import (
    TOO_DEEP,
    gather_masks,
    live_bits,
    reached_bits,
    shortest_count,
    walk_masks,
)
from maskfeed_automata.tokenizer_automaton import TokenizerAutomaton
from maskfeed_automata.trie import Trie, build_trie
from maskfeed_automata.vocabulary import Vocabulary

__all__ = ["build", "check_fits", "check_producible", "compile", "shortest_tokenisation"]

# Adversarial sets (runs of spaces that branch everywhere) could ask for tens of gigabytes of masks.
_MAX_MASK_IDS: Final = 1 << 28
_SPACE: Final = np.array([0x20], np.uint8)


def compile(
    vocabulary: Vocabulary,
    candidates: Sequence[str | bytes] | CandidateSet,
    *,
    stop_token_ids: Iterable[int] | None = None,
    leading_space: LeadingSpace = "never",
    limits: Limits | None = None,
) -> Automaton:
    """Compile a list of permitted answers.

    Args:
        vocabulary: the model's.
        candidates: strings, bytes, or a set made of them before. Duplicates are merged.
        stop_token_ids: permitted where a candidate ends; default: the tokenizer's own.
        leading_space: whether an answer is the candidate ("never"), the candidate after one space ("always"), or
            either ("optional").
        limits: default `Limits()`; not applied to a `CandidateSet`.

    Returns:
        An automaton whose cursors report the index in the given list (the first one, among duplicates).

    Raises:
        CandidateError: see `CandidateSet.from_strings`; or the vocabulary can't produce a candidate.
        LimitExceeded: more than one of `limits`.
        ParameterError: an unknown `leading_space`, or a stop id outside of the vocabulary.
    """
    if not isinstance(candidates, CandidateSet):
        candidates = CandidateSet.from_strings(candidates, limits=limits)
    automaton = build(vocabulary, candidates, leading_space=leading_space)
    stop_ids = vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
    return automaton.with_stop_token_ids(stop_ids).with_input_indices(candidates.first_input_of_rank)


def build(vocabulary: Vocabulary, candidate_set: CandidateSet, *, leading_space: LeadingSpace = "never") -> Automaton:
    """Compile a candidate set. The automaton has no stop ids, and its cursors report ranks.

    Raises:
        CandidateError: the vocabulary can't produce a candidate. Context: `index` in the list that the set was made
            of, the first one if there are several.
        LimitExceeded: the masks would take more than a gigabyte.
        ParameterError: an unknown `leading_space`.
    """
    check_leading_space(leading_space)
    trie = build_trie(candidate_set, leading_space)
    live = _live_nodes(vocabulary, candidate_set, trie, leading_space)
    mask_ptr, mask_ids = _masks(vocabulary, trie, live)
    arrays = CompiledArrays(
        byte=trie.byte,
        leaf=trie.leaf,
        terminal=trie.terminal,
        terminal_rank=trie.terminal_rank,
        branch=trie.branch,
        branch_rank=trie.branch_rank,
        child_ptr=trie.child_ptr,
        child_byte=trie.child_byte,
        child_node=trie.child_node,
        mask_ptr=mask_ptr,
        mask_ids=mask_ids,
        live=live,
        variant_rank=trie.variant_rank,
    )
    return Automaton.from_arrays(
        vocabulary,
        digest=candidate_set.digest(vocabulary.fingerprint, leading_space),
        leading_space=leading_space,
        n_candidates=candidate_set.n_candidates,
        arrays=arrays,
    )


def check_producible(vocabulary: Vocabulary, candidate_set: CandidateSet, leading_space: LeadingSpace) -> None:
    """Raise CandidateError if the vocabulary can't produce a candidate, as `build` would; ParameterError as there."""
    check_leading_space(leading_space)
    if not _is_covered(vocabulary, candidate_set, leading_space):
        trie = build_trie(candidate_set, leading_space)
        _refuse_unreached(candidate_set, trie, reached_bits(trie.byte, trie.end, *_walked(vocabulary)))


def shortest_tokenisation(vocabulary: Vocabulary, candidate: bytes) -> int | None:
    """Fewest tokens whose bytes spell `candidate`; None if there are none."""
    if not candidate:
        return 0
    fewest = shortest_count(np.frombuffer(candidate, np.uint8), vocabulary.tokenizer_automaton.cells)
    return fewest if fewest >= 0 else None


def check_fits(
    vocabulary: Vocabulary, candidate_set: CandidateSet, *, leading_space: LeadingSpace, max_model_len: int
) -> None:
    """Refuse candidates that an engine is certain to cut: their tokens and a stop id exceed its context.

    Args:
        vocabulary: the engine's.
        candidate_set: any.
        leading_space: with "always", the space counts; with "optional", the answer without it does.
        max_model_len: the engine's context in tokens.

    Raises:
        CandidateError: names the first such candidate in the order of the bytes. Context: `field`, `index` in the list
            that the set was made of, and `limit`, `value` and `unit` unless no tokens spell it at all.

    Cost: O(n_candidates); for each candidate with more bytes than the context has tokens, its bytes times the longest
        token.
    """
    most = max_model_len - 1
    space = b" " if leading_space == "always" else b""
    # n bytes take at most n tokens, so shorter candidates need no look
    for rank in np.flatnonzero(np.diff(candidate_set.offsets) + len(space) > most):
        index = int(candidate_set.first_input_of_rank[rank])
        fewest = shortest_tokenisation(vocabulary, space + candidate_set.candidate_bytes(int(rank)))
        if fewest is None:
            raise _unproducible(index)
        if fewest > most:
            raise CandidateError(
                f"candidates[{index}]: it takes at least {fewest} tokens and a stop id; the engine's context has "
                f"{max_model_len}",
                field="candidates",
                index=index,
                limit=most,
                value=fewest,
                unit="tokens",
            )


def _unproducible(index: int) -> CandidateError:
    return CandidateError(f"candidates[{index}]: no tokens of the vocabulary spell it", field="candidates", index=index)


def _masks(vocabulary: Vocabulary, trie: Trie, live: U64) -> tuple[I32, I32]:
    """Rows (int32 [n_branches + 1]) and ids (int32 [n_ids]) of the branching nodes' masks."""
    found = _find_tokens(vocabulary.tokenizer_automaton, trie, live)
    mask_ptr, mask_ids = np.empty(trie.n_branches + 1, np.int32), np.empty(found.size, np.int32)
    gather_masks(found, mask_ptr, mask_ids)
    return mask_ptr, mask_ids


def _find_tokens(tokens: TokenizerAutomaton, trie: Trie, live: U64) -> U64:
    """What `walk_masks` finds. Raises LimitExceeded if that is more than `_MAX_MASK_IDS`."""
    # Enough for all but strange sets, which are walked again. Of this address space only what is written takes memory.
    depth, space = 1024 + tokens.longest, 1024 + 3 * trie.n_nodes
    while True:
        found = np.empty(space, np.uint64)
        walked = (trie.byte, trie.end, trie.branch, live, tokens.cells, tokens.twin)
        n_found = walk_masks(*walked, depth, _MAX_MASK_IDS, found)
        if n_found == TOO_DEEP:
            depth *= 4
        elif n_found > _MAX_MASK_IDS:
            raise LimitExceeded(
                f"candidates: the masks take more than {_MAX_MASK_IDS} token ids",
                field="candidates",
                limit=_MAX_MASK_IDS,
                value=n_found,
                unit="mask ids",
            )
        elif n_found <= space:
            return found[:n_found]
        else:
            space = n_found


def _live_nodes(vocabulary: Vocabulary, candidate_set: CandidateSet, trie: Trie, leading_space: LeadingSpace) -> U64:
    """Nodes from which a candidate can be completed (no words if all are); refuses candidates that no tokens spell."""
    if _is_covered(vocabulary, candidate_set, leading_space):
        return np.empty(0, np.uint64)
    automaton = _walked(vocabulary)
    _refuse_unreached(candidate_set, trie, reached_bits(trie.byte, trie.end, *automaton))
    return live_bits(trie.byte, trie.end, trie.terminal, *automaton)


def _is_covered(vocabulary: Vocabulary, candidate_set: CandidateSet, leading_space: LeadingSpace) -> bool:
    """Whether every byte of every variant is a token by itself, so that tokens go on from everywhere."""
    return vocabulary.covers(candidate_set.data) and (leading_space == "never" or vocabulary.covers(_SPACE))


def _walked(vocabulary: Vocabulary) -> tuple[U64, int]:
    """What the walks for dead ends read of the tokenizer automaton."""
    tokens = vocabulary.tokenizer_automaton
    return tokens.cells, tokens.longest


def _refuse_unreached(candidate_set: CandidateSet, trie: Trie, reached: U64) -> None:
    """Raise CandidateError for the first given candidate of which no variant is spelt by any tokens."""
    terminal = np.unpackbits(trie.terminal.view(np.uint8), bitorder="little")
    spelt = np.unpackbits((trie.terminal & reached).view(np.uint8), bitorder="little")[terminal == 1] == 1
    if trie.variant_rank.size:
        producible = np.zeros(candidate_set.n_candidates, np.bool_)
        producible[trie.variant_rank[spelt]] = True
    else:
        producible = spelt
    if not producible.all():
        raise _unproducible(int(candidate_set.first_input_of_rank[~producible].min()))
