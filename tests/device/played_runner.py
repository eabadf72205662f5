"""vLLM's V2 runner as far as a logits processor sees it, played by a test: slots, histories, batches, drafts.

Beside the processor under test it drives V1's slot table with the same requests, so the two can be compared. Slots are
recycled as the runner does it (the last one that was freed comes first), and nothing of a former occupant is wiped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch

from maskfeed_automata import Vocabulary
from maskfeed_cache.handle import HANDLE_KEY
from maskfeed_workers.admission import Admission
from maskfeed_workers.device_sets import DeviceSets
from maskfeed_workers.device_slots import DeviceSlots
from maskfeed_workers.device_vocabulary import DeviceVocabulary
from maskfeed_workers.masking import mask_rows, write_whole
from maskfeed_workers.slots import SlotTable
from maskfeed_workers.v2_processor import V2Processor
from reference import Oracle

CPU = torch.device("cpu")
MAX_LEN = 48


@dataclass(eq=False)
class PlayedRequest:
    """A request of the played engine. `oracle` is None for one that is not ours."""

    params: SimpleNamespace
    oracle: Oracle | None
    prompt: list[int]
    refused: bool = False
    output: list[int] = field(default_factory=list)
    slot: int | None = None
    # prompt and output that must be fed before the next token is sampled
    left_to_feed: int = 0

    def expected(self, drafts: Sequence[int], refusal: Sequence[int], width: int) -> list[int]:
        """Ids that the row after `drafts` must permit."""
        if self.oracle is None:
            return list(range(width))
        for n, draft in enumerate(drafts):
            if draft not in self.oracle.allowed([*self.output, *drafts[:n]]):
                return list(refusal)
        return list(refusal) if self.refused else self.oracle.allowed([*self.output, *drafts])


class PlayedRunner:
    """One rank of an engine with a few slots."""

    def __init__(
        self, vocabulary: Vocabulary, *, stop: int, reserved: int, width: int, n_slots: int, arena_bytes: int
    ) -> None:
        self.stop, self.reserved, self.width, self.n_slots = stop, reserved, width, n_slots
        self.refusal = (stop,)
        self.all_token_ids = torch.full((n_slots, MAX_LEN), -7, dtype=torch.int32)
        self.total_len = torch.zeros(n_slots, dtype=torch.int32)
        self.prompt_len = np.zeros(n_slots, np.int32)
        self.admission = Admission(
            vocabulary=vocabulary,
            logits_width=width,
            max_model_len=MAX_LEN,
            reserved_id=reserved,
            epoch="0" * 16,
            agreement=None,
        )
        self.sets = DeviceSets(device=CPU, arena_bytes=arena_bytes, max_sets=16)
        slots = DeviceSlots(
            n_slots=n_slots,
            logits_width=width,
            sets=self.sets,
            vocabulary=DeviceVocabulary.of(vocabulary, CPU),
            device=CPU,
        )
        states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=self.all_token_ids),
            total_len=SimpleNamespace(gpu=self.total_len),
            prompt_len=SimpleNamespace(np=self.prompt_len),
        )
        self.processor = V2Processor(admission=self.admission, sets=self.sets, slots=slots, req_states=states)
        self.table = SlotTable(vocabulary, n_slots)
        self.free = list(range(n_slots))
        self.generator = torch.Generator().manual_seed(0)

    def request(self, candidates: Sequence[str] | None, oracle: Oracle | None, prompt: list[int]) -> PlayedRequest:
        """A new request; no candidates at all make one that is refused, None one that is not ours."""
        extra_args = None if candidates is None else {HANDLE_KEY: {"candidates": list(candidates)}}
        params = SimpleNamespace(extra_args=extra_args, stop_token_ids=[], all_stop_token_ids={self.stop})
        return PlayedRequest(params, oracle, prompt, refused=candidates is not None and not candidates)

    def add(self, request: PlayedRequest) -> None:
        """Into a slot: new, or again after a preemption, with what it had said."""
        slot = request.slot = self.free.pop()
        whole = [*request.prompt, *request.output]
        self.prompt_len[slot] = len(request.prompt)
        self.all_token_ids[slot, : len(whole)] = torch.tensor(whole, dtype=torch.int32)
        self.total_len[slot] = len(whole)
        request.left_to_feed = len(whole)
        masked = self.processor.add_request(slot, request.params)
        assert masked == (request.oracle is not None)
        (verdict,) = self.admission.decide([request.params])
        if verdict is None:
            self.table.remove(slot)
        else:
            self.table.add(slot, verdict, request.output)

    def remove(self, request: PlayedRequest) -> None:
        """Out of its slot. The V2 processor is not told."""
        assert request.slot is not None
        self.table.remove(request.slot)
        self.free.append(request.slot)
        request.slot = None

    def step(
        self, scheduled: Sequence[tuple[PlayedRequest, Sequence[int]]], n_chunks: int = 1, n_repeats: int = 1
    ) -> list[list[torch.Tensor]]:
        """One step: the masked rows of each request, one for each draft and one before them.

        Every row must be what the oracle says, and the first one of each what V1 makes of it, bit for bit.
        """
        self.processor.apply_staged_writes()
        n_rows = [len(drafts) + 1 for _, drafts in scheduled]
        logits = torch.randn((sum(n_rows), self.width), generator=self.generator)
        before = logits.clone()
        for _ in range(n_repeats):
            logits = before.clone()
            self._apply(logits, scheduled, n_chunks)
        first = np.cumsum([0, *n_rows])
        self._compare_with_v1(before, logits, scheduled, first)
        made = []
        for (request, drafts), start in zip(scheduled, first, strict=False):
            rows = [logits[start + k] for k in range(len(drafts) + 1)]
            for k, row in enumerate(rows):
                allowed = torch.nonzero(torch.isfinite(row)).flatten().tolist()
                assert allowed == request.expected(drafts[:k], self.refusal, self.width)
            made.append(rows)
        return made

    def commit(self, request: PlayedRequest, tokens: Sequence[int]) -> None:
        """Tokens were sampled or accepted."""
        assert request.slot is not None
        length = int(self.total_len[request.slot])
        self.all_token_ids[request.slot, length : length + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.total_len[request.slot] += len(tokens)
        request.output += tokens

    def _apply(
        self, logits: torch.Tensor, scheduled: Sequence[tuple[PlayedRequest, Sequence[int]]], n_chunks: int
    ) -> None:
        """As the rejection sampler does it: in chunks that do not split a request."""
        start = 0
        for part in np.array_split(np.arange(len(scheduled)), n_chunks):
            chunk = [scheduled[k] for k in part]
            if not chunk:
                continue
            slots = np.array([request.slot for request, _ in chunk], np.intp)
            n_rows = np.array([len(drafts) + 1 for _, drafts in chunk])
            local = np.concatenate([np.arange(n) for n in n_rows])
            last = [([*request.prompt, *request.output][-1], *drafts) for request, drafts in chunk]
            context = SimpleNamespace(
                idx_mapping_np=slots,
                idx_mapping=torch.from_numpy(slots),
                expanded_idx_mapping=torch.from_numpy(np.repeat(slots, n_rows)),
                expanded_local_pos=torch.from_numpy(local.astype(np.int32)),
                input_ids=torch.tensor([token for fed in last for token in fed], dtype=torch.int32),
            )
            rows = logits[start : start + len(local)]
            assert self.processor.apply(rows, context) is rows
            start += len(local)

    def _compare_with_v1(
        self,
        before: torch.Tensor,
        after: torch.Tensor,
        scheduled: Sequence[tuple[PlayedRequest, Sequence[int]]],
        first: np.ndarray,
    ) -> None:
        by_slot = torch.zeros((self.n_slots, self.width))
        for (request, _), row in zip(scheduled, first, strict=False):
            by_slot[request.slot] = before[row]
        step = self.table.step()
        mask_rows(by_slot, step.rows, step.row_ptr, step.token_ids)
        for row, refusal in step.refused:
            write_whole(by_slot, row, refusal.token_ids)
        for (request, _), row in zip(scheduled, first, strict=False):
            assert torch.equal(by_slot[request.slot].view(torch.int32), after[row].view(torch.int32))
