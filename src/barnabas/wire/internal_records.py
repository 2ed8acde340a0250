"""Records of the internal topics as text, as Kafka's tools print them. Pure.

A decoder returns (key, payload); None is not printed. It never fails on a record: as in Kafka's tool, an error text takes the
place of a part that cannot be decoded.
"""

import struct
from collections.abc import Callable
from typing import Final

from barnabas.base.errors import Malformed
from barnabas.wire.codec import decode, decode_versioned
from barnabas.wire.json_form import Json, compact, message_to_json
from barnabas.wire.messages import (
    base,
    consumer_group_records,
    offsets_topic,
    share_group_records,
    share_state_records,
)
from barnabas.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.transaction_log import TransactionLogKey, TransactionLogValue
from barnabas.wire.records import Record

#: Key and value classes of `__consumer_offsets`. The key's version is the type of the record.
_OFFSETS_RECORDS: Final[tuple[tuple[type[base.Record], type[base.Record]], ...]] = (
    (offsets_topic.OffsetCommitKey, offsets_topic.OffsetCommitValue),
    (offsets_topic.GroupMetadataKey, offsets_topic.GroupMetadataValue),
    (consumer_group_records.ConsumerGroupMetadataKey, consumer_group_records.ConsumerGroupMetadataValue),
    (
        consumer_group_records.ConsumerGroupPartitionMetadataKey,
        consumer_group_records.ConsumerGroupPartitionMetadataValue,
    ),
    (consumer_group_records.ConsumerGroupMemberMetadataKey, consumer_group_records.ConsumerGroupMemberMetadataValue),
    (
        consumer_group_records.ConsumerGroupTargetAssignmentMetadataKey,
        consumer_group_records.ConsumerGroupTargetAssignmentMetadataValue,
    ),
    (
        consumer_group_records.ConsumerGroupTargetAssignmentMemberKey,
        consumer_group_records.ConsumerGroupTargetAssignmentMemberValue,
    ),
    (
        consumer_group_records.ConsumerGroupCurrentMemberAssignmentKey,
        consumer_group_records.ConsumerGroupCurrentMemberAssignmentValue,
    ),
    (
        consumer_group_records.ConsumerGroupRegularExpressionKey,
        consumer_group_records.ConsumerGroupRegularExpressionValue,
    ),
    (share_group_records.ShareGroupMemberMetadataKey, share_group_records.ShareGroupMemberMetadataValue),
    (share_group_records.ShareGroupMetadataKey, share_group_records.ShareGroupMetadataValue),
    (
        share_group_records.ShareGroupTargetAssignmentMetadataKey,
        share_group_records.ShareGroupTargetAssignmentMetadataValue,
    ),
    (
        share_group_records.ShareGroupTargetAssignmentMemberKey,
        share_group_records.ShareGroupTargetAssignmentMemberValue,
    ),
    (
        share_group_records.ShareGroupCurrentMemberAssignmentKey,
        share_group_records.ShareGroupCurrentMemberAssignmentValue,
    ),
    (
        share_group_records.ShareGroupStatePartitionMetadataKey,
        share_group_records.ShareGroupStatePartitionMetadataValue,
    ),
)
_SHARE_STATE_RECORDS: Final[tuple[tuple[type[base.Record], type[base.Record]], ...]] = (
    (share_state_records.ShareSnapshotKey, share_state_records.ShareSnapshotValue),
    (share_state_records.ShareUpdateKey, share_state_records.ShareUpdateValue),
)
_INT16: Final = struct.Struct(">h")
_DELETED: Final = "<DELETE>"


def _decode_coordinator_record(
    record: Record, show: Callable[[int, bytes, Record], tuple[str, str | None]]
) -> tuple[str, str | None]:
    """Decode a coordinator's record. Its key begins with its version, which is the type of the record."""
    if record.key is None:
        return f"Error at offset {record.offset}, skipping. The record has no key.", None
    try:
        if len(record.key) < 2:
            raise Malformed("Could not read version from key's buffer.")
        return show(_INT16.unpack_from(record.key)[0], record.key, record)
    except Malformed as error:
        return f"Error at offset {record.offset}, skipping. {error}", None


