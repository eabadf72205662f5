"""A balancer of connections, as a Service of Kubernetes is one: it never looks into what passes through it."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["ConnectionBalancer"]


class ConnectionBalancer:
    """One URL in front of several servers of this machine: each connection goes to the next one that takes it.

    Args:
        ports: of the servers; more may be added to `ports` at any time.
    """

    def __init__(self, *ports: int) -> None:
        self.ports = list(ports)
        self.url = ""
        self._turn = 0
        self._server: asyncio.Server
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in self.ports:
                self._turn += 1
                with suppress(ConnectionRefusedError):
                    from_server, to_server = await asyncio.open_connection(
                        "127.0.0.1", self.ports[self._turn % len(self.ports)]
                    )
                    await _both_ways(reader, to_server, from_server, writer)
                    return
        finally:
            writer.close()


async def _both_ways(
    from_client: asyncio.StreamReader,
    to_server: asyncio.StreamWriter,
    from_server: asyncio.StreamReader,
    to_client: asyncio.StreamWriter,
) -> None:
    """Until one side closes."""
    ways = [
        asyncio.create_task(_pass_on(from_client, to_server)),
        asyncio.create_task(_pass_on(from_server, to_client)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        to_server.close()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
