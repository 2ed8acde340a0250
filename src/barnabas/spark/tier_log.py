"""Format `barnabas-log` on an object store: the segments that brokers have tiered, read without a broker.

    spark.read.format("barnabas-log").load("s3://bucket/history")

Asks only the store. The newest segment of each partition, by leader epoch, says which epochs its log has had. Segments of
leaders that were overruled do not agree with that, and are left out.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa

from barnabas.base.errors import ConfigError, Malformed
from barnabas.base.ids import BrokerId, Offset, TopicPartition, format_uuid
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.layout import Bounds, ObjectName, Part
from barnabas.broker.features.tiered.lineage import pieces
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment, SegmentState, SegmentUpdate, TierPartition
from barnabas.broker.features.tiered.store import SCHEMES, ObjectMissing, Store, StoreFault, open_store
from barnabas.broker.storage import producer_snapshot
from barnabas.broker.storage.checkpoints import parse_epochs
from barnabas.broker.storage.epoch_cache import EpochEntry, LeaderEpochCache
from barnabas.broker.storage.txn_index import AbortedTxn
from barnabas.spark.offsets import report_data_loss
from barnabas.spark.tier_slices import TierSlice, aborted_in, cut, get_indexes, index_places

#: How often to plan again if retention deleted a segment that was just listed.
_TRIES: Final = 5
_NOBODY: Final = BrokerId(-1)


def is_store(path: str) -> bool:
    """Whether the path is the URL of an object store. A `file://` URL is one if its folder is laid out as one."""
    scheme = urlsplit(path).scheme
    if scheme != "file":
        return scheme in SCHEMES
    root = Path(urlsplit(path).path)
    keys = (str(file.relative_to(root)) for file in root.glob("*/*/*.log"))
    return any(layout.parse_key(key) is not None for key in keys)


@dataclass(frozen=True, slots=True)
class StoreLog:
    """The segments of one partition in the store. log_start <= last_stable <= end."""

    partition: TopicPartition
    topic_id: bytes
    log_start: int
    #: Every transaction below it has its marker in the store.
    last_stable: int
    end: int
    segments: RemoteLogMetadataCache
    epochs: LeaderEpochCache
    indexes: Mapping[str, Mapping[Part, bytes]]

    def slices(self, *, start: int, until: int, max_bytes: int, read_committed: bool) -> list[TierSlice]:
        found = []
        aborted = self._aborted() if read_committed else []
        for piece in pieces(self.segments, self.epochs, start, until):
            key = layout.log_key(piece.segment)
            size = piece.segment.size_bytes
            whole = TierSlice(
                self.partition,
                self.topic_id,
                key,
                piece.offset,
                min(piece.end, until),
                0,
                size,
                aborted=tuple(aborted),
                segment_offsets=(piece.segment.start_offset, piece.segment.end_offset),
            )
            places = index_places(self.indexes[key].get(Part.OFFSET_INDEX, b""), piece.segment.start_offset, size)
            found += cut(whole, list(places), max_bytes=max_bytes, max_records=None)
        return found

    def _aborted(self) -> list[AbortedTxn]:
        used = pieces(self.segments, self.epochs, self.log_start, self.end)
        keys = dict.fromkeys(layout.log_key(piece.segment) for piece in used)
        found = {txn for key in keys for txn in aborted_in(key, self.indexes[key])}
        return sorted(found, key=lambda txn: txn.first_offset)


def find_store_logs(url: str, settings: Mapping[str, str]) -> dict[TopicPartition, StoreLog]:
    """Find every partition of the store. Raises `ConfigError`."""
    store = open_store(url, settings)
    for _ in range(_TRIES):
        try:
            return asyncio.run(_find(store, url))
        except ObjectMissing:
            continue  # deleted since it was listed
        except (StoreFault, Malformed) as error:
            raise ConfigError(f"the object store {url} cannot be read: {error}") from error
    raise ConfigError(f"segments in {url} are deleted faster than they can be listed")


async def _find(store: Store, url: str) -> dict[TopicPartition, StoreLog]:
    sizes = dict(await store.list(""))
    # A segment whose second object is missing is just being copied or deleted.
    names = {
        key: name
        for key in sizes
        if (name := layout.parse_key(key)) is not None and name.suffix == layout.LOG and layout.indexes_of(key) in sizes
    }
    if not names:
        raise ConfigError(f"{url} holds no segment of a topic")
    indexes = await get_indexes(store, {key: sizes[key] for key in names})
    by_partition: dict[TierPartition, dict[str, ObjectName]] = {}
    for key, name in names.items():
        by_partition.setdefault(name.id.of, {})[key] = name
    lives: dict[str, set[bytes]] = {}
    for of in by_partition:
        lives.setdefault(of.topic, set()).add(of.topic_id)
    if several := [topic for topic, ids in lives.items() if len(ids) > 1]:
        ids = ", ".join(sorted(format_uuid(each) for each in lives[several[0]]))
        raise ConfigError(
            f"{url} has segments of {several[0]} with several topic ids ({ids}): it was deleted and created again, and brokers "
            "have yet to remove the old segments"
        )
    return {
        of.tp: _log(of, keys, sizes, indexes) for of, keys in sorted(by_partition.items(), key=lambda each: each[0].tp)
    }


def _log(
    of: TierPartition,
    keys: Mapping[str, ObjectName],
    sizes: Mapping[str, int],
    indexes: Mapping[str, Mapping[Part, bytes]],
) -> StoreLog:
    cache = RemoteLogMetadataCache()
    newest: tuple[int, int, str] | None = None
    for key, name in keys.items():
        entries = _entries(key, indexes[key])
        bounds = Bounds.decode(indexes[key].get(Part.BOUNDS, b""))
        segment = RemoteSegment(
            id=name.id,
            start_offset=name.start_offset,
            end_offset=Offset(bounds.end_offset),
            max_timestamp=bounds.max_timestamp,
            broker_id=_NOBODY,
            event_ms=0,
            size_bytes=sizes[key],
            epochs={
                epoch: Offset(max(start, name.start_offset))
                for epoch, start in _within(entries, name.start_offset, bounds.end_offset)
            },
            txn_index_empty=Part.TXN_INDEX not in indexes[key],
        )
        cache.apply(segment)
        cache.apply(SegmentUpdate(name.id, SegmentState.COPY_FINISHED, 0, _NOBODY))
        rank = (entries[-1].epoch, bounds.end_offset, key)
        newest = rank if newest is None or rank > newest else newest
    assert newest is not None
    _, end_offset, newest_key = newest
    epochs = LeaderEpochCache(_entries(newest_key, indexes[newest_key]))
    end = end_offset + 1
    first = next(pieces(cache, epochs, 0, end))
    producers = producer_snapshot.decode(data) if (data := indexes[newest_key].get(Part.PRODUCER_SNAPSHOT)) else []
    opened = [int(each.txn_first_offset) for each in producers if each.txn_first_offset is not None]
    return StoreLog(
        of.tp, of.topic_id, first.offset, max(first.offset, min([end, *opened])), end, cache, epochs, indexes
    )


def _entries(key: str, parts: Mapping[Part, bytes]) -> list[EpochEntry]:
    entries = parse_epochs(key, parts.get(Part.LEADER_EPOCHS, b""))
    if not entries:
        raise StoreFault(f"the indexes of {key} name no leader epoch")
    return entries


def _within(entries: Sequence[EpochEntry], start: int, end: int) -> list[EpochEntry]:
    """Return the epochs that have records in [start, end]."""
    after = [*(entry.start_offset for entry in entries[1:]), end + 1]
    return [entry for entry, until in zip(entries, after, strict=True) if until > start and entry.start_offset <= end]


def read_store_slice(
    url: str,
    settings: Mapping[str, str],
    part: TierSlice,
    columns: Sequence[str],
    *,
    read_committed: bool,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows. Look again for objects that were deleted since the plan; records that are gone are data loss."""
    from barnabas.spark.tier_reads import read_slices

    def again(part: TierSlice, first: int, until: int, error: Exception) -> Iterator[pa.RecordBatch]:
        log = find_store_logs(url, settings).get(part.partition)
        found = []
        if log is not None and log.topic_id == part.topic_id:
            found = log.slices(start=first, until=until, max_bytes=1 << 62, read_committed=read_committed)
        reached = first
        for each in found:
            if each.from_offset > reached or each.key == part.key:
                break
            yield from read_slices(
                url, settings, [each], columns, read_committed=read_committed, elsewhere=_gone, insists=True
            )
            reached = each.until_offset
        if reached < until:
            lost = f"Cannot read {part.partition} from offset {reached} to {until}: {error}"
            report_data_loss(lost, fail=fail_on_data_loss)

    yield from read_slices(url, settings, [part], columns, read_committed=read_committed, elsewhere=again, insists=True)


def _gone(part: TierSlice, first: int, until: int, error: Exception) -> Iterator[pa.RecordBatch]:
    raise error
