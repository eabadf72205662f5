"""xgrammar and llguidance, mask for mask, on sets that they can take; every difference is put into a class.

A class is a predicate over the set, the prefix and the difference, and says why the engine is another, not why it may
be. A difference that no predicate explains is unclassified, and fails the run.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brute_force import BruteForce
from walks import Visited

__all__ = ["ENGINES", "Engine", "EngineCounts", "compare_engine", "make_engine"]

ENGINES = ("xgrammar", "llguidance")

# (tokens of a walk, position from which on masks are wanted) -> those masks, and how many tokens the engine took
Masks = Callable[[Sequence[int], int], tuple[list[np.ndarray], int]]


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine with one tokenizer."""

    # compiles candidates; RuntimeError: the engine can't take them
    prepare: Callable[[Sequence[str]], Masks]
    text_of_id: Callable[[int], str]
    # ids of added tokens, special or not
    added_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Difference:
    """One mask of an engine that is not the right one."""

    engine: Engine
    oracle: BruteForce
    text: bytes
    found: set[int]
    expected: set[int]
    # whether the engine, at this position, takes a token
    takes: Callable[[int], bool]

    @property
    def more(self) -> set[int]:
        """Ids that only the engine has."""
        return self.found - self.expected

    @property
    def less(self) -> set[int]:
        """Ids that the engine lacks."""
        return self.expected - self.found

    @property
    def is_forced(self) -> bool:
        """Whether all candidates go on with the same byte."""
        low, high = self.oracle.range_of(self.text)
        return len({variant[len(self.text) :][:1] for variant in self.oracle.variants[low:high]}) == 1

    def goes_on(self, following: bytes) -> bool:
        """Whether some candidate goes on like this."""
        low, high = self.oracle.range_of(self.text + following)
        return high > low

    @property
    def name(self) -> str | None:
        """The first class that explains it, or None."""
        return next((name for name, predicate in _PREDICATES.items() if predicate(self)), None)

    def __str__(self) -> str:
        return f"too many {sorted(self.more)[:8]}, missing {sorted(self.less)[:8]}"


class EngineCounts:
    """What was compared with an engine."""

    def __init__(self) -> None:
        self.n_masks = 0
        self.classes: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.unclassified: list[str] = []

    def add(self, other: "EngineCounts") -> None:
        """Sum up."""
        self.n_masks += other.n_masks
        self.classes += other.classes
        self.refusals += other.refusals
        self.unclassified += other.unclassified


def make_engine(name: str, directory: Path, size: int, stop_token_ids: Sequence[int]) -> Engine:
    """An engine over the tokenizer.json of a directory.

    Not by AutoTokenizer, which makes a SentencePiece tokenizer of DeepSeek's byte-level one (transformers 5): that
    would be held against the engine.
    """
    from transformers import PreTrainedTokenizerFast

    config = json.loads((directory / "tokenizer_config.json").read_text())
    eos = config["eos_token"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"), eos_token=eos["content"] if isinstance(eos, dict) else eos
    )
    prepare = _xgrammar if name == "xgrammar" else _llguidance
    added = frozenset(tokenizer.added_tokens_decoder)
    return Engine(prepare(tokenizer, size, list(stop_token_ids)), tokenizer.convert_ids_to_tokens, added)


def compare_engine(engine: Engine, oracle: BruteForce, walks: Sequence[Visited], label: str) -> EngineCounts:
    """Compare the masks along some walks through a set."""
    counts = EngineCounts()
    try:
        masks_of = engine.prepare([variant.decode() for variant in oracle.variants])
    except RuntimeError as error:
        counts.refusals[str(error).strip().splitlines()[0][:100]] += 1
        return counts
    for walk in walks:
        stop_ids = oracle.tokens.stop_token_ids
        token_ids = walk.token_ids[:-1] if walk.token_ids and walk.token_ids[-1] in stop_ids else walk.token_ids
        masks, n_taken = masks_of(token_ids, walk.checked_from)
        if n_taken < len(token_ids):
            refused = token_ids[n_taken]
            kind = _TEXT_HELD_FOR_CONTROL if refused in engine.added_ids else None
            _count(counts, kind, f"{label} after {token_ids[:n_taken]}: refused {refused}")
        for position, mask in enumerate(masks, walk.checked_from):
            counts.n_masks += 1
            text = walk.text_at(position)
            found = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            expected = oracle.allowed(text)
            if not np.array_equal(found, expected):
                before = token_ids[:position]
                difference = Difference(
                    engine,
                    oracle,
                    text,
                    found=set(found.tolist()),
                    expected=set(expected.tolist()),
                    takes=lambda token_id, ids=before: masks_of([*ids, token_id], len(ids) + 1)[1] > len(ids),
                )
                _count(counts, difference.name, f"{label} at {text!r}: {difference}")
    return counts


def _count(counts: EngineCounts, kind: str | None, what: str) -> None:
    if kind is None:
        counts.unclassified.append(what)
    else:
        counts.classes[kind] += 1


