"""Compiled sets in device memory: an arena of fixed size, and a directory that says where each set lies.

The arena is reserved at construction, before the engine gives what is left to its cache of keys and values. Sets come
from any thread, over a stream of their own, while the decode thread launches kernels. It knows names, arrays and bytes;
it knows no slot and no request, and evicts only what it is told to.

Invariants. The directory is written in the order of the decode stream, so a kernel sees a set whole or not at all: a
set enters it after its last byte has arrived; an evicted one leaves it before its memory is given to another, and that
memory is written only after every kernel that could have seen it has ended. A generation is never used twice, so a slot
that still names an evicted set finds that it is gone. Nothing makes the decode thread wait for the device.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from maskfeed_automata import Automaton
from maskfeed_automata.errors import CapacityError
from maskfeed_workers.device_captures import find_capture_mode
from maskfeed_workers.device_layout import ALIGNMENT, SET_COLUMNS, SET_GENERATION, SetLayout
from maskfeed_workers.device_space import Space

__all__ = ["DeviceSets", "Place"]

_STAGING_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where a set is."""

    # row of the directory
    row: int
    generation: int
    start: int
    size_bytes: int


class DeviceSets:
    """Thread-safe.

    Args:
        device: of the arena.
        arena_bytes: for all sets together; rounded down to a multiple of the alignment.
        max_sets: rows of the directory.
    """

    def __init__(self, *, device: torch.device, arena_bytes: int, max_sets: int) -> None:
        self.arena_bytes = arena_bytes // ALIGNMENT * ALIGNMENT
        # uint8 [arena_bytes], and two more views of the same memory
        self.arena = torch.empty(self.arena_bytes, dtype=torch.uint8, device=device)
        self.arena_int32 = self.arena.view(torch.int32)
        self.arena_int64 = self.arena.view(torch.int64)
        # int64 [max_sets, SET_COLUMNS]
        self.directory = torch.zeros((max_sets, SET_COLUMNS), dtype=torch.int64, device=device)
        self._device = device
        self._space = Space(self.arena_bytes)
        self._places: dict[str, Place] = {}
        self._free_rows = list(range(max_sets - 1, -1, -1))
        self._last_generation = 0
        # Held for microseconds where the device has streams: while kernels are launched or the directory is written.
        self._lock = threading.Lock()
        # Held while a set is copied: there is one staging buffer.
        self._uploading = threading.Lock()
        self._staging: torch.Tensor | None = None
        self._beside_captures: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        if device.type == "cuda":
            self._staging = torch.empty(_STAGING_BYTES, dtype=torch.uint8, pin_memory=True)
            self._side = torch.cuda.Stream(device)
            self._decode = torch.cuda.current_stream(device)
            self._beside_captures = find_capture_mode().beside_captures

    def place(self, name: str, automaton: Automaton) -> Place:
        """Bring a set to the device and enter it into the directory; one that is there stays where it is.

        Args:
            name: of exactly these arrays.
            automaton: borrowed until this returns.

        Raises:
            CapacityError: no room; nothing was evicted for it. Context: `limit`, `value`, `stage`.

        Cost: one copy of the set to the device, for which the calling thread waits.
        """
        with self._uploading, self._beside_captures():
            if (place := self.find(name)) is not None:
                return place
            layout = SetLayout.of(automaton)
            with self._lock:
                place = self._take(layout.size_bytes)
            self._copy(place.start, layout)
            with self._lock:
                self._write_directory(place.row, layout.directory_row(place.start, place.generation))
                self._places[name] = place
            return place

    def evict(self, name: str) -> None:
        """Take a set off the device; rows of slots that still name it are refused from now on. Idempotent."""
        with self._lock, self._beside_captures():
            place = self._places.pop(name, None)
            if place is None:
                return
            self._write_directory(place.row, np.zeros(SET_COLUMNS, np.int64))
            self._space.give_back(place.start, place.size_bytes)
            self._free_rows.append(place.row)

    def find(self, name: str) -> Place | None:
        """Where a set is, or None."""
        with self._lock:
            return self._places.get(name)

    def names(self) -> list[str]:
        """Sets on the device, those that came first first."""
        with self._lock:
            return list(self._places)

    def size_bytes(self) -> int:
        """Bytes of the arena that are taken."""
        with self._lock:
            return self.arena_bytes - self._space.free_bytes

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Around the launch of kernels that read sets, on the current stream, by the decode thread."""
        with self._lock:
            if self._device.type == "cuda":
                self._decode = torch.cuda.current_stream(self._device)
            yield

    def _take(self, size_bytes: int) -> Place:
        start = self._space.take(size_bytes) if self._free_rows else None
        if start is None:
            taken = self.arena_bytes - self._space.free_bytes
            raise CapacityError(
                f"a set of {size_bytes} bytes finds no room on the device: {len(self._places)} sets take {taken} of "
                f"{self.arena_bytes} bytes, the largest gap has {self._space.largest_hole}",
                limit=self.arena_bytes,
                value=size_bytes,
                stage="ready",
            )
        self._last_generation += 1
        if self._device.type == "cuda":
            # What reads this memory as an evicted set was launched before now.
            self._side.wait_stream(self._decode)
        return Place(self._free_rows.pop(), self._last_generation, start, size_bytes)

    def _copy(self, start: int, layout: SetLayout) -> None:
        if self._staging is None:
            # No streams: kernels run in the decode thread, while it holds the lock.
            with self._lock:
                for first, data in layout.pieces():
                    target = self.arena[start + first : start + first + data.size]
                    target.copy_(torch.from_numpy(data.copy()))
            return
        window = self._staging.numpy()
        with torch.cuda.stream(self._side):
            for first, data in layout.pieces():
                for k in range(0, data.size, _STAGING_BYTES):
                    part = data[k : k + _STAGING_BYTES]
                    window[: part.size] = part
                    target = self.arena[start + first + k : start + first + k + part.size]
                    target.copy_(self._staging[: part.size], non_blocking=True)
                    self._side.synchronize()

    def _write_directory(self, row: int, values: NDArray[np.int64]) -> None:
        source = torch.from_numpy(values)
        if self._device.type != "cuda":
            self.directory[row].copy_(source)
            return
        with torch.cuda.stream(self._decode):
            self.directory[row].copy_(source.pin_memory(), non_blocking=True)


assert SET_GENERATION == 0, "a row of zeros is no set"
