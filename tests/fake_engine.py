"""An engine for gateway tests: vLLM's HTTP routes and the engine's end of the feed, without a model.

Its answers are truly constrained: it reads the artifact that was announced from the blob store and walks a real cursor,
choosing tokens at random with a seed. What it shall do wrong is scripted in `Faults`. It does not check requests as
vLLM does. A vocabulary of all bytes and a few longer tokens is enough.
"""

import asyncio
import json
import os
import random
import secrets
import select
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from maskfeed_automata import FORMAT_VERSION, Automaton, Vocabulary
from maskfeed_automata import compile as compile_set
from maskfeed_automata.errors import MaskfeedError, StoreUnavailable
from maskfeed_cache.feed import EngineFeed
from maskfeed_cache.feed_messages import (
    Announcement,
    Clear,
    Dead,
    Ended,
    EngineEvent,
    EngineRecord,
    Failed,
    GatewayMessage,
    Ready,
)
from maskfeed_cache.handle import PROBE, Handle
from maskfeed_cache.store import BlobStore

# a third of the record's life
_RENEWAL_S = 2.0

__all__ = ["EOS", "RESERVED", "TEXT_TOKEN", "VOCABULARY", "FakeEngine", "Faults", "engine_record"]

_WORDS = (b"Pa", b"ris", b"Lon", b"don", b"get_", b"user", b"users", b" Paris", "é".encode(), "東京".encode()[:4])
EOS = 256 + len(_WORDS)
RESERVED = EOS + 1
TEXT_TOKEN = ord("P")
VOCABULARY = Vocabulary.from_token_bytes(
    [*(bytes([value]) for value in range(256)), *_WORDS, None, None], stop_token_ids=(EOS,)
)


def engine_record(epoch: str | None = None, **changes: Any) -> EngineRecord:
    """A record as such an engine publishes it."""
    fields: dict[str, Any] = {
        "epoch": epoch or secrets.token_hex(8),
        "group": "default",
        "fingerprint": VOCABULARY.fingerprint,
        "logits_width": VOCABULARY.size,
        "max_model_len": 64,
        "reserved_id": RESERVED,
        "stop_token_ids": (EOS,),
        "model": "fake",
        "reasoning_parser": None,
        "format_versions": (FORMAT_VERSION,),
        "n_ranks": 1,
        "engine_version": "0.32.0",
    }
    return EngineRecord(**(fields | changes))


@dataclass
class Faults:
    """What the engine does wrong. May be changed while it runs."""

    # answers with free text, as vLLM does when it runs without maskfeed
    has_no_plugin: bool = False
    # refuses every request's slot
    refuses: bool = False
    # status and body of every completion
    answers_with: tuple[int, str] | None = None
    # breaks the connection after this many events of a stream
    dies_after_events: int | None = None
    # breaks the connection instead of an answer
    dies: bool = False
    # generates nothing until it is let go
    hangs: bool = False
    # says no more after this many events of a stream, until it is let go
    hangs_after_events: int | None = None
    # says nothing about sets until `answer_announcements`
    is_slow: bool = False
    # answers announcements with this reason
    fails_with: str | None = None


@dataclass
class Seen:
    """What reached the engine."""

    announced: list[Announcement] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    cleared: list[Clear] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    # completions whose client went away before their end
    aborted: int = 0


