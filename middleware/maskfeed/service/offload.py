"""Work that grows with a body: on the event loop if it is small, else in a thread, so that the loop goes on.

It knows no work. Invariant: the result, or the exception, is the work's own.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

__all__ = ["off_loop"]

# A smaller body is read in less time than it takes to hand it to a thread and back.
_OFFLOAD_BYTES: Final = 64 * 1024

_T = TypeVar("_T")


async def off_loop(executor: Executor, n_bytes: int, work: Callable[[], _T]) -> _T:
    """Do `work`.

    Args:
        executor: of the threads.
        n_bytes: what it grows with.
        work: releases the GIL where it can.
    """
    if n_bytes <= _OFFLOAD_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(executor, work)
