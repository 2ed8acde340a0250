"""Gives up partitions that another broker leads by now, while this broker cannot reach ZooKeeper.

A broker that is cut off from ZooKeeper alone loses its session. The controller elects other leaders and does not tell this
broker, because it does not count it as alive. Its clients still reach it, and their writes with acks=all would wait until the
cut ends: its followers fetch from the new leaders, and a time-out does not make every client look for another leader.

The other brokers know the new leaders, so this broker asks them. Only a newer leader epoch with another leader ends a
leadership. If ZooKeeper is away for all brokers, none knows of a newer one, and all go on. Owner: the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from barnabas.base.backoff import Backoff
from barnabas.base.ids import ZERO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from barnabas.broker.replication.partition import Partition
from barnabas.broker.zookeeper_client.metadata_cache import MetadataCache, PartitionMetadata
from barnabas.client.errors import ClientError
from barnabas.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

log = logging.getLogger(__name__)

#: How often the other brokers are asked whether they still count this one as alive.
ASK_EVERY_S = 0.5
#: Longest pause between questions about partitions to which no other broker can be elected.
PAUSE_MAX_S = 10.0
#: Topics in one question.
TOPICS_MAX = 500
NAMED_IN_LOG = 10

#: Sends a request to another broker. Raises `ClientError` if there is no answer.
Ask = Callable[[BrokerId, MetadataRequest], Awaitable[MetadataResponse]]


class LostLeadership:
    def __init__(
        self,
        broker_id: BrokerId,
        metadata: MetadataCache,
        partitions: Iterable[Partition],
        *,
        ask: Ask,
        stop_leading: Callable[[Sequence[Partition]], None],
        session_timeout_s: float,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._partitions = partitions
        self._ask = ask
        self._stop_leading = stop_leading
        # A silent connection counts as lost after two thirds of the session's time, so no session ends earlier than this.
        self._grace_s = session_timeout_s / 3
        self._is_away = asyncio.Event()
        #: Another broker no longer counts this one as alive.
        self.is_outside = False

    def zookeeper_changed(self, *, is_away: bool) -> None:
        if is_away:
            self._is_away.set()
        else:
            self._is_away.clear()
            self.is_outside = False

    async def run(self) -> None:
        while True:
            await self._is_away.wait()
            await asyncio.sleep(self._grace_s)
            backoff = Backoff(ASK_EVERY_S, PAUSE_MAX_S)
            while self._is_away.is_set():
                witness = await self._find_witness()
                self.is_outside = witness is not None and self._is_away.is_set()
                if witness is None or await self._give_up(witness):
                    backoff.succeeded()
                await asyncio.sleep(ASK_EVERY_S if witness is None else backoff.failed())

    def _led(self) -> dict[TopicPartition, Partition]:
        """Return the partitions that this broker leads and another one could lead."""
        return {each.tp: each for each in self._partitions if each.is_leader and len(each.machine.replicas) > 1}

    async def _find_witness(self) -> BrokerId | None:
        """Return a broker that no longer counts this one as alive."""
        others = [broker for broker in self._metadata.brokers if broker != self._broker_id]
        answers = await asyncio.gather(*(self._answer_of(broker, []) for broker in others))
        for broker, answer in zip(others, answers, strict=True):
            if answer is not None and all(each.node_id != self._broker_id for each in answer.brokers):
                return broker
        return None

    async def _answer_of(self, broker: BrokerId, topics: Sequence[str]) -> MetadataResponse | None:
        wanted = [MetadataRequestTopic(name=topic) for topic in topics]
        try:
            return await self._ask(broker, MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        except ClientError as error:
            log.debug("[broker %d] no answer about leaders: %s", broker, error)
            return None

    async def _give_up(self, witness: BrokerId) -> bool:
        """Stop leading what the witness knows another leader of. Return whether there was any."""
        topics = sorted({tp.topic for tp in self._led()})
        lost: list[Partition] = []
        for start in range(0, len(topics), TOPICS_MAX):
            answer = await self._answer_of(witness, topics[start : start + TOPICS_MAX])
            if answer is None or not self._is_away.is_set():
                break
            led = self._led()
            for topic in answer.topics:
                lost += self._take_over(topic, led)
        if lost:
            log.warning(
                "[replication] broker %d knows newer leaders of %s, giving them up; ZooKeeper cannot be reached from here: "
                "mend that, or stop this broker",
                witness,
                _named(lost),
            )
            self._stop_leading(lost)
        return bool(lost)

    def _take_over(self, topic: MetadataResponseTopic, led: Mapping[TopicPartition, Partition]) -> list[Partition]:
        """Note newer leaders, for clients that ask this broker. Return the partitions that have one and are led here."""
        name = topic.name or ""
        known = self._metadata.topic(name)
        if known is None or (ZERO_TOPIC_ID not in (known.id, topic.topic_id) and known.id != topic.topic_id):
            return []
        lost, newer = [], []
        for each in topic.partitions:
            partition, state = (
                led.get(TopicPartition(name, each.partition_index)),
                known.partitions.get(each.partition_index),
            )
            if partition is None or state is None or each.leader_id in (-1, self._broker_id):
                continue
            if each.leader_epoch > partition.machine.leader_epoch:
                lost.append(partition)
                newer.append(
                    PartitionMetadata(
                        partition_index=each.partition_index,
                        controller_epoch=state.controller_epoch,
                        leader=each.leader_id,
                        leader_epoch=each.leader_epoch,
                        isr=each.isr_nodes,
                        zk_version=state.zk_version,
                        replicas=each.replica_nodes,
                        offline_replicas=each.offline_replicas,
                    )
                )
        if newer:
            self._metadata.learn(name, TopicId(known.id), newer)
        return lost


def _named(partitions: Sequence[Partition]) -> str:
    names = ", ".join(str(each.tp) for each in partitions[:NAMED_IN_LOG])
    more = len(partitions) - NAMED_IN_LOG
    return f"{names} and {more} more" if more > 0 else names
