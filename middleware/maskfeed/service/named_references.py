"""How a request names a candidate set: `"name"`, or `"name@generation"`, and perhaps the ids of a part of it.

It knows how names look and no set. Invariant: a field that would change which candidates count is read or refused,
never ignored.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from maskfeed.service.json_text import read
from maskfeed_automata.errors import ParameterError

__all__ = ["SetReference", "check_name", "read_reference"]

_SET: Final = "candidate_set"
_IDS: Final = "ids"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NAME_RULE: Final = "1 to 128 letters, digits, dots, underscores or hyphens"
# no generation has more digits
_REFERENCE: Final = re.compile(rf"(?P<name>{_NAME.pattern})(?:@(?P<generation>[1-9][0-9]{{0,15}}))?")


@dataclass(frozen=True, slots=True)
class SetReference:
    """A set that is meant."""

    name: str
    # None: whichever the name has
    generation: int | None
    # of the candidates that are meant; None: all
    ids: list[str | int] | None


def read_reference(fields: dict[str, msgspec.Raw]) -> SetReference | None:
    """Take `candidate_set` and `ids` out of a body.

    Args:
        fields: members of the body; those that are read are removed.

    Returns:
        None if it names no set.

    Raises:
        ParameterError: another type, no such name is possible, `ids` without a set, or `candidates` beside it.
            Context: `field`.
    """
    if _SET not in fields:
        if _IDS in fields:
            raise ParameterError("`ids` needs `candidate_set`", field=_IDS)
        return None
    if "candidates" in fields:
        raise ParameterError("`candidate_set` can't go with `candidates`: one of them says what counts", field=_SET)
    text = read(fields.pop(_SET), str, field=_SET)
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise ParameterError(f"`{_SET}` must be a name, or name@generation; a name is {_NAME_RULE}", field=_SET)
    ids = read(fields.pop(_IDS), list[str | int], field=_IDS) if _IDS in fields else None
    generation = match["generation"]
    return SetReference(match["name"], int(generation) if generation else None, ids)


def check_name(name: str) -> None:
    """Refuse what can't be the name of a set.

    Raises:
        ParameterError: it is none. Context: `field`.
    """
    if _NAME.fullmatch(name) is None:
        raise ParameterError(f"the name of a candidate set is {_NAME_RULE}", field="name")
