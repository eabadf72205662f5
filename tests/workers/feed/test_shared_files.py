"""Artifacts in shared memory, with real processes, real locks and a filesystem that is really full."""

import fcntl
import gc
import multiprocessing
import os
import resource
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from maskfeed_automata.errors import CapacityError, CorruptArtifact, DeadlineExceeded, EngineUnsupported
from maskfeed_cache.store import hash_blob
from maskfeed_workers.memory_map import map_read_only
from maskfeed_workers.shared_files import SharedFiles
from shared_files_process import BLOB, HASH, load_in_another_process

SPAWN = multiprocessing.get_context("spawn")


def no_fetch():
    raise AssertionError("somebody on this host has it already")


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "shm"


@pytest.fixture
def files(directory):
    made = SharedFiles(directory)
    yield made
    made.close()


def test_what_was_fetched_is_mapped_read_only(files):
    buffer = files.load(HASH, lambda: BLOB)
    assert buffer == BLOB
    assert buffer.readonly
    assert files.names() == [HASH]


def test_a_second_load_and_a_neighbour_map_the_same_memory_without_a_fetch(files, directory):
    files.load(HASH, lambda: BLOB)
    files.load(HASH, no_fetch)
    neighbour = SharedFiles(directory)
    neighbour.load(HASH, no_fetch)
    inodes = {path.stat().st_ino for path in directory.glob(f"owner-*/{HASH}")}
    assert len(inodes) == 1
    neighbour.close()


def test_a_neighbour_keeps_the_artifact_when_its_writer_goes(files, directory):
    neighbour = SharedFiles(directory)
    files.load(HASH, lambda: BLOB)
    neighbour.load(HASH, no_fetch)
    files.close()
    third = SharedFiles(directory)
    assert third.load(HASH, no_fetch) == BLOB
    third.close()
    neighbour.close()


def test_a_mapping_outlives_its_name_and_costs_no_descriptor(files):
    n_descriptors = len(os.listdir("/proc/self/fd"))
    buffers = []
    for i in range(20):
        blob = BLOB + bytes([i])
        buffers.append(files.load(hash_blob(blob), lambda blob=blob: blob))
        files.discard(hash_blob(blob))
    assert len(os.listdir("/proc/self/fd")) == n_descriptors
    assert files.names() == []
    assert [buffer[-1] for buffer in buffers] == list(range(20))


def test_memory_is_unmapped_with_the_last_reference(files):
    def mapped():
        return Path("/proc/self/maps").read_text().count(HASH)

    buffer = files.load(HASH, lambda: BLOB)
    view = buffer[10:20]
    assert mapped() == 1
    del buffer
    gc.collect()
    assert mapped() == 1
    assert view == BLOB[10:20]
    del view
    assert mapped() == 0


def test_an_empty_file_maps_to_nothing(tmp_path):
    (tmp_path / "empty").touch()
    assert map_read_only(tmp_path / "empty") == b""


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        map_read_only(tmp_path / "missing")


def test_others_hear_of_the_file_when_they_can_map_it(files, directory):
    seen = []
    files.load(HASH, lambda: BLOB, available=lambda: seen.append(len(list(directory.glob(f"owner-*/{HASH}")))))
    assert seen == [1]


def test_another_content_under_the_name_is_detected_and_replaced_everywhere(files, directory):
    foreign = directory / "owner-foreign"
    foreign.mkdir()
    (foreign / HASH).write_bytes(b"something else")
    assert files.load(HASH, lambda: BLOB) == BLOB
    assert not (foreign / HASH).exists()
    assert files.load(HASH, no_fetch) == BLOB


def test_bytes_with_another_hash_are_refused_and_leave_nothing(files, directory):
    with pytest.raises(CorruptArtifact):
        files.load(HASH, lambda: b"not what was asked for")
    assert files.names() == []
    assert list(directory.glob("*.lock")) == [directory / "start.lock"]


def test_a_failed_fetch_leaves_the_lock_free(files):
    with pytest.raises(AssertionError):
        files.load(HASH, no_fetch)
    assert files.load(HASH, lambda: BLOB) == BLOB


# -- a full filesystem -------------------------------------------------------------------------------------------------


