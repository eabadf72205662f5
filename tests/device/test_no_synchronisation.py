"""A step that adds no request of ours neither waits for the device nor copies anything to it or from it."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from played_runner import PlayedRunner
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from maskfeed_workers import device_slots
from reference import Oracle
from vocabularies import HAND_STOP, HAND_TOKENS, hand_vocabulary

CANDIDATES = ["foo", "food", "for"]
# Launches on the device, views, and questions about shapes. Everything else could copy or wait, so it is an error:
# among torch's functions, because on the CPU some that copy never get to an operation, and among its operations,
# because of what a function may do with its arguments.
FUNCTIONS = {"zero_", "__getitem__", "stride", "__get__"}
OPERATIONS = {"aten::zero_", "aten::slice.Tensor"}


class Watch:
    """Whether to look; one for the process."""

    is_on = True


class OnlyFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Watch.is_on and func.__name__ not in FUNCTIONS:
            raise AssertionError(f"{func.__name__} may wait for the device or copy")
        return func(*args, **(kwargs or {}))


class OnlyOperations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Watch.is_on and func.name() not in OPERATIONS:
            raise AssertionError(f"{func.name()} may wait for the device or copy")
        return func(*args, **(kwargs or {}))


# Waits that no tensor is part of.
WAITS = [(torch.cuda, "synchronize"), (torch.cuda.Stream, "synchronize"), (torch.cuda.Event, "synchronize")]


def _refuse(*args: Any) -> None:
    raise AssertionError("this waits for the device")


@contextlib.contextmanager
def nothing_else() -> Iterator[None]:
    with contextlib.ExitStack() as patched, OnlyFunctions(), OnlyOperations():
        for owner, name in WAITS:
            patched.enter_context(patch.object(owner, name, _refuse))
        yield


class Unwatched:
    """A kernel whose launch is not looked into: the interpreter does with torch what a GPU does by itself."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            for value in args:
                assert isinstance(value, int | torch.Tensor)
            Watch.is_on = False
            try:
                self._kernel[grid](*args, **options)
            finally:
                Watch.is_on = True

        return launch


CALLS = [
    lambda x: x.item(),
    lambda x: x.tolist(),
    lambda x: x.cpu(),
    lambda x: x.numpy(),
    lambda x: x.to("cpu"),
    lambda x: x.nonzero(),
    lambda x: x[x > 0],
    lambda x: x[torch.ones(1, dtype=torch.int64)],
    lambda x: x.copy_(x),
    lambda x: torch.cuda.synchronize(),
    lambda x: torch.cuda.Event.synchronize(x),
    bool,
    int,
    torch.clone,
]


@pytest.fixture
def runner(monkeypatch) -> PlayedRunner:
    for name in ("permit", "mask"):
        monkeypatch.setattr(device_slots, name, Unwatched(getattr(device_slots, name)))
    return PlayedRunner(hand_vocabulary(), stop=HAND_STOP, reserved=22, width=35, n_slots=3, arena_bytes=1 << 16)


@pytest.mark.parametrize("call", CALLS)
def test_the_watch_sees_what_waits_or_copies(call):
    one = torch.ones(1)
    with nothing_else(), pytest.raises(AssertionError):
        call(one)


def test_masking_launches_kernels_and_does_nothing_else(runner, monkeypatch):
    oracle = Oracle(HAND_TOKENS, [text.encode() for text in CANDIDATES], [HAND_STOP])
    ours, stranger = runner.request(CANDIDATES, oracle, [3]), runner.request(None, None, [4])
    runner.add(ours)
    runner.add(stranger)
    runner.step([(ours, []), (stranger, [])])
    apply = runner.processor.apply
    n_watched = 0

    def watched(logits, context):
        nonlocal n_watched
        n_watched += 1
        with nothing_else():
            runner.processor.apply_staged_writes()
            return apply(logits, context)

    monkeypatch.setattr(runner.processor, "apply", watched)
    while HAND_STOP not in ours.output:
        allowed = oracle.allowed(ours.output)
        runner.step([(ours, allowed[:1]), (stranger, [])])
        runner.commit(ours, allowed[:1])
    assert n_watched > 2
