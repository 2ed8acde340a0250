"""Brokers that start: what they say before they are ready."""

from typing import Any

from barnabas.client.errors import ClientError
from barnabas.coordination.features import ANNOUNCED
from tests.simulation.cluster import SimCluster
from tests.simulation.load import Client
from tests.simulation.scenario import Scenario
from tests.simulation.simulate import in_child


class Asker(Client):
    """Connects as soon as a broker listens."""

    features: dict[str, Any] | None = None

    async def main(self) -> None:
        while self.features is None:
            try:
                async with self.connect() as cluster:
                    self.features = dict((await cluster.any_connection()).versions.finalized_features)
            except ClientError:
                await self.pause(0.001, 0.002)


def test_a_broker_knows_the_features_of_the_cluster_before_it_says_which_it_has() -> None:
    """Clients keep the first answer for as long as they are connected."""

    def first_answer() -> dict[str, Any]:
        cluster = SimCluster(1, Scenario(brokers=1))
        asker = Asker(cluster, "asker")
        for process in (cluster.zookeeper, *cluster.brokers.values(), asker):
            process.start()
        cluster.world.run_until(cluster.world.now_s + 10)
        return {"features": asker.features}

    assert in_child(first_answer) == {"features": {name: [level, level] for name, (_, level) in ANNOUNCED.items()}}
