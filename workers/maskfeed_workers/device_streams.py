"""In which order the device does what different threads ask of it.

Two orders: that of the decode thread's stream, where kernels are launched, and that of a stream beside it, where sets
are copied. It knows no sets and no kernels. Invariant: only `side` makes the calling thread wait, and only for what was
queued beside the decode stream.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

import torch

from maskfeed_workers.device_captures import find_capture_mode

__all__ = ["CudaStreams", "NoStreams", "Streams", "streams_of"]

Work = Callable[[], object]


class Streams(Protocol):
    """Where the device does its work."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in host memory that is copied from without a wait."""
        ...

    def follow_caller(self) -> None:
        """The decode thread launches on its current stream from now on."""
        ...

    def decode(self, work: Work) -> None:
        """Queue work behind what was queued for the decode stream so far."""
        ...

    def hold_side(self) -> None:
        """What is queued beside from now on begins after all that was queued for the decode stream so far."""
        ...

    def side(self, work: Work) -> None:
        """Queue work beside the decode stream, and wait until it is done."""
        ...

    def beside_captures(self) -> contextlib.AbstractContextManager[None]:
        """A block in which the calling thread may use the device whatever graph another one records."""
        ...


class CudaStreams:
    """CUDA's, and HIP's, which torch gives the same names.

    Args:
        device: of both streams. The calling thread's current one is taken for the decode stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)
        self._decode = torch.cuda.current_stream(device)
        self._capture_mode = find_capture_mode()

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Streams`."""
        with torch.cuda.device(self._device):  # another device's context would be made otherwise
            return tensor.pin_memory()

    def follow_caller(self) -> None:
        """See `Streams`."""
        self._decode = torch.cuda.current_stream(self._device)

    def decode(self, work: Work) -> None:
        """See `Streams`."""
        with torch.cuda.stream(self._decode):
            work()

    def hold_side(self) -> None:
        """See `Streams`."""
        self._side.wait_stream(self._decode)

    def side(self, work: Work) -> None:
        """See `Streams`."""
        with torch.cuda.stream(self._side):
            work()
        self._side.synchronize()

    def beside_captures(self) -> contextlib.AbstractContextManager[None]:
        """See `Streams`."""
        return self._capture_mode.beside_captures()


class NoStreams:
    """A CPU, where everything is done at once.

    Args:
        lock: held by the decode thread while it runs kernels; the interpreter that runs them may write back all that
            they could read.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Streams`."""
        return tensor

    def follow_caller(self) -> None:
        """See `Streams`."""

    def decode(self, work: Work) -> None:
        """See `Streams`."""
        work()

    def hold_side(self) -> None:
        """See `Streams`."""

    def side(self, work: Work) -> None:
        """See `Streams`."""
        with self._lock:
            work()

    def beside_captures(self) -> contextlib.AbstractContextManager[None]:
        """See `Streams`."""
        return contextlib.nullcontext()


def streams_of(device: torch.device, lock: threading.Lock) -> Streams:
    """The streams of a device; `lock` as in `NoStreams`."""
    return CudaStreams(device) if device.type == "cuda" else NoStreams(lock)