class _JsonDecoder:
    """Records as JSON."""

    def __init__(self, records: tuple[tuple[type[base.Record], type[base.Record]], ...]) -> None:
        self._by_type = {
            version: (key, value) for key, value in records for version in range(key.MIN_VERSION, key.MAX_VERSION + 1)
        }

    def decode(self, record: Record) -> tuple[str | None, str | None]:
        return _decode_coordinator_record(record, self._show)

    def _show(self, record_type: int, key: bytes, record: Record) -> tuple[str, str | None]:
        if record_type not in self._by_type:
            return f"Unknown record type {record_type} at offset {record.offset}, skipping.", None
        key_class, value_class = self._by_type[record_type]
        shown = message_to_json(decode(key_class, key, record_type, 2, allow_trailing=True), record_type)
        shown_key = compact({"type": str(record_type), "data": shown})
        if record.value is None:
            return shown_key, _DELETED
        value, version = decode_versioned(value_class, record.value)
        return shown_key, compact({"version": str(version), "data": self._value(value, version)})

    def _value(self, value: base.Record, version: int) -> Json:
        return message_to_json(value, version)


class ShareGroupStateDecoder(_JsonDecoder):
    """`--share-group-state-decoder`: records of `__share_group_state`."""

    def __init__(self) -> None:
        super().__init__(_SHARE_STATE_RECORDS)


class OffsetsDecoder(_JsonDecoder):
    """`--offsets-decoder`: records of `__consumer_offsets`."""

    def __init__(self) -> None:
        super().__init__(_OFFSETS_RECORDS)

    def _value(self, value: base.Record, version: int) -> Json:
        shown = message_to_json(value, version)
        if isinstance(value, offsets_topic.GroupMetadataValue) and value.protocol_type == "consumer":
            members: list[Json] = []
            for member in value.members:
                fields = message_to_json(member, version)
                _unpack(fields, "subscription", ConsumerProtocolSubscription, member.subscription)
                _unpack(fields, "assignment", ConsumerProtocolAssignment, member.assignment)
                members.append(fields)
            shown["members"] = members
        return shown


def _unpack(fields: dict[str, Json], name: str, kind: type[base.Record], data: bytes) -> None:
    """Decode the metadata of consumer protocol members; other bytes stay as they are."""
    try:
        message, version = decode_versioned(kind, data)
    except Malformed:
        return
    fields[name] = message_to_json(message, version)


#: Names of transaction states, indexed by their number in a record.
_TXN_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


class TransactionLogDecoder:
    """`--transaction-log-decoder`: records of `__transaction_state`."""

    def decode(self, record: Record) -> tuple[str | None, str | None]:
        return _decode_coordinator_record(record, self._show)

    def _show(self, version: int, key: bytes, record: Record) -> tuple[str, str | None]:
        if not TransactionLogKey.MIN_VERSION <= version <= TransactionLogKey.MAX_VERSION:
            return f"unknown::version={version}", None
        decoded = decode(TransactionLogKey, key, version, 2, allow_trailing=True)
        shown_key = f"transaction_metadata::transactionalId={decoded.transactional_id}"
        if record.value is None:
            return shown_key, _DELETED
        value, _ = decode_versioned(TransactionLogValue, record.value)
        return shown_key, self._value(value)

    def _value(self, value: TransactionLogValue) -> str:
        status = value.transaction_status
        state = _TXN_STATES[status] if 0 <= status < len(_TXN_STATES) else f"Unknown({status})"
        partitions = [
            f"{topic.topic}-{partition}"
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ]
        return (
            f"producerId:{value.producer_id},producerEpoch:{value.producer_epoch},state={state},"
            f"partitions=[{','.join(partitions)}],"
            f"txnLastUpdateTimestamp={value.transaction_last_update_timestamp_ms},"
            f"txnTimeoutMs={value.transaction_timeout_ms}"
        )
