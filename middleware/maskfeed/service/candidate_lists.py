"""The list of candidates in a body: strings, objects with an id, or both mixed.

It knows types, not limits: whether the list is empty or too long is for the candidate set to say. Invariant: an element
that is no string of Unicode characters raises with its index, and nothing of its text is in the error.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from maskfeed_automata.errors import CandidateError, ParameterError, RequestError

__all__ = ["CandidateList", "read_candidates", "read_choice", "unencodable_candidate"]

CANDIDATES: Final = "candidates"
CHOICE: Final = "structured_outputs.choice"

# msgspec: "Expected `str`, got `int` - at `$[1].value`"
_PATH: Final = re.compile(r" - at `\$\[(?P<index>\d+)\](?:\.(?P<member>\w+))?`$")
_UNKNOWN_MEMBER: Final = re.compile(r"^Object contains unknown field `(?P<member>.*)`", re.DOTALL)
_SHOWN_CHARACTERS: Final = 64
_NO_UNICODE: Final = ": no Unicode text (a lone surrogate, or invalid UTF-8)"


@dataclass(frozen=True, slots=True)
class CandidateList:
    """As the caller gave it."""

    values: list[str]
    # parallel to values; None when all elements are plain strings
    ids: list[str | int | None] | None


class _Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    value: str
    id: str | int | None = None


def read_candidates(text: msgspec.Raw, body: bytes) -> CandidateList:
    """Read the field `candidates`.

    Args:
        text: the field's value.
        body: that it was found in; looked at again only to name a culprit.

    Raises:
        CandidateError: no list, or an element that is no string. Context: `field`, `index`, `malformed`.
        ParameterError: an object with a wrong member. Context: `field`, with index and member.
    """
    try:
        # three times as fast as the union below, and it fails at the first object
        return CandidateList(msgspec.json.decode(text, type=list[str]), None)
    except msgspec.MsgspecError:
        elements = _read(text, list[str | _Candidate], CANDIDATES, body)
    return CandidateList(
        values=[each if isinstance(each, str) else each.value for each in elements],
        ids=[None if isinstance(each, str) else each.id for each in elements],
    )


def read_choice(text: msgspec.Raw, body: bytes) -> list[str]:
    """Read `structured_outputs.choice`: strings only.

    Raises:
        CandidateError: no list, or an element that is no string. Context: `field`, `index`, `malformed`.
    """
    values: list[str] = _read(text, list[str], CHOICE, body)
    return values


def unencodable_candidate(body: bytes) -> RequestError | None:
    """The error for the first candidate whose value or id is no Unicode text; None if all are.

    That is a lone surrogate, or invalid UTF-8. Only for bodies that a strict reader has refused: the lenient reader
    here turns each such piece into a surrogate.
    """
    try:
        value = json.loads(body.decode("utf-8", errors="surrogateescape"))
    except (ValueError, RecursionError):
        return None
    lists = {CANDIDATES: _member(value, "candidates"), CHOICE: _member(_member(value, "structured_outputs"), "choice")}
    for field, elements in lists.items():
        for index, element in enumerate(elements if isinstance(elements, list) else ()):
            path = f"{field}[{index}]"
            if _is_unencodable(_member(element, "value") if isinstance(element, dict) else element):
                return CandidateError(f"{path}{_NO_UNICODE}", field=field, index=index, malformed=True)
            if _is_unencodable(_member(element, "id")):
                return ParameterError(f"{path}.id{_NO_UNICODE}", field=f"{path}.id")
    return None


def _read(text: msgspec.Raw, shape: Any, field: str, body: bytes) -> Any:
    try:
        return msgspec.json.decode(text, type=shape)
    except msgspec.ValidationError as error:
        raise _shape_error(str(error), field) from error
    except msgspec.DecodeError as error:
        raise unencodable_candidate(body) or CandidateError(
            f"{field} can't be read: {error}", field=field, malformed=True
        ) from error


def _shape_error(problem: str, field: str) -> RequestError:
    match = _PATH.search(problem)
    if match is None:
        return CandidateError(f"{field} must be a list: {problem}", field=field, malformed=True)
    index, member = int(match["index"]), match["member"]
    problem = problem[: match.start()]
    if unknown := _UNKNOWN_MEMBER.match(problem):
        path = f"{field}[{index}].{unknown['member'][:_SHOWN_CHARACTERS]}"
        return ParameterError(f"{path}: unknown member; a candidate has `value` and `id`", field=path)
    if member == "id" or "missing" in problem:
        path = f"{field}[{index}].{member or 'value'}"
        return ParameterError(f"{path}: {problem}", field=path)
    return CandidateError(f"{field}[{index}]: {problem}", field=field, index=index, malformed=True)


def _member(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _is_unencodable(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False
