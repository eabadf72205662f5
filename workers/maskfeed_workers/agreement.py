"""One answer on all ranks to "is this set held?", given in the step that brings a request into the batch.

The feeds of the ranks run beside their decode loops, so at one instant one rank can hold a set and another not yet, or
not any more. All ranks see the same requests enter in the same order, though. So in a step that brings such requests
(and in no other) rank 0 looks at its own held sets and says what it found, through the engine's own broadcast, in the
decode thread. What rank 0 holds, every rank holds, so the others can follow. A slot's reference does not outlast its
nonce, so rank 0 can evict a set while its word is still on its way; therefore all ranks count the words, and the others
forget a set only after the words that rank 0 had given by then.

This module knows requests as wishes for sets; it knows no slot table, no sampling parameters and no vLLM. Invariant:
all ranks give the same answer, or the rank that can't gives up its process. It may not raise instead: an exception on
a rank other than 0 is only logged, and leaves rank 0 waiting in its next collective for ever.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol

from maskfeed_automata import Automaton
from maskfeed_workers.words import Words

__all__ = ["Agreement", "Alone", "Follower", "GiveUpOnError", "HeldSetsView", "Leader", "Wish", "end_this_process"]

_log = logging.getLogger(__name__)

# Exit code of a rank that could not follow; no code that a signal or Python itself would give.
_EXIT_CODE: Final = 70


class HeldSetsView(Protocol):
    """What agreement needs of the held sets."""

    def acquire(self, artifact_hash: str, nonce: str, slot: int) -> Automaton | None:
        """Take a reference under the number `slot`; None when the set is not held."""
        ...

    def release(self, slot: int) -> None:
        """End the reference of `slot`."""
        ...

    @property
    def words(self) -> Words:
        """Rank 0's words on these sets."""
        ...


@dataclass(frozen=True, slots=True)
class Wish:
    """A request's set, and the number under which the request will refer to it."""

    artifact_hash: str
    nonce: str
    reference: int


class Agreement(Protocol):
    """How one rank answers."""

    def settle(self, wishes: Sequence[Wish]) -> list[Automaton | None]:
        """The sets of `wishes`, each referred to from now on; None for one that no rank may use.

        Called on every rank with the same wishes, at the same place of the same step, and only if there is one.
        """
        ...

    def release(self, reference: int) -> None:
        """The request of this number has left the batch."""
        ...


class Alone:
    """An engine of one rank."""

    def __init__(self, held: HeldSetsView) -> None:
        self._held = held

    def settle(self, wishes: Sequence[Wish]) -> list[Automaton | None]:
        """See `Agreement`."""
        return [self._held.acquire(wish.artifact_hash, wish.nonce, wish.reference) for wish in wishes]

    def release(self, reference: int) -> None:
        """See `Agreement`."""
        self._held.release(reference)


class Leader(Alone):
    """Rank 0 of several.

    Args:
        held: rank 0's.
        tell: gives an object to all other ranks, without waiting for them.
    """

    def __init__(self, held: HeldSetsView, tell: Callable[[Any], object]) -> None:
        super().__init__(held)
        self._tell = tell

    def settle(self, wishes: Sequence[Wish]) -> list[Automaton | None]:
        """See `Agreement`."""
        self._held.words.count()
        found = super().settle(wishes)
        self._tell([(wish.nonce, automaton is not None) for wish, automaton in zip(wishes, found, strict=True)])
        return found


class Follower(Alone):
    """Any other rank.

    Args:
        held: this rank's.
        hear: rank 0's next object.
        give_up: ends this process; it is told why.
    """

    def __init__(self, held: HeldSetsView, hear: Callable[[], object], give_up: Callable[[str], NoReturn]) -> None:
        super().__init__(held)
        self._hear = hear
        self._give_up = give_up

    def settle(self, wishes: Sequence[Wish]) -> list[Automaton | None]:
        """See `Agreement`."""
        told = self._hear()
        expected = [wish.nonce for wish in wishes]
        if not isinstance(told, list) or [nonce for nonce, _ in told] != expected:
            self._give_up(f"rank 0 spoke of {told!r} while the requests {expected} entered here")
        held = [wish for wish, (_, is_held) in zip(wishes, told, strict=True) if is_held]
        found = dict(zip([wish.reference for wish in held], super().settle(held), strict=True))
        for wish in held:
            if found[wish.reference] is None:
                self._give_up(f"rank 0 holds the set {wish.artifact_hash[:12]} and this rank does not")
        self._held.words.count()
        return [found.get(wish.reference) for wish in wishes]


class GiveUpOnError:
    """A block in which an exception ends the process: for every rank but 0, around all that vLLM calls while serving.

    Args:
        give_up: ends this process; it is told why.
    """

    def __init__(self, give_up: Callable[[str], NoReturn]) -> None:
        self._give_up = give_up

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            _log.error("the processor failed on a rank other than 0", exc_info=error)
            self._give_up(f"the processor failed: {error!r}")


def end_this_process(reason: str) -> NoReturn:
    """End at once, without clean-up, which could hang; rank 0's feed sees the connection end and tells the gateways."""
    _log.critical("this rank gives up, which ends the engine: %s", reason)
    os._exit(_EXIT_CODE)
