"""One ShareFetch: it waits until a member can be given records of any of its partitions, reads them, and locks them.

Owner: the event loop. A fetch waits in the purgatory of all fetches, under its partitions, whose high watermarks wake it, and
its share partitions, which wake it when members give records back. Requests are woken in the order in which they came, so the
members of a group are served in turn.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from barnabas.base.errors import ErrorCode, LogDirFault, Malformed, Refused
from barnabas.base.ids import TopicPartition
from barnabas.base.words import READ_COMMITTED, READ_UNCOMMITTED
from barnabas.broker.replication.fetch_session_cache import CachedPartition, FetchKey
from barnabas.broker.replication.fetches import Fetches, WaitingFetch
from barnabas.broker.replication.reads import FetchParams, PartitionRead
from barnabas.broker.runtime.purgatory import DelayedOperation, Purgatory
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.runtime.threads import OnThread
from barnabas.broker.runtime.timers import Timers
from barnabas.broker.share.acquiring import Wish, deliverable
from barnabas.broker.share.batches import ReadBatches
from barnabas.broker.share.metrics import ShareCounts
from barnabas.broker.share.partition import SharePartition
from barnabas.broker.share.records import Acquired
from barnabas.broker.share.sessions import TopicIdPartition
from barnabas.broker.storage.file_handle import FileRange

#: Partitions of one waiting fetch that the console and the CLI show.
_NAMED_MAX: Final = 20


class ShareFetchParams(NamedTuple):
    member_id: str
    wish: Wish
    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class Portion:
    """The result for one partition. Its file ranges are pinned: send or release them."""

    __slots__ = ("acquired", "error", "ranges", "share", "size_bytes", "wanted")

    def __init__(self, wanted: TopicIdPartition, share: SharePartition | None, error: Refused | None = None) -> None:
        self.wanted = wanted
        self.share = share
        self.error = error
        self.acquired: list[Acquired] = []
        self.ranges: list[FileRange] = []
        self.size_bytes = 0


OnDone = Callable[[list[Portion]], None]


class ShareFetchHost(NamedTuple):
    fetches: Fetches
    counts: ShareCounts
    purgatory: Purgatory
    timers: Timers
    on_thread: OnThread
    spawn: Spawn


class ShareFetching:
    """`begin` may call `on_done` at once. Without partitions, or with an error in one, nothing is waited for, as in Kafka."""

    def __init__(
        self, portions: Sequence[Portion], params: ShareFetchParams, host: ShareFetchHost, on_done: OnDone
    ) -> None:
        self._portions = portions
        self._params = params
        self._host = host
        self._on_done: OnDone | None = on_done
        self.operation: DelayedOperation | None = None
        self._reading: WaitingFetch | None = None
        self._began_s = host.timers.time()
        self._deadline_s = self._began_s + params.max_wait_ms / 1000
        #: Whether the time is up, or the answer cannot wait: the next read is the last.
        self._is_last = not portions or params.max_wait_ms <= 0

    def begin(self) -> None:
        self._look()
        if self._is_last or self.has_enough():
            self._read()
        else:
            self._wait()

    def cancel(self) -> None:
        """Forget the fetch: the client has disconnected."""
        self._on_done = None
        if self.operation is not None:
            self._host.purgatory.cancel(self.operation)
        if self._reading is not None:
            self._reading.cancel()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def has_enough(self) -> bool:
        """Whether there is an error, or enough to read."""
        missing_bytes = max(1, self._params.min_bytes)
        for portion in self._portions:
            missing_bytes -= self._bytes_ready(portion, missing_bytes)
            if missing_bytes <= 0:
                return True
        return False

    def is_ready(self, portion: Portion) -> bool:
        """Whether there is an error, or enough to read, after a change in this partition."""
        if self._params.min_bytes > 1:
            return self.has_enough()
        return self._bytes_ready(portion, 1) > 0

    def _bytes_ready(self, portion: Portion, missing_bytes: int) -> int:
        share = portion.share
        if share is None or not share.check():
            return missing_bytes
        offset = share.next_offset()
        if offset is None:
            return 0
        if missing_bytes <= 1:
            return 1
        try:
            found = share.partition.local_log.read(
                offset, max_bytes=missing_bytes, max_offset=share.bound(), min_one_batch=True
            )
        except (Refused, LogDirFault):
            return missing_bytes
        found.release()
        return missing_bytes if found.is_cut else found.size_bytes

    def _look(self) -> None:
        """Note the partitions that are not led here any more."""
        for portion in self._portions:
            if portion.share is not None and not portion.share.check():
                portion.error, portion.share = portion.share.error, None
            if portion.error is not None:
                self._is_last = True

    def _wait(self) -> None:
        places: dict[Hashable, Portion] = {}
        for portion in self._portions:
            if portion.share is not None:
                places[portion.share.partition] = places[portion.share] = portion
        self.operation = _Waiting(self, places)
        left_s = self._deadline_s - self._host.timers.time()
        self._host.purgatory.watch(self.operation, places, timeout_ms=max(0, int(left_s * 1000)))

    def woken(self, *, expired: bool) -> None:
        self.operation = None
        self._is_last = self._is_last or expired
        self._look()
        self._read()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        ready: list[tuple[Portion, int]] = []
        for portion in self._portions:
            offset = portion.share.next_offset() if portion.share is not None else None
            if offset is not None:
                ready.append((portion, offset))
        if not ready:
            self._answer()
            return
        params = self._params
        each_bytes = max(1, params.max_bytes // len(ready))
        wanted: list[tuple[CachedPartition, TopicPartition | ErrorCode]] = []
        isolation_level = READ_UNCOMMITTED
        for portion, offset in ready:
            share = portion.share
            assert share is not None
            if share.reads_committed:
                isolation_level = READ_COMMITTED
            wanted.append((CachedPartition(FetchKey(*portion.wanted), offset, each_bytes, -1, -1, -1), share.tp))
        fetch_params = FetchParams(
            replica_id=-1,
            replica_epoch=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=params.max_bytes,
            isolation_level=isolation_level,
            client_rack="",
            may_read_from_follower=False,
        )
        self._reading = self._host.fetches.fetch(fetch_params, wanted, partial(self._take, ready))

    def _take(self, ready: Sequence[tuple[Portion, int]], reads: list[PartitionRead]) -> None:
        self._reading = None
        found = [ReadBatches(read.ranges) for read in reads]
        cold = [each for each in found if each.is_cold]
        if cold and self._on_done is not None:
            self._host.spawn(self._load_and_read(cold, reads), "loading records for a share fetch")
            return
        try:
            if self._on_done is not None:
                records_max = self._params.wish.records_max
                for (portion, offset), read, batches in zip(ready, reads, found, strict=True):
                    if read.error:
                        self._failed(portion, read.error)
                    else:
                        self._acquire(portion, offset, read, batches, records_max)
                        records_max -= sum(last - first + 1 for first, last, _ in portion.acquired)
        finally:
            for read in reads:
                read.release()
        self._answer(ready)

    async def _load_and_read(self, cold: Sequence[ReadBatches], reads: Sequence[PartitionRead]) -> None:
        """Load records into memory on a thread: the loop never waits for the disk."""

        def load() -> None:
            for batches in cold:
                batches.load()

        try:
            await self._host.on_thread(load)
        except OSError:
            pass  # the next read meets the same error, and reports it
        finally:
            for read in reads:
                read.release()
        self._go_on()

    def _go_on(self) -> None:
        if self._on_done is not None:
            self._look()
            self._read()

    def _acquire(
        self, portion: Portion, offset: int, read: PartitionRead, batches: ReadBatches, records_max: int
    ) -> None:
        share = portion.share
        assert share is not None
        wish = self._params.wish._replace(records_max=records_max)
        try:
            portion.acquired = share.acquire(
                self._params.member_id,
                deliverable(batches.headers(), read.aborted_transactions),
                wish,
                from_offset=offset,
            )
        except OSError as error:
            share.partition.local_log.report(error)
            portion.error = Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        except Malformed as error:
            portion.error = Refused(ErrorCode.CORRUPT_MESSAGE, str(error))
        portion.ranges = batches.of(portion.acquired)
        portion.size_bytes = sum(part.size_bytes for part in portion.ranges)

    def _failed(self, portion: Portion, code: ErrorCode) -> None:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return  # the log start has moved; the machine follows it with the next look
        portion.error = Refused(code, f"cannot read the partition: {code.name}")

    def _answer(self, ready: Sequence[tuple[Portion, int]] = ()) -> None:
        if self._on_done is None:
            return
        if not self._is_last and not any(portion.acquired or portion.error for portion in self._portions):
            # All that was read has gone to others, or is not for members: markers, aborted transactions, gaps.
            if any(
                share.next_offset() not in (None, offset) for (portion, offset) in ready if (share := portion.share)
            ):
                self._host.timers.call_later(0, self._go_on)
            else:
                self._wait()
            return
        found = sum(1 for portion in self._portions if portion.acquired)
        self._host.counts.fetched(len(self._portions), found)
        if found:
            self._host.counts.acquired((self._host.timers.time() - self._began_s) * 1000)
        on_done, self._on_done = self._on_done, None
        on_done(list(self._portions))


class _Waiting(DelayedOperation):
    __slots__ = ("_fetching", "_places")

    def __init__(self, fetching: ShareFetching, places: dict[Hashable, Portion]) -> None:
        super().__init__()
        self._fetching = fetching
        self._places = places

    def waits_for(self) -> dict[str, Any]:
        tps = dict.fromkeys(portion.share.tp for portion in self._places.values() if portion.share is not None)
        return {
            "condition": "records of a share group",
            "count": len(tps),
            "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in list(tps)[:_NAMED_MAX]],
        }

    def is_satisfied(self) -> bool:
        return self._fetching.has_enough()

    def is_satisfied_by(self, key: Hashable) -> bool:
        return self._fetching.is_ready(self._places[key])

    def on_complete(self, *, expired: bool) -> None:
        self._fetching.woken(expired=expired)
