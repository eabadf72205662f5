"""What is shipped: the wheel and the source distribution, built here without any network."""

import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

_REPOSITORY = Path(__file__).resolve().parents[2]
_ROOTS = {
    "automata": "maskfeed_automata",
    "cache": "maskfeed_cache",
    "workers": "maskfeed_workers",
    "middleware": "maskfeed",
}


def build_wheel(source: Path, target: Path) -> Path:
    (wheel,) = WheelBuilder(str(source)).build(directory=str(target), versions=["standard"])
    return Path(wheel)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(_REPOSITORY, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (archive,) = SdistBuilder(str(_REPOSITORY)).build(directory=str(tmp_path_factory.mktemp("sdist")))
    return Path(archive)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def source_files() -> set[str]:
    """Every file of the four packages, by its path in an installation."""
    found = set()
    for root, package in _ROOTS.items():
        folder = _REPOSITORY / root
        paths = (path for path in (folder / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        found |= {path.relative_to(folder).as_posix() for path in paths}
    return found


def test_the_wheel_holds_the_four_packages_and_its_metadata_and_nothing_else(wheel: Path):
    shipped = set(contents(wheel))
    metadata = {name for name in shipped if re.match(r"maskfeed-[^/]+\.dist-info/", name)}
    assert shipped - metadata == source_files()
    assert {name.split("/", 1)[1] for name in metadata} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_every_package_is_marked_as_typed(wheel: Path):
    assert {f"{package}/py.typed" for package in _ROOTS.values()} <= set(contents(wheel))


def test_only_the_command_is_an_entry_point_and_never_a_logits_processor(wheel: Path):
    (text,) = (data.decode() for name, data in contents(wheel).items() if name.endswith("/entry_points.txt"))
    assert text.split() == ["[console_scripts]", "maskfeed", "=", "maskfeed.cli:main"]


def test_a_wheel_made_from_the_source_distribution_equals_the_direct_one(wheel: Path, sdist: Path, tmp_path: Path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert contents(build_wheel(unpacked, tmp_path / "wheel")) == contents(wheel)


def test_the_source_distribution_brings_tests_examples_and_their_data(sdist: Path):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {
        "LICENSE",
        "Makefile",
        "examples/icd10_rag/icd10cm_billable.tsv.xz",
        "requirements/engine.txt",
        "tests/data/mcp_tools.jsonl.xz",
    } <= names
