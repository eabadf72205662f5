import ctypes

import pytest

from maskfeed_automata.errors import EngineUnsupported
from maskfeed_workers.device_captures import CaptureMode, find_capture_mode


class Runtime:
    """A thread's mode, exchanged as CUDA does it. 0 is the default."""

    def __init__(self, code: int = 0) -> None:
        self.mode = 0
        self.code = code

    def exchange(self, pointer) -> int:
        given = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))
        given[0], self.mode = self.mode, given[0]
        return self.code


def test_inside_the_block_other_threads_recordings_do_not_count_and_afterwards_all_is_as_before():
    runtime = Runtime()
    with CaptureMode(runtime.exchange).beside_captures():
        assert runtime.mode == 1
    assert runtime.mode == 0


def test_a_runtime_that_refuses_is_an_error():
    with pytest.raises(EngineUnsupported, match="error 3"), CaptureMode(Runtime(code=3).exchange).beside_captures():
        pass


def test_the_runtime_is_found_among_the_libraries_of_the_process(tmp_path, monkeypatch):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 rw-p 00000000 00:00 0 \n"
        "7f01-7f02 r-xp 00000000 08:01 77    /usr/lib/libc.so.6\n"
        "7f02-7f03 r-xp 00000000 08:01 78    /opt/my libs/libcudart.so.13\n"
    )
    opened = []

    class Library:
        def __init__(self, path):
            opened.append(path)

        def cudaThreadExchangeStreamCaptureMode(self, pointer):
            return Runtime().exchange(pointer)

    monkeypatch.setattr(ctypes, "CDLL", Library)
    with find_capture_mode(maps).beside_captures():
        assert opened == ["/opt/my libs/libcudart.so.13"]


def test_a_process_without_a_gpu_runtime_is_told(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text("7f01-7f02 r-xp 00000000 08:01 77    /usr/lib/libc.so.6\n")
    with pytest.raises(EngineUnsupported, match="no GPU runtime"):
        find_capture_mode(maps)
