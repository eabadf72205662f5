"""Reads mutated buffers in a process of its own, and judges what became of each.

    python victim.py PROGRESS FIRST STOP      the mutations of these seeds
    python victim.py PROGRESS CORPUS          those of a corpus file

Buffers lie between forbidden pages: the whole buffer at first, then each of its sections by itself, so that no kernel
can leave an array without killing the process. The seed in work is kept in the file PROGRESS, for the one who
finds this process dead. Prints one JSON object.
"""

import faulthandler
import hashlib
import json
import mmap
import random
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hostile.corpus import read_corpus
from hostile.guarded_memory import GuardedMemory
from hostile.mutations import Mutation, mutation
from hostile.targets import ITEM_TYPES, Target, targets
from maskfeed_automata import Automaton, Batch, TokenizerAutomaton, Vocabulary, codec, tokenizer_automaton, vocabulary
from maskfeed_automata.codec import encode
from maskfeed_automata.errors import CorruptArtifact, TokenNotAllowed, VocabularyMismatch
from maskfeed_automata.sections import Buffer, Sections, read_sections

__all__ = ["judge", "main"]

# The longest that a thousand mutations may take; a walk that never ends is a failure too.
_HANG_S = 120
_BATCH_ROWS = 16


class _Wrong(Exception):
    """Accepted, and not what it should be."""


class _Memory:
    """Forbidden pages around the buffer, around each section, and around what a step writes."""

    def __init__(self) -> None:
        self._whole = GuardedMemory(1 << 17)
        self._sections = [GuardedMemory(1 << 15) for _ in ITEM_TYPES[b"set "]]
        self._out = GuardedMemory(256)
        self.at_end = True

    def place(self, blob: bytes) -> memoryview:
        """The whole buffer; its end is right at a forbidden page, where its start is then aligned."""
        return self._whole.place(blob, at_end=self.at_end).toreadonly()

    def read_sections(self, buffer: Buffer, kind: bytes, version: int, names: Sequence[str]) -> Sections:
        """What the package calls in place of its own: the same, and each section moved to pages of its own."""
        read = read_sections(buffer, kind, version, names)
        views = {
            name: memory.place(view, at_end=self.at_end).toreadonly()
            for memory, (name, view) in zip(self._sections, read.views.items(), strict=False)
        }
        return Sections(read.identities, views, read.buffer)

    def out(self) -> np.ndarray:
        """int32 [64] for a batch to write to."""
        return np.frombuffer(self._out.place(bytes(256), at_end=self.at_end), np.int32)


def judge(attack: Mutation, memory: _Memory) -> str:
    """How the mutation was taken: `refused: <code>, <section>`, `equal`, or `sound` (another set, and in bounds).

    Raises:
        _Wrong: accepted although it must not be.
    """
    memory.at_end = attack.seed % 4 != 0
    for module in (codec, vocabulary, tokenizer_automaton):
        module.read_sections = memory.read_sections if attack.seed % 2 else read_sections  # type: ignore[attr-defined]
    view = memory.place(attack.blob)
    try:
        accepted = _read(attack.target, view)
    except (CorruptArtifact, VocabularyMismatch) as error:
        return f"refused: {error.code}, {error.context.get('section', 'fingerprint')}"
    if not attack.sealed and attack.blob != attack.target.blob:
        raise _Wrong("damage that was not seen")
    if _written_again(attack.target, accepted) != attack.blob:
        raise _Wrong("another buffer than the writer's own for the same contents")
    choose = random.Random(attack.seed)
    equal = attack.blob == attack.target.blob
    if not equal and hashlib.sha256(attack.blob).digest() == hashlib.sha256(attack.target.blob).digest():
        raise _Wrong("the store would not have noticed")
    if isinstance(accepted, Automaton):
        assert attack.target.automaton is not None
        _walk_anywhere(accepted, choose, memory)
        _walk(accepted, choose, attack.target.automaton if equal else None)
    elif isinstance(accepted, Vocabulary):
        _look_up(accepted, attack.target.vocabulary)
    elif not equal:
        raise _Wrong("a tokenizer automaton that is not the vocabulary's")
    return "equal" if equal else "sound"


def _read(target: Target, view: memoryview) -> Automaton | Vocabulary | TokenizerAutomaton:
    if target.kind == b"set ":
        return Automaton.from_bytes(view, target.vocabulary)
    if target.kind == b"voca":
        return Vocabulary.from_bytes(view)
    own = target.vocabulary
    return TokenizerAutomaton.from_bytes(view, own.fingerprint, own.data, own.offsets)


