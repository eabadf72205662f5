"""Composition root of the engine side: from vLLM's configuration to a live rank.

The one place that chooses implementations inside an engine process. It reads the tokenizer, agrees with the other ranks
on what the engine is, builds the feed, and goes live only after the processor's self-test. Invariants: an engine that
can't do all of this does not start, and says why; no gateway hears of an engine before every rank of it has passed its
self-test and is connected.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.tokenizers.registry import cached_tokenizer_from_config

from maskfeed_automata import FORMAT_VERSION, Vocabulary, compile, load_tokenizer_automaton, warm_kernels
from maskfeed_automata.errors import EngineUnsupported
from maskfeed_cache.feed_messages import EngineRecord
from maskfeed_cache.handle import PROBE
from maskfeed_cache.keys import Keyspace
from maskfeed_cache.redis_engine_feed import RedisEngineFeed
from maskfeed_cache.redis_store import RedisBlobStore
from maskfeed_workers.admission import Admission
from maskfeed_workers.agreement import Agreement, Alone, Follower, GiveUpOnError, Leader, end_this_process
from maskfeed_workers.device_sets import DeviceSets
from maskfeed_workers.engine_checks import check_configuration, check_version
from maskfeed_workers.engine_identity import (
    EngineIdentity,
    choose_reserved_id,
    exclude_stop_ids,
    model_stop_ids,
    new_epoch,
)
from maskfeed_workers.engine_place import Place, find_place
from maskfeed_workers.engine_settings import EngineSettings
from maskfeed_workers.feed import RankFeed
from maskfeed_workers.feed_settings import FeedSettings
from maskfeed_workers.held_sets import HeldSets
from maskfeed_workers.loading import artifact_loader, onto_device
from maskfeed_workers.shared_files import SharedFiles
from maskfeed_workers.slots import SlotTable

__all__ = ["Engine", "start_engine"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One rank of one engine, for one life of it."""

    epoch: str
    vocabulary: Vocabulary
    stop_token_ids: tuple[int, ...]
    reserved_id: int
    logits_width: int
    max_rows: int
    admission: Admission
    # None offline
    feed: RankFeed | None
    # V2 runner: sets on the device; None on V1, whose walk is on the host
    device_sets: DeviceSets | None
    # around all that the engine calls once it is live
    guard: AbstractContextManager[None]

    def new_table(self) -> SlotTable:
        """A table as wide as the engine's batch."""
        return SlotTable(self.vocabulary, self.max_rows)

    def go_live(self) -> None:
        """Connect the ranks, register with the group and listen.

        Raises:
            RankFailure: the ranks could not connect in time.
            StoreUnavailable: Redis does not answer.
        """
        if self.feed is not None:
            self.feed.start()
        _log.info(
            "maskfeed: epoch %s, %d token ids, reserved id %d, %s",
            self.epoch,
            self.vocabulary.size,
            self.reserved_id,
            "inline candidates only" if self.feed is None else "feed is live",
        )

    def stop(self) -> None:
        """Leave the group. Idempotent."""
        if self.feed is not None:
            self.feed.stop()


def start_engine(
    vllm_config: Any, cls: type, environ: Mapping[str, str], *, v2_device: torch.device | None = None
) -> Engine:
    """Check, read the tokenizer, build everything; nothing is published yet.

    Args:
        vllm_config: of the engine.
        cls: the processor's class.
        environ: of this process.
        v2_device: where the V2 runner keeps its state; None under the V1 runner.

    Raises:
        EngineUnsupported: version, configuration, settings or model under which a mask could be wrong.
        VocabularyError: a tokenizer whose token bytes can't be told exactly.
    """
    _log_like_vllm()
    check_version(vllm.__version__)
    check_configuration(vllm_config, cls, "v1" if v2_device is None else "v2")
    place = find_place()
    settings = place.broadcast(EngineSettings.from_mappings(vllm_config.additional_config, environ))
    warm_kernels()
    model = vllm_config.model_config
    tokenizer = cached_tokenizer_from_config(model)
    if tokenizer is None:
        raise EngineUnsupported("the tokenizer is needed", field="skip_tokenizer_init")
    logits_width = model.get_vocab_size()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, logits_width=logits_width)
    stop_ids = model_stop_ids(
        tokenizer.eos_token_id, model.try_get_generation_config().get("eos_token_id"), vocabulary.size
    )
    vocabulary = exclude_stop_ids(vocabulary, stop_ids)
    load_tokenizer_automaton(vocabulary, cache_directory=settings.cache_dir)
    own = EngineIdentity(
        epoch=new_epoch(),
        fingerprint=vocabulary.fingerprint,
        logits_width=logits_width,
        reserved_id=choose_reserved_id(vocabulary, stop_ids, logits_width),
        stop_token_ids=stop_ids,
    )
    identity = own.adopt(place.broadcast(own))
    device_sets = None if v2_device is None else _device_sets(settings, v2_device)
    feed = None
    if settings.redis_url is not None:
        record = _record(vllm_config, identity, settings, place)
        feed = _build_feed(place, settings, settings.redis_url, vocabulary, record, device_sets)
    admission = Admission(
        vocabulary=vocabulary,
        logits_width=logits_width,
        max_model_len=model.max_model_len,
        reserved_id=identity.reserved_id,
        epoch=identity.epoch,
        agreement=None if feed is None else _agreement(place, feed.held),
    )
    return Engine(
        epoch=identity.epoch,
        vocabulary=vocabulary,
        stop_token_ids=stop_ids,
        reserved_id=identity.reserved_id,
        logits_width=logits_width,
        max_rows=vllm_config.scheduler_config.max_num_seqs,
        admission=admission,
        feed=feed,
        device_sets=device_sets,
        guard=nullcontext() if place.rank == 0 else GiveUpOnError(end_this_process),
    )