def _is_control_text(it: Difference) -> bool:
    """Only more, and each of it is a control token whose name goes on as a candidate does."""
    if it.less or any(token_id in ids for ids in it.oracle.tokens.ids_of.values() for token_id in it.more):
        return False
    return all(it.goes_on(it.engine.text_of_id(token_id).encode()) for token_id in it.more)


def _is_added_text(it: Difference) -> bool:
    """Only less, and each of it is a token that was added to the vocabulary as text (not special)."""
    return not it.more and it.less <= it.engine.added_ids


def _is_forced(it: Difference) -> bool:
    """One of the right tokens alone, where all candidates go on with the same byte."""
    return not it.more and len(it.found) == 1 and it.is_forced


def _is_space_for_its_mark(it: Difference) -> bool:
    """One wrong token alone, where all candidates go on with the same byte: its text with U+2581 for each space."""
    if len(it.found) != 1 or it.found != it.more or not it.is_forced:
        return False
    (wrong,) = (token for token, ids in it.oracle.tokens.ids_of.items() if it.more & set(ids))
    return b" " in wrong and it.goes_on(wrong.replace(b" ", "\u2581".encode()))


def _is_inconsistent(it: Difference) -> bool:
    """Only less, and the engine takes each of it all the same."""
    return not it.more and all(map(it.takes, it.less))


_TEXT_HELD_FOR_CONTROL = "an added text token held for a control token"
_PREDICATES: Mapping[str, Callable[[Difference], bool]] = {
    "a control token's name taken for text": _is_control_text,
    _TEXT_HELD_FOR_CONTROL: _is_added_text,
    "one token alone where text is forced": _is_forced,
    "a wrong token alone where text is forced: a space for U+2581": _is_space_for_its_mark,
    "tokens left out that the engine itself takes": _is_inconsistent,
}


def _xgrammar(tokenizer: Any, size: int, stop_token_ids: list[int]) -> Callable[[Sequence[str]], Masks]:
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=stop_token_ids)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bitmask = xgrammar.allocate_token_bitmask(1, size)

    def prepare(candidates: Sequence[str]) -> Masks:
        alternatives = " | ".join(f'"{"".join(map(_escaped, candidate))}"' for candidate in candidates)
        grammar = compiler.compile_grammar(f"root ::= {alternatives}")

        def masks_of(token_ids: Sequence[int], start: int) -> tuple[list[np.ndarray], int]:
            matcher = xgrammar.GrammarMatcher(grammar)

            def mask() -> np.ndarray:
                matcher.fill_next_token_bitmask(bitmask)
                return bitmask[0].numpy().copy()

            return _walk(token_ids, start, mask, matcher.accept_token)

        return masks_of

    return prepare


def _llguidance(tokenizer: Any, size: int, stop_token_ids: list[int]) -> Callable[[Sequence[str]], Masks]:
    from llguidance import LLMatcher
    from llguidance import hf as llguidance_hf
    from llguidance import numpy as llguidance_numpy

    vocabulary = llguidance_hf.from_tokenizer(tokenizer, n_vocab=size, eos_token=stop_token_ids)
    bitmask = llguidance_numpy.allocate_token_bitmask(1, size)

    def prepare(candidates: Sequence[str]) -> Masks:
        names = " | ".join(f'"{"".join(map(_lark_escaped, candidate))}"' for candidate in candidates)
        grammar = LLMatcher.grammar_from_lark(f"start: NAME\nNAME: {names}")
        error = LLMatcher.validate_grammar(grammar, vocabulary)
        if error:
            raise RuntimeError(error)

        def masks_of(token_ids: Sequence[int], start: int) -> tuple[list[np.ndarray], int]:
            # Its log would go to the terminal.
            matcher = LLMatcher(vocabulary, grammar, log_level=0)

            def mask() -> np.ndarray:
                llguidance_numpy.fill_next_token_bitmask(matcher, bitmask, 0)
                return bitmask[0].copy()

            return _walk(token_ids, start, mask, matcher.consume_token)

        return masks_of

    return prepare


def _walk(
    token_ids: Sequence[int], start: int, mask: Callable[[], np.ndarray], take: Callable[[int], bool]
) -> tuple[list[np.ndarray], int]:
    masks = []
    for position in range(len(token_ids) + 1):
        if position >= start:
            masks.append(mask())
        if position < len(token_ids) and not take(token_ids[position]):
            return masks, position
    return masks, len(token_ids)


def _escaped(character: str) -> str:
    r"""A character in a quoted string of xgrammar's language; \UXXXXXXXX where one may be in doubt."""
    return character if character.isascii() and character.isalnum() else f"\\U{ord(character):08x}"


def _lark_escaped(character: str) -> str:
    r"""A character in a quoted string of llguidance's language, which knows \uXXXX and takes the others as they are."""
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 and (character in '"\\' or not character.isprintable()) else character
