"""What the ranks say to each other to agree on a set, as two state machines without sockets, threads or a clock.

One round is one set. Rank 0 opens it, loads, and has every member load (ROUND); each rank votes (VOTE); rank 0 sends
the whole table (TABLE), which is the all-gather: the set is ready where all votes are ready, failed where any failed,
and no vote by the deadline is a failed one. Members take a ready set into use on the table and acknowledge it (ACK);
rank 0 takes it into use only after the last acknowledgement. A missing one sends EVICT and fails the round.

    rank 0    ROUND ─▶ VOTES ─▶ TABLE ─▶ ACKS ─▶ Hold                     a round for each set, so that a slow set
    member         Load ─▶ vote     Hold ─▶ ack                           holds up no other

Methods take what happened and return what to do, in order. Invariant, whatever is lost, late, doubled or out of order:
**what rank 0 holds, every member holds.** Two rules carry it: rank 0 holds last and forgets first, and a set is only
forgotten for the sake of the round that brought it or a later one, never for an older one.
"""

from dataclasses import dataclass, field
from typing import Final

from maskfeed_automata.errors import InternalInvariant
from maskfeed_workers.frames import Vote

__all__ = [
    "Drop",
    "Forget",
    "Hold",
    "Load",
    "MemberAction",
    "MemberRounds",
    "RootAction",
    "RootRounds",
    "SendAck",
    "SendEvict",
    "SendRound",
    "SendTable",
    "SendVote",
]

# Share of a round's time after which a missing vote is a failed one; the rest is for the acknowledgements.
_VOTE_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class SendRound:
    """Rank 0 to all members."""

    number: int
    artifact_hash: str


@dataclass(frozen=True, slots=True)
class SendTable:
    """Rank 0 to all members."""

    number: int
    votes: tuple[Vote, ...]


@dataclass(frozen=True, slots=True)
class SendEvict:
    """Rank 0 to all members."""

    number: int
    artifact_hash: str


@dataclass(frozen=True, slots=True)
class SendVote:
    """Member to rank 0."""

    number: int
    vote: Vote
    reason: str


@dataclass(frozen=True, slots=True)
class SendAck:
    """Member to rank 0."""

    number: int


