"""Retrieval over the billable codes of ICD-10-CM with BM25.

It knows the table and the search library, nothing of models or servers.
"""

import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import bm25s

__all__ = ["Code", "CodeIndex"]


@dataclass(frozen=True, slots=True)
class Code:
    """One billable code and its long name."""

    code: str
    description: str


class CodeIndex:
    """All codes, searchable by the words of their descriptions."""

    def __init__(self, codes: list[Code]) -> None:
        self.codes = codes
        self._bm25 = bm25s.BM25()
        self._bm25.index(_tokenize([code.description for code in codes]), show_progress=False)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a table of code, tab, description; compressed with xz."""
        with lzma.open(path, "rt", encoding="utf-8") as table:
            return cls([Code(*line.rstrip("\n").split("\t")) for line in table])

    def search(self, text: str, n: int) -> list[Code]:
        """The `n` best matches, best first."""
        positions, _scores = self._bm25.retrieve(_tokenize([text]), k=n, show_progress=False)
        return [self.codes[position] for position in positions[0]]


def _tokenize(texts: list[str]) -> bm25s.tokenization.Tokenized:
    # The default pattern drops words of one character, and with them what tells type 1 from type 2.
    return bm25s.tokenize(texts, token_pattern=r"\b\w+\b", stopwords="en", show_progress=False)
