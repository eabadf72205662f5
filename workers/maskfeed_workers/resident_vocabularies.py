"""Vocabularies that a compiler keeps in memory, with their automata.

It knows where vocabularies come from, how their automata are shared, and that both are large; it knows no job.
Invariants: each is loaded by one thread at a time however many ask for it; a failure is not remembered; what is handed
out has the fingerprint asked for; a shared automaton that can't be read costs building it and nothing else.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from maskfeed_automata import TokenizerAutomaton, Vocabulary, load_tokenizer_automaton
from maskfeed_automata.errors import CorruptArtifact, UnknownArtifact
from maskfeed_cache.fence import IndexEntry, Layer, LayerUsage
from maskfeed_cache.process_cache import ProcessCache, ProcessFence
from maskfeed_cache.store import BlobStore, VocabularySource

__all__ = ["RESIDENT_BYTES", "ResidentVocabularies"]

# With its bytes the automaton of 150,000 tokens takes 8 MB, that of 262,000 tokens 14 MB.
RESIDENT_BYTES: Final = 256 * 2**20


class ResidentVocabularies:
    """The most recently used vocabularies. Thread-safe, blocking.

    Args:
        source: where the engines published them.
        blobs: where automata lie that are shared between processes.
        limit_bytes: of the vocabularies in memory and their automata. One that alone is larger is loaded for each use.
        cache_directory: where automata are kept between processes; None for the automata room's own choice.
    """

    def __init__(
        self, source: VocabularySource, blobs: BlobStore, *, limit_bytes: int, cache_directory: Path | None
    ) -> None:
        self._source = source
        self._blobs = blobs
        self._cache_directory = cache_directory
        self._vocabularies: ProcessCache[str, Vocabulary] = ProcessCache(
            Layer.AUTOMATA, ProcessFence(), size_of=_size_of, limit_bytes=limit_bytes
        )

    def pinned(
        self, fingerprint: str, *, shared: str | None = None, began: int | None = None
    ) -> AbstractContextManager[Vocabulary]:
        """The vocabulary, its automaton resident; it stays in memory for the length of the block.

        Args:
            fingerprint: of the vocabulary.
            shared: artifact hash of its automaton in the blob store, if it is known.
            began: generation in which the search for it began; when that is over, the vocabulary is not kept.

        Raises:
            UnknownArtifact: no engine has published the vocabulary.
            CorruptArtifact: what lies there can't be read, or is another vocabulary.
            StoreUnavailable: the store does not answer.
        """
        return self._vocabularies.pinned(fingerprint, self._loading(fingerprint, shared), began=began)

    def store_automaton(self, fingerprint: str, *, began: int) -> IndexEntry:
        """Make the vocabulary's automaton resident and store it, for the other processes.

        Raises:
            CapacityError: the store is at its memory limit.
            StoreError: as `pinned`.
        """
        with self.pinned(fingerprint, began=began) as vocabulary:
            blob = vocabulary.tokenizer_automaton.to_bytes(fingerprint)
        return IndexEntry(self._blobs.put(blob), len(blob))

    def fingerprints(self) -> tuple[str, ...]:
        """Those that are in memory now, least recently used first, those in use last."""
        return self._vocabularies.keys()

    @property
    def generation(self) -> int:
        """From 1; each clear adds 1."""
        return self._vocabularies.generation

    def clear(self) -> None:
        """Forget all and begin a new generation. Waits for nothing; what is loaded now is not kept."""
        self._vocabularies.clear()

    def usage(self) -> LayerUsage:
        """Figures, taken in one step."""
        return self._vocabularies.usage()

    def __contains__(self, fingerprint: object) -> bool:
        return fingerprint in self._vocabularies

    def _loading(self, fingerprint: str, shared: str | None) -> Callable[[], Vocabulary]:
        return lambda: self._load(fingerprint, shared)

    def _load(self, fingerprint: str, shared: str | None) -> Vocabulary:
        vocabulary = Vocabulary.from_bytes(self._source.get_vocabulary(fingerprint))
        if vocabulary.fingerprint != fingerprint:
            raise CorruptArtifact(
                f"under the fingerprint {fingerprint} lies the vocabulary {vocabulary.fingerprint}",
                section="vocabulary",
            )
        if shared is None or not self._adopt(vocabulary, shared):
            automaton = load_tokenizer_automaton(vocabulary, cache_directory=self._cache_directory)
            if shared is not None:
                # equal automata have equal bytes: this mends what is gone or damaged
                self._blobs.put(automaton.to_bytes(fingerprint))
        return vocabulary

    def _adopt(self, vocabulary: Vocabulary, artifact_hash: str) -> bool:
        """Whether the shared automaton could be read."""
        try:
            blob = self._blobs.get(artifact_hash)
            automaton = TokenizerAutomaton.from_bytes(blob, vocabulary.fingerprint, vocabulary.data, vocabulary.offsets)
        except (UnknownArtifact, CorruptArtifact):
            return False
        vocabulary.adopt(automaton)
        return True


def _size_of(vocabulary: Vocabulary) -> int:
    return vocabulary.tokenizer_automaton.nbytes + vocabulary.data.nbytes + vocabulary.offsets.nbytes
