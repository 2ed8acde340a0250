"""Requests to share coordinators, from the leaders of partitions and the group coordinator of this broker.

Owner: the event loop. While a request of one kind to one coordinator is unanswered, the next ones gather; then they go out
together, one request for each group. Requests for one share partition are sent one after the other, in the order in which they
were made: a repeated write may not overtake a later one. A request is repeated while its coordinator moves, loads or cannot be
reached, until `request.timeout.ms` has passed since it was made.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from barnabas.base.errors import BarnabasError, ErrorCode, NothingWritten, Refused
from barnabas.base.ids import BrokerId
from barnabas.broker.runtime.share_state import SharePartitionKey, ShareState, ShareStateSummary, StateBatch
from barnabas.broker.runtime.tasks import Spawn
from barnabas.broker.share_coordinator.coordinator import coordinator_key
from barnabas.broker.zookeeper_client.internal_topic import InternalTopic
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache
from barnabas.broker.zookeeper_client.metadata_waits import wait_until_shown
from barnabas.client.errors import UnsupportedVersion
from barnabas.wire.messages import delete_share_group_state as deleting
from barnabas.wire.messages import initialize_share_group_state as initializing
from barnabas.wire.messages import read_share_group_state as reading
from barnabas.wire.messages import read_share_group_state_summary as summing
from barnabas.wire.messages import write_share_group_state as writing
from barnabas.wire.messages.base import ApiMessage, Message

#: Sends a request to a broker, perhaps this one; raises a `BarnabasError` if no answer comes.
Send = Callable[[BrokerId, ApiMessage], Awaitable[ApiMessage]]

#: Errors that may pass: the coordinator moves, loads, or does not know a new topic yet.
RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
#: Requests that may wait for an answer, on this broker.
WAITING_MAX: Final = 20_000
#: Share partitions and state batches in one request, unless one share partition has more.
ELEMENTS_AT_ONCE_MAX: Final = 4_000


class Kind(NamedTuple):
    """One API: the classes of its messages."""

    name: str
    request: type[Any]
    topic: type[Any]


INITIALIZE: Final = Kind("initialize", initializing.InitializeShareGroupStateRequest, initializing.InitializeStateData)
READ: Final = Kind("read", reading.ReadShareGroupStateRequest, reading.ReadStateData)
WRITE: Final = Kind("write", writing.WriteShareGroupStateRequest, writing.WriteStateData)
DELETE: Final = Kind("delete", deleting.DeleteShareGroupStateRequest, deleting.DeleteStateData)
SUMMARY: Final = Kind("read-summary", summing.ReadShareGroupStateSummaryRequest, summing.ReadStateSummaryData)


@dataclass(slots=True)
class _Item:
    """One share partition of a request."""

    key: SharePartitionKey
    data: Message
    elements: int
    #: Gets the partition's result, with or without an error.
    future: "asyncio.Future[Any]"


class CoordinatorPersister:
    """A `SharePersister`."""

    def __init__(
        self,
        topic: InternalTopic,
        metadata: MetadataCache,
        *,
        send: Send,
        spawn: Spawn,
        timeout_ms: Callable[[], int],
    ) -> None:
        self._topic = topic
        self._metadata = metadata
        self._send = send
        self._spawn = spawn
        self._timeout_ms = timeout_ms
        #: Items that wait until the request before them is answered. A task sends them while there is an entry.
        self._queues: dict[tuple[Kind, BrokerId], deque[_Item]] = {}
        self._turns: WeakValueDictionary[SharePartitionKey, asyncio.Lock] = WeakValueDictionary()
        self._waiting = 0
        self._is_closed = False

    def close(self) -> None:
        """Send nothing more: the broker stops."""
        self._is_closed = True
        for queue in self._queues.values():
            for item in queue:
                _fail(item, _stopping())
            queue.clear()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def initialize(self, key: SharePartitionKey, *, state_epoch: int, start_offset: int) -> None:
        data = initializing.PartitionData(partition=key.partition, state_epoch=state_epoch, start_offset=start_offset)
        await self._ask(INITIALIZE, key, data)

    async def read(self, key: SharePartitionKey, *, leader_epoch: int) -> ShareState:
        data = reading.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
        found: reading.PartitionResult = await self._ask(READ, key, data)
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in found.state_batches
        ]
        return ShareState(found.state_epoch, found.start_offset, batches)

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        data = writing.PartitionData(
            partition=key.partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=delivery_complete_count,
            state_batches=[
                writing.StateBatch(
                    first_offset=batch.first_offset,
                    last_offset=batch.last_offset,
                    delivery_state=batch.delivery_state,
                    delivery_count=batch.delivery_count,
                )
                for batch in batches
            ],
        )
        await self._ask(WRITE, key, data, elements=1 + len(batches))

    async def delete(self, key: SharePartitionKey) -> None:
        await self._ask(DELETE, key, deleting.PartitionData(partition=key.partition))

    async def read_summary(self, key: SharePartitionKey, *, leader_epoch: int) -> ShareStateSummary:
        data = summing.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
        found: summing.PartitionResult = await self._ask(SUMMARY, key, data)
        return ShareStateSummary(
            found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count
        )

    # -- attempts -----------------------------------------------------------------------------------------------------

    async def _ask(self, kind: Kind, key: SharePartitionKey, data: Message, *, elements: int = 1) -> Any:
        if self._waiting >= WAITING_MAX:
            raise Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{WAITING_MAX} requests wait for share coordinators already"
            )
        last = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "an earlier request for the share partition takes too long")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_ms() / 1000), self._turn_of(key):
                backoff_s = BACKOFF_MIN_S
                while True:
                    broker = self._topic.coordinator_of(coordinator_key(key))
                    last = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the share coordinator does not answer")
                    try:
                        return await self._attempt(kind, broker, _Item(key, data, elements, _new_future()))
                    except Refused as refusal:
                        if refusal.code not in RETRIABLE or self._is_closed:
                            raise
                        last = refusal
                    await self._wait_for_other_than(broker, key, backoff_s)
                    backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
        except TimeoutError:
            raise last from None
        finally:
            self._waiting -= 1

    def _turn_of(self, key: SharePartitionKey) -> asyncio.Lock:
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = asyncio.Lock()
        return turn

    async def _attempt(self, kind: Kind, broker: BrokerId | None, item: _Item) -> Any:
        if self._is_closed:
            raise _stopping()
        if broker is None:
            # The first group needs the topic; or a partition of it has no leader at the moment.
            await self._topic.ensure()
            raise Refused(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self._topic.name} has no leader for the share partition"
            )
        queue = self._queues.get((kind, broker))
        if queue is None:
            self._queues[kind, broker] = deque([item])
            self._spawn(self._send_all(kind, broker), f"share state {kind.name} to broker {broker}")
        else:
            queue.append(item)
        result = await item.future
        if result.error_code != ErrorCode.NONE:
            raise Refused(ErrorCode(result.error_code), result.error_message)
        return result

    async def _wait_for_other_than(self, broker: BrokerId | None, key: SharePartitionKey, timeout_s: float) -> None:
        """Wait until the metadata has another coordinator, or for the backoff."""
        text = coordinator_key(key)
        await wait_until_shown(
            self._metadata,
            [text],
            lambda text: self._topic.coordinator_of(text) not in (None, broker),
            timeout_s=timeout_s,
        )

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _send_all(self, kind: Kind, broker: BrokerId) -> None:
        queue = self._queues[kind, broker]
        try:
            while by_group := _take(queue):
                await asyncio.gather(*(self._send_group(kind, broker, *each) for each in by_group.items()))
        finally:
            del self._queues[kind, broker]

    async def _send_group(self, kind: Kind, broker: BrokerId, group_id: str, items: list[_Item]) -> None:
        topics: dict[bytes, Any] = {}
        for item in items:
            topic = topics.setdefault(item.key.topic_id, kind.topic(topic_id=item.key.topic_id))
            topic.partitions.append(item.data)
        failure = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"broker {broker} did not answer for the share partition")
        try:
            response: Any = await self._send(broker, kind.request(group_id=group_id, topics=list(topics.values())))
        except UnsupportedVersion as error:
            failure = Refused(ErrorCode.UNSUPPORTED_VERSION, f"broker {broker} has no share coordinator: {error}")
        except NothingWritten as bug:
            failure = Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(bug))
        except BarnabasError as error:
            failure = Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {broker}: {error}")
        else:
            results = {
                (topic.topic_id, result.partition): result for topic in response.results for result in topic.partitions
            }
            for item in items:
                result = results.get((item.key.topic_id, item.key.partition))
                if result is not None and not item.future.done():
                    item.future.set_result(result)
        for item in items:
            _fail(item, failure)


def _new_future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


def _take(queue: deque[_Item]) -> dict[str, list[_Item]]:
    """Take the items of the next requests, by group. A share partition has one item at most, see `_turn_of`."""
    by_group: dict[str, list[_Item]] = {}
    elements = 0
    while queue and (not elements or elements + queue[0].elements <= ELEMENTS_AT_ONCE_MAX):
        item = queue.popleft()
        if not item.future.done():  # its time has passed
            elements += item.elements
            by_group.setdefault(item.key.group_id, []).append(item)
    return by_group


def _fail(item: _Item, failure: Refused) -> None:
    if not item.future.done():
        item.future.set_exception(failure)


def _stopping() -> Refused:
    return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker is stopping")
