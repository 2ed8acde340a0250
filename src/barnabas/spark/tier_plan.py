"""Which records of a query are read straight from the object store: planned on the driver.

The cluster says how far each partition is tiered and in which leader epoch, `__remote_log_metadata` says which segments there
are, and the newest segment says which epochs the log has had: segments that agree with these belong to the log. Offsets were
resolved before, so the records are those that the brokers would return: nothing above the last stable offset is ever tiered.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from barnabas.base.errors import BarnabasError, ConfigError, ErrorCode, Malformed
from barnabas.base.ids import Offset, ProducerId, TopicId, TopicPartition
from barnabas.base.topics import REMOTE_LOG_METADATA_TOPIC
from barnabas.base.words import EARLIEST, LATEST, LATEST_TIERED, ConfigResourceType
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.layout import Part
from barnabas.broker.features.tiered.lineage import Piece, pieces
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.metadata_records import decode_records, metadata_partition
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment, TierPartition, partition_of_event
from barnabas.broker.features.tiered.store import Store, open_store
from barnabas.broker.storage.checkpoints import parse_epochs
from barnabas.broker.storage.epoch_cache import LeaderEpochCache
from barnabas.broker.storage.txn_index import AbortedTxn
from barnabas.client.admin import configs as config_admin
from barnabas.client.admin import partitions as partition_admin
from barnabas.client.admin.partitions import ListedOffset
from barnabas.client.blocking import BlockingClient
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.spark.lookup import OffsetLookup
from barnabas.spark.offsets import OffsetRange
from barnabas.spark.options import SourceOptions, TierReads
from barnabas.spark.tier_slices import TierSlice, aborted_in, cut, get_indexes, index_places

_log: Final = logging.getLogger("barnabas.spark")

#: Half a second's work, as for files on disk.
SLICE_BYTES: Final = 256 << 20
_URL: Final = "barnabas.remote.storage.url"
_FETCH_BYTES: Final = 4 << 20
_FOREVER: Final = 1 << 62
#: How long a broker may wait before it answers without records.
_WAIT_MS: Final = 500


class Plan(NamedTuple):
    """The slices to read from the store, and the ranges to read from brokers: together they are the requested ranges."""

    url: str
    slices: list[TierSlice]
    ranges: list[OffsetRange]


class _Metadata(NamedTuple):
    """A partition of the metadata topic, read up to `position`."""

    position: int
    caches: dict[TierPartition, RemoteLogMetadataCache]


class TierPlanner:
    """Owner: a query's reader on the driver. Remembers its position in the metadata topic."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._read: dict[int, _Metadata] = {}
        #: The reason why this query never reads the store; "" if it may.
        self._why_not = "tierReads=never" if options.tier_reads is TierReads.NEVER else ""

    def plan(self, lookup: OffsetLookup, ranges: Sequence[OffsetRange], *, max_bytes: int = SLICE_BYTES) -> Plan:
        """Plan the ranges. Raises `ConfigError` with tierReads=direct if the store cannot be read."""
        nothing = Plan("", [], list(ranges))
        if self._why_not or not ranges:
            return nothing
        try:
            return self._plan(lookup, [each for each in ranges if each.size], max_bytes) or nothing
        except (ClientError, BarnabasError) as error:
            if self._options.tier_reads is TierReads.DIRECT:
                raise ConfigError(f"tierReads=direct, and the object store cannot be read: {error}") from error
            _log.warning("history is read through the brokers, not straight from the object store: %s", error)
            return nothing

    def _plan(self, lookup: OffsetLookup, ranges: list[OffsetRange], max_bytes: int) -> Plan | None:
        client = lookup.client
        ends = self._tiered_ends(client, [each.partition for each in ranges])
        wanted = [each for each in ranges if ends.get(each.partition, _NOWHERE).offset >= each.from_offset]
        if not wanted or not all(each.topic_id for each in wanted):
            return None
        url = self._options.tier_url or _url_of(client)
        if url is None:
            self._why_not = f"the brokers do not announce {_URL}: set the option tierUrl"
            raise ConfigError(self._why_not)
        store = open_store(url, self._options.store)
        caches = self._caches(client, {_tier_partition(each) for each in wanted})
        starts = lookup.earliest([each.partition for each in wanted])
        whole: list[TierSlice] = []
        bundles: dict[str, dict[Part, bytes]] = {}
        rest: list[OffsetRange] = [each for each in ranges if each not in wanted]
        for each in wanted:
            found, indexes = self._of_range(
                client, store, each, caches[_tier_partition(each)], ends[each.partition], starts[each.partition]
            )
            whole += found
            bundles |= indexes
            rest += _holes(each, found)
        if (tasks := self._options.min_partitions) is not None:
            max_bytes = min(max_bytes, max(1, sum(each.size_bytes for each in whole) // tasks))
        slices = self._sliced(whole, bundles, max_bytes)
        return Plan(url, slices, sorted(rest, key=lambda hole: (hole.partition, hole.from_offset)))

    # -- answers of the cluster -----------------------------------------------------------------------------------------

    def _tiered_ends(
        self, client: BlockingClient, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, ListedOffset]:
        """Return the last tiered record of each partition; its offset is -1 if no record is tiered."""
        wanted = dict.fromkeys(partitions, LATEST_TIERED)
        try:
            found = client.run(partition_admin.list_offsets(client.core, wanted))
        except BrokerRefused as refused:
            if refused.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            self._why_not = "the brokers are older than tiered storage"
            return {}
        return {partition: listed for partition, listed in found.items() if listed.error is ErrorCode.NONE}

    def _caches(
        self, client: BlockingClient, wanted: set[TierPartition]
    ) -> dict[TierPartition, RemoteLogMetadataCache]:
        """Return the segments of each partition, from the metadata topic as it is now."""
        topic = client.refresh([REMOTE_LOG_METADATA_TOPIC]).topics.get(REMOTE_LOG_METADATA_TOPIC)
        count = 0 if topic is None else len(topic.partitions)
        if not count:
            raise ConfigError(f"there is no topic {REMOTE_LOG_METADATA_TOPIC} that may be read")
        of_number = {of: metadata_partition(of, count) for of in wanted}
        places = [TopicPartition(REMOTE_LOG_METADATA_TOPIC, number) for number in set(of_number.values())]
        ends = client.list_offsets(dict.fromkeys(places, LATEST))
        for place in places:
            self._read[place.partition] = self._read_on(client, place, ends[place])
        return {of: self._read[number].caches.get(of, RemoteLogMetadataCache()) for of, number in of_number.items()}

    def _read_on(self, client: BlockingClient, place: TopicPartition, end: int) -> _Metadata:
        known = self._read.get(place.partition)
        if known is None or known.position > end:
            known = _Metadata(client.list_offsets({place: EARLIEST})[place], {})
        position, caches = known
        while position < end:
            fetched = client.fetch(place, position, max_bytes=_FETCH_BYTES)
            found = decode_records(bytes(fetched.data)) if len(fetched.data) else None
            if found is None:
                raise ConfigError(f"{place} ends at {end} and has no record at {position}")
            for offset, event in found.events:
                if offset >= position and not isinstance(event, Malformed):
                    caches.setdefault(partition_of_event(event), RemoteLogMetadataCache()).apply(event)
            position = found.next_offset
        return _Metadata(position, caches)

    # -- one range --------------------------------------------------------------------------------------------------------

    def _of_range(
        self,
        client: BlockingClient,
        store: Store,
        wanted: OffsetRange,
        cache: RemoteLogMetadataCache,
        tiered: ListedOffset,
        log_start: int,
    ) -> tuple[list[TierSlice], dict[str, dict[Part, bytes]]]:
        """Return the slices of a range in the tier, one for each segment, and the indexes of those that have to be cut."""
        newest = cache.segment_for(tiered.leader_epoch, tiered.offset)
        if newest is None:
            return [], {}  # deleted, or so new that its event has not arrived
        bundles = asyncio.run(get_indexes(store, _sized([newest])))
        epochs = _epochs(bundles[layout.log_key(newest)])
        # Records below the log start are deleted, even if the store still has them: brokers do not return them.
        first, last = max(wanted.from_offset, log_start), min(wanted.until_offset, tiered.offset + 1)
        found = list(pieces(cache, epochs, first, last))
        needed = [each.segment for each in found if self._needs_index(each)]
        aborting: list[RemoteSegment] = []
        if self._options.read_committed and found:
            through = pieces(cache, epochs, found[0].offset, tiered.offset + 1)
            aborting = [each.segment for each in through if not each.segment.txn_index_empty]
        bundles |= asyncio.run(get_indexes(store, _sized([*needed, *aborting])))
        keys = map(layout.log_key, aborting)
        aborted = self._aborted(client, wanted.partition, tiered, {key: bundles[key] for key in keys})
        slices = [
            TierSlice(
                wanted.partition,
                wanted.topic_id,
                layout.log_key(each.segment),
                each.offset,
                min(each.end, last),
                0,
                each.segment.size_bytes,
                tuple(txn for txn in aborted if txn.last_offset >= each.offset and txn.first_offset < each.end),
                segment_offsets=(each.segment.start_offset, each.segment.end_offset),
            )
            for each in found
        ]
        return slices, bundles

    def _needs_index(self, piece: Piece) -> bool:
        segment = piece.segment
        is_part = piece.offset > segment.start_offset or piece.end <= segment.end_offset
        return is_part or segment.size_bytes > SLICE_BYTES or self._options.is_divided

    def _sliced(self, found: list[TierSlice], bundles: dict[str, dict[Part, bytes]], max_bytes: int) -> list[TierSlice]:
        slices = []
        for each in found:
            name = layout.parse_key(each.key)
            parts = bundles.get(each.key)
            if name is None or parts is None:
                slices.append(each)
                continue
            places = list(index_places(parts.get(Part.OFFSET_INDEX, b""), name.start_offset, each.end))
            slices += cut(each, places, max_bytes=max_bytes, max_records=self._options.max_records_per_partition)
        return slices

    def _aborted(
        self,
        client: BlockingClient,
        partition: TopicPartition,
        tiered: ListedOffset,
        bundles: Mapping[str, Mapping[Part, bytes]],
    ) -> list[AbortedTxn]:
        if not self._options.read_committed:
            return []
        found = [txn for key, parts in bundles.items() for txn in aborted_in(key, parts)]
        found += self._aborted_above(client, partition, tiered.offset)
        return sorted(set(found), key=lambda txn: txn.first_offset)

    def _aborted_above(self, client: BlockingClient, partition: TopicPartition, last_tiered: int) -> list[AbortedTxn]:
        """Return transactions with records in the tier whose abort markers are above it: the broker returns them with the later
        records.

        An empty response is only conclusive if the log is stable up to that point and no further: a new leader sends an empty
        response while it does not know yet what is committed.
        """
        isolation = self._options.consumer.isolation_level
        deadline_s = self._clock() + self._options.poll_timeout_ms / 1000
        wait_ms = 0
        while True:
            after = client.fetch(
                partition, last_tiered + 1, max_bytes=1, max_wait_ms=wait_ms, isolation_level=isolation
            )
            if len(after.data) or after.last_stable_offset == last_tiered + 1:
                break
            if self._clock() > deadline_s:
                raise ConfigError(
                    f"the leader of {partition} does not say which transactions were aborted above offset {last_tiered}: its "
                    f"last stable offset is {after.last_stable_offset}"
                )
            wait_ms = _WAIT_MS
        return [
            AbortedTxn(ProducerId(each.producer_id), Offset(each.first_offset), Offset(_FOREVER), Offset(_FOREVER))
            for each in after.aborted
            if each.first_offset <= last_tiered
        ]


_NOWHERE: Final = ListedOffset(-1, -1, -1, ErrorCode.NONE)


def _tier_partition(wanted: OffsetRange) -> TierPartition:
    return TierPartition(TopicId(wanted.topic_id), wanted.partition.topic, wanted.partition.partition)


def _url_of(client: BlockingClient) -> str | None:
    """Return the URL at which the cluster's brokers store their history; None if they do not say it."""
    for broker_id in client.refresh([]).brokers:
        resource = (ConfigResourceType.BROKER, str(broker_id))
        try:
            entries = client.run(config_admin.describe_configs(client.core, [resource]))[resource]
        except BrokerRefused as refused:
            raise ConfigError(f"{_URL} cannot be asked for ({refused.code.name}): set the option tierUrl") from refused
        return next((entry.value for entry in entries if entry.name == _URL and entry.value), None)
    return None


def _sized(segments: Iterable[RemoteSegment]) -> dict[str, int | None]:
    return {layout.log_key(each): each.size_bytes for each in segments}


def _epochs(parts: Mapping[Part, bytes]) -> LeaderEpochCache:
    return LeaderEpochCache(parse_epochs("leader epochs of the tier", parts.get(Part.LEADER_EPOCHS, b"")))


def _holes(wanted: OffsetRange, found: Sequence[TierSlice]) -> list[OffsetRange]:
    """Return the parts of a range that the tier does not have."""
    holes, at = [], wanted.from_offset
    for each in found:
        if each.from_offset > at:
            holes.append(replace(wanted, from_offset=at, until_offset=each.from_offset))
        at = max(at, each.until_offset)
    if at < wanted.until_offset:
        holes.append(replace(wanted, from_offset=at))
    return holes
