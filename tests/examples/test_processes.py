"""The demo's child processes end with the demo, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import processes
from processes import ChildFailed, ChildProcess

# Starts a child of its own, writes both ids, and waits; the child ignores SIGTERM.
_PARENT = """
import os, signal, subprocess, sys
ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", ignoring], stdout=subprocess.PIPE)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
signal.pause()
"""

# A demo in miniature: two such parents under a Supervisor, then a long wait.
_OWNER = """
import sys
from pathlib import Path
from processes import Supervisor
folder, parent = Path(sys.argv[1]), sys.argv[2]
try:
    with Supervisor(folder) as supervisor:
        children = [supervisor.start(name, [sys.executable, "-c", parent]) for name in ("a", "b")]
        for child in children:
            child.wait_until(lambda: child.log_tail() != "", timeout_s=60)
        print(*(pid for child in children for pid in child.log_tail().split()), flush=True)
        children[0].wait_until(lambda: False, timeout_s=600)
except KeyboardInterrupt:
    sys.exit(130)
"""


def has_ended(pid: int) -> bool:
    """A zombie has ended too; somebody else reaps it."""
    try:
        psutil.Process(pid).wait(timeout=10)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_owner_ends_its_children_and_theirs(tmp_path: Path, number: signal.Signals):
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path), _PARENT],
        env=os.environ | {"PYTHONPATH": str(Path(processes.__file__).parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 4
        owner.send_signal(number)
        assert owner.wait(timeout=60) == 130
    assert all(has_ended(pid) for pid in pids)


def test_a_child_that_ends_early_is_reported_with_the_end_of_its_log(tmp_path: Path):
    command = [sys.executable, "-c", "print('no model here'); raise SystemExit(3)"]
    with (
        ChildProcess("engine", command, log_path=tmp_path / "engine.log") as child,
        pytest.raises(ChildFailed, match=r"(?s)engine ended with exit code 3.*no model here"),
    ):
        child.wait_until(lambda: False, timeout_s=60)


def test_a_child_that_is_never_ready_is_reported_when_the_time_is_over(tmp_path: Path):
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    with (
        ChildProcess("engine", command, log_path=tmp_path / "engine.log") as child,
        pytest.raises(ChildFailed, match="engine was not ready after 0 s"),
    ):
        child.wait_until(lambda: False, timeout_s=0)
    assert child.exit_code is not None
