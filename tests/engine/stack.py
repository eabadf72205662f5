"""Redis, a real vLLM with the processor, and the gateway, as three processes on this machine."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine_server import EngineServer
from maskfeed_cache.private_redis import PrivateRedis
from processes import ChildProcess, http_answers
from services import free_port, gateway_command

__all__ = ["Stack", "gateway", "gateway_process", "served_stack", "stack"]


@dataclass(frozen=True, slots=True)
class Stack:
    """Where the parts listen."""

    gateway_url: str
    engine_url: str
    redis_url: str
    model: str


@contextmanager
def gateway(engine_url: str, redis_url: str, *, group: str = "default", wait_ready: bool = True) -> Iterator[str]:
    """`maskfeed serve` in front of an engine; yields its URL, once it is ready (or alive, if that is enough)."""
    with gateway_process(engine_url, redis_url, group=group, wait_ready=wait_ready) as (url, _):
        yield url


@contextmanager
def gateway_process(
    engine_url: str, redis_url: str, *, group: str = "default", wait_ready: bool = True
) -> Iterator[tuple[str, ChildProcess]]:
    """The same, with its process."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*gateway_command(port, engine_url=engine_url, redis_url=redis_url), "--group", group]
    log = Path(tempfile.mkdtemp(prefix="maskfeed-gateway-")) / "gateway.log"
    with ChildProcess(
        "gateway", command, log_path=log, environment={"PYTHONPATH": EngineServer.python_path()}
    ) as child:
        child.wait_until(lambda: http_answers(f"{url}/{'ready' if wait_ready else 'health'}"), timeout_s=120)
        yield url, child


@contextmanager
def served_stack(*, group: str = "default") -> Iterator[Stack]:
    """The whole road, ready."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="mf-")))
        redis = opened.enter_context(PrivateRedis(folder / "redis"))
        settings = {"redis_url": redis.url, "group": group, "shm_dir": str(folder / "shm")}
        engine = opened.enter_context(EngineServer(maskfeed=settings))
        url = opened.enter_context(gateway(engine.url, redis.url, group=group))
        yield Stack(url, engine.url, redis.url, engine.model)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """One stack for the whole run."""
    with served_stack() as running:
        yield running
