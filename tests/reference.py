"""What a mask must be, by brute force: no trie, no automaton, no bitmap. Slow, short, and the judge of everything."""

from collections.abc import Sequence
from functools import cache


class Oracle:
    """Permitted tokens by definition.

    Token t may follow text p iff p + bytes(t) is a prefix of some variant of a candidate from which tokens go on to
    the end of a variant. A stop id may follow iff p is a variant, and after a stop id only stop ids may follow.
    """

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        candidates: Sequence[bytes],
        stop_token_ids: Sequence[int] = (),
        leading_space: str = "never",
    ) -> None:
        self.tokens = tokens
        self.stop_token_ids = sorted(set(stop_token_ids))
        exact = [] if leading_space == "always" else list(candidates)
        spaced = [] if leading_space == "never" else [b" " + candidate for candidate in candidates]
        # variant -> index in `candidates`; the first one wins, an exact one before a spaced one
        self.index_of: dict[bytes, int] = {}
        for variant, index in zip([*exact, *spaced], [*range(len(exact)), *range(len(spaced))], strict=True):
            self.index_of.setdefault(variant, index)
        self.prefixes = {variant[:n] for variant in self.index_of for n in range(len(variant) + 1)}
        self.can_end = cache(self._can_end)

    def _can_end(self, text: bytes) -> bool:
        if text in self.index_of:
            return True
        return any(self.can_end(text + token) for token in self.tokens if token and text + token in self.prefixes)

    def allowed(self, token_ids: Sequence[int]) -> list[int]:
        """Ids that may follow these permitted tokens, ascending."""
        if token_ids and token_ids[-1] in self.stop_token_ids:
            return self.stop_token_ids
        text = self.text(token_ids)
        ids = {
            token_id
            for token_id, token in enumerate(self.tokens)
            if token and text + token in self.prefixes and self.can_end(text + token)
        }
        return sorted(ids - set(self.stop_token_ids) | set(self.stop_token_ids if text in self.index_of else ()))

    def text(self, token_ids: Sequence[int]) -> bytes:
        """Bytes of the tokens before the first stop id."""
        text = b""
        for token_id in token_ids:
            if token_id in self.stop_token_ids:
                break
            text += self.tokens[token_id] or b""
        return text

    def producible(self, candidate: bytes, reached: frozenset[bytes] = frozenset({b""})) -> bool:
        """Whether some tokens spell exactly this text."""
        while reached:
            if candidate in reached:
                return True
            longer = (text + token for text in reached for token in self.tokens if token)
            reached = frozenset(text for text in longer if candidate.startswith(text))
        return False
