"""Read-only memory maps that cost no file descriptor.

Python's `mmap` (and `numpy.memmap` on it) duplicates the descriptor and keeps it for as long as the map lives, before
3.13 without a choice. With hundreds of sets that is hundreds of descriptors, and each time the process's table has to
grow the kernel makes every thread wait for tens of milliseconds. So mmap(2) is called directly and the file is closed
at once.

Invariant: the memory is unmapped when the last object that refers to it is gone, never before.
"""

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Final

__all__ = ["map_read_only"]

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.restype = ctypes.c_int
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED: Final = ctypes.c_void_p(-1).value


def map_read_only(path: Path) -> memoryview:
    """Map a whole file.

    Returns:
        uint8 [size of the file], read-only. The file may be removed; it must never be truncated while it is mapped.

    Raises:
        OSError: the file can't be opened (FileNotFoundError among them) or mapped.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            return memoryview(b"")
        address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    owner = (ctypes.c_ubyte * size).from_address(address)
    # Views hold the owner, the owner's end unmaps. Not at exit: views may outlive finalizers there.
    weakref.finalize(owner, _LIBC.munmap, address, size).atexit = False
    return memoryview(owner).toreadonly().cast("B")
