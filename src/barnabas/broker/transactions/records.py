"""Records of `__transaction_state`, byte for byte as Kafka writes them.

Kafka 3.9 writes and reads value version 0. Version 1 (`transaction.version` 1 and later) also has the fields of KIP-890 part 2
and KIP-939, as tagged fields. A kept transaction, a used-up producer id and an end that raised the epoch need version 1, which
3.9 reads as well.
"""

from typing import Final

from barnabas.base.errors import Malformed
from barnabas.base.ids import TopicPartition
from barnabas.broker.runtime.machine import KeyValue
from barnabas.broker.transactions.state import Transaction, TransactionState
from barnabas.wire.codec import decode_versioned, encode_versioned
from barnabas.wire.messages.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue

KEY_VERSION: Final = 0
PLAIN_VALUE: Final = 0
TAGGED_VALUE: Final = 1


def value_version(transaction_version: int) -> int:
    return TAGGED_VALUE if transaction_version >= 1 else PLAIN_VALUE


def encode_key(transactional_id: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)


def decode_key(key: bytes) -> str | None:
    """Return the transactional id; None for a key of an unknown version, which Kafka ignores too."""
    if len(key) < 2 or int.from_bytes(key[:2], "big", signed=True) != KEY_VERSION:
        return None
    return decode_versioned(TransactionLogKey, key)[0].transactional_id


def encode_transaction(txn: Transaction, version: int) -> KeyValue:
    topics: dict[str, PartitionsSchema] = {}
    for topic, partition in txn.partitions:
        topics.setdefault(topic, PartitionsSchema(topic=topic)).partition_ids.append(partition)
    value = TransactionLogValue(
        producer_id=txn.producer_id,
        previous_producer_id=txn.previous_producer_id,
        next_producer_id=txn.next_producer_id,
        producer_epoch=txn.epoch,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_status=txn.state,
        transaction_partitions=None if txn.state is TransactionState.EMPTY else list(topics.values()),
        transaction_last_update_timestamp_ms=txn.update_ms,
        transaction_start_timestamp_ms=txn.start_ms,
        client_transaction_version=txn.client_version,
        next_producer_epoch=txn.next_epoch,
    )
    return KeyValue(encode_key(txn.transactional_id), encode_versioned(value, version))


def tombstone(transactional_id: str) -> KeyValue:
    return KeyValue(encode_key(transactional_id), None)


def decode_transaction(transactional_id: str, data: bytes) -> Transaction:
    value, _ = decode_versioned(TransactionLogValue, data)
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise Malformed(f"{transactional_id}: unknown transaction state {value.transaction_status}") from None
    return Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_epoch=value.next_producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=tuple(
            TopicPartition(each.topic, number)
            for each in value.transaction_partitions or ()
            for number in each.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
    )
