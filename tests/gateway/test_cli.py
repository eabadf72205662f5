"""The command: its output, its exit codes, and a gateway in a process of its own."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
import redis
from click.testing import CliRunner
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from fake_engine import VOCABULARY
from gateway_process import SOURCE_ROOTS, an_engine, served
from maskfeed import CandidateSet, Vocabulary, __version__
from maskfeed.cli import main
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed

NAMES = ["Paris", "London", "東京"]


@pytest.fixture
def command(monkeypatch):
    """Run `maskfeed` with arguments in an environment without settings."""
    for variable in [name for name in os.environ if name.startswith("MASKFEED_")]:
        monkeypatch.delenv(variable)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A byte-level tokenizer of 257 tokens on disk."""
    alphabet = sorted(ByteLevel.alphabet())
    model = Tokenizer(BPE({**{token: i for i, token in enumerate(alphabet)}, "Pa": 256}, [("P", "a")]))
    model.pre_tokenizer = ByteLevel(add_prefix_space=False)
    model.decoder = ByteLevelDecoder()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    model.save(str(path))
    return path


@pytest.fixture
def candidates(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("\n".join([*NAMES, "Paris"]) + "\n")
    return path


def test_the_version_is_that_of_the_package(command):
    assert __version__ in command("--version").output


def test_importing_the_library_loads_no_server_no_driver_and_no_engine():
    unwanted = {"aiohttp", "redis", "ray", "torch", "vllm", "prometheus_client"}
    program = f"import sys, maskfeed; print(*{unwanted} & {{*sys.modules}})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCE_ROOTS)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_compiled_set_is_described_and_written_and_can_be_inspected(command, tokenizer, candidates, tmp_path):
    artifact = tmp_path / "names.mf"
    result = command("compile", "--tokenizer", tokenizer, "--candidates", candidates, "--output", artifact, "--json")
    assert result.exit_code == 0, result.output
    compiled = json.loads(result.stdout)
    fingerprint = Vocabulary.from_tokenizer(tokenizer).fingerprint
    assert compiled["digest"] == CandidateSet.from_strings(NAMES).digest(fingerprint, "never")
    assert (compiled["candidates"], compiled["duplicates"]) == (3, 1)
    assert compiled["artifact_bytes"] == artifact.stat().st_size
    assert compiled["compile_ms"] > 0
    result = command("inspect", artifact, "--tokenizer", tokenizer, "--json")
    assert result.exit_code == 0, result.output
    inspected = json.loads(result.stdout)
    assert inspected.items() <= compiled.items()


def test_a_list_can_be_inspected_for_what_looks_alike_or_does_not_show(command, tokenizer, tmp_path):
    path = tmp_path / "names.json"
    path.write_text(json.dumps(["Paris", "paris", "Paris\u200b", "Lon\u00a0don", "Paris"]))
    result = command("inspect", "--tokenizer", tokenizer, "--candidates", path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["candidates"], found["duplicates"]) == (4, 1)
    assert found["near_duplicates"]["case"] == [[{"index": 0, "text": "Paris"}, {"index": 1, "text": "paris"}]]
    assert [(row["index"], row["kinds"]) for row in found["odd_characters"]] == [
        (2, ["zero-width"]),
        (3, ["other-space"]),
    ]
    assert "explanation" not in found
    lines = command("inspect", "--tokenizer", tokenizer, "--candidates", path).stdout
    assert '[2] "Paris\\u200b" zero-width' in lines
    assert '[0] "Paris" [1] "paris"' in lines


def test_a_text_is_explained_by_the_masks_on_its_way(command, tokenizer, candidates):
    arguments = ("inspect", "--tokenizer", tokenizer, "--candidates", candidates, "--text")
    found = json.loads(command(*arguments, "Parix", "--json").stdout)["explanation"]
    assert (found["outcome"], found["reachable"], found["continuations"]) == ("outside", "Pari", ["Paris"])
    assert [step["taken"] and step["taken"]["text"] for step in found["steps"]] == ["Pa", "r", "i", None]
    lines = command(*arguments, "Parix").stdout
    assert "outside, no candidate begins with 'Parix'" in lines
    assert 'mask 3: 1 tokens "s"' in lines
    lines = command(*arguments, "PARIS").stdout
    assert '[0] "Paris" differs only in case' in lines
    assert "candidate 2 of the list" in command(*arguments, "東京").stdout
    assert "candidate 0 of the list" in command(*arguments, " Paris", "--leading-space", "optional").stdout


def test_either_an_artifact_or_a_list_is_inspected(command, tokenizer, candidates):
    assert command("inspect", "--tokenizer", tokenizer).exit_code == 2
    assert command("inspect", candidates, "--tokenizer", tokenizer, "--candidates", candidates).exit_code == 2
    assert command("inspect", candidates, "--tokenizer", tokenizer, "--text", "x").exit_code == 2


def test_a_list_in_a_json_file_may_hold_line_breaks(command, tokenizer, tmp_path):
    path = tmp_path / "names.json"
    path.write_text(json.dumps(["a\nb", "c"]))
    result = command("compile", "--tokenizer", tokenizer, "--candidates", path)
    assert result.exit_code == 0
    assert "candidates      2" in result.output


def test_bad_candidates_are_a_failure_on_stderr(command, tokenizer, tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("a\n\nb\n")
    result = command("compile", "--tokenizer", tokenizer, "--candidates", path, "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "Error" in result.stderr


def test_an_artifact_that_is_none_is_a_failure(command, tokenizer, candidates):
    result = command("inspect", candidates, "--tokenizer", tokenizer)
    assert result.exit_code == 1
    assert "Error" in result.stderr


@pytest.mark.parametrize(("name", "text"), [("names.json", '{"a": 1}'), ("names.json", "[1"), ("names.txt", b"\xff")])
def test_a_candidate_file_that_can_not_be_read_is_a_wrong_option(command, tokenizer, tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert command("compile", "--tokenizer", tokenizer, "--candidates", path).exit_code == 2


def test_a_missing_option_is_exit_code_2(command):
    assert command("compile").exit_code == 2
    assert command("nothing").exit_code == 2


def test_a_wrong_setting_is_exit_code_2_and_named(command, monkeypatch):
    monkeypatch.setenv("MASKFEED_PORT", "http")
    result = command("doctor")
    assert result.exit_code == 2
    assert "MASKFEED_PORT" in result.stderr


def test_the_doctor_says_what_is_missing(command):
    result = command("doctor", "--json", "--upstream", "http://127.0.0.1:9", "--redis-url", "unix:///nowhere/at/all")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert not report["ok"]
    missing = {name for name, check in report["checks"].items() if not check["ok"]}
    assert missing == {"upstream", "redis", "engines"}
    assert report["checks"]["python"]["ok"]
    assert report["versions"]["maskfeed"] == __version__


def test_the_doctor_looks_for_a_redis_program_where_no_url_is_given(command):
    result = command("doctor", "--upstream", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "ok      redis-server" in result.output
    assert "engines and masks not looked at: give --redis-url" in result.output
    assert "MISSING upstream" in result.output


async def test_the_doctor_is_content_where_everything_runs(redis_url, command):
    async with an_engine(redis_url) as engine:
        result = await asyncio.to_thread(
            command, "doctor", "--json", "--upstream", engine.url, "--redis-url", redis_url
        )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report["checks"]) == {"python", "vllm", "redis", "upstream", "engines", "vocabulary", "masks"}
    assert engine.record.epoch in report["checks"]["engines"]["detail"]
    assert f"{VOCABULARY.size} ids" in report["checks"]["vocabulary"]["detail"]


async def test_the_doctor_finds_an_engine_that_runs_without_masks(redis_url, command):
    async with an_engine(redis_url) as engine:
        engine.faults.has_no_plugin = True
        result = await asyncio.to_thread(command, "doctor", "--upstream", engine.url, "--redis-url", redis_url)
    assert result.exit_code == 1
    assert "MISSING masks" in result.output
    assert "runs without maskfeed" in result.output


async def test_the_doctor_finds_a_vocabulary_that_is_gone(redis_url, command):
    async with an_engine(redis_url) as engine:
        client = redis.Redis.from_url(redis_url, protocol=2)
        client.delete(Keyspace().vocabulary(engine.record.fingerprint))
        client.close()
        result = await asyncio.to_thread(command, "doctor", "--upstream", engine.url, "--redis-url", redis_url)
    assert result.exit_code == 1
    assert "MISSING vocabulary" in result.output
    assert "masks" not in result.output


def test_the_doctor_does_not_accept_a_redis_that_drops_what_it_likes(redis_url, command):
    client = redis.Redis.from_url(redis_url, protocol=2)
    try:
        client.config_set("maxmemory-policy", "allkeys-lru")
        result = command("doctor", "--upstream", "http://127.0.0.1:9", "--redis-url", redis_url)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.close()
    assert "MISSING redis: " in result.output
    assert "noeviction" in result.output


def test_the_doctor_looks_for_ray_where_it_compiles(command):
    result = command("doctor", "--json", "--upstream", "http://127.0.0.1:9", "--compiler", "ray")
    assert "will start a cluster" in json.loads(result.stdout)["checks"]["ray"]["detail"]
    result = command("doctor", "--upstream", "http://127.0.0.1:9", "--compiler", "ray", "--ray-address", "127.0.0.1:1")
    assert "MISSING ray: no Ray cluster answers at 127.0.0.1:1" in result.output


async def test_a_gateway_that_is_told_to_stop_lets_running_requests_end(redis_url):
    body = {"model": "fake", "prompt": "x", "candidates": NAMES}
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(an_engine(redis_url))
        gateway = await stack.enter_async_context(served("--redis-url", redis_url, "--upstream", engine.url))
        url = await asyncio.to_thread(gateway.read_until, "MASKFEED_URL")
        assert "MASKFEED_REDIS_URL" not in gateway.printed, "it may hold a password"
        session = await stack.enter_async_context(aiohttp.ClientSession(url))
        await asyncio.to_thread(gateway.log_until, "group-ready")
        engine.faults.hangs = True
        running = asyncio.create_task(session.post("/v1/completions", json=body))
        await engine.until(lambda seen: len(seen.requests) == 2)
        gateway.ask_to_stop()
        await asyncio.to_thread(gateway.log_until, "draining")
        engine.let_go.set()
        response = await running
        assert (await response.json())["maskfeed"]["candidate"] in NAMES
        code, log = await asyncio.to_thread(gateway.wait)
    assert code == 0
    assert "event=stopped" in log


async def test_without_a_redis_url_a_private_redis_is_started_printed_and_swept(tmp_path_factory):
    directory = tmp_path_factory.mktemp("r")
    async with served(XDG_RUNTIME_DIR=str(directory)) as gateway:
        url = await asyncio.to_thread(gateway.read_until, "MASKFEED_URL")
        redis_url = gateway.printed["MASKFEED_REDIS_URL"]
        assert redis_url.startswith("unix://")
        async with an_engine(redis_url) as engine, aiohttp.ClientSession(url) as session:
            assert engine.record.epoch
            response = await session.get("/ready")
            assert response.status == 503
        server = redis_process(redis_url)
        watchdog = parent_of(server)
        gateway.ask_to_stop()
        code, _ = await asyncio.to_thread(gateway.wait)
    assert code == 0
    # the watchdog is waited for before the gateway ends, and it ends after the server
    assert not is_known(watchdog)
    assert not is_known(server)
    assert not (directory / "maskfeed" / "redis.sock").exists()


async def test_a_private_redis_that_is_killed_is_started_again_and_the_engine_registers_again(tmp_path_factory):
    async with served(XDG_RUNTIME_DIR=str(tmp_path_factory.mktemp("r"))) as gateway:
        await asyncio.to_thread(gateway.read_until, "MASKFEED_URL")
        redis_url = gateway.printed["MASKFEED_REDIS_URL"]
        feed = RedisGatewayFeed(redis_url, Keyspace())
        async with an_engine(redis_url) as engine:
            assert await feed.engines() == [engine.record]
            first = redis_process(redis_url)
            os.kill(first, signal.SIGKILL)
            await asyncio.to_thread(gateway.log_until, "private-redis-restarted")
            assert redis_process(redis_url) != first
            async with asyncio.timeout(30):
                # each turn is a round trip
                while await feed.engines() != [engine.record]:
                    pass
        await feed.close()


async def test_a_private_redis_that_can_not_be_started_again_ends_the_gateway_with_one_line(tmp_path_factory):
    directory = tmp_path_factory.mktemp("r")
    async with served(XDG_RUNTIME_DIR=str(directory)) as gateway:
        await asyncio.to_thread(gateway.read_until, "MASKFEED_URL")
        server = redis_process(gateway.printed["MASKFEED_REDIS_URL"])
        shutil.rmtree(directory)
        os.kill(server, signal.SIGKILL)
        code, log = await asyncio.to_thread(gateway.wait)
    assert code == 1
    assert log.count("Error: ") == 1
    assert "the private redis-server ended with status" in log
    assert "Traceback" not in log


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def is_known(pid):
    """Whether there is such a process, be it one that has ended and was not reaped."""
    return Path(f"/proc/{pid}").exists()


def redis_process(url):
    with redis.Redis.from_url(url, protocol=2) as client:
        return int(client.info("server")["process_id"])


@pytest.mark.parametrize("url", ["bogus://", "localhost:6379", "redis://host:port"])
def test_a_redis_url_that_is_none_is_a_wrong_setting_and_is_not_printed_as_if_good(command, monkeypatch, url):
    monkeypatch.setenv("MASKFEED_REDIS_URL", url)
    result = command("serve")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "MASKFEED_REDIS_URL" in result.stderr


async def test_an_address_that_can_not_be_listened_on_is_exit_code_1():
    async with served("--redis-url", "unix:///nowhere", "--host", "256.0.0.1") as gateway:
        code, log = await asyncio.to_thread(gateway.wait)
    assert code == 1
    assert "Error" in log
    assert "Traceback" not in log
