"""The feed of a rank other than 0: does what rank 0 says, and says what became of it.

It knows no gateway, no promise and no limit. Invariants: a set is taken into use on a table that says ready and on
nothing else; it is forgotten on an evict frame and on nothing else, and not before this rank has followed all that
rank 0 had said of its sets by then; the end of rank 0's connection is the end of the
epoch.
"""

import select
from collections import deque
from collections.abc import Sequence

from maskfeed_automata.errors import InternalInvariant, RankFailure
from maskfeed_workers.frames import Frame, Kind, Vote, encode_ack, encode_vote
from maskfeed_workers.held_sets import HeldSets
from maskfeed_workers.loading import LoadEnded, Loads
from maskfeed_workers.rounds import Drop, Forget, Hold, Load, MemberAction, MemberRounds, SendAck, SendVote
from maskfeed_workers.star import Peer
from maskfeed_workers.wakeup import Wakeup

__all__ = ["MemberFeed"]


class MemberFeed:
    """For one thread.

    Args:
        size: number of ranks.
        root: rank 0; owned.
        held: this rank's; shared with the decode thread.
        loads: this rank's pool; wakes `wakeup`.
    """

    def __init__(self, *, size: int, root: Peer, held: HeldSets, loads: Loads, wakeup: Wakeup) -> None:
        self._root = root
        self._held = held
        self._loads = loads
        self._wakeup = wakeup
        self._rounds = MemberRounds(size)
        # in rank 0's order, and so in that of its words
        self._leaving: deque[Forget] = deque()

    def turn(self) -> None:
        """Wait until something happens, and deal with it.

        Raises:
            RankFailure: rank 0 is gone; the epoch is over.
        """
        poll = select.poll()
        poll.register(self._wakeup.fileno(), select.POLLIN)
        poll.register(self._root.fileno(), select.POLLIN | (select.POLLOUT if self._root.wants_to_send else 0))
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
        for event in self._loads.collect():
            if isinstance(event, LoadEnded):
                vote = Vote.FAILED if event.automaton is None else Vote.READY
                self._do(self._rounds.loaded(event.number, vote, event.reason))
        if self._root.fileno() in ready:
            self._root.flush()
            for frame in self._root.receive():
                self._do(self._hear(frame))
        self._forget()

    def leave(self, dead: str | None) -> None:
        """End; rank 0 sees it at once, whatever the reason."""
        del dead
        self._root.close()

    def _hear(self, frame: Frame) -> list[MemberAction]:
        match frame.kind:
            case Kind.ROUND:
                return self._rounds.announced(frame.round_number, frame.artifact_hash())
            case Kind.TABLE:
                return self._rounds.decided(frame.round_number, frame.votes())
            case Kind.EVICT:
                return self._rounds.evicted(frame.round_number, frame.artifact_hash(), frame.words())
            case _:
                raise RankFailure(f"rank 0 sent a {frame.kind.name} frame", reason="malformed-frame")

    def _do(self, actions: Sequence[MemberAction]) -> None:
        for action in actions:
            match action:
                case Load(number, artifact_hash):
                    self._loads.start(number, artifact_hash)
                case SendVote(number, vote, reason):
                    self._root.send(encode_vote(number, vote, reason))
                case SendAck(number):
                    self._root.send(encode_ack(number))
                case Hold():
                    self._hold(action)
                case Drop(number):
                    self._loads.drop(number)
                case Forget():
                    self._leaving.append(action)

    def _forget(self) -> None:
        while self._leaving and self._held.words.has_come_to(self._leaving[0].words, then=self._wakeup.wake):
            action = self._leaving.popleft()
            self._held.forget(action.artifact_hash, action.number)
            self._loads.tidy(action.artifact_hash)

    def _hold(self, action: Hold) -> None:
        automaton = self._loads.take(action.number)
        if automaton is None:
            raise InternalInvariant("a table said ready without this rank's set")
        self._held.enter(action.artifact_hash, automaton, round_number=action.number)
