"""The slots of vLLM's batch on the device: to which set each is bound, and the masking of a batch's rows.

A slot is what the runner calls a request's index; it is recycled without notice, so binding overwrites whatever was
there. Host code stages; one copy for each step that binds something brings it over; everything else stays on the
device. It knows no request, no verdict's reasons and no vLLM type.

Invariants: `mask_rows` copies nothing from or to the host and waits for nothing; it is a function of the slots, the
histories and the drafts it is given, so calling it twice, or for a part of the rows, changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from maskfeed_workers.device_kernels import MASK_BLOCK, N_SPLITS, mask, permit
from maskfeed_workers.device_layout import (
    CONSTRAINED,
    FREE,
    MAX_IDS,
    REFUSED,
    SLOT_CACHED,
    SLOT_COLUMNS,
    SLOT_GENERATION,
    SLOT_IDS,
    SLOT_KIND,
    SLOT_N_REFUSAL,
    SLOT_N_STOP,
    SLOT_SET,
    SLOT_START,
    packed,
)
from maskfeed_workers.device_sets import DeviceSets, Place
from maskfeed_workers.device_vocabulary import DeviceVocabulary

__all__ = ["BatchRows", "DeviceSlots", "Histories"]

# Rows that are masked at once; a batch with more takes several rounds through the same bits.
_MAX_ROWS: Final = 512
_PERMIT_BLOCK: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """What each slot has said so far; the runner's own memory, only read."""

    # int32 [n_slots, max_model_len], prompt and output
    token_ids: torch.Tensor
    # int32 [n_slots]: how many of them there are
    total_len: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class BatchRows:
    """Which row of logits belongs to whom; int [n_rows], on the device. Rows of one slot are neighbours."""

    slot: torch.Tensor
    # 0 for the row after the history, k for the row after k drafts
    local: torch.Tensor
    # token fed at the row: for k > 0 its k-th draft
    input_ids: torch.Tensor


