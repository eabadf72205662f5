"""How long the device takes for advance and mask, beside a bare fill of the same rows; what a step copies and awaits.

Each figure is checked before it is taken: the masked rows are compared with the walk on the host. On a GPU a figure is
the time between two events around replays of a captured graph, so it contains no launch; that the masking can be
captured at all shows that it neither waits nor copies from memory that is not pinned. Without a GPU the interpreter
runs the same code, which shows that it works and nothing else.
"""

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made_up_sets import made_up_set
from tokenizers import Tokenizer

from maskfeed_automata import Automaton, Batch, Vocabulary, compile
from maskfeed_workers.device_layout import SLOT_CACHED, SetLayout
from maskfeed_workers.device_sets import DeviceSets
from maskfeed_workers.device_slots import BatchRows, DeviceSlots, Histories
from maskfeed_workers.device_vocabulary import DeviceVocabulary
from maskfeed_workers.masking import mask_rows

__all__ = ["measure_kernels", "measure_upload"]

_MAX_LEN = 64
_N_REPEATS = 50


class Rows:
    """`n_rows` slots bound to one set, each in the middle of a name of its own, with one token still to be read."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        tokenizer: Tokenizer,
        automaton: Automaton,
        names: list[str],
        *,
        n_rows: int,
        width: int,
        device: torch.device,
    ) -> None:
        choose = random.Random(n_rows)
        self.vocabulary, self.automaton = vocabulary, automaton
        self.tokens = []
        for _ in range(n_rows):
            ids = tokenizer.encode(choose.choice(names), add_special_tokens=False).ids
            self.tokens.append(ids[: choose.randrange(len(ids))] if n_rows > 1 else ids[:1])
        sets = DeviceSets(device=device, arena_bytes=SetLayout.of(automaton).size_bytes, max_sets=1)
        place = sets.place("measured", automaton)
        self.slots = DeviceSlots(
            n_slots=n_rows,
            logits_width=width,
            sets=sets,
            vocabulary=DeviceVocabulary.of(vocabulary, device),
            device=device,
        )
        histories = torch.zeros((n_rows, _MAX_LEN), dtype=torch.int32)
        for slot, tokens in enumerate(self.tokens):
            self.slots.bind(slot, place, start=0, stop_ids=vocabulary.stop_token_ids, refusal_ids=[3])
            histories[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.slots.flush()
        lengths = torch.tensor([len(tokens) for tokens in self.tokens], dtype=torch.int32)
        self.histories = Histories(histories.to(device), lengths.to(device))
        nobody = torch.zeros(n_rows, dtype=torch.int32, device=device)
        # the runner's own types
        self.rows = BatchRows(torch.arange(n_rows, dtype=torch.int64, device=device), nobody, nobody)
        self.logits = torch.randn((n_rows, width), device=device)
        self.n_rows, self.device = n_rows, device
        self._check()

    def _check(self) -> None:
        """The device's answer is the host's."""
        masked = self.logits.clone()
        self.slots.mask_rows(masked, self.histories, self.rows)
        expected = torch.full_like(masked, float("-inf"))
        for row, tokens in enumerate(self.tokens):
            cursor = self.automaton.with_stop_token_ids(self.vocabulary.stop_token_ids).cursor()
            for token in tokens:
                cursor.advance(token)
            ids = torch.from_numpy(cursor.allowed_token_ids().astype(np.int64)).to(self.device)
            expected[row, ids] = self.logits[row, ids]
        assert torch.equal(masked.view(torch.int32), expected.view(torch.int32)), "the device masks something else"

    def permit(self) -> None:
        """Walk, from the cached position through one token, and list. The cache is put back one token first."""
        self.put_back()
        self.slots.launch_permit(self.histories, self.rows, 0, self.n_rows)

    def put_back(self) -> None:
        """Every slot is where it was one token ago."""
        self.slots._slots[:, SLOT_CACHED].copy_(self._one_behind)

    def prepare(self) -> None:
        """Remember where every slot was one token ago."""
        whole = self.histories.total_len.clone()
        self.slots._slots[:, SLOT_CACHED] = 0
        self.histories.total_len.copy_((whole - 1).clamp(min=0))
        self.slots.launch_permit(self.histories, self.rows, 0, self.n_rows)
        self._one_behind = self.slots._slots[:, SLOT_CACHED].clone()
        self.histories.total_len.copy_(whole)

    def mask(self) -> None:
        """Apply the bits."""
        self.slots.launch_mask(self.logits, 0, self.n_rows)

    def step(self) -> None:
        """Both, as the processor does it."""
        self.slots.mask_rows(self.logits, self.histories, self.rows)


def measure_kernels(
    vocabulary: Vocabulary, tokenizer: Tokenizer, sizes: list[int], n_rows: list[int], width: int, device: torch.device
) -> list[dict[str, Any]]:
    """Microseconds for each size of set and number of rows."""
    results = []
    for size in sizes:
        names = made_up_set("names", size)
        automaton = compile(vocabulary, names)
        for n in n_rows:
            made = Rows(vocabulary, tokenizer, automaton, names, n_rows=n, width=width, device=device)
            results.append({"n_candidates": size, "n_rows": n, **_measure(made)})
    return results


def _measure(made: Rows) -> dict[str, Any]:
    device = made.device
    made.prepare()
    _refuse_to_wait(made.step, device)
    plain = torch.empty_like(made.logits)
    return {
        "advance_us": max(0.0, _microseconds(made.permit, device) - _microseconds(made.put_back, device)),
        "mask_us": _microseconds(made.mask, device),
        "fill_us": _microseconds(lambda: plain.fill_(float("-inf")), device),
        "launch_us": _launch_microseconds(made.step, device),
        "v2": _traffic(made.step, device),
        "v1": _traffic(_host_step(made), device),
    }


def measure_upload(vocabulary: Vocabulary, sizes: list[int], device: torch.device) -> list[dict[str, Any]]:
    """From a compiled set to a set on the device: bytes there, and milliseconds until it can be used."""
    results = []
    for size in sizes:
        automaton = compile(vocabulary, made_up_set("names", size))
        n_bytes = SetLayout.of(automaton).size_bytes
        sets = DeviceSets(device=device, arena_bytes=n_bytes, max_sets=1)
        times = []
        for _ in range(7):
            start = time.perf_counter()
            sets.place("measured", automaton)
            times.append((time.perf_counter() - start) * 1e3)
            sets.evict("measured")
        results.append(
            {
                "n_candidates": size,
                "device_bytes": n_bytes,
                "artifact_bytes": automaton.nbytes,
                "ms": statistics.median(times),
            }
        )
    return results


def _host_step(made: Rows) -> Callable[[], None]:
    """The same rows as the V1 runner has them: walked on the host, ids copied to the device."""
    batch = Batch(made.vocabulary, made.n_rows)
    slots = np.arange(made.n_rows, dtype=np.int32)
    lengths = np.cumsum([0, *map(len, made.tokens)])
    for slot in range(made.n_rows):
        batch.start(slot, made.automaton, made.vocabulary.stop_token_ids)
    batch.step(slots, lengths, np.array([t for tokens in made.tokens for t in tokens], np.int32))
    rows, nothing = np.arange(made.n_rows), np.zeros(made.n_rows + 1, np.int64)

    def step() -> None:
        permitted = batch.step(slots, nothing, np.empty(0, np.int32))
        mask_rows(made.logits, rows, permitted.row_ptr, permitted.token_ids)

    return step


def _microseconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e6
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            work()
    times = []
    for _ in range(_N_REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / 10)
    return statistics.median(times)


def _launch_microseconds(work: Callable[[], None], device: torch.device) -> float:
    """What the host spends on a step, whatever the device does meanwhile."""
    times = []
    for _ in range(_N_REPEATS if device.type == "cuda" else 1):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e6)
        if device.type == "cuda":
            torch.cuda.synchronize()
    return statistics.median(times)


def _refuse_to_wait(work: Callable[[], None], device: torch.device) -> None:
    """One step during which torch raises instead of waiting for the device."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    work()
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")


def _traffic(work: Callable[[], None], device: torch.device) -> dict[str, int] | None:
    """Copies between host and device, their bytes, and waits of the host, in one step; None without a GPU."""
    if device.type != "cuda":
        work()
        return None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    work()
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with torch.profiler.profile(activities=activities) as profile:
            work()
            mark = torch.cuda.Event()
            mark.record()
        torch.cuda.synchronize()
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    copies = [
        event
        for event in events
        if event.get("cat") == "gpu_memcpy" and event["name"].startswith(("Memcpy HtoD", "Memcpy DtoH"))
    ]
    waits = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")
    return {
        "copies": len(copies),
        "bytes": sum(int(event["args"].get("bytes", 0)) for event in copies),
        "waits": sum(event.get("cat") == "cuda_runtime" and event.get("name") in waits for event in events),
    }
