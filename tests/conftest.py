"""Fixtures that any test may take; each lives in a module of its own."""

from stack import stack

from redis_server import fragile_redis, redis_url, shared_redis

__all__ = ["fragile_redis", "redis_url", "shared_redis", "stack"]
