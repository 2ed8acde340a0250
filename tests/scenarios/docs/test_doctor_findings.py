"""Each finding of `barnabas doctor`, caused on a real cluster."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kazoo.client import KazooClient
from kazoo.security import make_acl

from barnabas.base.ids import TopicPartition as Partition
from barnabas.base.words import AlterOperation, ConfigResourceType
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.operations import Create, Delete
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.session_config import SessionConfig
from barnabas.broker.zookeeper_client.znodes import BrokerRegistration, ControllerRegistration, Endpoint
from barnabas.cli.main import app
from barnabas.client.admin.configs import alter_configs
from barnabas.client.admin.partitions import delete_records
from barnabas.client.admin.tokens import create_token
from barnabas.client.asynchronous import AsyncClient
from barnabas.client.config import ClientConfig, client_config
from barnabas.services.doctor.cluster import check_cluster
from barnabas.services.doctor.finding import Finding, Severity
from barnabas.services.doctor.view import DAY_MS, Limits
from barnabas.testing import Cluster, wait_until
from tests.support.command_line import CliRunner


def findings(config: str | ClientConfig, limits: Limits | None = None) -> dict[str, Finding]:
    """Return the findings by check; the first one if a check has several."""
    settings = client_config(config) if isinstance(config, str) else config
    found: dict[str, Finding] = {}
    for finding in asyncio.run(check_cluster(settings, limits)).findings:
        found.setdefault(finding.check, finding)
    return found


class Careless(Cluster):
    """A cluster that accepts misspelt settings."""

    def _check_names(self, settings: list[str]) -> None:
        return


def until_found(config: str | ClientConfig, *checks: str, limits: Limits | None = None) -> dict[str, Finding]:
    """Repeat the check: doctor waits only for seconds, and on a busy machine an answer may come too late."""
    found: dict[str, Finding] = {}

    def is_there() -> bool:
        found.clear()
        found.update(findings(config, limits))
        return found.keys() >= set(checks)

    wait_until(is_there, 60, what=", ".join(checks))
    return found


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers with differing settings, and settings without effect."""
    disks = tmp_path_factory.mktemp("disks")
    own = {2: {"num.partitions": "5"}, 3: {"log.dirs": f"{disks}/a,{disks}/b"}}
    config = {"num.io.threads": "9", "nmu.partitions": "3"}
    with Careless(brokers=3, config=config, broker_config=own) as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=3)
        yield cluster