@dataclass(frozen=True, slots=True)
class Load:
    """Fetch, map and verify the set, then report."""

    number: int
    artifact_hash: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Take the loaded set of this round into use. On rank 0: it is ready on all ranks."""

    number: int
    artifact_hash: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Let go of whatever this round has loaded, or will have. On rank 0: the round has failed, for `reason`."""

    number: int
    artifact_hash: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Stop holding the set after so many words of rank 0, if it came with round `number` or an earlier one."""

    number: int
    artifact_hash: str
    words: int = 0


RootAction = Load | SendRound | SendTable | SendEvict | Hold | Drop
MemberAction = Load | SendVote | SendAck | Hold | Drop | Forget


@dataclass(slots=True)
class _OpenRound:
    number: int
    artifact_hash: str
    opened_at: float
    ends_at: float
    # ROUND was sent: the members know of it
    announced: bool = False
    # the table was sent, and it said ready
    ready: bool = False
    votes: dict[int, Vote] = field(default_factory=dict)
    # ranks that have yet to vote, and then to acknowledge
    missing: set[int] = field(default_factory=set)
    reason: str = ""


class RootRounds:
    """Rank 0's side.

    Args:
        size: number of ranks, rank 0 included.
        timeout_s: a round is over this long after it was opened, whatever happens.
    """

    def __init__(self, size: int, timeout_s: float) -> None:
        self._size = size
        self._timeout_s = timeout_s
        self._last_number = 0
        self._rounds: dict[int, _OpenRound] = {}
        self._number_of: dict[str, int] = {}

    def number_of(self, artifact_hash: str) -> int | None:
        """The open round for this set, if there is one."""
        return self._number_of.get(artifact_hash)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do, on the clock that `open` was given."""
        return min((r.ends_at for r in self._rounds.values()), default=None)

    def open(self, artifact_hash: str, now: float) -> Load:
        """Begin a round; rank 0 loads first, because it writes the file that others on its host map.

        Raises:
            InternalInvariant: a round for this set is open.
        """
        if artifact_hash in self._number_of:
            raise InternalInvariant(f"a round for {artifact_hash[:12]} is open")
        self._last_number += 1
        number = self._last_number
        self._rounds[number] = _OpenRound(
            number, artifact_hash, now, now + _VOTE_SHARE * self._timeout_s, missing=set(range(self._size))
        )
        self._number_of[artifact_hash] = number
        return Load(number, artifact_hash)

    def available(self, number: int) -> list[RootAction]:
        """Rank 0 has the set's bytes where its neighbours can map them; it verifies them while the others do."""
        this = self._rounds.get(number)
        if this is None or this.announced:
            return []
        this.announced = True
        return [SendRound(number, this.artifact_hash)]

    def vote(self, number: int, rank: int, vote: Vote, reason: str = "") -> list[RootAction]:
        """A rank's vote, rank 0's own included. Late and repeated ones change nothing."""
        this = self._rounds.get(number)
        if this is None or this.ready or rank not in this.missing or vote is Vote.ABSENT:
            return []
        this.missing.remove(rank)
        this.votes[rank] = vote
        if vote is Vote.FAILED:
            this.reason = f"rank {rank}: {reason}"
            return self._reject(this)
        return [] if this.missing else self._accept(this)

    def ack(self, number: int, rank: int) -> list[RootAction]:
        """A member has the set in use. Late and repeated ones change nothing."""
        this = self._rounds.get(number)
        if this is None or not this.ready:
            return []
        this.missing.discard(rank)
        return [] if this.missing else self._hold(this)

    def expire(self, now: float) -> list[RootAction]:
        """Fail the rounds whose time is over."""
        actions: list[RootAction] = []
        for this in [r for r in self._rounds.values() if r.ends_at <= now]:
            what = "acknowledgement" if this.ready else "vote"
            ranks = ", ".join(map(str, sorted(this.missing)))
            waited_ms = (now - this.opened_at) * 1e3
            this.reason = f"deadline-exceeded: no {what} from rank {ranks} after {waited_ms:.0f} ms"
            actions += self._reject(this)
        return actions

    def _accept(self, this: _OpenRound) -> list[RootAction]:
        this.ready = True
        this.ends_at = this.opened_at + self._timeout_s
        this.missing = set(range(1, self._size))
        if not this.missing:
            return self._hold(this)
        return [SendTable(this.number, self._table(this))]

    def _hold(self, this: _OpenRound) -> list[RootAction]:
        self._close(this)
        return [Hold(this.number, this.artifact_hash)]

    def _reject(self, this: _OpenRound) -> list[RootAction]:
        self._close(this)
        actions: list[RootAction] = []
        if this.ready:
            actions.append(SendEvict(this.number, this.artifact_hash))
        elif this.announced:
            actions.append(SendTable(this.number, self._table(this)))
        return [*actions, Drop(this.number, this.artifact_hash, this.reason)]

    def _table(self, this: _OpenRound) -> tuple[Vote, ...]:
        return tuple(this.votes.get(rank, Vote.ABSENT) for rank in range(self._size))

    def _close(self, this: _OpenRound) -> None:
        del self._rounds[this.number]
        del self._number_of[this.artifact_hash]


@dataclass(slots=True)
class _MemberRound:
    artifact_hash: str
    # None while loading
    vote: Vote | None = None


class MemberRounds:
    """The side of a rank other than 0. It has no deadlines: rank 0 decides, or its connection ends.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rounds: dict[int, _MemberRound] = {}

    def announced(self, number: int, artifact_hash: str) -> list[MemberAction]:
        """ROUND. One that is open already changes nothing."""
        if number in self._rounds:
            return []
        self._rounds[number] = _MemberRound(artifact_hash)
        return [Load(number, artifact_hash)]

    def loaded(self, number: int, vote: Vote, reason: str = "") -> list[MemberAction]:
        """Our load has ended. When its round is over already, there is nobody to tell."""
        this = self._rounds.get(number)
        if this is None or this.vote is not None:
            return []
        this.vote = vote
        return [SendVote(number, vote, reason)]

    def decided(self, number: int, votes: tuple[Vote, ...]) -> list[MemberAction]:
        """TABLE. One of an unknown round (rank 0 gave up before it asked us) changes nothing."""
        this = self._rounds.pop(number, None)
        if this is None:
            return []
        # Our own vote is asked again, so that a table that misquotes us can't make us hold what we don't have.
        if this.vote is Vote.READY and votes == (Vote.READY,) * self._size:
            return [Hold(number, this.artifact_hash), SendAck(number)]
        return [Drop(number, this.artifact_hash, "a rank failed")]

    def evicted(self, number: int, artifact_hash: str, words: int = 0) -> list[MemberAction]:
        """EVICT."""
        return [Forget(number, artifact_hash, words)]
