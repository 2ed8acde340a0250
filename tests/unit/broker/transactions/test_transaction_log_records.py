"""Records of `__transaction_state` by Kafka 3.9.1 are read, and written again byte for byte."""

from pathlib import Path

import pytest

from barnabas.base.errors import Malformed
from barnabas.broker.runtime.machine import KeyValue, ReplayedRecord
from barnabas.broker.transactions.records import (
    PLAIN_VALUE,
    TAGGED_VALUE,
    decode_key,
    decode_transaction,
    encode_key,
    encode_transaction,
    tombstone,
)
from barnabas.broker.transactions.state import Transaction, TransactionState
from barnabas.wire.record_batch import iter_batches
from barnabas.wire.records import Record, iter_records
from tests.unit.broker.transactions.txn_harness import A0, A1, B0, Bench

GOLDEN = Path(__file__).parents[3] / "golden" / "kafka-3.9.1" / "broker-0"


def golden_records() -> list[Record]:
    records: list[Record] = []
    for segment in sorted(GOLDEN.glob("__transaction_state-*/*.log")):
        data = segment.read_bytes()
        for position, header in iter_batches(data, 0, len(data)):
            records += iter_records(data, position, header)
    return records


def test_kafkas_records_are_read_and_written_again_byte_for_byte() -> None:
    records = golden_records()
    assert len(records) == 13
    for record in records:
        assert record.key is not None
        assert record.value is not None
        transactional_id = decode_key(record.key)
        assert transactional_id == "golden-txn"
        txn = decode_transaction(transactional_id, record.value)
        assert encode_transaction(txn, PLAIN_VALUE) == KeyValue(record.key, record.value)


def test_a_machine_that_replays_kafkas_log_knows_its_last_state() -> None:
    machine = Bench().machine
    for record in golden_records():
        assert record.key is not None
        machine.replay(ReplayedRecord(KeyValue(record.key, record.value), record.offset, record.timestamp))
    txn = machine.get("golden-txn")
    assert txn is not None
    assert txn.state is TransactionState.COMPLETE_ABORT
    assert txn.identity == (1, 0)
    assert txn.start_ms == 1794728973899


def test_the_tagged_version_keeps_every_field() -> None:
    txn = Transaction(
        transactional_id="t",
        producer_id=7,
        epoch=3,
        previous_producer_id=5,
        next_producer_id=9,
        next_epoch=4,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        partitions=(A0, A1, B0),
        start_ms=11,
        update_ms=12,
        client_version=2,
    )
    key, value = encode_transaction(txn, TAGGED_VALUE)
    assert value is not None
    assert decode_transaction("t", value) == txn
    assert decode_key(key) == "t"


def test_an_empty_transaction_has_null_partitions_and_a_completed_one_none() -> None:
    empty = Transaction(transactional_id="t", producer_id=1, epoch=0, timeout_ms=1, update_ms=0)
    done = Transaction(
        transactional_id="t", producer_id=1, epoch=0, timeout_ms=1, update_ms=0, state=TransactionState.COMPLETE_COMMIT
    )
    assert encode_transaction(empty, PLAIN_VALUE).value != encode_transaction(done, PLAIN_VALUE).value
    value = encode_transaction(empty, PLAIN_VALUE).value
    assert value is not None
    # version, producer id, epoch, time-out, state, then the array's length: -1 is null
    assert value[2 + 8 + 2 + 4 + 1 :][:4] == b"\xff\xff\xff\xff"


def test_a_tombstone_removes_the_transactional_id() -> None:
    bench = Bench()
    bench.init()
    bench.machine.replay(ReplayedRecord(tombstone("pay"), 1, 0))
    assert bench.machine.get("pay") is None


def test_a_key_of_an_unknown_version_is_ignored() -> None:
    machine = Bench().machine
    machine.replay(ReplayedRecord(KeyValue(b"\x00\x09what", b"ever"), 0, 0))
    assert machine.transactions == {}


def test_an_unknown_state_is_malformed() -> None:
    txn = Transaction(transactional_id="t", producer_id=1, epoch=0, timeout_ms=1, update_ms=0)
    value = encode_transaction(txn, PLAIN_VALUE).value
    assert value is not None
    damaged = value[:16] + b"\x63" + value[17:]
    with pytest.raises(Malformed, match="unknown transaction state 99"):
        decode_transaction("t", damaged)


def test_the_key_is_kafkas() -> None:
    assert encode_key("golden-txn") == b"\x00\x00\x00\x0agolden-txn"
