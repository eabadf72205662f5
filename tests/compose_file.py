"""docker-compose.yml read as Docker reads it, and its services run natively: their commands, environments and health
checks as they stand, with every `host:port` of the file moved to a free port of this machine.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from engine_server import EngineServer
from maskfeed_cache.private_redis import find_redis_server
from processes import ChildProcess
from services import ENGINE_ENVIRONMENT, free_port

__all__ = ["REPOSITORY", "Service", "read_compose", "read_environment_file", "running_natively"]

REPOSITORY = Path(__file__).resolve().parents[1]

_VARIABLE = re.compile(r"\$\{(\w+)(?::(-|\?)([^}]*))?\}")


@dataclass(frozen=True)
class Service:
    """What of a service concerns its process."""

    name: str
    command: list[str]
    environment: dict[str, str]
    health_check: list[str]
    # name -> whether it must be there
    depends_on: dict[str, bool]
    profiles: list[str]
    settings: Mapping[str, Any]


def read_environment_file(path: Path) -> dict[str, str]:
    """NAME=value lines."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def read_compose(variables: Mapping[str, str]) -> dict[str, Service]:
    """The services by name, `variables` put in.

    Raises:
        KeyError: a variable that must be set is not.
    """
    document = _substituted(yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"], variables)
    return {
        name: Service(
            name=name,
            command=[*settings.get("entrypoint", []), *settings["command"]],
            environment={key: str(value) for key, value in settings.get("environment", {}).items()},
            health_check=settings["healthcheck"]["test"],
            depends_on={key: value.get("required", True) for key, value in settings.get("depends_on", {}).items()},
            profiles=settings.get("profiles", []),
            settings=settings,
        )
        for name, settings in document.items()
    }


def _substituted(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _substituted(member, variables) for key, member in value.items()}
    if isinstance(value, list):
        return [_substituted(member, variables) for member in value]
    if not isinstance(value, str):
        return value

    def put_in(match: re.Match[str]) -> str:
        name, kind, text = match.groups()
        if variables.get(name):
            return variables[name]
        if kind == "-":
            return str(text)
        raise KeyError(f"{name}: {text}")

    return _VARIABLE.sub(put_in, value)


@contextmanager
def running_natively(
    services: Sequence[Service], folder: Path, *, timeout_s: float
) -> Iterator[Callable[[str, int], str]]:
    """Start each service when those that it depends on are healthy.

    Yields:
        A function from a service's name and a port of the file to where that is on this machine.

    Args:
        services: of one profile.
        folder: for logs, and for the commands by the names that images have for them.
        timeout_s: bound of each start.
    """
    places = _Places(services)
    path = f"{_commands(folder / 'bin')}{os.pathsep}{os.environ['PATH']}"
    present = {service.name for service in services}
    waiting, healthy = list(services), set[str]()
    with ExitStack() as stack:
        # short, because sockets lie in it
        marker = stack.enter_context(tempfile.TemporaryDirectory(prefix="mf-"))
        stack.callback(_kill_all_with, marker)
        while waiting:
            service = next(s for s in waiting if present.intersection(s.depends_on) <= healthy)
            waiting.remove(service)
            environment = {
                **ENGINE_ENVIRONMENT,
                "PYTHONPATH": EngineServer.python_path(),
                "PATH": path,
                "RAY_TMPDIR": marker,
                **{key: places.moved(value, service) for key, value in service.environment.items()},
            }
            command = [places.moved(word, service) for word in service.command]
            child = stack.enter_context(
                ChildProcess(service.name, command, log_path=folder / f"{service.name}.log", environment=environment)
            )
            check = [places.moved(word, service) for word in service.health_check]
            assert check.pop(0) == "CMD"
            child.wait_until(lambda: _succeeds(check, environment), timeout_s=timeout_s)  # noqa: B023 (called at once)
            healthy.add(service.name)
        yield places.place


class _Places:
    """Where the addresses of the file are on this machine."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._names = {service.name: service.name for service in services}
        for service in services:
            for alias in service.settings.get("networks", {}).get("default", {}).get("aliases", []):
                self._names[alias] = service.name
        self._ports: dict[tuple[str, str], int] = {}

    def place(self, name: str, port: int) -> str:
        """Where a port of a service is."""
        return f"127.0.0.1:{self._port(self._names[name], str(port))}"

    def moved(self, text: str, service: Service) -> str:
        """The text with other addresses: of services by their names, of its own by `127.0.0.1` or `--port`."""
        names = "|".join(sorted(self._names, key=len, reverse=True))
        text = re.sub(rf"(?<![\w-])({names}):(\d+)", lambda m: self.place(m[1], int(m[2])), text)
        text = re.sub(r"(?<![\d.])127\.0\.0\.1:(\d+)(?=/|$)", lambda m: self._own(m[0], service, m[1]), text)
        text = re.sub(r"(--port[= ])(\d+)", lambda m: f"{m[1]}{self._port(service.name, m[2])}", text)
        # an argument of its own behind `--port` or `-p`
        return str(self._port(service.name, text)) if re.fullmatch(r"\d{4,5}", text) else text

    def _own(self, address: str, service: Service, port: str) -> str:
        # moved already, as a place of another service
        return address if int(port) in self._ports.values() else f"127.0.0.1:{self._port(service.name, port)}"

    def _port(self, name: str, port: str) -> int:
        if (name, port) not in self._ports:
            self._ports[name, port] = free_port()
        return self._ports[name, port]


def _commands(folder: Path) -> Path:
    """The commands that the images have, in a folder for PATH."""
    folder.mkdir(parents=True)
    scripts = Path(sys.executable).parent
    redis_server = Path(find_redis_server())
    for name, target in {
        "python3": Path(sys.executable),
        "ray": scripts / "ray",
        "redis-server": redis_server,
        "redis-cli": redis_server.with_name("redis-cli"),
    }.items():
        _script(folder / name, f'exec "{target}" "$@"')
    _script(folder / "maskfeed", f'exec "{sys.executable}" -m maskfeed.cli "$@"')
    assert shutil.which("curl"), "the engine's health check uses curl"
    return folder


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _kill_all_with(temporary_directory: str) -> None:
    """End what `ray start` has left in the background: the processes that were given this directory."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("RAY_TMPDIR") == temporary_directory:
                process.kill()
        except psutil.Error:
            # of somebody else, or gone
            continue


def _succeeds(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    try:
        finished = subprocess.run(command, env=os.environ | environment, capture_output=True, timeout=30)
    except subprocess.TimeoutExpired:
        return False
    return finished.returncode == 0
