"""A log, a store in memory, and a tier of the log in the store, shared by the tests of reads."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from barnabas.base.config.log_config import LogConfig
from barnabas.base.host.disk import REAL_DISK
from barnabas.base.ids import BrokerId, Offset, TopicId
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.blocks import Blocks
from barnabas.broker.features.tiered.local_copies import LocalCopies
from barnabas.broker.features.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.broker.features.tiered.reader import TierReader, TierView
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment, RemoteSegmentId, SegmentState, SegmentUpdate
from barnabas.broker.storage.log import Log
from barnabas.broker.storage.log_tier import CopyCandidate
from tests.memory_store import MemoryStore
from tests.unit.broker.storage.log.log_support import NOW_MS, Partition

T = TypeVar("T")
TOPIC_ID = TopicId(b"t" * 16)
CONFIG = LogConfig(
    segment_bytes=1200,
    index_interval_bytes=100,
    segment_index_bytes=1200,
    retention_ms=-1,
    remote_storage_enable=True,
    local_retention_bytes=0,
)


def blocks_of_bytes(data: bytes, segment_uuid: bytes, *, block_bytes: int) -> Blocks:
    def read(size: int, position: int) -> bytes:
        return data[position : position + size]

    return Blocks.of(read, len(data), segment_uuid, block_bytes=block_bytes)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


@dataclass
class GatedStore(MemoryStore):
    """Records the requests, and answers when the gate is open."""

    gate: asyncio.Event | None = None

    def __post_init__(self) -> None:
        self.delay = self._wait

    async def _wait(self) -> None:
        if self.gate is not None:
            await self.gate.wait()

    @property
    def gets(self) -> list[str]:
        return [key for kind, key in self.requests if kind == "get"]


async def on_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


class Tier:
    """Copies what a log offers to the store, and reads it back."""

    def __init__(
        self,
        root: Path,
        *,
        chunk_bytes: int = 256,
        chunks_bytes_max: int = 1 << 20,
        read_ahead_bytes: int = 0,
        block_bytes: int | None = 64,
    ) -> None:
        """`block_bytes` None: segments are copied as by earlier versions, without checksums."""
        root.mkdir(exist_ok=True)
        self._block_bytes = block_bytes
        self.partition = Partition(root, CONFIG)
        self.partition.env.is_tiering = True
        self.store = GatedStore()
        self.segments = RemoteLogMetadataCache()
        self.tasks: set[asyncio.Task[None]] = set()
        self.quota_bytes = 0
        self.copies = LocalCopies(
            str(root / "copies"),
            self.store,
            REAL_DISK,
            on_thread=on_thread,
            spawn=self._spawn,
            chunk_bytes=chunk_bytes,
            chunks_bytes_max=chunks_bytes_max,
            indexes_bytes_max=1 << 20,
            gets_at_once=10,
            wait_for_quota=self._count,
        )
        self.reader = TierReader(self.store, self.copies, on_thread=on_thread, read_ahead_bytes=read_ahead_bytes)
        self._number = 0

    @property
    def log(self) -> Log:
        return self.partition.log

    @property
    def view(self) -> TierView:
        return TierView(self.log, self.segments)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _count(self, size_bytes: int) -> None:
        self.quota_bytes += size_bytes

    async def settled(self) -> None:
        """Wait until all started work has ended without an error."""
        while self.tasks:
            await asyncio.gather(*self.tasks)

    async def copy(self, *, until: int | None = None) -> None:
        """Copy every segment that may be copied; then local retention can remove them."""
        if self._number == 0:
            await self.copies.prepare()
        for candidate in list(self.log.copy_candidates(self.log.highest_copied_offset + 1)):
            if until is None or candidate.end_offset < until:
                await self.copy_one(candidate)
                self.log.highest_copied_offset = candidate.end_offset
        self.log.delete_old_segments(NOW_MS)

    async def copy_one(self, candidate: CopyCandidate, **changed: Any) -> RemoteSegment:
        self._number += 1
        segment = RemoteSegment(
            id=RemoteSegmentId(TOPIC_ID, "topic", 0, self._number.to_bytes(16, "big")),
            start_offset=Offset(candidate.base_offset),
            end_offset=Offset(candidate.end_offset),
            max_timestamp=candidate.max_timestamp,
            broker_id=BrokerId(1),
            event_ms=NOW_MS,
            size_bytes=candidate.size_bytes,
            epochs={entry.epoch: entry.start_offset for entry in candidate.epochs},
            txn_index_empty=candidate.txn_index_path is None,
        )
        segment = replace(segment, **changed)
        parts = {
            layout.Part.OFFSET_INDEX: _read(candidate.offset_index_path),
            layout.Part.TIME_INDEX: _read(candidate.time_index_path),
        }
        if candidate.txn_index_path is not None:
            parts[layout.Part.TXN_INDEX] = _read(candidate.txn_index_path)
        if candidate.snapshot_path is not None:
            parts[layout.Part.PRODUCER_SNAPSHOT] = _read(candidate.snapshot_path)
        lines = [f"{entry.epoch} {entry.start_offset}\n" for entry in candidate.epochs_until_end]
        parts[layout.Part.LEADER_EPOCHS] = f"0\n{len(lines)}\n{''.join(lines)}".encode()
        parts[layout.Part.BOUNDS] = layout.Bounds(segment.end_offset, segment.max_timestamp).encode()
        records = _read(candidate.log_path)
        if self._block_bytes is not None:
            blocks = blocks_of_bytes(records, segment.id.uuid, block_bytes=self._block_bytes)
            parts[layout.Part.BLOCKS] = blocks.encode()
        await self.store.put(layout.log_key(segment), records)
        await self.store.put(layout.indexes_key(segment), layout.pack_indexes(parts))
        assert self.segments.apply(segment)
        assert self.segments.apply(SegmentUpdate(segment.id, SegmentState.COPY_FINISHED, NOW_MS, BrokerId(1)))
        return segment

    def delete(self, segment: RemoteSegment) -> None:
        for state in (SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED):
            assert self.segments.apply(SegmentUpdate(segment.id, state, NOW_MS, BrokerId(1)))
        for key in layout.keys(segment):
            del self.store.objects[key]
