"""Reading tokenizers of each kind, refusing what is not certain, and the automata kept on disk."""

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from maskfeed_automata import Vocabulary, load_tokenizer_automaton
from maskfeed_automata.errors import VocabularyError
from maskfeed_automata.tokenizer_automaton import TokenizerAutomaton
from maskfeed_automata.tokenizer_json import token_bytes_of
from vocabularies import HAND_TOKENS

BYTE_LEVEL = {
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "Ġ": 1, "Ġa": 2, "Ã": 3, "©": 4, "Ã©": 5, "Ċ": 6, "<s>": 7},
        "merges": [],
    },
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [
        {"id": 7, "content": "<s>", "special": True},
        {"id": 8, "content": "é", "special": False},
        {"id": 10, "content": "<tool>", "special": False},
    ],
}
BYTE_PIECES = {f"<0x{byte:02X}>": byte + 3 for byte in range(256)}
SENTENCE_PIECE = {
    "model": {
        "type": "BPE",
        "vocab": {
            "<unk>": 0,
            "<s>": 1,
            "</s>": 2,
            **BYTE_PIECES,
            "▁": 259,
            "▁a": 260,
            "a": 261,
            "�": 262,
            "Ġ": 263,
            "▁▁": 264,
        },
        "byte_fallback": True,
        "unk_token": "<unk>",
        "merges": [],
    },
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
    "added_tokens": [{"id": 2, "content": "</s>", "special": True}, {"id": 264, "content": "▁▁", "special": False}],
}


def changed(contents, **paths):
    """A copy with the items at dotted paths (two underscores) replaced."""
    result = deepcopy(contents)
    for path, value in paths.items():
        *parents, last = path.split("__")
        target = result
        for name in parents:
            target = target[name]
        target[last] = value
    return result


def test_byte_level_pieces_are_mapped_back_and_added_tokens_are_literal():
    assert token_bytes_of(BYTE_LEVEL) == [
        *(b"a", b" ", b" a", b"\xc3", b"\xa9", b"\xc3\xa9", b"\n", None),
        *("é".encode(), None, b"<tool>"),
    ]


def test_sentence_piece_spaces_and_byte_pieces():
    tokens = token_bytes_of(SENTENCE_PIECE, control_texts=["<s>"])
    assert tokens[:3] == [None, None, None]
    assert tokens[3:259] == [bytes([byte]) for byte in range(256)]
    assert tokens[259:] == [b" ", b" a", b"a", "\ufffd".encode(), "Ġ".encode(), b"  "]


def test_a_unigram_model_with_metaspace():
    contents = {
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0], ["a", -2.0]]},
        "decoder": {"type": "Metaspace"},
    }
    assert token_bytes_of(contents) == [None, b" a", b"a"]


REFUSED = [
    ("no model", {}, "no model"),
    ("WordPiece", changed(BYTE_LEVEL, model__type="WordPiece"), "WordPiece"),
    ("word ends", changed(BYTE_LEVEL, model__end_of_word_suffix="</w>"), "</w>"),
    ("no decoder", changed(BYTE_LEVEL, decoder=None), "no decoder"),
    ("unknown decoder step", changed(BYTE_LEVEL, decoder={"type": "CTC"}), "CTC"),
    ("byte-level decoder over SentencePiece pieces", changed(SENTENCE_PIECE, decoder={"type": "ByteLevel"}), "▁"),
    (
        "SentencePiece decoder over byte-level pieces",
        changed(BYTE_LEVEL, decoder=SENTENCE_PIECE["decoder"]),
        "byte-level",
    ),
    ("decoder without byte fallback", changed(SENTENCE_PIECE, decoder={"type": "Metaspace"}), "byte fallback"),
    ("model without byte fallback", changed(SENTENCE_PIECE, model__byte_fallback=False), "byte fallback"),
    ("a byte piece missing", changed(SENTENCE_PIECE, model__vocab={"▁a": 0, "<0x41>": 1}), "byte fallback"),
    ("replaces something else", changed(SENTENCE_PIECE, decoder={"type": "Replace", "content": "_"}), "neither"),
    ("an enormous id", changed(BYTE_LEVEL, model__vocab={"a": 2**40}), "at most"),
]


