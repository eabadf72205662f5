"""Candidates that a person would not tell apart, and characters in them that a person would not see.

A model that is asked for one of a list chooses by what it has read; two entries that differ in a space or in their
Unicode form are one to it. Nothing here changes a list or refuses anything. It knows strings, not tokens.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

__all__ = ["MOST_FOR_ONE_EDIT", "almost_equal", "near_duplicates", "odd_characters"]

# Above this many, pairs that differ in one character are not looked for.
MOST_FOR_ONE_EDIT: Final = 2_000
# Shorter ones are codes, where one character is what tells them apart.
_SHORTEST_FOR_ONE_EDIT: Final = 5

_INVISIBLE: Final = frozenset("\u00ad\u180e\u200b\u2060\ufeff")
# Inside of words and emoji they have a meaning.
_JOINERS: Final = frozenset("\u200c\u200d")
_DIRECTIONS: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

_KEYS: Final[Mapping[str, Callable[[str], str]]] = {
    "whitespace": lambda text: " ".join(text.split()),
    "unicode-form": lambda text: unicodedata.normalize("NFC", text),
    "case": str.casefold,
}


def near_duplicates(candidates: Sequence[str]) -> dict[str, list[tuple[int, ...]]]:
    """Groups of candidates that are almost the same.

    Args:
        candidates: equal ones count once, under the first index.

    Returns:
        Index groups by what tells their members apart: "whitespace" (at the ends, or how much between words),
        "unicode-form" (equal in NFC), "case", and "one-edit" (pairs; one character inserted, removed or replaced that
        is no digit, in candidates of five characters or more, and only up to `MOST_FOR_ONE_EDIT` candidates).
        A group is listed under the first of these that fits.
    """
    index_of: dict[str, int] = {}
    for index, candidate in enumerate(candidates):
        index_of.setdefault(candidate, index)
    found: dict[str, list[tuple[int, ...]]] = {}
    known: set[tuple[int, ...]] = set()
    for kind, key in _KEYS.items():
        groups: dict[str, list[int]] = {}
        for candidate, index in index_of.items():
            groups.setdefault(key(candidate), []).append(index)
        found[kind] = [group for group in map(tuple, groups.values()) if len(group) > 1 and group not in known]
        known.update(found[kind])
    grouped = {frozenset((a, b)) for group in known for a in group for b in group}
    found["one-edit"] = []
    if len(index_of) <= MOST_FOR_ONE_EDIT:
        found["one-edit"] = [pair for pair in _one_edit_apart(index_of) if frozenset(pair) not in grouped]
    return found


def almost_equal(text: str, candidates: Sequence[str]) -> list[tuple[int, str]]:
    """Candidates that differ from `text` in one of the ways of `near_duplicates` but "one-edit": (index, way)."""
    keys = {kind: key(text) for kind, key in _KEYS.items()}
    found = []
    for index, candidate in enumerate(candidates):
        ways = (kind for kind, key in _KEYS.items() if candidate != text and key(candidate) == keys[kind])
        if (way := next(ways, None)) is not None:
            found.append((index, way))
    return found


def odd_characters(text: str) -> list[str]:
    """What in a candidate can't be seen: a list of kinds, empty if there is nothing.

    "leading-space", "trailing-space", "double-space" (any whitespace), "other-space" (non-breaking and typographic
    ones), "zero-width" (joiners only where they join nothing), "control", "direction" (marks of writing direction).
    """
    spaces = [character.isspace() for character in text]
    joined = zip([" ", *text], text, [*text[1:], " "], strict=False)
    tests = {
        "leading-space": spaces[:1] == [True],
        "trailing-space": spaces[-1:] == [True],
        "double-space": any(a and b for a, b in pairwise(spaces)),
        "other-space": any(character != " " and unicodedata.category(character) == "Zs" for character in text),
        "zero-width": not _INVISIBLE.isdisjoint(text)
        or any(here in _JOINERS and (before.isspace() or after.isspace()) for before, here, after in joined),
        "control": any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in text),
        "direction": not _DIRECTIONS.isdisjoint(text),
    }
    return [kind for kind, is_there in tests.items() if is_there]


def _one_edit_apart(index_of: Mapping[str, int]) -> list[tuple[int, int]]:
    """Pairs, found through what is left of both when a character is taken out."""
    pairs: set[tuple[int, int]] = set()
    without: dict[tuple[int, str], list[int]] = {}
    for text, index in index_of.items():
        if len(text) < _SHORTEST_FOR_ONE_EDIT:
            continue
        for at, character in enumerate(text):
            if character.isdigit():
                continue
            rest = text[:at] + text[at + 1 :]
            if (shorter := index_of.get(rest)) is not None:
                pairs.add((min(index, shorter), max(index, shorter)))
            alike = without.setdefault((at, rest), [])
            pairs.update((min(index, other), max(index, other)) for other in alike)
            alike.append(index)
    return sorted(pairs)
