"""Rank 0's feed: hears the gateways, opens rounds, makes promises, answers.

One thread waits in one poll for everything: the store's line, the members, the pool. `turn` is one pass of it. It
joins the rounds (what the ranks agree on), the held sets (what rank 0 holds and owes) and the loads; each of them
keeps its own rules. Invariants: a set enters rank 0's held sets, with its promises, before its READY is published;
what is evicted is forgotten here before the members hear of it; every waiting nonce gets one answer.
"""

import logging
import re
import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from maskfeed_automata.errors import CapacityError, InternalInvariant, RankFailure
from maskfeed_cache.feed import EngineFeed
from maskfeed_cache.feed_messages import Announcement, Clear, Dead, Ended, EngineEvent, Failed, GatewayMessage, Ready
from maskfeed_cache.fence import Fence
from maskfeed_workers.engine_link import EngineLink
from maskfeed_workers.feed_settings import FeedSettings
from maskfeed_workers.frames import Frame, Kind, Vote, encode_evict, encode_round, encode_table
from maskfeed_workers.held_sets import Evicted, HeldSets, Promise
from maskfeed_workers.loading import Available, LoadEnded, Loads
from maskfeed_workers.rounds import Drop, Hold, Load, RootAction, RootRounds, SendEvict, SendRound, SendTable
from maskfeed_workers.star import Peer
from maskfeed_workers.wakeup import Wakeup

__all__ = ["RootFeed"]

_log = logging.getLogger(__name__)

_HASH: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class _Expected:
    """A set whose round is open."""

    size_bytes: int
    # of the newest generation in which it was announced
    fence: Fence
    # by nonce
    promises: dict[str, Promise]


