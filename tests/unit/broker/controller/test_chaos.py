"""Seeded chaos: brokers crash, sessions expire, answers are late, and administrators send requests meanwhile."""

import pytest

from tests.unit.broker.controller.chaos_cluster import ChaosCluster


@pytest.mark.parametrize("seed", range(40))
def test_brokers_and_zookeeper_agree_after_the_chaos(seed: int) -> None:
    cluster = ChaosCluster(seed)
    cluster.start(1, 2, 3)
    for _ in range(40):
        cluster.misfortune()
        for _ in range(cluster.random.randint(0, 60)):
            cluster.step()
    cluster.bring_all_back()
    cluster.check()
