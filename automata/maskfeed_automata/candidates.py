"""The canonical form of a candidate list, and its digest.

Strings become bytes (UTF-8), are sorted and merged; where each one came from is kept. Nothing here knows tokens.
Invariants: members are non-empty, unique, and sorted as bytes; the digest depends on them, the options, the vocabulary
and the format version, and on nothing else: not on order, duplicates, process or hash seed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self, get_args

import numpy as np

from maskfeed_automata.errors import CandidateError, LimitExceeded, ParameterError
from maskfeed_automata.kernels import I32, I64, U8
from maskfeed_automata.member_kernels import find_members, pick_ranks
from maskfeed_automata.sort_kernels import (
    common_prefix,
    finish_order,
    gather_strings,
    is_ascending,
    merge_equal,
    prefix_keys,
    split_at_zeros,
)

__all__ = ["FORMAT_VERSION", "CandidateSet", "LeadingSpace", "Limits", "check_leading_space"]

# Of artifacts and of what a digest covers: a change of either makes old ones unreadable and unfindable.
FORMAT_VERSION: Final = 1

LeadingSpace = Literal["never", "optional", "always"]

_FIELD: Final = "candidates"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a candidate list may have at most; each is checked before anything is built."""

    # members, duplicates counted
    max_candidates: int = 1_000_000
    # UTF-8 bytes of one candidate
    max_candidate_bytes: int = 65_536
    # UTF-8 bytes of all
    max_total_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class CandidateSet:
    """Sorted unique byte strings. Arrays are read-only and owned by the set."""

    # uint8 [n_bytes]: the members, one after the other
    data: U8
    # int64 [n_candidates + 1]: member k is data[offsets[k] : offsets[k + 1]]
    offsets: I64
    # int32 [n_inputs]: rank of each given candidate
    rank_of_input: I32
    # int32 [n_candidates]: index of the first given candidate of each rank
    first_input_of_rank: I32
    # SHA-256 of the members
    _content: bytes = field(repr=False)

    @property
    def n_candidates(self) -> int:
        """Unique members."""
        return int(self.first_input_of_rank.size)

    @property
    def n_inputs(self) -> int:
        """Candidates as given."""
        return int(self.rank_of_input.size)

    @property
    def n_duplicates(self) -> int:
        """Given candidates that were merged into an earlier one."""
        return self.n_inputs - self.n_candidates

    @property
    def longest_bytes(self) -> int:
        """UTF-8 bytes of the longest member."""
        return int(np.diff(self.offsets).max())

    @classmethod
    def from_strings(cls, candidates: Sequence[str | bytes], *, limits: Limits | None = None) -> Self:
        """Canonicalise a list.

        Args:
            candidates: strings (taken as UTF-8), or bytes as they are. Duplicates are merged.
            limits: default `Limits()`.

        Raises:
            CandidateError: the list is empty or no list, or a candidate is empty, no string, or has a lone
                surrogate. Context: `field`, and `index` where one candidate is at fault.
            LimitExceeded: more than one of `limits`. Context: `limit`, `value`, `unit`, and `index` where one
                candidate is at fault.

        Cost: O(n_bytes), and sorting.
        """
        limits = limits or Limits()
        _check_list(candidates, limits)
        data, starts, lengths = _flatten(candidates, limits)
        _check_lengths(lengths, limits)
        gathered, offsets, order, input_of = _sorted(data, starts, lengths)
        return cls._of(*merge_equal(gathered, offsets, order, input_of, np.empty_like(gathered)))

    @classmethod
    def _of(cls, members: U8, offsets: I64, rank_of_input: I32, first_input_of_rank: I32) -> Self:
        for array in (members, offsets, rank_of_input, first_input_of_rank):
            array.flags.writeable = False
        content = hashlib.sha256(np.diff(offsets).astype("<u4").tobytes())
        content.update(members.data)
        return cls(members, offsets, rank_of_input, first_input_of_rank, content.digest())

    def subset(self, indices: I64) -> Self:
        """The set of some of the given candidates, in the order that is known already.

        Args:
            indices: int64 [n], n >= 1, each in [0, n_inputs); borrowed.

        Returns:
            What `from_strings` makes of those candidates, in that order; its inputs are the places in `indices`.

        Cost: O(n log n) on integers, and copying the members.
        """
        # Rank above, place below: sorted, equal members are neighbours and the first of them was given first.
        keys = self.rank_of_input[indices].astype(np.int64) << 32 | np.arange(indices.size)
        keys.sort()
        return self._of(*pick_ranks(self.data, self.offsets, keys))

    def candidate_bytes(self, rank: int) -> bytes:
        """Bytes of the member of this rank."""
        return self.data[self.offsets[rank] : self.offsets[rank + 1]].tobytes()

    def rank_of(self, candidate: bytes) -> int | None:
        """Rank of a member, or None. Cost: O(log n_candidates)."""
        low, high = 0, self.n_candidates
        while low < high:
            middle = (low + high) // 2
            if self.candidate_bytes(middle) < candidate:
                low = middle + 1
            else:
                high = middle
        return low if low < self.n_candidates and self.candidate_bytes(low) == candidate else None

    def ranks_of(self, other: "CandidateSet") -> I32:
        """Where the members of another set are in this one.

        Args:
            other: borrowed.

        Returns:
            int32 [other.n_candidates]: for each of its members, in its order, the rank here, or -1.

        Cost: O(other.n_candidates log(n_candidates / other.n_candidates)). Releases the GIL.
        """
        return find_members(self.data, self.offsets, other.data, other.offsets)

    def rank_of_answer(self, answer: bytes, leading_space: LeadingSpace) -> int | None:
        """Rank of the member that an answer stands for, or None.

        With "optional" the answer may have one space that the member has not; an exact member wins. With "always" it
        has exactly one more.
        """
        check_leading_space(leading_space)
        if leading_space != "always":
            rank = self.rank_of(answer)
            if rank is not None or leading_space == "never":
                return rank
        return self.rank_of(answer[1:]) if answer[:1] == b" " else None

    def digest(self, fingerprint: str, leading_space: LeadingSpace) -> str:
        """SHA-256 (64 hex digits) of what is asked for: format version, vocabulary, options, members."""
        check_leading_space(leading_space)
        text = f"maskfeed candidate set {FORMAT_VERSION} {fingerprint} {leading_space} {self._content.hex()}"
        return hashlib.sha256(text.encode("ascii")).hexdigest()


