"""Memory whose neighbours can't be touched: reading or writing one byte past either end kills the process."""

import ctypes
import mmap

__all__ = ["GuardedMemory"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_ACCESS = 0


class GuardedMemory:
    """Pages between two forbidden ones; what is placed there stays until the next `place`."""

    def __init__(self, capacity: int) -> None:
        n_pages = -(-capacity // mmap.PAGESIZE)
        self._map = mmap.mmap(-1, (n_pages + 2) * mmap.PAGESIZE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in (first, first + (n_pages + 1) * mmap.PAGESIZE):
            if _LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._pages = memoryview(self._map)[mmap.PAGESIZE : -mmap.PAGESIZE]

    @property
    def capacity(self) -> int:
        """Bytes between the forbidden pages."""
        return self._pages.nbytes

    def place(self, data: bytes | memoryview, *, at_end: bool) -> memoryview:
        """Copy `data` so that it ends (or starts) right at a forbidden page; a view of the copy."""
        start = self.capacity - len(data) if at_end else 0
        assert start >= 0, f"{len(data)} bytes do not fit"
        view = self._pages[start : start + len(data)]
        view[:] = data
        return view
