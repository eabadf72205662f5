"""Proof that a URL leads to the engines of a group, and that they enforce masks.

Each engine compiles at its start a set whose only candidate is its own epoch. A request for that set can be answered
with the epoch only by that engine, and only if its masks work; an engine without maskfeed answers with free text.
This module knows the probe's wire format, not when to prove. Invariant: it returns only if each engine has answered.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from maskfeed.service.exchange import Headers, Upstream
from maskfeed_automata import Vocabulary
from maskfeed_automata.errors import EngineNotReady, UpstreamError, VocabularyError
from maskfeed_cache.feed_messages import EngineRecord
from maskfeed_cache.handle import HANDLE_KEY, PROBE, Handle

__all__ = ["prove"]

# A balancer that picks replicas at random reaches each of 8 within 64 tries with probability 0.998.
_TRIES_PER_ENGINE: Final = 8


async def prove(
    upstream: Upstream,
    records: Sequence[EngineRecord],
    vocabulary: Vocabulary,
    *,
    headers: Headers,
    new_nonce: Callable[[], str],
) -> None:
    """Return when every engine of `records` has answered a probe through the URL.

    Args:
        upstream: the URL in question.
        records: the live engines of one group; they agree on vocabulary and reserved id.
        vocabulary: theirs.
        headers: sent with each probe (authorisation).
        new_nonce: 32 fresh hex digits at each call.

    Raises:
        EngineNotReady: an answer that no live engine gives, or an engine that was not reached in a bounded number of
            tries.
        UpstreamError: the server can't be reached.
    """
    live = {record.epoch for record in records}
    missing = set(live)
    for _ in range(_TRIES_PER_ENGINE * len(live)):
        epoch = await _ask(upstream, records, vocabulary, headers, new_nonce())
        if epoch not in live:
            raise EngineNotReady(
                "the engine's server answered a probe with text that no engine of the group gives: the URL belongs to "
                "another group, or an engine behind it runs without maskfeed",
                stage="proof",
            )
        missing.discard(epoch)
        if not missing:
            return
    raise EngineNotReady(
        f"{len(missing)} of {len(live)} engines of the group were never reached through the URL", stage="proof"
    )


async def _ask(
    upstream: Upstream, records: Sequence[EngineRecord], vocabulary: Vocabulary, headers: Headers, nonce: str
) -> str | None:
    record = records[0]
    epochs = tuple(sorted(each.epoch for each in records))
    handle = Handle(artifact_hash=PROBE, epochs=epochs, reserved_id=record.reserved_id, nonce=nonce)
    request = {
        "model": record.model,
        "prompt": "maskfeed",
        # an epoch is ASCII, so it never needs more tokens than bytes; and one stop id
        "max_tokens": len(record.epoch) + 1,
        "temperature": 0,
        "stop_token_ids": [record.reserved_id],
        "return_token_ids": True,
        "vllm_xargs": {HANDLE_KEY: handle.to_text()},
    }
    # a balancer of connections chooses an engine for each of them, so each probe needs its own
    sent = (*headers, ("Content-Type", "application/json"), ("Accept-Encoding", "identity"), ("Connection", "close"))
    async with upstream.open("POST", "/v1/completions", headers=sent, body=msgspec.json.encode(request)) as response:
        body = await response.read()
        if response.status != 200:
            raise EngineNotReady(f"the engine's server answered a probe with status {response.status}", stage="proof")
    return _epoch_in(body, record, vocabulary)


def _epoch_in(body: bytes, record: EngineRecord, vocabulary: Vocabulary) -> str | None:
    try:
        choice: dict[str, Any] = msgspec.json.decode(body)["choices"][0]
        refused = choice.get("stop_reason") == record.reserved_id
        ids: list[int] = choice["token_ids"]
        stops = {record.reserved_id, *record.stop_token_ids}
        text = vocabulary.text_bytes([token_id for token_id in ids if token_id not in stops])
    except (msgspec.DecodeError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise UpstreamError("the engine's server answered a probe with something that is no completion") from error
    except VocabularyError:
        return None
    if refused:
        raise EngineNotReady("an engine behind the URL refused the probe: its epoch is not in the group", stage="proof")
    return text.decode("ascii", errors="replace")
