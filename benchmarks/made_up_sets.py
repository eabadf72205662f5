"""Candidate sets for benchmarks, of three kinds and any size; made up, and the same on every machine.

`codes` are short and branch everywhere, `names` share prefixes as places do, `paths` are long and share most bytes.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice, product

from names import candidate_names

__all__ = ["KINDS", "made_up_set"]

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = "0123456789"
_TEAMS = "billing catalog checkout identity inventory ledger mailer notifications orders payments pricing search"
_LAYERS = "api cache client domain events handlers internal jobs metrics models queries storage"
_NOUNS = "account address audit basket batch cart coupon customer invoice item label order parcel price refund"
_VERBS = "archive cancel create delete export fetch import merge notify refresh resolve restore split update verify"
_SUFFIXES = ".go .py _test.go _test.py .sql .proto .yaml .md"


def made_up_set(kind: str, n: int, *, seed: int = 1) -> list[str]:
    """`n` different candidates of one of KINDS in random order; other seeds give other, overlapping lists."""
    return list(_made(kind, n, seed))


@lru_cache(8)
def _made(kind: str, n: int, seed: int) -> tuple[str, ...]:
    return tuple(_MAKERS[kind](n, seed))


def _codes(n: int, seed: int) -> list[str]:
    """Like ICD-10: a letter, two characters, a dot, up to four more."""
    choose = random.Random(seed)
    codes: dict[str, None] = {}
    while len(codes) < n:
        head = choose.choice(_LETTERS) + choose.choice(_DIGITS) + choose.choice(_DIGITS)
        tail = "".join(choose.choice(_DIGITS + _LETTERS[:6]) for _ in range(choose.choice((1, 2, 3, 4, 4, 4, 4))))
        codes[f"{head}.{tail}"] = None
    return list(codes)


def _paths(n: int, seed: int) -> list[str]:
    choose = random.Random(seed)
    # More than are needed, so that seeds differ; neighbours share all but a few bytes.
    found = list(islice(_all_paths(), n + n // 4 + 10))
    return choose.sample(found, n)


def _all_paths() -> Iterator[str]:
    words = (text.split() for text in (_TEAMS, _LAYERS, _NOUNS, _VERBS, _NOUNS, _SUFFIXES))
    for version, team, layer, noun, verb, other, suffix in product(range(1, 10), *words):
        yield f"services/{team}/v{version}/{layer}/{noun}/{verb}_{other}{suffix}"


_MAKERS: Mapping[str, Callable[[int, int], list[str]]] = {
    "codes": _codes,
    "names": lambda n, seed: candidate_names(n, seed=seed),
    "paths": _paths,
}
KINDS: tuple[str, ...] = tuple(_MAKERS)
