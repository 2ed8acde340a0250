"""The transaction coordinator of one broker: it finds the partition of `__transaction_state` of a transactional id, runs
operations on the machine of that partition, and carries out the machine's decisions.

Owner: the event loop. An error for the client is raised as `Refused`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

from barnabas.base.config.derived import Derived
from barnabas.base.errors import ErrorCode, Refused
from barnabas.base.ids import BrokerId, TopicPartition
from barnabas.base.topics import TRANSACTION_STATE_TOPIC
from barnabas.broker.runtime.coordinator import CoordinatorRuntime
from barnabas.broker.runtime.machine import Result
from barnabas.broker.transactions import metrics
from barnabas.broker.transactions.ending import EndAnswer
from barnabas.broker.transactions.initializing import InitAnswer, InitRequest
from barnabas.broker.transactions.machine import ListFilter, SendMarkers, TransactionMachine
from barnabas.broker.transactions.markers import MarkerSender
from barnabas.broker.transactions.producer_ids import ProducerIds
from barnabas.broker.transactions.settings import TransactionSettings
from barnabas.broker.transactions.state import ENDS_WITHOUT_BUMP, Identity, Transaction
from barnabas.broker.zookeeper_client.coordinator_context import CoordinatorContext
from barnabas.broker.zookeeper_client.metadata_cache import MetadataChange
from barnabas.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

log = logging.getLogger(__name__)

R = TypeVar("R")

#: How long a request waits for the markers of the previous transaction. A client backs off for 20 to 100 ms after
#: CONCURRENT_TRANSACTIONS; the markers are usually written sooner.
COMPLETION_WAIT_MAX_MS: Final = 500
#: The same for a request of another broker. One request has the verifications of many producers, so one transaction whose
#: markers cannot be written would delay them all. That broker repeats its request for a while.
BROKERS_WAIT_MAX_MS: Final = 20

#: Sends WriteTxnMarkers to a broker, perhaps this one; raises a `BarnabasError` if no answer comes.
SendMarkersTo = Callable[[BrokerId, WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]


class TransactionCoordinator:
    def __init__(
        self,
        context: CoordinatorContext,
        producer_ids: ProducerIds,
        *,
        send_markers: SendMarkersTo,
        exists: Callable[[TopicPartition], Awaitable[bool]],
        on_bug: Callable[[BaseException], None],
        transaction_version: Callable[[], int],
    ) -> None:
        """`transaction_version`: 2 while every live broker knows KIP-890 part 2 and KIP-939, 0 in a mixed cluster.

        `exists` returns whether the partition exists, also if this broker's metadata does not have it.
        """
        self.producer_ids = producer_ids
        self.transaction_version = transaction_version
        metadata = self._metadata = context.metadata
        self._now_ms = context.now_ms
        self.settings = Derived(context.config, TransactionSettings)
        self.topic = context.internal_topic(TRANSACTION_STATE_TOPIC, lambda: self.settings().new_topic)
        #: Leader epochs by partition of the topic. Markers carry them, so markers of an earlier coordinator are fenced.
        self._epochs: dict[int, int] = {}
        #: Requests that wait for the completion of a decided transaction, by partition and transactional id.
        self._waiting_requests: dict[tuple[int, str], list[asyncio.Future[None]]] = {}
        self._runtime = CoordinatorRuntime[TransactionMachine](
            self.topic.name,
            context.log,
            make_machine=lambda partition: TransactionMachine(
                settings=self.settings, transaction_version=transaction_version
            ),
            now_ms=context.now_ms,
            timers=context.timers,
            spawn=context.spawn,
            on_effect=self._carry_out,
            on_loaded=metrics.load_time(context.registry),
        )
        self.markers = MarkerSender(
            self,
            coordinator_epoch=self._epochs.get,
            send=send_markers,
            complete=self._complete,
            exists=exists,
            timers=context.timers,
            spawn=context.spawn,
            on_bug=on_bug,
        )
        metrics.add_gauges(context.registry, self)
        self._unsubscribe = metadata.subscribe(self._metadata_changed)

    # -- where transactional ids live ---------------------------------------------------------------------------------

    def partition_for(self, transactional_id: str) -> int:
        return self.topic.partition_for(transactional_id)

    def leader_of(self, partition: TopicPartition) -> BrokerId | None:
        """Return the leader, for markers: -1 if it is not alive, None if there is no such partition."""
        state = self._metadata.partition(partition)
        if state is None:
            # A broker without any metadata yet does not know whether the partition exists.
            return None if self._metadata.topics else BrokerId(-1)
        return BrokerId(state.leader) if self._metadata.is_alive(BrokerId(state.leader)) else BrokerId(-1)

    def elected(self, partition: int, epoch: int) -> None:
        """This broker has become leader of a partition of the topic."""
        self._epochs[partition] = epoch
        if self._runtime.elected(partition, epoch):
            # Another broker may have been coordinator in between. A transaction that it ended must not be ended again: a client
            # that keeps its epoch may have opened the next transaction. The log has the decisions that are still to be carried
            # out.
            self._forget_decisions(partition)

    def resigned(self, partition: int) -> None:
        self._epochs.pop(partition, None)
        self._runtime.resigned(partition)
        self._forget_decisions(partition)

    def _forget_decisions(self, partition: int) -> None:
        self.markers.forget(partition)
        for key in [key for key in self._waiting_requests if key[0] == partition]:
            self._completed(*key)

    def close(self) -> None:
        self._unsubscribe()
        for partition in list(self._epochs):
            self.resigned(partition)
        self._runtime.close()

    @property
    def machines(self) -> Mapping[int, TransactionMachine]:
        """Machines of the partitions that are served, for metrics and tests."""
        return self._runtime.active

    # -- operations ---------------------------------------------------------------------------------------------------

    async def init_producer_id(self, request: InitRequest) -> InitAnswer:
        await self.producer_ids.ready()
        take_id = self.producer_ids.take
        return await self._write_patiently(
            request.transactional_id,
            lambda machine: machine.init_producer_id(request, take_id, self._now_ms()),
            lambda answer: answer.error,
        )

    async def add_partitions(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: Collection[TopicPartition],
        *,
        client_version: int = ENDS_WITHOUT_BUMP,
        by_broker: bool = False,
    ) -> ErrorCode:
        """`by_broker`: the request comes from a partition's leader, which asks for many producers at once."""
        return await self._write_patiently(
            transactional_id,
            lambda machine: machine.add_partitions(
                transactional_id, identity, partitions, self._now_ms(), client_version=client_version
            ),
            lambda answer: answer,
            wait_max_ms=BROKERS_WAIT_MAX_MS if by_broker else None,
        )

    async def verify_partitions(
        self, transactional_id: str, identity: Identity, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        return await self._read(
            transactional_id, lambda machine: machine.verify_partitions(transactional_id, identity, partitions)
        )

    async def end(self, transactional_id: str, identity: Identity, *, commit: bool, client_version: int) -> EndAnswer:
        take_id = self.producer_ids.take
        return await self._write_patiently(
            transactional_id,
            lambda machine: machine.end(
                transactional_id, identity, take_id, self._now_ms(), commit=commit, client_version=client_version
            ),
            lambda answer: answer.error,
        )

    async def describe(self, transactional_id: str) -> Transaction | None:
        return await self._read(transactional_id, lambda machine: machine.get(transactional_id))

    async def select(self, wanted: ListFilter) -> list[Transaction]:
        """Return transactional ids that this broker coordinates."""
        now_ms = self._now_ms()
        return await self._runtime.read_all(lambda machine: machine.select(wanted, now_ms))

    async def _write_patiently(
        self,
        transactional_id: str,
        operation: Callable[[TransactionMachine], Result[R]],
        error_of: Callable[[R], ErrorCode],
        *,
        wait_max_ms: int | None = None,
    ) -> R:
        """Repeat the operation once the previous transaction's markers are written, instead of refusing the request at once."""
        wait_max_ms = COMPLETION_WAIT_MAX_MS if wait_max_ms is None else wait_max_ms
        deadline_s = asyncio.get_running_loop().time() + wait_max_ms / 1000
        while True:
            answer = await self._write(transactional_id, operation)
            if error_of(answer) is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return answer
            if not await self._wait_for_completion(transactional_id, deadline_s):
                return answer

    async def _wait_for_completion(self, transactional_id: str, deadline_s: float) -> bool:
        """Return False if the deadline comes first."""
        partition = self.partition_for(transactional_id)
        machine = self._runtime.active.get(partition)
        txn = None if machine is None else machine.get(transactional_id)
        if txn is None or not txn.state.is_prepared:
            return True
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting_requests.setdefault((partition, transactional_id), [])
        waiting.append(arrival)
        try:
            async with asyncio.timeout_at(deadline_s):
                await arrival
        except TimeoutError:
            return False
        finally:
            waiting.remove(arrival)
            if not waiting and self._waiting_requests.get((partition, transactional_id)) is waiting:
                del self._waiting_requests[partition, transactional_id]
        return True

    def _completed(self, partition: int, transactional_id: str) -> None:
        for arrival in self._waiting_requests.pop((partition, transactional_id), ()):
            if not arrival.done():
                arrival.set_result(None)

    async def _write(self, transactional_id: str, operation: Callable[[TransactionMachine], Result[R]]) -> R:
        return await self._in_time(
            self._runtime.write(self.partition_for(transactional_id), lambda machine, ticket: operation(machine))
        )

    async def _read(self, transactional_id: str, operation: Callable[[TransactionMachine], R]) -> R:
        return await self._in_time(self._runtime.read(self.partition_for(transactional_id), operation))

    async def _in_time(self, work: Awaitable[R]) -> R:
        """Bound the wait for slow followers: the client gets an error, and asks again."""
        try:
            async with asyncio.timeout(self.settings().request_timeout_ms / 1000):
                return await work
        except TimeoutError:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the replicas did not confirm in time") from None

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _carry_out(self, partition: int, message: object) -> None:
        assert isinstance(message, SendMarkers)
        if partition in self._epochs:
            self.markers.start(partition, message)

    async def _complete(self, partition: int, transactional_id: str, identity: Identity) -> None:
        completion = self._runtime.begin(
            partition, lambda machine, ticket: machine.complete(transactional_id, identity, self._now_ms())
        )
        # Do not wait for the commit: later operations follow in the log, and their answers wait for both.
        self._completed(partition, transactional_id)
        await completion

    def _metadata_changed(self, change: MetadataChange) -> None:
        if change.topics or change.deleted or change.brokers_changed:
            self.markers.metadata_changed()
