"""Sets of the gateway's own, read and compiled once before the first request is.

The kernels behind candidate sets are compiled or loaded at their first call, which takes from a tenth of a second to
several; on the event loop that would hold up every request. It knows which calls that concerns, not when to make them.
"""

from contextlib import suppress
from itertools import islice, pairwise
from typing import Final, get_args

from maskfeed_automata import CandidateSet, LeadingSpace, Vocabulary, build, shortest_tokenisation
from maskfeed_automata.errors import CandidateError

__all__ = ["rehearse"]

_N_TEXTS: Final = 64
# In order and not, with duplicates, beginnings in common, line breaks and NUL: each takes a way of its own.
_LISTS: Final = (["a"], ["b", "a", "ab", "a"], ["a\n", "a\x00", "é"], ["long beginning 2", "long beginning 1"])


def rehearse(vocabulary: Vocabulary) -> None:
    """Make every call that a request makes. Blocking; for a thread.

    Args:
        vocabulary: the engine's; one without text has no set to compile.
    """
    for strings in _LISTS:
        CandidateSet.from_strings(strings)
    texts = (vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size))
    spelled = list(islice((text for text in texts if text), _N_TEXTS))
    candidates = [text for first, second in pairwise(reversed(spelled)) for text in (first + second, first)]
    if not candidates:
        return
    candidate_set = CandidateSet.from_strings(candidates)
    shortest_tokenisation(vocabulary, candidate_set.candidate_bytes(0))
    for leading_space in get_args(LeadingSpace):
        # a vocabulary may have no token for a space alone; then no request passes there either
        with suppress(CandidateError):
            build(vocabulary, candidate_set, leading_space=leading_space).to_bytes()
