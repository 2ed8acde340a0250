"""A local cache of the tier's segments for readers: whole indexes, and records in chunks.

A copy looks like a segment of a log with holes: the files have the names and positions of the originals, so that the code that
reads logs reads copies, too. Chunks are fetched on demand, several at once, each only once for all readers. Copies do not
outlive the broker: it empties the directory at its start. Each chunk is checked by the segment's checksums before it is kept,
so that every reader sees the bytes that were copied.

Owner: the event loop. Threads write the files. Any error raises `StoreFault`: the caller retries later.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any, Final

from barnabas.base.errors import Malformed
from barnabas.base.host.disk import Disk, write_fully
from barnabas.base.ids import format_uuid
from barnabas.base.recent import Recent
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.blocks import Blocks
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment
from barnabas.broker.features.tiered.store import Store, StoreFault
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.storage.index_file import CorruptIndex
from barnabas.broker.storage.segment import Segment

logger = logging.getLogger(__name__)

#: Each copy has three descriptors: small segments have small indexes, so that many would fit into the limit of bytes.
COPIES_MAX: Final = 500
#: Only a parameter of the offset index: a copy is never appended to.
_INDEX_INTERVAL_BYTES: Final = 4096


class SegmentCopy(Segment):
    """A segment with holes. A damaged index cannot be rebuilt, because the records are missing."""

    __slots__ = ()

    def _repair(self, why: str) -> None:
        raise CorruptIndex(f"{self.log_path}: {why}")


class LocalCopy:
    """The locally available part of one segment in the tier."""

    __slots__ = (
        "_remove",
        "_users",
        "blocks",
        "fetching",
        "index_bytes",
        "is_dropped",
        "is_removed",
        "present",
        "segment",
        "source",
    )

    def __init__(
        self,
        source: RemoteSegment,
        segment: SegmentCopy,
        index_bytes: int,
        blocks: Blocks | None,
        remove: Callable[["LocalCopy"], None],
    ) -> None:
        self.source = source
        self.segment = segment
        self.index_bytes = index_bytes
        #: Checksums of the records. None: the segment was copied without.
        self.blocks = blocks
        #: Numbers of the chunks in the file, and (below) of those being fetched.
        self.present: set[int] = set()
        self.fetching: dict[int, asyncio.Future[None]] = {}
        #: New readers do not find this copy any more. The last reader deletes its files.
        self.is_dropped = False
        self.is_removed = False
        self._users = 0
        self._remove = remove

    @property
    def is_in_use(self) -> bool:
        return self._users > 0 or bool(self.fetching)

    def drop(self) -> None:
        self.is_dropped = True
        self._remove_if_unused()

    def __enter__(self) -> "LocalCopy":
        """Keep the files while a reader uses them."""
        self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        self._remove_if_unused()

    def _remove_if_unused(self) -> None:
        if self.is_dropped and not self._users and not self.is_removed:
            self.is_removed = True
            self._remove(self)


class LocalCopies:
    """Limited by `remote.log.index.file.cache.total.size.bytes` (indexes) and `barnabas.remote.chunk.cache.bytes` (chunks). The
    least recently used copy is removed first, with all its chunks."""

    def __init__(
        self,
        directory: str,
        store: Store,
        disk: Disk,
        *,
        on_thread: OnThread,
        spawn: Spawn,
        chunk_bytes: int,
        chunks_bytes_max: int,
        indexes_bytes_max: int,
        gets_at_once: int,
        wait_for_quota: Callable[[int], Awaitable[None]],
    ) -> None:
        """`wait_for_quota(size)` returns when this many bytes may be fetched."""
        self.directory = directory
        self._store = store
        self._disk = disk
        self._on_thread = on_thread
        self._spawn = spawn
        self.chunk_bytes = chunk_bytes
        self._chunks_bytes_max = chunks_bytes_max
        #: Can be changed while the broker runs.
        self.indexes_bytes_max = indexes_bytes_max
        self._gets = asyncio.Semaphore(gets_at_once)
        self._wait_for_quota = wait_for_quota
        #: `_make_room` bounds it, by the bytes of chunks and of indexes as well.
        self._copies: Recent[bytes, LocalCopy] = Recent(math.inf)
        self._opening: dict[bytes, asyncio.Future[None]] = {}
        #: Numbers for folders: each copy has its own, because one may be removed while the next is created.
        self._folders = count()
        self._is_prepared = asyncio.Event()
        self.chunks_bytes = 0
        self.indexes_bytes = 0
        self.fetched_bytes = 0

    async def prepare(self) -> None:
        """Empty the directory. Reads wait for this."""

        def work() -> None:
            if self._disk.is_dir(self.directory):
                self._disk.rmtree(self.directory)
            self._disk.makedirs(self.directory)

        try:
            await self._on_thread(work)
        except OSError as error:
            logger.error("[tier] cannot empty %s, reads of the tier fail: %s", self.directory, error)
        self._is_prepared.set()

    async def open(self, source: RemoteSegment) -> LocalCopy:
        """Return the copy, with its indexes. :raises StoreFault, ObjectMissing:"""
        key = source.id.uuid
        while (found := self._copies.use(key)) is None:
            pending = self._opening.get(key)
            if pending is None:
                pending = self._opening[key] = self._begin(self._fetch_indexes(source), f"indexes of {source.id}")
                pending.add_done_callback(lambda _: self._opening.pop(key, None))
            await asyncio.shield(pending)
        return found

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Future[None]":
        """Start shared work: a waiting caller may be cancelled while the work continues. All callers get its error."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                await work
            except StoreFault as fault:
                ended.set_exception(fault)
                ended.exception()  # marks the error as retrieved: a read ahead has no caller
            except BaseException:
                ended.cancel()
                raise
            else:
                ended.set_result(None)

        self._spawn(run(), name)
        return ended

    async def _fetch_indexes(self, source: RemoteSegment) -> None:
        await self._is_prepared.wait()
        async with self._gets:
            data = await self._store.get(
                layout.indexes_key(source), bytes_max=layout.indexes_bytes_max(source.size_bytes)
            )
        folder = f"{self.directory}/{format_uuid(source.id.uuid)}-{next(self._folders)}"
        segment = SegmentCopy(
            folder,
            source.start_offset,
            disk=self._disk,
            created_ms=source.event_ms,
            index_interval_bytes=_INDEX_INTERVAL_BYTES,
            max_index_bytes=0,
        )

        def work() -> Blocks | None:
            parts = layout.unpack_indexes_of(source, data)
            self._disk.makedirs(folder)
            names = (None, layout.Part.OFFSET_INDEX, layout.Part.TIME_INDEX, layout.Part.TXN_INDEX)
            for part, path in zip(names, segment.paths(), strict=True):
                if part is not None and part in parts:
                    self._disk.replace_file(path, parts[part], sync=False)
            self._disk.close(self._disk.open(segment.log_path, create=True))
            segment.check_indexes()
            # Set after the indexes: they cannot be compared with the records, which are missing.
            segment.size_bytes = source.size_bytes
            _ = segment.file  # opens the file once, here: readers run on threads
            return layout.blocks_of(layout.log_key(source), parts, source.size_bytes)

        try:
            blocks = await self._on_thread(work)
        except (Malformed, OSError) as error:
            raise StoreFault(f"the indexes of {source.id} are damaged: {error}") from error
        copy = LocalCopy(source, segment, len(data), blocks, self._remove)
        self._copies.put(source.id.uuid, copy)
        self.indexes_bytes += copy.index_bytes
        self._make_room(but_for=copy)

    # -- chunks -------------------------------------------------------------------------------------------------------

    async def ensure(self, copy: LocalCopy, start: int, end: int) -> None:
        """Fetch these bytes of the records. The caller must be using the copy. :raises StoreFault, ObjectMissing:"""
        for chunk in self.begin(copy, start, end):
            await asyncio.shield(chunk)

    def begin(self, copy: LocalCopy, start: int, end: int) -> list["asyncio.Future[None]"]:
        """Start to fetch all missing chunks of these bytes. Return the pending ones."""
        size = self.chunk_bytes
        pending: list[asyncio.Future[None]] = []
        for number in range(start // size, -(-min(end, copy.source.size_bytes) // size)):
            if number in copy.present:
                continue
            chunk = copy.fetching.get(number)
            if chunk is None:
                name = f"chunk {number} of {copy.source.id}"
                chunk = copy.fetching[number] = self._begin(self._fetch(copy, number), name)
            pending.append(chunk)
        return pending

    def read_ahead(self, source: RemoteSegment, start: int, end: int) -> None:
        """Fetch bytes of a segment that a reader will soon request."""
        copy = self._copies.get(source.id.uuid)
        if copy is not None:
            self.begin(copy, start, end)
        elif source.id.uuid not in self._opening:
            self._spawn(self._open_ahead(source, start, end), f"read ahead of {source.id}")

    async def _open_ahead(self, source: RemoteSegment, start: int, end: int) -> None:
        try:
            self.begin(await self.open(source), start, end)
        except StoreFault as fault:
            logger.debug("cannot read ahead: %s", fault)

    async def _fetch(self, copy: LocalCopy, number: int) -> None:
        start = number * self.chunk_bytes
        size = self._chunk_size(copy, number)
        first, end = (start, start + size) if copy.blocks is None else copy.blocks.around(start, start + size)
        try:
            if copy.is_removed:
                return  # the copy was dropped before its chunk arrived
            with copy:
                await self._wait_for_quota(end - first)
                async with self._gets:
                    data = await self._store.get_range(layout.log_key(copy.source), first, end)
                self.fetched_bytes += end - first
                await self._on_thread(partial(self._keep, copy, data, first, start, size))
                if not copy.is_dropped:
                    copy.present.add(number)
                    self.chunks_bytes += size
        except OSError as error:
            raise StoreFault(f"{self.directory}: cannot store what was read of {copy.source.id}: {error}") from error
        except Malformed as error:
            # The checksums may be wrong as well: the next reader fetches both objects again.
            self.forget(copy)
            key = layout.log_key(copy.source)
            raise StoreFault(f"the store returned damaged data of {copy.source.id}: {key}: {error}") from error
        finally:
            copy.fetching.pop(number, None)
        self._make_room()

    def _keep(self, copy: LocalCopy, data: memoryview, first: int, start: int, size: int) -> None:
        """Check `data`, which begins at `first`, and write `size` bytes of it from `start` on. Runs on a thread."""
        if copy.blocks is not None:
            copy.blocks.check(data, first)
        write_fully(self._disk, copy.segment.file.fd, data[start - first : start - first + size], start)

    # -- bounds -------------------------------------------------------------------------------------------------------

    def forget(self, copy: LocalCopy) -> None:
        """Drop a copy that is damaged, or whose segment left the tier: the next reader fetches it again."""
        if self._copies.get(copy.source.id.uuid) is copy:
            self._copies.pop(copy.source.id.uuid)
            self.indexes_bytes -= copy.index_bytes
            self.chunks_bytes -= sum(self._chunk_size(copy, number) for number in copy.present)
            copy.drop()

    def _make_room(self, *, but_for: LocalCopy | None = None) -> None:
        """Drop copies beyond the limits. Copies in use may be dropped as well, because all of them may be in use all the time;
        their readers finish first. `but_for` is a new copy whose readers have yet to see it: without it they would fetch it
        endlessly."""
        for may_be_in_use in (False, True):
            for copy in [each for each in self._copies.values() if each is not but_for]:
                if (
                    self.chunks_bytes <= self._chunks_bytes_max
                    and self.indexes_bytes <= self.indexes_bytes_max
                    and len(self._copies) <= COPIES_MAX
                ):
                    return
                if may_be_in_use or not copy.is_in_use:
                    self.forget(copy)

    def _remove(self, copy: LocalCopy) -> None:
        """Delete the files. A response that is being sent keeps the file open, so that it stays readable without a name."""
        copy.segment.release_files()
        folder, disk = copy.segment.directory, self._disk

        async def remove() -> None:
            try:
                await self._on_thread(lambda: disk.rmtree(folder))
            except OSError as error:
                logger.error("[tier] cannot remove %s, it stays until the next start: %s", folder, error)

        self._spawn(remove(), f"drop {copy.source.id}")

    def _chunk_size(self, copy: LocalCopy, number: int) -> int:
        start = number * self.chunk_bytes
        return min(start + self.chunk_bytes, copy.source.size_bytes) - start
