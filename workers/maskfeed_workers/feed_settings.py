"""The times of a rank's feed. Values only; read from an engine's settings by whoever builds the feed."""

from dataclasses import dataclass

__all__ = ["FeedSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """Times of one rank's feed. All ranks of an engine get the same."""

    # a round (fetch, map, verify, vote, acknowledge) is over after this
    round_timeout_s: float = 5.0
    # between renewals of the engine's lease; a third of it or less
    renew_interval_s: float = 2.0
    # a gateway is gone when its lease was missing for this long: one lease, so that a living one has renewed it
    gateway_grace_s: float = 6.0
    # attempts to get a lost store back come at least this often
    longest_retry_s: float = 2.0
    # all ranks have connected after this, or the engine does not start
    connect_timeout_s: float = 30.0
    # a store that is away while the engine registers is waited for this long: a start must not fail of its restart
    register_timeout_s: float = 10.0
    # `stop` waits no longer than this for the thread
    stop_timeout_s: float = 0.8
    # loads at once
    n_loaders: int = 4
