"""Each example is run as a newcomer would run it, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine_server import EngineServer
from model_files import smollm2_directory
from services import ENGINE_ENVIRONMENT
from stack import Stack

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_TOOLS = {"get_user", "get_users", "delete_user", "list_invoices"}


def run_example(name: str, *arguments: str) -> str:
    """What the example prints to stdout."""
    environment = os.environ | ENGINE_ENVIRONMENT | {"PYTHONPATH": EngineServer.python_path()}
    finished = subprocess.run(
        [sys.executable, str(_EXAMPLES / name), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert finished.returncode == 0, finished.stdout[-3_000:] + finished.stderr[-6_000:]
    return finished.stdout


def answers_in(output: str) -> list[str]:
    return [line.split("answer: ", 1)[1] for line in output.splitlines() if "answer: " in line]


def test_the_library_example_walks_to_one_of_its_tools():
    (answer,) = answers_in(run_example("01_library.py", str(smollm2_directory())))
    assert answer in _TOOLS


@pytest.mark.engine
def test_the_openai_client_example_gets_one_of_its_tools(stack: Stack):
    output = run_example("02_openai_client.py", stack.gateway_url)
    (answer,) = answers_in(output)
    assert answer in _TOOLS
    assert "in the list, compiled in" in output


@pytest.mark.engine
@pytest.mark.full
def test_the_offline_example_answers_each_question_from_its_own_list():
    fruit, planet = answers_in(run_example("03_vllm_offline.py", str(smollm2_directory())))
    assert fruit in {"granite", "apple", "hammer"}
    assert planet in {"Venus", "Mars", "Saturn"}


def test_the_transformers_example_answers_each_question_from_its_own_list():
    fruit, planet = answers_in(run_example("04_transformers.py", str(smollm2_directory())))
    assert fruit in {"granite", "apple", "hammer"}
    assert planet in {"Venus", "Mars", "Saturn"}


@pytest.mark.engine
def test_the_named_set_example_stores_a_list_asks_for_all_and_for_a_part_and_changes_it(stack: Stack):
    output = run_example("05_named_set.py", stack.gateway_url)
    of_all, of_two = answers_in(output)
    assert of_all in {"Paris", "Rome", "Oslo"}
    assert of_two in {"Paris", "Rome"}
    assert "one of 2, generation" in output
    assert "1 added, 1 removed" in output


@pytest.mark.engine
@pytest.mark.full
def test_the_demo_answers_its_first_turns_and_says_so():
    output = run_example("icd10_rag/demo.py", "--turns", "2", "--skip-native")
    assert "Turn 2 of 2" in output
    assert "All 2 answers are members of their sets." in output
