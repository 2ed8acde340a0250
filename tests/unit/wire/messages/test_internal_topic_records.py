"""Records that Apache Kafka 3.9.1 wrote to its internal topics decode to the output of its own dump tool."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest

from barnabas.wire.codec import decode_versioned, encode_versioned
from barnabas.wire.messages.base import Record
from barnabas.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.offsets_topic import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from barnabas.wire.messages.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from barnabas.wire.varint import read_varint, read_varlong

GOLDEN = Path(__file__).parents[3] / "golden/kafka-3.9.1"

#: Kafka's numbers for the states of a transaction, as TransactionLogValue has them.
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


def records_of(log: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of uncompressed batches, read only with the primitives."""
    data = log.read_bytes()
    at = 0
    while at < len(data):
        end = at + 12 + unpack_from(">i", data, at + 8)[0]
        pos = at + 61
        for _ in range(unpack_from(">i", data, at + 57)[0]):
            size, pos = read_varint(data, pos, end)
            stop = pos + size
            pos += 1
            _, pos = read_varlong(data, pos, end)
            _, pos = read_varint(data, pos, end)
            size, pos = read_varint(data, pos, end)
            key = data[pos : pos + size]
            size, pos = read_varint(data, pos + size, end)
            yield key, data[pos : pos + size]
            pos = stop
        at = end


def dumped(name: str) -> list[tuple[str, str]]:
    text = (GOLDEN / "dump" / name).read_text()
    return re.findall(r"^\| offset: .* key: (.*) payload: (.*)$", text, re.MULTILINE)


def camel_case(message: Any, *, without: frozenset[str] = frozenset()) -> dict[str, object]:
    def name(field: str) -> str:
        head, *tail = field.split("_")
        return head + "".join(word.title() for word in tail)

    return {name(field): getattr(message, field) for field in message.__wire__ if field not in without}


def again(record: Record, version: int) -> bytes:
    return encode_versioned(record, version)


def test_offsets_and_groups_equal_kafkas_dump() -> None:
    records = list(records_of(GOLDEN / "broker-0/__consumer_offsets-1/00000000000000000000.log"))
    expected = dumped("__consumer_offsets.txt")
    assert len(records) == len(expected) == 6
    for (raw_key, raw_value), (key_text, value_text) in zip(records, expected, strict=True):
        wanted_key, wanted = json.loads(key_text), json.loads(value_text)
        if wanted_key["type"] == "1":
            offset_key, key_version = decode_versioned(OffsetCommitKey, raw_key)
            assert (str(key_version), camel_case(offset_key)) == (wanted_key["type"], wanted_key["data"])
            assert again(offset_key, key_version) == raw_key
            offset, version = decode_versioned(OffsetCommitValue, raw_value)
            assert camel_case(offset, without=frozenset({"expire_timestamp"})) == wanted["data"]
            assert (again(offset, version), str(version)) == (raw_value, wanted["version"])
        else:
            group_key, key_version = decode_versioned(GroupMetadataKey, raw_key)
            assert (str(key_version), camel_case(group_key)) == (wanted_key["type"], wanted_key["data"])
            group, version = decode_versioned(GroupMetadataValue, raw_value)
            assert group_as_dumped(group) == wanted["data"]
            assert (again(group, version), str(version)) == (raw_value, wanted["version"])


def group_as_dumped(group: GroupMetadataValue) -> dict[str, object]:
    members = []
    for member in group.members:
        subscription, _ = decode_versioned(ConsumerProtocolSubscription, member.subscription)
        assignment, _ = decode_versioned(ConsumerProtocolAssignment, member.assignment)
        shown = camel_case(member)
        shown["subscription"] = with_partitions(subscription, "owned_partitions", "ownedPartitions")
        shown["assignment"] = with_partitions(assignment, "assigned_partitions", "assignedPartitions")
        members.append(shown)
    return camel_case(group) | {"members": members}


def with_partitions(data: Any, field: str, shown_as: str) -> dict[str, object]:
    """The dump prints bytes as base64; here they are empty."""
    shown = camel_case(data)
    shown[shown_as] = [camel_case(each) for each in getattr(data, field)]
    assert shown["userData"] == b""
    return shown | {"userData": ""}


def test_transactions_equal_kafkas_dump() -> None:
    records = list(records_of(GOLDEN / "broker-0/__transaction_state-0/00000000000000000000.log"))
    expected = dumped("__transaction_state.txt")
    assert len(records) == len(expected) == 13
    for (raw_key, raw_value), (key_text, value_text) in zip(records, expected, strict=True):
        key, key_version = decode_versioned(TransactionLogKey, raw_key)
        assert key_text == f"transaction_metadata::transactionalId={key.transactional_id}"
        assert again(key, key_version) == raw_key
        value, version = decode_versioned(TransactionLogValue, raw_value)
        topics = value.transaction_partitions or []
        partitions = ",".join(f"{each.topic}-{index}" for each in topics for index in each.partition_ids)
        assert value_text == (
            f"producerId:{value.producer_id},producerEpoch:{value.producer_epoch},"
            f"state={STATES[value.transaction_status]},partitions=[{partitions}],"
            f"txnLastUpdateTimestamp={value.transaction_last_update_timestamp_ms},"
            f"txnTimeoutMs={value.transaction_timeout_ms}"
        )
        assert again(value, version) == raw_value


@pytest.mark.parametrize(
    ("next_id", "tags"),
    [(-1, "0102 02 0002"), (7, "0201 08 000000000000000702 02 0002")],
)
def test_transaction_value_of_version_1_keeps_ids_of_kip_890_in_tags(next_id: int, tags: str) -> None:
    value = TransactionLogValue(
        producer_id=5,
        next_producer_id=next_id,
        client_transaction_version=2,
        transaction_partitions=[PartitionsSchema(topic="t", partition_ids=[0])],
    )
    raw = encode_versioned(value, 1)
    assert raw.endswith(bytes.fromhex(tags))
    assert decode_versioned(TransactionLogValue, raw) == (value, 1)
