"""Who makes topics with settings, and quotas, again and again.

Brokers hear of some of that from the controller, and read the rest in ZooKeeper. A server that is behind does not know it yet.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from barnabas.broker.zookeeper_client.paths import CLIENTS, config_entity
from barnabas.client.admin.topics import NewTopic, create_topics, delete_topics
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.errors import ClientError, check
from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from tests.simulation.load import Client

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

PACE_S: Final = (0.3, 2.0)
#: So many of its topics stay.
KEPT: Final = 4


class Repeater(Client):
    """Does one thing, again and again, with another number each time."""

    async def main(self) -> None:
        number = 0
        while not self.ending:
            await self.pause(*PACE_S)
            number += 1
            try:
                async with self.connect(api_timeout_ms=5_000) as cluster:
                    await self._do(cluster, number)
            except ClientError as error:
                self.note(f"is refused: {error}")

    async def _do(self, cluster: AsyncClient, number: int) -> None:
        raise NotImplementedError


class Founder(Repeater):
    """Makes topics with settings. Whether all who host one have its settings is for the watch to say."""

    def __init__(self, cluster: "SimCluster", name: str) -> None:
        super().__init__(cluster, name)
        #: What it has made, or has at least asked for.
        self.topics: deque[str] = deque()

    async def _do(self, cluster: AsyncClient, number: int) -> None:
        if len(self.topics) >= KEPT:
            await delete_topics(cluster, [self.topics.popleft()])
        name = f"{self.name}-{number}"
        self.topics.append(name)
        settings = {"min.insync.replicas": "2", "retention.ms": str(600_000 + number)}
        await create_topics(cluster, [NewTopic(name=name, partitions=1, replication_factor=3, configs=settings)])


class QuotaSetter(Repeater):
    """Sets a quota through one broker, and removes it through another. Who is told that it is gone is told the truth."""

    async def _do(self, cluster: AsyncClient, number: int) -> None:
        await cluster.refresh(())
        one, other = self.chance.sample(list(self.cluster.brokers), 2)
        name = f"nobody-{number}"
        await self._alter(cluster, one, name, OpData(key="producer_byte_rate", value=1e6))
        await self._alter(cluster, other, name, OpData(key="producer_byte_rate", remove=True))
        if self.cluster.data_at(config_entity(CLIENTS, name)) is not None:
            self.world.violate("what is said to be removed is gone", f"the quota of {name}, by broker {other}")

    async def _alter(self, cluster: AsyncClient, broker: int, name: str, change: OpData) -> None:
        entity = RequestEntityData(entity_type="client-id", entity_name=name)
        request = AlterClientQuotasRequest(entries=[RequestEntryData(entity=[entity], ops=[change])])
        [answer] = (await cluster.ask(broker, request, AlterClientQuotasResponse)).entries
        check(answer.error_code, answer.error_message)
