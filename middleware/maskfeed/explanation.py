"""Why a text can, or can't, be an answer: its tokens, the masks on the way, and where the way ends.

It walks an automaton the way an engine would, and says in a sentence what it found; it knows nothing of tokenizers'
own ways to split, so the tokens shown are the fewest that spell the text. Invariant: every step shown is one that
the mask permits.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from maskfeed_automata import Automaton, Cursor, LeadingSpace, Vocabulary, compile

__all__ = ["Explanation", "Step", "Token", "explain"]

# Permitted tokens and candidates that are listed; all are counted.
_SHOWN: Final = 8

Outcome = Literal["candidate", "beginning", "outside", "no-tokens"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token as a person reads it."""

    token_id: int
    # bytes that are no whole characters as \\xNN
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """A mask, and the token that is taken from it."""

    # permitted ids, stop ids not counted
    n_permitted: int
    # whether the answer may end here
    may_end: bool
    # the longest permitted tokens, and as many as are shown
    permitted: tuple[Token, ...]
    # None at the end of the way
    taken: Token | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What there is to say about one text."""

    text: str
    outcome: Outcome
    # one sentence
    why: str
    # index in the given list, if the text is a candidate
    candidate_index: int | None
    # the longest beginning that tokens reach
    reachable: str
    # the masks on the way there, and the one at its end
    steps: tuple[Step, ...]
    # candidates that go on from the longest beginning that any of them has
    n_continuations: int
    continuations: tuple[str, ...]


def explain(
    vocabulary: Vocabulary, candidates: Sequence[str], text: str, *, leading_space: LeadingSpace = "never"
) -> Explanation:
    """Walk a text through a set.

    Args:
        vocabulary: the model's.
        candidates: as for `compile`.
        text: a possible answer.
        leading_space: as for `compile`.

    Raises:
        CandidateError: as `compile`.

    Cost: for each byte that is reached, the ids of its mask in Python.
    """
    automaton = compile(vocabulary, candidates, stop_token_ids=(), leading_space=leading_space)
    data = text.encode("utf-8", "surrogatepass")
    steps, cursor, reached = _walk(automaton, data)
    variants = sorted(_variants(candidates, leading_space))
    shared = _shared_with_any(variants, data)
    continuations = [variant for variant in variants if variant.startswith(data[:shared])]
    index = cursor.candidate_index if reached == len(data) else None
    if index is not None:
        outcome: Outcome = "candidate"
        why = f"candidate {index} of the list"
    elif shared == len(data):
        outcome = "beginning" if reached == len(data) else "no-tokens"
        why = f"only the beginning of {len(continuations)} in the list"
    else:
        outcome = "outside"
        why = f"no candidate begins with {_shown(data[: _end_of_character(data, shared)])!r}"
        if shared:
            why += f"; {len(continuations)} in the list with {_shown(data[:shared])!r}"
    if reached < shared:
        why += f"; tokens of the vocabulary reach {_shown(data[:reached])!r} only"
    return Explanation(
        text=_shown(data),
        outcome=outcome,
        why=why,
        candidate_index=index,
        reachable=_shown(data[:reached]),
        steps=steps,
        n_continuations=len(continuations),
        continuations=tuple(_shown(variant) for variant in continuations[:_SHOWN]),
    )


def _walk(automaton: Automaton, data: bytes) -> tuple[tuple[Step, ...], Cursor, int]:
    """The fewest tokens to the furthest byte that tokens reach, the cursor there, and that byte."""
    vocabulary = automaton.vocabulary
    # position in `data` -> (tokens to here, cursor here, where the last token began, its id)
    best: dict[int, tuple[int, Cursor, int, int]] = {0: (0, automaton.cursor(), 0, -1)}
    for at in range(len(data)):
        if at not in best:
            continue
        n_tokens, cursor, _, _ = best[at]
        for token_id in cursor.allowed_token_ids().tolist():
            token = vocabulary.token_bytes(token_id) or b""
            end = at + len(token)
            if data.startswith(token, at) and (end not in best or best[end][0] > n_tokens + 1):
                onwards = cursor.copy()
                onwards.advance(token_id)
                best[end] = (n_tokens + 1, onwards, at, token_id)
    furthest = max(best)
    steps = [_step(best[furthest][1], None)]
    at = furthest
    while at > 0:
        _, _, at, token_id = best[at]
        steps.append(_step(best[at][1], _token(vocabulary, token_id)))
    return tuple(reversed(steps)), best[furthest][1], furthest


def _step(cursor: Cursor, taken: Token | None) -> Step:
    vocabulary = cursor.automaton.vocabulary
    ids = cursor.allowed_token_ids().tolist()
    longest = sorted(ids, key=lambda token_id: (-len(vocabulary.token_bytes(token_id) or b""), token_id))[:_SHOWN]
    return Step(len(ids), cursor.is_terminal, tuple(_token(vocabulary, token_id) for token_id in longest), taken)


def _token(vocabulary: Vocabulary, token_id: int) -> Token:
    return Token(token_id, _shown(vocabulary.token_bytes(token_id) or b""))


def _variants(candidates: Sequence[str], leading_space: LeadingSpace) -> set[bytes]:
    exact = {candidate.encode() for candidate in candidates}
    spaced = {b" " + candidate for candidate in exact}
    return {"never": exact, "always": spaced, "optional": exact | spaced}[leading_space]


def _shared_with_any(variants: list[bytes], data: bytes) -> int:
    """Bytes of the longest beginning of `data` that one of the sorted variants has: a neighbour in the order has it."""
    place = bisect.bisect_left(variants, data)
    longest = 0
    for variant in variants[max(0, place - 1) : place + 1]:
        n = longest
        while n < min(len(variant), len(data)) and variant[: n + 1] == data[: n + 1]:
            n += 1
        longest = n
    return longest


def _end_of_character(data: bytes, at: int) -> int:
    """Where the character ends that the byte at `at` belongs to."""
    end = at + 1
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end += 1
    return end


def _shown(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
