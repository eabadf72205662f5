"""Runs one program for as long as the process that started this script lives.

Usage: `python redis_watchdog.py PROGRAM ARGUMENT...`, with a pipe as standard input that nobody but the owner holds
open. It is a script of its own, and not a fork of the owner, because the kernel's parent-death signal follows the
*thread* that started a child, and the owner has many; this process has one. It uses the standard library only, so that
it starts in milliseconds without the packages beside it. Invariants: the pipe's end kills the program; on Linux so
does the death of this process; the program's end ends this process.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    """Run `command` and return its exit status; 128 and the signal's number if one ended it, as a shell does."""
    die_with_us = _die_with_parent if sys.platform == "linux" else None
    # one thread, so running Python between fork and exec is safe
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_us)
    threading.Thread(target=_kill_at_end_of_input, args=(program,), daemon=True).start()
    status = program.wait()
    return status if status >= 0 else 128 - status


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_at_end_of_input(program: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 4096):
        pass
    program.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
