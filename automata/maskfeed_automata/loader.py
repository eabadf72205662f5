"""The one module that touches files: reading tokenizers, and keeping tokenizer automata on disk.

It knows nothing of candidates. Invariants: a tokenizer is read exactly or refused; a file in the cache is written under
another name first and renamed when complete, and is used only if it proves to be the automaton of the vocabulary, so a
damaged, foreign or older file costs a rebuild and nothing else.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from maskfeed_automata.errors import CorruptArtifact, VocabularyError
from maskfeed_automata.sentencepiece_model import read_sentencepiece
from maskfeed_automata.tekken import is_tekken, read_tekken
from maskfeed_automata.tiktoken_file import is_tiktoken, read_tiktoken
from maskfeed_automata.tokenizer_automaton import TokenizerAutomaton
from maskfeed_automata.tokenizer_config import TokenizerConfig
from maskfeed_automata.tokenizer_json import token_bytes_of
from maskfeed_automata.vocabulary import Vocabulary

__all__ = ["default_cache_directory", "load_tokenizer_automaton", "read_tokenizer"]

# Of a directory the first one that is there is read.
_FILE_NAMES: Final = ("tokenizer.json", "tekken.json", "tokenizer.model", "spiece.model")
_FILE_PATTERNS: Final = ("tekken*.json", "*.tiktoken", "*.model", "*.model.v*")


def default_cache_directory() -> Path:
    """$XDG_CACHE_HOME/maskfeed, or ~/.cache/maskfeed."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maskfeed"


def load_tokenizer_automaton(
    vocabulary: Vocabulary, *, cache_directory: str | os.PathLike[str] | None = None
) -> TokenizerAutomaton:
    """Make the automaton of a vocabulary resident: from the cache on disk, or built and then stored there.

    A directory that can't be read or written costs the build and is no error: the cache is a convenience.

    Args:
        vocabulary: keeps the automaton.
        cache_directory: created on first use; default `default_cache_directory()`.
    """
    if vocabulary.is_warm:
        return vocabulary.tokenizer_automaton
    directory = default_cache_directory() if cache_directory is None else Path(cache_directory)
    path = directory / f"{vocabulary.fingerprint}.tokenizer"
    # Absent, unreadable or damaged: built anew below.
    with contextlib.suppress(OSError, CorruptArtifact):
        vocabulary.adopt(
            TokenizerAutomaton.from_bytes(
                path.read_bytes(), vocabulary.fingerprint, vocabulary.data, vocabulary.offsets
            )
        )
    if not vocabulary.is_warm:
        contents = vocabulary.tokenizer_automaton.to_bytes(vocabulary.fingerprint)
        # A read-only or full disk: the next process builds again.
        with contextlib.suppress(OSError):
            _write_atomically(path, contents)
    return vocabulary.tokenizer_automaton


def read_tokenizer(tokenizer_or_path: Any) -> tuple[list[bytes | None], list[int]]:
    """Token bytes by id, and the tokenizer's own end-of-sequence ids.

    Args:
        tokenizer_or_path: a fast tokenizer of transformers, a `tokenizers.Tokenizer`, or a path: a tokenizer.json,
            a tekken.json, a SentencePiece model or a tiktoken rank file (told apart by their contents), or a
            directory with one of these. A tokenizer_config.json beside the file is taken into account.

    Raises:
        VocabularyError: none of these, or token bytes that can't be told exactly.
    """
    if isinstance(tokenizer_or_path, str | os.PathLike):
        return _read_path(Path(tokenizer_or_path))
    return _read_object(tokenizer_or_path)


def _read_path(path: Path) -> tuple[list[bytes | None], list[int]]:
    if path.is_dir():
        path = _tokenizer_file(path)
    data = _read(path)
    config_path = path.with_name("tokenizer_config.json")
    config = TokenizerConfig.from_contents(_json(config_path, _read(config_path)) if config_path.exists() else {})
    if data.lstrip()[:1] == b"{":
        contents = _json(path, data)
        if not is_tekken(contents):
            return _read_tokenizer_json(contents, config)
        # Control tokens of other formats are listed beside them; tekken lists its own.
        return TokenizerConfig.from_contents({}).complete(read_tekken(contents))
    _refuse_unstated_tokens(path.with_name("added_tokens.json"), config)
    return config.complete(read_tiktoken(data) if is_tiktoken(data) else read_sentencepiece(data))


def _tokenizer_file(directory: Path) -> Path:
    for name in _FILE_NAMES:
        if (directory / name).is_file():
            return directory / name
    for pattern in _FILE_PATTERNS:
        found = sorted(directory.glob(pattern))
        if len(found) > 1:
            raise VocabularyError(f"{directory} has {len(found)} files {pattern}; name the one that is meant")
        if found:
            return found[0]
    raise VocabularyError(f"{directory} has no tokenizer: none of {', '.join((*_FILE_NAMES, *_FILE_PATTERNS))}")


def _refuse_unstated_tokens(path: Path, config: TokenizerConfig) -> None:
    """Raise VocabularyError for tokens of an added_tokens.json of which nothing says whether they are text."""
    if path.exists():
        stated = {item["id"] for item in config.added}
        for text, token_id in _json(path, _read(path)).items():
            if token_id not in stated:
                raise VocabularyError(
                    f"{path.name} adds {text!r}, and no tokenizer_config.json says whether it is a control token",
                    token_id=token_id,
                )


def _read_tokenizer_json(contents: Mapping[str, Any], config: TokenizerConfig) -> tuple[list[bytes | None], list[int]]:
    tokens = token_bytes_of(contents, control_texts=config.control_texts, added=config.added)
    eos = config.eos_text
    ids = [] if eos is None else _ids_of(eos, contents, config)
    if eos is not None and not ids:
        raise VocabularyError(f"tokenizer_config.json names {eos!r} as eos_token, which is no token")
    return tokens, ids


def _read_object(tokenizer: Any) -> tuple[list[bytes | None], list[int]]:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "to_str"):
        raise VocabularyError(
            f"{type(tokenizer).__name__} is neither a fast tokenizer nor a path; only those state their bytes"
        )
    contents = json.loads(backend.to_str())
    tokens = token_bytes_of(contents, control_texts=set(getattr(tokenizer, "all_special_tokens", ())))
    eos = getattr(tokenizer, "eos_token_id", None)
    return tokens, [] if eos is None else [int(eos)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise VocabularyError(f"{path} can't be read: {error}") from error


def _json(path: Path, data: bytes) -> Mapping[str, Any]:
    try:
        contents = json.loads(data)
    except ValueError as error:
        raise VocabularyError(f"{path} can't be read: {error}") from error
    if not isinstance(contents, dict):
        raise VocabularyError(f"{path} holds no JSON object")
    return contents


def _ids_of(text: str, contents: Mapping[str, Any], config: TokenizerConfig) -> list[int]:
    added = (*(contents.get("added_tokens") or ()), *config.added)
    ids = {int(item["id"]) for item in added if item["content"] == text}
    vocab = contents["model"]["vocab"]
    if not ids and isinstance(vocab, Mapping) and text in vocab:
        ids = {int(vocab[text])}
    elif not ids:
        ids = {token_id for token_id, entry in enumerate(vocab) if entry[0] == text}
    return sorted(ids)


def _write_atomically(path: Path, contents: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
