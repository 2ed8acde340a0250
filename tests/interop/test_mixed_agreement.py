"""What one kind of broker is told, the other heeds: settings, ACLs, deleted records. Features of ours alone stay off."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from barnabas.base.errors import ErrorCode
from barnabas.client.asynchronous import AsyncClient
from barnabas.testing import wait_until
from barnabas.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.interop.kinds import APACHE, OURS, MixedCluster
from tests.interop.steering import Steering

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("java")]
#: Broker ids by kind; partition 0 of every topic is led by the first, partition 1 by the second.
ASSIGNMENT = [[1, 2], [2, 1]]


@pytest.fixture(scope="module")
def mixed() -> Iterator[MixedCluster]:
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with MixedCluster(kinds={1: APACHE, 2: OURS}, config=settings) as cluster:
        yield cluster


@pytest.fixture
def steering(mixed: MixedCluster) -> Iterator[Steering]:
    steering = Steering(mixed)
    yield steering
    steering.close()


@pytest.fixture
def made(steering: Steering, topic: str) -> str:
    steering.admin.create_topics([NewTopic(topic, 2, replica_assignment=ASSIGNMENT)])[topic].result(30)
    steering.wait_full_isr(topic)
    return topic


def admin_of(mixed: MixedCluster, broker_id: int) -> AdminClient:
    return AdminClient({"bootstrap.servers": mixed.address(broker_id), "log_level": 0})


def outcome(mixed: MixedCluster, topic: str, partition: int, value: bytes = b"x") -> KafkaError | None:
    """What the leader of one partition says to one record."""
    producer = Producer({"bootstrap.servers": mixed.bootstrap, "log_level": 0, "message.max.bytes": 10_000_000})
    answers: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        answers.append(error)

    producer.produce(topic, value, partition=partition, on_delivery=delivered)
    producer.flush(30)
    return answers[0]


def code_of(mixed: MixedCluster, topic: str, partition: int, value: bytes = b"x") -> int:
    error = outcome(mixed, topic, partition, value)
    return 0 if error is None else int(error.code())


@pytest.mark.parametrize("asked", [1, 2])
def test_settings_of_a_topic_reach_both_kinds(mixed: MixedCluster, made: str, asked: int) -> None:
    admin = admin_of(mixed, asked)
    change = ConfigResource("topic", made)
    change.add_incremental_config(ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET))
    for future in admin.incremental_alter_configs([change]).values():
        future.result(30)
    for partition in (0, 1):
        wait_until(
            lambda partition=partition: code_of(mixed, made, partition, b"v" * 5000) == KafkaError.MSG_SIZE_TOO_LARGE,
            what=f"leader of {partition} heeds max.message.bytes",
        )
        assert code_of(mixed, made, partition) == 0


@pytest.mark.parametrize("asked", [1, 2])
def test_acl_is_heeded_by_both_kinds(mixed: MixedCluster, made: str, asked: int) -> None:
    admin = admin_of(mixed, asked)
    everyone = AclBinding(
        ResourceType.TOPIC, made, ResourcePatternType.LITERAL, "User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW
    )
    deny = AclBinding(
        ResourceType.TOPIC,
        made,
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    for future in admin.create_acls([everyone, deny]).values():
        future.result(30)
    for partition in (0, 1):
        wait_until(
            lambda partition=partition: code_of(mixed, made, partition) == KafkaError.TOPIC_AUTHORIZATION_FAILED,
            what=f"leader of {partition} heeds the ACL",
        )
    gone = AclBindingFilter(
        ResourceType.TOPIC, made, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    for future in admin.delete_acls([gone]).values():
        assert len(future.result(30)) == 2
    for partition in (0, 1):
        wait_until(lambda partition=partition: code_of(mixed, made, partition) == 0, what="allowed again")


def test_deleted_records_are_deleted_on_followers_of_the_other_kind(
    mixed: MixedCluster, steering: Steering, made: str
) -> None:
    for partition in (0, 1):
        for _ in range(5):
            assert outcome(mixed, made, partition) is None
    cut = [TopicPartition(made, partition, 3) for partition in (0, 1)]
    for future in steering.admin.delete_records(cut).values():
        assert future.result(30).low_watermark == 3
    for broker_id in (1, 2):
        mixed.stop(broker_id)
        steering.wait_for(
            made,
            lambda meta, gone=broker_id: all(p.leader not in (-1, gone) for p in meta.partitions.values()),
            what="other leader",
        )
        for future in steering.admin.list_offsets({part: OffsetSpec.earliest() for part in cut}).values():
            assert future.result(30).offset == 3
        mixed.start(broker_id, mixed.kinds[broker_id])
        steering.wait_full_isr(made)
        steering.elect_preferred(made)


def test_features_of_ours_alone_are_off(mixed: MixedCluster, steering: Steering, made: str) -> None:
    async def heartbeats(cluster: AsyncClient) -> list[ConsumerGroupHeartbeatResponse]:
        """Of several groups, so that some have their coordinator at our broker."""
        await cluster.retrying("the topic of groups", lambda: cluster.coordinator(made))
        return [
            await cluster.ask(2, _joining(f"{made}-{number}", made), ConsumerGroupHeartbeatResponse)
            for number in range(12)
        ]

    def are_loaded() -> bool:
        codes = {answer.error_code for answer in steering.ask(heartbeats)}
        return codes == {ErrorCode.UNSUPPORTED_VERSION, ErrorCode.NOT_COORDINATOR}

    wait_until(are_loaded, 30, what="groups of our broker are refused, those of the other sent away")
    answers = steering.ask(heartbeats)
    ours = [answer for answer in answers if answer.error_code == ErrorCode.UNSUPPORTED_VERSION]
    assert all("not every broker" in (answer.error_message or "") for answer in ours)


def _joining(group: str, topic: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )


def test_unknown_topic_is_created_by_whoever_is_asked(mixed: MixedCluster, topic: str) -> None:
    for broker_id in (1, 2):
        name = f"{topic}-{broker_id}"
        producer = Producer({"bootstrap.servers": mixed.address(broker_id), "log_level": 0})
        failures: list[KafkaError] = []
        producer.produce(name, b"x", on_delivery=lambda error, message: failures.append(error) if error else None)  # noqa: B023
        assert producer.flush(30) == 0 and failures == []
    with pytest.raises(KafkaException):
        admin_of(mixed, 1).create_topics([NewTopic(f"{topic}-1", 1, 1)])[f"{topic}-1"].result(30)


def test_migrate_check_finds_nothing_in_the_way(mixed: MixedCluster, made: str) -> None:
    command = [sys.executable, "-m", "barnabas", "migrate", "check", "--bootstrap-server", mixed.bootstrap, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    answer = json.loads(done.stdout)
    assert answer["ready"] and done.returncode == 0, done.stdout
    assert {finding["about"] for finding in answer["findings"]} >= {"broker 1"}
