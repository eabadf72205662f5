"""Compiled sets in device memory: an arena of fixed size, and a directory that says where each set lies.

The arena is reserved at construction, before the engine gives what is left to its cache of keys and values. Sets come
from any thread, over a stream of their own, while the decode thread launches kernels. It knows names, arrays and bytes;
it knows no slot and no request, and evicts only what it is told to.

Invariants. The directory is written in the order of the decode stream, so a kernel sees a set whole or not at all: a
set enters it after its last byte has arrived; an evicted one leaves it before its memory is given to another, and that
memory is written only after every kernel that could have seen it has ended. A generation is never used twice, so a slot
that still names an evicted set finds that it is gone. A set finds room if the free bytes suffice, wherever they lie: if
no gap is large enough, sets are moved together, in the order of the decode stream too, and keep row and generation.
Nothing makes the decode thread wait for the device.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from maskfeed_automata import Automaton
from maskfeed_automata.errors import CapacityError
from maskfeed_workers.device_layout import ALIGNMENT, SET_COLUMNS, SET_GENERATION, SetLayout
from maskfeed_workers.device_space import Space
from maskfeed_workers.device_streams import Streams, streams_of

__all__ = ["DeviceSets", "Place"]

# What is copied at once, from the host and within the arena.
_PIECE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """What a slot knows of its set, as long as that is on the device."""

    # of the directory
    row: int
    generation: int


@dataclass(slots=True)
class _Resident:
    place: Place
    layout: SetLayout
    # byte of the arena
    start: int


class DeviceSets:
    """Thread-safe.

    Args:
        device: of the arena.
        arena_bytes: for all sets together; rounded down to a multiple of the alignment. 4 MiB more serve to move sets.
        max_sets: rows of the directory.
        streams: instead of the device's own.
    """

    def __init__(
        self, *, device: torch.device, arena_bytes: int, max_sets: int, streams: Streams | None = None
    ) -> None:
        self.arena_bytes = arena_bytes // ALIGNMENT * ALIGNMENT
        # uint8 [arena_bytes], and two more views of the same memory
        self.arena = torch.empty(self.arena_bytes, dtype=torch.uint8, device=device)
        self.arena_int32 = self.arena.view(torch.int32)
        self.arena_int64 = self.arena.view(torch.int64)
        # int64 [max_sets, SET_COLUMNS]
        self.directory = torch.zeros((max_sets, SET_COLUMNS), dtype=torch.int64, device=device)
        self._space = Space(self.arena_bytes)
        # on the way from one place of the arena to another
        self._moving = torch.empty(min(_PIECE_BYTES, self.arena_bytes), dtype=torch.uint8, device=device)
        self._residents: dict[str, _Resident] = {}
        self._free_rows = list(range(max_sets - 1, -1, -1))
        self._last_generation = 0
        # Held for microseconds where the device has streams: while kernels are launched or the directory is written.
        self._lock = threading.Lock()
        # Held while a set is copied: there is one staging buffer, and what has no name yet must not be moved.
        self._uploading = threading.Lock()
        self._streams = streams or streams_of(device, self._lock)
        self._staging = self._streams.pinned(torch.empty(_PIECE_BYTES, dtype=torch.uint8))

    def place(self, name: str, automaton: Automaton) -> Place:
        """Bring a set to the device and enter it into the directory; one that is there stays where it is.

        Args:
            name: of exactly these arrays.
            automaton: borrowed until this returns.

        Raises:
            CapacityError: no room; nothing was evicted for it. Context: `limit`, `value`, `stage`.

        Cost: one copy of the set to the device, for which the calling thread waits.
        """
        with self._uploading, self._streams.beside_captures():
            if (place := self.find(name)) is not None:
                return place
            layout = SetLayout.of(automaton)
            with self._lock:
                resident = self._take(layout)
            try:
                self._copy(resident.start, layout, automaton)
            except BaseException:
                # whatever ended the copy, an interrupt included: the room is free again
                with self._lock:
                    self._give_back(resident)
                raise
            with self._lock:
                self._enter(resident)
                self._residents[name] = resident
            return resident.place

    def evict(self, name: str) -> None:
        """Take a set off the device; rows of slots that still name it are refused from now on. Idempotent."""
        with self._lock, self._streams.beside_captures():
            resident = self._residents.pop(name, None)
            if resident is None:
                return
            self._write_directory(resident.place.row, np.zeros(SET_COLUMNS, np.int64))
            self._give_back(resident)

    def find(self, name: str) -> Place | None:
        """Where a set is, or None."""
        with self._lock:
            resident = self._residents.get(name)
            return None if resident is None else resident.place

    def names(self) -> list[str]:
        """Sets on the device, those that came first first."""
        with self._lock:
            return list(self._residents)

    def size_bytes(self) -> int:
        """Bytes of the arena that are taken."""
        with self._lock:
            return self.arena_bytes - self._space.free_bytes

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Around the launch of kernels that read sets, on the current stream, by the decode thread."""
        with self._lock:
            self._streams.follow_caller()
            yield

    # -- under the lock --------------------------------------------------------------------------------------------

    def _take(self, layout: SetLayout) -> _Resident:
        size_bytes = layout.size_bytes
        if not self._free_rows or self._space.free_bytes < size_bytes:
            taken = self.arena_bytes - self._space.free_bytes
            raise CapacityError(
                f"a set of {size_bytes} bytes finds no room on the device: {len(self._residents)} sets take {taken} of "
                f"{self.arena_bytes} bytes",
                limit=self.arena_bytes,
                value=size_bytes,
                stage="ready",
            )
        if self._space.largest_hole < size_bytes:
            self._close_gaps()
        start = self._space.take(size_bytes)
        assert start is not None, "the free bytes are one hole"
        self._last_generation += 1
        # What reads this memory as an evicted set, or moves it elsewhere, was queued before now.
        self._streams.hold_side()
        return _Resident(Place(self._free_rows.pop(), self._last_generation), layout, start)

    def _give_back(self, resident: _Resident) -> None:
        self._space.give_back(resident.start, resident.layout.size_bytes)
        self._free_rows.append(resident.place.row)

    def _enter(self, resident: _Resident) -> None:
        self._write_directory(
            resident.place.row, resident.layout.directory_row(resident.start, resident.place.generation)
        )

    def _close_gaps(self) -> None:
        """Move all sets to the front of the arena. Kernels launched before see them where they were, later ones there.

        Copies within the device, at most the arena's bytes twice; they delay the kernels behind them, not the host.
        """
        in_order = sorted(self._residents.values(), key=lambda resident: resident.start)
        for resident in in_order:
            self._space.give_back(resident.start, resident.layout.size_bytes)
        for resident in in_order:
            start = self._space.take(resident.layout.size_bytes)
            assert start is not None, "what was one hole is filled from its front"
            if start != resident.start:
                self._move(resident.start, start, resident.layout.size_bytes)
                resident.start = start
                self._enter(resident)

    def _move(self, source: int, target: int, n_bytes: int) -> None:
        def by_pieces() -> None:  # both places may overlap
            for k in range(0, n_bytes, _PIECE_BYTES):
                piece = self._moving[: min(_PIECE_BYTES, n_bytes - k)]
                piece.copy_(self.arena[source + k :][: piece.shape[0]])
                self.arena[target + k :][: piece.shape[0]].copy_(piece)

        self._streams.decode(by_pieces)

    def _write_directory(self, row: int, values: NDArray[np.int64]) -> None:
        source = self._streams.pinned(torch.from_numpy(values))
        self._streams.decode(lambda: self.directory[row].copy_(source, non_blocking=True))

    # -- not under the lock ----------------------------------------------------------------------------------------

    def _copy(self, start: int, layout: SetLayout, automaton: Automaton) -> None:
        window = self._staging.numpy()
        for first, data in layout.pieces(automaton):
            for k in range(0, data.size, _PIECE_BYTES):
                part = data[k : k + _PIECE_BYTES]
                window[: part.size] = part
                self._copy_staged(start + first + k, part.size)

    def _copy_staged(self, start: int, n_bytes: int) -> None:
        target = self.arena[start : start + n_bytes]
        self._streams.side(lambda: target.copy_(self._staging[:n_bytes], non_blocking=True))


assert SET_GENERATION == 0, "a row of zeros is no set"
