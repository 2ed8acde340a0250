"""Messages that kio lacks: their bytes as the schemas of Kafka 3.9 define them, written out by hand."""

import random

import pytest

from barnabas.wire.codec import decode, decode_versioned, encode, encode_versioned
from barnabas.wire.messages import (
    consumer_group_records,
    controlled_shutdown,
    leader_and_isr,
    offsets_topic,
    share_group_records,
    stop_replica,
    transaction_log,
    update_metadata,
)
from barnabas.wire.messages.base import Versioned
from barnabas.wire.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    TopicPartitions,
)
from barnabas.wire.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from tests.unit.wire.messages.message_samples import every_version, random_message

MODULES = (
    consumer_group_records,
    controlled_shutdown,
    leader_and_isr,
    offsets_topic,
    share_group_records,
    stop_replica,
    transaction_log,
    update_metadata,
)
CLASSES = [
    value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Versioned) and value.__module__ == module.__name__
]

TOPIC_ID = bytes(range(16))
ID = "000102030405060708090a0b0c0d0e0f"

PARTITION = LeaderAndIsrPartitionState(
    topic_name="t",
    partition_index=3,
    controller_epoch=7,
    leader=1,
    leader_epoch=4,
    isr=[1, 2],
    partition_epoch=9,
    replicas=[1, 2],
    adding_replicas=[5],
    is_new=True,
    leader_recovery_state=1,
)
LEADER_AND_ISR = LeaderAndIsrRequest(
    controller_id=1,
    controller_epoch=7,
    broker_epoch=40,
    type=1,
    ungrouped_partition_states=[PARTITION],
    topic_states=[LeaderAndIsrTopicState(topic_name="t", topic_id=TOPIC_ID, partition_states=[PARTITION])],
    live_leaders=[LeaderAndIsrLiveLeader(broker_id=1, host_name="h", port=9092)],
)
METADATA_PARTITION = UpdateMetadataPartitionState(
    topic_name="t",
    partition_index=3,
    controller_epoch=7,
    leader=1,
    leader_epoch=4,
    isr=[1],
    zk_version=9,
    replicas=[1],
    offline_replicas=[2],
)
UPDATE_METADATA = UpdateMetadataRequest(
    controller_id=1,
    type=1,
    controller_epoch=7,
    broker_epoch=40,
    ungrouped_partition_states=[METADATA_PARTITION],
    topic_states=[UpdateMetadataTopicState(topic_name="t", topic_id=TOPIC_ID, partition_states=[METADATA_PARTITION])],
    live_brokers=[
        UpdateMetadataBroker(
            id=1,
            v0_host="h",
            v0_port=9092,
            endpoints=[UpdateMetadataEndpoint(port=9092, host="h", listener="L", security_protocol=3)],
            rack=None,
        )
    ],
)
STOP_REPLICA = StopReplicaRequest(
    controller_id=1,
    controller_epoch=7,
    broker_epoch=40,
    delete_partitions=True,
    ungrouped_partitions=[StopReplicaPartitionV0(topic_name="t", partition_index=3)],
    topics=[StopReplicaTopicV1(name="t", partition_indexes=[3])],
    topic_states=[
        StopReplicaTopicState(
            topic_name="t",
            partition_states=[StopReplicaPartitionState(partition_index=3, leader_epoch=4, delete_partition=True)],
        )
    ],
)
ERROR = LeaderAndIsrPartitionError(topic_name="t", partition_index=3, error_code=11)
STOP_ERROR = StopReplicaPartitionError(topic_name="t", partition_index=3, error_code=11)
SHUTDOWN_LEFT = ControlledShutdownResponse(remaining_partitions=[RemainingPartition(topic_name="t", partition_index=3)])

