"""Topics of which other clients know nothing: one is deleted and made again, one may lose records."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from barnabas.base.ids import TopicPartition
from barnabas.client.producer import Delivery, Producer, ProducerConfig
from tests.simulation.load import COMING, RECKLESS, Persistent, settle
from tests.simulation.oracle import Sent

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

PARTITIONS = (TopicPartition(COMING, 0), TopicPartition(COMING, 1))


class PersistentProducer(Persistent):
    """What was acknowledged for one topic of the name stays there as long as it exists, and does not appear in the next."""

    def __init__(self, cluster: "SimCluster", name: str, partitions: Sequence[TopicPartition] = PARTITIONS) -> None:
        super().__init__(cluster, name)
        self._partitions = list(partitions)

    async def _live(self) -> None:
        config = ProducerConfig(delivery_timeout_ms=4_000, request_timeout_ms=2_000)
        async with (
            self.connect(api_timeout_ms=5_000) as cluster,
            Producer(cluster, config, clock=self.clock, chance=self.chance) as producer,
        ):
            while not self.ending:
                before = cluster.image.topic_id(COMING)
                deliveries: list[tuple[Sent, Delivery]] = []
                for _ in range(self.chance.choice([1, 1, 3])):
                    tp = self.chance.choice(self._partitions)
                    record = self.oracle.sends(self.name, tp, is_durable=True, is_idempotent=True)
                    deliveries.append(
                        (record, await producer.send(COMING, record.name.encode(), partition=tp.partition))
                    )
                await settle(self, deliveries)
                after = cluster.image.topic_id(COMING)
                for record, _ in deliveries:
                    record.topic_id = before if before == after and any(before) else None
                await self.pause(*self.cluster.pace_s)


class RecklessProducer(Persistent):
    """Writes to a topic that may lose what it writes: only who leads it is of interest."""

    def __init__(self, cluster: "SimCluster", name: str, pace_s: tuple[float, float] | None = None) -> None:
        """`pace_s`: another than the cluster's."""
        super().__init__(cluster, name)
        self._pace_s = pace_s or cluster.pace_s

    async def _live(self) -> None:
        config = ProducerConfig(acks=1, idempotent=False, delivery_timeout_ms=4_000, request_timeout_ms=2_000)
        async with (
            self.connect(api_timeout_ms=5_000) as cluster,
            Producer(cluster, config, clock=self.clock, chance=self.chance) as producer,
        ):
            while not self.ending:
                await producer.send(RECKLESS, b"whatever", partition=0)
                await self.pause(*self._pace_s)
