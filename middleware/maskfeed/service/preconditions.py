"""`If-Match` and `If-None-Match` over generations: the entity tag of a named set is its generation in quotes.

It knows the two headers and no store. Invariant: what is given and can't be read is refused, never taken for absent.
"""

import re
from dataclasses import dataclass
from typing import Final

from maskfeed_automata.errors import ParameterError, PreconditionFailed

__all__ = ["Precondition", "Tags", "entity_tag", "read_precondition"]

_TAG: Final = re.compile(r'(?P<weak>W/)?"(?P<text>[\x21\x23-\x7e]*)"')
_GENERATION: Final = re.compile(r"[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class Tags:
    """A set of generations, of which 0, no list at all, is never one."""

    generations: frozenset[int] = frozenset()
    is_any: bool = False

    def __contains__(self, generation: object) -> bool:
        return generation != 0 and (self.is_any or generation in self.generations)


@dataclass(frozen=True, slots=True)
class Precondition:
    """In which states of a name a request is to be carried out."""

    # the present generation must be one of these; None: not asked for
    match: Tags | None = None
    # the present generation must be none of these; None: not asked for
    none_match: Tags | None = None

    @property
    def is_given(self) -> bool:
        """Whether anything is asked for."""
        return self.match is not None or self.none_match is not None

    def check(self, generation: int) -> None:
        """Return if a change may be made.

        Args:
            generation: the present one, 0 for none.

        Raises:
            PreconditionFailed: it must not. Context: `field`, the header, and `generation`.
        """
        if self.match is not None and generation not in self.match:
            raise _failed("If-Match", generation)
        if self.none_match is not None and generation in self.none_match:
            raise _failed("If-None-Match", generation)


def entity_tag(generation: int) -> str:
    """The value of `ETag`."""
    return f'"{generation}"'


def read_precondition(*, if_match: str | None, if_none_match: str | None) -> Precondition:
    """Read the two headers.

    Args:
        if_match: as sent; weak tags in it match nothing.
        if_none_match: as sent.

    Raises:
        ParameterError: text that is neither `*` nor a list of entity tags. Context: `field`, the header.
    """
    return Precondition(
        _read_tags("If-Match", if_match, weak_count=False), _read_tags("If-None-Match", if_none_match, weak_count=True)
    )


def _read_tags(header: str, text: str | None, *, weak_count: bool) -> Tags | None:
    if text is None:
        return None
    if text.strip() == "*":
        return Tags(is_any=True)
    matches = [_TAG.fullmatch(part.strip()) for part in text.split(",") if part.strip()]
    generations = set()
    for match in matches:
        if match is None:
            break
        # another server's tag is a tag that no generation has
        if _GENERATION.fullmatch(match["text"]) and (weak_count or not match["weak"]):
            generations.add(int(match["text"]))
    if not matches or None in matches:
        raise ParameterError(f'{header} must be * or entity tags like "3"', field=header)
    return Tags(frozenset(generations))


def _failed(header: str, generation: int) -> PreconditionFailed:
    found = f"at generation {generation}" if generation else "not there"
    return PreconditionFailed(
        f"{header} does not hold: the candidate set is {found}; nothing was changed",
        field=header,
        generation=generation,
    )
