"""Token bytes from the contents of a tokenizer.json.

Two kinds are understood: byte-level BPE (each byte is one of 256 printable characters) and SentencePiece style
(U+2581 is a space, `<0xNN>` is a byte). The kind that the decoder states is checked against the vocabulary itself, and
where the two disagree, or anything else would make bytes a guess, the tokenizer is refused. No file is touched here.

Added tokens that are special are control tokens without bytes, whatever the vocabulary has under their ids; other
added tokens are literal text.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from maskfeed_automata.errors import VocabularyError

__all__ = ["token_bytes_of"]

_SPACE_MARK: Final = "\u2581"
_BYTE_LEVEL_SPACE: Final = "\u0120"
_MAX_ID: Final = 1 << 24
_NOT_CONCATENATED: Final = {
    "WordPiece": "puts a space before each piece without '##', except the first, so text is not its tokens' bytes "
    "one after the other",
    "WordLevel": "joins words by spaces that belong to no token",
}


def _byte_characters() -> dict[str, int]:
    """Character -> byte, as GPT-2 defined it: printable Latin-1 stands for itself, the others for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + k): byte for k, byte in enumerate(others)}


_BYTE_OF_CHARACTER: Final = _byte_characters()
_BYTE_PIECES: Final = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


def token_bytes_of(
    contents: Mapping[str, Any], *, control_texts: Collection[str] = (), added: Iterable[Mapping[str, Any]] = ()
) -> list[bytes | None]:
    """Bytes of each id; None for control tokens and holes.

    Args:
        contents: parsed tokenizer.json.
        control_texts: tokens that the tokenizer's configuration uses as control tokens (eos, bos, pad, ...).
        added: added tokens of the configuration: `id`, `content`, `special`; they override those in `contents`.

    Raises:
        VocabularyError: a kind that is not understood, or contradictions.
    """
    model = contents.get("model")
    if not isinstance(model, Mapping) or "vocab" not in model:
        raise VocabularyError("no tokenizer.json: it has no model with a vocab")
    pieces = _pieces(model)
    decoders = _decoder_types(contents.get("decoder"))
    texts = {int(item["id"]): item for item in (*(contents.get("added_tokens") or ()), *added)}
    controls = {token_id for token_id, item in texts.items() if item.get("special")}
    controls |= _control_ids(pieces, texts, {*control_texts, *_unknown_token(model)})
    ordinary = {token_id: piece for token_id, piece in pieces.items() if token_id not in texts}
    if "ByteLevel" in decoders:
        known = _byte_level(ordinary)
        literal = {token_id: str(item["content"]).encode() for token_id, item in texts.items()}
    else:
        known = _sentence_piece(ordinary, decoders, model)
        # The decoder maps U+2581 in added tokens too.
        literal = {
            token_id: str(item["content"]).replace(_SPACE_MARK, " ").encode() for token_id, item in texts.items()
        }
    known.update(literal)
    size = max(known, default=-1) + 1
    if not 0 < size <= _MAX_ID:
        raise VocabularyError(f"token ids up to {size - 1}: at most {_MAX_ID} ids are understood")
    return [None if token_id in controls else known.get(token_id) for token_id in range(size)]


def _pieces(model: Mapping[str, Any]) -> dict[int, str]:
    """The pieces as written in the vocabulary, by id."""
    kind = model.get("type") or ("BPE" if "merges" in model else "Unigram")
    if kind not in ("BPE", "Unigram"):
        reason = _NOT_CONCATENATED.get(kind, "is not understood")
        raise VocabularyError(f"a tokenizer of type {kind} is refused: it {reason}")
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(affix):
            raise VocabularyError(f"{affix} {model[affix]!r} is not understood")
    vocab = model["vocab"]
    if isinstance(vocab, Mapping):
        return {int(token_id): piece for piece, token_id in vocab.items()}
    return {token_id: entry[0] for token_id, entry in enumerate(vocab)}


