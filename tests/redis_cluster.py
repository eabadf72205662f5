"""A real Redis Cluster for tests: three nodes that share the slots, no replicas."""

import time

from redis_process import RedisProcess, free_port
from redis_programs import redis_program

__all__ = ["RedisCluster"]

_N_NODES = 3
_N_SLOTS = 16_384
_READY_TIMEOUT_S = 20.0


class RedisCluster:
    """Args: the version of its servers."""

    def __init__(self, version: str = "7") -> None:
        self.nodes: list[RedisProcess] = []
        self._ports = [free_port() for _ in range(_N_NODES)]
        for port in self._ports:
            settings = {
                "port": str(port),
                "bind": "127.0.0.1",
                "cluster-enabled": "yes",
                # on a busy machine a node is silent for a while without being down
                "cluster-node-timeout": "5000",
                # the other slots answer while one node is down
                "cluster-require-full-coverage": "no",
            }
            self.nodes.append(RedisProcess(redis_program(version), settings, connect=f"redis://127.0.0.1:{port}"))

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def start(self) -> "RedisCluster":
        for node in self.nodes:
            node.start()
        for index, node in enumerate(self.nodes):
            begin, end = (_N_SLOTS * part // _N_NODES for part in (index, index + 1))
            node.client.execute_command("CLUSTER ADDSLOTS", *range(begin, end))
            node.client.execute_command("CLUSTER SET-CONFIG-EPOCH", index + 1)
            self.nodes[0].client.execute_command("CLUSTER MEET", "127.0.0.1", self._ports[index])
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while not all(self._is_ready(node) for node in self.nodes):
            assert time.monotonic() < deadline_s, "the cluster does not come together"
        return self

    def flush(self) -> None:
        for node in self.nodes:
            node.client.flushall()

    def node_of(self, key: str) -> RedisProcess:
        """The node on which `key` lies."""
        slot = int(self.nodes[0].client.execute_command("CLUSTER KEYSLOT", key))
        return next(node for index, node in enumerate(self.nodes) if slot < _N_SLOTS * (index + 1) // _N_NODES)

    def remove(self) -> None:
        for node in self.nodes:
            node.remove()

    @staticmethod
    def _is_ready(node: RedisProcess) -> bool:
        answer = node.client.execute_command("CLUSTER INFO")
        state = (
            answer
            if isinstance(answer, dict)
            else dict(line.split(":") for line in answer.decode().split("\r\n") if ":" in line)
        )
        return state["cluster_state"] == "ok" and int(state["cluster_known_nodes"]) == _N_NODES
