"""A running cluster moves from Apache Kafka to ours, broker by broker, and back, under load: nothing is lost."""

import random
import time

import pytest
from confluent_kafka.admin import NewTopic

from barnabas.testing import wait_until
from tests.interop.kinds import APACHE, OURS, MixedCluster
from tests.interop.load import GroupReader, Transactor, Writer, check_nothing_lost, check_transactions
from tests.interop.steering import Steering

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("java")]

ROTATED = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
TOPICS = ("plain", "txn", "__consumer_offsets", "__transaction_state")


class Load:
    """An idempotent writer, a consumer group and transactions, all at once."""

    def __init__(self, cluster: MixedCluster, steering: Steering) -> None:
        self.cluster = cluster
        self.steering = steering
        for topic in ("plain", "txn"):
            steering.admin.create_topics([NewTopic(topic, 3, replica_assignment=ROTATED)])[topic].result(30)
        self.writer = Writer(cluster.bootstrap, "plain").start()
        self.reader = GroupReader(cluster.bootstrap, "plain", "readers").start()
        self.transactors = [Transactor(cluster.bootstrap, "txn", f"mover-{n}").start() for n in range(3)]

    def wait_progress(self, what: str) -> None:
        writes, commits = len(self.writer.acked), [len(each.committed) for each in self.transactors]
        wait_until(
            lambda: (
                len(self.writer.acked) > writes + 200
                and all(
                    len(each.committed) > before + 3 for each, before in zip(self.transactors, commits, strict=True)
                )
            ),
            what=what,
        )

    def roll(self, *kinds: str) -> None:
        """Every broker becomes one of each kind in turn, one after the other."""
        for kind in kinds:
            for broker_id in (1, 2, 3):
                self.wait_progress(f"before broker {broker_id} becomes {kind}")
                self.cluster.stop(broker_id)
                self.cluster.start(broker_id, kind)
                self.steering.wait_full_isr(*TOPICS)
                self.steering.elect_preferred("plain")
                self.wait_progress(f"broker {broker_id} is {kind}")

    def finish(self) -> None:
        for thread in [self.writer, *self.transactors]:
            thread.stop()
        wait_until(
            lambda: set(self.reader.seen) >= set(self.writer.acked.values()), what="the group has read everything"
        )
        self.reader.stop()
        check_nothing_lost(self.cluster.bootstrap, self.writer)
        check_transactions(self.cluster.bootstrap, "txn", self.transactors)
        self.steering.wait_full_isr(*TOPICS)
        self.steering.wait_replicas_equal(*TOPICS)


def test_three_brokers_move_over_and_back_under_load() -> None:
    with MixedCluster(kinds=dict.fromkeys((1, 2, 3), APACHE), zookeeper_kind=APACHE) as cluster:
        steering = Steering(cluster)
        load = Load(cluster, steering)
        load.roll(OURS, APACHE)
        load.finish()
        steering.close()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_crashes_and_stalls_of_either_kind_lose_nothing(seed: int) -> None:
    chance = random.Random(seed)
    kinds = [APACHE, OURS, chance.choice([APACHE, OURS])]
    with MixedCluster(kinds=dict(enumerate(kinds, start=1)), zookeeper_kind=OURS) as cluster:
        steering = Steering(cluster)
        load = Load(cluster, steering)
        for _ in range(4):
            load.wait_progress("before a fault")
            broker_id = chance.choice([1, 2, 3])
            if chance.random() < 0.5:
                cluster.kill(broker_id)
                load.wait_progress(f"without broker {broker_id}")
                cluster.start(broker_id, chance.choice([APACHE, OURS]))
            else:
                cluster.pause(broker_id)
                time.sleep(chance.choice([1.0, 9.0]))  # shorter and longer than a session
                cluster.resume(broker_id)
            steering.wait_full_isr(*TOPICS)
        load.finish()
        steering.close()