# Each list of bytes: what the schema names, in order.
LAYOUTS: list[tuple[Versioned, int, list[str]]] = [
    (
        LEADER_AND_ISR,
        0,
        [
            "00000001",  # controller id
            "00000007",  # controller epoch
            "00000001",  # one partition
            "000174 00000003 00000007 00000001 00000004",  # topic, index, controller epoch, leader, leader epoch
            "00000002 00000001 00000002",  # isr
            "00000009",  # partition epoch
            "00000002 00000001 00000002",  # replicas
            "00000001 00000001 000168 00002384",  # live leaders
        ],
    ),
    (
        LEADER_AND_ISR,
        3,
        [
            "00000001 00000007 0000000000000028",  # ids, broker epoch
            "00000001 000174 00000001",  # one topic, one partition
            "00000003 00000007 00000001 00000004",
            "00000002 00000001 00000002 00000009 00000002 00000001 00000002",
            "00000001 00000005 00000000 01",  # adding, removing, is new
            "00000001 00000001 000168 00002384",
        ],
    ),
    (
        LEADER_AND_ISR,
        7,
        [
            "00000001 00 00000007 0000000000000028 01",  # ids, not KRaft, broker epoch, type
            f"02 0274 {ID} 02",  # one topic with its id, one partition
            "00000003 00000007 00000001 00000004",
            "03 00000001 00000002 00000009 03 00000001 00000002",
            "02 00000005 01 01 01 00",  # adding, removing, is new, recovery state, no tags
            "00",  # no tags of the topic
            "02 00000001 0268 00002384 00",  # live leaders
            "00",
        ],
    ),
    (LeaderAndIsrResponse(error_code=1, partition_errors=[ERROR]), 0, ["0001 00000001 000174 00000003 000b"]),
    (LeaderAndIsrResponse(error_code=1, partition_errors=[ERROR]), 4, ["0001 02 0274 00000003 000b 00 00"]),
    (
        LeaderAndIsrResponse(topics=[LeaderAndIsrTopicError(topic_id=TOPIC_ID, partition_errors=[ERROR])]),
        5,
        [f"0000 02 {ID} 02 00000003 000b 00 00 00"],
    ),
    (
        UPDATE_METADATA,
        0,
        [
            "00000001 00000007 00000001 000174 00000003 00000007 00000001 00000004",
            "00000001 00000001 00000009 00000001 00000001",  # isr, version, replicas
            "00000001 00000001 000168 00002384",  # one broker, host and port
        ],
    ),
    (
        UPDATE_METADATA,
        5,
        [
            "00000001 00000007 0000000000000028",
            "00000001 000174 00000001 00000003 00000007 00000001 00000004",
            "00000001 00000001 00000009 00000001 00000001 00000001 00000002",  # and the offline replicas
            "00000001 00000001",  # one broker
            "00000001 00002384 000168 00014c 0003",  # its endpoint: port, host, listener, protocol
            "ffff",  # no rack
        ],
    ),
    (
        UPDATE_METADATA,
        8,
        [
            "00000001 00 00000007 0000000000000028",
            f"02 0274 {ID} 02 00000003 00000007 00000001 00000004",
            "02 00000001 00000009 02 00000001 02 00000002 00 00",
            "02 00000001 02 00002384 0268 024c 0003 00 00 00",
            "01 00 01 01",  # one tag, the type
        ],
    ),
    (UpdateMetadataResponse(error_code=11), 0, ["000b"]),
    (UpdateMetadataResponse(error_code=11), 8, ["000b 00"]),
    (STOP_REPLICA, 0, ["00000001 00000007 01 00000001 000174 00000003"]),
    (STOP_REPLICA, 1, ["00000001 00000007 0000000000000028 01 00000001 000174 00000001 00000003"]),
    (STOP_REPLICA, 2, ["00000001 00000007 0000000000000028 01 02 0274 02 00000003 00 00"]),
    (STOP_REPLICA, 3, ["00000001 00000007 0000000000000028 02 0274 02 00000003 00000004 01 00 00 00"]),
    (STOP_REPLICA, 4, ["00000001 00 00000007 0000000000000028 02 0274 02 00000003 00000004 01 00 00 00"]),
    (StopReplicaResponse(partition_errors=[STOP_ERROR]), 0, ["0000 00000001 000174 00000003 000b"]),
    (StopReplicaResponse(partition_errors=[STOP_ERROR]), 2, ["0000 02 0274 00000003 000b 00 00"]),
    (ControlledShutdownRequest(broker_id=5, broker_epoch=40), 0, ["00000005"]),
    (ControlledShutdownRequest(broker_id=5, broker_epoch=40), 2, ["00000005 0000000000000028"]),
    (ControlledShutdownRequest(broker_id=5, broker_epoch=40), 3, ["00000005 0000000000000028 00"]),
    (SHUTDOWN_LEFT, 0, ["0000 00000001 000174 00000003"]),
    (SHUTDOWN_LEFT, 3, ["0000 02 0274 00000003 00 00"]),
    (ConsumerGroupMetadataKey(group_id="g"), 3, ["000167"]),
    (ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="a.*"), 16, ["000167 0003612e2a"]),
    (
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=4,
            previous_member_epoch=3,
            state=1,
            assigned_partitions=[TopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1])],
        ),
        0,
        [f"00000004 00000003 01 02 {ID} 03 00000000 00000001 00 01 00"],
    ),
    (
        ConsumerGroupMemberMetadataValue(
            instance_id=None,
            rack_id=None,
            client_id="c",
            client_host="h",
            subscribed_topic_names=["t"],
            subscribed_topic_regex=None,
            rebalance_timeout_ms=256,
            server_assignor=None,
            classic_member_metadata=ClassicMemberMetadata(
                session_timeout_ms=512, supported_protocols=[ClassicProtocol(name="r", metadata=b"\xaa")]
            ),
        ),
        0,
        [
            "00 00 0263 0268 02 0274 00 00000100 00",
            "01 00 0c 01",  # tag 0, 12 bytes, the first of which says that the struct is not null (KIP-893)
            "00000200 02 0272 02aa 00 00",
        ],
    ),
]


@pytest.mark.parametrize(
    ("message", "version", "layout"), LAYOUTS, ids=[f"{type(each[0]).__name__}-v{each[1]}" for each in LAYOUTS]
)
def test_bytes_are_those_of_the_schema(message: Versioned, version: int, layout: list[str]) -> None:
    expected = bytes.fromhex("".join(layout))
    assert encode(message, version) == expected
    # The fields of the version are read back, the others have their defaults, so the bytes are the same again.
    assert encode(decode(type(message), expected, version), version) == expected


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_version_survives_a_round_trip(cls: type[Versioned]) -> None:
    for _, version in every_version([cls]):
        chance = random.Random(f"{cls.__name__} {version}")
        for _ in range(20):
            message = random_message(chance, cls, version)
            raw = encode(message, version)
            assert encode(decode(cls, raw, version), version) == raw


def test_classic_member_metadata_full_of_defaults_is_sent_because_its_default_is_null() -> None:
    value = ConsumerGroupMemberMetadataValue(classic_member_metadata=ClassicMemberMetadata())
    assert decode_versioned(ConsumerGroupMemberMetadataValue, encode_versioned(value, 0)) == (value, 0)
