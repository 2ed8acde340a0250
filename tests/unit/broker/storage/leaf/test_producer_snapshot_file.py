"""Producer snapshots: Kafka's bytes, both ways; damage raises an error."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.storage import producer_snapshot
from barnabas.broker.storage.producer_entry import BatchMetadata, ProducerEntry
from barnabas.broker.storage.producer_snapshot import CorruptSnapshot

BROKER = Path(__file__).parents[4] / "golden" / "kafka-3.9.1" / "broker-0"
SNAPSHOTS = sorted(BROKER.glob("*/*.snapshot"))
int64 = st.integers(0, 2**62)
entries = st.builds(
    ProducerEntry,
    int64,
    producer_epoch=st.integers(0, 2**15 - 1),
    coordinator_epoch=st.integers(-1, 2**31 - 1),
    last_timestamp=st.just(7),
    txn_first_offset=st.none() | int64,
    batches=st.lists(
        st.builds(BatchMetadata, st.integers(0, 2**31 - 1), int64, st.integers(0, 2**31 - 1), st.just(7)), max_size=1
    ),
)


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_kafkas_snapshot_is_read_and_written_again(path: Path, tmp_path):
    found = producer_snapshot.read(str(path))
    producer_snapshot.write(str(tmp_path / "copy"), found)
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["copy"]


def test_kafkas_snapshots_hold_the_producers_of_their_logs():
    (entry,) = producer_snapshot.read(str(BROKER / "txn-0" / "00000000000000000016.snapshot"))
    assert (entry.producer_id, entry.producer_epoch, entry.coordinator_epoch) == (1, 0, 0)
    assert (entry.last_sequence, entry.last_data_offset, entry.last_offset_delta) == (11, 14, 2)
    assert entry.txn_first_offset is None


@given(st.lists(entries, max_size=5))
def test_entries_round_trip(written: list[ProducerEntry]):
    assert producer_snapshot.decode(producer_snapshot.encode(written)) == written


def test_only_the_last_batch_of_a_producer_is_kept():
    batches = [BatchMetadata(n, n, 0, 5) for n in range(3)]
    (entry,) = producer_snapshot.decode(
        producer_snapshot.encode([ProducerEntry(1, producer_epoch=0, last_timestamp=5, batches=batches)])
    )
    assert list(entry.batches) == batches[-1:]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes are too few"),
        (b"\0\2" + bytes(8), "unknown file version 2"),
        (b"\0\1" + bytes(4) + b"\0\0\0\1", "1 entries in 10 bytes"),
        (b"\0\1" + bytes(4) + b"\xff\xff\xff\xff", "-1 entries in 10 bytes"),
        (b"\0\1" + bytes(8), r"CRC is no longer valid\). Stored crc: 0"),
    ],
)
def test_invalid_snapshot_raises_an_error(data: bytes, why: str):
    with pytest.raises(CorruptSnapshot, match=why):
        producer_snapshot.decode(data)


@given(at=st.integers(0, 10**6), mask=st.integers(1, 255), cut=st.booleans())
def test_any_damage_is_found(at: int, mask: int, cut: bool):
    data = bytearray(producer_snapshot.encode([ProducerEntry(1, producer_epoch=0, last_timestamp=5)] * 2))
    at %= len(data)
    data[at] ^= mask
    if cut:
        del data[at:]
    with pytest.raises(CorruptSnapshot):
        producer_snapshot.decode(bytes(data))
