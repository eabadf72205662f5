"""Names in a request body that look like a constraint but are none here.

vLLM ignores fields that it does not know, with status 200 and free text. So a field that was renamed, removed,
misspelt, nested in the wrong place, or taken from another server must be an error. This module knows names and where
they may stand, not what they mean. Invariant: no field of a vLLM or OpenAI request is refused; a test compares with
vLLM's own sources.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from maskfeed_automata.errors import ParameterError

__all__ = ["CANDIDATE_ROUTES", "check_names"]

CANDIDATE_ROUTES: Final = ("/v1/chat/completions", "/v1/completions")

# Fields that constrain, under their exact names, on these routes.
_CONSTRAINTS: Final = ("candidates", "candidate_options", "structured_outputs", "response_format")
_OUR_FIELDS: Final = ("candidates", "candidate_options", "candidate_set")
_RESERVED: Final = ("candidate_set", "ids")
# Objects whose members vLLM ignores, or hands to extensions: the right names are wrong there too.
_NESTED: Final = ("extra_body", "nvext", "vllm_xargs")

_NOT_ALNUM: Final = re.compile(r"[^a-z0-9]+")
# First letters, without case and punctuation.
_OUR_PREFIXES: Final = ("candidate", "maskfeed")
_REMOVED_PREFIX: Final = "guided"
# Names by which other servers, and guesses, call a list of permitted answers or a grammar.
_FOREIGN: Final = frozenset(
    {
        *("choice", "choices", "allowedchoices", "answerchoices", "choiceslist", "choicelist"),
        *("allowedanswers", "permittedanswers", "allowedoutputs", "allowedstrings", "allowedvalues", "allowedtokens"),
        *("enum", "enums", "constraint", "constraints", "grammar", "gbnf", "ebnf", "lark", "regex", "jsonschema"),
        *("jsonobject", "structuraltag", "format", "prefixallowedtokensfn"),
    }
)
# The same, but innocent names unless they hold a list.
_FOREIGN_LISTS: Final = frozenset({"options", "labels", "answers", "values"})
# Targets of typing errors, normalised, and how many letters may be wrong.
_NEAR: Final = {_NOT_ALNUM.sub("", name): name for name in (*_OUR_FIELDS, "structured_outputs", "response_format")}
_MAX_EDITS: Final = 2
_SHOWN_CHARACTERS: Final = 64
# Comparing a name costs up to 0.2 ms; requests have a few dozen.
_MAX_MEMBERS: Final = 1_024


def check_names(fields: Mapping[str, msgspec.Raw], *, takes_candidates: bool) -> None:
    """Refuse a body with a field that would be ignored although it asks for a constraint.

    Args:
        fields: the members of the body, their values not decoded.
        takes_candidates: whether the route is one of the two that take `candidates`. On other routes only names that
            can't be theirs are refused.

    Raises:
        ParameterError: context `field` is the path of the offending member.
    """
    _check_count(fields, "the body")
    for name, raw in fields.items():
        if name in _NESTED:
            _check_nested(name, raw)
        elif takes_candidates and name in _RESERVED:
            raise ParameterError(f"`{name}`: named sets are not supported yet; send `candidates`", field=name)
        elif not takes_candidates and _is_ours(name):
            raise _refusal(name, f"this route takes no candidates; {' and '.join(CANDIDATE_ROUTES)} do")
        elif not takes_candidates and _was_removed(name, raw):
            raise _refusal(name, "this field is ignored since vLLM 0.12")
        elif takes_candidates and name not in _CONSTRAINTS and _asks_for_a_constraint(name, raw):
            target = _near(_plain(name))
            advice = f"did you mean `{target}`?" if target else "use `candidates` or `structured_outputs`"
            raise _refusal(name, f"unknown field, which would be ignored; {advice}")


def _check_nested(parent: str, raw: msgspec.Raw) -> None:
    try:
        members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return  # no object: it holds no field, and the engine's server refuses it by type
    _check_count(members, parent)
    for name, value in members.items():
        if _asks_for_a_constraint(name, value):
            raise _refusal(
                f"{parent}.{name}", "it would be ignored there; constraints are top-level fields of the body"
            )


def _check_count(members: Mapping[str, msgspec.Raw], where: str) -> None:
    if len(members) > _MAX_MEMBERS:
        raise ParameterError(
            f"{where} has {len(members)} members, at most {_MAX_MEMBERS} are read",
            limit=_MAX_MEMBERS,
            value=len(members),
        )


def _asks_for_a_constraint(name: str, raw: msgspec.Raw) -> bool:
    if _is_ours(name) or _was_removed(name, raw):
        return True
    plain = _plain(name)
    if plain in _FOREIGN_LISTS:
        return _first_byte(raw) == b"["
    return (plain in _FOREIGN or _near(plain) is not None) and not _is_null(raw)


def _is_ours(name: str) -> bool:
    plain = _plain(name)
    return plain.startswith(_OUR_PREFIXES) or _near(plain) in _OUR_FIELDS


def _was_removed(name: str, raw: msgspec.Raw) -> bool:
    return _plain(name).startswith(_REMOVED_PREFIX) and not _is_null(raw)


def _is_null(raw: msgspec.Raw) -> bool:
    """Clients that always send every field they know send null, which asks for nothing."""
    return _first_byte(raw) == b"n"


def _first_byte(raw: msgspec.Raw) -> bytes:
    return bytes(memoryview(raw)[:1])


def _plain(name: str) -> str:
    # no typing error of a name of ours is longer than this
    return _NOT_ALNUM.sub("", name[:_SHOWN_CHARACTERS].lower())


def _refusal(path: str, problem: str) -> ParameterError:
    shown = path[:_SHOWN_CHARACTERS]
    return ParameterError(f"`{shown}`: {problem}", field=shown)


@lru_cache(maxsize=1_024)
def _near(plain: str) -> str | None:
    """The constraint that `plain` (lower-case letters and digits) is a typing error of."""
    for target, name in _NEAR.items():
        if abs(len(plain) - len(target)) <= _MAX_EDITS and _edits(plain, target) <= _MAX_EDITS:
            return name
    return None


def _edits(left: str, right: str) -> int:
    """Levenshtein distance. Cost: product of the lengths, which the caller has bounded."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]
