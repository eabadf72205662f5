"""Real lists that somebody routes, links or classifies to, and generated ones: `candidate_set(name)`.

The real ones lie compressed beside this file (`data/README.md` says where they come from), so that a test needs no
network. Every set is unique, without empty strings, and has the same order on every call.
"""

import json
import lzma
import random
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

__all__ = ["CANDIDATE_SET_NAMES", "candidate_set"]

_TESTS = Path(__file__).resolve().parent
_DATA = _TESTS / "data"
_ICD10_BILLABLE = _TESTS.parent / "examples" / "icd10_rag" / "icd10cm_billable.tsv.xz"


def candidate_set(name: str) -> list[str]:
    """The strings of one set, as a list of the caller's own.

    Raises:
        KeyError: not one of CANDIDATE_SET_NAMES.
    """
    return list(_load(name))


@cache
def _load(name: str) -> tuple[str, ...]:
    if name in _GENERATED:
        return _GENERATED[name]()
    if name not in CANDIDATE_SET_NAMES:
        raise KeyError(name)
    lines = lzma.decompress((_DATA / f"{name}.jsonl.xz").read_bytes()).decode().split("\n")
    return tuple(json.loads(line) for line in lines if line)


def _icd10cm_descriptions() -> tuple[str, ...]:
    rows = lzma.decompress(_ICD10_BILLABLE.read_bytes()).decode().splitlines()
    return tuple(row.split("\t")[1] for row in rows)


def _uuids() -> tuple[str, ...]:
    bits = random.Random(20_000)
    return tuple(str(uuid.UUID(int=bits.getrandbits(128), version=4)) for _ in range(20_000))


def _numeric_ids() -> tuple[str, ...]:
    """Small numbers (each a prefix of others), zero-padded ones, and 18-digit ones."""
    digits = random.Random(9_000)
    small = [str(number) for number in range(3_000)]
    padded = [f"{number:08d}" for number in range(3_000)]
    long = {str(digits.randrange(10**17, 10**18)): None for _ in range(3_000)}
    return (*small, *padded, *long)


_GENERATED: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "icd10cm_descriptions": _icd10cm_descriptions,
    "numeric_ids": _numeric_ids,
    "uuids": _uuids,
}

CANDIDATE_SET_NAMES: tuple[str, ...] = (
    *sorted(path.name.removesuffix(".jsonl.xz") for path in _DATA.glob("*.xz")),
    *_GENERATED,
)
