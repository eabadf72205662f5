"""Permitted tokens over a whole vocabulary by looking up substrings: no trie, no automaton, nothing of maskfeed.

Fast enough for a vocabulary of 262,144 ids and 20,000 candidates: candidates with a prefix are consecutive once sorted,
a token may follow exactly if its bytes are the next bytes of one of them, and nothing longer is looked up once the next
bytes begin no token. Where some byte is no token by itself,
each candidate is also solved from its end for where tokens can go on to that end.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["BruteForce", "Tokens", "is_inside_character"]


class Tokens:
    """Token bytes -> ids."""

    def __init__(self, tokens: Sequence[bytes | None], stop_token_ids: Iterable[int]) -> None:
        self.size = len(tokens)
        self.ids_of: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(tokens):
            if token:
                self.ids_of.setdefault(token, []).append(token_id)
        self.stop_token_ids = sorted(set(stop_token_ids))
        self.beginnings = {token[:n] for token in self.ids_of for n in range(1, len(token) + 1)}
        self.single_bytes = {token[0] for token in self.ids_of if len(token) == 1}

    def ends(self, text: bytes, start: int) -> list[int]:
        """Where the tokens end that spell the text from `start` on."""
        found = []
        for end in range(start + 1, len(text) + 1):
            piece = text[start:end]
            if piece not in self.beginnings:
                break
            if piece in self.ids_of:
                found.append(end)
        return found

    def can_end(self, text: bytes) -> np.ndarray:
        """bool [len(text) + 1]: from where tokens spell the rest of the text exactly."""
        found = np.zeros(len(text) + 1, np.bool_)
        found[-1] = True
        for start in range(len(text) - 1, -1, -1):
            found[start] = any(found[end] for end in self.ends(text, start))
        return found


class BruteForce:
    """One candidate list under one vocabulary. Candidates are unique; one that no tokens spell is `unspeakable`."""

    def __init__(self, tokens: Tokens, candidates: Sequence[bytes], leading_space: str = "never") -> None:
        self.tokens = tokens
        variants = [] if leading_space == "always" else list(candidates)
        variants += [] if leading_space == "never" else [b" " + candidate for candidate in candidates]
        self.variants = sorted(set(variants))
        used = set(b"".join(self.variants))
        self.can_end: dict[bytes, np.ndarray] | None = None
        if not used <= tokens.single_bytes:
            solved = {variant: tokens.can_end(variant) for variant in self.variants}
            self.variants = [variant for variant in self.variants if solved[variant][0]]
            self.can_end = solved
        self.members = set(self.variants)
        self._known: dict[bytes, np.ndarray] = {}

    def range_of(self, text: bytes) -> tuple[int, int]:
        """The variants that begin with a text: from, to."""
        low = bisect_left(self.variants, text)
        return low, bisect_right(self.variants, text, lo=low, key=lambda variant: variant[: len(text)])

    def is_branching(self, text: bytes) -> bool:
        """Whether several variants go through a text."""
        low, high = self.range_of(text)
        return high - low > 1

    def allowed(self, text: bytes) -> np.ndarray:
        """int64 [n], ascending: ids that may follow a text."""
        if text not in self._known:
            self._known[text] = self._allowed(text)
        return self._known[text]

    def _allowed(self, text: bytes) -> np.ndarray:
        start = len(text)
        low, high = self.range_of(text)
        following: set[bytes] = set()
        for variant in self.variants[low:high]:
            solved = None if self.can_end is None else self.can_end[variant]
            ends = self.tokens.ends(variant, start)
            following.update(variant[start:end] for end in ends if solved is None or solved[end])
        ids = {token_id for token in following for token_id in self.tokens.ids_of[token]}
        ids.difference_update(self.tokens.stop_token_ids)
        if text in self.members:
            ids.update(self.tokens.stop_token_ids)
        return np.array(sorted(ids), np.int64)

    def bitmask(self, text: bytes) -> np.ndarray:
        """int32 [ceil(size / 32)]: the same for the whole vocabulary, a bit for each id."""
        bits = np.zeros(-(-self.tokens.size // 32) * 32, np.bool_)
        bits[self.allowed(text)] = True
        return np.packbits(bits, bitorder="little").view(np.int32)


def is_inside_character(text: bytes) -> bool:
    """Whether a text ends between the bytes of a UTF-8 sequence."""
    for back, byte in enumerate(reversed(text[-3:]), 1):
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back < length
    return False
