"""How a thread uses the GPU while another one records a graph.

vLLM records graphs while it starts, and a set can arrive then. In CUDA's default mode a recording forbids every thread
to wait or to allocate, and fails if one does; a thread that has said that other threads' recordings are not its
business may do both. torch says so in C++ for its own threads and offers no Python call for it. Invariant: the thread's
mode is put back.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from maskfeed_automata.errors import EngineUnsupported

__all__ = ["CaptureMode", "find_capture_mode"]

# Runtimes by the name of their library, and the call in each that exchanges the calling thread's mode.
_RUNTIMES: Final = {
    "libcudart": "cudaThreadExchangeStreamCaptureMode",
    "libamdhip64": "hipThreadExchangeStreamCaptureMode",
}
_THREAD_LOCAL: Final = 1

# Takes a pointer to the new mode, leaves the old one there; 0 is success.
Exchange = Callable[[Any], int]


class CaptureMode:
    """What this process's GPU runtime thinks of threads beside a recording."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @contextlib.contextmanager
    def beside_captures(self) -> Iterator[None]:
        """A block in which the calling thread may wait for the GPU and allocate, whatever other threads record.

        Raises:
            EngineUnsupported: the runtime refuses.
        """
        mode = ctypes.c_int(_THREAD_LOCAL)
        self._swap(mode)
        try:
            yield
        finally:
            self._swap(mode)

    def _swap(self, mode: ctypes.c_int) -> None:
        if (code := self._exchange(ctypes.byref(mode))) != 0:
            raise EngineUnsupported(f"the GPU runtime refuses to change the capture mode: error {code}", value=code)


def find_capture_mode(maps: Path = Path("/proc/self/maps")) -> CaptureMode:
    """The runtime that torch has loaded into this process.

    Args:
        maps: the process's memory map, as Linux shows it.

    Raises:
        EngineUnsupported: none of the known runtimes is loaded.
    """
    for line in maps.read_text().splitlines():
        path = line.split(maxsplit=5)[5:]
        for library, name in _RUNTIMES.items():
            if path and Path(path[0]).name.startswith(library):
                exchange: Exchange = getattr(ctypes.CDLL(path[0]), name)
                return CaptureMode(exchange)
    raise EngineUnsupported(f"no GPU runtime is loaded: {' or '.join(_RUNTIMES)}", field="device")
