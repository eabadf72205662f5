"""docker-compose.yml: complete, and its services work together. Docker itself is not needed."""

import json
import urllib.request
from pathlib import Path

import pytest

from compose_file import REPOSITORY, read_compose, read_environment_file, running_natively
from model_files import smollm2_directory

EXAMPLE = read_environment_file(REPOSITORY / ".env.example")
VARIABLES = {**EXAMPLE, "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
NAMES = ["Paris", "London", "Rio de Janeiro", "東京"]


def test_the_example_of_an_environment_file_names_every_variable_of_the_file():
    assert read_compose(VARIABLES)
    with pytest.raises(KeyError, match="RAY_AUTH_TOKEN"):
        read_compose(EXAMPLE)
    text = (REPOSITORY / "docker-compose.yml").read_text()
    unused = {name for name in EXAMPLE if f"${{{name}" not in text}
    # read by docker compose itself
    assert unused == {"COMPOSE_PROFILES"}


def test_every_service_has_a_health_check_and_what_is_built_can_be_built():
    services = read_compose(VARIABLES)
    assert set(services) == {"redis", "ray-head", "ray-worker", "vllm", "vllm-cpu", "gateway"}
    for service in services.values():
        assert service.health_check[0] == "CMD"
        build = service.settings.get("build")
        if build is not None:
            assert (REPOSITORY / build["context"] / build["dockerfile"]).is_file()
        else:
            assert ":" in service.settings["image"]
        assert set(service.depends_on) <= set(services)


def test_each_profile_has_one_engine_under_the_name_that_the_gateway_knows():
    services = read_compose(VARIABLES)
    assert services["vllm"].profiles == ["gpu"]
    assert services["vllm-cpu"].profiles == ["cpu"]
    assert services["vllm-cpu"].settings["networks"]["default"]["aliases"] == ["vllm"]
    assert services["gateway"].environment["MASKFEED_UPSTREAM_URL"].startswith("http://vllm:")
    assert services["vllm"].command == services["vllm-cpu"].command


def test_what_lies_in_shared_memory_has_room_there():
    services = read_compose(VARIABLES)
    small = "64mb"
    for name in ("ray-head", "ray-worker", "gateway", "vllm", "vllm-cpu"):
        assert services[name].settings["shm_size"] not in {None, small}


@pytest.mark.engine
@pytest.mark.full
def test_a_turn_is_answered_by_the_services_as_the_file_starts_them(tmp_path: Path):
    model = str(smollm2_directory())
    services = read_compose({**VARIABLES, "MODEL": model, "CPU_KVCACHE_GIB": "1", "COMPILE_CPUS": "1"})
    chosen = [service for service in services.values() if not service.profiles or "cpu" in service.profiles]
    with running_natively(chosen, tmp_path, timeout_s=240) as place:
        gateway = f"http://{place('gateway', 8080)}"
        body = {"model": model, "messages": [{"role": "user", "content": "Which city?"}], "candidates": NAMES}
        request = urllib.request.Request(
            f"{gateway}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        with urllib.request.urlopen(f"{gateway}/metrics", timeout=60) as response:
            metrics = response.read().decode()
    assert answer["maskfeed"]["candidate"] in NAMES
    assert "maskfeed_warm_actors 1.0" in metrics
