"""Random walks through a compiled set, every position of which is compared with brute force over the whole vocabulary.

Walks take any permitted token, not only a tokenizer's own choice; half of them follow a candidate, and so go deep. The
next token always comes from brute force, so that a token missing from a mask is taken all the same. Each walk is made
by a cursor (bitmask rows) and again, many at once, by a batch (rows of ids).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from brute_force import BruteForce, is_inside_character
from maskfeed_automata import Automaton, Batch, bitmask_width
from maskfeed_automata.errors import TokenNotAllowed

__all__ = ["Counts", "Visited", "compare_walks"]

_MOST_CHECKED = 14
_SLOTS = 32


@dataclass(slots=True)
class Counts:
    """What was compared, and what differed."""

    visited: int = 0  # positions of cursors
    distinct: int = 0  # different prefixes among them
    batch: int = 0  # rows of batches
    refused: int = 0  # tokens outside of a mask that were offered
    branching: int = 0  # of the distinct prefixes
    terminal: int = 0
    inside_character: int = 0
    mismatches: list[str] = field(default_factory=list)

    def add(self, other: "Counts") -> None:
        """Sum up."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True)
class Visited:
    """One walk: its tokens, and from which position on it is compared."""

    token_ids: list[int]
    checked_from: int
    texts: list[bytes]  # text before each compared token, and at the end

    def text_at(self, position: int) -> bytes:
        """Text of the tokens before a compared position."""
        return self.texts[position - self.checked_from]


def compare_walks(
    automaton: Automaton, oracle: BruteForce, tokens: Sequence[bytes | None], n_wanted: int, seed: str
) -> tuple[Counts, list[Visited]]:
    """Walk until `n_wanted` different prefixes were compared, or new ones have become rare."""
    choose = random.Random(seed)
    counts = Counts()
    seen: set[bytes] = set()
    walks: list[Visited] = []
    while len(seen) < n_wanted and (counts.visited < n_wanted or len(seen) * 4 > counts.visited):
        walk = _walk(oracle, tokens, choose, follow=len(walks) % 2 == 1)
        walks.append(walk)
        _compare_cursor(automaton, oracle, walk, choose, counts)
        seen.update(walk.texts)
    counts.distinct = len(seen)
    counts.branching = sum(map(oracle.is_branching, seen))
    counts.terminal = len(seen & oracle.members)
    counts.inside_character = sum(map(is_inside_character, seen))
    for start in range(0, len(walks), _SLOTS):
        _compare_batch(automaton, oracle, walks[start : start + _SLOTS], choose, counts)
    return counts, walks


def _walk(oracle: BruteForce, tokens: Sequence[bytes | None], choose: random.Random, *, follow: bool) -> Visited:
    target = choose.choice(oracle.variants) if follow else b""
    token_ids, n_spelt = _hurry(oracle, target, choose.randrange(len(target)) if follow else 0)
    texts = [target[:n_spelt]]
    checked_from = len(token_ids)
    while len(token_ids) - checked_from < _MOST_CHECKED:
        text = texts[-1]
        allowed = oracle.allowed(text)
        stop_ids = oracle.tokens.stop_token_ids
        going_on = [t for t in allowed.tolist() if t not in stop_ids]
        on_target = [t for t in going_on if follow and target.startswith(text + (tokens[t] or b""))]
        ending = text in oracle.members and stop_ids and (not going_on or choose.random() < 0.2)
        if not ending and not going_on:
            break
        token_ids.append(choose.choice(stop_ids if ending else on_target or going_on))
        texts.append(text if ending else text + (tokens[token_ids[-1]] or b""))
        if ending:
            break
    return Visited(token_ids, checked_from, texts)


def _hurry(oracle: BruteForce, target: bytes, start: int) -> tuple[list[int], int]:
    """Long tokens that spell a candidate up to `start` or a little further, and how far."""
    solved = None if oracle.can_end is None else oracle.can_end[target] if target else None
    token_ids, position = [], 0
    while position < start:
        end = max(e for e in oracle.tokens.ends(target, position) if solved is None or solved[e])
        token_ids.append(oracle.tokens.ids_of[target[position:end]][0])
        position = end
    return token_ids, position


