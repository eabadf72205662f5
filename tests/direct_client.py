"""Somebody who speaks to an engine's feed and to its HTTP server himself, without a gateway.

For tests of the engine alone: it announces sets, waits until they are ready, and asks with handles of its own making,
right ones and wrong ones.
"""

import asyncio
import secrets
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import aiohttp

from maskfeed_automata import CandidateSet, Vocabulary, build
from maskfeed_cache.feed_messages import Announcement, Dead, EngineEvent, EngineRecord, Failed, Gap, Ready
from maskfeed_cache.fence import Fence
from maskfeed_cache.handle import Handle
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.redis_gateway_feed import RedisGatewayFeed
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_cache.store import hash_blob

__all__ = ["DirectClient", "SetFailed"]


class SetFailed(Exception):
    """An engine could not take a set; the text is its reason."""


class DirectClient:
    """One client of one engine. An asynchronous context manager; entered once the engine is registered.

    Args:
        engine_url: of vLLM's server.
        redis_url: of the feed.
        group: the engine's.
        answer_s: a request or a READY that takes longer is an error.
    """

    def __init__(self, engine_url: str, redis_url: str, *, group: str = "default", answer_s: float = 60.0) -> None:
        self.engine_url = engine_url
        self.keys = Keyspace(group=group)
        self.feed = RedisGatewayFeed(redis_url, self.keys)
        self.blobs = RedisBlobStore(redis_url, self.keys)
        self.fence = Fence(secrets.token_hex(16), 1)
        self.record: EngineRecord
        self.vocabulary: Vocabulary
        self.deaths: asyncio.Queue[Dead] = asyncio.Queue()
        self._answer_s = answer_s
        self._answers: dict[str, asyncio.Future[EngineEvent]] = {}
        self._listening: asyncio.Task[None]
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        await self.feed.start()
        self._listening = asyncio.create_task(self._listen())
        timeout = aiohttp.ClientTimeout(total=self._answer_s)
        self._http = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=200))
        await self.look_up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()
        await self.feed.close()
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening
        self.blobs.close()

    async def look_up(self) -> None:
        """Read the record of the group's only engine, and its vocabulary."""
        (self.record,) = await self.feed.engines()
        self.vocabulary = Vocabulary.from_bytes(await self.feed.vocabulary(self.record.fingerprint))

    def artifact(self, candidates: list[str]) -> bytes:
        """The compiled set."""
        return build(self.vocabulary, CandidateSet.from_strings(candidates)).to_bytes()

    async def announce(self, blob: bytes, nonce: str, *, lifetime_ms: int = 60_000) -> EngineEvent:
        """Announce an artifact, stored or not, and wait for the engine's answer."""
        answer = self._answers[nonce] = asyncio.get_running_loop().create_future()
        await self.feed.announce(
            Announcement(
                *(hash_blob(blob), len(blob), nonce, lifetime_ms, self.feed.gateway),
                cache_epoch=self.fence.epoch,
                generation=self.fence.generation,
            )
        )
        async with asyncio.timeout(self._answer_s):
            return await answer

    async def ready(self, candidates: list[str]) -> Handle:
        """Have the engine hold a set, and make the handle for it.

        Raises:
            SetFailed: the engine could not take it.
        """
        blob, nonce = self.artifact(candidates), new_nonce()
        await asyncio.to_thread(self.blobs.put, blob)
        event = await self.announce(blob, nonce)
        if not isinstance(event, Ready):
            raise SetFailed(event.reason if isinstance(event, Failed) else repr(event))
        return self.handle(hash_blob(blob), nonce)

    def handle(self, artifact_hash: str, nonce: str | None = None) -> Handle:
        """A handle that this engine would take if it held the set."""
        return Handle(artifact_hash, (self.record.epoch,), self.record.reserved_id, nonce or new_nonce())

    async def end(self, *handles: Handle) -> None:
        """The requests of these handles are over."""
        await self.feed.end([handle.nonce for handle in handles])

    async def complete(self, handle: Handle, **fields: Any) -> tuple[int, dict[str, Any]]:
        """Ask for a completion; status and body."""
        body = {
            "model": self.record.model,
            "prompt": "Name one:",
            "max_tokens": 100,
            "stop_token_ids": [handle.reserved_id],
            "return_token_ids": True,
            "vllm_xargs": {"maskfeed": handle.to_text()},
            **fields,
        }
        async with self._http.post(f"{self.engine_url}/v1/completions", json=body) as response:
            return response.status, await response.json()

    def is_refusal(self, choice: dict[str, Any]) -> bool:
        """Whether the engine said: I do not have this set."""
        return choice["stop_reason"] == self.record.reserved_id and choice["text"] == ""

    async def _listen(self) -> None:
        async for event in self.feed.events():
            if isinstance(event, Dead):
                self.deaths.put_nowait(event)
            elif (
                not isinstance(event, Gap)
                and (waiting := self._answers.pop(event.nonce, None)) is not None
                and not waiting.done()
            ):
                waiting.set_result(event)


def new_nonce() -> str:
    """Fresh, as a gateway makes it."""
    return secrets.token_hex(16)
