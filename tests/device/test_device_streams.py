"""What the streams ask of CUDA, in which order. There is no GPU here: torch's side of it is played."""

import contextlib

import pytest
import torch

from maskfeed_workers import device_streams
from maskfeed_workers.device_streams import CudaStreams

DEVICE = torch.device("cuda", 1)


class Played:
    """torch.cuda, as far as it is used: which stream and device are current, and what was asked."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = "first"
        self.on = "default"
        self.device_index = 0

    def stream(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self._as("on", name)

    def device(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        return self._as("device_index", device.index)

    def work(self) -> None:
        self.log.append(f"work on {self.on}")

    @contextlib.contextmanager
    def _as(self, field, value):
        before = getattr(self, field)
        setattr(self, field, value)
        yield
        setattr(self, field, before)


@pytest.fixture
def played(monkeypatch) -> Played:
    played = Played()

    class Side(str):
        def wait_stream(self, other):
            played.log.append(f"{self} waits for {other}")

        def synchronize(self):
            played.log.append(f"host waits for {self}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Side("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: played.current)
    monkeypatch.setattr(torch.cuda, "stream", played.stream)
    monkeypatch.setattr(torch.cuda, "device", played.device)
    monkeypatch.setattr(device_streams, "find_capture_mode", lambda: None)
    return played


def test_work_beside_is_waited_for_and_work_for_the_decode_stream_is_not(played):
    streams = CudaStreams(DEVICE)
    streams.side(played.work)
    streams.decode(played.work)
    assert played.log == ["work on side", "host waits for side", "work on first"]


def test_the_side_is_held_behind_the_stream_on_which_the_decode_thread_launches_now(played):
    streams = CudaStreams(DEVICE)
    streams.hold_side()
    played.current = "second"
    streams.hold_side()
    streams.follow_caller()
    streams.hold_side()
    streams.decode(played.work)
    waited = [f"side waits for {name}" for name in ("first", "first", "second")]
    assert played.log == [*waited, "work on second"]


def test_memory_is_pinned_by_the_device_of_this_rank_whatever_the_calling_thread_has(played, monkeypatch):
    devices = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: devices.append(played.device_index) or self)
    CudaStreams(DEVICE).pinned(torch.empty(1))
    assert devices == [1]
