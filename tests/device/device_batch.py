"""A small batch on the "device": slots, histories and logits that a test plays the engine for."""

from collections.abc import Sequence

import torch

from maskfeed_automata import Automaton, Vocabulary
from maskfeed_workers.device_sets import DeviceSets
from maskfeed_workers.device_slots import BatchRows, DeviceSlots, Histories
from maskfeed_workers.device_vocabulary import DeviceVocabulary
from walk_reference import reference_mask

CPU = torch.device("cpu")


class DeviceBatch:
    """The device side of an engine with `n_slots` slots, and the tensors that the runner would own."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        width: int | None = None,
        n_slots: int = 6,
        max_len: int = 64,
        arena_bytes: int = 1 << 20,
        max_sets: int = 8,
    ) -> None:
        self.width = vocabulary.size if width is None else width
        self.sets = DeviceSets(device=CPU, arena_bytes=arena_bytes, max_sets=max_sets)
        self.vocabulary = DeviceVocabulary.of(vocabulary, CPU)
        self.slots = DeviceSlots(
            n_slots=n_slots, logits_width=self.width, sets=self.sets, vocabulary=self.vocabulary, device=CPU
        )
        self.histories = Histories(
            torch.full((n_slots, max_len), -7, dtype=torch.int32), torch.zeros(n_slots, dtype=torch.int32)
        )
        self.generator = torch.Generator().manual_seed(0)

    def bind(
        self, slot: int, automaton: Automaton, *, stop_ids: Sequence[int], refusal_ids: Sequence[int], start: int = 0
    ) -> None:
        place = self.sets.place(automaton.digest, automaton)
        self.slots.bind(slot, place, start=start, stop_ids=stop_ids, refusal_ids=refusal_ids)

    def set_history(self, slot: int, tokens: Sequence[int], prompt: Sequence[int] = ()) -> None:
        whole = [*prompt, *tokens]
        self.histories.token_ids[slot, : len(whole)] = torch.tensor(whole, dtype=torch.int32)
        self.histories.total_len[slot] = len(whole)

    def rows(self, layout: Sequence[tuple[int, Sequence[int]]]) -> BatchRows:
        """Rows of slots, each with its drafts."""
        slot, local, fed = [], [], []
        for index, drafts in layout:
            slot += [index] * (len(drafts) + 1)
            local += range(len(drafts) + 1)
            fed += [-1, *drafts]
        # the runner's own types
        types = (torch.int64, torch.int32, torch.int32)
        return BatchRows(*(torch.tensor(c, dtype=dtype) for c, dtype in zip((slot, local, fed), types, strict=True)))

    def logits(self, n_rows: int) -> torch.Tensor:
        return torch.randn((n_rows, self.width), generator=self.generator)

    def masked(self, layout: Sequence[tuple[int, Sequence[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
        """New logits for these rows, before and after; the kernels' answer is that of the reference, bit for bit."""
        self.slots.flush()
        rows = self.rows(layout)
        before = self.logits(rows.slot.shape[0])
        after = before.clone()
        self.slots.mask_rows(after, self.histories, rows)
        expected = reference_mask(before, self.slots._slots, self.sets, self.vocabulary, self.histories, rows)
        assert torch.equal(after.view(torch.int32), expected.view(torch.int32))
        return before, after

    def permitted(self, layout: Sequence[tuple[int, Sequence[int]]]) -> list[list[int]]:
        """Ids that each row permits; what it permits has kept its bits."""
        _, after = self.masked(layout)
        finite = torch.isfinite(after)
        return [torch.nonzero(row).flatten().tolist() for row in finite]