def _log_like_vllm() -> None:
    """Send our packages' log lines where vLLM sends its own; nobody else has set up logging in a worker process."""
    theirs = logging.getLogger("vllm")
    for name in ("maskfeed_workers", "maskfeed_cache"):
        ours = logging.getLogger(name)
        if not ours.handlers:
            ours.setLevel(theirs.level)
            ours.propagate = False
            for handler in theirs.handlers:
                ours.addHandler(handler)


def _reasoning_parser(structured_outputs: Any) -> str | None:
    """The parser after whose end this engine's native constraints begin; None where they begin with the first token."""
    return None if structured_outputs.enable_in_reasoning else structured_outputs.reasoning_parser or None


def _record(vllm_config: Any, identity: EngineIdentity, settings: EngineSettings, place: Place) -> EngineRecord:
    model = vllm_config.model_config
    return EngineRecord(
        epoch=identity.epoch,
        group=settings.group,
        fingerprint=identity.fingerprint,
        logits_width=identity.logits_width,
        max_model_len=model.max_model_len,
        reserved_id=identity.reserved_id,
        stop_token_ids=identity.stop_token_ids,
        model=model.served_model_name,
        reasoning_parser=_reasoning_parser(vllm_config.structured_outputs_config),
        format_versions=(FORMAT_VERSION,),
        n_ranks=place.size,
        engine_version=vllm.__version__,
    )


def _agreement(place: Place, held: HeldSets) -> Agreement:
    if place.size == 1:
        return Alone(held)
    if place.rank == 0:
        return Leader(held, place.broadcast)
    return Follower(held, lambda: place.broadcast(None), end_this_process)


def _device_sets(settings: EngineSettings, device: torch.device) -> DeviceSets:
    # Beside the held sets there may be the probe's.
    return DeviceSets(device=device, arena_bytes=settings.device_arena_bytes, max_sets=settings.held_limit_sets + 1)


def _build_feed(
    place: Place,
    settings: EngineSettings,
    redis_url: str,
    vocabulary: Vocabulary,
    record: EngineRecord,
    device_sets: DeviceSets | None,
) -> RankFeed:
    limit_bytes = settings.held_limit_bytes
    keys = Keyspace(group=settings.group)
    blobs = RedisBlobStore(redis_url, keys)
    files = SharedFiles(Path(settings.shm_dir))
    load = artifact_loader(files, blobs, vocabulary)
    # What proves to a gateway that its URL leads to this engine: nobody else can be made to say this epoch.
    probe = compile(vocabulary, [record.epoch])
    if device_sets is not None:
        device_sets.place(PROBE, probe)
        # A set takes no more bytes on the device than its artifact has, so what is held finds room there. (A member
        # that still follows rank 0's words keeps what rank 0 forgot; if that leaves no room, its vote is a failed one.)
        limit_bytes = min(limit_bytes, device_sets.arena_bytes - device_sets.size_bytes())
        load = onto_device(load, device_sets)
    held = HeldSets(limit_bytes=limit_bytes, max_sets=settings.held_limit_sets)
    held.hold_permanently(PROBE, probe)
    return RankFeed(
        rank=place.rank,
        size=place.size,
        exchange=place.exchange,
        vocabulary=vocabulary,
        blobs=blobs,
        shared_files=files,
        held=held,
        engine_feed=RedisEngineFeed(redis_url, keys) if place.rank == 0 else None,
        epoch=record.epoch,
        record=record if place.rank == 0 else None,
        clock=time.monotonic,
        settings=FeedSettings(round_timeout_s=settings.round_deadline_ms / 1e3),
        load=load,
        forgotten=None if device_sets is None else device_sets.evict,
    )