class RootFeed:
    """For one thread.

    Args:
        epoch: this life of the engine.
        members: all other ranks; owned.
        engine_feed: registered; owned.
        held: rank 0's; shared with the decode thread.
        loads: rank 0's pool; wakes `wakeup`.
        clock: seconds, monotonic; the one of `held`.
    """

    def __init__(
        self,
        *,
        epoch: str,
        members: Sequence[Peer],
        engine_feed: EngineFeed,
        held: HeldSets,
        loads: Loads,
        wakeup: Wakeup,
        clock: Callable[[], float],
        settings: FeedSettings,
    ) -> None:
        self._epoch = epoch
        self._members = {member.fileno(): member for member in members}
        self._held = held
        self._loads = loads
        self._wakeup = wakeup
        self._clock = clock
        self._rounds = RootRounds(len(members) + 1, settings.round_timeout_s)
        # by round number
        self._expected: dict[int, _Expected] = {}
        self._events: list[EngineEvent] = []
        self._link = EngineLink(
            engine_feed,
            still_true=self._still_true,
            usage=held.usage,
            renew_interval_s=settings.renew_interval_s,
            gateway_grace_s=settings.gateway_grace_s,
            longest_retry_s=settings.longest_retry_s,
        )

    def turn(self) -> None:
        """Wait until something happens or is due, and deal with it.

        Raises:
            RankFailure: a member is gone; the epoch is over.
        """
        line = self._link.fileno()
        ready = self._poll(line)
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
        for event in self._loads.collect():
            self._hear_of_load(event)
        for descriptor in ready & self._members.keys():
            member = self._members[descriptor]
            member.flush()
            for frame in member.receive():
                self._hear_of_member(member.rank, frame)
        if line is not None and line in ready:
            for message in self._link.receive():
                self._hear_of_gateway(message)
        now = self._clock()
        self._do(self._rounds.expire(now))
        # Before the renewal, so that its figures are those after it.
        self._evict(self._held.evict_orphans())
        self._held.end_gateways(self._link.keep(now, self._held.gateways()))
        self._publish()

    def leave(self, dead: str | None) -> None:
        """End: with `dead`, say so to the gateways; in any case to the members, whose connections end here."""
        for member in self._members.values():
            member.close()
        self._link.leave([] if dead is None else [Dead(self._epoch, dead)])

    # -- what is heard ---------------------------------------------------------------------------------------------

    def _poll(self, line: int | None) -> set[int]:
        poll = select.poll()
        poll.register(self._wakeup.fileno(), select.POLLIN)
        if line is not None:
            poll.register(line, select.POLLIN)
        for descriptor, member in self._members.items():
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if member.wants_to_send else 0))
        due = min(self._rounds.next_deadline() or float("inf"), self._link.next_at)
        # Rounded up: a turn that comes too early finds nothing due and turns again.
        wait_ms = max(0, int((due - self._clock()) * 1e3) + 1)
        return {descriptor for descriptor, _ in poll.poll(wait_ms)}

    def _hear_of_load(self, event: Available | LoadEnded) -> None:
        if isinstance(event, Available):
            self._do(self._rounds.available(event.number))
            return
        reason = event.reason
        expected = self._expected.get(event.number)
        if expected is not None and event.automaton is not None and event.automaton.nbytes != expected.size_bytes:
            reason = f"corrupt-artifact: {expected.size_bytes} bytes were announced, it has {event.automaton.nbytes}"
        self._do(self._rounds.vote(event.number, 0, Vote.FAILED if reason else Vote.READY, reason))

    def _hear_of_member(self, rank: int, frame: Frame) -> None:
        match frame.kind:
            case Kind.VOTE:
                vote, reason = frame.vote()
                self._do(self._rounds.vote(frame.round_number, rank, vote, reason))
            case Kind.ACK:
                self._do(self._rounds.ack(frame.round_number, rank))
            case _:
                raise RankFailure(f"rank {rank} sent a {frame.kind.name} frame", reason="malformed-frame")

    def _hear_of_gateway(self, message: GatewayMessage) -> None:
        match message:
            case Ended(nonce):
                self._held.end(nonce)
                for expected in self._expected.values():
                    expected.promises.pop(nonce, None)
            case Clear():
                self._begin(message.fence)
            case Announcement():
                self._begin(message.fence)
                self._promise(message)

    def _begin(self, fence: Fence) -> None:
        if self._held.begin(fence):
            _log.info("the cache is in generation %d of %s", fence.generation, fence.epoch)
            self._link.renew_soon()

    def _promise(self, message: Announcement) -> None:
        promise = Promise(message.nonce, message.gateway, self._clock() + message.lifetime_ms / 1e3)
        if _HASH.fullmatch(message.artifact_hash) is None:
            self._fail(message.artifact_hash, message.nonce, "bad-request: this is no artifact hash")
        elif self._held.promise(message.artifact_hash, promise, message.fence):
            self._events.append(Ready(message.artifact_hash, self._epoch, message.nonce))
        elif (number := self._rounds.number_of(message.artifact_hash)) is not None:
            expected = self._expected[number]
            expected.promises[message.nonce] = promise
            if self._held.is_current(message.fence):
                expected.fence = message.fence
        else:
            self._open(message, promise)

    def _open(self, announcement: Announcement, promise: Promise) -> None:
        artifact_hash = announcement.artifact_hash
        try:
            evicted = self._held.reserve(artifact_hash, announcement.size_bytes)
        except CapacityError as error:
            self._fail(artifact_hash, announcement.nonce, f"{error.code}: {error.message}")
            return
        self._evict(evicted)
        load = self._rounds.open(artifact_hash, self._clock())
        self._expected[load.number] = _Expected(announcement.size_bytes, announcement.fence, {promise.nonce: promise})
        self._do([load])

    # -- what is done ----------------------------------------------------------------------------------------------

    def _do(self, actions: Sequence[RootAction]) -> None:
        for action in actions:
            match action:
                case Load(number, artifact_hash):
                    self._loads.start(number, artifact_hash)
                case SendRound(number, artifact_hash):
                    self._send(encode_round(number, artifact_hash))
                case SendTable(number, votes):
                    self._send(encode_table(number, votes))
                case SendEvict(number, artifact_hash):
                    self._send(encode_evict(number, artifact_hash, self._held.words.given))
                case Hold():
                    self._hold(action)
                case Drop():
                    self._drop(action)

    def _evict(self, forgotten: Sequence[Evicted]) -> None:
        for victim in forgotten:
            self._send(encode_evict(victim.round_number, victim.artifact_hash, self._held.words.given))
            self._loads.tidy(victim.artifact_hash)

    def _send(self, frame: bytes) -> None:
        for member in self._members.values():
            member.send(frame)

    def _hold(self, action: Hold) -> None:
        automaton = self._loads.take(action.number)
        if automaton is None:
            raise InternalInvariant("a round ended well without rank 0's set")
        expected = self._expected.pop(action.number)
        now = self._clock()
        alive = [promise for promise in expected.promises.values() if promise.ends_at > now]
        self._held.enter(
            action.artifact_hash, automaton, round_number=action.number, promises=alive, fence=expected.fence
        )
        self._events += [Ready(action.artifact_hash, self._epoch, promise.nonce) for promise in alive]
        for nonce in expected.promises.keys() - {promise.nonce for promise in alive}:
            self._fail(
                action.artifact_hash, nonce, "deadline-exceeded: the request's time was over before it was ready"
            )

    def _drop(self, action: Drop) -> None:
        self._held.cancel(action.artifact_hash)
        self._loads.drop(action.number)
        _log.warning("round %d for %s failed: %s", action.number, action.artifact_hash[:12], action.reason)
        for nonce in self._expected.pop(action.number).promises:
            self._fail(action.artifact_hash, nonce, action.reason)

    def _fail(self, artifact_hash: str, nonce: str, reason: str) -> None:
        self._events.append(Failed(artifact_hash, self._epoch, nonce, reason))

    def _publish(self) -> None:
        if self._events:
            self._link.publish(self._events)
            self._events = []

    def _still_true(self, event: EngineEvent) -> bool:
        return not isinstance(event, Ready) or self._held.is_promised(event.nonce)
