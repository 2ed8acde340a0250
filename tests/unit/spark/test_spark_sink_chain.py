"""The short version of `tests.soak.spark_chain`: a driver killed, with its JVM, right after it has decided a batch."""

from pathlib import Path

import pytest
from tests.soak.spark_chain import CLUSTER_CONFIG, Chain

from barnabas.cli.local_cluster import LocalCluster


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_each_record_goes_through_the_chain_once_though_the_driver_is_killed(tmp_path: Path) -> None:
    story: list[str] = []
    with LocalCluster(brokers=1, config=CLUSTER_CONFIG) as cluster:
        chain = Chain(cluster, tmp_path, seed=1, rate=200, say=story.append)
        count = chain.run(seconds=0, faults=["decided"])
    assert count > 100
    assert any("died where it was decided" in line for line in story), story
