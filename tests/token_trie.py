"""Every tokenisation of every candidate as nested dictionaries, and transformers' prefix function over it: the peer of
the processor for `generate()`, in its tests and in its benchmark."""

from collections.abc import Callable, Sequence
from typing import Any

from maskfeed_automata import Vocabulary

__all__ = ["Trie", "prefix_function", "token_trie"]

Trie = dict[int, Any]


def token_trie(vocabulary: Vocabulary, candidates: Sequence[str]) -> Trie:
    """Token by token; a candidate's end holds the stop ids. Exponential in the length of a candidate."""
    ids_of: dict[bytes, list[int]] = {}
    for token_id in range(vocabulary.size):
        if text := vocabulary.token_bytes(token_id):
            ids_of.setdefault(text, []).append(token_id)
    root: Trie = {}

    def add(node: Trie, rest: bytes) -> None:
        if not rest:
            node.update({stop_id: {} for stop_id in vocabulary.stop_token_ids})
        for n in range(1, len(rest) + 1):
            for token_id in ids_of.get(rest[:n], ()):
                add(node.setdefault(token_id, {}), rest[n:])

    for candidate in candidates:
        add(root, candidate.encode())
    return root


def prefix_function(tries: Sequence[Trie], prompt_length: int, eos: int) -> Callable[[int, Any], list[int]]:
    """What transformers calls at every step; a sequence that left its trie, or ended, may only end."""

    def allowed(batch: int, input_ids: Any) -> list[int]:
        node = tries[batch]
        for token_id in input_ids[prompt_length:].tolist():
            node = node.get(token_id, {})
        return list(node) or [eos]

    return allowed
