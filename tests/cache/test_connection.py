"""The room's border: URLs in, typed errors out."""

import asyncio
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import redis.exceptions

from maskfeed_automata.errors import CapacityError, MaskfeedError, StoreError, StoreUnavailable
from maskfeed_cache.connection import (
    Timeouts,
    async_store_errors,
    backoff_s,
    check_url,
    open_async_client,
    open_client,
    store_errors,
)

DRIVER_EXCEPTIONS = [
    exception
    for _, exception in inspect.getmembers(redis.exceptions, inspect.isclass)
    if issubclass(exception, Exception)
    and exception.__module__ == "redis.exceptions"
    # raised when a cluster client is configured, which this room has not
    and exception.__name__ != "IncorrectPolicyType"
]


@pytest.mark.parametrize("exception", DRIVER_EXCEPTIONS, ids=lambda exception: exception.__name__)
def test_no_driver_exception_crosses_the_border(exception: type[Exception]) -> None:
    # some of them parse a redirection out of their text
    original = exception("1 host:1")
    with pytest.raises(MaskfeedError) as caught, store_errors("here"):
        raise original
    assert type(caught.value) in (CapacityError, StoreUnavailable)
    assert caught.value.__cause__ is original
    assert caught.value.context["stage"] == "here"


def test_the_list_of_driver_exceptions_is_not_empty() -> None:
    assert len(DRIVER_EXCEPTIONS) > 20


@pytest.mark.parametrize(
    "original",
    [
        redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        redis.exceptions.ResponseError("ERR script: -OOM command not allowed when used memory > 'maxmemory'."),
    ],
)
def test_a_refusal_for_lack_of_memory_is_over_capacity(original: Exception) -> None:
    with pytest.raises(CapacityError, match="memory limit \\(maxmemory\\)") as caught, store_errors("put"):
        raise original
    # room comes with the end of old sets, not in a moment
    assert caught.value.context["retry_after_s"] == 60


def test_a_message_names_neither_socket_nor_host_and_the_cause_does() -> None:
    original = redis.exceptions.ConnectionError("Error 111 connecting to /run/secret.sock. Connection refused.")
    with pytest.raises(StoreUnavailable) as caught, store_errors("lookup"):
        raise original
    assert caught.value.message == "Redis failed during lookup (ConnectionError)"
    assert caught.value.__cause__ is original


def test_errors_of_our_own_pass_unchanged() -> None:
    original = ValueError("ours")
    with pytest.raises(ValueError, match="ours") as caught, store_errors("put"):
        raise original
    assert caught.value is original


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://host",
        "redis://host:port",
        "redis://host?socket_timeout=soon",
        "redis://host?color=red",
    ],
)
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    for open_any in (open_client, open_async_client):
        with pytest.raises(StoreError) as caught:
            open_any(url)
        assert not caught.value.retryable


def test_a_url_can_be_checked_without_a_server() -> None:
    check_url("unix:///nowhere/at/all")
    with pytest.raises(StoreError):
        check_url("bogus://")


def test_a_password_in_a_bad_url_is_not_repeated() -> None:
    with pytest.raises(StoreError) as caught:
        open_client("redis://user:hunter2@host:port")
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("url", ["redis://host:1", "rediss://host:1", "unix:///run/redis.sock"])
@pytest.mark.parametrize(("open_any", "answer_s"), [(open_client, 0.25), (open_async_client, None)])
def test_clients_wait_as_long_as_told_and_never_try_twice(
    url: str, open_any: Callable[..., Any], answer_s: float | None
) -> None:
    pool = open_any(url, Timeouts(connect_s=0.5, answer_s=0.25)).connection_pool
    connection = pool.connection_class(**pool.connection_kwargs)
    assert connection.socket_connect_timeout == 0.5
    # None: the asynchronous side has a limit for the whole operation instead
    assert connection.socket_timeout == answer_s
    assert connection.retry.get_retries() == 0
    assert not pool.get_encoder().decode_responses


async def test_an_operation_has_a_limit_for_all_of_its_time() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        async with async_store_errors("get", within_s=0.01):
            await asyncio.Event().wait()
    assert caught.value.context["stage"] == "get"


@pytest.mark.parametrize("n_steps", range(60))
async def test_a_cancellation_is_heard_at_every_step_of_an_operation(redis_url: str, n_steps: int) -> None:
    client = open_async_client(redis_url)

    async def wait_for_an_element() -> None:
        async with async_store_errors("wait", within_s=30):
            await client.blpop(["none"], timeout=30)

    waiting = asyncio.create_task(wait_for_an_element())
    for _ in range(n_steps):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=5)
    assert waiting.cancelled()
    # and the pool hands out no connection on which an old answer may arrive
    assert await client.echo("mine") == b"mine"
    await client.aclose()


def test_waits_between_attempts_grow_to_a_bound() -> None:
    waits = list(itertools.islice(backoff_s(), 10))
    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert waits[-1] == waits[-2] == 1.0
