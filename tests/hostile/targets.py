"""What is attacked: real artifacts of several shapes, a vocabulary, and a kept tokenizer automaton, each as bytes.

All are small, so that a million attacks take minutes, and so that an index that is off by one leaves an array.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from maskfeed_automata import Automaton, Vocabulary, compile
from maskfeed_automata.sections import read_sections
from vocabularies import hand_vocabulary

__all__ = ["ITEM_TYPES", "Target", "targets"]

ITEM_TYPES: Mapping[bytes, Mapping[str, type[np.generic]]] = {
    b"set ": {
        "meta": np.int64,
        "byte": np.uint8,
        "leaf": np.uint64,
        "terminal": np.uint64,
        "terminal_rank": np.int32,
        "branch": np.uint64,
        "branch_rank": np.int32,
        "child_ptr": np.int32,
        "child_byte": np.uint8,
        "child_node": np.int32,
        "mask_ptr": np.int32,
        "mask_ids": np.int32,
        "live": np.uint64,
        "variant_rank": np.int32,
    },
    b"voca": {"offsets": np.int64, "data": np.uint8, "stop_token_ids": np.int64},
    b"toka": {"first": np.int32, "label": np.uint8},
}

# Without the single bytes of "d": paths that no token continues, so that artifacts have a `live` section.
_GAPS = [b"a", b"ab", b"bd", b"b", b" ", b"c", b"a", b"abc", b" a"]


@dataclass(frozen=True, eq=False)
class Target:
    """A buffer that is accepted as it is."""

    name: str
    kind: bytes
    blob: bytes
    vocabulary: Vocabulary
    # the compiled set, where it is one
    automaton: Automaton | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Writable copies of all sections."""
        items = ITEM_TYPES[self.kind]
        sections = read_sections(self.blob, self.kind, 1, tuple(items))
        return {name: np.frombuffer(sections.views[name], item).copy() for name, item in items.items()}


@cache
def targets() -> tuple[Target, ...]:
    """The same on every call and in every process."""
    hand = hand_vocabulary()
    gaps = Vocabulary.from_token_bytes(_GAPS, stop_token_ids=[5])
    branchy = [f"{a}{b}{c}" for a in "abcde" for b in "abcdeo" for c in ("", "a", "bar", "foo d")]
    lists = (
        ("tiny", hand, ["a"], "never"),
        ("spaced", hand, ["foo", "food", "bar", "barfoo", "a", " a", "é", "o\0o"], "optional"),
        ("always", hand, ["foo", "food", "bar"], "always"),
        ("branchy", hand, branchy, "never"),
        ("tails", hand, ["fo" * 90, "fo" * 60 + "bar", "bar" * 50, "a" * 130, "a" * 129 + "b"], "never"),
        ("chain", hand, ["a" * n for n in range(1, 70)], "never"),
        ("gaps", gaps, ["abd", "ba", "abab", "bdbd", "abdc"], "never"),
        ("gaps-spaced", gaps, ["abd", " ba", "ba", "abab", "bdbd", "c"], "optional"),
    )
    sets = [
        Target(name, b"set ", automaton.to_bytes(), vocabulary, automaton)
        for name, vocabulary, candidates, mode in lists
        for automaton in [compile(vocabulary, candidates, leading_space=mode)]
    ]
    others = [
        Target("vocabulary", b"voca", gaps.to_bytes(), gaps),
        Target("tokenizer", b"toka", hand.tokenizer_automaton.to_bytes(hand.fingerprint), hand),
    ]
    return (*sets, *others)