def produce(cluster: Cluster, topic: str, number: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for each in range(number):
        producer.produce(topic, str(each))
    assert producer.flush(60) == 0


def commit(cluster: Cluster, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_settings_that_differ_or_have_no_effect_are_found(patient: Cluster) -> None:
    found = until_found(
        patient.bootstrap, "settings-differ", "setting-without-effect", "setting-unknown", "log-dirs-in-tmp"
    )
    assert found["settings-differ"].message == "num.partitions differs: 1 on 1, 3; 5 on 2"
    assert found["setting-without-effect"].subject == "brokers 1, 2, 3"
    assert "num.io.threads" in found["setting-without-effect"].message
    assert "did you mean num.partitions?" in found["setting-unknown"].message
    assert found["log-dirs-in-tmp"].subject == "brokers 1, 2, 3"


def test_disks_with_little_space_and_a_slow_zookeeper_are_found(patient: Cluster) -> None:
    limits = Limits(disk_share=1.0, zookeeper_ms=0)
    found = until_found(
        patient.bootstrap, "disk-nearly-full", "zookeeper-disk-nearly-full", "zookeeper-slow", limits=limits
    )
    assert found["disk-nearly-full"].subject == "broker 1"
    assert "GiB" in found["zookeeper-disk-nearly-full"].message
    assert "answers brokers 1, 2, 3 after" in found["zookeeper-slow"].message


def test_failed_disk_is_found(patient: Cluster) -> None:
    directory = next(path for path in patient_dirs(patient) if path.name == "b")
    patient.fail_log_dir(3, directory)
    offline = until_found(patient.bootstrap, "log-dir-offline")["log-dir-offline"]
    assert offline.subject == "broker 3" and str(directory) in offline.message


def test_cut_between_brokers_is_found(patient: Cluster) -> None:
    patient.cut_off(2)
    try:
        cut = until_found(patient.bootstrap, "brokers-cannot-reach-each-other")["brokers-cannot-reach-each-other"]
        assert "2" in cut.subject and "cannot reach" in cut.message
        assert cut.severity is Severity.ERROR
    finally:
        patient.heal()


def patient_dirs(patient: Cluster) -> list[Path]:
    settings = (patient.folder / "broker-3.properties").read_text()
    return [Path(path) for path in settings.partition("log.dirs=")[2].splitlines()[0].split(",")]


def test_missing_cluster_is_found() -> None:
    found = findings("127.0.0.1:1")
    assert found["bootstrap-unreachable"].subject == "127.0.0.1:1"


def test_group_that_lost_records_or_is_about_to_is_found(patient: Cluster) -> None:
    patient.create_topic("deleted", partitions=1, replication_factor=1)
    produce(patient, "deleted", 20)

    async def delete() -> None:
        async with AsyncClient(client_config(patient.bootstrap)) as client:
            await delete_records(client, {Partition("deleted", 0): 10})

    asyncio.run(delete())
    commit(patient, "late", "deleted", 3)
    commit(patient, "near", "deleted", 10)
    commit(patient, "fine", "deleted", 19)
    found = until_found(patient.bootstrap, "group-lost-records", "group-lag-near-retention")
    assert found["group-lost-records"].subject == "group late"
    assert found["group-lost-records"].message == "7 records were deleted before it read them: deleted-0"
    assert found["group-lag-near-retention"].subject == "group near"


def test_overdue_transaction_is_found_with_its_beginning(patient: Cluster) -> None:
    producer = Producer({"bootstrap.servers": patient.bootstrap, "transactional.id": "slow"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", b"x")
    assert producer.flush(60) == 0
    try:
        patience_ms = 60_000 + 1  # librdkafka's time-out
        limits = Limits(transaction_late_ms=-patience_ms)
        stuck = until_found(patient.bootstrap, "transaction-stuck", limits=limits)["transaction-stuck"]
        assert stuck.subject == "transaction slow" and "orders-0" in stuck.message
        assert stuck.since_ms is not None and abs(stuck.since_ms - time.time() * 1000) < 600_000
    finally:
        producer.abort_transaction(60)


def test_group_whose_member_does_not_rejoin_is_found(patient: Cluster) -> None:
    settings = {"bootstrap.servers": patient.bootstrap, "group.id": "restless", "log_level": 0}
    first = Consumer(settings)
    first.subscribe(["orders"])
    while not first.assignment():
        first.poll(0.1)
    second = Consumer(settings)
    # The second consumer joins in the background; the first does not poll, so it does not rejoin.
    second.subscribe(["orders"])
    limits = Limits(group_gap_s=0.1)
    try:
        found = until_found(patient.bootstrap, "group-rebalancing", limits=limits)
        assert found["group-rebalancing"].subject == "group restless"
    finally:
        done = [first, second]
        while done:
            for consumer in done:
                consumer.poll(0.05)  # a rebalance in progress needs both to end
            with contextlib.suppress(RuntimeError):
                done.pop().close()


def test_object_store_that_refuses_writes_is_found() -> None:
    config = {
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": "s3://nowhere/tier",
        "rsm.config.aws_endpoint": "http://127.0.0.1:1",
        "rsm.config.aws_access_key_id": "a",
        "rsm.config.aws_secret_access_key": "a",
        "rsm.config.aws_region": "us-east-1",
    }
    settings = {"remote.storage.enable": "true", "segment.bytes": "1000", "local.retention.bytes": "1"}
    with Cluster(brokers=1, config=config) as cluster:
        cluster.create_topic("history", partitions=1, replication_factor=1, config=settings)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for _ in range(20):  # two records for each segment
            producer.produce("history", b"x" * 400)
            assert producer.flush(60) == 0
        found = until_found(cluster.bootstrap, "tier-behind")
    assert found["tier-behind"].severity is Severity.WARNING
    assert found["tier-behind"].subject == "topic history"
    assert "1 partition (0) wait to be copied" in found["tier-behind"].message


def test_expiring_certificates_and_tokens_are_found() -> None:
    config = {"delegation.token.secret.key": "s3cret", "delegation.token.expiry.time.ms": "600000"}
    with Cluster(brokers=1, secure=True, config=config) as cluster:
        settings = client_config(settings=cluster.client_settings("admin"))

        async def make() -> None:
            async with AsyncClient(settings) as client:
                await create_token(client)

        asyncio.run(make())
        limits = Limits(certificate_ms=100_000 * DAY_MS, token_share=2)
        found = until_found(settings, "certificate-ends", "token-ends", "zookeeper-not-asked", limits=limits)
        assert found["certificate-ends"].subject == "broker 1"
        assert "User:admin" in found["token-ends"].subject
        # A plain-text connection to a TLS port: the advice is not to start a broker.
        assert "with --command-config" in findings(cluster.bootstrap)["bootstrap-unreachable"].advice
        stranger = client_config(settings=cluster.client_settings("client"))
        assert "CLUSTER_AUTHORIZATION_FAILED" in until_found(stranger, "not-answered")["not-answered"].message
        # Data that a secured ZooKeeper hides from strangers leads only to a note.
        assert found["zookeeper-not-asked"].severity is Severity.NOTE


def test_faults_of_a_cluster_are_found_one_after_the_other() -> None:
    with Cluster(brokers=3, config={"zookeeper.session.timeout.ms": "60000"}) as cluster:
        controller = cluster.controller()
        first, second = (broker for broker in cluster.broker_ids if broker != controller)
        # The controller cannot inform any broker about changes in ZooKeeper.
        cluster.cut_off(controller)
        asyncio.run(meddle(cluster.zookeeper_connect, gone=first, moved=second, new=9))
        config = client_config(cluster.address(second), {"socket.connection.setup.timeout.ms": "500"})
        found = until_found(config, "broker-not-registered", "registration-differs", "broker-not-in-metadata")
        assert found["broker-not-registered"].subject == f"broker {first}"
        assert found["registration-differs"].subject == f"broker {second}"
        assert found["broker-not-in-metadata"].subject == "broker 9"

        cluster.stop_zookeeper(kill=True)
        until_found(cluster.address(second), "zookeeper-unreachable")
        result = CliRunner().invoke(app, ["doctor", "--bootstrap-server", cluster.address(second)])
        assert result.exit_code == 1
        # A broker that answers in time reports since when; one on a busy machine may not.
        lines = [line for line in result.stdout.splitlines() if not line.startswith("        since:")]
        [first_line, means, do, *_] = lines
        assert first_line.startswith(f"ERROR   ZooKeeper at {cluster.zookeeper_connect}: no broker reaches it: ")
        assert means.startswith("        means: partitions with a leader work; no leader is elected")
        assert do.startswith("        do:    start ZooKeeper")


def test_broker_that_answers_at_anothers_address_is_found() -> None:
    with Cluster(brokers=2) as cluster:
        asyncio.run(
            meddle(cluster.zookeeper_connect, moved=2, to=("localhost", int(cluster.address(1).rpartition(":")[2])))
        )
        found = until_found(cluster.address(1), "advertised-listener-of-another")
        assert found["advertised-listener-of-another"].subject == "broker 2"


def test_brokers_that_advertise_the_same_address_are_found() -> None:
    with Cluster(brokers=2) as cluster:
        host, _, port = cluster.address(1).rpartition(":")
        asyncio.run(meddle(cluster.zookeeper_connect, moved=2, to=(host, int(port))))
        twice = until_found(cluster.address(1), "advertised-listener-twice")["advertised-listener-twice"]
        assert twice.subject == "brokers 1, 2"
        assert twice.message == f"all advertise {cluster.address(1)}"


def test_loopback_address_beside_another_is_found() -> None:
    # The name is not resolved, so no packet leaves this machine.
    with Cluster(brokers=2) as cluster:
        asyncio.run(meddle(cluster.zookeeper_connect, moved=2, to=("broker-2.invalid", 9092)))
        found = until_found(cluster.address(1), "advertised-listener-loopback", "advertised-listener-unreachable")
        assert "broker 1 (127.0.0.1)" in found["advertised-listener-loopback"].message
        assert found["advertised-listener-unreachable"].subject == "broker 2"


def test_cluster_without_a_controller_is_found() -> None:
    """Brokers report the last controller as long as there is no other."""
    with Cluster(brokers=2) as cluster:
        asyncio.run(enthrone(cluster.zookeeper_connect, 99))
        missing = until_found(cluster.bootstrap, "no-controller")["no-controller"]
        assert missing.severity is Severity.ERROR
        assert missing.message == (
            "there is no controller: /controller in ZooKeeper names broker 99, which is not registered"
        )
        # Follow the advice.
        asyncio.run(enthrone(cluster.zookeeper_connect, None))
        wait_until(lambda: "no-controller" not in findings(cluster.bootstrap), 60, what="an election")
        cluster.create_topic("after", partitions=1, replication_factor=2)


def test_znodes_that_strangers_can_change_are_reported_with_the_command_that_closes_them() -> None:
    closed = {"zookeeper.set.acl": "true", "barnabas.zookeeper.digest": "kafka:secret"}
    with Cluster(brokers=1, config=closed) as cluster:
        client = KazooClient(cluster.zookeeper_connect, auth_data=[("digest", "kafka:secret")])
        client.start()
        try:
            # A broker leaves the root of an unshared ZooKeeper open, and logs that.
            root = until_found(cluster.bootstrap, "znodes-open")["znodes-open"]
            assert (root.severity, "can change /" in root.message) == (Severity.WARNING, True)
            client.set_acls("/config/users", [make_acl("world", "anyone", all=True)])
            users = until_found(cluster.bootstrap, "znodes-open")["znodes-open"]
            assert users.severity is Severity.ERROR
            assert users.message.endswith("can change /config/users, /")
            assert (
                f"zookeeper-security-migration --zookeeper.acl secure --zookeeper.connect {client.hosts[0][0]}"
                in users.advice
            )
        finally:
            client.stop()
            client.close()
    acls = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}
    with Cluster(brokers=1, config=acls) as cluster:
        found = until_found(cluster.bootstrap, "znodes-open-with-acls")["znodes-open-with-acls"]
        assert (found.severity, "/config/users" in found.message) == (Severity.WARNING, True)
        assert "zookeeper.set.acl=true on every broker" in found.advice


def test_election_that_zookeeper_refuses_is_found() -> None:
    with Cluster(brokers=2) as cluster:
        client = KazooClient(cluster.zookeeper_connect)
        client.start()
        try:
            client.set_acls("/", [make_acl("world", "anyone", read=True, delete=True, admin=True)])
            client.delete("/controller")
            missing = until_found(cluster.bootstrap, "no-controller")["no-controller"]
            assert missing.message == "there is no controller: ZooKeeper has no /controller"
        finally:
            client.stop()
            client.close()


def test_broker_that_has_not_heard_of_the_new_controller_is_found() -> None:
    with Cluster(brokers=3, config={"zookeeper.session.timeout.ms": "60000"}) as cluster:
        before = cluster.controller()
        deaf, other = (broker for broker in cluster.broker_ids if broker != before)
        cluster.be_deaf_to(deaf, [before, other])
        cluster.pause(deaf)  # this broker must not win the election
        assert cluster.move_controller() == other
        cluster.resume(deaf)
        disputed = until_found(cluster.address(other), "controller-disputed")["controller-disputed"]
        assert f"broker {deaf}: {before}" in disputed.message
        assert "ZooKeeper: " + str(other) in disputed.message


def test_internal_topic_that_cannot_be_created_is_found() -> None:
    """One broker with the settings for three: consumers wait, and no other output explains why."""
    with Cluster(brokers=1, config={"offsets.topic.replication.factor": "3"}) as cluster:
        found = until_found(cluster.bootstrap, "internal-topic-impossible")["internal-topic-impossible"]
        assert found.subject == "topic __consumer_offsets" and found.severity is Severity.ERROR
        assert found.message == "it cannot be created: offsets.topic.replication.factor=3, but 1 broker alive"
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
        consumer.subscribe(["orders"])
        reason = "and replication factor 3, check offsets.topic.*: INVALID_REPLICATION_FACTOR"
        try:
            wait_until(lambda: consumer.poll(0.1) is None and reason in cluster.log(1), 60, what="the broker's word")
        finally:
            consumer.close()


def test_internal_topic_that_is_not_compacted_is_found(patient: Cluster) -> None:
    commit(patient, "any", "orders", 0)

    async def alter() -> None:
        async with AsyncClient(client_config(patient.bootstrap)) as client:
            change = {"cleanup.policy": (AlterOperation.SET, "delete")}
            await alter_configs(client, ConfigResourceType.TOPIC, "__consumer_offsets", change)

    asyncio.run(alter())
    found = until_found(patient.bootstrap, "internal-topic-not-compacted")
    assert found["internal-topic-not-compacted"].subject == "topic __consumer_offsets"


async def meddle(
    connect: str, *, moved: int, to: tuple[str, int] = ("127.0.0.1", 1), gone: int | None = None, new: int | None = None
) -> None:
    """Change registrations as only faults or people do."""
    session = ZooKeeperSession(SessionConfig(connect))
    await session.start()
    try:
        elsewhere = (Endpoint("PLAINTEXT", "PLAINTEXT", *to),)
        await session.set(paths.broker_id(moved), BrokerRegistration(moved, elsewhere).encode())
        if gone is not None:
            await session.delete(paths.broker_id(gone))
        if new is not None:
            await session.create(paths.broker_id(new), BrokerRegistration(new, elsewhere).encode())
    finally:
        await session.stop()


async def enthrone(connect: str, broker_id: int | None) -> None:
    """Write this broker to /controller, whichever was there before; None leaves the election to the brokers."""
    session = ZooKeeperSession(SessionConfig(connect))
    await session.start()
    try:
        steps: list[Delete | Create] = [Delete(paths.CONTROLLER)]
        if broker_id is not None:
            steps.append(Create(paths.CONTROLLER, ControllerRegistration(broker_id).encode()))
        await session.transaction(steps)
    finally:
        await session.stop()
