"""TLS, users and passwords, against a real server; and the URLs of a cluster."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from index_stores import LEASE_MS, IndexServers, new_name
from maskfeed_automata.errors import StoreError, StoreUnavailable
from maskfeed_cache.connection import (
    check_url,
    open_async_client,
    open_client,
    open_node_client,
    store_errors,
    with_credentials,
)
from maskfeed_cache.fence import Granted, Layer
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.redis_index import RedisIndex
from maskfeed_cache.redis_store import RedisBlobStore
from redis_process import RedisProcess, free_port
from redis_programs import redis_program

KEYS = Keyspace()
USER, PASSWORD = "mask@feed", "s:e/c?r#e%t ü"
# what docs/redis.md tells an operator to give our user
RIGHTS = ["~maskfeed:*", "+@all", "-@admin", "-@dangerous"]


@dataclass(frozen=True)
class Secured:
    server: RedisProcess
    port: int
    authority: Path

    def url(self, *, host: str = "localhost", scheme: str = "rediss", user: str = "") -> str:
        return f"{scheme}://{user}{host}:{self.port}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Redis 7 with TLS on its only port, and one user beside the default one, which is off."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    settings = {
        "tls-cert-file": str(directory / "server.pem"),
        "tls-key-file": str(directory / "server.pem"),
        "tls-ca-cert-file": str(directory / "ca.pem"),
        "tls-auth-clients": "no",
        "tls-port": str(port := free_port()),
        "bind": "127.0.0.1",
    }
    server = RedisProcess(redis_program("7"), settings).start()
    server.client.acl_setuser(USER, reset=True, enabled=True, passwords=[f"+{PASSWORD}"], keys=["maskfeed:*"])
    server.client.execute_command("ACL", "SETUSER", USER, *RIGHTS)
    # the test's own connection stays what it is
    server.client.execute_command("ACL", "SETUSER", "default", "resetpass", ">" + new_name())
    yield Secured(server, port, directory / "ca.pem")
    server.remove()


def with_authority(secured: Secured, url: str) -> str:
    return f"{url}?ssl_ca_certs={secured.authority}"


async def use(url: str) -> None:
    """Blobs and index, each through its own client."""
    blobs, index = RedisBlobStore(url, KEYS), RedisIndex(url, KEYS)
    with contextlib.closing(blobs):
        assert blobs.get(blobs.put(b"artifact")) == b"artifact"
        answer = await index.acquire(Layer.SETS, new_name(), token=new_name(), lease_ms=LEASE_MS)
        assert isinstance(answer, Granted)
        await index.clear()
        await index.sweep()
        news = index.news()
        await anext(news)
        await news.aclose()  # type: ignore[attr-defined]
    await index.close()


async def test_everything_works_over_tls_as_a_user_with_few_rights_from_settings(secured: Secured):
    await use(with_credentials(with_authority(secured, secured.url()), username=USER, password=PASSWORD))


async def test_user_and_password_may_stand_in_the_url(secured: Secured):
    await use(with_authority(secured, secured.url(user="mask%40feed:s%3Ae%2Fc%3Fr%23e%25t%20%C3%BC@")))


@pytest.mark.parametrize(
    ("why", "url"),
    [
        ("the authority is unknown", "rediss://localhost:{port}"),
        ("the host has another name", "rediss://127.0.0.1:{port}?ssl_ca_certs={authority}"),
        ("no TLS is spoken", "redis://localhost:{port}"),
    ],
)
async def test_a_server_that_can_not_be_trusted_is_unavailable(secured: Secured, why: str, url: str):
    mine = with_credentials(
        url.format(port=secured.port, authority=secured.authority), username=USER, password=PASSWORD
    )
    with pytest.raises(StoreUnavailable):
        await use(mine)


@pytest.mark.parametrize(("username", "password"), [(None, None), (USER, "wrong"), ("nobody", PASSWORD), (None, "x")])
async def test_a_wrong_user_or_password_is_unavailable_and_is_not_repeated(
    secured: Secured, username: str | None, password: str | None
):
    url = with_credentials(with_authority(secured, secured.url()), username=username, password=password)
    with pytest.raises(StoreUnavailable) as caught:
        await use(url)
    assert password is None or password not in caught.value.message


def test_a_user_is_kept_from_keys_that_are_not_ours(secured: Secured):
    url = with_credentials(with_authority(secured, secured.url()), username=USER, password=PASSWORD)
    with contextlib.closing(open_client(url)) as client:
        with pytest.raises(StoreUnavailable), store_errors("set"):
            client.set("other:key", 1)
        with pytest.raises(StoreUnavailable), store_errors("flush"):
            client.flushall()


def test_credentials_are_put_into_every_kind_of_url_and_never_twice():
    for url, expected in {
        "redis://h:1/0": "redis://u:p%40@h:1/0",
        "unix:///run/redis.sock": "unix://u:p%40@/run/redis.sock",
        "redis+cluster://a:1,b:2?x=y": "redis+cluster://u:p%40@a:1,b:2?x=y",
    }.items():
        assert with_credentials(url, username="u", password="p@") == expected
        assert with_credentials(url, username=None, password=None) == url
    with pytest.raises(StoreError) as caught:
        with_credentials("redis://:secret@h:1", username="u", password="hunter2")
    assert "secret" not in caught.value.message
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+cluster://host",
        "redis+cluster://host:1,other",
        "redis+cluster://host:1,:2",
        "redis+cluster://host:1/3",
        "redis+cluster://host:1?color=red",
        "http+cluster://host:1",
        "unix+cluster:///run/redis.sock",
        "redis+sentinel://host:1",
    ],
)
def test_a_cluster_url_that_is_none_is_refused_at_once(url: str):
    for open_any in (open_client, open_async_client):
        with pytest.raises(StoreError) as caught:
            open_any(url)
        assert not caught.value.retryable


def test_a_cluster_url_is_checked_without_a_server():
    check_url("redis+cluster://user:secret@nowhere:1,[::1]:2")
    check_url("rediss+cluster://nowhere:1?ssl_ca_certs=/etc/ca.pem")


def test_a_cluster_that_is_away_is_unavailable():
    url = f"redis+cluster://127.0.0.1:{free_port()}"
    with pytest.raises(StoreUnavailable), store_errors("get"), contextlib.closing(open_client(url)) as client:
        client.get("k")
    with pytest.raises(StoreUnavailable):
        open_node_client(url, "k")


def test_a_raw_connection_goes_to_the_node_that_has_the_key(index_servers: IndexServers):
    cluster = index_servers.get("cluster-7")
    for key in ("{a}", "{b}", "{c}", "{d}"):
        with contextlib.closing(open_node_client(cluster.url, key)) as client:
            client.set(key, "here")
            assert client.get(key) == b"here"
    single = index_servers.get("redis-7")
    with contextlib.closing(open_node_client(single.url, "k")) as client:
        client.set("k", "here")
