"""Brokers of Apache Kafka 3.9.1 and of ours in one cluster: each kind in every role, under the same clients."""

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from barnabas.client.config import client_config
from barnabas.services.doctor.cluster import check_cluster
from barnabas.testing import wait_until
from tests.interop.kinds import APACHE, OURS, MixedCluster
from tests.interop.load import GroupReader, Transactor, Writer, check_nothing_lost, check_transactions, read_all
from tests.interop.steering import Steering

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("java")]

ROTATED = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
INTERNAL = ("__consumer_offsets", "__transaction_state")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(((APACHE, APACHE, OURS), OURS), id="two-apache-one-ours"),
        pytest.param(((APACHE, OURS, OURS), APACHE), id="one-apache-two-ours"),
    ],
)
def mixed(request: pytest.FixtureRequest) -> Iterator[MixedCluster]:
    kinds, zookeeper_kind = request.param
    by_id = dict(enumerate(kinds, start=1))
    with MixedCluster(kinds=by_id, zookeeper_kind=zookeeper_kind) as cluster:
        yield cluster


@pytest.fixture
def steering(mixed: MixedCluster) -> Iterator[Steering]:
    steering = Steering(mixed)
    yield steering
    steering.close()


def create(steering: Steering, topic: str, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    steering.admin.create_topics([NewTopic(topic, 3, replica_assignment=ROTATED, config=settings)])[topic].result(30)
    steering.wait_full_isr(topic)


def write_some(steering: Steering, topic: str, count: int = 600) -> Writer:
    writer = Writer(steering.cluster.bootstrap, topic, pause_s=0).start()
    wait_until(lambda: len(writer.acked) >= count, what=f"{count} records acknowledged")
    writer.stop()
    return writer


def test_doctor_shows_which_broker_serves_which_versions(mixed: MixedCluster) -> None:
    """The warning appears in the middle of a migration as it does in the middle of an upgrade."""
    kinds = {kind: ", ".join(str(each) for each in mixed.kinds if mixed.kinds[each] == kind) for kind in (APACHE, OURS)}
    expected = f"brokers serve different versions of the protocol: {kinds[APACHE]} | {kinds[OURS]}"

    def is_found() -> bool:
        findings = asyncio.run(check_cluster(client_config(mixed.bootstrap))).findings
        return any(each.check == "versions-differ" and each.message == expected for each in findings)

    wait_until(is_found, what=expected)


@pytest.mark.parametrize("finding", ["share-groups-refused", "streams-groups-refused"])
def test_new_kinds_of_groups_are_refused_and_doctor_says_which_brokers_lack_them(
    mixed: MixedCluster, finding: str
) -> None:
    apache = ", ".join(str(each) for each in mixed.kinds if mixed.kinds[each] == APACHE)

    def is_found() -> bool:
        findings = asyncio.run(check_cluster(client_config(mixed.bootstrap))).findings
        return any(each.check == finding and f"(not on: {apache})" in each.message for each in findings)

    wait_until(is_found, what=f"a finding that names {apache}")


@pytest.mark.parametrize("controller", [1, 2, 3])
def test_every_kind_of_controller_rules_the_life_of_a_topic(
    mixed: MixedCluster, steering: Steering, controller: int
) -> None:
    topic = f"life-{controller}"
    steering.make_controller(controller)
    create(steering, topic, retention_ms="3600000")
    writer = write_some(steering, topic)
    steering.wait_replicas_equal(topic)
    check_nothing_lost(mixed.bootstrap, writer)

    steering.reassign(topic, {0: [2, 3], 1: [3], 2: [1, 2]})
    steering.wait_full_isr(topic)
    steering.elect_preferred(topic)
    check_nothing_lost(mixed.bootstrap, writer)
    gone = [mixed.log_dir(1) / f"{topic}-0", mixed.log_dir(2) / f"{topic}-1", mixed.log_dir(3) / f"{topic}-2"]
    wait_until(lambda: not any(folder.exists() for folder in gone), what="replicas that moved away are deleted")
    steering.reassign(topic, dict(enumerate(ROTATED)))
    steering.wait_full_isr(topic)
    steering.elect_preferred(topic)
    steering.wait_replicas_equal(topic)

    steering.admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    steering.wait_for(topic, lambda meta: len(meta.partitions) == 5, what="five partitions")
    steering.wait_full_isr(topic)
    change = ConfigResource("topic", topic)
    change.add_incremental_config(ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET))
    for future in steering.admin.incremental_alter_configs([change]).values():
        future.result(30)

    steering.admin.delete_topics([topic])[topic].result(30)
    wait_until(
        lambda: not any(list(mixed.log_dir(broker_id).glob(f"{topic}-*")) for broker_id in mixed.kinds),
        90,
        what=f"the directories of {topic} are gone everywhere",
    )
    assert not steering.zk.exists(f"/brokers/topics/{topic}")
    assert not steering.zk.exists(f"/config/topics/{topic}")


def test_group_and_transaction_coordinators_of_either_kind_serve(mixed: MixedCluster, steering: Steering) -> None:
    create(steering, "plain")
    create(steering, "txn")
    writer = write_some(steering, "plain")
    expected = set(writer.acked.values())
    readers = [GroupReader(mixed.bootstrap, "plain", f"group-{number}").start() for number in range(6)]
    transactors = [Transactor(mixed.bootstrap, "txn", f"t{number}", pause_s=0).start() for number in range(6)]
    for reader in readers:
        wait_until(lambda reader=reader: set(reader.seen) >= expected, what="a group has read everything")
    for transactor in transactors:
        wait_until(lambda transactor=transactor: len(transactor.committed) >= 20, what="twenty commits")
    for thread in [*readers, *transactors]:
        thread.stop()
    assert len(set(steering.leaders("__consumer_offsets").values())) == 3
    assert len(set(steering.leaders("__transaction_state").values())) == 3
    check_transactions(mixed.bootstrap, "txn", transactors)
    steering.wait_full_isr("plain", "txn", *INTERNAL)
    steering.wait_replicas_equal("plain", "txn", *INTERNAL)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_nothing_is_lost_while_brokers_go_and_return(mixed: MixedCluster, steering: Steering, clean: bool) -> None:
    plain, txn = f"plain-{clean}", f"txn-{clean}"
    create(steering, plain)
    create(steering, txn)
    writer = Writer(mixed.bootstrap, plain).start()
    reader = GroupReader(mixed.bootstrap, plain, f"group-{clean}").start()
    transactors = [Transactor(mixed.bootstrap, txn, f"mover-{clean}-{number}").start() for number in range(3)]
    for broker_id, kind in mixed.kinds.items():
        before = len(writer.acked)
        mixed.stop(broker_id) if clean else mixed.kill(broker_id)
        wait_until(lambda before=before: len(writer.acked) > before + 300, what=f"writes go on without {broker_id}")
        mixed.start(broker_id, kind)
        steering.wait_full_isr(plain, txn, *INTERNAL)
        steering.elect_preferred(plain)
    for thread in [writer, *transactors]:
        thread.stop()
    check_nothing_lost(mixed.bootstrap, writer)
    check_transactions(mixed.bootstrap, txn, transactors)
    wait_until(lambda: set(reader.seen) >= set(writer.acked.values()), what="the group has read everything")
    reader.stop()
    steering.wait_replicas_equal(plain, txn, *INTERNAL)
    assert len(read_all(mixed.bootstrap, plain)) == len(writer.acked)
