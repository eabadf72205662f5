"""Vocabularies that a compiler keeps in memory, with their automata.

It knows where vocabularies come from and that they are large; it knows no job. Invariants: each is loaded by one thread
at a time however many ask for it; a failure is not remembered; what is handed out has the fingerprint asked for.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path

from maskfeed_automata import Vocabulary, load_tokenizer_automaton
from maskfeed_automata.errors import CorruptArtifact
from maskfeed_cache.store import VocabularySource

__all__ = ["ResidentVocabularies"]


class ResidentVocabularies:
    """The most recently used vocabularies. Thread-safe, blocking.

    Args:
        source: where the engines published them.
        capacity: how many are kept.
        cache_directory: where automata are kept between processes; None for the automata room's own choice.
    """

    def __init__(self, source: VocabularySource, *, capacity: int, cache_directory: Path | None) -> None:
        self._source = source
        self._capacity = capacity
        self._cache_directory = cache_directory
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Future[Vocabulary]] = OrderedDict()

    def get(self, fingerprint: str) -> Vocabulary:
        """The vocabulary, its automaton resident.

        Raises:
            UnknownArtifact: no engine has published it.
            CorruptArtifact: what lies there can't be read, or is another vocabulary.
            StoreUnavailable: the store does not answer.
        """
        with self._lock:
            entry = self._entries.get(fingerprint)
            is_ours_to_load = entry is None
            if entry is None:
                entry = self._entries[fingerprint] = Future()
            self._entries.move_to_end(fingerprint)
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        if is_ours_to_load:
            self._load_into(entry, fingerprint)
        return entry.result()

    def _load_into(self, entry: Future[Vocabulary], fingerprint: str) -> None:
        try:
            entry.set_result(self._load(fingerprint))
        except BaseException as error:
            with self._lock:
                if self._entries.get(fingerprint) is entry:
                    del self._entries[fingerprint]
            # all who wait get it, the loader included
            entry.set_exception(error)

    def _load(self, fingerprint: str) -> Vocabulary:
        vocabulary = Vocabulary.from_bytes(self._source.get_vocabulary(fingerprint))
        if vocabulary.fingerprint != fingerprint:
            raise CorruptArtifact(
                f"under the fingerprint {fingerprint} lies the vocabulary {vocabulary.fingerprint}",
                section="vocabulary",
            )
        load_tokenizer_automaton(vocabulary, cache_directory=self._cache_directory)
        return vocabulary
