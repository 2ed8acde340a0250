"""Aborted transactions on disk."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.base.errors import BrokenInvariant
from barnabas.broker.storage.index_file import CorruptIndex
from barnabas.broker.storage.txn_index import ENTRY_SIZE, AbortedTxn, TransactionIndex, encode

GOLDEN = Path(__file__).parents[4] / "golden" / "kafka-3.9.1" / "broker-0" / "txn-0" / "00000000000000000000.txnindex"


@pytest.fixture
def index(tmp_path):
    return TransactionIndex(str(tmp_path / "00000000000000000000.txnindex"), 0)


def txn(first: int, last: int, stable: int, producer_id: int = 1) -> AbortedTxn:
    return AbortedTxn(producer_id, first, last, stable)


def test_kafkas_index_is_read_and_written_again(tmp_path):
    theirs = TransactionIndex(str(GOLDEN), 0)
    theirs.sanity_check()
    assert theirs.entries() == [txn(4, 7, 8), txn(12, 15, 16)]
    ours = TransactionIndex(str(tmp_path / "x.txnindex"), 0)
    for entry in theirs.entries():
        ours.append(entry)
    assert Path(ours.path).read_bytes() == GOLDEN.read_bytes()


def test_no_file_until_there_is_an_entry(index: TransactionIndex):
    assert not index.exists
    assert index.entries() == []
    assert index.collect(0, 100) == ([], False)
    index.truncate_to(0)
    index.reset()
    index.sanity_check()
    assert not index.exists
    index.append(txn(0, 5, 6))
    assert index.exists
    assert Path(index.path).stat().st_size == ENTRY_SIZE == 34


def test_last_offsets_must_ascend_also_after_opening_again(index: TransactionIndex):
    index.append(txn(0, 5, 6))
    again = TransactionIndex(index.path, 0)
    with pytest.raises(BrokenInvariant, match="not above the last, 5"):
        again.append(txn(0, 5, 6))


@given(
    sizes=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=12),
    start=st.integers(0, 250),
    length=st.integers(1, 100),
    cut=st.integers(0, 250),
)
@settings(deadline=None, max_examples=60)
def test_collect_and_truncate_against_a_list(tmp_path_factory, sizes, start, length, cut):
    index = TransactionIndex(str(tmp_path_factory.mktemp("txn") / "x.txnindex"), 0)
    spans, last = [], -1
    for reach, gap in sizes:
        last += gap
        spans.append((max(0, last - reach), last))
    model = []
    for number, (first, last) in enumerate(spans):
        # As in the log: the last stable offset after this end is the start of the first transaction that is still open.
        still_open = [other for other, _ in spans[number + 1 :] if other <= last]
        model.append(txn(first, last, min([*still_open, last + 1])))
        index.append(model[-1])
    found = index.collect(start, start + length)
    assert found.aborted == [t for t in model if t.last_offset >= start and t.first_offset < start + length]
    assert found.is_complete == any(t.last_stable_offset >= start + length for t in model)
    index.truncate_to(cut)
    assert index.entries() == [t for t in model if t.last_offset < cut]
    index.append(txn(300, 300, 301))


def test_search_stops_where_no_later_transaction_can_matter(index: TransactionIndex):
    index.append(txn(0, 10, 11))
    index.append(txn(5, 40, 41))
    index.append(txn(50, 60, 61))
    assert index.collect(0, 30) == ([txn(0, 10, 11), txn(5, 40, 41)], True)


def test_search_does_not_believe_an_offset_behind_the_marker(index: TransactionIndex):
    """As a follower of Kafka's writes it, which got the beginning of a later transaction in the same fetch."""
    index.append(txn(0, 10, 50))
    index.append(txn(12, 60, 61))
    assert index.collect(0, 30).aborted == [txn(0, 10, 50), txn(12, 60, 61)]


def test_torn_entry_is_not_counted_and_is_written_over(index: TransactionIndex):
    index.append(txn(0, 5, 6))
    with open(index.path, "ab") as file:
        file.write(b"torn")
    with pytest.raises(CorruptIndex, match="torn"):
        index.sanity_check()
    assert index.entries() == [txn(0, 5, 6)]
    index.append(txn(6, 9, 10))
    assert TransactionIndex(index.path, 0).entries() == [txn(0, 5, 6), txn(6, 9, 10)]
    index.sanity_check()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack(">hqqqq", 1, 1, 100, 105, 106), "unknown version 1"),
        (encode(txn(0, 50, 51)), "below the base offset 100"),
        (encode(txn(110, 105, 106)), "ends before it starts"),
        (encode(txn(100, 105, 106)) * 2, "does not end after the one before"),
    ],
)
def test_sanity_check_finds_impossible_entries(tmp_path, data: bytes, why: str):
    path = tmp_path / "x.txnindex"
    path.write_bytes(data)
    with pytest.raises(CorruptIndex, match=why):
        TransactionIndex(str(path), 100).sanity_check()
