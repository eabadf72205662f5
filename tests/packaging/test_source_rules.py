"""Rules that hold for each module: it imports alone and quietly, says what it offers, and is short."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from maskfeed.config import settings_document

_REPOSITORY = Path(__file__).resolve().parents[2]
_ROOTS = {root: _REPOSITORY / root for root in ("automata", "cache", "workers", "middleware")}
_PACKAGES = ("maskfeed_automata", "maskfeed_cache", "maskfeed_workers", "maskfeed")
_MODULES = sorted(path for root in _ROOTS.values() for path in root.rglob("*.py"))
_MAX_LINES = 500
# vLLM and the libraries under it warn while they are imported; we can't mend that
_ADAPTERS = {"maskfeed_workers.vllm_entry"}


def module_name(path: Path) -> str:
    (root,) = (root for root in _ROOTS.values() if path.is_relative_to(root))
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def run_python(code: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, _ROOTS.values()))}
    command = [sys.executable, "-W", "error", "-c", code]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("package", _PACKAGES)
def test_each_package_imports_alone_with_warnings_as_errors(package: str):
    run_python(f"import {package}")


def test_importing_maskfeed_loads_no_server_driver_or_engine():
    heavy = {"aiohttp", "redis", "ray", "torch", "vllm", "transformers", "openai"}
    loaded = set(run_python("import sys, maskfeed; print(*sys.modules)").split())
    assert not loaded & heavy


@pytest.mark.parametrize("package", _PACKAGES)
def test_the_public_names_are_exactly_those_that_the_package_lists(package: str):
    module = importlib.import_module(package)
    present = {name for name, value in vars(module).items() if not name.startswith("_") and not _is_module(value)}
    listed = {
        name
        for name in getattr(module, "__all__", ())
        if not name.startswith("_") and not _is_module(getattr(module, name))
    }
    assert listed == present


@pytest.mark.parametrize("path", [path for path in _MODULES if module_name(path) not in _ADAPTERS], ids=module_name)
def test_each_module_says_what_it_is_and_offers_only_what_exists(path: Path):
    module = importlib.import_module(module_name(path))
    assert module.__doc__
    names = getattr(module, "__all__", [])
    assert len(set(names)) == len(names)
    assert all(hasattr(module, name) for name in names)


@pytest.mark.parametrize("path", _MODULES, ids=module_name)
def test_no_module_is_longer_than_five_hundred_lines(path: Path):
    assert len(path.read_text().splitlines()) <= _MAX_LINES


def test_the_settings_page_is_the_generated_one():
    assert (_REPOSITORY / "docs" / "settings.md").read_text() == settings_document()


def _is_module(value: object) -> bool:
    return isinstance(value, ModuleType)
