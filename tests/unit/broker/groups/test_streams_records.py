"""Records of streams groups, byte for byte as the group coordinator of Apache Kafka 4.3.1 writes them.

The bytes come from a Java program that calls Kafka's StreamsCoordinatorRecordHelpers and GroupCoordinatorRecordSerde.
"""

import pytest

from barnabas.broker.groups import records as common
from barnabas.broker.groups import streams_records as records
from barnabas.broker.groups.streams_group import Endpoint, StreamsGroup, StreamsMember, TaskState
from barnabas.broker.groups.streams_replay import STREAMS_REPLAYS
from barnabas.broker.groups.streams_tasks import TaskId, Tasks
from barnabas.broker.groups.streams_topology import CopartitionIndexes, InternalTopicSpec, StreamsTopology, Subtopology
from barnabas.broker.runtime.machine import KeyValue
from barnabas.wire.messages.streams_group_records import StreamsGroupCurrentMemberAssignmentValue

MEMBER = StreamsMember(
    member_id="m",
    member_epoch=5,
    previous_member_epoch=4,
    state=TaskState.UNREVOKED_TASKS,
    rack_id="r1",
    client_id="client",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=60_000,
    topology_epoch=2,
    process_id="p",
    endpoint=Endpoint("host", 40_000),
    client_tags=(("zone", "z1"),),
    assigned=Tasks(frozenset({TaskId("0", 0)}), frozenset({TaskId("1", 1)})),
    pending_revocation=Tasks(frozenset({TaskId("0", 2)})),
    active_epochs={TaskId("0", 0): 3, TaskId("0", 2): 4},
)
TARGET = Tasks(frozenset({TaskId("0", 0), TaskId("0", 2)}), frozenset({TaskId("1", 1)}))
TOPOLOGY = StreamsTopology(
    2,
    (
        Subtopology("0", ("t",), (), ("r",), (), ()),
        Subtopology(
            "1",
            (),
            (InternalTopicSpec("c", 0, 3, ()),),
            (),
            (InternalTopicSpec("r", 4, 0, (("cleanup.policy", "delete"),)),),
            (CopartitionIndexes((), (0,)),),
        ),
    ),
)
GOLDEN = {
    "epoch": (
        records.group_epoch(
            "g", 5, metadata_hash=-7, validated_topology_epoch=2, settings={"num.standby.replicas": "1"}
        ),
        "0011000167",
        "000000000005fffffffffffffff902000400000002011902156e756d2e7374616e6462792e7265706c69636173023100",
    ),
    "epoch of a group that is not ready": (
        records.group_epoch("g", 2, metadata_hash=0, validated_topology_epoch=-1, settings={}),
        "0011000167",
        "000000000002000000000000000000",
    ),
    "target epoch": (
        records.target_epoch("g", 5, timestamp_ms=1_700_000_000_000),
        "0014000167",
        "0000000000050100080000018bcfe56800",
    ),
    "target": (
        records.target_assignment("g", "m", TARGET),
        "001500016700016d",
        "0000020230030000000000000002000202310200000001000100",
    ),
    "member": (
        MEMBER.metadata_record("g"),
        "001300016700016d",
        "00000003723107636c69656e740b2f3132372e302e302e310000ea600000000202700105686f73749c400002057a6f6e65037a310000",
    ),
    "current assignment": (
        MEMBER.assignment_record("g"),
        "001600016700016d",
        "0000000000050000000402020230020000000001000502000000030202310200000001000102023002000000020100050200000004010100",
    ),
    "topology": (
        records.topology("g", TOPOLOGY.record()),
        "0017000167",
        "000000000002030230020274010102027201010002310101020263000000000003010001020272000000040000020f636c65616e75702e70"
        "6f6c6963790764656c6574650000020101020000000000",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_record_has_the_bytes_that_kafka_writes(name: str) -> None:
    record, key, value = GOLDEN[name]
    assert record.value is not None
    assert (record.key.hex(), record.value.hex()) == (key, value)


def replayed(*written: KeyValue) -> StreamsGroup:
    group = StreamsGroup("g")
    for each in written:
        entry = common.decode(each)
        assert entry is not None
        STREAMS_REPLAYS.by_key[type(entry.key)](group, entry.key, entry.value)
    return group


def test_records_of_kafka_are_replayed_into_the_group_that_wrote_them() -> None:
    group = replayed(*(KeyValue(bytes.fromhex(key), bytes.fromhex(value)) for _, key, value in GOLDEN.values()))
    assert group.members == {"m": MEMBER}
    assert group.target == {"m": TARGET}
    assert group.topology == TOPOLOGY
    assert (group.target_epoch, group.target_timestamp_ms) == (5, 1_700_000_000_000)
    group = replayed(GOLDEN["epoch"][0])
    assert (group.group_epoch, group.metadata_hash, group.validated_topology_epoch) == (5, -7, 2)
    assert group.assignment_settings == {"num.standby.replicas": "1"}


def test_tasks_in_records_without_epochs_count_as_assigned_in_the_epoch_of_the_member() -> None:
    """Kafka 4.1 wrote such records."""
    entry = common.decode(MEMBER.assignment_record("g"))
    assert entry is not None and isinstance(entry.value, StreamsGroupCurrentMemberAssignmentValue)
    for each in (*entry.value.active_tasks, *entry.value.active_tasks_pending_revocation):
        each.assignment_epochs = None
    group = replayed(records.current_assignment("g", "m", entry.value))
    assert group.members["m"].active_epochs == {TaskId("0", 0): 5, TaskId("0", 2): 5}


def test_state_of_a_later_version_is_unknown() -> None:
    entry = common.decode(MEMBER.assignment_record("g"))
    assert entry is not None and isinstance(entry.value, StreamsGroupCurrentMemberAssignmentValue)
    entry.value.state = 9
    assert replayed(records.current_assignment("g", "m", entry.value)).members["m"].state is TaskState.UNKNOWN
