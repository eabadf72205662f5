"""What a mask must be, by brute force: no trie, no automaton, no bitmap. Slow, short, and the judge of everything."""

from collections.abc import Sequence


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
        self.tokens = {token_id: token for token_id, token in enumerate(tokens) if token}
        self.stop_token_ids = sorted(set(stop_token_ids))
        exact = [] if leading_space == "always" else list(candidates)
        spaced = [] if leading_space == "never" else [b" " + candidate for candidate in candidates]
        # variant -> index in `candidates`; the first one wins, an exact one before a spaced one
        self.index_of: dict[bytes, int] = {}
        for variant, index in zip([*exact, *spaced], [*range(len(exact)), *range(len(spaced))], strict=True):
            self.index_of.setdefault(variant, index)
        self.prefixes = {variant[:n] for variant in self.index_of for n in range(len(variant) + 1)}
        self.can_end: set[bytes] = set()
        for text in sorted(self.prefixes, key=len, reverse=True):
            if text in self.index_of or any(text + token in self.can_end for token in self.tokens.values()):
                self.can_end.add(text)

    def allowed(self, token_ids: Sequence[int]) -> list[int]:
        """Ids that may follow these permitted tokens, ascending."""
        if token_ids and token_ids[-1] in self.stop_token_ids:
            return self.stop_token_ids
        text = self.text(token_ids)
        ids = {token_id for token_id, token in self.tokens.items() if text + token in self.can_end}
        return sorted(ids - set(self.stop_token_ids) | set(self.stop_token_ids if text in self.index_of else ()))

    def text(self, token_ids: Sequence[int]) -> bytes:
        """Bytes of the tokens before the first stop id."""
        text = b""
        for token_id in token_ids:
            if token_id in self.stop_token_ids:
                break
            text += self.tokens[token_id]
        return text

    def producible(self, candidate: bytes, reached: frozenset[bytes] = frozenset({b""})) -> bool:
        """Whether some tokens spell exactly this text."""
        while reached:
            if candidate in reached:
                return True
            longer = (text + token for text in reached for token in self.tokens.values())
            reached = frozenset(text for text in longer if candidate.startswith(text))
        return False
