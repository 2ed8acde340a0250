"""Requests that arrive late: of a former controller, for a former life of a broker, in a former epoch.

A network that holds packets back delivers such requests in many seeds, and then rarely at the moment that matters. A latecomer
repeats requests that were valid before, and checks that the cluster rejects them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barnabas.base.errors import ErrorCode
from barnabas.base.ids import TopicPartition
from barnabas.base.words import LATEST
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import ClientError
from barnabas.testing.simulation.process import BrokerProcess
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tests.simulation.load import Client

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

#: Seconds between two late requests.
PACE_S = (0.2, 1.2)


@dataclass(frozen=True, slots=True)
class _Known:
    """The epochs that one life of a broker knew when it was looked at: they only grow."""

    process: BrokerProcess
    life: int
    broker: Any

    @property
    def is_same_life(self) -> bool:
        return self.process.lives == self.life


class LateRequester(Client):
    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)
        self._visits: list[Callable[[AsyncClient, _Known], Awaitable[None]]] = [
            self._in_a_former_leader_epoch,
            self._of_a_former_controller,
            self._for_a_former_life,
            self._of_a_former_leader,
        ]

    async def main(self) -> None:
        while not self.ending:
            try:
                async with self.connect(request_timeout_ms=2_000, api_timeout_ms=6_000) as cluster:
                    while not self.ending:
                        await self._pay_a_visit(cluster)
                        await self.pause(*PACE_S)
            except ClientError as error:
                self.note(f"starts again: {error}")
                await self.pause(*PACE_S)

    async def _pay_a_visit(self, cluster: AsyncClient) -> None:
        asked = self.chance.choice(list(await cluster.brokers()))
        process = self.cluster.brokers[asked]
        if process.is_serving:
            await self.chance.choice(self._visits)(cluster, _Known(process, process.lives, process.broker))

    def _fenced(self, what: str, code: int, known: _Known, detail: str) -> None:
        if code == ErrorCode.NONE and known.is_same_life:
            self.world.violate(what, f"{known.process.name} obeys {detail}")

    async def _in_a_former_leader_epoch(self, cluster: AsyncClient, known: _Known) -> None:
        """Fetch as a consumer that has not heard of an election."""
        led = [
            partition
            for tp in self._partitions
            if (partition := known.broker.replicas.hosted.get(tp)) is not None
            and partition.is_leader
            and partition.machine.leader_epoch > 0
        ]
        if not led:
            return
        partition = self.chance.choice(led)
        tp, epoch = partition.tp, partition.machine.leader_epoch
        asked = ListOffsetsPartition(partition_index=tp.partition, current_leader_epoch=epoch - 1, timestamp=LATEST)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=tp.topic, partitions=[asked])])
        answer = await cluster.ask(known.process.id, request, ListOffsetsResponse)
        self._fenced(
            "an old leader epoch is fenced",
            answer.topics[0].partitions[0].error_code,
            known,
            f"a request for {tp} of epoch {epoch - 1}, in {epoch}",
        )

    async def _of_a_former_controller(self, cluster: AsyncClient, known: _Known) -> None:
        epoch = known.broker.replication.control.controller_epoch
        if epoch > 0:
            answer = await self._update_metadata(cluster, known, epoch - 1, -1)
            self._fenced("an old controller is fenced", answer, known, f"a controller of epoch {epoch - 1}, in {epoch}")

    async def _for_a_former_life(self, cluster: AsyncClient, known: _Known) -> None:
        epoch, registered = known.broker.replication.control.controller_epoch, known.broker.registrar.epoch
        if registered > 0:
            answer = await self._update_metadata(cluster, known, epoch, registered - 1)
            self._fenced(
                "a broker ignores requests for its former life", answer, known, f"a request for life {registered - 1}"
            )

    async def _update_metadata(
        self, cluster: AsyncClient, known: _Known, controller_epoch: int, broker_epoch: int
    ) -> ErrorCode:
        """Send metadata without any live broker: a broker that obeys would believe that it is alone."""
        request = UpdateMetadataRequest(
            controller_id=known.process.id, controller_epoch=controller_epoch, broker_epoch=broker_epoch
        )
        return ErrorCode((await cluster.ask(known.process.id, request, UpdateMetadataResponse)).error_code)

    async def _of_a_former_leader(self, cluster: AsyncClient, known: _Known) -> None:
        """Send AlterPartition in a former epoch, with the same ISR in another order, which no leader asks for."""
        controller = self.cluster.controller()
        tp = self.chance.choice(self._partitions)
        if controller is None or controller.broker is None:
            return
        known = _Known(controller, controller.lives, controller.broker)
        context = controller.broker.controller.machine.context
        held, topic_id = context.leadership.get(tp), context.topic_ids.get(tp.topic)
        if held is None or topic_id is None or held.leader not in context.broker_epochs:
            return
        if held.partition_epoch < 1 or len(held.isr) < 2:
            return
        is_of_an_epoch = held.leader_epoch > 0 and self.chance.random() < 0.5
        isr = list(reversed(held.isr))
        partition = RequestPartitionData(
            partition_index=tp.partition,
            leader_epoch=held.leader_epoch - is_of_an_epoch,
            new_isr=isr,
            new_isr_with_epochs=[BrokerState(broker_id=each, broker_epoch=-1) for each in isr],
            partition_epoch=held.partition_epoch - 1,
        )
        request = AlterPartitionRequest(
            broker_id=held.leader,
            broker_epoch=context.broker_epochs[held.leader],
            topics=[RequestTopicData(topic_id=topic_id, partitions=[partition])],
        )
        answer = await cluster.ask(controller.id, request, AlterPartitionResponse)
        if answer.error_code == ErrorCode.NONE:
            self._fenced(
                "a former leader changes no ISR",
                answer.topics[0].partitions[0].error_code,
                known,
                f"a proposal for {tp} in epoch {partition.leader_epoch}/{partition.partition_epoch}, at {held}",
            )