class FakeEngine:
    """One replica. Enter it with a running event loop; `url` and `record` are valid from then on.

    Args:
        feed: the engine's end, fresh.
        blobs: where artifacts lie; borrowed.
        record: published; by default that of `engine_record()`.
        seed: of the choice among permitted tokens.
    """

    def __init__(
        self, feed: EngineFeed, blobs: BlobStore, *, record: EngineRecord | None = None, seed: int = 0
    ) -> None:
        self.record = record or engine_record()
        self.faults = Faults()
        self.seen = Seen()
        self.let_go = asyncio.Event()
        self.url = ""
        self._feed = feed
        self._blobs = blobs
        self._random = random.Random(seed)
        self._probe = compile_set(VOCABULARY, [self.record.epoch])
        self._held: dict[str, Automaton] = {}
        self._unanswered: list[Announcement] = []
        self._is_alive = True
        self._changed = threading.Condition()
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._follow_feed, name="fake-engine", daemon=True)
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._models)
        app.router.add_post("/v1/responses", self._raw_stream)
        app.router.add_post("/v1/embeddings", self._echo)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        await asyncio.to_thread(self._feed.register, self.record, VOCABULARY.to_bytes())
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.let_go.set()
        await asyncio.to_thread(self._stop_feed)
        assert self._runner is not None
        await self._runner.cleanup()

    async def until(self, predicate: Callable[[Seen], bool]) -> None:
        """Return when what was seen fulfils `predicate`; an error after 20 s."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: predicate(self.seen), timeout=20)

        assert await asyncio.to_thread(wait), f"not seen in time: {self.seen}"

    def answer_announcements(self) -> None:
        """Be slow no more: answer what was announced."""
        self.faults.is_slow = False
        with self._changed:
            waiting, self._unanswered = self._unanswered, []
        self._feed.publish([self._answer_to(announcement) for announcement in waiting])

    def forget_sets(self) -> None:
        """Hold nothing any more, as after a restart."""
        self._held.clear()

    def fall_silent(self) -> None:
        """End this life without a word: the record is gone and is not renewed. The HTTP server goes on."""
        self._is_alive = False
        self._feed.retire()

    def die(self, reason: str = "killed") -> None:
        """End this life: withdraw the record and say so. The HTTP server goes on."""
        self.fall_silent()
        self._feed.publish([Dead(self.record.epoch, reason)])

    # -- the feed ----------------------------------------------------------------------------------------------------

    def _follow_feed(self) -> None:
        while True:
            try:
                self._feed.arm()
                readable, _, _ = select.select([self._feed.fileno(), self._wake_reader], [], [], _RENEWAL_S)
                if self._wake_reader in readable:
                    return
                if self._is_alive:
                    self._feed.renew()
                messages = self._feed.receive() if readable else []
            except StoreUnavailable:
                if not self._reconnected():
                    return
                continue
            for message in messages:
                self._take(message)

    def _reconnected(self) -> bool:
        while not select.select([self._wake_reader], [], [], 0.02)[0]:
            try:
                self._feed.reconnect()
                self._feed.renew()
                return True
            except StoreUnavailable:
                continue
        return False

    def _take(self, message: GatewayMessage) -> None:
        with self._changed:
            if isinstance(message, Clear):
                self.seen.cleared.append(message)
            elif isinstance(message, Ended):
                self.seen.ended.append(message.nonce)
            else:
                self.seen.announced.append(message)
                if self.faults.is_slow:
                    self._unanswered.append(message)
                else:
                    self._feed.publish([self._answer_to(message)])
            self._changed.notify_all()

    def _answer_to(self, announcement: Announcement) -> EngineEvent:
        about = (announcement.artifact_hash, self.record.epoch, announcement.nonce)
        if self.faults.fails_with is not None:
            return Failed(*about, self.faults.fails_with)
        try:
            blob = self._blobs.get(announcement.artifact_hash)
            self._held[announcement.artifact_hash] = Automaton.from_bytes(blob, VOCABULARY)
        except MaskfeedError as error:
            return Failed(*about, f"{error.code}: {error.message}")
        return Ready(*about)

    def _stop_feed(self) -> None:
        os.write(self._wake_writer, b"!")
        self._thread.join()
        self._feed.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    # -- HTTP --------------------------------------------------------------------------------------------------------

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await self._note(request)
        if self.faults.hangs and not _is_probe(body):
            await self._wait_to_be_let_go()
        if self.faults.dies and request.transport is not None:
            request.transport.abort()
        if self.faults.answers_with is not None:
            status, text = self.faults.answers_with
            return web.Response(status=status, text=text, content_type="application/json")
        n = body.get("n") or 1
        choices = [self._generate(body) for _ in range(n)]
        if body.get("stream"):
            return await self._stream(request, body, choices)
        return web.json_response(_response(request.path, body, choices))

    async def _wait_to_be_let_go(self) -> None:
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            with self._changed:
                self.seen.aborted += 1
                self._changed.notify_all()
            raise

    def _generate(self, body: dict[str, Any]) -> tuple[list[int], str, int | None]:
        """Token ids, finish reason, stop reason."""
        text = body.get("vllm_xargs", {}).get("maskfeed")
        if text is None or self.faults.has_no_plugin:
            return [*b"free text", EOS], "stop", None
        handle = Handle.from_text(text)
        automaton = self._probe if handle.artifact_hash == PROBE else self._held.get(handle.artifact_hash)
        known = self.record.epoch in handle.epochs and automaton is not None
        if not known or (self.faults.refuses and handle.artifact_hash != PROBE):
            return [self.record.reserved_id], "stop", self.record.reserved_id
        assert automaton is not None
        cursor = automaton.with_stop_token_ids((EOS,)).cursor()
        token_ids: list[int] = []
        while not cursor.is_finished and len(token_ids) < body["max_tokens"]:
            token_ids.append(int(self._random.choice(cursor.allowed_token_ids())))
            cursor.advance(token_ids[-1])
        return token_ids, "stop" if cursor.is_finished else "length", None

    async def _stream(
        self, request: web.Request, body: dict[str, Any], choices: list[tuple[list[int], str, int | None]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = list(_events(request.path, body, choices))
        for number, event in enumerate(events):
            if number == self.faults.dies_after_events and request.transport is not None:
                request.transport.abort()
                return response
            if number == self.faults.hangs_after_events:
                await self._wait_to_be_let_go()
            await response.write(b"data: " + event + b"\n\n")
        return response

    async def _models(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.json_response({"object": "list", "data": [{"id": "fake"}]}, headers={"Server": "fake-engine"})

    async def _raw_stream(self, request: web.Request) -> web.StreamResponse:
        """Events in pieces that respect neither lines nor characters."""
        await self._note(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in RAW_PIECES:
            await response.write(piece)
        return response

    async def _echo(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.Response(body=self.seen.bodies[-1], headers={"X-Engine": "fake"}, status=201)

    async def _note(self, request: web.Request) -> dict[str, Any]:
        raw = await request.read()
        body: dict[str, Any] = json.loads(raw) if raw else {}
        with self._changed:
            self.seen.bodies.append(raw)
            self.seen.headers.append(request.headers.copy())
            self.seen.requests.append(body)
            self._changed.notify_all()
        return body


RAW_PIECES = (b"event: x\r\nda", b'ta: {"t":"\xe6\x9d', b'\xb1"}\r\n\r', b"\n: comment\n\ndata: [DONE]\n\n")


def _is_probe(body: dict[str, Any]) -> bool:
    return f":{PROBE}:" in body.get("vllm_xargs", {}).get("maskfeed", "")


def _text(token_ids: list[int]) -> str:
    return b"".join(VOCABULARY.token_bytes(token_id) or b"" for token_id in token_ids).decode(errors="replace")


def _response(path: str, body: dict[str, Any], choices: list[tuple[list[int], str, int | None]]) -> dict[str, Any]:
    is_chat = path == "/v1/chat/completions"
    found = []
    for index, (token_ids, finish_reason, stop_reason) in enumerate(choices):
        text = _text(token_ids)
        content = {"message": {"role": "assistant", "content": text, "reasoning": None}} if is_chat else {"text": text}
        common = {"index": index, "finish_reason": finish_reason, "stop_reason": stop_reason, "logprobs": None}
        found.append({**common, **content, "token_ids": token_ids if body.get("return_token_ids") else None})
    n_tokens = sum(len(token_ids) for token_ids, _, _ in choices)
    return {
        "id": "cmpl-1",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 1,
        "model": "fake",
        "choices": found,
        "usage": {"prompt_tokens": 3, "completion_tokens": n_tokens, "total_tokens": n_tokens + 3},
    }


def _events(path: str, body: dict[str, Any], choices: list[tuple[list[int], str, int | None]]) -> list[bytes]:
    is_chat = path == "/v1/chat/completions"
    head = {"id": "cmpl-1", "object": "chat.completion.chunk" if is_chat else "text_completion", "model": "fake"}
    events: list[dict[str, Any]] = []
    if is_chat:
        events += [
            {
                **head,
                "choices": [{"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
            }
            for index in range(len(choices))
        ]
    for index, (token_ids, finish_reason, stop_reason) in enumerate(choices):
        for position, token_id in enumerate(token_ids):
            last = position == len(token_ids) - 1
            text = _text([token_id])
            choice = {
                "index": index,
                **({"delta": {"content": text}} if is_chat else {"text": text}),
                "token_ids": [token_id] if body.get("return_token_ids") else None,
                "finish_reason": finish_reason if last else None,
                "stop_reason": stop_reason if last else None,
            }
            events.append({**head, "choices": [choice]})
    return [*(json.dumps(event).encode() for event in events), b"[DONE]"]