def _decoder_types(decoder: Any) -> dict[str, Mapping[str, Any]]:
    """The steps of the decoder by type. Refuses those after which text is not the tokens' bytes in a row."""
    if not isinstance(decoder, Mapping):
        raise VocabularyError("the tokenizer has no decoder, so the bytes of its tokens are not stated")
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    types = [step["type"] for step in steps]
    known = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
    for kind in types:
        if kind not in known:
            raise VocabularyError(f"a decoder step of type {kind} is not understood")
    by_type = dict(zip(types, steps, strict=True))
    if len(by_type) < len(types) or ("ByteLevel" in by_type and not by_type.keys() <= {"ByteLevel", "Fuse"}):
        raise VocabularyError(f"decoder steps {types} are not understood together")
    # Once all tokens are one text, a space at its beginning may go: that is presentation of a whole text. Before, or
    # anywhere else, a token would not stand for the same bytes everywhere.
    strip = by_type.get("Strip")
    if strip and not ("Fuse" in types[: types.index("Strip")] and strip.get("content") == " " and not strip["stop"]):
        raise VocabularyError(f"a decoder that strips more than the beginning of the text is refused: {types}")
    return by_type


def _unknown_token(model: Mapping[str, Any]) -> set[str]:
    """The model's unknown token, if it has one: it stands for no text."""
    unknown_id = model.get("unk_id")
    if unknown_id is not None:
        return {model["vocab"][unknown_id][0]}
    return {model["unk_token"]} if model.get("unk_token") else set()


def _control_ids(pieces: Mapping[int, str], added: Mapping[int, Mapping[str, Any]], texts: set[str]) -> set[int]:
    """Ids of tokens with one of these texts. An added token with the text wins over a piece."""
    ids = {token_id for token_id, item in added.items() if item["content"] in texts}
    rest = texts - {added[token_id]["content"] for token_id in ids}
    return ids | {token_id for token_id, piece in pieces.items() if piece in rest}


def _byte_level(pieces: Mapping[int, str]) -> dict[int, bytes]:
    known: dict[int, bytes] = {}
    for token_id, piece in pieces.items():
        try:
            known[token_id] = bytes([_BYTE_OF_CHARACTER[character] for character in piece])
        except KeyError as error:
            raise VocabularyError(
                f"the decoder is byte-level, but token {token_id} has the character {error.args[0]!r}",
                token_id=token_id,
            ) from error
    return known


def _sentence_piece(
    pieces: Mapping[int, str], decoders: Mapping[str, Mapping[str, Any]], model: Mapping[str, Any]
) -> dict[int, bytes]:
    replace = decoders.get("Replace")
    metaspace = decoders.get("Metaspace")
    marks_space = (metaspace is not None and metaspace.get("replacement", _SPACE_MARK) == _SPACE_MARK) or (
        replace is not None and replace.get("content") == " " and replace.get("pattern") == {"String": _SPACE_MARK}
    )
    if not marks_space or (replace is not None and replace.get("content") != " "):
        raise VocabularyError(f"decoder steps {sorted(decoders)} are neither byte-level nor SentencePiece style")
    texts = set(pieces.values())
    n_marked = sum(piece.startswith(_SPACE_MARK) for piece in texts)
    if n_marked <= sum(piece.startswith(_BYTE_LEVEL_SPACE) for piece in texts):
        raise VocabularyError("the decoder is SentencePiece style, but the vocabulary looks byte-level")
    fallback = "ByteFallback" in decoders
    n_byte_pieces = len(_BYTE_PIECES.keys() & texts)
    if fallback != bool(model.get("byte_fallback")) or n_byte_pieces != (256 if fallback else 0):
        raise VocabularyError(
            f"byte fallback: decoder {fallback}, model {model.get('byte_fallback')}, {n_byte_pieces} byte pieces"
        )
    return {
        token_id: _BYTE_PIECES[piece] if piece in _BYTE_PIECES else piece.replace(_SPACE_MARK, " ").encode()
        for token_id, piece in pieces.items()
    }
