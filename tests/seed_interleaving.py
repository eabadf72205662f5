"""An old computation that ends two clears too late, step by step, against any cache layer.

The layer's values are integers that count as their own number of bytes. The first computation blocks until it is
released and then comes to 17, or fails; the n-th one comes to 17 * n. Every wait is bounded, and the first computation
is released however the run ends, before anything that waits for it: a broken cache fails here, it does not hang.

A cache takes part through a `SeedDriver`. Over a cache of threads `ThreadDriver` is one already; one of an event loop
runs the computation, which blocks its thread, in `asyncio.to_thread`.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

__all__ = ["GUARD_S", "OldComputeFailed", "SeedDriver", "ThreadDriver", "run_seed_interleaving"]

GUARD_S = 5.0
# longer than every guard: the old computation never goes on because of it
_RELEASE_LIMIT_S = 60.0

T = TypeVar("T")


class OldComputeFailed(Exception):
    """What the first computation fails with."""


class SeedDriver(Protocol):
    """One key of one layer of the cache under test."""

    async def get(self, compute: Callable[[], int]) -> int:
        """The key's value; `compute` blocks and is called in a thread if it is not there."""
        ...

    async def clear(self) -> None:
        """Begin a new generation; returns when the driver's own process sees it."""
        ...

    async def size_bytes(self) -> int:
        """Bytes of the layer's live entries."""
        ...


class _Computation:
    def __init__(self, *, fails: bool) -> None:
        self.calls = 0
        self.entered = threading.Event()
        self.release = threading.Event()
        self._fails = fails
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.calls += 1
            call = self.calls
        if call == 1:
            self.entered.set()
            assert self.release.wait(_RELEASE_LIMIT_S), "never released"
            if self._fails:
                raise OldComputeFailed
        return 17 * call


async def run_seed_interleaving(driver: SeedDriver, *, fails: bool) -> None:
    """Go through all steps.

    Args:
        driver: of a layer that is empty and that nobody else uses.
        fails: whether the old computation raises OldComputeFailed; else it comes to 17.

    Raises:
        AssertionError: the cache is wrong, or a step took longer than GUARD_S.
    """
    compute = _Computation(fails=fails)
    old = asyncio.create_task(driver.get(compute))
    try:
        await _steps(driver, compute, old, fails=fails)
    finally:
        compute.release.set()
        await asyncio.wait([old], timeout=GUARD_S)


async def _steps(driver: SeedDriver, compute: _Computation, old: "asyncio.Task[int]", *, fails: bool) -> None:
    entered = await _guarded("the first computation begins", asyncio.to_thread(compute.entered.wait, GUARD_S))
    assert entered, "the first computation never began"
    for _ in range(2):
        await _guarded("clear while a computation runs", driver.clear())
    assert await _size(driver) == 0
    assert await _guarded("a computation of the new generation", driver.get(compute)) == 34
    assert await _size(driver) == 34
    assert await _guarded("a hit", driver.get(compute)) == 34
    assert compute.calls == 2
    await _guarded("clear", driver.clear())
    assert await _size(driver) == 0
    assert await _guarded("a computation after the third clear", driver.get(compute)) == 51
    assert await _size(driver) == 51
    assert compute.calls == 3
    assert not old.done(), "the old computation's waiter was answered before its time"
    compute.release.set()
    if fails:
        failure = await _guarded("the old computation's failure", _failure_of(old))
        assert isinstance(failure, OldComputeFailed), failure
    else:
        assert await _guarded("the old computation's value", old) == 17
    assert await _size(driver) == 51
    assert await _guarded("a hit after the old computation's end", driver.get(compute)) == 51
    assert compute.calls == 3


class ThreadDriver:
    """A `SeedDriver` over blocking functions.

    Args:
        get: takes the computation.
        clear: of the whole cache.
        size_bytes: of the layer.
    """

    def __init__(
        self, *, get: Callable[[Callable[[], int]], int], clear: Callable[[], object], size_bytes: Callable[[], int]
    ) -> None:
        self._get = get
        self._clear = clear
        self._size_bytes = size_bytes

    async def get(self, compute: Callable[[], int]) -> int:
        return await asyncio.to_thread(self._get, compute)

    async def clear(self) -> None:
        await asyncio.to_thread(self._clear)

    async def size_bytes(self) -> int:
        return await asyncio.to_thread(self._size_bytes)


async def _size(driver: SeedDriver) -> int:
    return await _guarded("reading the size", driver.size_bytes())


async def _failure_of(task: "asyncio.Task[int]") -> BaseException | None:
    await asyncio.wait([task])
    return task.exception()


async def _guarded(what: str, awaitable: Awaitable[T]) -> T:
    try:
        return await asyncio.wait_for(awaitable, GUARD_S)
    except TimeoutError as error:
        raise AssertionError(f"{what}: not within {GUARD_S:.0f} s") from error
