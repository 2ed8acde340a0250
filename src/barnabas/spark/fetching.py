"""One range of one partition, from the broker to Arrow: the executor's side of the source.

A second thread fetches the next bytes while the task decodes the last ones and hands them to Spark. The queue between
them is bounded, so a task holds three fetches at most.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import EARLIEST, EARLIEST_LOCAL
from barnabas.client.blocking import BlockingClient
from barnabas.client.errors import BrokerRefused, ClientError
from barnabas.client.fetching import Fetched
from barnabas.spark import kernels
from barnabas.spark.columns import MAX_ROWS, BatchDecoder
from barnabas.spark.offsets import OffsetRange, report_data_loss
from barnabas.spark.options import SourceOptions
from barnabas.wire.record_batch import MAGIC_AT, MAGIC_V2
from barnabas.wire.record_kernels import byte_array

_log: Final = logging.getLogger("barnabas.spark")

_QUEUED_FETCHES: Final = 1
#: How often a broker must return nothing, with the end past our range, before we believe that the range has no more records.
_EMPTY_ANSWERS: Final = 3
#: Most partitions in one request, and most bytes in its response: what one task holds in memory.
_TOGETHER: Final = 100
_TOGETHER_BYTES_MAX: Final = 8 * 1024 * 1024
#: Most bytes of rows of several small partitions that are put into one Arrow batch. Copying more is not worth it.
_JOINED_BYTES_MAX: Final = 1024 * 1024


#: Brokers accept no larger batch (`message.max.bytes` is an int32, and a response must hold it).
FETCH_BYTES_MAX: Final = 1 << 30


class _Gone(Exception):
    """Records of the range are gone."""


class _Recreated(Exception):
    """The topic was deleted and created again: no record of the range is left."""


@dataclass(frozen=True, slots=True)
class _End:
    """The last item in the queue: how fetching ended."""

    error: BaseException | None = None


def read_range(options: SourceOptions, wanted: OffsetRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of `wanted`. Records that are gone end the task or are skipped, as `failOnDataLoss` says."""
    decoder = _decoder(options, wanted, columns)
    arrived: queue.Queue[Fetched | _End] = queue.Queue(maxsize=_QUEUED_FETCHES)
    stopped = threading.Event()
    fetcher = _Fetcher(options, wanted, stopped)
    thread = threading.Thread(
        target=_fetch_ahead, args=(fetcher, arrived), name=f"fetch {wanted.partition}", daemon=True
    )
    thread.start()
    try:
        while True:
            item = arrived.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield from _decode(decoder, item)
    finally:
        stopped.set()
        # A put that waits for room ends when the queue is emptied; a fetch that waits for the broker ends with its own time
        # limit.
        while not arrived.empty():
            arrived.get_nowait()


