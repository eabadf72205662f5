"""A vocabulary: token id -> bytes.

It knows nothing of how a tokenizer splits text, nothing of candidates, and touches no file: reading tokenizers is the
loader's work. Invariants: immutable; the fingerprint covers every id and its bytes and nothing else; an id without
bytes (control token, padding, hole) is never part of a mask.
"""

import hashlib
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any, Final, Self

import numpy as np

from maskfeed_automata.errors import CorruptArtifact, VocabularyError
from maskfeed_automata.kernels import (
    I32,
    I64,
    U8,
    V_CELLS,
    V_N_CELLS,
    V_ROW_LENGTH,
    V_SIZE,
    V_TOKEN_DATA,
    V_TOKEN_OFFSETS,
    V_TWIN,
    address_of,
)
from maskfeed_automata.sections import Buffer, read_sections, write_sections
from maskfeed_automata.tokenizer_automaton import TokenizerAutomaton

__all__ = ["Vocabulary"]

_KIND: Final = b"voca"
_VERSION: Final = 1
_MAX_SIZE: Final = 1 << 24
_MAX_BYTES: Final = 1 << 30


class Vocabulary:
    """Token id -> bytes, in [0, size).

    Equal and hashable by fingerprint. Safe to share between threads.
    """

    __slots__ = ("_automaton", "_row", "data", "fingerprint", "offsets", "single_bytes", "stop_token_ids")

    # 64 hex digits
    fingerprint: str
    # uint8 [n_bytes]: bytes of all tokens, read-only
    data: U8
    # int64 [size + 1]: token t is data[offsets[t] : offsets[t + 1]], read-only
    offsets: I64
    # bool [256]: bytes that are a token by themselves
    single_bytes: np.ndarray[Any, np.dtype[np.bool_]]
    # the tokenizer's own end-of-sequence ids, ascending; not in the fingerprint
    stop_token_ids: tuple[int, ...]

    def __init__(self, data: U8, offsets: I64, stop_token_ids: Iterable[int]) -> None:
        size = offsets.size - 1
        if size > _MAX_SIZE or data.size > _MAX_BYTES:
            raise VocabularyError(f"{size} tokens of {data.size} bytes: at most {_MAX_SIZE} of {_MAX_BYTES}")
        self.stop_token_ids = tuple(sorted(set(stop_token_ids)))
        for token_id in self.stop_token_ids:
            if not 0 <= token_id < size:
                raise VocabularyError(f"stop token id {token_id} is outside of [0, {size})", token_id=token_id)
        for array in (data, offsets):
            array.flags.writeable = False
        self.data = data
        self.offsets = offsets
        self.fingerprint = _fingerprint(data, offsets)
        starts = offsets[:-1][np.diff(offsets) == 1]
        self.single_bytes = np.zeros(256, np.bool_)
        self.single_bytes[data[starts]] = True
        self.single_bytes.flags.writeable = False
        self._automaton: TokenizerAutomaton | None = None
        self._row: I64 | None = None

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer_or_path: Any,
        *,
        logits_width: int | None = None,
        cache_directory: str | PathLike[str] | None = None,
    ) -> Self:
        """Read a tokenizer, and its automaton from the cache on disk (built and stored if it is not there).

        Args:
            tokenizer_or_path: a fast tokenizer of transformers, a `tokenizers.Tokenizer`, or the path of a
                tokenizer.json, a tekken.json, a SentencePiece model, a tiktoken rank file, or of a directory with
                one of them; a tokenizer_config.json beside the file is taken into account.
            logits_width: width of the model's logits; ids from there on are dropped.
            cache_directory: where automata are kept; default $XDG_CACHE_HOME/maskfeed.

        Raises:
            VocabularyError: no such file, no fast tokenizer, or token bytes that can't be told exactly.
        """
        from maskfeed_automata.loader import load_tokenizer_automaton, read_tokenizer

        token_bytes, stop_token_ids = read_tokenizer(tokenizer_or_path)
        vocabulary = cls.from_token_bytes(token_bytes, stop_token_ids=stop_token_ids)
        if logits_width is not None:
            vocabulary = vocabulary.limited_to(logits_width)
        load_tokenizer_automaton(vocabulary, cache_directory=cache_directory)
        return vocabulary

    @classmethod
    def from_token_bytes(cls, tokens: Sequence[bytes | None], *, stop_token_ids: Iterable[int] = ()) -> Self:
        """Make a vocabulary of given bytes.

        Args:
            tokens: bytes of each id; None for an id without bytes. b"" counts as None: such a token would be
                permitted everywhere and lead nowhere.
            stop_token_ids: the tokenizer's own end-of-sequence ids.

        Raises:
            VocabularyError: too many or too long, or a stop id outside of the vocabulary.
        """
        present = [token or b"" for token in tokens]
        offsets = np.zeros(len(present) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, present), np.int64, len(present)), out=offsets[1:])
        return cls(np.frombuffer(b"".join(present), np.uint8), offsets, stop_token_ids)

    @property
    def size(self) -> int:
        """Number of ids, those without bytes included."""
        return int(self.offsets.size - 1)

    @property
    def tokenizer_automaton(self) -> TokenizerAutomaton:
        """The goto function over these tokens: built on first use (0.4 s for 150,000 tokens), then resident."""
        if self._automaton is None:
            self._automaton = TokenizerAutomaton.build(self.data, self.offsets)
        return self._automaton

    @property
    def row(self) -> I64:
        """Addresses for the step kernels (int64 [V_ROW_LENGTH]); valid while this object lives."""
        if self._row is None:
            automaton = self.tokenizer_automaton
            row = np.zeros(V_ROW_LENGTH, np.int64)
            row[V_CELLS] = address_of(automaton.cells)
            row[V_N_CELLS] = automaton.cells.size
            row[V_TWIN] = address_of(automaton.twin)
            row[V_TOKEN_OFFSETS] = address_of(self.offsets)
            row[V_TOKEN_DATA] = address_of(self.data)
            row[V_SIZE] = self.size
            self._row = row
        return self._row

    def adopt(self, automaton: TokenizerAutomaton) -> None:
        """Make an automaton that was read for these very tokens resident, unless there is one already."""
        if self._automaton is None:
            self._automaton = automaton

    @property
    def is_warm(self) -> bool:
        """Whether the tokenizer automaton is resident."""
        return self._automaton is not None

    def token_bytes(self, token_id: int) -> bytes | None:
        """Bytes of a token; None for control tokens, padding, holes, and ids outside of [0, size)."""
        if not 0 <= token_id < self.size:
            return None
        return self.data[self.offsets[token_id] : self.offsets[token_id + 1]].tobytes() or None

    def text_bytes(self, token_ids: Sequence[int]) -> bytes:
        """Bytes of several tokens, one after the other.

        Raises:
            VocabularyError: an id has no bytes, or is outside of [0, size). Context: `token_id`, `index`.
        """
        parts = [self.token_bytes(token_id) for token_id in token_ids]
        if None in parts:
            index = parts.index(None)
            token_id = int(token_ids[index])
            raise VocabularyError(f"token id {token_id} has no bytes", token_id=token_id, index=index)
        return b"".join(part for part in parts if part)

    def control_token_ids(self) -> I32:
        """Ids without bytes: int32, ascending, owned by the caller."""
        return np.flatnonzero(np.diff(self.offsets) == 0).astype(np.int32)

    def covers(self, data: U8) -> bool:
        """Whether every byte in `data` (uint8 [n]) is a token by itself."""
        return bool(self.single_bytes.all() or self.single_bytes[data].all())

    def limited_to(self, logits_width: int) -> Self:
        """The same vocabulary without ids from `logits_width` on (its stop ids too); itself if there are none.

        Raises:
            VocabularyError: `logits_width` is negative.
        """
        if logits_width < 0:
            raise VocabularyError(f"logits_width {logits_width} is negative", logits_width=logits_width)
        if logits_width >= self.size:
            return self
        offsets = self.offsets[: logits_width + 1].copy()
        stop_token_ids = [token_id for token_id in self.stop_token_ids if token_id < logits_width]
        return type(self)(self.data[: offsets[-1]].copy(), offsets, stop_token_ids)

    def to_bytes(self) -> bytes:
        """The vocabulary as one buffer, stop ids included."""
        sections: dict[str, np.ndarray[Any, Any]] = {
            "offsets": self.offsets,
            "data": self.data,
            "stop_token_ids": np.array(self.stop_token_ids, np.int64),
        }
        return write_sections(_KIND, _VERSION, (bytes.fromhex(self.fingerprint), bytes(32)), sections)

    @classmethod
    def from_bytes(cls, buffer: Buffer) -> Self:
        """Read what `to_bytes` wrote; arrays are views of `buffer`, which must not change afterwards.

        Raises:
            CorruptArtifact: anything else.
            FormatVersionError: written in another format version.
        """
        sections = read_sections(buffer, _KIND, _VERSION, ("offsets", "data", "stop_token_ids"))
        offsets = sections.array("offsets", np.int64)
        data = sections.array("data", np.uint8)
        stop_token_ids = sections.array("stop_token_ids", np.int64).tolist()
        if offsets.size == 0 or offsets[0] != 0 or offsets[-1] != data.size or (offsets[1:] < offsets[:-1]).any():
            raise CorruptArtifact("token offsets that do not ascend to the end of the data", section="offsets")
        try:
            vocabulary = cls(data, offsets, stop_token_ids)
        except VocabularyError as error:
            raise CorruptArtifact(f"no vocabulary: {error}", section="stop_token_ids") from error
        if vocabulary.stop_token_ids != tuple(stop_token_ids):
            raise CorruptArtifact("stop token ids that do not ascend", section="stop_token_ids")
        if sections.identities != (bytes.fromhex(vocabulary.fingerprint), bytes(32)):
            raise CorruptArtifact("the fingerprint is that of another vocabulary", section="header")
        return vocabulary

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Vocabulary({self.fingerprint[:12]}..., size={self.size}, stop_token_ids={self.stop_token_ids})"


def _fingerprint(data: U8, offsets: I64) -> str:
    digest = hashlib.sha256(b"maskfeed vocabulary 1 ")
    digest.update(np.diff(offsets).astype("<u4").tobytes())
    digest.update(data.data)
    return digest.hexdigest()
