"""Token bytes from a SentencePiece model (`tokenizer.model`, `spiece.model`, `*.model.v3`).

The file is a protobuf message of which four things matter: the pieces with their types, the end-of-sequence id, and
whether text is changed after decoding. They are read here without the protobuf library. What a piece stands for is
what SentencePiece's own decoder makes of it: U+2581 is a space, a byte piece is its byte, a control piece and the
unknown piece stand for no text. How text is split and normalised on its way in does not matter. No file is touched.
"""

from collections.abc import Iterator
from typing import Final

from maskfeed_automata.errors import VocabularyError
from maskfeed_automata.tokenizer_config import TokenTable

__all__ = ["read_sentencepiece"]

_SPACE_MARK: Final = "\u2581"
_BYTE_PIECES: Final = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}

# Wire types of protobuf.
_VARINT: Final = 0
_FIXED_64: Final = 1
_BYTES: Final = 2
_FIXED_32: Final = 5

# ModelProto
_PIECE: Final = 1
_TRAINER: Final = 2
_DENORMALIZER: Final = 5
# ModelProto.SentencePiece
_PIECE_TEXT: Final = 1
_PIECE_TYPE: Final = 3
# TrainerSpec, NormalizerSpec
_EOS_ID: Final = 42
_CHARACTER_MAP: Final = 2

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)


def read_sentencepiece(data: bytes) -> TokenTable:
    """Token table of a serialised ModelProto.

    Raises:
        VocabularyError: not such a message, or text that is changed after decoding. Context: `token_id` where one
            piece is at fault.
    """
    tokens: list[bytes | None] = []
    controls: dict[str, int] = {}
    eos_id = 2  # the default of TrainerSpec
    for field, value in _fields(data):
        if field == _PIECE:
            text, kind = _piece(_message(value))
            if kind in (_UNKNOWN, _CONTROL):
                controls.setdefault(text, len(tokens))
            tokens.append(_piece_bytes(text, kind, len(tokens)))
        elif field == _TRAINER:
            eos_id = next((_number(item) for key, item in _fields(_message(value)) if key == _EOS_ID), eos_id)
        elif field == _DENORMALIZER and any(key == _CHARACTER_MAP and item for key, item in _fields(_message(value))):
            raise VocabularyError("a SentencePiece model that changes text after decoding (denormalizer) is refused")
    if not tokens:
        raise VocabularyError("no SentencePiece model: it has no pieces")
    return TokenTable(tokens, controls, [eos_id] if eos_id in controls.values() else [], marks_space=True)


def _piece(message: bytes) -> tuple[str, int]:
    text, kind = b"", _NORMAL
    for field, value in _fields(message):
        if field == _PIECE_TEXT:
            text = _message(value)
        elif field == _PIECE_TYPE:
            kind = _number(value)
    try:
        return text.decode(), kind
    except UnicodeDecodeError as error:
        raise VocabularyError("no SentencePiece model: a piece is not UTF-8") from error


def _piece_bytes(text: str, kind: int, token_id: int) -> bytes | None:
    if kind in (_UNKNOWN, _CONTROL):
        return None
    # The encoder never makes an unused piece; the decoder gives it its text, and a model may say it.
    if kind in (_NORMAL, _USER_DEFINED, _UNUSED):
        return text.replace(_SPACE_MARK, " ").encode()
    if kind == _BYTE and text in _BYTE_PIECES:
        return _BYTE_PIECES[text]
    raise VocabularyError(f"piece {token_id} is {text!r} of type {kind}, which is not understood", token_id=token_id)


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Field numbers and values of a message; fixed-width values as bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire_type = key & 7
        if wire_type == _VARINT:
            number, position = _varint(data, position)
            yield key >> 3, number
            continue
        if wire_type == _BYTES:
            length, position = _varint(data, position)
        elif wire_type in (_FIXED_32, _FIXED_64):
            length = 4 if wire_type == _FIXED_32 else 8
        else:
            raise VocabularyError(f"no SentencePiece model: wire type {wire_type} at byte {position}")
        if position + length > len(data):
            raise VocabularyError("no SentencePiece model: a field is longer than the file")
        yield key >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned number of at most 64 bits, and where it ends."""
    result = 0
    for shift in range(0, 70, 7):
        if position == len(data):
            break
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise VocabularyError("no SentencePiece model: a number does not end")


def _message(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise VocabularyError("no SentencePiece model: a number where bytes belong")
    return value


def _number(value: bytes | int) -> int:
    """An enum or int32, whose negative values are written as 64 bits."""
    if not isinstance(value, int):
        raise VocabularyError("no SentencePiece model: bytes where a number belongs")
    return value - (1 << 64) if value >> 63 else value
