"""Who makes topics with settings, again and again: brokers hear of them from the controller, and read the rest in ZooKeeper."""

from collections import deque
from typing import TYPE_CHECKING, Final

from barnabas.client.admin.topics import NewTopic, create_topics, delete_topics
from barnabas.client.errors import ClientError
from tests.simulation.load import Client

if TYPE_CHECKING:
    from tests.simulation.cluster import SimCluster

PACE_S: Final = (0.3, 2.0)
#: So many of its topics stay.
KEPT: Final = 4


class Founder(Client):
    def __init__(self, cluster: "SimCluster", name: str) -> None:
        super().__init__(cluster, name)
        #: What it has made, or has at least asked for.
        self.topics: deque[str] = deque()

    async def main(self) -> None:
        number = 0
        while not self.ending:
            await self.pause(*PACE_S)
            number += 1
            try:
                async with self.connect(api_timeout_ms=5_000) as cluster:
                    if len(self.topics) >= KEPT:
                        await delete_topics(cluster, [self.topics.popleft()])
                    self.topics.append(f"{self.name}-{number}")
                    settings = {"min.insync.replicas": "2", "retention.ms": str(600_000 + number)}
                    await create_topics(
                        cluster,
                        [NewTopic(name=self.topics[-1], partitions=1, replication_factor=3, configs=settings)],
                    )
            except ClientError as error:
                self.note(f"is refused: {error}")
