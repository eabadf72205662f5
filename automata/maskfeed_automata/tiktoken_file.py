"""Token bytes from a tiktoken rank file (`*.tiktoken`; Llama 3's original tokenizer.model): base64 and rank, by line.

The rank of a token is its id. Control tokens are not in the file: they come from the tokenizer_config.json beside it
(`added_tokens_decoder`), and without one the vocabulary ends with the last rank. No file is touched here.
"""

import binascii
import re
from typing import Final

from maskfeed_automata.errors import VocabularyError
from maskfeed_automata.tokenizer_config import TokenTable

__all__ = ["is_tiktoken", "read_tiktoken"]

_FIRST_LINE: Final = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?(?:\n|\Z)")
_MAX_ID: Final = 1 << 24


def is_tiktoken(data: bytes) -> bool:
    """Whether bytes begin like a rank file."""
    return _FIRST_LINE.match(data) is not None


def read_tiktoken(data: bytes) -> TokenTable:
    """Token table of a rank file, without control tokens.

    Raises:
        VocabularyError: a line that is no token and rank, or a token or rank that occurs twice. Context: `line`.
    """
    by_rank: dict[int, bytes] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            encoded, rank_text = line.split(b" ")
            token, rank = binascii.a2b_base64(encoded, strict_mode=True), int(rank_text)
        except ValueError as error:
            raise VocabularyError(f"line {number} of the rank file is no token and rank", line=number) from error
        if not token or not 0 <= rank < _MAX_ID or rank in by_rank:
            raise VocabularyError(f"line {number} of the rank file: rank {rank} can't be used", line=number)
        by_rank[rank] = token
    if len(set(by_rank.values())) < len(by_rank):
        raise VocabularyError("the rank file has a token twice")
    return TokenTable([by_rank.get(rank) for rank in range(max(by_rank, default=-1) + 1)], {}, [])
