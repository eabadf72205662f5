"""Ray Serve LLM on the CPU with the processor, the gateway in front of it, as the example has them."""

import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest

from model_files import smollm2_directory, tiny_model_directory
from redis_server import RedisServer
from serve_command import serve_run

pytestmark = [pytest.mark.full, pytest.mark.engine, pytest.mark.usefixtures("ray_cluster")]

N_SETS = 30


@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_serve_llm_answers_within_each_set(
    tensor_parallel_size: int, tmp_path: Path, fragile_redis: RedisServer
) -> None:
    # SmolLM2's nine heads can't be shared by two ranks
    model = smollm2_directory() if tensor_parallel_size == 1 else tiny_model_directory()

    def adapt(applications: dict[str, Any], url: str) -> None:
        (config,) = applications["llm"]["args"]["llm_configs"]
        config["model_loading_config"] = {"model_id": model.name, "model_source": str(model)}
        if tensor_parallel_size > 1:
            # on a machine with one NUMA node vLLM wants to be told
            config["runtime_env"]["env_vars"]["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
        config["engine_kwargs"]["tensor_parallel_size"] = tensor_parallel_size
        config["engine_kwargs"]["additional_config"]["maskfeed"]["redis_url"] = fragile_redis.url
        config["engine_kwargs"]["additional_config"]["maskfeed"]["shm_dir"] = str(tmp_path / "shm")
        applications["maskfeed"]["args"] = {"upstream_url": f"{url}/llm", "redis_url": fragile_redis.url}

    with serve_run("llm_cpu.yaml", tmp_path, adapt, timeout_s=240) as url, httpx.Client(timeout=60) as client:
        answers = [_ask(client, url, model.name, number) for number in range(N_SETS)]
        direct = client.post(
            f"{url}/llm/v1/completions",
            json={"model": model.name, "prompt": "x", "max_tokens": 1, "vllm_xargs": {"maskfeed": "mf1:wrong"}},
        )
    assert all(answer["candidate"] in answer["asked"] and answer["ready_ms"] > 0 for answer in answers)
    # whoever goes past the gateway with a handle that is none is refused before the engine
    assert direct.status_code == 400, direct.text
    print(f"\nRay Serve LLM, TP {tensor_parallel_size}: {N_SETS} sets, whole request {_summary(answers, 'whole_ms')}")
    print(f"of that, to READY {_summary(answers, 'ready_ms')}, compile {_summary(answers, 'compile_ms')}")


def _ask(client: httpx.Client, url: str, model: str, number: int) -> dict[str, Any]:
    names = [f"{city} {number}" for city in ("Paris", "London", "Rio de Janeiro", "東京")]
    body = {"model": model, "messages": [{"role": "user", "content": "Which city?"}], "candidates": names}
    began = time.monotonic()
    response = client.post(f"{url}/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    told = response.json()["maskfeed"]
    return {**told, "asked": names, "whole_ms": (time.monotonic() - began) * 1000}


def _summary(answers: list[dict[str, Any]], name: str) -> str:
    values = [answer[name] for answer in answers]
    return f"median {median(values):.1f} ms, worst {max(values):.1f} ms"
