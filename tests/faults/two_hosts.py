"""One engine over two hosts, each a network namespace with a shared memory of its own; a program, not a test.

    unshare --user --map-root-user --net --mount python two_hosts.py FOLDER MODEL

The namespace it is started in is host A (10.97.0.1: Redis, vLLM's first node, the client), a child of it is host B
(10.97.0.2: vLLM's second node). They share files, as hosts with a network filesystem do, and no memory. The last line
is JSON: what was observed.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis as redis_driver

from direct_client import DirectClient
from divergence import FOLDER_VARIABLE, read_counts
from maskfeed_cache.private_redis import find_redis_server
from processes import ChildProcess, http_answers
from services import ENGINE_ENVIRONMENT

HOST_A, HOST_B = "10.97.0.1", "10.97.0.2"
REDIS_URL = f"redis://{HOST_A}:6379/0"
ENGINE_PORT = 8_000
N_SETS = 60

# `vllm serve` without its entry point, which looks for a distribution named vllm
SERVE = """
from vllm.entrypoints.cli.serve import ServeSubcommand, make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    ServeSubcommand.cmd(make_arg_parser(FlexibleArgumentParser()).parse_args())
"""
# Waits for its end of the cable, then becomes the host's program.
BECOME_HOST_B = f"""
echo here > "$0"
read cable
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
ip addr add {HOST_B}/24 dev "$cable"
ip link set "$cable" up
exec "$@"
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def node(script: Path, model: Path, rank: int) -> list[str]:
    settings = {"maskfeed": {"redis_url": REDIS_URL, "shm_dir": "/dev/shm/maskfeed"}}
    command = [sys.executable, str(script), "--model", str(model), "--served-model-name", model.name]
    command += ["--host", "127.0.0.1", "--port", str(ENGINE_PORT), "--enforce-eager", "--max-model-len", "512"]
    command += ["--max-num-seqs", "16", "--tensor-parallel-size", "2", "--distributed-executor-backend", "mp"]
    command += ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", HOST_A, "--master-port", "29500"]
    command += ["--logits-processors", "divergence:CheckedProcessor", "--additional-config", json.dumps(settings)]
    return [*command, *(["--headless"] if rank else [])]


def environment(folder: Path, rank: int) -> dict[str, str]:
    place = {
        "VLLM_HOST_IP": (HOST_A, HOST_B)[rank],
        "GLOO_SOCKET_IFNAME": ("cable-a", "cable-b")[rank],
        "VLLM_CPU_OMP_THREADS_BIND": str(rank),
    }
    return {**ENGINE_ENVIRONMENT, FOLDER_VARIABLE: str(folder), **place}


@contextmanager
def host_b(command: list[str], folder: Path) -> Iterator[subprocess.Popen]:
    """Host B, connected to this one and running `command`; gone with everything in it at the end."""
    here = folder / "here"
    os.mkfifo(here)
    with (folder / "b.log").open("wb") as log:
        child = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", BECOME_HOST_B, str(here), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | environment(folder, 1),
            start_new_session=True,
        )
    try:
        here.read_bytes()
        run("ip", "link", "add", "cable-a", "type", "veth", "peer", "name", "cable-b", "netns", str(child.pid))
        run("ip", "addr", "add", f"{HOST_A}/24", "dev", "cable-a")
        run("ip", "link", "set", "cable-a", "up")
        child.stdin.write(b"cable-b\n")
        child.stdin.close()
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


async def drive() -> dict:
    waits_ms = []
    async with DirectClient(f"http://127.0.0.1:{ENGINE_PORT}", REDIS_URL) as client:
        client.artifact(["a first one"])  # loads the kernels here, which is none of the engine's time
        for number in range(N_SETS):
            names = [f"place {number} number {member}" for member in range(200)]
            began = time.perf_counter()
            handle = await client.ready(names)
            waits_ms.append((time.perf_counter() - began) * 1e3)
            status, answer = await client.complete(handle, temperature=1)
            assert (status, answer["choices"][0]["text"] in names) == (200, True), answer
            await client.end(handle)
        status, answer = await client.complete(client.handle("f" * 64))
        refused = client.is_refusal(answer["choices"][0])
        return {"waits_ms": sorted(waits_ms), "unknown_is_refused": refused, "n_ranks": client.record.n_ranks}


def main(folder: Path, model: Path) -> None:
    script = folder / "serve.py"
    script.write_text(SERVE)
    run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    run("ip", "link", "set", "lo", "up")
    with ExitStack() as opened:
        opened.enter_context(host_b(node(script, model, 1), folder))
        server = [find_redis_server(), "--bind", HOST_A, "--protected-mode", "no", "--save", ""]
        opened.enter_context(ChildProcess("redis", server, log_path=folder / "redis.log")).wait_until(
            redis_answers, timeout_s=30
        )
        engine = ChildProcess(
            "vLLM", node(script, model, 0), log_path=folder / "a.log", environment=environment(folder, 0)
        )
        opened.enter_context(engine).wait_until(
            lambda: http_answers(f"http://127.0.0.1:{ENGINE_PORT}/health"), timeout_s=300
        )
        observed = asyncio.run(drive())
        observed["owners_on_host_a"] = len(list(Path("/dev/shm/maskfeed").glob("owner-*")))
        observed["counts"] = read_counts(folder)
        connections = subprocess.run(["ss", "-tnH", "state", "established"], capture_output=True, text=True, check=True)
        observed["connections"] = [line.split()[2:4] for line in connections.stdout.splitlines()]
    print("\n" + json.dumps(observed))


def redis_answers() -> bool:
    try:
        return bool(redis_driver.Redis(HOST_A, socket_connect_timeout=1).ping())
    except redis_driver.RedisError:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
