"""A named list as the gateway keeps it in memory, and the parts that requests take of it by id.

Encoding and sorting happen once for the whole list; a part is picked out in the order that is known. Pure and
immutable, so that any number of threads may take parts. It holds no string: values and ids lie in flat arrays.
Invariant: a part is the set that posting its values would have made, in the order of the ids that were asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from maskfeed.service.candidate_lists import CandidateId, CandidateList, told_as
from maskfeed_automata import CandidateSet
from maskfeed_automata.errors import ParameterError

__all__ = ["ListPart", "ResidentList"]

_I64 = NDArray[np.int64]

# Begins keys that are not the text of an id, and those of ids that begin with it.
_ESCAPE: Final = "\x01"


@dataclass(frozen=True, slots=True, eq=False)
class ListPart:
    """Candidates of a list, as one request uses them."""

    # its inputs are the candidates of the part
    candidate_set: CandidateSet
    source: "ResidentList"
    # int64 [n_inputs]: candidate of the list for each input; None: the whole list
    chosen: _I64 | None
    # int64 [n_inputs]: place of each input in the ids that were asked for; None: the input's own
    places: _I64 | None

    def place_of(self, index: int) -> int:
        """Position in the caller's list of the candidate that is input `index`."""
        return index if self.places is None else int(self.places[index])

    def candidate_at(self, index: int) -> tuple[str, CandidateId]:
        """Value and id of the candidate that is input `index`."""
        return self.source.candidate_at(index if self.chosen is None else int(self.chosen[index]))


@dataclass(frozen=True, slots=True, eq=False)
class ResidentList:
    """All candidates of a named list."""

    values: CandidateSet
    # for each candidate the key of its id; of its value where it has no id
    keys: CandidateSet
    # bool [n_inputs]: whether a candidate has an id; None: no candidate has one
    has_id: NDArray[np.bool_] | None
    # int64 [n_inputs]: candidates by the rank of their key; None: no two have the same key
    by_key: _I64 | None
    # int64 [n_keys + 1]: the candidates of key k are by_key[starts[k] : starts[k + 1]]
    starts: _I64 | None

    @classmethod
    def of(cls, listed: CandidateList) -> Self:
        """Check and sort a list.

        Raises:
            CandidateError: it is empty, or a candidate is. Context: `field`, `index`.
            LimitExceeded: more, or longer, than a candidate set may be. Context: `limit`, `value`, `unit`, `index`.

        Cost: sorting, linear in the bytes.
        """
        values = CandidateSet.from_strings(listed.values)
        keys, has_id = values, None
        if listed.ids is not None:
            pairs = zip(listed.values, listed.ids, strict=True)
            with told_as("candidates", member=".id"):
                keys = CandidateSet.from_strings(_keys([value if id_ is None else id_ for value, id_ in pairs]))
            has_id = np.array([id_ is not None for id_ in listed.ids])
        elif (values.data[values.offsets[:-1]] == ord(_ESCAPE)).any():
            keys = CandidateSet.from_strings([_key(value) for value in listed.values])
        if not keys.n_duplicates:
            return cls(values, keys, has_id, None, None)
        by_key = np.argsort(keys.rank_of_input, kind="stable")
        counts = np.bincount(keys.rank_of_input, minlength=keys.n_candidates)
        return cls(values, keys, has_id, by_key, np.concatenate(([0], np.cumsum(counts))))

    @property
    def size_bytes(self) -> int:
        """Resident size."""
        sets = (self.values,) if self.keys is self.values else (self.values, self.keys)
        arrays: list[NDArray[Any]] = [array for array in (self.has_id, self.by_key, self.starts) if array is not None]
        for each in sets:
            arrays += [each.data, each.offsets, each.rank_of_input, each.first_input_of_rank]
        return sum(array.nbytes for array in arrays)

    def whole(self) -> ListPart:
        """All candidates."""
        return ListPart(self.values, self, None, None)

    def part(self, ids: Sequence[str | int]) -> ListPart:
        """The candidates with these ids; all of them, where several have the same id.

        Args:
            ids: in any order; the same id again is no error. A candidate without id goes by its value.

        Raises:
            ParameterError: no candidate has this id. Context: `field` ("ids"), `index` in `ids`.
            CandidateError: no ids.
            LimitExceeded: more ids, or longer ones, than a candidate set may have candidates.

        Cost: sorting the ids, looking for each among all, and copying the values; no value is encoded or sorted again.
        """
        with told_as("ids"):
            asked = CandidateSet.from_strings(_keys(ids))
        ranks = self.keys.ranks_of(asked)[asked.rank_of_input]
        if ranks.min() < 0:
            index = int(ranks.argmin())
            raise ParameterError(f"ids[{index}]: no candidate of the set has this id", field="ids", index=index)
        if self.by_key is None or self.starts is None:
            chosen, places = self.keys.first_input_of_rank[ranks].astype(np.int64), None
        else:
            begins = self.starts[ranks]
            counts = self.starts[ranks + 1] - begins
            places = np.repeat(np.arange(ranks.size), counts)
            ends = np.cumsum(counts)
            chosen = self.by_key[np.arange(places.size) + np.repeat(begins - (ends - counts), counts)]
        return ListPart(self.values.subset(chosen), self, chosen, places)

    def candidate_at(self, index: int) -> tuple[str, CandidateId]:
        """Value and id of one candidate."""
        value = _text(self.values, index)
        if self.has_id is None or not self.has_id[index]:
            return value, None
        return value, _id(_text(self.keys, index))


def _text(members: CandidateSet, index: int) -> str:
    return members.candidate_bytes(int(members.rank_of_input[index])).decode()


def _keys(ids: Sequence[str | int]) -> Sequence[str]:
    """The key of each id. Most lists of ids are their own keys, and that is seen without a look at each."""
    try:
        text = "".join(ids)  # type: ignore[arg-type]
    except TypeError:
        text = _ESCAPE
    if _ESCAPE not in text and "" not in ids:
        return ids  # type: ignore[return-value]
    return [_key(each) for each in ids]


def _key(id_: str | int) -> str:
    """Different for different ids, never empty; most often the id itself."""
    if isinstance(id_, int):
        return f"{_ESCAPE}i{id_}"
    return id_ if id_ and id_[0] != _ESCAPE else f"{_ESCAPE}s{id_}"


def _id(key: str) -> str | int:
    if key[0] != _ESCAPE:
        return key
    return int(key[2:]) if key[1] == "i" else key[2:]
