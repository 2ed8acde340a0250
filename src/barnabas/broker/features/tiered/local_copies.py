"""Parts of the tier's segments on local disk, for those who read them: indexes whole, records in chunks.

A copy looks like a segment of a log, with holes: the files have the names and positions of the originals, so that what reads
logs reads copies, too. Chunks are fetched when they are asked for, several at once, each once for all who ask. Copies last
as long as the broker: the directory is emptied at start.

Owner: the event loop. Files are written on threads. `StoreFault` for whatever does not work: the caller asks again later.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any, Final

from barnabas.base.errors import Malformed
from barnabas.base.host.disk import Disk, write_fully
from barnabas.base.ids import format_uuid
from barnabas.broker.features.tiered import layout
from barnabas.broker.features.tiered.segment_metadata import RemoteSegment
from barnabas.broker.features.tiered.store import Store, StoreFault
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.storage.index_file import CorruptIndex
from barnabas.broker.storage.segment import Segment

logger = logging.getLogger(__name__)

#: Each has three descriptors: small segments have small indexes, and many of them fit.
COPIES_MAX: Final = 500
#: For the offset index; a copy is never appended to.
_INDEX_INTERVAL_BYTES: Final = 4096


class SegmentCopy(Segment):
    """A segment with holes. What its index tells is checked by its checksum: there is nothing to rebuild it from."""

    __slots__ = ()

    def _repair(self, why: str) -> None:
        raise CorruptIndex(f"{self.log_path}: {why}")


class LocalCopy:
    """What is here of one segment of the tier."""

    __slots__ = (
        "_remove",
        "_users",
        "fetching",
        "index_bytes",
        "is_dropped",
        "is_removed",
        "present",
        "segment",
        "source",
    )

    def __init__(
        self, source: RemoteSegment, segment: SegmentCopy, index_bytes: int, remove: Callable[["LocalCopy"], None]
    ) -> None:
        self.source = source
        self.segment = segment
        self.index_bytes = index_bytes
        #: Numbers of the chunks in the file, and those on their way.
        self.present: set[int] = set()
        self.fetching: dict[int, asyncio.Future[None]] = {}
        #: Nobody finds it any more. Its files go with its last user.
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
        """As long as somebody looks at it, its files stay."""
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
    """Bounded: indexes by `remote.log.index.file.cache.total.size.bytes`, chunks by `barnabas.remote.chunk.cache.bytes`. The
    copy that was not used for the longest time goes first, with all its chunks."""

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
        """`wait_for_quota(size)` returns when so many bytes may be fetched."""
        self.directory = directory
        self._store = store
        self._disk = disk
        self._on_thread = on_thread
        self._spawn = spawn
        self.chunk_bytes = chunk_bytes
        self._chunks_bytes_max = chunks_bytes_max
        #: Changes while the broker runs.
        self.indexes_bytes_max = indexes_bytes_max
        self._gets = asyncio.Semaphore(gets_at_once)
        self._wait_for_quota = wait_for_quota
        #: The one that was used last is the last.
        self._copies: OrderedDict[bytes, LocalCopy] = OrderedDict()
        self._opening: dict[bytes, asyncio.Future[None]] = {}
        #: No two copies share a folder: one may be removed while the next is made.
        self._folders = count()
        self._is_prepared = asyncio.Event()
        self.chunks_bytes = 0
        self.indexes_bytes = 0
        self.fetched_bytes = 0

    async def prepare(self) -> None:
        """An empty directory. Reads wait for it."""

        def work() -> None:
            if self._disk.is_dir(self.directory):
                self._disk.rmtree(self.directory)
            self._disk.makedirs(self.directory)

        try:
            await self._on_thread(work)
        except OSError as error:
            logger.error("%s cannot be emptied: %s", self.directory, error)
        self._is_prepared.set()

    async def open(self, source: RemoteSegment) -> LocalCopy:
        """The copy, with its indexes. :raises StoreFault, ObjectMissing:"""
        key = source.id.uuid
        while (found := self._copies.get(key)) is None:
            under_way = self._opening.get(key)
            if under_way is None:
                under_way = self._opening[key] = self._begin(self._fetch_indexes(source), f"indexes of {source.id}")
                under_way.add_done_callback(lambda _: self._opening.pop(key, None))
            await asyncio.shield(under_way)
        self._copies.move_to_end(key)
        return found

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Future[None]":
        """Whoever waits for it may give up: the work goes on, and its failure is that of all who wait."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                await work
            except StoreFault as fault:
                ended.set_exception(fault)
                ended.exception()  # nobody need wait for what was read ahead
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
            data = await self._store.get(layout.indexes_key(source))
        folder = f"{self.directory}/{format_uuid(source.id.uuid)}-{next(self._folders)}"
        segment = SegmentCopy(
            folder,
            source.start_offset,
            disk=self._disk,
            created_ms=source.event_ms,
            index_interval_bytes=_INDEX_INTERVAL_BYTES,
            max_index_bytes=0,
        )

        def work() -> None:
            parts = layout.unpack_indexes_of(source, data)
            self._disk.makedirs(folder)
            names = (None, layout.Part.OFFSET_INDEX, layout.Part.TIME_INDEX, layout.Part.TXN_INDEX)
            for part, path in zip(names, segment.paths(), strict=True):
                if part is not None and part in parts:
                    self._disk.replace_file(path, parts[part], sync=False)
            self._disk.close(self._disk.open(segment.log_path, create=True))
            segment.check_indexes()
            # After the indexes: they are not compared with the records, which are not here.
            segment.size_bytes = source.size_bytes
            _ = segment.file  # opened once, here: readers are on threads

        try:
            await self._on_thread(work)
        except (Malformed, OSError) as error:
            raise StoreFault(f"the indexes of {source.id} are of no use: {error}") from error
        copy = self._copies[source.id.uuid] = LocalCopy(source, segment, len(data), self._remove)
        self.indexes_bytes += copy.index_bytes
        self._make_room(but_for=copy)

    # -- chunks -------------------------------------------------------------------------------------------------------

    async def ensure(self, copy: LocalCopy, start: int, end: int) -> None:
        """Have these bytes of the records here. The caller is a user of the copy. :raises StoreFault, ObjectMissing:"""
        for chunk in self.begin(copy, start, end):
            await asyncio.shield(chunk)

    def begin(self, copy: LocalCopy, start: int, end: int) -> list["asyncio.Future[None]"]:
        """Fetch what is missing of these bytes, all at once. Returns what is on its way."""
        size = self.chunk_bytes
        under_way: list[asyncio.Future[None]] = []
        for number in range(start // size, -(-min(end, copy.source.size_bytes) // size)):
            if number in copy.present:
                continue
            chunk = copy.fetching.get(number)
            if chunk is None:
                name = f"chunk {number} of {copy.source.id}"
                chunk = copy.fetching[number] = self._begin(self._fetch(copy, number), name)
            under_way.append(chunk)
        return under_way

    def read_ahead(self, source: RemoteSegment, start: int, end: int) -> None:
        """Somebody will soon ask for these bytes of a segment."""
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
        try:
            if copy.is_removed:
                return  # it was read ahead, and nobody came before the copy had to go
            with copy:
                await self._wait_for_quota(size)
                async with self._gets:
                    data = await self._store.get_range(layout.log_key(copy.source), start, start + size)
                self.fetched_bytes += size
                await self._on_thread(lambda: write_fully(self._disk, copy.segment.file.fd, data, start))
                if not copy.is_dropped:
                    copy.present.add(number)
                    self.chunks_bytes += size
        except OSError as error:
            raise StoreFault(f"{self.directory}: cannot keep what was read of {copy.source.id}: {error}") from error
        finally:
            copy.fetching.pop(number, None)
        self._make_room()

    # -- bounds -------------------------------------------------------------------------------------------------------

    def forget(self, copy: LocalCopy) -> None:
        """It cannot be right, or its segment is gone from the tier: whoever reads it next fetches it anew."""
        if self._copies.get(copy.source.id.uuid) is copy:
            del self._copies[copy.source.id.uuid]
            self.indexes_bytes -= copy.index_bytes
            self.chunks_bytes -= sum(self._chunk_size(copy, number) for number in copy.present)
            copy.drop()

    def _make_room(self, *, but_for: LocalCopy | None = None) -> None:
        """Who reads a copy that goes reads it to the end, and then another: all of them may be read all the time. `but_for`: it
        has just come, and those who wait for it have not seen it yet: they would have it fetched again, without end."""
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
        """Who sends from it has pinned the file, which lasts without a name."""
        copy.segment.release_files()
        folder, disk = copy.segment.directory, self._disk

        async def remove() -> None:
            try:
                await self._on_thread(lambda: disk.rmtree(folder))
            except OSError as error:
                logger.error("cannot remove %s: %s", folder, error)

        self._spawn(remove(), f"drop {copy.source.id}")

    def _chunk_size(self, copy: LocalCopy, number: int) -> int:
        start = number * self.chunk_bytes
        return min(start + self.chunk_bytes, copy.source.size_bytes) - start
