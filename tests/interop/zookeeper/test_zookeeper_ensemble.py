"""Three of our brokers on an ensemble of three Apache ZooKeeper servers, which loses a server, then its leader, under load."""

from pathlib import Path

import pytest

from barnabas.cli.local_cluster import LocalCluster, wait_until
from tests.interop.zookeeper.zk_ensemble import Ensemble
from tests.soak.chaos import Chaos

SESSION_TIMEOUT_MS = 4000


class EnsembleChaos(Chaos):
    """The clients and checks of the soak, with a plan instead of random faults. Each step waits for acknowledged records."""

    ensemble: Ensemble

    def _break_things(self, seconds: float, faults: list[str] | None) -> None:
        ensemble = self.ensemble
        self._goes_on("with three servers")
        follower = ensemble.followers[0]
        self._note(f"kill -9 server {follower}, a follower")
        ensemble.kill(follower)
        self._goes_on("with two servers")
        # Two of three are a majority: other brokers take over the partitions of a broker that dies.
        broker = self._leader()
        self._note(f"kill -9 broker {broker}, a leader")
        self.cluster.kill(broker)
        self._goes_on("with two brokers", all_partitions=True)
        self._start(broker)
        self._wait_in_sync()
        ensemble.start(follower)
        ensemble.wait_for(lambda: follower in ensemble.followers, f"server {follower} as a follower")
        leader = ensemble.leader
        assert leader is not None
        self._note(f"kill -9 server {leader}, the leader")
        ensemble.kill(leader)
        ensemble.wait_for(lambda: ensemble.leader is not None, "another leader of the ensemble")
        self._note(f"server {ensemble.leader} leads")
        self._goes_on("with another leader of the ensemble")
        controller = self._controller()
        self._note(f"kill -9 broker {controller}, the controller")
        self.cluster.kill(controller)
        self._goes_on("with another controller", all_partitions=True)
        self._start(controller)
        self._wait_in_sync()
        ensemble.start(leader)
        ensemble.wait_for(lambda: len(ensemble.followers) == 2, "the ensemble whole again")
        self._goes_on("with all three again", all_partitions=True)
        self._everyone_runs()

    def _goes_on(self, when: str, *, all_partitions: bool = False) -> None:
        """Wait for new acknowledgements, of some partition or of every one."""
        counts = [len(writer.times) for writer in self.clients]
        wanted = self.partitions if all_partitions else 1

        def acknowledged() -> bool:
            news = [each for writer, count in zip(self.clients, counts, strict=True) for each in writer.times[count:]]
            return len(news) > 500 and len({partition for _, partition in news}) >= wanted

        wait_until(acknowledged, 90, what=f"acknowledgements {when}")
        self._note(f"records are acknowledged {when}")


@pytest.mark.timeout(300)
def test_ensemble_that_loses_a_server_and_then_its_leader_loses_no_record(java: str, tmp_path: Path) -> None:
    with Ensemble(tmp_path) as ensemble:
        cluster = LocalCluster(
            brokers=3,
            data=tmp_path / "brokers",
            zookeeper=f"{ensemble.connect}/kafka",
            config={
                "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
                "replica.lag.time.max.ms": "5000",
                "log.segment.bytes": "1048576",
            },
        )
        with cluster:
            chaos = EnsembleChaos(cluster, seed=1, partitions=4, rate=300, say=print)
            chaos.ensemble = ensemble
            chaos.run(seconds=0)
