"""tekken.json, SentencePiece models and tiktoken rank files: read exactly, told apart by their contents, or refused."""

import base64
import json

import pytest
from tokenizers import Tokenizer, decoders, models

from maskfeed_automata import Vocabulary
from maskfeed_automata.errors import VocabularyError
from maskfeed_automata.sentencepiece_model import read_sentencepiece
from maskfeed_automata.tekken import read_tekken
from maskfeed_automata.tiktoken_file import read_tiktoken
from maskfeed_automata.tokenizer_json import token_bytes_of
from tokenizer_files import tokenizer_directory

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    head = bytes([number & 0x7F | (0x80 if number >> 7 else 0)])
    return head + (varint(number >> 7) if number >> 7 else b"")


def text_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def piece(text: str, kind: int = NORMAL) -> bytes:
    """Text, score (a fixed32), and the type unless it is the default."""
    score = varint(2 << 3 | 5) + b"\0\0\x80\xbf"
    return text_field(1, text_field(1, text.encode()) + score + (number_field(3, kind) if kind != NORMAL else b""))


PIECES = [
    *(piece("<unk>", UNKNOWN), piece("<s>", CONTROL), piece("</s>", CONTROL)),
    *(piece("<0x0A>", BYTE), piece("▁a"), piece("a▁▁b", USER_DEFINED), piece("日", UNUSED), piece("<0x0A>")),
]
MODEL = b"".join(PIECES)


def test_pieces_of_every_type_stand_for_what_the_decoder_makes_of_them():
    table = read_sentencepiece(MODEL + text_field(2, number_field(3, 2)))
    assert table.tokens == [None, None, None, b"\n", b" a", b"a  b", "日".encode(), b"<0x0A>"]
    assert (table.control_ids, table.stop_token_ids) == ({"<unk>": 0, "<s>": 1, "</s>": 2}, [2])


@pytest.mark.parametrize(("eos_id", "expected"), [(1, [1]), (-1, []), (4, []), (999, [])])
def test_the_end_of_a_sentencepiece_model_is_the_control_piece_that_it_names(eos_id, expected):
    trainer = text_field(2, text_field(1, b"corpus.txt") + number_field(42, eos_id))
    assert read_sentencepiece(trainer + MODEL).stop_token_ids == expected


REFUSED_MODELS = [
    ("empty", b"", "no pieces"),
    ("cut short", MODEL[:-3], "longer than the file"),
    ("a number without an end", MODEL + b"\x08" + b"\xff" * 11, "does not end"),
    ("an unknown wire type", MODEL + b"\x0f", "wire type 7"),
    ("a piece that is a number", number_field(1, 5), "where bytes belong"),
    ("a type that is text", text_field(1, text_field(1, b"a") + text_field(3, b"x")), "where a number belongs"),
    ("a piece that is not UTF-8", text_field(1, text_field(1, b"\xff")), "not UTF-8"),
    ("a type of the future", piece("a", 7), "type 7"),
    ("a byte piece without a byte", piece("<0xG0>", BYTE), "type 6"),
    ("text that is changed after decoding", MODEL + text_field(5, text_field(2, b"map")), "denormalizer"),
]


@pytest.mark.parametrize(
    ("data", "message"), [row[1:] for row in REFUSED_MODELS], ids=[row[0] for row in REFUSED_MODELS]
)
def test_a_sentencepiece_model_that_is_not_certain_is_refused(data, message):
    with pytest.raises(VocabularyError, match=message):
        read_sentencepiece(data)


def test_a_denormalizer_without_a_map_changes_nothing():
    assert len(read_sentencepiece(MODEL + text_field(5, text_field(1, b"identity"))).tokens) == 8


def tekken(**changes):
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate([b"\0", b"a", b"\xe4", b"ab", b"never used"])
    ]
    config = {"default_vocab_size": 7, "default_num_special_tokens": 3, **changes.pop("config", {})}
    return {"config": config, "vocab": vocab, **changes}


def test_tekken_control_tokens_come_first_and_surplus_tokens_are_cut():
    table = read_tekken(tekken())
    assert table.tokens == [None, None, None, b"\0", b"a", b"\xe4", b"ab"]
    assert table.stop_token_ids == [2]
    listed = [{"rank": 0, "token_str": "</s>", "is_control": True}]
    assert read_tekken(tekken(special_tokens=listed)).stop_token_ids == [0]
    assert read_tekken(tekken(special_tokens=[])).stop_token_ids == []


REFUSED_TEKKENS = [
    ("larger than its list", tekken(config={"default_vocab_size": 9}), "do not make a vocabulary of 9"),
    ("smaller than its control tokens", tekken(config={"default_vocab_size": 2}), "do not make"),
    ("no sizes", tekken(config={"default_num_special_tokens": None}), "no tekken.json"),
    ("control token behind the others", tekken(special_tokens=[{"rank": 3, "token_str": "x"}]), "first 3"),
    ("ranks out of order", tekken(vocab=tekken()["vocab"][::-1]), "place 0 has rank 4"),
    ("no bytes", tekken(vocab=[{"rank": rank, "token_bytes": "?"} for rank in range(4)]), "token 3 has no bytes"),
]


