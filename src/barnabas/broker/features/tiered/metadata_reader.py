"""Reads `__remote_log_metadata` as a consumer does: one long poll after the other to one leader.

Owner: the event loop. Records go to a `Reading`, which tracks the position in each partition.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from barnabas.base.backoff import Backoff
from barnabas.base.errors import BarnabasError, ErrorCode, Malformed
from barnabas.base.ids import BrokerId
from barnabas.base.topics import REMOTE_LOG_METADATA_TOPIC
from barnabas.base.words import EARLIEST, LATEST
from barnabas.broker.features.tiered.metadata_records import Decoded, decode_records
from barnabas.broker.runtime.threads import OnThread
from barnabas.client.connection import Connection
from barnabas.client.errors import ClientError
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

log = logging.getLogger(__name__)

#: The last version with topic names instead of ids: if the topic is recreated, everything is read again.
_FETCH_VERSION: Final = 12
#: Limit of a long poll without records, so that the time-out notices a leader that disappeared.
_MAX_WAIT_MS: Final = 10_000
_RESPONSE_BYTES: Final = 256 << 10
REQUEST_MS: Final = 30_000
#: First delay between retries; it doubles.
BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0


class MetadataUnavailable(BarnabasError):
    """An event could not be written, or was not read back in time. It may be in the topic, or appear there later."""


class Reading(Protocol):
    """Positions in the partitions of the topic."""

    on_thread: OnThread

    def requested(self, numbers: set[int]) -> list[FetchPartition]:
        """Return the next fetch of these partitions."""
        ...

    def unread(self, numbers: set[int]) -> set[int]:
        """Return the partitions that have not been read to their end yet."""
        ...

    def fetched(self, number: int, fetch_offset: int, found: Decoded | None, end: int | None) -> None:
        """Accept records. `end`: the end of the log as committed before the fetch; None if unknown."""
        ...

    def begin_again(self, number: int, start: int) -> None:
        """Start again at `start`: the log does not contain the position any more."""
        ...


class MetadataReader:
    """One long poll after the other to one leader."""

    def __init__(self, owner: Reading, leader: BrokerId, connect: Callable[[BrokerId], Awaitable[Connection]]) -> None:
        self._owner = owner
        self._leader = leader
        self._connect = connect
        self._numbers: set[int] = set()
        self._connection: Connection | None = None
        #: Ends of the partitions that are not fully read yet. High watermarks would not do: a new leader's may be lower.
        self._ends: dict[int, int] = {}
        self._is_stopped = False
        #: Set when the wanted partitions differ from those of the pending poll, and to end a pause early.
        self._changed = asyncio.Event()

    def read(self, numbers: set[int]) -> None:
        if numbers != self._numbers:
            self._numbers = numbers
            self._interrupt()

    def stop(self) -> None:
        self._is_stopped = True
        self._interrupt()

    def _interrupt(self) -> None:
        self._changed.set()
        if self._connection is not None:
            self._connection.close()

    async def run(self) -> None:
        backoff = Backoff(BACKOFF_S, BACKOFF_MAX_S)
        try:
            while not self._is_stopped:
                self._changed.clear()
                try:
                    is_well = await self._poll()
                except (ClientError, MetadataUnavailable) as error:
                    is_well = False
                    if not self._changed.is_set():
                        log.debug(
                            "[tier metadata] cannot read %s from broker %d, will retry: %s",
                            REMOTE_LOG_METADATA_TOPIC,
                            self._leader,
                            error,
                        )
                if is_well:
                    backoff.succeeded()
                elif not self._changed.is_set():
                    await self._pause(backoff.failed())
        finally:
            if self._connection is not None:
                self._connection.close()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _poll(self) -> bool:
        if self._connection is None or self._connection.closed:
            self._ends.clear()
            self._connection = await self._connect(self._leader)
            if self._changed.is_set():
                return True
        unread = self._owner.unread(self._numbers)
        self._ends = {number: end for number, end in self._ends.items() if number in unread}
        if unread != self._ends.keys():
            self._ends |= await list_offsets(self._connection, sorted(unread - self._ends.keys()), LATEST)
        asked = self._owner.requested(self._numbers)
        # A long poll of an empty partition is answered late, and only the answer shows that it is empty.
        request = FetchRequest(
            max_wait_ms=0 if unread else _MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=_RESPONSE_BYTES,
            topics=[FetchTopic(topic=REMOTE_LOG_METADATA_TOPIC, partitions=asked)],
        )
        response = await self._connection.request(
            request, FetchResponse, version=_FETCH_VERSION, timeout_ms=_MAX_WAIT_MS + REQUEST_MS
        )
        if response.error_code != ErrorCode.NONE:
            return False
        fetch_offsets = {each.partition: each.fetch_offset for each in asked}
        lost: list[int] = []
        is_well = unread == self._ends.keys()
        for answer in (each for topic in response.responses for each in topic.partitions):
            number = answer.partition_index
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE or answer.diverging_epoch is not None:
                lost.append(number)
            elif answer.error_code != ErrorCode.NONE:
                is_well = False
            elif number in fetch_offsets:
                try:
                    found = await self._decoded(answer.records)
                except Malformed as error:
                    log.error(
                        "[tier metadata] %s-%d of broker %d is damaged, will retry: %s",
                        REMOTE_LOG_METADATA_TOPIC,
                        number,
                        self._leader,
                        error,
                    )
                    is_well = False
                    continue
                if self._is_stopped:
                    return True
                self._owner.fetched(number, fetch_offsets[number], found, self._ends.get(number))
                if found is None and self._owner.unread({number}):
                    self._ends.pop(number, None)  # the log was truncated: ask for its end again
                    is_well = False
        if lost:
            for number, start in (await list_offsets(self._connection, lost, EARLIEST)).items():
                self._ends.pop(number, None)
                self._owner.begin_again(number, start)
        return is_well

    async def _decoded(self, records: object) -> Decoded | None:
        """None: there were no records. :raises Malformed:"""
        if not isinstance(records, bytes | memoryview) or not len(records):
            return None
        found = await self._owner.on_thread(partial(decode_records, bytes(records)))
        if found is None:
            raise Malformed(f"{len(records)} bytes without a whole batch")
        return found


async def list_offsets(connection: Connection, numbers: list[int], timestamp: int) -> dict[int, int]:
    """Return offsets of the partitions whose leader answers. :raises ClientError:"""
    asked = [ListOffsetsPartition(partition_index=number, timestamp=timestamp) for number in numbers]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=REMOTE_LOG_METADATA_TOPIC, partitions=asked)]
    )
    response = await connection.request(request, ListOffsetsResponse, version=5, timeout_ms=REQUEST_MS)
    found: dict[int, int] = {}
    for answer in (each for topic in response.topics for each in topic.partitions):
        if answer.error_code == ErrorCode.NONE:
            found[answer.partition_index] = answer.offset
    return found
