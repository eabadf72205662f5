"""Strict JSON in, values or errors that name the place out.

It knows msgspec and no field of any request. Invariant: text that is not strict JSON (RFC 8259) of the expected shape
raises ParameterError; neither a decoder's own exception nor a RecursionError leaves this module. Of members that occur
twice the last one counts, as in vLLM's own reader.
"""

import re
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from maskfeed_automata.errors import ParameterError

__all__ = ["convert_members", "read", "read_members"]

_T = TypeVar("_T")

# msgspec: "Expected `int`, got `bool` - at `$.n`"
_PATH: Final = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_UNKNOWN_MEMBER: Final = re.compile(r"^Object contains unknown field `(?P<member>.*)`$", re.DOTALL)
_SHOWN_CHARACTERS: Final = 64
_BYTE: Final = re.compile(r"\(byte (?P<byte>\d+)\)$")


def read_members(raw: bytes) -> dict[str, msgspec.Raw]:
    """The members of a body, each value still as text; no value is copied.

    Raises:
        ParameterError: no JSON, or no object. Context: `position` (bytes from the start) where known.
    """
    if not raw or raw.isspace():
        raise ParameterError("the body is empty")
    return read(raw, dict[str, msgspec.Raw], field=None)


def read(raw: bytes | msgspec.Raw, shape: type[_T] | Any, *, field: str | None) -> _T | Any:
    """Decode.

    Args:
        raw: the text.
        shape: a type that msgspec knows.
        field: path of the text inside the body, None for the body itself.

    Raises:
        ParameterError: no JSON, or of another shape. Context: `field` (path of the member at fault), `position`.
    """
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        _refuse_shape(error, field)
    except msgspec.DecodeError as error:
        problem = str(error).removeprefix("JSON is malformed: ")
        match = _BYTE.search(problem)
        position = int(match["byte"]) if match else None
        raise ParameterError(f"{_shown(field)} is no JSON: {problem}", field=field, position=position) from error
    except RecursionError as error:
        raise ParameterError(f"{_shown(field)} is nested too deep", field=field) from error


def convert_members(values: dict[str, Any], shape: type[_T]) -> _T:
    """Check the members that `shape` names; others are not looked at.

    Raises:
        ParameterError: a member of another type. Context: `field`.
    """
    try:
        return msgspec.convert(values, shape)
    except msgspec.ValidationError as error:
        _refuse_shape(error, None)


def _refuse_shape(error: msgspec.ValidationError, field: str | None) -> NoReturn:
    match = _PATH.search(str(error))
    inner = match["path"] if match else ""
    path = f"{field}{inner}" if field else inner.lstrip(".") or None
    problem = _PATH.sub("", str(error))
    if unknown := _UNKNOWN_MEMBER.match(problem):
        member = unknown["member"][:_SHOWN_CHARACTERS]
        path, problem = f"{path}.{member}" if path else member, "unknown member"
    raise ParameterError(f"{_shown(path)}: {problem}", field=path) from error


def _shown(path: str | None) -> str:
    return f"`{path}`" if path else "the body"
