"""Fixtures that any test may take; each lives in a module of its own."""

import os

# Read when Triton is imported, which vLLM does: without a GPU its kernels run in the interpreter or not at all.
os.environ.setdefault("TRITON_INTERPRET", "1")

from index_stores import index_servers
from local_ray import ray_cluster
from redis_server import fragile_redis, redis_url, shared_redis
from stack import stack
from two_ranks import crowded_ranks

__all__ = ["crowded_ranks", "fragile_redis", "index_servers", "ray_cluster", "redis_url", "shared_redis", "stack"]
