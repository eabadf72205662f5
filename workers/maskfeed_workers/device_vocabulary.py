"""A vocabulary on the device: the bytes of its tokens, and the trie over them. Copied once, at construction."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from maskfeed_automata import Vocabulary

__all__ = ["DeviceVocabulary"]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceVocabulary:
    """Read by the kernels, never changed."""

    n_tokens: int
    # int32 [n_tokens + 1]
    offsets: torch.Tensor
    # uint8: token t is data[offsets[t] : offsets[t + 1]]
    data: torch.Tensor
    # int64 [n_cells], int32 [n_tokens]: cells and twins of the `TokenizerAutomaton`
    cells: torch.Tensor
    twin: torch.Tensor

    @classmethod
    def of(cls, vocabulary: Vocabulary, device: torch.device) -> Self:
        """Copy a vocabulary to `device`; waits for the copies."""
        tokens = vocabulary.tokenizer_automaton

        def copied(array: NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array.copy()).to(device)

        return cls(
            n_tokens=vocabulary.size,
            # a vocabulary has less than 2**30 bytes
            offsets=copied(vocabulary.offsets.astype(np.int32)),
            data=copied(vocabulary.data),
            cells=copied(tokens.cells.view(np.int64)),
            twin=copied(tokens.twin),
        )