def check_leading_space(leading_space: str) -> None:
    """Raise ParameterError unless this is one of `LeadingSpace`."""
    if leading_space not in get_args(LeadingSpace):
        raise ParameterError(
            f"leading_space: {leading_space!r} is none of {', '.join(get_args(LeadingSpace))}", field="leading_space"
        )


def _check_list(candidates: Sequence[str | bytes], limits: Limits) -> None:
    if isinstance(candidates, str | bytes | bytearray | memoryview) or not isinstance(candidates, Sequence):
        raise CandidateError(f"candidates: a list is needed, not {type(candidates).__name__}", field=_FIELD)
    if not candidates:
        raise CandidateError("candidates: the list is empty", field=_FIELD)
    if len(candidates) > limits.max_candidates:
        raise _over("candidates", limits.max_candidates, len(candidates), "candidates")


def _check_lengths(lengths: I64, limits: Limits) -> None:
    if lengths.min() == 0:
        index = int(np.argmin(lengths))
        raise CandidateError(f"candidates[{index}]: an empty string is no candidate", field=_FIELD, index=index)
    if lengths.max() > limits.max_candidate_bytes:
        index = int(np.argmax(lengths > limits.max_candidate_bytes))
        raise _over(f"candidates[{index}]", limits.max_candidate_bytes, int(lengths[index]), "bytes", index=index)


def _over(what: str, limit: int, value: int, unit: str, **index: int) -> LimitExceeded:
    return LimitExceeded(
        f"{what}: {value} {unit}, at most {limit} are allowed",
        field=_FIELD,
        limit=limit,
        value=value,
        unit=unit,
        **index,
    )


def _flatten(candidates: Sequence[str | bytes], limits: Limits) -> tuple[U8, I64, I64]:
    """All bytes in one array, with starts and lengths: one join and one encode where all are strings without NUL."""
    n = len(candidates)
    try:
        blob = "\0".join(candidates).encode()  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        blob = b""
    if blob:
        data = np.frombuffer(blob, np.uint8)
        starts, lengths, is_split = split_at_zeros(data, n)
        if is_split:
            _check_total(len(blob) - (n - 1), limits)
            return data, starts, lengths
    encoded = [_encode(index, candidate) for index, candidate in enumerate(candidates)]
    lengths = np.fromiter(map(len, encoded), np.int64, n)
    _check_total(int(lengths.sum()), limits)
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum(lengths) - lengths, lengths


def _check_total(n_bytes: int, limits: Limits) -> None:
    if n_bytes > limits.max_total_bytes:
        raise _over("candidates", limits.max_total_bytes, n_bytes, "bytes")


def _encode(index: int, candidate: object) -> bytes:
    if isinstance(candidate, bytes):
        return candidate
    if not isinstance(candidate, str):
        raise CandidateError(
            f"candidates[{index}]: a string is needed, not {type(candidate).__name__}", field=_FIELD, index=index
        )
    try:
        return candidate.encode()
    except UnicodeEncodeError as error:
        raise CandidateError(
            f"candidates[{index}]: a lone surrogate is no Unicode text", field=_FIELD, index=index
        ) from error


def _sorted(data: U8, starts: I64, lengths: I64) -> tuple[U8, I64, I64, I64]:
    """The strings one after the other, offsets, their order, and where each was given: what `merge_equal` takes."""
    gathered = np.empty(int(lengths.sum()) + 8, np.uint8)
    if is_ascending(data, starts, lengths):
        in_order = np.arange(starts.size)
        return gathered, gather_strings(data, starts, lengths, in_order, gathered), in_order, in_order
    skip = common_prefix(data, starts, lengths)
    keys = prefix_keys(data, starts, lengths, skip)
    by_key: I64 = np.argsort(keys)
    offsets = gather_strings(data, starts, lengths, by_key, gathered)
    return gathered, offsets, finish_order(gathered, offsets, keys[by_key], skip), by_key