def test_a_full_filesystem_is_an_error_with_the_bytes_in_it_and_leaves_nothing():
    # Mounting needs root; without it the limit on a file's size gives the same answer from the same call.
    if os.geteuid() == 0:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder], check=True)
            try:
                check_no_room(Path(folder) / "shm")
            finally:
                subprocess.run(["umount", folder], check=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            check_no_room_by_limit(Path(folder) / "shm")


def test_a_limit_on_the_size_of_files_is_an_error_too(directory):
    check_no_room_by_limit(directory)


def check_no_room_by_limit(directory):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 * 1024, hard))
    try:
        check_no_room(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def check_no_room(directory):
    files = SharedFiles(directory)
    with pytest.raises(CapacityError) as caught:
        files.load(HASH, lambda: BLOB)
    assert caught.value.context["value"] == len(BLOB)
    assert list(directory.glob("owner-*/*")) == list(directory.glob("owner-*/alive"))
    small = BLOB[:1_000]
    assert files.load(hash_blob(small), lambda: small) == small
    files.close()


# -- several processes -------------------------------------------------------------------------------------------------


@pytest.fixture
def other_process(directory):
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=load_in_another_process, args=(directory, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == "started"
    yield ours, process
    ours.close()
    process.join(10)


def test_of_two_processes_that_want_one_artifact_at_once_one_writes_and_both_map(files, directory, other_process):
    other, _ = other_process
    other.send("load")
    assert other.recv() == "fetching"
    loaded = []
    thread = threading.Thread(target=lambda: loaded.append(files.load(HASH, no_fetch)))
    thread.start()
    other.send("fetch now")
    thread.join(10)
    assert loaded == [BLOB]
    assert other.recv() is True
    assert len({path.stat().st_ino for path in directory.glob(f"owner-*/{HASH}")}) == 1
    other.send("end")


def test_a_writer_that_hangs_is_waited_for_no_longer_than_told(directory, other_process):
    other, _ = other_process
    impatient = SharedFiles(directory, lock_timeout_s=0.05)
    other.send("load")
    assert other.recv() == "fetching"
    with pytest.raises(DeadlineExceeded):
        impatient.load(HASH, no_fetch)
    other.send("fetch now")
    other.recv()
    assert impatient.load(HASH, no_fetch) == BLOB
    other.send("end")
    impatient.close()


def test_a_writer_that_is_killed_leaves_the_lock_free_and_its_leftovers_are_swept(directory, files, other_process):
    other, process = other_process
    other.send("load")
    assert other.recv() == "fetching"
    assert len(list(directory.glob("owner-*"))) == 2
    process.kill()
    process.join(10)
    assert files.load(HASH, lambda: BLOB) == BLOB
    newcomer = SharedFiles(directory)
    assert len(list(directory.glob("owner-*"))) == 2
    assert newcomer.load(HASH, no_fetch) == BLOB
    newcomer.close()


def test_a_lock_that_a_killed_writer_has_left_is_swept(directory, files):
    (directory / f"{HASH}.lock").touch()
    SharedFiles(directory).close()
    assert [path.name for path in directory.glob("*.lock")] == ["start.lock"]


def test_the_lock_of_a_living_writer_is_not_swept(directory, other_process):
    other, _ = other_process
    other.send("load")
    assert other.recv() == "fetching"
    SharedFiles(directory).close()
    assert (directory / f"{HASH}.lock").exists()
    other.send("fetch now")
    other.recv()
    assert not (directory / f"{HASH}.lock").exists()
    other.send("end")


def test_the_living_are_not_swept(directory, files):
    files.load(HASH, lambda: BLOB)
    newcomer = SharedFiles(directory)
    assert files.names() == [HASH]
    newcomer.close()


def test_closing_removes_everything_but_the_directory_and_can_be_repeated(directory):
    files = SharedFiles(directory)
    files.load(HASH, lambda: BLOB)
    files.close()
    files.close()
    assert [path.name for path in directory.iterdir()] == ["start.lock"]


def test_a_start_that_is_held_up_for_too_long_is_an_error(directory):
    SharedFiles(directory).close()
    with (directory / "start.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DeadlineExceeded):
            SharedFiles(directory, lock_timeout_s=0.02)


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_directory_that_others_can_enter_is_refused(tmp_path, mode):
    open_to_others = tmp_path / "open"
    open_to_others.mkdir()
    open_to_others.chmod(mode)
    with pytest.raises(EngineUnsupported):
        SharedFiles(open_to_others)


def test_a_link_in_place_of_the_directory_is_refused(tmp_path):
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(EngineUnsupported):
        SharedFiles(tmp_path / "link")


def test_a_directory_that_can_not_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EngineUnsupported):
        SharedFiles(tmp_path / "file" / "shm")
