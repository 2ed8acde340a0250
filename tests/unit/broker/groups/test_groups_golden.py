"""Records of `__consumer_offsets` by Kafka 3.9.1, replayed into the machine, and written again byte for byte."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.base.config.group_config import GroupConfig
from barnabas.base.errors import Malformed
from barnabas.base.java_hash import java_hash, partition_of
from barnabas.broker.groups import records
from barnabas.broker.groups.classic_group import STABLE, ClassicGroup, GroupState
from barnabas.broker.groups.group import GroupEnvironment
from barnabas.broker.groups.machine import GroupMachine
from barnabas.broker.groups.offset_store import OffsetCommit
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.runtime.machine import KeyValue, Producer, ReplayedRecord
from barnabas.wire import codec
from barnabas.wire.messages.offsets_topic import OffsetCommitKey, OffsetCommitValue
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.records import iter_records
from tests.unit.broker.groups.group_harness import FakeTopics

GOLDEN = Path(__file__).parents[3] / "golden/kafka-3.9.1/broker-0/__consumer_offsets-1/00000000000000000000.log"
MEMBER = "golden-client-6b86c746-05bf-4b7b-91c5-e89bec880bf1"


def golden_records() -> list[ReplayedRecord]:
    data = GOLDEN.read_bytes()
    found = []
    for position, header in iter_batches(data):
        for record in iter_records(data, position, header):
            assert record.key is not None
            pair = KeyValue(bytes(record.key), None if record.value is None else bytes(record.value))
            producer = Producer(header.producer_id, header.producer_epoch)
            found.append(ReplayedRecord(pair, record.offset, record.timestamp, producer))
    return found


def machine() -> GroupMachine:
    return GroupMachine(
        GroupEnvironment(
            settings=GroupSettings,
            group_config=lambda group_id: GroupConfig(),
            topics=FakeTopics(),
            unique=lambda: "",
            consumer_protocol_enabled=lambda: False,
        )
    )


def test_golden_log_replays_into_the_group_that_wrote_it() -> None:
    replayed = machine()
    everything = golden_records()
    for record in everything[:5]:
        replayed.replay(record)
    group = replayed.groups["golden-group"]
    assert isinstance(group, ClassicGroup)
    assert (group.state, group.generation, group.protocol, group.leader_id) == (STABLE, 1, "range", MEMBER)
    assert group.subscribed_topics == {"keyed", "txn"}
    member = group.members[MEMBER]
    assert (member.client_id, member.client_host) == ("golden-client", "/127.0.0.1")
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (300_000, 45_000)
    group.validate()
    for record in everything[5:]:
        replayed.replay(record)
    group = replayed.groups["golden-group"]
    assert isinstance(group, ClassicGroup)
    assert (group.state, group.generation, group.protocol_type) == (GroupState.EMPTY, 2, "consumer")
    offsets = {(t, p): o.offset for t, each in replayed.store.of_group("golden-group").items() for p, o in each.items()}
    assert offsets == {("keyed", 0): 33, ("keyed", 1): 9, ("keyed", 2): 18, ("txn", 0): 16}


def test_golden_records_are_written_again_byte_for_byte() -> None:
    replayed = machine()
    for record in golden_records():
        replayed.replay(record)
        entry = records.decode(record.record)
        assert entry is not None
        if isinstance(entry.key, OffsetCommitKey):
            assert isinstance(entry.value, OffsetCommitValue)
            again: KeyValue = records.offset_commit(records.commit_of(entry.key, entry.value))
        else:
            group = replayed.groups["golden-group"]
            assert isinstance(group, ClassicGroup)
            again = group.record({member_id: each.assignment for member_id, each in group.members.items()})
        assert again == record.record


def test_golden_group_lives_in_the_partition_where_kafka_put_it() -> None:
    assert partition_of("golden-group", 2) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),  # the famous one: Java's abs leaves it negative
        ("Ωmega-😀", None),
    ],
)
def test_java_hash(text: str, expected: int | None) -> None:
    if expected is None:
        units = text.encode("utf-16-be")
        value = 0
        for at in range(0, len(units), 2):
            value = (value * 31 + int.from_bytes(units[at : at + 2], "big")) % 2**32
        expected = value - 2**32 if value >= 2**31 else value
    assert java_hash(text) == expected


def test_least_integer_belongs_to_partition_0() -> None:
    assert partition_of("polygenelubricants", 50) == 0


def test_records_of_share_groups_in_the_preview_of_kafka_39_are_skipped() -> None:
    share_group_key = (11).to_bytes(2, "big") + b"\x00\x01g"
    epoch_without_hash = b"\x00\x00" + (7).to_bytes(4, "big") + b"\x00"
    assert records.decode(KeyValue(share_group_key, epoch_without_hash)) is None


def test_unknown_record_types_are_skipped_and_garbage_is_not() -> None:
    of_a_preview = (18).to_bytes(2, "big") + b"\x00\x01g"
    assert records.decode(KeyValue(of_a_preview, b"")) is None
    with pytest.raises(Malformed):
        records.decode(KeyValue(b"\x00", None))
    with pytest.raises(Malformed):
        records.decode(KeyValue((1).to_bytes(2, "big") + b"\xff", None))


@given(
    group=st.text(max_size=20),
    topic=st.text(st.characters(codec="ascii"), max_size=20),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(-1, 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(max_size=40),
    expire_ms=st.just(-1) | st.integers(0, 2**40),
)
def test_fast_encoding_of_offsets_equals_the_codecs(
    group: str, topic: str, partition: int, offset: int, leader_epoch: int, metadata: str, expire_ms: int
) -> None:
    commit = OffsetCommit(group, topic, partition, offset, leader_epoch, metadata, 5, expire_ms)
    record = records.offset_commit(commit)
    assert record.commit is commit
    decoded = records.decode(record)
    assert decoded is not None
    assert isinstance(decoded.key, OffsetCommitKey) and isinstance(decoded.value, OffsetCommitValue)
    known_epoch = leader_epoch if expire_ms == -1 else -1  # version 1 has no room for it
    assert records.commit_of(decoded.key, decoded.value) == commit._replace(leader_epoch=known_epoch)
    assert record.key == codec.encode_versioned(decoded.key, 1)
    assert record.value == codec.encode_versioned(decoded.value, 3 if expire_ms == -1 else 1)
