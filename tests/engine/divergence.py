"""The processor with a check that all ranks mask alike: what every test with several ranks runs.

In each step, in the decode thread, the ranks gather a hash of their mask rows as they stand in the logits. When two
differ, each rank ends its process: an exception on a rank other than 0 would only be logged. Ordinary engines don't
pay for this; their agreement is of the sets, and masks follow from sets.

The folder named by MASKFEED_TEST_DIVERGENCE holds what is observed and what is ordered:
    rank-<n>   int64 [3], kept up to date: steps, rows compared, rows of refused requests (V1 model runner)
    pid-<n>    process id of the rank
    flip       while it is there, rank 1 flips one bit of its masks, to prove that the check sees it
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.distributed.parallel_state import get_tp_group

from maskfeed_workers.vllm_entry import MaskfeedLogitsProcessor

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

__all__ = ["EXIT_CODE", "FOLDER_VARIABLE", "CheckedProcessor", "read_counts"]

FOLDER_VARIABLE = "MASKFEED_TEST_DIVERGENCE"
EXIT_CODE = 71


class CheckedProcessor(MaskfeedLogitsProcessor):
    """The real processor; compares the ranks' masks after each `apply`."""

    _counts: "np.memmap | None" = None

    def __init__(self, *args):
        super().__init__(*args)
        self._folder = Path(os.environ[FOLDER_VARIABLE])
        self._group = get_tp_group()
        path = self._folder / f"rank-{self._group.rank_in_group}"
        self._counts = np.memmap(path, np.int64, mode="w+", shape=3)
        (self._folder / f"pid-{self._group.rank_in_group}").write_text(str(os.getpid()))

    def apply(self, logits: torch.Tensor, ctx: "LogitsContext | None" = None) -> torch.Tensor:
        result = super().apply(logits, ctx)
        if self._counts is None:  # in the self-test
            return result
        rows = self._our_rows(ctx)
        if rows and self._group.rank_in_group == 1 and (self._folder / "flip").exists():
            result[rows[0], 17] = 0.0 if torch.isneginf(result[rows[0], 17]) else float("-inf")
        self._compare(rows, result)
        refused = () if ctx is not None else [row for row in rows if self._table._rows[row].constraint is None]
        self._counts += (1, len(rows), len(refused))
        return result

    def _our_rows(self, ctx: "LogitsContext | None") -> list[int]:
        if ctx is None:
            return sorted(self._table._rows)
        return np.flatnonzero(self._v2._slots._is_ours[ctx.expanded_idx_mapping.numpy()]).tolist()

    def _compare(self, rows: list[int], result: torch.Tensor) -> None:
        hashed = hashlib.blake2b(repr((rows, tuple(result.shape))).encode(), digest_size=16)
        if rows:
            hashed.update(np.packbits(torch.isneginf(result[rows]).numpy()).tobytes())
        own = torch.from_numpy(np.frombuffer(hashed.digest(), np.int64).copy())
        gathered = [torch.empty_like(own) for _ in range(self._group.world_size)]
        torch.distributed.all_gather(gathered, own, group=self._group.cpu_group)
        if not all(torch.equal(each, own) for each in gathered):
            print(f"MASKS DIFFER on rank {self._group.rank_in_group} in rows {rows}", file=sys.stderr, flush=True)
            os._exit(EXIT_CODE)


def read_counts(folder: Path) -> list[tuple[int, int, int]]:
    """Of each rank: steps, rows compared, rows of refused requests."""
    return [tuple(np.fromfile(path, np.int64).tolist()) for path in sorted(folder.glob("rank-*"))]
