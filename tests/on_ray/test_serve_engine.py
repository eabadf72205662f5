"""The example of Ray Serve as it stands, in front of a real vLLM."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from serve_command import EXAMPLES, cluster_environment, serve_run
from stack import Stack

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("ray_cluster")]

CODES = ["E11.9 Type 2 diabetes", "I10 Essential hypertension", "J45.909 Asthma"]
NAMES = ["Paris", "London", "Rio de Janeiro", "東京"]


@pytest.fixture(scope="module")
def serve_url(stack: Stack, ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    def adapt(applications: dict[str, Any], url: str) -> None:
        applications["maskfeed"]["args"] = {"upstream_url": stack.engine_url, "redis_url": stack.redis_url}

    with serve_run("gateway.yaml", tmp_path_factory.mktemp("serve"), adapt, timeout_s=120) as url:
        yield url


def test_a_constrained_request_is_answered_over_http(serve_url: str, stack: Stack) -> None:
    body = {"model": stack.model, "messages": [{"role": "user", "content": "Which city?"}], "candidates": NAMES}
    request = urllib.request.Request(
        f"{serve_url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    assert answer["maskfeed"]["candidate"] in NAMES


def test_a_constrained_request_is_answered_by_handle(serve_url: str, stack: Stack) -> None:
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / "ask_by_handle.py"), stack.model],
        env=os.environ | cluster_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() in CODES
