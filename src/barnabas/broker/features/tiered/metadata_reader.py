"""Reading `__remote_log_metadata` as a consumer does: one long poll after the other to one leader.

Owner: the event loop. What was read goes to a `Reading`, which knows how far each partition was read.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

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

#: The last version that names topics, not ids: the topic may be made again, and then everything is read again.
_FETCH_VERSION: Final = 12
#: A long poll ends after so long even if there is nothing: a leader that is gone without a word is noticed by the time-out.
_MAX_WAIT_MS: Final = 10_000
_RESPONSE_BYTES: Final = 256 << 10
REQUEST_MS: Final = 30_000
#: Between two tries of what failed, doubling.
BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0


class MetadataUnavailable(BarnabasError):
    """An event could not be written, or was not read back in time: it may be in the topic, or come to be."""


class Reading(Protocol):
    """How far the partitions of the topic were read."""

    on_thread: OnThread

    def requested(self, numbers: set[int]) -> list[FetchPartition]:
        """What is next of these partitions."""
        ...

    def unread(self, numbers: set[int]) -> set[int]:
        """Those that were not read to their end yet."""
        ...

    def fetched(self, number: int, fetch_offset: int, found: Decoded | None, end: int | None) -> None:
        """`end`: of what was committed before it was asked for; None: nobody knows."""
        ...

    def begin_again(self, number: int, start: int) -> None:
        """What was read is not in the log any more, which begins at `start`."""
        ...


class MetadataReader:
    """One long poll after the other to one leader."""

    def __init__(self, owner: Reading, leader: BrokerId, connect: Callable[[BrokerId], Awaitable[Connection]]) -> None:
        self._owner = owner
        self._leader = leader
        self._connect = connect
        self._numbers: set[int] = set()
        self._connection: Connection | None = None
        #: Where the partitions ended that are not read yet. Not their high watermarks: a new leader's may be behind.
        self._ends: dict[int, int] = {}
        self._is_stopped = False
        #: Set when the poll under way asks for something else than what is wanted now, and when a pause is over before time.
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
        backoff_s = BACKOFF_S
        try:
            while not self._is_stopped:
                self._changed.clear()
                try:
                    is_well = await self._poll()
                except (ClientError, MetadataUnavailable) as error:
                    is_well = False
                    if not self._changed.is_set():
                        log.debug("cannot read %s from broker %d: %s", REMOTE_LOG_METADATA_TOPIC, self._leader, error)
                if is_well:
                    backoff_s = BACKOFF_S
                elif not self._changed.is_set():
                    await self._pause(backoff_s)
                    backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
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
        # A partition without records answers a long poll late, and only the answer tells that there are none.
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
                    log.error("%s-%d of broker %d: %s", REMOTE_LOG_METADATA_TOPIC, number, self._leader, error)
                    is_well = False
                    continue
                if self._is_stopped:
                    return True
                self._owner.fetched(number, fetch_offsets[number], found, self._ends.get(number))
                if found is None and self._owner.unread({number}):
                    self._ends.pop(number, None)  # the log has been cut since: where does it end now?
                    is_well = False
        if lost:
            for number, start in (await list_offsets(self._connection, lost, EARLIEST)).items():
                self._ends.pop(number, None)
                self._owner.begin_again(number, start)
        return is_well

    async def _decoded(self, records: object) -> Decoded | None:
        """None: there were none. :raises Malformed:"""
        if not isinstance(records, bytes | memoryview) or not len(records):
            return None
        found = await self._owner.on_thread(partial(decode_records, bytes(records)))
        if found is None:
            raise Malformed(f"{len(records)} bytes have no whole batch")
        return found


async def list_offsets(connection: Connection, numbers: list[int], timestamp: int) -> dict[int, int]:
    """Of those whose leader knows. :raises ClientError:"""
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