class DeviceSlots:
    """Slots of one engine. For the decode thread only.

    Args:
        n_slots: the engine's max_num_reqs.
        logits_width: entries of a row of logits.
        sets: where bound sets lie.
        vocabulary: of all sets.
        device: of everything.
    """

    def __init__(
        self,
        *,
        n_slots: int,
        logits_width: int,
        sets: DeviceSets,
        vocabulary: DeviceVocabulary,
        device: torch.device,
    ) -> None:
        self._sets = sets
        self._vocabulary = vocabulary
        self._width = logits_width
        # int64 [n_slots, SLOT_COLUMNS]
        self._slots = torch.zeros((n_slots, SLOT_COLUMNS), dtype=torch.int64, device=device)
        # workspace: int32 [_MAX_ROWS, words of a row], [_MAX_ROWS]
        self._bits = torch.empty((_MAX_ROWS, -(-logits_width // 32)), dtype=torch.int32, device=device)
        self._kinds = torch.empty(_MAX_ROWS, dtype=torch.int32, device=device)
        self._is_ours = np.zeros(n_slots, np.bool_)
        self._staged: dict[int, NDArray[np.int64]] = {}

    def bind(self, slot: int, place: Place, *, start: int, stop_ids: Sequence[int], refusal_ids: Sequence[int]) -> None:
        """From the next `flush` on, the slot's rows follow a set.

        Args:
            slot: whatever it held is overwritten.
            place: of the set.
            start: index of the first output token in the slot's history.
            stop_ids: permitted where a candidate ends; at most MAX_IDS, none of them with bytes.
            refusal_ids: what a row permits that can't follow the set; at most MAX_IDS.
        """
        row = _slot_row(CONSTRAINED, stop_ids, refusal_ids)
        row[SLOT_SET] = place.row
        row[SLOT_GENERATION] = place.generation
        row[SLOT_START] = start
        row[SLOT_CACHED] = packed(start, 0)
        self._stage(slot, row)

    def refuse(self, slot: int, refusal_ids: Sequence[int]) -> None:
        """From the next `flush` on, the slot's rows permit exactly `refusal_ids`: at least one, at most MAX_IDS."""
        self._stage(slot, _slot_row(REFUSED, (), refusal_ids))

    def free(self, slot: int) -> None:
        """From the next `flush` on, the slot's rows are not touched."""
        if self._is_ours[slot]:
            self._stage(slot, _slot_row(FREE, (), ()))

    def flush(self) -> None:
        """Bring what was staged to the device, in the order of the stream. No copy if nothing was."""
        if not self._staged:
            return
        index = np.fromiter(self._staged, np.int64, len(self._staged))
        rows = np.stack(list(self._staged.values()))
        self._slots.index_copy_(0, self._upload(index), self._upload(rows))
        self._staged.clear()

    def any_ours(self, slots: NDArray[np.integer]) -> bool:
        """Whether one of these slots is bound or refused; host memory only."""
        return bool(self._is_ours[slots].any())

    def mask_rows(self, logits: torch.Tensor, histories: Histories, rows: BatchRows) -> None:
        """Mask the rows of bound and refused slots, in place.

        Args:
            logits: float [n_rows, logits_width], the entries of a row adjacent.
            histories: as of now, in the order of the stream.
            rows: one for each row of `logits`.
        """
        with self._sets.launching():
            for first in range(0, logits.shape[0], _MAX_ROWS):
                n_rows = min(_MAX_ROWS, logits.shape[0] - first)
                self.launch_permit(histories, rows, first, n_rows)
                self.launch_mask(logits, first, n_rows)

    def launch_permit(self, histories: Histories, rows: BatchRows, first: int, n_rows: int) -> None:
        """The first half of `mask_rows`, for rows first .. first + n_rows - 1, at most as many as the workspace has."""
        vocabulary, sets = self._vocabulary, self._sets
        self._bits[:n_rows].zero_()
        permit[(n_rows, N_SPLITS)](
            self._slots,
            sets.directory,
            sets.arena,
            sets.arena_int32,
            sets.arena_int64,
            vocabulary.offsets,
            vocabulary.data,
            vocabulary.cells,
            vocabulary.twin,
            vocabulary.n_tokens,
            histories.token_ids,
            histories.token_ids.stride(0),
            histories.total_len,
            rows.slot,
            rows.local,
            rows.input_ids,
            first,
            self._kinds,
            self._bits,
            self._bits.stride(0),
            N_SPLITS=N_SPLITS,
            BLOCK=_PERMIT_BLOCK,
        )

    def launch_mask(self, logits: torch.Tensor, first: int, n_rows: int) -> None:
        """The second half, for the same rows."""
        mask[(n_rows, -(-self._width // MASK_BLOCK))](
            logits,
            logits.stride(0),
            self._width,
            first,
            self._kinds,
            self._bits,
            self._bits.stride(0),
            BLOCK=MASK_BLOCK,
        )

    def _stage(self, slot: int, row: NDArray[np.int64]) -> None:
        self._staged[slot] = row
        self._is_ours[slot] = row[SLOT_KIND] != FREE

    def _upload(self, array: NDArray[np.int64]) -> torch.Tensor:
        host = torch.from_numpy(array)
        if self._slots.device.type == "cuda":
            host = host.pin_memory()
        return host.to(self._slots.device, non_blocking=True)


def _slot_row(kind: int, stop_ids: Sequence[int], refusal_ids: Sequence[int]) -> NDArray[np.int64]:
    row = np.zeros(SLOT_COLUMNS, np.int64)
    row[SLOT_KIND] = kind
    row[SLOT_N_STOP] = len(stop_ids)
    row[SLOT_N_REFUSAL] = len(refusal_ids)
    row[SLOT_IDS : SLOT_IDS + len(stop_ids)] = stop_ids
    row[SLOT_IDS + MAX_IDS : SLOT_IDS + MAX_IDS + len(refusal_ids)] = refusal_ids
    return row
