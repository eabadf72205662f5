"""Fixtures that any test may take; each lives in a module of its own."""

from redis_server import fragile_redis, redis_url, shared_redis
from stack import stack

__all__ = ["fragile_redis", "redis_url", "shared_redis", "stack"]
