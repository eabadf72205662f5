"""`serve run` of an example, its addresses replaced, on the tests' cluster."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve

from engine_server import EngineServer
from processes import ChildProcess, http_answers
from services import free_port

__all__ = ["EXAMPLES", "cluster_environment", "serve_run"]

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "ray_serve"
# what the controller says of an application that it gives up
_FAILED = "Failed to update the deployments"


def cluster_environment() -> dict[str, str]:
    """Of a process that joins the tests' cluster."""
    return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "PYTHONPATH": EngineServer.python_path()}


@contextmanager
def serve_run(
    example: str, folder: Path, adapt: Callable[[dict[str, Any], str], None], *, timeout_s: float
) -> Iterator[str]:
    """Run an example until its gateway is ready; yields the gateway's URL.

    Args:
        example: name of the file.
        folder: for the changed file and the log.
        adapt: changes the file's applications, by name, given the URL.
        timeout_s: bound of the start.
    """
    config = yaml.safe_load((EXAMPLES / example).read_text())
    config["http_options"]["port"] = port = free_port()
    url = f"http://127.0.0.1:{port}"
    adapt({application["name"]: application for application in config["applications"]}, url)
    changed = folder / example
    changed.write_text(yaml.safe_dump(config))
    command = [str(Path(sys.executable).parent / "serve"), "run", str(changed)]
    log = folder / "serve.log"

    def is_ready() -> bool:
        assert _FAILED not in (text := log.read_text(errors="replace")), text[text.index(_FAILED) - 10_000 :]
        return http_answers(f"{url}/ready")

    with ChildProcess("serve", command, log_path=log, environment=cluster_environment()) as child:
        child.wait_until(is_ready, timeout_s=timeout_s)
        yield url
    # what the command started goes on without it
    serve.shutdown()
