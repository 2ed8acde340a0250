"""Sends ISR changes to the controller: one AlterPartition request at a time, with all partitions that wait by then.

Owner: the event loop. A proposal without an answer is sent again; its partition epoch lets it take effect only once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from barnabas.base.clock import Clock
from barnabas.base.errors import BarnabasError, ErrorCode
from barnabas.base.ids import ZERO_TOPIC_ID, BrokerEpoch, BrokerId, LeaderEpoch
from barnabas.base.metrics.registry import Registry
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.state import IsrChange, IsrMember, IsrSettled, ProposeIsr
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)

log = logging.getLogger(__name__)

#: The pause before a proposal is sent again. The broker needs about this long to find a new controller.
RETRY_MS = 50


class IsrChanges:
    def __init__(
        self,
        broker_id: BrokerId,
        *,
        broker_epoch: Callable[[], BrokerEpoch],
        send: Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]],
        on_settled: Callable[[Partition, IsrSettled], None],
        clock: Clock,
        registry: Registry | None = None,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._on_settled = on_settled
        self._clock = clock
        self._waiting: dict[Partition, ProposeIsr] = {}
        self._wake = asyncio.Event()
        counter = (registry or Registry()).counter
        self._counts = {
            IsrChange.SHRINK: counter("kafka_server_replica_manager_isr_shrinks", "ISRs that lost replicas."),
            IsrChange.EXPAND: counter("kafka_server_replica_manager_isr_expands", "ISRs that got replicas back."),
        }
        self._refused = counter(
            "kafka_server_replica_manager_failed_isr_updates", "Changes of an ISR that the controller refused."
        )

    def submit(self, partition: Partition, proposal: ProposeIsr) -> None:
        """Queue a proposal. A machine has one at a time; a later one replaces an earlier one that was not sent yet."""
        self._waiting[partition] = proposal
        self._wake.set()

    async def run(self) -> None:
        """Send proposals until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._waiting = self._waiting, {}
            if not batch:
                continue
            try:
                response = await self._send(self._request(batch))
            except (BarnabasError, OSError, TimeoutError) as error:
                log.info(
                    "[controller] no answer to AlterPartition for %d partitions, sending it again: %s",
                    len(batch),
                    error,
                )
                await self._again(batch)
                continue
            top = ErrorCode(response.error_code)
            if top is not ErrorCode.NONE:
                log.info("[controller] refused AlterPartition for %d partitions: %s", len(batch), top.name)
                await self._again(batch)
                continue
            if unsettled := self._settle(batch, response):
                await self._again(unsettled)

    async def _again(self, batch: dict[Partition, ProposeIsr]) -> None:
        await asyncio.sleep(RETRY_MS / 1000)
        for partition, proposal in batch.items():
            if partition.machine.pending is proposal:
                self._waiting.setdefault(partition, proposal)
        if self._waiting:
            self._wake.set()

    def _request(self, batch: dict[Partition, ProposeIsr]) -> AlterPartitionRequest:
        topics: dict[bytes, RequestTopicData] = {}
        for partition, proposal in batch.items():
            topic_id = partition.topic_id or ZERO_TOPIC_ID
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = RequestTopicData(topic_id=topic_id)
            topic.partitions.append(
                RequestPartitionData(
                    partition_index=partition.tp.partition,
                    leader_epoch=proposal.leader_epoch,
                    new_isr=[member.broker_id for member in proposal.isr],
                    new_isr_with_epochs=[
                        BrokerState(broker_id=member.broker_id, broker_epoch=self._epoch_of(member))
                        for member in proposal.isr
                    ],
                    leader_recovery_state=proposal.leader_recovery_state,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )

    def _epoch_of(self, member: IsrMember) -> BrokerEpoch:
        return self._broker_epoch() if member.broker_id == self._broker_id else member.broker_epoch

    def _settle(
        self, batch: dict[Partition, ProposeIsr], response: AlterPartitionResponse
    ) -> dict[Partition, ProposeIsr]:
        """Apply the answers; return the proposals that may or may not have taken effect."""
        unsettled: dict[Partition, ProposeIsr] = {}
        answers = {
            (topic.topic_id, answer.partition_index): answer for topic in response.topics for answer in topic.partitions
        }
        for partition, proposal in batch.items():
            answer = answers.get((partition.topic_id or ZERO_TOPIC_ID, partition.tp.partition))
            machine = partition.machine
            if partition.log is None:
                continue  # the replica was deleted, or its directory failed, while the request was in flight
            if answer is None:
                settled = machine.isr_rejected(proposal, ErrorCode.UNKNOWN_SERVER_ERROR)
            elif answer.error_code:
                settled = machine.isr_rejected(proposal, ErrorCode(answer.error_code))
                self._refused.add()
                log.info(
                    "[partition %s] the controller refused an ISR change: %s",
                    partition.tp,
                    ErrorCode(answer.error_code).name,
                )
            else:
                settled = machine.isr_accepted(
                    proposal,
                    isr=frozenset(BrokerId(broker) for broker in answer.isr),
                    leader_epoch=LeaderEpoch(answer.leader_epoch),
                    partition_epoch=answer.partition_epoch,
                    log_end=partition.local_log.log_end_offset,
                    now_ms=self._clock.now_ms(),
                    leader_recovery_state=answer.leader_recovery_state,
                )
                self._counts[proposal.change].add()
                log.info("[partition %s] the ISR is now %s", partition.tp, sorted(machine.isr))
            self._on_settled(partition, settled)
            if settled.retry is not None:
                unsettled[partition] = settled.retry
        return unsettled
