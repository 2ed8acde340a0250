"""Records of `__share_group_state` are Kafka's, byte for byte. The bytes come from Apache Kafka 4.3.0's message classes."""

from pathlib import Path

import pytest

from barnabas.base.errors import Malformed
from barnabas.broker.runtime.share_state import SharePartitionKey, StateBatch
from barnabas.broker.share_coordinator import records
from barnabas.broker.share_coordinator.state import Change, KeptState
from barnabas.cli.main import app
from barnabas.wire.internal_records import ShareGroupStateDecoder
from barnabas.wire.records import BatchBuilder, Record
from tests.support.command_line import CliRunner

KEY = SharePartitionKey("g", bytes(range(1, 17)), 3)
SNAPSHOT_KEY = bytes.fromhex("00000001670102030405060708090a0b0c0d0e0f1000000003")
UPDATE_KEY = bytes.fromhex("00010001670102030405060708090a0b0c0d0e0f1000000003")
SNAPSHOT = bytes.fromhex(
    "000000000002000000050000000700000000000000640000018bcfe568000000018bcfe56801020000000000000065000000000000006802"
    "00010001000400000004"
)
FIRST_SNAPSHOT = bytes.fromhex("0000000000000000000100000000ffffffffffffffff000000000000000100000000000000010100")
UPDATE = bytes.fromhex("00000000000200000007ffffffffffffffff02000000000000006500000000000000680000030001000400000009")

STATE = KeptState(
    snapshot_epoch=2,
    state_epoch=5,
    leader_epoch=7,
    start_offset=100,
    delivery_complete_count=4,
    batches=(StateBatch(101, 104, 2, 1),),
    created_ms=1_700_000_000_000,
    written_ms=1_700_000_000_001,
    updates=0,
    snapshot_offset=42,
)
CHANGE = Change(
    state_epoch=-1,
    leader_epoch=7,
    start_offset=-1,
    delivery_complete_count=9,
    batches=(StateBatch(101, 104, 0, 3),),
)


def test_snapshot_has_kafkas_bytes() -> None:
    assert records.snapshot(KEY, STATE) == (SNAPSHOT_KEY, SNAPSHOT)
    assert records.decode_key(SNAPSHOT_KEY) == (records.SNAPSHOT, KEY)
    assert records.decode_snapshot(SNAPSHOT, before=None, offset=42) == STATE


def test_unknown_count_is_left_out_of_a_snapshot() -> None:
    state = records.decode_snapshot(FIRST_SNAPSHOT, before=None, offset=0)
    assert (state.state_epoch, state.start_offset, state.delivery_complete_count) == (1, -1, -1)
    assert records.snapshot(KEY, state).value == FIRST_SNAPSHOT


def test_update_has_kafkas_bytes() -> None:
    assert records.update(KEY, CHANGE, snapshot_epoch=2) == (UPDATE_KEY, UPDATE)
    assert records.decode_key(UPDATE_KEY) == (records.UPDATE, KEY)
    assert records.decode_update(UPDATE) == CHANGE


def test_tombstone_has_the_key_of_a_snapshot() -> None:
    assert records.tombstone(KEY) == (SNAPSHOT_KEY, None)


def test_batch_that_ends_before_it_begins_is_malformed() -> None:
    broken = UPDATE.replace((104).to_bytes(8, "big"), (99).to_bytes(8, "big"))
    with pytest.raises(Malformed):
        records.decode_update(broken)


def test_dump_shows_what_kafkas_decoder_shows() -> None:
    decoder = ShareGroupStateDecoder()
    key, value = decoder.decode(Record(offset=0, timestamp=0, key=SNAPSHOT_KEY, value=SNAPSHOT, headers=[]))
    assert key == '{"type":"0","data":{"groupId":"g","topicId":"AQIDBAUGBwgJCgsMDQ4PEA","partition":3}}'
    assert value == (
        '{"version":"0","data":{"snapshotEpoch":2,"stateEpoch":5,"leaderEpoch":7,"startOffset":100,'
        '"deliveryCompleteCount":4,"createTimestamp":1700000000000,"writeTimestamp":1700000000001,"stateBatches":['
        '{"firstOffset":101,"lastOffset":104,"deliveryState":2,"deliveryCount":1}]}}'
    )
    assert decoder.decode(Record(offset=0, timestamp=0, key=SNAPSHOT_KEY, value=None, headers=[]))[1] == "<DELETE>"
    key, value = decoder.decode(Record(offset=0, timestamp=0, key=UPDATE_KEY, value=UPDATE, headers=[]))
    assert key is not None
    assert value is not None
    assert key.startswith('{"type":"1","data":{"groupId":"g"')
    assert '"startOffset":-1' in value


def test_dump_log_prints_a_segment_of_the_topic(tmp_path: Path) -> None:
    builder = BatchBuilder()
    builder.append(SNAPSHOT_KEY, SNAPSHOT, timestamp=1)
    builder.append(SNAPSHOT_KEY, None, timestamp=2)
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(builder.build())
    result = CliRunner().invoke(app, ["dump-log", "--share-group-state-decoder", "--files", str(segment)])
    assert result.exit_code == 0, result.output
    assert 'payload: {"version":"0","data":{"snapshotEpoch":2,' in result.stdout
    assert "payload: <DELETE>" in result.stdout
