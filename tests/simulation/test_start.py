"""Brokers that start: what they answer before they are ready."""

from typing import Any

from barnabas.broker.zookeeper_client.features import ANNOUNCED
from barnabas.client.errors import ClientError
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


def test_a_broker_knows_the_clusters_features_before_it_answers_api_versions() -> None:
    """Clients keep the first answer as long as they are connected."""

    def first_answer() -> dict[str, Any]:
        cluster = SimCluster(1, Scenario(brokers=1))
        asker = Asker(cluster, "asker")
        for process in (cluster.zookeeper, *cluster.brokers.values(), asker):
            process.start()
        cluster.world.run_until(cluster.world.now_s + 10)
        return {"features": asker.features}

    assert in_child(first_answer) == {"features": {name: [level, level] for name, (_, level) in ANNOUNCED.items()}}


def test_a_broker_whose_session_expires_as_it_starts_goes_on_with_the_next_one() -> None:
    """The broker ended when it had to wait for a busy machine. Chaos seed 3607."""

    def ends() -> dict[str, Any]:
        cluster = SimCluster(1, Scenario(brokers=1))
        broker = cluster.brokers[1]
        expired = 0
        cluster.zookeeper.start()
        for delay_ms in range(40):
            broker.start()
            while getattr(broker.broker, "session", None) is None or not broker.broker.session.session_id:
                cluster.world.run_until(cluster.world.now_s + 0.001)
            cluster.world.run_until(cluster.world.now_s + delay_ms / 1000)
            expired += not broker.is_serving
            cluster.expire_session(broker)
            life = broker.lives
            cluster.world.run_until(cluster.world.now_s + 10)
            if not broker.is_serving or broker.lives != life:
                return {"expired": 0, "ended after ms": delay_ms}
            broker.kill()
        return {"expired": expired}

    assert in_child(ends)["expired"] > 20
