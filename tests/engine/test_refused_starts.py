"""A real engine with a setting under which masks could be wrong: it does not start, and its log says why."""

import json
from pathlib import Path

import pytest

from engine_server import EngineServer
from model_files import tiny_model_directory
from processes import ChildFailed

pytestmark = [pytest.mark.engine, pytest.mark.full]

TWO_CORES = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
CONNECTOR = json.dumps({"kv_connector": "ExampleConnector", "kv_role": "kv_both"})


def refusal(tmp_path: Path, *arguments: str, **environment: str) -> str:
    """What the engine logs when it refuses to start."""
    server = EngineServer(
        maskfeed={"shm_dir": str(tmp_path)},
        model=tiny_model_directory(),
        arguments=arguments,
        environment=environment,
    )
    with pytest.raises(ChildFailed, match="ended with exit code 1"), server:
        pass
    return server.log()


def test_pipeline_parallel_is_refused(tmp_path):
    log = refusal(tmp_path, "--pipeline-parallel-size", "2", **TWO_CORES)
    assert "EngineUnsupported: pipeline_parallel_size=2: stages work on different batches at one time" in log
    assert "start with pipeline_parallel_size=1" in log


def test_disaggregated_prefill_is_refused(tmp_path):
    log = refusal(tmp_path, "--kv-transfer-config", CONNECTOR)
    assert "EngineUnsupported: disaggregated prefill samples the first token in another engine" in log
    assert "start without kv_transfer_config" in log
