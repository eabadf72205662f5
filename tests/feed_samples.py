"""One engine, as tests of the feed know it."""

from typing import Final

from maskfeed_cache.feed_messages import Announcement, EngineRecord

__all__ = ["RECORD", "VOCABULARY", "announcement"]

RECORD: Final = EngineRecord(
    epoch="0123456789abcdef",
    group="default",
    fingerprint="f" * 64,
    logits_width=151_936,
    max_model_len=4_096,
    reserved_id=151_660,
    stop_token_ids=(151_643, 151_645),
    model="tiny",
    reasoning_parser=None,
    format_versions=(1,),
    n_ranks=2,
    engine_version="0.32.0",
)
VOCABULARY: Final = b"\x00vocabulary\xff"


def announcement(nonce: str, gateway: str = "g") -> Announcement:
    """One set for the request of `nonce`."""
    return Announcement("a" * 64, 1_234, nonce, 30_000, gateway)
