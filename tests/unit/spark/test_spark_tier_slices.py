"""The indexes of a tiered segment, and slices that are cut by them."""

import struct
from pathlib import Path

import pytest

from barnabas.base.ids import TopicPartition, format_uuid
from barnabas.broker.features.tiered.layout import Bounds, Part, pack_indexes
from barnabas.broker.features.tiered.store import StoreFault
from barnabas.broker.storage.checkpoints import encode_epochs
from barnabas.broker.storage.epoch_cache import EpochEntry
from barnabas.broker.storage.txn_index import AbortedTxn, encode
from barnabas.spark.offsets import DataLoss
from barnabas.spark.segments import SegmentReader, log_options
from barnabas.spark.tier_slices import Place, TierSlice, aborted_in, cut, index_places
from barnabas.wire.records import BatchBuilder

ABORTED = AbortedTxn(7, 3, 9, 3)  # type: ignore[arg-type]


def test_places_end_where_a_preallocated_index_does() -> None:
    data = struct.pack(">8i", 4, 0, 9, 100, 19, 200, 0, 0) + bytes(80)
    assert list(index_places(data, 1_000, 500)) == [Place(1_009, 100), Place(1_019, 200)]


def test_damaged_transaction_index_is_a_fault_and_hides_no_aborted_transaction() -> None:
    assert list(aborted_in("a.log", {Part.TXN_INDEX: encode(ABORTED)})) == [ABORTED]
    with pytest.raises(StoreFault, match=r"a\.log: entry at 34 has an unknown version 5"):
        list(aborted_in("a.log", {Part.TXN_INDEX: encode(ABORTED) + struct.pack(">hqqqq", 5, *ABORTED)}))


def test_slices_have_each_offset_once_and_only_their_own_aborted_transactions() -> None:
    piece = TierSlice(TopicPartition("t", 0), b"", "a.log", 0, 30, 0, 300, (ABORTED,))
    places = [Place(9, 100), Place(19, 200)]
    slices = cut(piece, places, max_bytes=100, max_records=None)
    assert [(each.from_offset, each.until_offset) for each in slices] == [(0, 10), (10, 20), (20, 30)]
    assert [(each.start, each.end) for each in slices] == [(0, 300), (100, 300), (200, 300)]
    assert [each.aborted for each in slices] == [(ABORTED,), (), ()]


def store_with(root: Path, *segments: tuple[int, int]) -> str:
    """Return the URL of a store with the records of one partition between these offsets."""
    folder = root / f"orders-{format_uuid(bytes(range(16)))}" / "0"
    folder.mkdir(parents=True)
    for number, (start, until) in enumerate(segments):
        builder = BatchBuilder(base_offset=start)
        for offset in range(start, until):
            builder.append(None, b"%d" % offset, timestamp=1)
        epochs = encode_epochs([EpochEntry(0, 0)])  # type: ignore[arg-type]
        parts = {Part.LEADER_EPOCHS: epochs, Part.BOUNDS: Bounds(until - 1, 1).encode()}
        name = f"{start:020d}-{format_uuid(number.to_bytes(16))}"
        (folder / f"{name}.log").write_bytes(builder.build())
        (folder / f"{name}.indexes").write_bytes(pack_indexes(parts))
    return f"file://{root}"


def offsets_of(url: str, **options: str) -> list[int]:
    reader = SegmentReader(log_options({"path": url} | options), ("offset",))
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.column("offset").to_pylist()]


def test_segment_that_is_missing_in_a_store_is_data_loss(tmp_path: Path) -> None:
    """Retention deletes the oldest segments; a segment in the middle is missing because another program deleted it."""
    assert offsets_of(store_with(tmp_path / "whole", (5, 10), (10, 15), (15, 20))) == list(range(5, 20))
    url = store_with(tmp_path / "hole", (5, 10), (15, 20))
    with pytest.raises(DataLoss, match=r"orders-0 from offset 10 to 15 is not in file://.*hole, although the"):
        offsets_of(url)
    assert offsets_of(url, failOnDataLoss="false") == [*range(5, 10), *range(15, 20)]
    assert offsets_of(url, startingOffsets='{"orders":{"0":15}}') == list(range(15, 20))
    with pytest.raises(DataLoss, match="from offset 12 to 15 is not in"):
        offsets_of(url, startingOffsets='{"orders":{"0":12}}')
