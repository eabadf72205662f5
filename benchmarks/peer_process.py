"""Peers of two ages, each asked in a process of its own, so that one that takes minutes, or dies, can be given up.

`pinned` are the versions that vLLM pins, in the environment that runs the benchmark. `latest` are the newest on PyPI,
in an environment under `.cache/peers` that is made on first use and sees torch and transformers of this one.
"""

import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any

__all__ = ["AGES", "GIVE_UP_S", "PEERS", "Peer", "latest_python", "peers_of"]

PEERS = ("xgrammar", "llguidance-enum", "llguidance-terminal")
AGES = ("pinned", "latest")
GIVE_UP_S = 60.0
# Importing the peer, torch and transformers, and reading the tokenizer, on a busy machine.
_START_S = 180.0
_HERE = Path(__file__).resolve().parent
_ENVIRONMENT = _HERE.parent / ".cache" / "peers"


def latest_python(*, upgrade: bool) -> Path:
    """Python of the environment with the newest peers; made if it is missing, brought up to date if asked."""
    python = _ENVIRONMENT / "bin" / "python"
    made = _ENVIRONMENT / ".made"
    if made.exists() and not upgrade:
        return python
    print("installing the latest xgrammar and llguidance into .cache/peers (5 MB)", file=sys.stderr, flush=True)
    venv.create(_ENVIRONMENT, with_pip=False)
    (target,) = _ENVIRONMENT.glob("lib/python*/site-packages")
    # Searched after the environment's own packages: all that is not installed here comes from there.
    (target / "benchmark.pth").write_text(sysconfig.get_path("purelib") + "\n")
    packages = ["xgrammar", "llguidance", "apache-tvm-ffi"]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--ignore-installed", "--upgrade", *packages], check=True, stdout=sys.stderr)
    made.touch()
    return python


def peers_of(names: Sequence[str], ages: Sequence[str], *, upgrade: bool) -> "list[Peer]":
    """Every named peer in every named age; none is started yet."""
    peers = []
    for age in ages:
        python = Path(sys.executable) if age == "pinned" else latest_python(upgrade=upgrade)
        peers.extend(Peer(name, age, python) for name in names)
    return peers


@dataclass(slots=True)
class Peer:
    """One peer; started when it is first asked, and again after it was given up."""

    name: str
    age: str
    python: Path
    version: str = ""
    _process: subprocess.Popen[str] | None = None

    def ask(self, what: str, **question: Any) -> dict[str, Any]:
        """Its answer, with `peer`, `age` and `version`; `gave_up` in it if there is none."""
        try:
            if self._process is None:
                self.version = self._start()["version"]
            answer = self._exchange(json.dumps({"what": what, **question}), GIVE_UP_S)
        except _NoAnswer as reason:
            self.close()
            answer = {"gave_up": str(reason)}
        return {"peer": self.name, "age": self.age, "version": self.version, **answer}

    def close(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> dict[str, Any]:
        self._process = subprocess.Popen(
            [str(self.python), str(_HERE / "peers.py"), self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self._exchange(None, _START_S)

    def _exchange(self, line: str | None, limit_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        if line is not None:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        if not select([process.stdout], [], [], limit_s)[0]:
            raise _NoAnswer(f"more than {limit_s:.0f} s")
        answer = process.stdout.readline()
        if not answer:
            raise _NoAnswer(f"its process ended with {process.wait()}")
        result: dict[str, Any] = json.loads(answer)
        return result


class _NoAnswer(Exception):
    """Too late, or dead."""