def read_ranges(
    options: SourceOptions, wanted: Sequence[OffsetRange], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of several small ranges, one after the other, with one client for all."""
    with BlockingClient(options.client()) as client:
        yield from read_small(client, options, wanted, columns)


def read_small(
    client: BlockingClient, options: SourceOptions, wanted: Sequence[OffsetRange], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Do the same with an open client: few fetches and few batches, however many ranges there are."""
    return _joined(_small(client, options, wanted, columns))


def _small(
    client: BlockingClient, options: SourceOptions, wanted: Sequence[OffsetRange], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    ahead: dict[TopicPartition, Fetched] = {}
    for index, each in enumerate(wanted):
        if each.partition not in ahead and index + 1 < len(wanted):
            # Partitions in `ahead` stay there. This one may have been answered without records, and is then fetched by itself.
            missing = [other for other in wanted[index : index + _TOGETHER] if other.partition not in ahead]
            room_bytes = _TOGETHER_BYTES_MAX - sum(len(other.data) for other in ahead.values())
            if room_bytes > 0:
                ahead |= _fetch_together(client, options, missing, max_bytes=room_bytes)
        fetcher = _Fetcher(options, each, threading.Event(), first=ahead.pop(each.partition, None))
        decoder = _decoder(options, each, columns)
        for fetched in fetcher.fetches(client):
            yield from _decode(decoder, fetched)


def _fetch_together(
    client: BlockingClient, options: SourceOptions, wanted: Sequence[OffsetRange], *, max_bytes: int
) -> dict[TopicPartition, Fetched]:
    """Fetch the first bytes of each partition, as many as fit in one response. The others are fetched one by one, with
    patience."""
    positions: dict[TopicPartition, int] = {}
    for each in wanted:
        positions.setdefault(each.partition, each.from_offset)
    consumer = options.consumer
    at_once = replace(
        consumer,
        fetch_max_bytes=min(consumer.fetch_max_bytes, max_bytes),
        fetch_min_bytes=1,
        fetch_max_wait_ms=0,
    )
    try:
        return client.fetch_some(positions, at_once)
    except ClientError as error:
        _log.debug("%d partitions cannot be fetched together: %s", len(positions), error)
        return {}


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches: each Arrow batch costs Spark some time, however small it is."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for each in batches:
        if waiting and (rows + each.num_rows > MAX_ROWS or size_bytes + each.nbytes > _JOINED_BYTES_MAX):
            yield pa.concat_batches(waiting)
            waiting, rows, size_bytes = [], 0, 0
        waiting.append(each)
        rows += each.num_rows
        size_bytes += each.nbytes
    if waiting:
        yield pa.concat_batches(waiting)


def _decoder(options: SourceOptions, wanted: OffsetRange, columns: Sequence[str]) -> BatchDecoder:
    return BatchDecoder(
        wanted.partition,
        from_offset=wanted.from_offset,
        to_offset=wanted.until_offset,
        columns=columns,
        read_committed=options.read_committed,
        check_crcs=options.consumer.check_crcs,
    )


def _decode(decoder: BatchDecoder, fetched: Fetched) -> Iterator[pa.RecordBatch]:
    # The broker sends a batch whole: leave out the records below the position, which were skipped as deleted.
    decoder.position = max(decoder.position, fetched.position)
    yield from decoder.decode(fetched.data, fetched.aborted)


def _fetch_ahead(fetcher: "_Fetcher", arrived: "queue.Queue[Fetched | _End]") -> None:
    """Run in the thread beside a task: put fetches and their end into `arrived`."""

    def put(item: Fetched | _End) -> None:
        while not fetcher.stopped.is_set():
            try:
                arrived.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    try:
        with BlockingClient(fetcher.options.client()) as client:
            for fetched in fetcher.fetches(client):
                put(fetched)
    except BaseException as error:  # the task raises it
        put(_End(error))
    else:
        put(_End())


class _Fetcher:
    """Fetches up to the end of the range. Owner: one thread; it shares only the event with others."""

    def __init__(
        self,
        options: SourceOptions,
        wanted: OffsetRange,
        stopped: threading.Event,
        clock: Callable[[], float] = time.monotonic,
        *,
        first: Fetched | None = None,
    ) -> None:
        """`first`: the result of the first fetch, if another call has it already."""
        self.options = options
        self.stopped = stopped
        self._wanted = wanted
        self._clock = clock
        self._position = wanted.from_offset
        self._first = first if first is not None and first.position == wanted.from_offset else None
        self._fetch_bytes = options.consumer.partition_max_bytes

    def fetches(self, client: BlockingClient) -> Iterator[Fetched]:
        while self._position < self._wanted.until_offset and not self.stopped.is_set():
            try:
                fetched = self._next(client)
            except _Recreated as recreated:
                report_data_loss(str(recreated), fail=self.options.fail_on_data_loss)
                return
            except _Gone as gone:
                self._skip(client, str(gone))
                continue
            if fetched is None:
                return
            yield fetched

    def _next(self, client: BlockingClient) -> Fetched | None:
        """Return bytes that reach further than before; None if the rest of the range has no records."""
        deadline_s = self._clock() + self.options.poll_timeout_ms / 1000
        empty = 0
        while not self.stopped.is_set():
            fetched = self._once(client)
            position = kernels.next_offset(byte_array(fetched.data))
            if position > self._position:
                self._position = position
                return fetched
            if len(fetched.data):
                if not _is_cut(fetched.data) or self._fetch_bytes >= FETCH_BYTES_MAX:
                    return fetched  # the decoder reports what is wrong with it
                # A batch larger than the request: brokers send the first one whole, but not every proxy does.
                self._fetch_bytes = min(self._fetch_bytes * 2, FETCH_BYTES_MAX)
                continue
            if fetched.throttle_time_ms:
                self.stopped.wait(fetched.throttle_time_ms / 1000)
                continue
            readable = fetched.last_stable_offset if self.options.read_committed else fetched.high_watermark
            empty = empty + 1 if readable >= self._wanted.until_offset else 0
            if empty == _EMPTY_ANSWERS and self._is_on_disk(client):
                # Compaction removed the last records of the log, and the newest segment is empty.
                return None
            if (not empty or empty > _EMPTY_ANSWERS) and self._clock() > deadline_s:
                raise _Gone(
                    f"Cannot fetch record for offset {self._position} of {self._wanted.partition} in "
                    f"{self.options.poll_timeout_ms} milliseconds: the log ends at {readable}, "
                    f"{self._wanted.until_offset} was promised"
                )
        return None

    def _is_on_disk(self, client: BlockingClient) -> bool:
        """Whether the broker reads our position from its own disk. It also sends an empty response while tiered storage is
        slow."""
        partition = self._wanted.partition
        try:
            return client.list_offsets({partition: EARLIEST_LOCAL})[partition] <= self._position
        except BrokerRefused as refused:
            if refused.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            return True  # older than tiered storage

    def _once(self, client: BlockingClient) -> Fetched:
        self._require_same_topic(client)
        if self._first is not None:
            fetched, self._first = self._first, None
            return fetched
        fetched = self._fetch(client)
        # After an error the client looked for the leader again, and may have found another topic of this name.
        self._require_same_topic(client)
        return fetched

    def _fetch(self, client: BlockingClient) -> Fetched:
        consumer = self.options.consumer
        try:
            return client.fetch(
                self._wanted.partition,
                self._position,
                max_bytes=self._fetch_bytes,
                max_wait_ms=consumer.fetch_max_wait_ms,
                min_bytes=consumer.fetch_min_bytes,
                isolation_level=consumer.isolation_level,
            )
        except BrokerRefused as refused:
            if refused.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                raise _Gone(f"Cannot fetch offset {self._position} of {self._wanted.partition}") from refused
            raise
        except ClientError as error:
            cause = error.__cause__
            if isinstance(cause, BrokerRefused) and cause.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise _Gone(
                    f"Cannot fetch offset {self._position} of {self._wanted.partition}: there is no such partition"
                ) from error
            raise

    def _require_same_topic(self, client: BlockingClient) -> None:
        """Refuse another topic of the same name: its offsets are other records.

        The client's metadata may be older than the plan: the driver keeps its client from one micro-batch to the next.
        """
        if not self._wanted.topic_id:
            return
        partition = self._wanted.partition
        if partition.topic not in client.image.topics or self._is_recreated(client):
            with suppress(ClientError):  # the fetch itself tries again, and reports the error
                client.refresh([partition.topic])
            if self._is_recreated(client):
                raise _Recreated(
                    f"Cannot fetch offset {self._position} of {partition}: the topic was deleted and created again"
                )

    def _is_recreated(self, client: BlockingClient) -> bool:
        found = client.image.topics.get(self._wanted.partition.topic)
        return found is not None and any(found.topic_id) and found.topic_id != self._wanted.topic_id

    def _skip(self, client: BlockingClient, what: str) -> None:
        """Skip to the first offset of the log; to the end of the range if the log begins after it, or if the topic is gone."""
        report_data_loss(what, fail=self.options.fail_on_data_loss)
        first = self._first_available(client)
        until = self._wanted.until_offset
        target = until if first is None or not self._position < first < until else first
        _log.warning("%s: skipping offsets %d to %d", self._wanted.partition, self._position, target)
        self._position = target

    def _first_available(self, client: BlockingClient) -> int | None:
        try:
            return client.list_offsets({self._wanted.partition: EARLIEST})[self._wanted.partition]
        except ClientError as error:
            _log.warning("%s: cannot read its first offset: %s", self._wanted.partition, error)
            return None


def _is_cut(data: bytes | memoryview) -> bool:
    """Whether more bytes could complete the batch: its format is v2, or the bytes end before the format."""
    return len(data) <= MAGIC_AT or data[MAGIC_AT] == MAGIC_V2
