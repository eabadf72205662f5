"""Metrics and log lines of the gateway.

The only module that imports a metrics library. It decides names and labels, not when something happens. Invariants:
labels are bounded (stages, outcomes, codes, results), and neither candidate text nor a digest ever becomes a label or a
log field.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from maskfeed.queue.ticket import END_STATES, Ticket
from maskfeed_cache.shared_cache import Outcome, Source

__all__ = ["METRICS_CONTENT_TYPE", "SERVER_LOG", "Telemetry", "log_event"]

METRICS_CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

# Seconds: a hit passes in under a millisecond, a set of a million compiles in about one second.
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_LOOKUP_RESULTS: Final = {Source.HIT: "hit", Source.COMPILED: "miss", Source.WAITED: "waited"}

_LOG = logging.getLogger("maskfeed.gateway")
# for the HTTP server's own lines
SERVER_LOG: Final = logging.getLogger("maskfeed.http")


class _ClientsFaultInOneLine(logging.Filter):
    """What is no HTTP, and a client that leaves within its answer, need no traceback; what was sent is not repeated."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            _rewrite(record, logging.WARNING, "event=broken-http status=%d kind=%s", error.code, type(error).__name__)
        elif isinstance(error, ConnectionError):
            _rewrite(record, logging.INFO, "event=client-left")
        return True


def _rewrite(record: logging.LogRecord, highest_level: int, message: str, *arguments: object) -> None:
    record.levelno = min(record.levelno, highest_level)
    record.levelname = logging.getLevelName(record.levelno)
    record.msg, record.args = message, arguments
    record.exc_info = None


SERVER_LOG.addFilter(_ClientsFaultInOneLine())


def log_event(name: str, values: Mapping[str, object], *, level: int = logging.INFO) -> None:
    """Write one line: the event's stable name, then its fields."""
    if _LOG.isEnabledFor(level):
        _LOG.log(level, " ".join([f"event={name}", *(f"{key}={_plain(value)}" for key, value in values.items())]))


class Telemetry:
    """Counts what happens in one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._stages = Histogram(
            "maskfeed_stage_seconds",
            "Time that finished requests spent in each stage",
            ["stage"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._requests = Counter(
            "maskfeed_requests", "Constrained requests by how they ended", ["outcome"], registry=self._registry
        )
        self._errors = Counter("maskfeed_errors", "Errors told to clients", ["code"], registry=self._registry)
        self._lookups = Counter(
            "maskfeed_set_lookups", "Candidate sets looked up in the cache", ["result"], registry=self._registry
        )
        self._compiles = Counter(
            "maskfeed_compiles", "Compiles by what became of them in the cache", ["outcome"], registry=self._registry
        )
        self._forwarded = Counter(
            "maskfeed_forwarded_requests", "Requests passed on unchanged", ["kind"], registry=self._registry
        )
        self._in_flight = Gauge(
            "maskfeed_requests_in_flight", "Constrained requests between receipt and end", registry=self._registry
        )

    def watch(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Publish a gauge whose value is read when it is scraped.

        Args:
            name: without the prefix, `<noun>_<unit>`.
            documentation: one line.
            read: cheap; called on the event loop.
        """
        Gauge(f"maskfeed_{name}", documentation, registry=self._registry).set_function(read)

    def received(self) -> None:
        """A constrained request began."""
        self._in_flight.inc()

    def moved(self, ticket: Ticket) -> None:
        """A ticket entered a state."""
        if ticket.state not in END_STATES:
            return
        self._in_flight.dec()
        self._requests.labels(ticket.state).inc()
        for stage, seconds in ticket.seconds_by_stage().items():
            self._stages.labels(stage).observe(seconds)
        times = {f"{stage}_ms": round(s * 1000, 3) for stage, s in ticket.seconds_by_stage().items()}
        ended = {"outcome": ticket.state, "stage": ticket.stage, "code": ticket.failure or "-"}
        log_event("request-ended", {**ended, **times})

    def looked_up(self, source: Source) -> None:
        """A set was found, compiled here, or compiled by another request or gateway meanwhile."""
        self._lookups.labels(_LOOKUP_RESULTS[source]).inc()

    def compiled(self, outcome: Outcome) -> None:
        """A compile that this gateway began has ended."""
        self._compiles.labels(outcome).inc()

    def forwarded(self, kind: str) -> None:
        """A request went on unchanged. `kind`: native or pass-through."""
        self._forwarded.labels(kind).inc()

    def failed(self, code: str) -> None:
        """A client was told of an error of ours."""
        self._errors.labels(code).inc()

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


def _plain(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(character.isspace() or character in "='\"" for character in text) else text
