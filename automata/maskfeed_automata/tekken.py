"""Token bytes from a tekken.json, Mistral's own format of a byte-level vocabulary.

The bytes of each token are written down (base64), so nothing is guessed. The control tokens take the first ids, and
the ids of the ordinary tokens start behind all of them; the file may list more tokens than the vocabulary has. No file
is touched here.
"""

import binascii
from collections.abc import Mapping
from typing import Any, Final

from maskfeed_automata.errors import VocabularyError
from maskfeed_automata.tokenizer_config import TokenTable

__all__ = ["is_tekken", "read_tekken"]

_EOS: Final = "</s>"
# Where the file lists no control tokens, they are the ones of the first release, in which </s> has this id.
_DEFAULT_CONTROLS: Final = {"<unk>": 0, "<s>": 1, _EOS: 2}


def is_tekken(contents: Mapping[str, Any]) -> bool:
    """Whether parsed JSON has the form of a tekken.json."""
    config = contents.get("config")
    return isinstance(config, Mapping) and "default_vocab_size" in config and isinstance(contents.get("vocab"), list)


def read_tekken(contents: Mapping[str, Any]) -> TokenTable:
    """Token table of a parsed tekken.json.

    Raises:
        VocabularyError: a list that contradicts itself. Context: `token_id` where one token is at fault.
    """
    config, vocab = contents["config"], contents["vocab"]
    try:
        size, n_controls = int(config["default_vocab_size"]), int(config["default_num_special_tokens"])
        listed = contents.get("special_tokens")
        controls = (
            _DEFAULT_CONTROLS if listed is None else {str(item["token_str"]): int(item["rank"]) for item in listed}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise VocabularyError(f"no tekken.json: {error!r}") from error
    if not 0 <= n_controls <= size <= n_controls + len(vocab):
        raise VocabularyError(
            f"tekken.json: {len(vocab)} tokens and {n_controls} control tokens do not make a vocabulary of {size}"
        )
    if any(not 0 <= token_id < n_controls for token_id in controls.values()):
        raise VocabularyError(f"tekken.json: a control token has an id that is not one of the first {n_controls}")
    tokens: list[bytes | None] = [None] * n_controls
    for rank, item in enumerate(vocab[: size - n_controls]):
        tokens.append(_bytes_of(item, rank, n_controls + rank))
    return TokenTable(tokens, controls, [controls[_EOS]] if _EOS in controls else [])


def _bytes_of(item: Any, rank: int, token_id: int) -> bytes:
    try:
        if item["rank"] != rank:
            raise VocabularyError(f"tekken.json: place {rank} has rank {item['rank']}", token_id=token_id)
        return binascii.a2b_base64(item["token_bytes"], strict_mode=True)
    except (KeyError, TypeError, ValueError) as error:
        raise VocabularyError(f"tekken.json: token {token_id} has no bytes: {error!r}", token_id=token_id) from error