@pytest.mark.parametrize(
    ("contents", "message"), [row[1:] for row in REFUSED_TEKKENS], ids=[row[0] for row in REFUSED_TEKKENS]
)
def test_a_tekken_file_that_contradicts_itself_is_refused(contents, message):
    with pytest.raises(VocabularyError, match=message):
        read_tekken(contents)


def ranks(*tokens: bytes) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def test_ranks_are_ids_and_missing_ranks_are_holes():
    assert read_tiktoken(ranks(b"a", b"\xff", b" a") + b"YWI= 5\r\n").tokens == [
        b"a",
        b"\xff",
        b" a",
        None,
        None,
        b"ab",
    ]


REFUSED_RANKS = [
    ("no rank", b"YQ== 0\nYWI=\n", "line 2"),
    ("no base64", b"YQ== 0\n!!!! 1\n", "line 2"),
    ("a rank twice", b"YQ== 0\nYg== 0\n", "rank 0"),
    ("an enormous rank", b"YQ== 99999999999\n", "can't be used"),
    ("a token twice", b"YQ== 0\nYQ== 1\n", "twice"),
]


@pytest.mark.parametrize(("data", "message"), [row[1:] for row in REFUSED_RANKS], ids=[row[0] for row in REFUSED_RANKS])
def test_a_rank_file_that_contradicts_itself_is_refused(data, message):
    with pytest.raises(VocabularyError, match=message):
        read_tiktoken(data)


def read(directory, files: dict[str, object]) -> Vocabulary:
    directory.mkdir()
    for name, contents in files.items():
        data = contents if isinstance(contents, bytes) else json.dumps(contents).encode()
        (directory / name).write_bytes(data)
    return Vocabulary.from_tokenizer(directory, cache_directory=directory / "cache")


def bytes_of(vocabulary: Vocabulary) -> list[bytes | None]:
    return [vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)]


END = {"eos_token": "<end>", "added_tokens_decoder": {"4": {"content": "<end>", "special": True}}}


@pytest.mark.parametrize("name", ["o200k.tiktoken", "tokenizer.model"])
def test_control_tokens_of_a_rank_file_come_from_the_configuration_beside_it(tmp_path, name):
    config = {**END, "added_tokens_decoder": {**END["added_tokens_decoder"], "3": {"content": "<t>", "special": False}}}
    vocabulary = read(tmp_path / "model", {name: ranks(b"a", b"b"), "tokenizer_config.json": config})
    assert (bytes_of(vocabulary), vocabulary.stop_token_ids) == ([b"a", b"b", None, b"<t>", None], (4,))
    assert read(tmp_path / "alone", {name: ranks(b"a", b"b")}).stop_token_ids == ()


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model", "tokenizer.model.v3", "mistral.model"])
def test_a_sentencepiece_model_is_found_in_a_directory_and_completed_by_the_configuration(tmp_path, name):
    config = {
        "eos_token": "<end>",
        "pad_token": "a▁▁b",
        "added_tokens_decoder": {
            "5": {"content": "a▁▁b", "special": False},
            "8": {"content": "<end>", "special": True},
            "9": {"content": "▁x", "special": False},
        },
    }
    vocabulary = read(tmp_path / "model", {name: MODEL, "tokenizer_config.json": config})
    # The padding token controls something, although the file holds it for text.
    assert bytes_of(vocabulary)[3:] == [b"\n", b" a", None, "日".encode(), b"<0x0A>", None, b" x"]
    assert vocabulary.stop_token_ids == (8,)


def test_a_tekken_file_is_told_from_a_tokenizer_json_by_its_contents(tmp_path):
    for name in ("tekken.json", "tekken_240911.json", "tokenizer.json"):
        assert read(tmp_path / name, {name: tekken()}).size == 7


REFUSED_DIRECTORIES = [
    ("nothing", {"config.json": {}}, "has no tokenizer"),
    ("two of a kind", {"a.tiktoken": ranks(b"a"), "b.tiktoken": ranks(b"b")}, "has 2 files"),
    ("an eos that is no token", {"tokenizer.model": MODEL, "tokenizer_config.json": {"eos_token": "<x>"}}, "no token"),
    (
        "an added token over another",
        {
            "a.tiktoken": ranks(b"a", b"b"),
            "tokenizer_config.json": {"added_tokens_decoder": {"1": {"content": "<x>", "special": True}}},
        },
        "another token",
    ),
    (
        "an id without bounds",
        {
            "a.tiktoken": ranks(b"a"),
            "tokenizer_config.json": {"added_tokens_decoder": {str(1 << 40): {"content": "<x>", "special": True}}},
        },
        "has id",
    ),
    ("added tokens of unknown meaning", {"tokenizer.model": MODEL, "added_tokens.json": {"<x>": 8}}, "control token"),
    ("a text file", {"tokenizer.model": b"Some text, not a model\n"}, "no SentencePiece model"),
    ("a JSON list", {"tokenizer.json": b"[]"}, "no SentencePiece model"),
]