def _compare_cursor(
    automaton: Automaton, oracle: BruteForce, walk: Visited, choose: random.Random, counts: Counts
) -> None:
    cursor = automaton.cursor()
    row = np.empty(bitmask_width(oracle.tokens.size), np.int32)
    stop_ids = oracle.tokens.stop_token_ids
    for position in range(len(walk.token_ids) + 1):
        if position >= walk.checked_from:
            text = walk.text_at(position)
            finished = position > 0 and walk.token_ids[position - 1] in stop_ids
            expected = np.array(stop_ids) if finished else oracle.allowed(text)
            row[:] = -1
            cursor.fill_bitmask(row)
            counts.visited += 1
            same = not finished and np.array_equal(row, oracle.bitmask(text))
            same = same or (finished and np.array_equal(_ids_of(row), expected))
            if not same or cursor.is_terminal != (text in oracle.members) or cursor.is_finished != finished:
                counts.mismatches.append(f"cursor at {text[-60:]!r}: {_difference(_ids_of(row), expected)}")
            _offer_others(cursor, expected, oracle.tokens.size, choose, counts)
        if position < len(walk.token_ids):
            try:
                cursor.advance(walk.token_ids[position])
            except TokenNotAllowed as error:
                counts.mismatches.append(f"cursor refused a permitted token: {error}")
                return


def _offer_others(cursor, expected: np.ndarray, size: int, choose: random.Random, counts: Counts) -> None:
    """Tokens outside of the mask are refused by `advance` too."""
    permitted = set(expected.tolist())
    for token_id in (choose.randrange(size), choose.randrange(size), -1, size):
        if token_id in permitted:
            continue
        counts.refused += 1
        try:
            cursor.advance(token_id)
        except TokenNotAllowed:
            continue
        counts.mismatches.append(f"cursor took {token_id} at {cursor.n_tokens - 1} tokens")
        cursor.rollback(1)


def _compare_batch(
    automaton: Automaton, oracle: BruteForce, walks: Sequence[Visited], choose: random.Random, counts: Counts
) -> None:
    """All walks side by side, each slot with none to three new tokens a step, in a new order every time."""
    stop_ids = oracle.tokens.stop_token_ids
    batch = Batch(automaton.vocabulary, len(walks))
    done = [0] * len(walks)
    for slot in range(len(walks)):
        batch.start(slot, automaton, stop_ids)
    is_first = True  # the beginnings that are not compared come in one piece
    going = list(range(len(walks)))
    while going:
        choose.shuffle(going)
        new = []
        for slot in going:
            walk = walks[slot]
            start = done[slot]
            done[slot] = walk.checked_from if is_first else min(start + choose.randint(0, 3), len(walk.token_ids))
            new.append(walk.token_ids[start : done[slot]])
        is_first = False
        pointers = np.cumsum([0, *map(len, new)]).astype(np.int64)
        flat = np.array([token_id for ids in new for token_id in ids], np.int32)
        rows = batch.step(np.array(going, np.int32), pointers, flat)
        for k, slot in enumerate(going):
            walk = walks[slot]
            found = np.sort(rows.token_ids[rows.row_ptr[k] : rows.row_ptr[k + 1]])
            finished = done[slot] > 0 and walk.token_ids[done[slot] - 1] in stop_ids
            expected = np.array(stop_ids) if finished else oracle.allowed(walk.text_at(done[slot]))
            counts.batch += 1
            if not np.array_equal(found, expected) or bool(rows.failed[k]) != (not expected.size):
                counts.mismatches.append(f"batch at {walk.text_at(done[slot])[-60:]!r}: {_difference(found, expected)}")
        going = [slot for slot in going if done[slot] < len(walks[slot].token_ids)]


def _ids_of(row: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))


def _difference(found: np.ndarray, expected: np.ndarray) -> str:
    return (
        f"too many {np.setdiff1d(found, expected)[:8].tolist()}, missing {np.setdiff1d(expected, found)[:8].tolist()}"
    )
