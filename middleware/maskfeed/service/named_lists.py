"""The lists behind names: read from bodies, written as text, changed.

Pure: bytes and values in, bytes and values out, so that it can run in a thread. Invariant: equal lists, with equal ids
in the same order, have the same text; the text reads back as the list.
"""

from dataclasses import dataclass
from itertools import compress
from typing import Final

import msgspec

from maskfeed.service.candidate_lists import (
    Candidate,
    CandidateId,
    CandidateList,
    read_candidates,
    read_elements,
    told_as,
    unencodable_candidate,
)
from maskfeed.service.json_text import read_members
from maskfeed_automata import CandidateSet
from maskfeed_automata.errors import ParameterError

__all__ = ["Change", "Changed", "list_of", "read_change", "read_list", "text_of"]

_LIST: Final = "candidates"
_ADD: Final = "add"
_REMOVE: Final = "remove"


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which candidates to remove: those with this value, this id, or both."""

    value: str | msgspec.UnsetType = msgspec.UNSET
    id: str | int | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Changed:
    """A list after a change."""

    listed: CandidateList
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class Change:
    """What is taken out of a list, and then put at its end."""

    # value and id of each
    add: tuple[tuple[str, CandidateId], ...]
    removed_values: frozenset[str]
    removed_ids: frozenset[str | int]
    removed_pairs: frozenset[tuple[str, CandidateId]]

    def applied_to(self, listed: CandidateList) -> Changed:
        """The list after the change, the order of what stays as it was.

        Asking for a state that is there already changes nothing: what is not there is not removed, and a candidate
        whose value and id are both there is not added again.

        Cost: linear in the list and the change.
        """
        kept_values, kept_ids = self._without_removed(listed)
        new_values = {value for value, _ in self.add}
        there = {pair for pair in zip(kept_values, kept_ids, strict=True) if pair[0] in new_values}
        added = [pair for pair in dict.fromkeys(self.add) if pair not in there]
        values = kept_values + [value for value, _ in added]
        ids = kept_ids + [id_ for _, id_ in added]
        is_plain = all(id_ is None for id_ in ids)
        after = CandidateList(values, None if is_plain else ids)
        return Changed(after, len(added), len(listed.values) - len(kept_values))

    def _without_removed(self, listed: CandidateList) -> tuple[list[str], list[CandidateId]]:
        """Values and ids of what stays. A list may be long: nothing is made for each of its candidates."""
        values, ids = listed.values, listed.ids or [None] * len(listed.values)
        of_value, of_id, of_both = self.removed_values, self.removed_ids, self.removed_pairs
        stays = [
            value not in of_value and (id_ is None or id_ not in of_id) and not (of_both and (value, id_) in of_both)
            for value, id_ in zip(values, ids, strict=True)
        ]
        return list(compress(values, stays)), list(compress(ids, stays))


def read_list(raw: bytes) -> CandidateList:
    """Read the body of a PUT: `{"candidates": [...]}`.

    Raises:
        ParameterError: no JSON object, another member than `candidates`, or none. Context: `field`.
        CandidateError: no list of candidates. Context: `field`, `index`.
    """
    fields = _read_fields(raw, (_LIST,))
    if _LIST not in fields:
        raise ParameterError(f"`{_LIST}` is missing", field=_LIST)
    return read_candidates(fields[_LIST], raw)


def read_change(raw: bytes) -> Change:
    """Read the body of a PATCH: `{"add": [...], "remove": [...]}`, either of which may be left out.

    An element of `add` is a string or `{"value", "id"}`; one of `remove` is a string, `{"id"}`, `{"value"}` or both.

    Raises:
        ParameterError: no JSON object, another member, or neither. Context: `field`.
        CandidateError: no list of candidates, or a candidate to add that can be none. Context: `field`, `index`.
        LimitExceeded: more to add, or longer, than a candidate set may be.
    """
    fields = _read_fields(raw, (_ADD, _REMOVE))
    if not fields:
        raise ParameterError(f"`{_ADD}` or `{_REMOVE}` is needed", field=_ADD)
    add = read_candidates(fields[_ADD], raw, field=_ADD) if _ADD in fields else CandidateList([], None)
    if add.values:
        # told apart from what is there already
        with told_as(_ADD):
            CandidateSet.from_strings(add.values)
    removed = read_elements(fields[_REMOVE], str | _Named, raw, field=_REMOVE) if _REMOVE in fields else []
    values: set[str] = set()
    ids: set[str | int] = set()
    pairs: set[tuple[str, CandidateId]] = set()
    for index, element in enumerate(removed):
        match element:
            case str() as value:
                values.add(value)
            case _Named(value=str() as value, id=msgspec.UNSET):
                values.add(value)
            case _Named(value=msgspec.UNSET, id=(str() | int()) as id_):
                ids.add(id_)
            case _Named(value=str() as value, id=(str() | int()) as id_):
                pairs.add((value, id_))
            case _:
                path = f"{_REMOVE}[{index}]"
                raise ParameterError(f"{path}: a value or an id is needed", field=path)
    pairs_to_add = zip(add.values, add.ids or [None] * len(add.values), strict=True)
    return Change(tuple(pairs_to_add), frozenset(values), frozenset(ids), frozenset(pairs))


def text_of(listed: CandidateList) -> bytes:
    """JSON of a list: a string for each candidate without id, an object for each other one.

    Cost: linear.
    """
    if listed.ids is None:
        return msgspec.json.encode(listed.values)
    pairs = zip(listed.values, listed.ids, strict=True)
    return msgspec.json.encode([value if id_ is None else Candidate(value, id_) for value, id_ in pairs])


def list_of(text: bytes) -> CandidateList:
    """The list of a text that `text_of` made.

    Cost: linear.
    """
    return read_candidates(msgspec.Raw(text), text)


def _read_fields(raw: bytes, known: tuple[str, ...]) -> dict[str, msgspec.Raw]:
    try:
        fields = read_members(raw)
    except ParameterError:
        if (culprit := unencodable_candidate(raw, known)) is not None:
            raise culprit from None
        raise
    for name in fields:
        if name not in known:
            shown = name[:64]
            raise ParameterError(
                f"`{shown}`: unknown field; this body has {' and '.join(f'`{each}`' for each in known)}", field=shown
            )
    return fields
