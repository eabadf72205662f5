"""A large list of candidates, read once, of which requests use parts by index.

Encoding, checking and sorting happen for the whole list, once; a part is then picked out in the order that is known,
and only its trie and its masks are made. It knows nothing of requests or stores, holds no strings, and is immutable:
any number of threads may take parts. Invariant: a part is the set that `compile` makes of its strings, byte for byte.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maskfeed_automata.automaton import Automaton
from maskfeed_automata.builder import build, check_producible
from maskfeed_automata.candidates import CandidateSet, LeadingSpace, Limits
from maskfeed_automata.errors import CandidateError
from maskfeed_automata.kernels import I64
from maskfeed_automata.vocabulary import Vocabulary

__all__ = ["Catalogue"]

_FIELD: Final = "indices"


class Catalogue:
    """All the candidates that parts may be taken of.

    Resident: the UTF-8 bytes of the unique candidates, 12 bytes more for each of them and 4 for each given one.

    Args:
        vocabulary: the model's.
        candidates: strings, bytes, or a set made of them before.
        leading_space: as in `compile`, for every part.
        limits: default `Limits()`; not applied to a `CandidateSet`.

    Raises:
        CandidateError: see `CandidateSet.from_strings`; or the vocabulary can't produce a candidate.
        LimitExceeded: more than one of `limits`.
        ParameterError: an unknown `leading_space`.
    """

    __slots__ = ("candidate_set", "leading_space", "vocabulary")

    def __init__(
        self,
        vocabulary: Vocabulary,
        candidates: Sequence[str | bytes] | CandidateSet,
        *,
        leading_space: LeadingSpace = "never",
        limits: Limits | None = None,
    ) -> None:
        if not isinstance(candidates, CandidateSet):
            candidates = CandidateSet.from_strings(candidates, limits=limits)
        check_producible(vocabulary, candidates, leading_space)
        self.vocabulary = vocabulary
        self.candidate_set = candidates
        self.leading_space = leading_space

    def __len__(self) -> int:
        """Candidates as given, duplicates counted: indices go up to this."""
        return self.candidate_set.n_inputs

    @property
    def nbytes(self) -> int:
        """Resident size in bytes."""
        members = self.candidate_set
        arrays = (members.data, members.offsets, members.rank_of_input, members.first_input_of_rank)
        return sum(array.nbytes for array in arrays)

    def subset(
        self, indices: Sequence[int] | NDArray[np.integer[Any]], *, stop_token_ids: Iterable[int] | None = None
    ) -> Automaton:
        """Compile the candidates with these indices.

        Args:
            indices: integers in [0, len(self)), in any order; or an integer array [n]. Borrowed. Indices of equal
                strings, the same index among them, are merged.
            stop_token_ids: permitted where a candidate ends; default: the tokenizer's own.

        Returns:
            The automaton that `compile` makes of these strings: the same digest and bytes. Its cursors report the
            index in the catalogue, not the place in `indices`; of several that name equal strings, the first one.

        Raises:
            CandidateError: no indices, something else than integers, or one out of range. Context: `field`
                ("indices"), and `index`, the place in `indices`, where one is at fault.
            LimitExceeded: the masks would take more than a gigabyte.
            ParameterError: a stop id outside of the vocabulary.

        Cost: that of the part's trie and masks; the size of the catalogue does not occur.
        """
        chosen = _checked(indices, len(self))
        part = self.candidate_set.subset(chosen)
        automaton = build(self.vocabulary, part, leading_space=self.leading_space)
        stop_ids = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        catalogue_index = chosen[part.first_input_of_rank].astype(np.int32)
        catalogue_index.flags.writeable = False
        return automaton.with_stop_token_ids(stop_ids).with_input_indices(catalogue_index)


def _checked(indices: Sequence[int] | NDArray[np.integer[Any]], n_inputs: int) -> I64:
    """The indices as int64 [n], n >= 1, each in [0, n_inputs)."""
    try:
        given = np.asarray(indices)
    except ValueError as error:
        raise CandidateError("indices: a list of integers is needed", field=_FIELD) from error
    if given.ndim != 1 or given.size == 0:
        raise CandidateError(f"indices: a list of integers is needed, not one of shape {given.shape}", field=_FIELD)
    if given.dtype.kind not in "iu":
        raise CandidateError(f"indices: integers are needed, not {given.dtype}", field=_FIELD)
    outside = (given < 0) | (given >= n_inputs)
    if outside.any():
        index = int(outside.argmax())
        raise CandidateError(
            f"indices[{index}]: {given[index]} is outside of [0, {n_inputs})", field=_FIELD, index=index
        )
    return given.astype(np.int64)
