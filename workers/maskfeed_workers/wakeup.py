"""A descriptor that makes a poll return: how other threads reach a thread that waits for sockets.

Invariant: `wake` after `close` is harmless, whichever thread calls it, so a load that ends long after its feed has
stopped does not write into somebody else's descriptor.
"""

import os
import threading
from contextlib import suppress

__all__ = ["Wakeup"]


class Wakeup:
    """Readable from the first `wake` until `clear`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """For poll; -1 once closed."""
        return self._descriptor

    def wake(self) -> None:
        """Make the descriptor readable."""
        with self._lock:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable until the next `wake`."""
        with self._lock, suppress(BlockingIOError):
            if self._descriptor >= 0:
                os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