def _written_again(target: Target, accepted: Automaton | Vocabulary | TokenizerAutomaton) -> bytes:
    if isinstance(accepted, Automaton):
        return encode(
            accepted.arrays,
            fingerprint=accepted.fingerprint,
            digest=accepted.digest,
            leading_space=accepted.leading_space,
            n_candidates=accepted.n_candidates,
        )
    if isinstance(accepted, Vocabulary):
        return accepted.to_bytes()
    return accepted.to_bytes(target.vocabulary.fingerprint)


def _walk_anywhere(automaton: Automaton, choose: random.Random, memory: _Memory) -> None:
    """Step at many nodes at once, with permitted and with arbitrary tokens: in bounds, whatever it answers."""
    size, n_nodes = automaton.vocabulary.size, automaton.n_nodes
    started = automaton.with_stop_token_ids([choose.randrange(size)])
    batch = Batch(automaton.vocabulary, _BATCH_ROWS)
    for slot in range(_BATCH_ROWS):
        batch._automata[slot] = started
    batch._table[:] = started.row
    batch._positions[:] = [0, n_nodes - 1, *(choose.randrange(n_nodes) for _ in range(_BATCH_ROWS - 2))]
    batch._out = memory.out()
    slots = np.arange(_BATCH_ROWS, dtype=np.int32)
    rows = batch.step(slots, np.zeros(_BATCH_ROWS + 1, np.int64), np.empty(0, np.int32))
    for _ in range(2):
        if not ((rows.token_ids >= 0) & (rows.token_ids < size)).all():
            raise _Wrong("a mask with ids outside of the vocabulary")
        lists = [rows.token_ids[a:b].tolist() for a, b in zip(rows.row_ptr, rows.row_ptr[1:], strict=False)]
        tokens = [choose.choice(row) if row and choose.random() < 0.8 else choose.randrange(-1, size) for row in lists]
        rows = batch.step(slots, np.arange(_BATCH_ROWS + 1, dtype=np.int64), np.array(tokens, np.int32))
    if not ((batch._positions < n_nodes) & ((batch._positions >= -n_nodes) | rows.failed)).all():
        raise _Wrong("a position outside of the trie")


def _walk(automaton: Automaton, choose: random.Random, original: Automaton | None) -> None:
    """One sequence from the start to its end; with an original, the same masks at each step."""
    stop = [automaton.vocabulary.size - 1]
    cursor = automaton.with_stop_token_ids(stop).cursor()
    twin = None if original is None else original.with_stop_token_ids(stop).cursor()
    while not cursor.is_finished:
        ids = cursor.allowed_token_ids()
        if twin is not None and not np.array_equal(ids, twin.allowed_token_ids()):
            raise _Wrong("another mask than the original")
        if len(cursor.forced_text) >= automaton.n_nodes:
            raise _Wrong("forced text longer than the trie")
        index = cursor.candidate_index
        if index is not None and not 0 <= index < automaton.n_candidates:
            raise _Wrong("an index that is no candidate")
        if not ids.size:
            return
        token = int(choose.choice(ids))
        try:
            cursor.advance(token)
        except TokenNotAllowed as error:
            if twin is not None:
                raise _Wrong("a permitted token was refused") from error
            return
        if twin is not None:
            twin.advance(token)


def _look_up(found: Vocabulary, original: Vocabulary) -> None:
    tokens = [found.token_bytes(token_id) for token_id in range(found.size)]
    again = Vocabulary.from_token_bytes(tokens, stop_token_ids=found.stop_token_ids)
    if again != found or (found == original) != (tokens == [original.token_bytes(k) for k in range(original.size)]):
        raise _Wrong("a fingerprint that does not cover the tokens")
    if found.tokenizer_automaton.twin.size != found.size:
        raise _Wrong("a tokenizer automaton of another size")


def main(arguments: list[str]) -> None:
    """Judge, count, and say what was wrong."""
    if len(arguments) == 2:
        attacks: Iterable[Mutation] = read_corpus(Path(arguments[1]))
    else:
        attacks = map(mutation, range(int(arguments[1]), int(arguments[2])))
    counts: Counter[str] = Counter()
    failures = []
    memory = _Memory()
    targets()
    with open(arguments[0], "r+b") as file, mmap.mmap(file.fileno(), 8) as progress:
        for k, attack in enumerate(attacks):
            if k % 1000 == 0:
                faulthandler.dump_traceback_later(_HANG_S, exit=True)
            struct.pack_into("<q", progress, 0, attack.seed)
            try:
                outcome = judge(attack, memory)
            except Exception as error:
                outcome = "wrong"
                failures.append(f"seed {attack.seed}, {attack.target.name}, {attack.method}: {error!r}")
            counts[f"{attack.method}\t{outcome}"] += 1
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"counts": counts, "failures": failures[:50], "n_failures": len(failures)}))


if __name__ == "__main__":
    main(sys.argv[1:])
