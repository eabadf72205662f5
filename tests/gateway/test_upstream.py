"""The engine's HTTP server as the gateway speaks to it."""

import socket
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from maskfeed.service.exchange import end_to_end
from maskfeed.service.upstream import HttpUpstream, client_session
from maskfeed_automata.errors import UpstreamError


@asynccontextmanager
async def server(handler):
    """A server for one handler on every path; the upstream for it, and the requests that came."""
    seen = []

    async def note(request):
        seen.append((request, await request.read()))
        return await handler(request)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", note)
    runner = web.AppRunner(app, auto_decompress=False, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with client_session(silence_timeout_s=5) as session:
        yield HttpUpstream(session, f"http://127.0.0.1:{runner.addresses[0][1]}/"), seen
    await runner.cleanup()


async def fine(request):
    return web.Response(text="fine")


async def read(upstream, method="GET", target="/", headers=(), body=b""):
    async with upstream.open(method, target, headers=headers, body=body) as response:
        return response, await response.read()


async def test_the_target_is_sent_as_the_client_wrote_it():
    async with server(fine) as (upstream, seen):
        await read(upstream, target="/v1/models/a%2Fb?q=%20&r=%C3%A9")
    assert seen[0][0].raw_path == "/v1/models/a%2Fb?q=%20&r=%C3%A9"


async def test_no_header_is_added_that_the_client_did_not_send():
    async with server(fine) as (upstream, seen):
        await read(upstream, "POST", headers=(("X-A", "1"),), body=b"{}")
    names = {name.lower() for name in seen[0][0].headers}
    assert names == {"host", "x-a", "content-length"}


async def test_a_large_body_arrives_whole():
    body = b"x" * 5_000_000
    async with server(fine) as (upstream, seen):
        await read(upstream, "POST", body=body)
    assert seen[0][1] == body


async def test_an_answer_is_neither_decompressed_nor_redirected():
    async def zipped(request):
        return web.Response(status=307, body=b"\x1f\x8b", headers={"Content-Encoding": "gzip", "Location": "/x"})

    async with server(zipped) as (upstream, seen):
        response, body = await read(upstream)
    assert (response.status, body, len(seen)) == (307, b"\x1f\x8b", 1)


async def test_a_cookie_of_one_client_is_not_sent_for_another():
    async def baker(request):
        return web.Response(headers={"Set-Cookie": "a=b"})

    async with server(baker) as (upstream, seen):
        await read(upstream)
        await read(upstream)
    assert "Cookie" not in seen[1][0].headers


async def test_a_server_that_is_not_there_is_an_upstream_error():
    async with client_session(silence_timeout_s=5) as session:
        with pytest.raises(UpstreamError) as caught:
            await read(HttpUpstream(session, "http://127.0.0.1:9"))
    assert caught.value.context["stage"] == "connect"
    assert "127.0.0.1" not in caught.value.message


async def broken_off(request):
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"begun")
    request.transport.close()
    return response


@pytest.mark.parametrize("way", ["read", "chunks"])
async def test_an_answer_that_breaks_off_is_an_upstream_error(way):
    async with server(broken_off) as (upstream, _), upstream.open("GET", "/", headers=(), body=b"") as response:
        with pytest.raises(UpstreamError):
            await (response.read() if way == "read" else _drained(response.chunks()))


async def _drained(chunks):
    return [chunk async for chunk in chunks]


async def test_a_silent_server_is_an_upstream_error():
    # the kernel takes the connection, and nobody ever reads from it
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with client_session(silence_timeout_s=0.05) as session:
            with pytest.raises(UpstreamError):
                await read(HttpUpstream(session, f"http://127.0.0.1:{listener.getsockname()[1]}"))


def test_headers_of_one_connection_do_not_cross():
    headers = [
        ("Connection", "close, X-Mine"),
        ("x-mine", "1"),
        ("TE", "trailers"),
        ("Set-Cookie", "a"),
        ("set-cookie", "b"),
    ]
    assert end_to_end(headers) == (("Set-Cookie", "a"), ("set-cookie", "b"))
    assert end_to_end(headers, without=("set-cookie",)) == ()
