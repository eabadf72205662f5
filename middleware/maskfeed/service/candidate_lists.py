"""The list of candidates in a body: strings, objects with an id, or both mixed.

It knows types, not limits: whether the list is empty or too long is for the candidate set to say. Invariant: an element
that is no string of Unicode characters raises with its index, and nothing of its text is in the error.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from maskfeed_automata.errors import CandidateError, ParameterError, RequestError

__all__ = [
    "Candidate",
    "CandidateId",
    "CandidateList",
    "read_candidates",
    "read_choice",
    "read_elements",
    "told_as",
    "unencodable_candidate",
]

CANDIDATES: Final = "candidates"
CHOICE: Final = "structured_outputs.choice"

# msgspec: "Expected `str`, got `int` - at `$[1].value`"
_PATH: Final = re.compile(r" - at `\$\[(?P<index>\d+)\](?:\.(?P<member>\w+))?`$")
_UNKNOWN_MEMBER: Final = re.compile(r"^Object contains unknown field `(?P<member>.*)`", re.DOTALL)
_SHOWN_CHARACTERS: Final = 64
_NO_UNICODE: Final = ": no Unicode text (a lone surrogate, or invalid UTF-8)"

CandidateId = str | int | None


@dataclass(frozen=True, slots=True)
class CandidateList:
    """As the caller gave it."""

    values: list[str]
    # parallel to values; None when all elements are plain strings
    ids: list[CandidateId] | None


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An element that is an object."""

    value: str
    id: CandidateId = None


def read_candidates(text: msgspec.Raw, body: bytes, *, field: str = CANDIDATES) -> CandidateList:
    """Read a list of candidates.

    Args:
        text: the field's value.
        body: that it was found in; looked at again only to name a culprit.
        field: its name.

    Raises:
        CandidateError: no list, or an element that is no string. Context: `field`, `index`, `malformed`.
        ParameterError: an object with a wrong member. Context: `field`, with index and member.
    """
    try:
        # three times as fast as the union below, and it fails at the first object
        return CandidateList(msgspec.json.decode(text, type=list[str]), None)
    except msgspec.MsgspecError:
        elements = read_elements(text, str | Candidate, body, field=field)
    return CandidateList(
        values=[each if isinstance(each, str) else each.value for each in elements],
        ids=[None if isinstance(each, str) else each.id for each in elements],
    )


def read_choice(text: msgspec.Raw, body: bytes) -> list[str]:
    """Read `structured_outputs.choice`: strings only.

    Raises:
        CandidateError: no list, or an element that is no string. Context: `field`, `index`, `malformed`.
    """
    return read_elements(text, str, body, field=CHOICE)


def read_elements(text: msgspec.Raw, shape: Any, body: bytes, *, field: str) -> list[Any]:
    """Read a list of candidates, or of what names candidates.

    Args:
        text: the field's value.
        shape: of an element; a type that msgspec knows.
        body: that it was found in; looked at again only to name a culprit.
        field: its name.

    Raises:
        CandidateError: no list, or an element that is no string. Context: `field`, `index`, `malformed`.
        ParameterError: an object with a wrong member. Context: `field`, with index and member.
    """
    try:
        elements: list[Any] = msgspec.json.decode(text, type=list[shape])
    except msgspec.ValidationError as error:
        raise _shape_error(str(error), field) from error
    except msgspec.DecodeError as error:
        raise unencodable_candidate(body, [field]) or CandidateError(
            f"{field} can't be read: {error}", field=field, malformed=True
        ) from error
    return elements


@contextmanager
def told_as(field: str, *, member: str = "") -> Iterator[None]:
    """Name a list as the caller does, in whatever is wrong with an element of it.

    Args:
        field: what the caller calls the list; the lower rooms call it `candidates`.
        member: of the element, with its dot.

    Raises:
        CandidateError: from the block, with this name in its message and context.
    """
    try:
        yield
    except CandidateError as error:
        message = error.message
        if message.startswith(CANDIDATES):
            message = field + message.removeprefix(CANDIDATES).replace("]", f"]{member}", 1)
        raise type(error)(message, **{**error.context, "field": field}) from error


def unencodable_candidate(body: bytes, fields: Sequence[str] = (CANDIDATES, CHOICE)) -> RequestError | None:
    """The error for the first candidate whose value or id is no Unicode text, or else for other such text of the body.

    That is a lone surrogate, or invalid UTF-8. Only for bodies that a strict reader has refused: the lenient reader
    here turns each such piece into a surrogate. None if there is no such text.

    Args:
        body: the whole of it.
        fields: paths of the lists to look at.
    """
    try:
        value = json.loads(body.decode("utf-8", errors="surrogateescape"))
    except (ValueError, RecursionError):
        return None
    for field in fields:
        elements = value
        for name in field.split("."):
            elements = _member(elements, name)
        for index, element in enumerate(elements if isinstance(elements, list) else ()):
            path = f"{field}[{index}]"
            if _is_unencodable(_member(element, "value") if isinstance(element, dict) else element):
                return CandidateError(f"{path}{_NO_UNICODE}", field=field, index=index, malformed=True)
            if _is_unencodable(_member(element, "id")):
                return ParameterError(f"{path}.id{_NO_UNICODE}", field=f"{path}.id")
    elsewhere = _unencodable_path(value)
    return None if elsewhere is None else ParameterError(f"`{elsewhere}`{_NO_UNICODE}", field=elsewhere)


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


def _unencodable_path(value: object) -> str | None:
    """Where in a value there is text that is no Unicode text; names of members are not looked at."""
    ahead: list[tuple[str, object]] = [("", value)]
    while ahead:
        path, container = ahead.pop()
        for step, each in _members(container):
            is_bad = _is_unencodable(each)
            if is_bad or isinstance(each, dict | list):
                place = (path + step).removeprefix(".")
                if is_bad:
                    return place
                ahead.append((place, each))
    return None


def _members(value: object) -> Iterator[tuple[str, object]]:
    """What an object or a list holds, each with its step of a path, in text that can be told."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield f".{name[:_SHOWN_CHARACTERS].encode(errors='replace').decode()}", each
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield f"[{index}]", each


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
