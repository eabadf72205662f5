"""vLLM's processes on a machine with fewer cores than processes: they rest where they would poll.

Each process of an engine polls the queue of the one that it waits for, for a second after its last message. That needs
a core for each; with two in all, the pollers keep everybody else waiting for up to that second, with requests and
without. Here they wait for the notice that comes with a message. For all ways that a benchmark compares, alike.

On the path of an engine process (with the metadata folder beside this file) vLLM finds and uses it, in each of its
processes. Never installed.
"""

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

__all__ = ["rest"]

# A notice can be lost; vLLM's own bound is 5 s.
_LONGEST_WAIT_MS = 1


def rest() -> None:
    """Entry point of the group `vllm.general_plugins`."""
    wait = SpinCondition.wait

    def wait_briefly(condition: SpinCondition, timeout_ms: int | None = None) -> None:
        # the second counts from here
        condition.last_read = float("-inf")
        wait(condition, timeout_ms=_LONGEST_WAIT_MS)

    SpinCondition.wait = wait_briefly
