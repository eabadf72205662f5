"""What the device's kernels must do, in torch operations: one row after the other, no cache, nothing clever.

It reads the very same tensors as the kernels (table of slots, directory, arena, vocabulary), so both can be given to
it, and it walks each history from its beginning.
"""

import torch

from maskfeed_workers import device_layout as columns
from maskfeed_workers.device_sets import DeviceSets
from maskfeed_workers.device_slots import BatchRows, Histories
from maskfeed_workers.device_vocabulary import DeviceVocabulary

FORBIDDEN = float("-inf")


class SetOnDevice:
    """One set, found through its row of the directory."""

    def __init__(self, sets: DeviceSets, row: int) -> None:
        at = sets.directory[row].tolist()
        self.byte = sets.arena[at[columns.SET_BYTE] :]
        self.leaf = sets.arena_int64[at[columns.SET_LEAF] :]
        self.terminal = sets.arena_int64[at[columns.SET_TERMINAL] :]
        self.branch = sets.arena_int64[at[columns.SET_BRANCH] :]
        self.child_ptr = sets.arena_int32[at[columns.SET_CHILD_PTR] :]
        self.child_byte = sets.arena[at[columns.SET_CHILD_BYTE] :]
        self.child_node = sets.arena_int32[at[columns.SET_CHILD_NODE] :]
        self.mask_ptr = sets.arena_int32[at[columns.SET_MASK_PTR] :]
        self.mask_ids = sets.arena_int32[at[columns.SET_MASK_IDS] :]
        self.live = sets.arena_int64[at[columns.SET_LIVE] :] if at[columns.SET_LIVE] >= 0 else None

    def child(self, node: int, byte: int) -> int | None:
        if not _bit(self.branch, node):
            return node + 1 if not _bit(self.leaf, node) and self.byte[node + 1] == byte else None
        k = _count_before(self.branch, node)
        low, high = self.child_ptr[k : k + 2].tolist()
        found = torch.nonzero(self.child_byte[low:high] == byte)
        return int(self.child_node[low + int(found[0])]) if len(found) else None

    def follow(self, node: int, token: torch.Tensor) -> int | None:
        """The node that the bytes of `token` lead to, if a candidate can be completed from there."""
        for byte in token.tolist():
            below = self.child(node, byte)
            if below is None:
                return None
            node = below
        return node if self.live is None or _bit(self.live, node) else None

    def listed(self, node: int) -> torch.Tensor | None:
        """The ids of a branching node."""
        if not _bit(self.branch, node):
            return None
        k = _count_before(self.branch, node)
        low, high = self.mask_ptr[k : k + 2].tolist()
        return self.mask_ids[low:high].long()


def reference_mask(
    logits: torch.Tensor,
    slots: torch.Tensor,
    sets: DeviceSets,
    vocabulary: DeviceVocabulary,
    histories: Histories,
    rows: BatchRows,
) -> torch.Tensor:
    """Masked logits [n_rows, width]; the given ones are not changed."""
    masked = logits.clone()
    for row in range(logits.shape[0]):
        slot = int(rows.slot[row])
        kind, entry, generation, start = slots[slot, :4].tolist()
        if kind == columns.FREE:
            continue
        allowed = None
        if kind == columns.CONSTRAINED and int(sets.directory[entry, columns.SET_GENERATION]) == generation:
            local = int(rows.local[row])
            history = histories.token_ids[slot, start : int(histories.total_len[slot])]
            drafts = rows.input_ids[row - local + 1 : row + 1]
            stop_ids = slots[slot, columns.SLOT_IDS :][: int(slots[slot, columns.SLOT_N_STOP])]
            tokens = torch.cat([history.long(), drafts.long()]).tolist()
            allowed = _allowed(SetOnDevice(sets, entry), vocabulary, stop_ids, tokens)
        masked[row] = FORBIDDEN
        if allowed is not None and len(allowed):
            masked[row, allowed] = logits[row, allowed]
        else:
            refusal = slots[slot, columns.SLOT_IDS + columns.MAX_IDS :][: int(slots[slot, columns.SLOT_N_REFUSAL])]
            masked[row, refusal] = 0.0
    return masked


def _allowed(
    found: SetOnDevice, vocabulary: DeviceVocabulary, stop_ids: torch.Tensor, tokens: list[int]
) -> torch.Tensor | None:
    """Ids that may follow `tokens`; None when one of these was not permitted itself."""
    node, ended = 0, False
    for token in tokens:
        if token in stop_ids.tolist():
            if not (ended or _bit(found.terminal, node)):
                return None
            ended = True
            continue
        data = _bytes_of(vocabulary, token)
        below = None if ended or not len(data) else found.follow(node, data)
        if below is None:
            return None
        node = below
    if ended:
        return stop_ids
    ids = found.listed(node)
    if ids is None:
        ids = torch.tensor([t for t in range(vocabulary.n_tokens) if _is_below(found, node, _bytes_of(vocabulary, t))])
    return torch.cat([ids, stop_ids]).long() if _bit(found.terminal, node) else ids.long()


def _is_below(found: SetOnDevice, node: int, data: torch.Tensor) -> bool:
    return len(data) > 0 and found.follow(node, data) is not None


def _bytes_of(vocabulary: DeviceVocabulary, token: int) -> torch.Tensor:
    if not 0 <= token < vocabulary.n_tokens:
        return vocabulary.data[:0]
    return vocabulary.data[int(vocabulary.offsets[token]) : int(vocabulary.offsets[token + 1])]


def _count_before(words: torch.Tensor, n: int) -> int:
    whole = words[: (n >> 6) + 1]
    return int((whole[:, None] >> torch.arange(64) & 1).flatten()[:n].sum())


def _bit(words: torch.Tensor, n: int) -> bool:
    return bool(words[n >> 6] >> (n & 63) & 1)
