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

from maskfeed.service.json_text import read
from maskfeed_automata.errors import ParameterError

__all__ = ["CANDIDATE_ROUTES", "check_names"]

CANDIDATE_ROUTES: Final = ("/v1/chat/completions", "/v1/completions")

_CONSTRAINTS: Final = frozenset(
    {
        *("candidates", "candidate_options", "candidate_set", "ids"),
        *("structured_outputs", "response_format", "allowed_token_ids"),
    }
)
# Of the names below, those that a route reads. Elsewhere they would be ignored.
_READ: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(CANDIDATE_ROUTES, _CONSTRAINTS),
    "/v1/responses": frozenset({"structured_outputs", "text"}),
    "/v1/messages": frozenset({"output_config"}),
    "/v1/messages/count_tokens": frozenset({"output_config"}),
}
# Where an ignored constraint would mean free text.
_GENERATING: Final = (*CANDIDATE_ROUTES, "/v1/responses", "/v1/messages")
_OUR_FIELDS: Final = ("candidates", "candidate_options", "candidate_set")
# Objects whose members vLLM ignores, hands to extensions, or reads on another route only: the right names are wrong
# there too.
_NESTED: Final = (
    *("extra_body", "extra_args", "nvext", "vllm_xargs", "sampling_params", "parameters", "generation_config"),
    *("options", "text", "output_config"),
)
_MAX_DEPTH: Final = 4

_NOT_ALNUM: Final = re.compile(r"[^a-z0-9]+")
# First letters, without case and punctuation.
_OUR_PREFIXES: Final = ("candidate", "maskfeed")
_REMOVED_PREFIX: Final = "guided"
# Names by which other servers, and guesses, call a list of permitted answers or a grammar.
_FOREIGN: Final = frozenset(
    {
        *("choice", "choices", "choiceslist", "choicelist", "oneof", "enum", "enums", "constraint", "constraints"),
        *("grammar", "gbnf", "ebnf", "lark", "regex", "jsonschema", "jsonobject", "structuraltag", "format"),
        *("outputformat", "logitsprocessor", "logitsprocessors", "prefixallowedtokensfn", "forcewords"),
        *("forcewordsids", "set", "sets", "setname", "namedset", "namedsets"),
    }
)
_FOREIGN_PREFIXES: Final = ("allowed", "permitted")
# OpenAI's for tools, and LiteLLM's for itself.
_INNOCENT: Final = frozenset({"allowedtools", "allowedopenaiparams"})
# The same, but innocent names unless they hold a list.
_FOREIGN_LISTS: Final = re.compile(
    r"options|labels|classes|answers|values"
    r"|(valid|possible|legal|answer|output|response|result)(choice|option|answer|label|value|response|output)s?(list)?"
)
# Targets of typing errors, normalised, and how many letters may be wrong.
_NEAR: Final = {_NOT_ALNUM.sub("", name): name for name in (*_OUR_FIELDS, "structured_outputs", "response_format")}
_MAX_EDITS: Final = 2
_SHOWN_CHARACTERS: Final = 64
# Comparing a name costs up to 0.2 ms; requests have a few dozen.
_MAX_MEMBERS: Final = 1_024


def check_names(fields: Mapping[str, msgspec.Raw], *, route: str) -> None:
    """Refuse a body with a field that would be ignored although it asks for a constraint.

    Args:
        fields: the members of the body, their values not decoded.
        route: where it was posted. A field that only another route reads is refused here.

    Raises:
        ParameterError: context `field` is the path of the offending member.
    """
    _check_count(fields, "the body")
    known = _READ.get(route, frozenset())
    for name, raw in fields.items():
        if name in known:
            continue
        if name in _NESTED and _first_byte(raw) == b"{":
            _check_nested(name, raw, route, depth=1)
        elif _asks_for_a_constraint(name, raw, lists_count=route in _GENERATING):
            raise _refusal(name, f"unknown field, which would be ignored; {_advice(name, route)}")


def _check_nested(path: str, raw: msgspec.Raw, route: str, *, depth: int) -> None:
    if depth > _MAX_DEPTH:
        # each level is decoded once more
        raise _refusal(path, f"objects for extensions are read {_MAX_DEPTH} levels deep")
    members = read(raw, dict[str, msgspec.Raw], field=path)
    _check_count(members, path)
    for name, value in members.items():
        if name in _NESTED and _first_byte(value) == b"{":
            _check_nested(f"{path}.{name}", value, route, depth=depth + 1)
        elif _asks_for_a_constraint(name, value, lists_count=True):
            problem = "it does not count there; constraints are top-level fields of the body"
            raise _refusal(f"{path}.{name}", f"{problem}: {_advice(name, route)}")


def _advice(name: str, route: str) -> str:
    if route not in CANDIDATE_ROUTES:
        return f"{' and '.join(CANDIDATE_ROUTES)} take `candidates`"
    target = _near(_plain(name))
    return f"did you mean `{target}`?" if target not in (None, name) else "use `candidates` or `structured_outputs`"


def _check_count(members: Mapping[str, msgspec.Raw], where: str) -> None:
    if len(members) > _MAX_MEMBERS:
        raise ParameterError(
            f"{where} has {len(members)} members, at most {_MAX_MEMBERS} are read",
            limit=_MAX_MEMBERS,
            value=len(members),
        )


def _asks_for_a_constraint(name: str, raw: msgspec.Raw, *, lists_count: bool) -> bool:
    if _is_ours(name):
        return True
    if _is_null(raw):
        return False
    plain = _plain(name)
    if plain in _FOREIGN or plain.startswith(_REMOVED_PREFIX) or _near(plain) is not None:
        return True
    if plain.startswith(_FOREIGN_PREFIXES):
        return plain not in _INNOCENT
    return lists_count and _first_byte(raw) == b"[" and _FOREIGN_LISTS.fullmatch(plain) is not None


def _is_ours(name: str) -> bool:
    plain = _plain(name)
    return plain.startswith(_OUR_PREFIXES) or _near(plain) in _OUR_FIELDS


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
