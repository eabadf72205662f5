"""What `maskfeed inspect` says of a list of candidates, as an object and as lines for a person.

It finds nothing out by itself: `oddities` looks at the strings, `explanation` walks a text. Invariant: the object is
plain JSON, complete; the lines are the same, shortened where there is much, and say so.
"""

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from maskfeed.explanation import explain
from maskfeed.oddities import almost_equal, near_duplicates, odd_characters
from maskfeed_automata import LeadingSpace, Vocabulary

__all__ = ["render", "report"]

_LINES: Final = 10


def report(
    vocabulary: Vocabulary, candidates: Sequence[str], text: str | None, *, leading_space: LeadingSpace
) -> dict[str, Any]:
    """Near-duplicates and odd characters of a list, and the explanation of a text if there is one.

    Raises:
        CandidateError: as `compile`.
    """
    odd = [(index, kinds) for index, candidate in enumerate(candidates) if (kinds := odd_characters(candidate))]
    found: dict[str, Any] = {
        "near_duplicates": {
            kind: [[_named(candidates, index) for index in group] for group in groups]
            for kind, groups in near_duplicates(candidates).items()
        },
        "odd_characters": [{**_named(candidates, index), "kinds": kinds} for index, kinds in odd],
    }
    if text is not None:
        found["explanation"] = asdict(explain(vocabulary, candidates, text, leading_space=leading_space))
        found["explanation"]["almost_equal"] = [
            {**_named(candidates, index), "kind": kind} for index, kind in almost_equal(text, candidates)
        ]
    return found


def render(found: dict[str, Any]) -> str:
    """The report as lines."""
    lines: list[str] = []
    for kind, groups in found["near_duplicates"].items():
        _list(lines, f"differ only in {kind}", [" ".join(map(_quoted, group)) for group in groups])
    odd = [f"{_quoted(row)} {', '.join(row['kinds'])}" for row in found["odd_characters"]]
    _list(lines, "characters that can't be seen", odd)
    if "explanation" in found:
        lines += _explained(found["explanation"])
    return "\n".join(lines)


def _named(candidates: Sequence[str], index: int) -> dict[str, Any]:
    return {"index": index, "text": candidates[index]}


def _list(lines: list[str], title: str, rows: list[str]) -> None:
    lines.append(f"{title}: {len(rows) or 'none'}")
    lines += [f"  {row}" for row in rows[:_LINES]]
    if len(rows) > _LINES:
        lines.append(f"  and {len(rows) - _LINES} more")


def _quoted(named: dict[str, Any]) -> str:
    return f"[{named['index']}] {_escaped(named['text'])}"


def _escaped(text: str) -> str:
    """In quotes, and everything that would not be seen for what it is as JSON's escape."""
    return f'"{"".join(c if _is_plain(c) else json.dumps(c)[1:-1] for c in text)}"'


def _is_plain(character: str) -> bool:
    return character.isprintable() and character not in '"\\' and not unicodedata.combining(character)


def _explained(explanation: dict[str, Any]) -> list[str]:
    lines = [f"text {_escaped(explanation['text'])}: {explanation['outcome']}, {explanation['why']}"]
    for number, step in enumerate(explanation["steps"]):
        end = " and the end" if step["may_end"] else ""
        taken = step["taken"]
        takes = f"; takes {taken['token_id']} {_escaped(taken['text'])}" if taken else ""
        permitted = _shortened([token["text"] for token in step["permitted"]], step["n_permitted"])
        lines.append(f"  mask {number}: {step['n_permitted']} tokens{end}{permitted}{takes}")
    if explanation["outcome"] != "candidate":
        continuations = _shortened(explanation["continuations"], explanation["n_continuations"])
        lines.append(f"  in the list from there on: {explanation['n_continuations']}{continuations}")
    lines += [f"  {_quoted(row)} differs only in {row['kind']}" for row in explanation["almost_equal"]]
    return lines


def _shortened(texts: Sequence[str], n: int) -> str:
    """Some of `n` texts."""
    return "".join(f" {_escaped(text)}" for text in texts) + (" ..." if n > len(texts) else "")
