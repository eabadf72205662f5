"""What an engine is to the outside: its vocabulary, its stop ids, its reserved id, its epoch.

Pure: values in, values out. It does not know vLLM, Redis or files. Invariants: the reserved id is never a stop id of
the model and never text, so that sampling it can mean one thing only: this request was refused; and all ranks of an
engine are the same to the outside.
"""

import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Self

from maskfeed_automata import Vocabulary
from maskfeed_automata.errors import EngineUnsupported

__all__ = ["EngineIdentity", "choose_reserved_id", "exclude_stop_ids", "model_stop_ids", "new_epoch"]


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Found by each rank for itself; only the epoch is rank 0's alone."""

    epoch: str
    fingerprint: str
    logits_width: int
    reserved_id: int
    stop_token_ids: tuple[int, ...]

    def adopt(self, of_rank_0: Self) -> Self:
        """Rank 0's identity, if this rank has found the same.

        Raises:
            EngineUnsupported: it has not, so that the ranks would mask differently. Context: `field`.
        """
        for field, theirs in asdict(of_rank_0).items():
            ours = getattr(self, field)
            if field != "epoch" and ours != theirs:
                raise EngineUnsupported(
                    f"this rank finds {field} {ours}, rank 0 {theirs}: their tokenizer or model files differ",
                    field=field,
                )
        return of_rank_0


def new_epoch() -> str:
    """16 hex digits, fresh for each life of an engine."""
    return secrets.token_hex(8)


def model_stop_ids(
    tokenizer_eos: int | None, generation_config_eos: int | Iterable[int] | None, vocabulary_size: int
) -> tuple[int, ...]:
    """Union of the tokenizer's and the generation config's stop ids, sorted; ids that can't be sampled are left out.

    Raises:
        EngineUnsupported: there is none, so that no answer could ever end.
    """
    ids: set[int] = set() if tokenizer_eos is None else {tokenizer_eos}
    if isinstance(generation_config_eos, int):
        ids.add(generation_config_eos)
    elif generation_config_eos is not None:
        ids.update(generation_config_eos)
    ids = {i for i in ids if 0 <= i < vocabulary_size}
    if not ids:
        raise EngineUnsupported(
            "neither the tokenizer nor generation_config.json names a stop id that can be sampled", field="eos_token_id"
        )
    return tuple(sorted(ids))


def exclude_stop_ids(vocabulary: Vocabulary, stop_ids: Iterable[int]) -> Vocabulary:
    """The vocabulary in which no stop id is text.

    The engine ends a sequence at each stop id wherever it occurs. If such an id also spelled text, a candidate could be
    cut in its middle by one of its own tokens; so these ids are left to their one meaning.
    """
    stops = set(stop_ids)
    if all(i >= vocabulary.size or vocabulary.token_bytes(i) is None for i in stops):
        return vocabulary
    return Vocabulary.from_token_bytes(
        [None if i in stops else vocabulary.token_bytes(i) for i in range(vocabulary.size)],
        stop_token_ids=vocabulary.stop_token_ids,
    )


def choose_reserved_id(vocabulary: Vocabulary, stop_ids: Iterable[int], logits_width: int) -> int:
    """The id that only a refused slot permits: the highest control token, else the first padding id.

    Args:
        vocabulary: as the masks use it (stop ids excluded).
        stop_ids: stop ids of tokenizer and generation_config.
        logits_width: ids at or above it can't be sampled.

    Raises:
        EngineUnsupported: the model has neither a control token nor a padding id to spare.
    """
    stops = set(stop_ids)
    controls = [int(i) for i in vocabulary.control_token_ids() if i < logits_width and int(i) not in stops]
    if controls:
        return controls[-1]
    if vocabulary.size < logits_width:
        return vocabulary.size
    raise EngineUnsupported(
        "the model has no control or padding id that could mark a refused request",
        limit=logits_width,
        value=vocabulary.size,
    )