@pytest.mark.parametrize(("contents", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_tokenizer_that_is_not_certain_is_refused(contents, message):
    with pytest.raises(VocabularyError, match=message):
        token_bytes_of(contents)


def write_tokenizer(directory: Path, contents=BYTE_LEVEL, **config) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(contents))
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_a_directory_a_file_and_an_object_give_the_same_vocabulary(tmp_path):
    directory = write_tokenizer(tmp_path / "model", eos_token={"content": "<s>"})
    vocabularies = [
        Vocabulary.from_tokenizer(source, cache_directory=tmp_path / "cache")
        for source in (directory, str(directory / "tokenizer.json"), directory / "tokenizer.json")
    ]
    tokenizer = Tokenizer(models.BPE({**BYTE_LEVEL["model"]["vocab"]}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    assert tokenizer.add_tokens([AddedToken("é", normalized=False)]) == 1
    by_object = Vocabulary.from_tokenizer(tokenizer, cache_directory=tmp_path / "cache")
    assert len(set(vocabularies)) == 1
    assert vocabularies[0].stop_token_ids == (7,)
    assert vocabularies[0].limited_to(9) == by_object
    assert by_object.stop_token_ids == ()


def test_the_configuration_beside_the_file_makes_control_tokens(tmp_path):
    directory = write_tokenizer(
        tmp_path / "model",
        pad_token="<tool>",
        additional_special_tokens=["Ġa"],
        added_tokens_decoder={"12": {"content": "<x>", "special": True}, "13": {"content": "<y>", "special": False}},
    )
    vocabulary = Vocabulary.from_tokenizer(directory, cache_directory=tmp_path)
    assert vocabulary.control_token_ids().tolist() == [2, 7, 9, 10, 11, 12]
    assert vocabulary.token_bytes(13) == b"<y>"
    assert vocabulary.stop_token_ids == ()


def test_an_end_token_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(VocabularyError, match="</s>"):
        Vocabulary.from_tokenizer(write_tokenizer(tmp_path / "model", eos_token="</s>"), cache_directory=tmp_path)


@pytest.mark.parametrize("contents", [b"", b"[]", b"{", b"\xff"])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, contents):
    (tmp_path / "tokenizer.json").write_bytes(contents)
    with pytest.raises(VocabularyError):
        Vocabulary.from_tokenizer(tmp_path)


def test_what_is_no_tokenizer_is_refused(tmp_path):
    for source in (tmp_path / "nowhere", object(), 5):
        with pytest.raises(VocabularyError):
            Vocabulary.from_tokenizer(source)


def test_ids_beyond_the_logits_are_dropped(tmp_path):
    directory = write_tokenizer(tmp_path / "model", eos_token="<s>")
    vocabulary = Vocabulary.from_tokenizer(directory, logits_width=6, cache_directory=tmp_path)
    assert (vocabulary.size, vocabulary.stop_token_ids, vocabulary.token_bytes(6)) == (6, (), None)
    assert Vocabulary.from_tokenizer(directory, logits_width=100, cache_directory=tmp_path).size == 11
    with pytest.raises(VocabularyError):
        vocabulary.limited_to(-1)


def test_the_text_of_tokens():
    vocabulary = Vocabulary.from_token_bytes(HAND_TOKENS)
    assert vocabulary.text_bytes([9, 10, 23]) == b"foobar foo"
    assert vocabulary.text_bytes([]) == b""
    for token_id in (15, 22, -1, 26):
        with pytest.raises(VocabularyError) as caught:
            vocabulary.text_bytes([9, token_id])
        assert caught.value.context == {"token_id": token_id, "index": 1}


def test_a_fingerprint_covers_ids_and_bytes_and_not_stop_ids():
    base = Vocabulary.from_token_bytes([b"ab", b"c", None])
    same = [
        Vocabulary.from_token_bytes([b"ab", b"c", b""], stop_token_ids=[2]),
        Vocabulary.from_token_bytes([b"ab", b"c", None, b"d"]).limited_to(3),
    ]
    other = [[b"a", b"bc", None], [b"c", b"ab", None], [b"ab", b"c"], [b"ab", b"c", None, None], [None, b"ab", b"c"]]
    assert {base, *same} == {base}
    assert len({base, *map(Vocabulary.from_token_bytes, other)}) == 6
    assert base != "something else"
    assert base.fingerprint[:12] in repr(base)
    with pytest.raises(VocabularyError):
        Vocabulary.from_token_bytes([b"a"], stop_token_ids=[1])


def test_an_automaton_is_built_once_and_then_read_from_disk(tmp_path, monkeypatch):
    built = []
    build = TokenizerAutomaton.build
    monkeypatch.setattr(TokenizerAutomaton, "build", lambda *arguments: built.append(1) or build(*arguments))
    directory = tmp_path / "cache"
    first = load_tokenizer_automaton(Vocabulary.from_token_bytes(HAND_TOKENS), cache_directory=directory)
    (path,) = directory.iterdir()
    second = load_tokenizer_automaton(Vocabulary.from_token_bytes(HAND_TOKENS), cache_directory=directory)
    assert len(built) == 1
    assert first.cells.tolist() == second.cells.tolist()
    assert (first.n_nodes, first.nbytes, first.longest) == (second.n_nodes, second.nbytes, 4)

    for damaged in (b"", path.read_bytes()[:-1], path.read_bytes()[:-1] + b"\x07", b"x" * 500):
        path.write_bytes(damaged)
        built.clear()
        third = load_tokenizer_automaton(Vocabulary.from_token_bytes(HAND_TOKENS), cache_directory=directory)
        assert (len(built), third.cells.tolist()) == (1, first.cells.tolist())
    built.clear()
    warm = Vocabulary.from_token_bytes(HAND_TOKENS)
    assert load_tokenizer_automaton(warm, cache_directory=directory) is load_tokenizer_automaton(warm)
    assert not built
    assert list(directory.iterdir()) == [path]


def test_another_vocabularys_automaton_is_not_used(tmp_path):
    vocabularies = [Vocabulary.from_token_bytes(tokens) for tokens in ([b"a", b"b"], [b"a", b"c"])]
    for vocabulary in vocabularies:
        load_tokenizer_automaton(vocabulary, cache_directory=tmp_path)
    paths = [tmp_path / f"{vocabulary.fingerprint}.tokenizer" for vocabulary in vocabularies]
    paths[0].write_bytes(paths[1].read_bytes())
    again = Vocabulary.from_token_bytes([b"a", b"b"])
    assert load_tokenizer_automaton(again, cache_directory=tmp_path).label.tolist() == [0, ord("a"), ord("b")]


def test_a_cache_that_cant_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    automaton = load_tokenizer_automaton(
        Vocabulary.from_token_bytes([b"a"]), cache_directory=tmp_path / "file" / "below"
    )
    assert automaton.n_nodes == 2


def test_a_vocabulary_without_any_bytes_has_an_automaton():
    assert Vocabulary.from_token_bytes([None, None]).tokenizer_automaton.n_nodes == 1


def test_the_default_directory_follows_the_environment(tmp_path):
    program = (
        "from maskfeed_automata import Vocabulary, load_tokenizer_automaton\n"
        "load_tokenizer_automaton(Vocabulary.from_token_bytes([b'a']))"
    )
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    (path,) = (tmp_path / "maskfeed").iterdir()
    assert path.suffix == ".tokenizer"


def test_digest_and_artifact_do_not_depend_on_the_hash_seed():
    program = (
        "import hashlib, maskfeed_automata as m\n"
        "v = m.Vocabulary.from_token_bytes([bytes([b]) for b in range(256)] + [b'ab', b'abc', b'c', b'a'])\n"
        "a = m.compile(v, {f'ab{k % 7}c{k}' for k in range(300)} and [f'ab{k % 7}c{k}' for k in {*range(300)}])\n"
        "t = v.tokenizer_automaton.to_bytes(v.fingerprint)\n"
        "print(v.fingerprint, a.digest, hashlib.sha256(a.to_bytes() + t).hexdigest())"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(outputs) == 1