@pytest.mark.parametrize(
    ("files", "message"), [row[1:] for row in REFUSED_DIRECTORIES], ids=[row[0] for row in REFUSED_DIRECTORIES]
)
def test_a_directory_that_is_not_certain_is_refused(tmp_path, files, message):
    with pytest.raises(VocabularyError, match=message):
        read(tmp_path / "model", files)


def test_added_tokens_that_the_configuration_explains_are_no_riddle(tmp_path):
    files = {"tokenizer.model": MODEL, "added_tokens.json": {"<end>": 8}, "tokenizer_config.json": {}}
    files["tokenizer_config.json"] = {"added_tokens_decoder": {"8": {"content": "<end>", "special": True}}}
    assert read(tmp_path / "model", files).size == 9


def test_a_wordpiece_tokenizer_is_refused_because_its_text_is_not_its_tokens_bytes():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "new": 1, "##er": 2, "york": 3}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    # The reason: the same piece stands for "york" and for " york".
    assert (tokenizer.decode([3]), tokenizer.decode([1, 2, 3])) == ("york", "newer york")
    with pytest.raises(VocabularyError, match=r"WordPiece.*space before each piece"):
        Vocabulary.from_tokenizer(tokenizer)


def unigram(decoder):
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0], ["a", -2.0]]}
    return {"model": model, "decoder": decoder}


def sequence(*steps):
    return {"type": "Sequence", "decoders": list(steps)}


REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
REFUSED_DECODERS = [
    ("strips each token", sequence(REPLACE, STRIP, {"type": "Fuse"}), "strips more"),
    ("strips the end", sequence(REPLACE, {"type": "Fuse"}, {**STRIP, "stop": 1}), "strips more"),
    ("strips something else", sequence(REPLACE, {"type": "Fuse"}, {**STRIP, "content": "_"}), "strips more"),
    ("another space mark", {"type": "Metaspace", "replacement": "_"}, "neither"),
    ("two replacements", sequence(REPLACE, {**REPLACE, "content": ""}), "not understood together"),
    ("bytes and replacements", sequence(REPLACE, {"type": "ByteLevel"}), "not understood together"),
]


@pytest.mark.parametrize(
    ("decoder", "message"), [row[1:] for row in REFUSED_DECODERS], ids=[row[0] for row in REFUSED_DECODERS]
)
def test_a_decoder_whose_text_is_not_its_tokens_bytes_is_refused(decoder, message):
    with pytest.raises(VocabularyError, match=message):
        token_bytes_of(unigram(decoder))


def test_a_decoder_that_strips_the_beginning_of_the_whole_text_is_understood():
    assert token_bytes_of(unigram(sequence(REPLACE, {"type": "Fuse"}, STRIP))) == [None, b" a", b"a"]


@pytest.mark.full
def test_a_rank_file_is_the_vocabulary_that_the_tokenizer_json_of_the_same_model_is():
    ranks_, json_ = (Vocabulary.from_tokenizer(tokenizer_directory(name)) for name in ("o200k", "gpt4o"))
    assert ranks_ == json_
    assert ranks_.stop_token_ids == json_.stop_token_ids == (199_999,)


@pytest.mark.full
def test_a_sentencepiece_model_is_read_as_its_own_library_reads_it():
    from sentencepiece import SentencePieceProcessor

    directory = tokenizer_directory("mistral_v3")
    processor = SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    tokens = bytes_of(Vocabulary.from_tokenizer(directory))
    assert len(tokens) == processor.get_piece_size() == 32_768
    anchor = processor.piece_to_id("a")
    for token_id, token in enumerate(tokens):
        if processor.is_control(token_id) or processor.is_unknown(token_id):
            assert token is None
        else:
            # Behind another piece, where no leading space is taken away; half characters show as U+FFFD.
            assert token is not None
            assert processor.decode([anchor, token_id]) == "a" + token.decode("utf-8", "replace")


@pytest.mark.full
def test_a_tekken_file_is_read_as_its_own_library_reads_it():
    from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer

    directory = tokenizer_directory("tekken")
    library = Tekkenizer.from_file(directory / "tekken.json")
    vocabulary = Vocabulary.from_tokenizer(directory)
    assert (vocabulary.size, vocabulary.stop_token_ids) == (library.n_words, (library.eos_id,))
    for token_id, token in enumerate(bytes_of(vocabulary)):
        if token_id < library.num_special_tokens:
            assert token is None
        else:
            assert token == library.id_to_byte_piece(token_id, SpecialTokenPolicy.RAISE)
